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
 * again by its path. Inode, size and time must match, or the bytes would not be the ones that
 * the index describes. The new open file replaces the old one behind the same descriptor
 * (dup3), so that readers need not know.
 */
#include "source_retry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "numbers.h"
#include "pause.h"
#include "source_ops.h"

#define PAUSE_FIRST_NS UINT64_C(20000000)
#define PAUSE_GROWTH 5
#define PAUSE_MAX_NS UINT64_C(2000000000)
#define LIMIT_NS UINT64_C(30000000000) /* no try begins later after the first failure */
#define HOPELESS 3u                    /* reads in a row that failed for good */

static _Atomic uint64_t failed_tries;

struct source_retry {
    struct source source;
    char *path; /* NULL: can't be opened again */
    _Atomic unsigned retries;
    _Atomic bool at_random;
    _Atomic bool replaced; /* another file is at its path */
    _Atomic unsigned lost; /* reads in a row that failed for good */
    _Atomic uint32_t opening;
    _Atomic uint64_t retried, failed, reopened;
    struct pause pause; /* ended: no more retries */
    pthread_mutex_t open_lock;
    source_error_hook *_Atomic hook;
    void *_Atomic hook_ctx; /* written before the hook */
};

/* One read, with all its tries. */
struct attempt {
    unsigned made;    /* failed tries */
    uint64_t since;   /* time of the first failure */
    uint32_t opening; /* which opening of the file the last try used */
};

static void retry_tell(struct source_retry *retry, enum source_error what, int err,
                       uint64_t offset)
{
    source_error_hook *hook = atomic_load(&retry->hook);
    const struct source *file = source_at(&retry->source, &offset);
    if (hook)
        hook(atomic_load(&retry->hook_ctx), source_name(file), what, err, offset);
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

uint64_t source_failed_tries(void)
{
    return atomic_load_explicit(&failed_tries, memory_order_relaxed);
}

/* ---- stale handles ---- */

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

static bool is_same_file(const struct source_identity *old, int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_ino != old->ino)
        return false;
    const struct source_identity now = source_identity_of(&st);
    return source_identity_same(&now, old);
}

/* The caller holds open_lock. */
static void reopen_locked(struct source_retry *retry, int err, uint64_t offset)
{
    auto_close int fd = open(retry->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return; /* not there yet: the next try checks again */
    if (!is_same_file(&retry->source.identity, fd)) {
        if (!atomic_exchange(&retry->replaced, true))
            retry_tell(retry, SOURCE_REPLACED, err, offset);
        return;
    }
    fcntl(fd, F_SETFL, O_RDONLY);
    if (dup3(fd, retry->source.fd, O_CLOEXEC) < 0)
        return;
    if (atomic_load(&retry->at_random))
        source_advise(retry->source.wrapped, SOURCE_AT_RANDOM, 0, 0);
    atomic_store(&retry->replaced, false);
    atomic_fetch_add(&retry->opening, 1);
    atomic_fetch_add(&retry->reopened, 1);
    retry_tell(retry, SOURCE_REOPENED, err, offset);
}

/* Open the file again, unless another thread has done so since this read began. */
static void retry_reopen(struct source_retry *retry, const struct attempt *attempt, int err,
                         uint64_t offset)
{
    if (!retry->path)
        return;
    pthread_mutex_lock(&retry->open_lock);
    if (atomic_load(&retry->opening) == attempt->opening)
        reopen_locked(retry, err, offset);
    pthread_mutex_unlock(&retry->open_lock);
}

/* ---- one failure ---- */

static uint64_t pause_ns(unsigned made)
{
    uint64_t ns = PAUSE_FIRST_NS;
    for (unsigned i = 1; i < made && ns < PAUSE_MAX_NS; i++)
        ns *= PAUSE_GROWTH;
    return min_u64(ns, PAUSE_MAX_NS);
}

static bool give_up(struct source_retry *retry)
{
    atomic_fetch_add(&retry->failed, 1);
    atomic_fetch_add(&retry->lost, 1);
    return false;
}

static bool may_try(const struct source_retry *retry, const struct attempt *attempt,
                    bool hopeless)
{
    unsigned limit = atomic_load(&retry->retries);
    if (hopeless && limit > 1)
        limit = 1;
    return attempt->made <= limit && !pause_ended(&retry->pause) &&
           pause_now_ns(&retry->pause) - attempt->since <= LIMIT_NS;
}

/*
 * Handle a try that failed with -errno `err` at `offset` of the file. True: try again now. It
 * may have waited, and opened the file again behind the same descriptor.
 */
static bool try_again(struct source_retry *retry, struct attempt *attempt, int err,
                      uint64_t offset)
{
    bool hopeless = atomic_load(&retry->lost) >= HOPELESS;

    if (!source_error_may_pass(err))
        return false;
    atomic_fetch_add_explicit(&failed_tries, 1, memory_order_relaxed);
    if (attempt->made++ == 0)
        attempt->since = pause_now_ns(&retry->pause);
    if (!may_try(retry, attempt, hopeless))
        return give_up(retry);
    atomic_fetch_add(&retry->retried, 1);
    if (attempt->made == 1)
        retry_tell(retry, SOURCE_RETRIED, err, offset);
    bool at_once = hopeless || (is_stale(err) && attempt->made == 1);
    if (!at_once && !pause_for(&retry->pause, pause_ns(attempt->made)))
        return give_up(retry);
    if (is_stale(err))
        retry_reopen(retry, attempt, err, offset);
    attempt->opening = atomic_load(&retry->opening);
    return true;
}

/* ---- the source ---- */

/* Its members that change are atomic, or under a lock. */
static struct source_retry *retry_of(const struct source *source)
{
    return (struct source_retry *)(uintptr_t)source;
}

static int retry_read(const struct source *source, struct source_cursor *cursor)
{
    struct source_retry *retry = retry_of(source);
    struct attempt attempt = {.opening =
                                  atomic_load_explicit(&retry->opening, memory_order_relaxed)};
    int r;
    while ((r = source_read_on(source->wrapped, cursor)) < 0 &&
           try_again(retry, &attempt, r, cursor->offset))
        ;
    if (r == 0 && atomic_load_explicit(&retry->lost, memory_order_relaxed))
        atomic_store_explicit(&retry->lost, 0, memory_order_relaxed);
    if (r == -EREMCHG)
        retry_tell(retry, SOURCE_CHANGED, r, cursor->offset);
    return r;
}

/* A file that is opened again gets this advice again. */
static void retry_advise(const struct source *source, enum source_advice advice,
                         uint64_t offset, uint64_t len)
{
    if (advice == SOURCE_AT_RANDOM)
        atomic_store(&retry_of(source)->at_random, true);
    source_advise(source->wrapped, advice, offset, len);
}

static bool retry_close(struct source *source)
{
    struct source_retry *retry = retry_of(source);
    pthread_mutex_destroy(&retry->open_lock);
    free(retry->path);
    return true;
}

static const struct source_ops retry_ops = {
    .read = retry_read, .advise = retry_advise, .close = retry_close};

int source_retry(struct source **source)
{
    struct source_retry *retry = calloc(1, sizeof(*retry));
    if (!retry)
        return -ENOMEM;
    source_wrap(&retry->source, &retry_ops, source);
    if (!source_is_local(retry->source.wrapped)) /* a local handle does not become stale */
        retry->path = path_of(retry->source.fd);
    atomic_init(&retry->retries, SOURCE_RETRIES_DEFAULT);
    pause_init(&retry->pause);
    pthread_mutex_init(&retry->open_lock, NULL);
    return 0;
}

/* ---- what callers set and see ---- */

static struct source_retry *retry_in(const struct source *source)
{
    while (source && source->ops != &retry_ops)
        source = source->wrapped;
    return source ? retry_of(source) : NULL;
}

const char *source_real_path(const struct source *source)
{
    const struct source_retry *retry = retry_in(source);
    return retry ? retry->path : NULL;
}

/*
 * The next retrying source of a source, which may be several files: each has its own, or one is
 * around all of them. NULL: no more.
 */
static struct source_retry *retry_next(const struct source *source, size_t at[2])
{
    const struct source *file;
    struct source_retry *retry = NULL;
    if (at[0] == 0 && at[1] == 0 && source_member(source, 0) != source)
        retry = retry_in(source);
    if (retry)
        at[0] = SIZE_MAX;
    while (!retry && (file = source_file_next(source, at)))
        retry = retry_in(file);
    return retry;
}

void source_set_retries(struct source *source, unsigned retries)
{
    struct source_retry *retry;
    for (size_t at[2] = {0}; (retry = retry_next(source, at));)
        atomic_store(&retry->retries, retries);
}

void source_cancel_retries(struct source *source)
{
    struct source_retry *retry;
    for (size_t at[2] = {0}; (retry = retry_next(source, at));)
        pause_end(&retry->pause);
}

void source_on_error(struct source *source, source_error_hook *hook, void *ctx)
{
    struct source_retry *retry;
    for (size_t at[2] = {0}; (retry = retry_next(source, at));) {
        if (hook) /* when the hook is removed, a call about to be made keeps its ctx */
            atomic_store(&retry->hook_ctx, ctx);
        atomic_store(&retry->hook, hook);
    }
}

struct source_error_counts source_error_counts(const struct source *source)
{
    struct source_error_counts sum = {0};
    const struct source_retry *retry;
    for (size_t at[2] = {0}; (retry = retry_next(source, at));) {
        sum.retried += atomic_load(&retry->retried);
        sum.failed += atomic_load(&retry->failed);
        sum.reopened += atomic_load(&retry->reopened);
    }
    return sum;
}

void source_retry_test_clock(struct source *source, _Atomic uint64_t *clock_ns)
{
    retry_in(source)->pause.test_ns = clock_ns;
}
