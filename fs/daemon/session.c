/*
 * Start and stop of a session. After INIT our own loop (loop.c, ops.c) answers every request,
 * and neither allocates nor locks on the way.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "codec.h"
#include "core.h"
#include "feature.h"
#include "reader.h"

#ifndef FUSE_INIT_EXT /* headers before Linux 5.17 */
#define FUSE_INIT_EXT (1u << 30)
#endif

/* Version of the protocol whose requests the daemon knows; the kernel sends no newer ones. */
#define MINOR_SPOKEN 31
#define MINOR_LEAST 13       /* Linux 2.6.32: before it, answers have other lengths */
#define MINOR_LONG_ANSWER 23 /* older kernels expect FUSE_COMPAT_22_INIT_OUT_SIZE bytes */
#define MAX_PAGES_DEFAULT                                                                      \
    32u                         /* of a request, where the kernel can't be told another number \
                                 */
#define BACKGROUND_REQUESTS 512 /* the default of 12 splits read-ahead of small files */

/*
 * Features that help an immutable tree, as far as the kernel has them. AUTO_INVAL_DATA and
 * READDIRPLUS_AUTO are left out because they cost requests, and everything that concerns
 * writing.
 */
static const uint32_t wanted = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_EXPORT_SUPPORT |
                               FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS | FUSE_ASYNC_DIO |
                               FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS |
                               FUSE_INIT_EXT;

int init_answer(const struct fuse_init_in *in, bool access_lists, struct fuse_init_out *ret_out)
{
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);

    if (in->major < FUSE_KERNEL_VERSION ||
        (in->major == FUSE_KERNEL_VERSION && in->minor < MINOR_LEAST))
        return -EPROTO;
    *ret_out = (struct fuse_init_out){.major = FUSE_KERNEL_VERSION, .minor = MINOR_SPOKEN};
    if (in->major > FUSE_KERNEL_VERSION)
        return sizeof(*ret_out);
    ret_out->max_readahead = in->max_readahead;
    /*
     * POSIX_ACL makes the kernel ask for the list of each file that its reader does not own,
     * and turns permission checks on.
     */
    ret_out->flags = in->flags & (wanted | (access_lists ? FUSE_POSIX_ACL : 0));
    ret_out->max_background = ret_out->congestion_threshold = BACKGROUND_REQUESTS;
    /* Nothing is written, but the kernel's limit on pages of a request derives from it. */
    ret_out->max_write = READER_SPAN_MAX;
    if (in->flags & FUSE_MAX_PAGES)
        ret_out->max_pages = (uint16_t)((READER_SPAN_MAX - 1) / page + 1);
    else if (ret_out->max_write > MAX_PAGES_DEFAULT * page)
        ret_out->max_write = MAX_PAGES_DEFAULT * page;
    ret_out->time_gran = 1;
    return in->minor < MINOR_LONG_ANSWER ? FUSE_COMPAT_22_INIT_OUT_SIZE : sizeof(*ret_out);
}

/* ---- the log ---- */

/*
 * The session's lines for the mount's log. A burst of lines may be written; after it, one a
 * second. A job whose storage is gone fails some thousand reads a second, and the log lies in
 * somebody's home.
 */
#define LOG_BURST 100u
#define LOG_EVERY_NS UINT64_C(1000000000)

/* May one more line be written? Under the lock. */
static bool log_has_room(struct session *s, uint64_t now)
{
    uint64_t earned = (now - s->log.since_ns) / LOG_EVERY_NS;

    if (earned >= LOG_BURST - s->log.room || s->log.since_ns == 0) {
        s->log.room = LOG_BURST;
        s->log.since_ns = now;
    } else {
        s->log.room += (unsigned)earned;
        s->log.since_ns += earned * LOG_EVERY_NS;
    }
    if (s->log.room == 0) {
        s->log.left_out++;
        return false;
    }
    s->log.room--;
    return true;
}

/* Under the lock. */
static void log_write(struct session *s, const char *line)
{
    char more[64];

    if (!s->config.log || !log_has_room(s, now_ns()))
        return;
    snprintf(more, sizeof(more), "%llu lines were left out",
             (unsigned long long)s->log.left_out);
    if (s->log.left_out)
        s->config.log(s->config.log_ctx, more);
    s->log.left_out = 0;
    s->config.log(s->config.log_ctx, line);
}

void session_note(struct session *s, const char *line)
{
    pthread_mutex_lock(&s->log.lock);
    log_write(s, line);
    pthread_mutex_unlock(&s->log.lock);
}

#define LINE_BYTES sizeof(((struct counters *)0)->last_error)
_Static_assert(sizeof(((struct counters *)0)->trouble[0]) == LINE_BYTES,
               "they hold the same line");

void session_trouble(struct session *s, enum counter_trouble kind, const char *format, ...)
{
    struct counters *c = s->config.counters;
    char line[LINE_BYTES] = "";
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    pthread_mutex_lock(&s->log.lock);
    if (kind < TROUBLE_KINDS && !atomic_load(&c->has_trouble[kind])) {
        memcpy(c->trouble[kind], line, LINE_BYTES);
        atomic_store(&c->has_trouble[kind], true);
    }
    memcpy(c->last_error, line, LINE_BYTES);
    log_write(s, line);
    pthread_mutex_unlock(&s->log.lock);
}

const char *log_path(const struct session *s, uint32_t position, char buf[LOG_PATH_MAX])
{
    size_t len;

    if (index_path(s->index, position, buf, LOG_PATH_MAX, &len) < 0)
        snprintf(buf, LOG_PATH_MAX, "entry %u", position);
    return buf;
}

const char *log_archive(const struct session *s, uint32_t position)
{
    const struct pot *pot = s->config.pot;
    struct extent extent;

    if (!pot_is_several(pot) || index_extent(s->index, position, 0, &extent) < 0 ||
        extent.kind == EXTENT_HOLE)
        return pot->path;
    return source_name(source_at(pot->source, &extent.source_offset));
}

void log_read_error(struct session *s, uint32_t position, uint64_t offset, int err)
{
    char path[LOG_PATH_MAX];

    session_trouble(s, TROUBLE_READ, "%s: %s: can't be read (offset %llu): %s; %s",
                    log_archive(s, position), log_path(s, position, path),
                    (unsigned long long)offset,
                    err == -ENODATA   ? "the archive ends before it"
                    : err == -ENOTSUP ? CODEC_UNSUPPORTED
                                      : fault_errno(err),
                    err == -ENOTSUP  ? CODEC_UNSUPPORTED_ADVICE
                    : err == -ENOMEM ? "give the job more memory"
                    : s->config.pot->is_plain
                        ? "check its storage, and mount the folder anew"
                        : "'onepot verify' tells what else can't be read; copy the archive "
                          "again, and mount it anew");
}

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
    pthread_mutex_init(&s->log.lock, NULL);
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
    pthread_mutex_destroy(&s->log.lock);
    pthread_mutex_destroy(&s->counters_lock);
    free(s);
    return 0;
}
