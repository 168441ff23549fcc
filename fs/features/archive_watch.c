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
#include "clock.h"
#include "source_concat.h"
#include "summary.h"
#include "thread.h"

#define LOOK_EVERY_MS 2000
#define COPY_EVERY_MS 100 /* is the copy whole? */
#define LAST_LOOK_LIMIT_MS 300
#define LOOK_AT_ONCE 32u /* archives of a union on a distant filesystem */
#define STACK_BYTES (128u << 10)

struct watched {
    struct archive_sight sight;
    _Atomic int state;
    int told; /* the state that archive_watch_news told last */
};

struct archive_watch {
    struct pot *pot;
    const struct counters *counters;
    uint64_t used_ns; /* time of the last request at the last look */
    pthread_t thread;
    bool is_started;
    int stop_fd, news_fd;
    struct fault unsaved; /* the thread's, until has_unsaved is set */
    _Atomic bool has_unsaved;
    bool has_left; /* everything is read from a copy */
    size_t next;   /* archive of a union */
    size_t count;
    struct watched archives[];
};

/* Nothing has happened to it since the last look. */
static bool is_seen(const struct archive_sight *a, const struct source_identity *now)
{
    const struct source_identity *seen = &a->seen;
    return a->has_fingerprint && source_identity_same(now, seen) &&
           now->ctime_sec == seen->ctime_sec && now->ctime_nsec == seen->ctime_nsec;
}

enum archive_state archive_look(struct archive_sight *a)
{
    struct source_identity now;
    uint64_t fingerprint;

    if (source_keeps(a->source) && source_is_local(a->source))
        return ARCHIVE_SAME; /* nothing is read from the archive any more */
    if (source_identity_now(a->source, &now) < 0 || is_seen(a, &now))
        return ARCHIVE_SAME;
    bool is_cut = now.size_bytes < a->opened.size_bytes;
    int r = is_cut              ? -ENODATA
            : a->is_one_of_many ? source_sample(a->source, &fingerprint)
                                : source_fingerprint(a->source, &fingerprint);
    if (r == -ENODATA || (r == 0 && a->has_fingerprint && fingerprint != a->fingerprint))
        return ARCHIVE_CHANGED;
    if (r < 0)
        return ARCHIVE_SAME;
    a->fingerprint = fingerprint;
    a->has_fingerprint = true;
    a->seen = now;
    return source_identity_same(&now, &a->opened) ? ARCHIVE_SAME : ARCHIVE_TOUCHED;
}

/* ---- the thread ---- */

static void watch_look_at(struct archive_watch *w, size_t i)
{
    struct watched *watched = &w->archives[i];
    if (atomic_load(&watched->state) == ARCHIVE_CHANGED)
        return;
    enum archive_state state = archive_look(&watched->sight);
    if ((int)state <= atomic_load(&watched->state))
        return;
    if (state == ARCHIVE_CHANGED && w->pot->parts)
        source_concat_distrust(w->pot->source, i);
    atomic_store(&watched->state, (int)state);
    eventfd_write(w->news_fd, 1);
}

static bool watch_has_copy(const struct archive_watch *w)
{
    return source_keeps(w->pot->source) && source_is_local(w->pot->source);
}

/*
 * The copy is whole. An index that is mapped from the archive itself, on local storage, is in
 * the copy, too: from there no change of the archive reaches it.
 */
static void watch_leave(struct archive_watch *w)
{
    const struct pot *pot = w->pot;
    uint64_t start;
    int fd = source_local_fd(pot->source, &start);
    if (fd >= 0 && !pot->parts && pot->origin == POT_INDEX_EMBEDDED)
        index_move(pot->index, fd, start + index_offset(pot->index));
    w->has_left = true;
}

static void archive_watch_look(struct archive_watch *w)
{
    bool is_local = source_is_local(w->pot->source);
    if (watch_has_copy(w))
        return; /* nothing is read from the archives any more */
    for (size_t i = 0; i < w->count && (is_local || i < LOOK_AT_ONCE); i++)
        watch_look_at(w, w->next++ % w->count);
}

static bool watch_is_needed(const struct archive_watch *w)
{
    return w->count > 1 || atomic_load(&w->archives[0].state) != ARCHIVE_CHANGED;
}

static void *archive_watch_run(void *arg)
{
    struct archive_watch *w = arg;
    struct pollfd p = {.fd = w->stop_fd, .events = POLLIN};
    int pause_ms = source_keeps(w->pot->source) ? COPY_EVERY_MS : LOOK_EVERY_MS;
    int since_ms = 0;

    if (pot_save(w->pot, &w->unsaved) < 0 && w->unsaved.err) {
        atomic_store(&w->has_unsaved, true);
        eventfd_write(w->news_fd, 1);
    }
    while (watch_is_needed(w) && poll(&p, 1, w->has_left ? -1 : pause_ms) <= 0) {
        since_ms += pause_ms;
        if (watch_has_copy(w))
            watch_leave(w);
        if (w->has_left || since_ms < LOOK_EVERY_MS)
            continue;
        since_ms = 0;
        /* Without requests nobody gets wrong bytes, and the file's server is spared. */
        uint64_t used_ns = summary_last_use_ns(w->counters);
        if (used_ns != w->used_ns)
            archive_watch_look(w);
        w->used_ns = used_ns;
    }
    archive_watch_look(w);
    return NULL;
}

void archive_watch_free(struct archive_watch *w)
{
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    if (w->news_fd >= 0)
        close(w->news_fd);
    free(w);
}

static void watch_begin(struct archive_watch *w, size_t i)
{
    const struct pot *pot = w->pot;
    struct archive_sight *sight = &w->archives[i].sight;
    sight->source = pot->parts ? source_member(pot->source, i) : pot->source;
    sight->opened = pot->identity;
    sight->is_one_of_many = pot->parts != NULL;
    if (pot->parts)
        source_identity(sight->source, &sight->opened);
    sight->fingerprint = pot->parts ? pot->parts[i].samples : pot->fingerprint;
    sight->has_fingerprint = pot->parts ? pot->parts[i].has_samples : pot->has_fingerprint;
    sight->seen = sight->opened;
}

int archive_watch_new(struct pot *pot, const struct counters *counters,
                      struct archive_watch **ret_watch)
{
    size_t count = pot->parts ? pot->part_count : 1;
    if (pot->compression)
        return -ENOTSUP;
    struct archive_watch *w = calloc(1, sizeof(*w) + count * sizeof(w->archives[0]));
    if (!w)
        return -ENOMEM;
    w->pot = pot;
    w->counters = counters;
    w->count = count;
    for (size_t i = 0; i < count; i++)
        watch_begin(w, i);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->stop_fd < 0 || w->news_fd < 0) {
        archive_watch_free(w);
        return -EMFILE;
    }
    if (count == 1) /* of a union, the samples of the parts are known */
        archive_watch_look(w);
    *ret_watch = w;
    return 0;
}

int archive_watch_start(struct archive_watch *w)
{
    int r = thread_start(&w->thread, STACK_BYTES, archive_watch_run, w);
    w->is_started = r == 0;
    return r;
}

int archive_watch_fd(const struct archive_watch *w)
{
    return w->news_fd;
}

bool archive_watch_news(struct archive_watch *w, enum archive_state *ret_state,
                        const char **ret_name)
{
    eventfd_t count;
    eventfd_read(w->news_fd, &count); /* it fails if there is nothing new */
    for (size_t i = 0; i < w->count; i++) {
        struct watched *watched = &w->archives[i];
        int state = atomic_load(&watched->state);
        if (state == watched->told)
            continue;
        watched->told = state;
        *ret_state = (enum archive_state)state;
        *ret_name = w->pot->parts ? w->pot->parts[i].path : NULL;
        return true;
    }
    return false;
}

const struct fault *archive_watch_unsaved(struct archive_watch *w)
{
    return atomic_exchange(&w->has_unsaved, false) ? &w->unsaved : NULL;
}

int archive_watch_stop(struct archive_watch *w)
{
    struct timespec until;

    if (!w->is_started)
        return 0;
    eventfd_write(w->stop_fd, 1);
    until = clock_in_ms(CLOCK_MONOTONIC, LAST_LOOK_LIMIT_MS);
    return thread_join_until(w->thread, &until) != 0 ? -EBUSY : 0;
}
