/*
 * Notices when the archive is written to while it is mounted. A reader can't notice that a
 * file's bytes were replaced underneath; it would then get a piece of something else. So while
 * the mount is used, a thread looks at size and times now and then, and where they have changed
 * compares samples of the content (source_fingerprint). With a union on a distant filesystem,
 * each look takes some archives in turn.
 *
 * Times alone prove nothing: a file may be touched, renamed or linked without a change to its
 * bytes. Samples prove little more, since a few bytes in the middle are in none of them. But
 * another archive copied over this one shows in the first and the last sample.
 *
 * It is a separate thread, because a filesystem that hangs may block it for ever.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "core.h"
#include "source.h"
#include "source_concat.h"
#include "summary.h"
#include "thread.h"

#define LOOK_EVERY_MS 2000
#define COPY_EVERY_MS 100 /* is the copy whole? */
#define LAST_LOOK_LIMIT_MS 300
#define LOOK_AT_ONCE 32u /* archives of a union on a distant filesystem */
#define STACK_BYTES (128u << 10)

enum archive_state {
    ARCHIVE_SAME,
    ARCHIVE_TOUCHED, /* its times differ; of its bytes few, if any */
    ARCHIVE_CHANGED, /* truncated, or its bytes differ */
};

/* An archive that is looked at again and again. */
struct archive_sight {
    const struct source *source;
    struct source_identity opened; /* as it was when its index was read */
    bool is_one_of_many;           /* few samples are taken: source_sample */
    bool has_fingerprint;          /* known, or of the last look: */
    uint64_t fingerprint;
    struct source_identity seen;
    enum archive_state state; /* the worst, which was told */
};

struct archive_watch {
    struct session *session;
    uint64_t used_ns; /* time of the last request at the last look */
    pthread_t thread;
    enum { NOT_STARTED, RUNS, ENDED, STUCK } thread_state;
    int stop_fd;
    bool has_left; /* everything is read from a copy */
    size_t next;   /* archive of a union */
    size_t count;
    struct archive_sight archives[];
};

/* ---- one archive ---- */

/* Nothing has happened to it since the last look. */
static bool is_seen(const struct archive_sight *a, const struct source_identity *now)
{
    const struct source_identity *seen = &a->seen;
    return a->has_fingerprint && source_identity_same(now, seen) &&
           now->ctime_sec == seen->ctime_sec && now->ctime_nsec == seen->ctime_nsec;
}

/*
 * Look at the archive. The first look records samples of its content, unless they are known
 * (from a saved index). Returns what has changed; ARCHIVE_SAME also if its storage fails, which
 * readers notice themselves.
 */
static enum archive_state archive_look(struct archive_sight *a)
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

/* ---- all of them ---- */

/* An archive of a union fails its own reads, a single one all of the mount's. */
static void tell_changed(const struct archive_watch *w, size_t i)
{
    struct session *s = w->session;
    const struct fileset *fileset = s->config.fileset;

    if (fileset->parts) {
        source_concat_distrust(fileset->source, i);
        session_trouble(s, TROUBLE_CHANGED,
                        "%s: it was changed while it is mounted: reads of its files fail from "
                        "now on, and what was read of them just before may be wrong; mount it "
                        "anew",
                        fileset->parts[i].path);
    } else {
        session_distrust(s);
        session_trouble(s, TROUBLE_CHANGED,
                        "%s: it was changed while it is mounted: reads fail from now on, and "
                        "what was read just before may be wrong; mount it anew",
                        fileset->path);
    }
}

static void watch_look_at(struct archive_watch *w, size_t i)
{
    struct archive_sight *watched = &w->archives[i];
    const struct fileset *fileset = w->session->config.fileset;

    if (watched->state == ARCHIVE_CHANGED)
        return;
    enum archive_state state = archive_look(watched);
    if (state <= watched->state)
        return;
    watched->state = state;
    if (state == ARCHIVE_CHANGED)
        tell_changed(w, i);
    else
        session_log(w->session,
                    "%s: its time was changed while it is mounted: if its bytes were, too, "
                    "what is read may be wrong; mount it anew then",
                    fileset->parts ? fileset->parts[i].path : fileset->path);
}

static bool watch_has_copy(const struct archive_watch *w)
{
    const struct source *source = w->session->config.fileset->source;
    return source_keeps(source) && source_is_local(source);
}

/*
 * The copy is whole. An index that is mapped from the archive itself, on local storage, is in
 * the copy, too: from there no change of the archive reaches it.
 */
static void watch_leave(struct archive_watch *w)
{
    const struct fileset *fileset = w->session->config.fileset;
    uint64_t start;
    int fd = source_local_fd(fileset->source, &start);
    if (fd >= 0 && !fileset->parts && fileset->origin == FILESET_INDEX_EMBEDDED)
        index_move(fileset->index, fd, start + index_info(fileset->index)->image_offset);
    w->has_left = true;
}

static void archive_watch_look(struct archive_watch *w)
{
    bool is_local = source_is_local(w->session->config.fileset->source);
    if (watch_has_copy(w))
        return; /* nothing is read from the archives any more */
    for (size_t i = 0; i < w->count && (is_local || i < LOOK_AT_ONCE); i++)
        watch_look_at(w, w->next++ % w->count);
}

/* ---- the thread ---- */

static bool watch_is_needed(const struct archive_watch *w)
{
    return w->count > 1 || w->archives[0].state != ARCHIVE_CHANGED;
}

/* An index that was left for fileset_save is saved here, too. */
static void save_index(struct session *s)
{
    struct fileset *fileset = s->config.fileset;
    struct fault fault = {0};
    if (fileset_save(fileset, &fault) < 0 && fault.err)
        session_log(s, "%s: %s; %s", fileset->path, fault.what, fault.advice);
}

static void *archive_watch_run(void *arg)
{
    struct archive_watch *w = arg;
    const struct session_config *config = &w->session->config;
    struct pollfd p = {.fd = w->stop_fd, .events = POLLIN};
    int pause_ms = source_keeps(config->fileset->source) ? COPY_EVERY_MS : LOOK_EVERY_MS;
    int since_ms = 0;

    save_index(w->session);
    while (watch_is_needed(w) && poll(&p, 1, w->has_left ? -1 : pause_ms) <= 0) {
        since_ms += pause_ms;
        if (watch_has_copy(w))
            watch_leave(w);
        if (w->has_left || since_ms < LOOK_EVERY_MS)
            continue;
        since_ms = 0;
        /* Without requests nobody gets wrong bytes: the file's server is not asked. */
        uint64_t used_ns = summary_last_use_ns(config->counters);
        if (used_ns != w->used_ns)
            archive_watch_look(w);
        w->used_ns = used_ns;
    }
    archive_watch_look(w);
    return NULL;
}

/* ---- the feature ---- */

static void archive_watch_free(void *state)
{
    struct archive_watch *w = state;
    cleanup_closep(&w->stop_fd);
    free(w);
}

static void watch_begin(struct archive_watch *w, size_t i)
{
    const struct fileset *fileset = w->session->config.fileset;
    struct archive_sight *sight = &w->archives[i];
    sight->source = fileset->parts ? source_member(fileset->source, i) : fileset->source;
    sight->opened = fileset->identity;
    sight->is_one_of_many = fileset->parts != NULL;
    if (fileset->parts)
        source_identity(sight->source, &sight->opened);
    sight->fingerprint = fileset->parts ? fileset->parts[i].samples : fileset->fingerprint;
    sight->has_fingerprint =
        fileset->parts ? fileset->parts[i].has_samples : fileset->has_fingerprint;
    sight->seen = sight->opened;
}

/* A single archive is looked at here, so that no change goes unnoticed from now on. */
static int archive_watch_start(struct session *s, void **ret_state)
{
    const struct fileset *fileset = s->config.fileset;
    size_t count = fileset->parts ? fileset->part_count : 1;

    if (fileset->compression ||
        fileset->is_plain) /* a copy is read; each read looks at its file */
        return 0;
    struct archive_watch *w = calloc(1, sizeof(*w) + count * sizeof(w->archives[0]));
    if (!w)
        return -ENOMEM;
    w->session = s;
    w->count = count;
    for (size_t i = 0; i < count; i++)
        watch_begin(w, i);
    *ret_state = w;
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->stop_fd < 0)
        return -errno;
    if (count == 1) /* of a union, the samples of the parts are known */
        archive_watch_look(w);
    return 0;
}

/*
 * Not earlier: a start that fails would wait for an index that is being saved, and a program
 * that this process starts would inherit the file, and wait for it when it closes it.
 */
static void archive_watch_serve(void *state)
{
    struct archive_watch *w = state;
    int r = thread_start(&w->thread, STACK_BYTES, archive_watch_run, w);
    if (r == 0)
        w->thread_state = RUNS;
    else
        session_log(w->session, "%s: changes of it are not watched: %s",
                    w->session->config.fileset->path, fault_errno(r));
}

static void archive_watch_end(void *state)
{
    const struct archive_watch *w = state;
    eventfd_write(w->stop_fd, 1);
}

static int archive_watch_join(void *state, const struct timespec *until)
{
    struct archive_watch *w = state;
    if (w->thread_state == RUNS)
        w->thread_state = thread_join_until(w->thread, until) == 0 ? ENDED : STUCK;
    return w->thread_state == STUCK ? -EBUSY : 0;
}

/* The last look comes before the mount's last line. */
static void archive_watch_leave(void *state)
{
    const struct timespec until = clock_in_ms(CLOCK_MONOTONIC, LAST_LOOK_LIMIT_MS);
    archive_watch_end(state);
    archive_watch_join(state, &until);
}

const struct feature archive_watch_feature = {
    .start = archive_watch_start,
    .serve = archive_watch_serve,
    .leave = archive_watch_leave,
    .end = archive_watch_end,
    .join = archive_watch_join,
    .free = archive_watch_free,
};
