/*
 * Retries. A client of a parallel filesystem repeats a request for minutes before it reports
 * an error, so most errors that arrive here are over in a moment: a server that dropped a
 * client which then reconnects, a fail-over, a soft time-out. So the pauses are short and grow
 * fast: 20 ms, 100 ms, 0.5 s, then 2 s each. With the default of four retries a read is given
 * up after 2.6 s, long before --io-timeout, and a hiccup of a second goes unnoticed.
 *
 * After several reads in a row failed for good, the storage is assumed gone. From then on each
 * read is retried once, at once and without a pause, until one succeeds; so a job learns it
 * soon.
 *
 * A stale handle (ESTALE, or a connection that ended) stays stale: the file has to be opened
 * again by its path. Inode, size and time must match, or the bytes would not be those that the
 * index describes. The new open file replaces the old one behind the same descriptor (dup3),
 * so that readers need not know.
 */
#include "source_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

#define PAUSE_FIRST_NS UINT64_C(20000000)
#define PAUSE_GROWTH 5
#define PAUSE_MAX_NS UINT64_C(2000000000)
#define LIMIT_NS UINT64_C(30000000000) /* no try begins later after the first failure */
#define HOPELESS 3u                    /* reads in a row that failed for good */

struct source_guard {
    int fd;
    char *path; /* NULL: can't be opened again */
    struct source_identity identity;
    _Atomic unsigned retries;
    _Atomic bool cancelled;
    _Atomic bool at_random;
    _Atomic bool replaced; /* another file is at its path */
    _Atomic unsigned lost; /* reads in a row that failed for good */
    _Atomic uint32_t opening;
    _Atomic uint64_t retried, failed, reopened;
    pthread_mutex_t lock; /* for the pauses */
    pthread_cond_t end;
    pthread_mutex_t open_lock;
    source_trouble_hook *_Atomic hook;
    void *_Atomic hook_ctx; /* written before the hook */
};

/* The file's absolute path, found without asking the file's server. */
static char *path_of(int fd)
{
    char link[64], path[PATH_MAX];
    struct stat st;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0 || path[0] != '/' || fstat(fd, &st) < 0 || st.st_nlink == 0)
        return NULL;
    return strndup(path, (size_t)n);
}

int source_guard_new(int fd, const struct source_identity *identity,
                     struct source_guard **ret_guard)
{
    struct source_guard *guard = calloc(1, sizeof(*guard));
    pthread_condattr_t attr;

    if (!guard)
        return -ENOMEM;
    guard->fd = fd;
    guard->path = path_of(fd);
    guard->identity = *identity;
    atomic_init(&guard->retries, SOURCE_RETRIES_DEFAULT);
    pthread_mutex_init(&guard->lock, NULL);
    pthread_mutex_init(&guard->open_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&guard->end, &attr);
    pthread_condattr_destroy(&attr);
    *ret_guard = guard;
    return 0;
}

void source_guard_free(struct source_guard *guard)
{
    if (!guard)
        return;
    pthread_cond_destroy(&guard->end);
    pthread_mutex_destroy(&guard->open_lock);
    pthread_mutex_destroy(&guard->lock);
    free(guard->path);
    free(guard);
}

struct source_attempt source_guard_begin(const struct source_guard *guard)
{
    return (struct source_attempt){
        .opening = atomic_load_explicit(&guard->opening, memory_order_relaxed)};
}

void source_guard_succeeded(struct source_guard *guard)
{
    if (atomic_load_explicit(&guard->lost, memory_order_relaxed))
        atomic_store_explicit(&guard->lost, 0, memory_order_relaxed);
}

static void tell(struct source_guard *guard, enum source_trouble what, int err, uint64_t offset)
{
    source_trouble_hook *hook = atomic_load(&guard->hook);
    if (hook)
        hook(atomic_load(&guard->hook_ctx), what, err, offset);
}

/* Is the descriptor unusable, while the path may still work? */
static bool is_stale(int err)
{
    return err == -ESTALE || err == -ENOTCONN || err == -ESHUTDOWN || err == -ECONNABORTED ||
           err == -ENODEV;
}

bool source_error_may_pass(int err)
{
    static const int passing[] = {
        EIO,       EAGAIN,     ETIMEDOUT,    ETIME,       EREMOTEIO,    EBUSY,
        ENOBUFS,   ECONNRESET, ECONNREFUSED, ENETUNREACH, EHOSTUNREACH, ENETDOWN,
        EHOSTDOWN, ENETRESET,  EPIPE,        ECOMM,       EPROTO,       ENOLINK,
    };
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++)
        if (err == -passing[i])
            return true;
    return is_stale(err);
}

/* ---- pauses ---- */

static uint64_t pause_ns(unsigned made)
{
    uint64_t ns = PAUSE_FIRST_NS;
    for (unsigned i = 1; i < made && ns < PAUSE_MAX_NS; i++)
        ns *= PAUSE_GROWTH;
    return ns < PAUSE_MAX_NS ? ns : PAUSE_MAX_NS;
}

/* False: cancelled. */
static bool pause_for(struct source_guard *guard, uint64_t ns)
{
    uint64_t until_ns = now_ns() + ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / UINT64_C(1000000000)),
                             .tv_nsec = (long)(until_ns % UINT64_C(1000000000))};

    pthread_mutex_lock(&guard->lock);
    while (!atomic_load(&guard->cancelled) &&
           pthread_cond_timedwait(&guard->end, &guard->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&guard->lock);
    return !atomic_load(&guard->cancelled);
}

void source_guard_cancel(struct source_guard *guard)
{
    pthread_mutex_lock(&guard->lock);
    atomic_store(&guard->cancelled, true);
    pthread_cond_broadcast(&guard->end);
    pthread_mutex_unlock(&guard->lock);
}

/* ---- stale handles ---- */

static bool is_same_file(const struct source_guard *guard, int fd)
{
    const struct source_identity *old = &guard->identity;
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == old->ino &&
           (uint64_t)st.st_size == old->size_bytes && st.st_mtim.tv_sec == old->mtime_sec &&
           (uint32_t)st.st_mtim.tv_nsec == old->mtime_nsec;
}

/* The caller holds open_lock. */
static void reopen_locked(struct source_guard *guard, int err, uint64_t offset)
{
    auto_close int fd = open(guard->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return; /* not there yet: the next try checks again */
    if (!is_same_file(guard, fd)) {
        if (!atomic_exchange(&guard->replaced, true))
            tell(guard, SOURCE_REPLACED, err, offset);
        return;
    }
    fcntl(fd, F_SETFL, O_RDONLY);
    if (atomic_load(&guard->at_random))
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    if (dup3(fd, guard->fd, O_CLOEXEC) < 0)
        return;
    atomic_store(&guard->replaced, false);
    atomic_fetch_add(&guard->opening, 1);
    atomic_fetch_add(&guard->reopened, 1);
    tell(guard, SOURCE_REOPENED, err, offset);
}

/* Open the file again, unless another thread has done so since this read began. */
static void reopen(struct source_guard *guard, const struct source_attempt *attempt, int err,
                   uint64_t offset)
{
    if (!guard->path)
        return;
    pthread_mutex_lock(&guard->open_lock);
    if (atomic_load(&guard->opening) == attempt->opening)
        reopen_locked(guard, err, offset);
    pthread_mutex_unlock(&guard->open_lock);
}

/* ---- one failure ---- */

static bool give_up(struct source_guard *guard)
{
    atomic_fetch_add(&guard->failed, 1);
    atomic_fetch_add(&guard->lost, 1);
    return false;
}

static bool may_try(struct source_guard *guard, const struct source_attempt *attempt,
                    bool hopeless)
{
    unsigned limit = atomic_load(&guard->retries);
    if (hopeless && limit > 1)
        limit = 1;
    return attempt->made <= limit && !atomic_load(&guard->cancelled) &&
           now_ns() - attempt->since <= LIMIT_NS;
}

bool source_guard_again(struct source_guard *guard, struct source_attempt *attempt, int err,
                        uint64_t offset)
{
    bool hopeless = atomic_load(&guard->lost) >= HOPELESS;

    if (!source_error_may_pass(err))
        return false;
    if (attempt->made++ == 0)
        attempt->since = now_ns();
    if (!may_try(guard, attempt, hopeless))
        return give_up(guard);
    atomic_fetch_add(&guard->retried, 1);
    if (attempt->made == 1)
        tell(guard, SOURCE_RETRIED, err, offset);
    bool at_once = hopeless || (is_stale(err) && attempt->made == 1);
    if (!at_once && !pause_for(guard, pause_ns(attempt->made)))
        return give_up(guard);
    if (is_stale(err))
        reopen(guard, attempt, err, offset);
    attempt->opening = atomic_load(&guard->opening);
    return true;
}

/* ---- what callers set and see ---- */

void source_guard_set_retries(struct source_guard *guard, unsigned retries)
{
    atomic_store(&guard->retries, retries);
}

void source_guard_use_at_random(struct source_guard *guard)
{
    atomic_store(&guard->at_random, true);
    posix_fadvise(guard->fd, 0, 0, POSIX_FADV_RANDOM);
}

void source_guard_on_trouble(struct source_guard *guard, source_trouble_hook *hook, void *ctx)
{
    if (hook) /* when the hook is removed, a call about to be made keeps its ctx */
        atomic_store(&guard->hook_ctx, ctx);
    atomic_store(&guard->hook, hook);
}

void source_guard_troubles(struct source_guard *guard, struct source_troubles *ret_troubles)
{
    ret_troubles->retried = atomic_load(&guard->retried);
    ret_troubles->failed = atomic_load(&guard->failed);
    ret_troubles->reopened = atomic_load(&guard->reopened);
}
