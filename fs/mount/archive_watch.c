/*
 * Times alone prove nothing: a file may be touched, renamed or linked without a change to its
 * bytes. Samples prove little more, since a few bytes in the middle are in none of them. But
 * another archive copied over this one shows in the first and the last sample.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "archive_watch.h"
#include "cleanup.h"
#include "summary.h"
#include "thread.h"

#define LOOK_EVERY_MS 2000
#define LAST_LOOK_LIMIT_MS 300
#define STACK_BYTES (128u << 10)

struct archive_watch {
    const struct source *source;
    const struct counters *counters;
    struct source_identity opened; /* as it was when its index was read */
    struct stat seen;              /* at the last look */
    uint64_t fingerprint;
    bool has_fingerprint;
    uint64_t looked_ns; /* time of the last request at the last look */
    pthread_t thread;
    int stop_fd, news_fd;
    _Atomic int state;
};

static void tell(struct archive_watch *w, enum archive_state state)
{
    uint64_t one = 1;
    if ((int)state <= atomic_load(&w->state))
        return;
    atomic_store(&w->state, (int)state);
    if (write(w->news_fd, &one, sizeof(one)) < 0)
        return; /* it is readable already */
}

static bool same_moment(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Nothing has happened to it since the last look. */
static bool is_seen(const struct archive_watch *w, const struct stat *st)
{
    return w->has_fingerprint && st->st_size == w->seen.st_size &&
           same_moment(&st->st_mtim, &w->seen.st_mtim) &&
           same_moment(&st->st_ctim, &w->seen.st_ctim);
}

static bool is_as_opened(const struct archive_watch *w, const struct stat *st)
{
    return st->st_mtim.tv_sec == w->opened.mtime_sec &&
           st->st_mtim.tv_nsec == (long)w->opened.mtime_nsec &&
           (!S_ISREG(st->st_mode) || (uint64_t)st->st_size == w->opened.size_bytes);
}

/* The first look records the content's samples. */
static void look(struct archive_watch *w)
{
    struct stat st;
    uint64_t fingerprint;

    if (source_keeps(w->source) && source_is_local(w->source))
        return; /* nothing is read from the archive any more */
    if (fstat(source_fd(w->source), &st) < 0 || is_seen(w, &st))
        return;
    bool is_cut = S_ISREG(st.st_mode) && (uint64_t)st.st_size < w->opened.size_bytes;
    int r = is_cut ? -ENODATA : source_fingerprint(w->source, &fingerprint);
    if (r < 0 && r != -ENODATA)
        return; /* its storage fails; readers see that for themselves */
    if (r < 0 || (w->has_fingerprint && fingerprint != w->fingerprint)) {
        tell(w, ARCHIVE_CHANGED);
        return;
    }
    if (!is_as_opened(w, &st))
        tell(w, ARCHIVE_TOUCHED);
    w->fingerprint = fingerprint;
    w->has_fingerprint = true;
    w->seen = st;
}

static void *watch(void *arg)
{
    struct archive_watch *w = arg;
    struct pollfd p = {.fd = w->stop_fd, .events = POLLIN};

    look(w);
    while (atomic_load(&w->state) != ARCHIVE_CHANGED) {
        if (poll(&p, 1, LOOK_EVERY_MS) > 0)
            break;
        /* Without requests nobody gets wrong bytes, and the file's server is spared. */
        uint64_t used_ns = summary_last_use_ns(w->counters);
        if (used_ns != w->looked_ns)
            look(w);
        w->looked_ns = used_ns;
    }
    look(w);
    return NULL;
}

static void free_watch(struct archive_watch *w)
{
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    if (w->news_fd >= 0)
        close(w->news_fd);
    free(w);
}

static int start_thread(struct archive_watch *w)
{
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    if (r != 0)
        return -r;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    r = pthread_create(&w->thread, &attr, watch, w);
    pthread_attr_destroy(&attr);
    return -r;
}

int archive_watch_start(struct pot *pot, const struct counters *counters,
                        struct archive_watch **ret_watch)
{
    if (pot->compression)
        return -ENOTSUP;
    struct archive_watch *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->source = pot->source;
    w->counters = counters;
    w->opened = pot->identity;
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = w->stop_fd < 0 || w->news_fd < 0 ? -EMFILE : start_thread(w);
    if (r < 0) {
        free_watch(w);
        return r;
    }
    *ret_watch = w;
    return 0;
}

int archive_watch_fd(const struct archive_watch *w)
{
    return w->news_fd;
}

enum archive_state archive_watch_state(struct archive_watch *w)
{
    uint64_t count;
    if (read(w->news_fd, &count, sizeof(count)) < 0)
        count = 0; /* nothing new */
    return (enum archive_state)atomic_load(&w->state);
}

int archive_watch_stop(struct archive_watch *w, enum archive_state *ret_state)
{
    struct timespec until;
    uint64_t one = 1;

    if (write(w->stop_fd, &one, sizeof(one)) < 0)
        return -EBUSY;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LAST_LOOK_LIMIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (thread_join_until(w->thread, &until) != 0)
        return -EBUSY;
    *ret_state = (enum archive_state)atomic_load(&w->state);
    free_watch(w);
    return 0;
}
