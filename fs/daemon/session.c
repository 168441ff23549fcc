/*
 * Start and stop of a session. After INIT our own loop (loop.c, ops.c) answers every request,
 * and neither allocates nor locks on the way.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "core.h"
#include "feature.h"
#include "init.h"

/* NOLINTBEGIN(bugprone-macro-parentheses): they declare a variable, and name a member */

/* `f` is each started feature that has the member, in order. */
#define EACH_FEATURE(f, features, member)                                                      \
    for (const struct started_feature *f = (features)->at;                                     \
         f < (features)->at + (features)->count; f++)                                          \
        if (f->feature->member)

/* The same in reverse. */
#define EACH_FEATURE_BACK(f, features, member)                                                 \
    for (const struct started_feature *f = (features)->at + (features)->count;                 \
         f > (features)->at && f--;)                                                           \
        if (f->feature->member)

/* NOLINTEND(bugprone-macro-parentheses) */

static int feature_start(struct session *s, const struct feature *feature)
{
    struct features *all = &s->features;
    struct started_feature f = {.feature = feature};

    if (all->count == FEATURES_MAX)
        return -E2BIG;
    int r = feature->start(s, &f.state);
    if (f.state)
        all->at[all->count++] = f;
    if (f.state && (feature->on_request || feature->before_read || feature->after_read))
        s->reading.at[s->reading.count++] = f;
    return r;
}

int features_start(struct session *s)
{
    int r = 0;

    /* A thread of a feature that updates the counters waits until all have started. */
    pthread_mutex_lock(&s->counters_lock);
    for (const struct feature *const *f = s->config.features; r == 0 && *f; f++)
        r = feature_start(s, *f);
    pthread_mutex_unlock(&s->counters_lock);
    return r;
}

static void features_serve(const struct features *features)
{
    EACH_FEATURE (f, features, serve)
        f->feature->serve(f->state);
}

int features_add_worker(const struct features *features, struct worker *worker)
{
    int r = 0;

    EACH_FEATURE (f, features, add_worker)
        if (r == 0)
            r = f->feature->add_worker(f->state, worker);
    return r;
}

void features_on_request(const struct features *features)
{
    EACH_FEATURE (f, features, on_request)
        f->feature->on_request(f->state);
}

int features_before_read(const struct features *features, struct read *read)
{
    int r = 0;

    EACH_FEATURE (f, features, before_read)
        if (r == 0)
            r = f->feature->before_read(f->state, read);
    return r;
}

void features_after_read(const struct features *features, struct read *read)
{
    EACH_FEATURE_BACK (f, features, after_read)
        f->feature->after_read(f->state, read);
}

bool features_before_listing(const struct features *features)
{
    bool attributes = true;

    EACH_FEATURE (f, features, before_listing)
        f->feature->before_listing(f->state, &attributes);
    return attributes;
}

void features_after_listing(const struct features *features, const struct listed *listed)
{
    EACH_FEATURE (f, features, after_listing)
        f->feature->after_listing(f->state, listed);
}

void features_after_lookup(const struct features *features, const struct request *rq,
                           uint32_t position)
{
    EACH_FEATURE (f, features, after_lookup)
        f->feature->after_lookup(f->state, rq, position);
}

bool features_answer(const struct features *features, struct request *rq)
{
    EACH_FEATURE (f, features, answer)
        if (f->feature->answer(f->state, rq))
            return true;
    return false;
}

static void features_update_counters(const struct features *features)
{
    EACH_FEATURE (f, features, update_counters)
        f->feature->update_counters(f->state);
}

static void features_leave(const struct features *features)
{
    EACH_FEATURE (f, features, leave)
        f->feature->leave(f->state);
}

void features_end(const struct features *features)
{
    EACH_FEATURE (f, features, end)
        f->feature->end(f->state);
}

static bool features_join(const struct features *features, const struct timespec *until)
{
    bool joined = true;

    EACH_FEATURE_BACK (f, features, join)
        joined &= f->feature->join(f->state, until) == 0;
    return joined;
}

void features_free(const struct features *features)
{
    EACH_FEATURE_BACK (f, features, free)
        f->feature->free(f->state);
}

#define INIT_WAIT_MS 10000
#define STOP_WAIT_S 2

/* Read one request: its length, 0 if there is none after all, or -errno. */
static int read_before_init(struct session *s, void *buf, struct fault *fault)
{
    struct pollfd p = {.fd = s->fd, .events = POLLIN};

    if (poll(&p, 1, INIT_WAIT_MS) <= 0)
        return fault_set(fault, -ETIMEDOUT, NULL, FAULT_NO_OFFSET,
                         "the kernel did not open the FUSE connection within %d s",
                         INIT_WAIT_MS / 1000);
    ssize_t n = read(s->fd, buf, REQUEST_BYTES);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
        return 0;
    if (n < (ssize_t)sizeof(struct fuse_in_header))
        return fault_set(fault, n < 0 ? -errno : -EIO, NULL, FAULT_NO_OFFSET,
                         "the FUSE connection ended before it began");
    return (int)n;
}

/* Answer a request if it is INIT; with an error if it is not, or can't be served. */
static int answer_init(struct session *s, const struct fuse_in_header *header,
                       const struct fuse_init_in *in, struct fault *fault)
{
    struct {
        struct fuse_out_header header;
        struct fuse_init_out init;
    } out = {.header = {.unique = header->unique}};
    bool lists = s->config.access_lists && index_info(s->index)->has_xattrs;
    int r = header->opcode == FUSE_INIT ? init_answer(in, lists, &out.init) : -EIO;

    out.header.error = r < 0 ? r : 0;
    out.header.len = (uint32_t)sizeof(out.header) + (r < 0 ? 0 : (uint32_t)r);
    if (write(s->fd, &out, out.header.len) < 0)
        return -errno;
    if (r == -EPROTO)
        return fault_set(fault, r, NULL, FAULT_NO_OFFSET,
                         "this kernel's FUSE protocol is too old");
    s->no_open = in->flags & FUSE_NO_OPEN_SUPPORT;
    s->no_opendir = in->flags & FUSE_NO_OPENDIR_SUPPORT;
    return 0;
}

/* Read requests until the kernel has its answer to INIT. */
static int session_negotiate(struct session *s, struct fault *fault)
{
    /* The rest stays zero: older kernels send a shorter INIT. */
    struct fuse_in_header *header = calloc(1, REQUEST_BYTES);
    const struct fuse_init_in *in = (const void *)(header + 1);
    bool done = false;
    int r = header ? 0 : -ENOMEM;

    while (r >= 0 && !done) {
        r = read_before_init(s, header, fault);
        if (r <= 0)
            continue;
        done = header->opcode == FUSE_INIT && in->major == FUSE_KERNEL_VERSION;
        r = answer_init(s, header, in, fault);
    }
    free(header);
    return r;
}

int session_start(const struct session_config *config, struct fault *fault,
                  struct session **ret_session)
{
    struct session *s = calloc(1, sizeof(*s));
    int r;

    if (!s) {
        close(config->fuse_fd);
        recorder_abandon(config->recorder);
        return -ENOMEM;
    }
    s->config = *config;
    s->index = config->pot->index;
    s->fd = config->fuse_fd;
    clock_gettime(CLOCK_REALTIME, &s->made);
    loop_init(&s->loop);
    log_init(&s->log);
    pthread_mutex_init(&s->counters_lock, NULL);
    s->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = s->ended_fd < 0 ? -errno : session_negotiate(s, fault);
    if (r == 0)
        r = features_start(s);
    if (r == 0)
        r = loop_start(s);
    if (r < 0) {
        recorder_abandon(s->config.recorder);
        session_stop(s, false);
        return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "the session can't start: %s%s",
                         fault_errno(r), fault_limit(r));
    }
    *ret_session = s;
    return 0;
}

int session_ended_fd(const struct session *s)
{
    return s->ended_fd;
}

bool session_is_connected(const struct session *s)
{
    struct pollfd p = {.fd = s->fd};
    return poll(&p, 1, 0) <= 0 || !(p.revents & POLLERR);
}

void session_update_counters(struct session *s)
{
    pthread_mutex_lock(&s->counters_lock);
    features_update_counters(&s->features);
    pthread_mutex_unlock(&s->counters_lock);
}

void session_serve(struct session *s)
{
    features_serve(&s->features);
}

void session_give_back(struct session *s)
{
    features_leave(&s->features);
}

void session_distrust(struct session *s)
{
    atomic_store(&s->distrusted, true);
}

int session_stop(struct session *s, bool connected)
{
    struct timespec until;

    loop_end(s);
    until = clock_in_ms(CLOCK_MONOTONIC, STOP_WAIT_S * 1000L);
    bool all = !connected && loop_join(s, &until);
    all &= features_join(&s->features, &until);
    session_update_counters(s);
    features_leave(&s->features);
    if (!all)
        return -EBUSY;
    loop_free(s);
    features_free(&s->features);
    close(s->fd);
    cleanup_closep(&s->ended_fd);
    log_destroy(&s->log);
    pthread_mutex_destroy(&s->counters_lock);
    free(s);
    return 0;
}
