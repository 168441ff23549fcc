/*
 * Start and stop of a session. libfuse negotiates INIT, because it knows every kernel's version
 * of it best. Our own loop (loop.c, ops.c) answers every later request, and neither allocates
 * nor locks on the way.
 */
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "internal.h"
#include "source_retry.h"
#include "thread.h"

#define INIT_WAIT_MS 10000
#define LOG_BURST 100u
#define LOG_EVERY_NS UINT64_C(1000000000)
#define BACKGROUND_REQUESTS 512 /* the default of 12 splits read-ahead of small files */
#define HEADER_ROOM 4096u

const char *session_mount_options(void)
{
    return "max_read=1048576"; /* READER_SPAN_MAX, as in INIT */
}

/*
 * May one more line go to the log? A burst may; after it, one a second. A job whose storage is
 * gone fails some thousand reads a second, and the log lies in somebody's home. Under log_lock.
 */
static bool may_log(struct session *s, uint64_t *ret_left_out)
{
    uint64_t now = now_ns();
    uint64_t earned = (now - s->log_since_ns) / LOG_EVERY_NS;

    if (earned >= LOG_BURST - s->log_room || s->log_since_ns == 0) {
        s->log_room = LOG_BURST;
        s->log_since_ns = now;
    } else {
        s->log_room += (unsigned)earned;
        s->log_since_ns += earned * LOG_EVERY_NS;
    }
    if (s->log_room == 0) {
        s->log_left_out++;
        return false;
    }
    s->log_room--;
    *ret_left_out = s->log_left_out;
    s->log_left_out = 0;
    return true;
}

/* Under log_lock. */
static void write_line(struct session *s, const char *line)
{
    uint64_t left_out = 0;
    char more[64];

    if (!s->config.log || !may_log(s, &left_out))
        return;
    snprintf(more, sizeof(more), "%llu lines were left out", (unsigned long long)left_out);
    if (left_out)
        s->config.log(s->config.log_ctx, more);
    s->config.log(s->config.log_ctx, line);
}

void session_note(struct session *s, const char *line)
{
    pthread_mutex_lock(&s->log_lock);
    write_line(s, line);
    pthread_mutex_unlock(&s->log_lock);
}

void session_log(struct session *s, const char *format, ...)
{
    struct counters *c = s->config.counters;
    char line[sizeof(c->last_error)] = "";
    va_list ap;

    va_start(ap, format);
    vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    pthread_mutex_lock(&s->log_lock);
    memcpy(c->last_error, line, sizeof(line));
    write_line(s, line);
    pthread_mutex_unlock(&s->log_lock);
}

/* INIT: request what helps an immutable tree, and decline what costs it. */
static void on_init(void *userdata, struct fuse_conn_info *conn)
{
    const unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS |
                            FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_READDIRPLUS |
                            FUSE_CAP_ASYNC_DIO | FUSE_CAP_EXPORT_SUPPORT;
    struct session *s = userdata;

    conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_READDIRPLUS_AUTO |
                              FUSE_CAP_IOCTL_DIR | FUSE_CAP_SPLICE_READ);
    conn->want |= wanted & conn->capable;
    /*
     * This makes the kernel ask for the list of each file that its reader does not own, and
     * turns permission checks on.
     */
    if (s->config.access_lists && index_info(s->index)->has_xattrs)
        conn->want |= FUSE_CAP_POSIX_ACL & conn->capable;
    s->no_open = conn->capable & FUSE_CAP_NO_OPEN_SUPPORT;
    s->no_opendir = conn->capable & FUSE_CAP_NO_OPENDIR_SUPPORT;
    conn->max_read = READER_SPAN_MAX;
    conn->max_write = READER_SPAN_MAX; /* nothing is written, but max_pages derives from it */
    conn->max_background = BACKGROUND_REQUESTS;
    conn->congestion_threshold = BACKGROUND_REQUESTS;
}

static const struct fuse_lowlevel_ops init_only = {.init = on_init};

/*
 * Pass libfuse's answer to INIT on to the kernel. libfuse up to 3.16 forgets to request
 * parallel look-ups in one directory, without which the kernel sends them one at a time.
 */
static int pass_answer(struct session *s, uint32_t offered)
{
    char answer[HEADER_ROOM] = {0};
    struct fuse_out_header *header = (void *)answer;
    struct fuse_init_out *out = (void *)(header + 1);
    ssize_t n = recv(s->libfuse_fd, answer, sizeof(answer), MSG_DONTWAIT);

    if (n < (ssize_t)sizeof(*header))
        return n < 0 ? -errno : -EPROTO;
    if (header->error == 0 &&
        n >= (ssize_t)(sizeof(*header) + offsetof(struct fuse_init_out, max_background)))
        out->flags |= offered & FUSE_PARALLEL_DIROPS;
    return write(s->fd, answer, (size_t)n) < 0 ? -errno : 0;
}

/* Read requests until the kernel has its answer to INIT. */
static int negotiate(struct session *s, struct fault *fault)
{
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    struct fuse_buf buf = {0};
    bool done = false;
    int r = 0;

    buf.mem = malloc(s->buffer_bytes);
    if (!buf.mem)
        return -ENOMEM;
    while (r == 0 && !done) {
        ssize_t n;

        if (poll(&p, 1, INIT_WAIT_MS) <= 0) {
            r = fault_set(fault, -ETIMEDOUT, NULL, FAULT_NO_OFFSET,
                          "the kernel did not open the FUSE connection within %d s",
                          INIT_WAIT_MS / 1000);
            break;
        }
        n = read(s->fd, buf.mem, s->buffer_bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (n < (ssize_t)sizeof(struct fuse_in_header)) {
            r = fault_set(fault, n < 0 ? -errno : -EIO, NULL, FAULT_NO_OFFSET,
                          "the FUSE connection ended before it began");
            break;
        }
        buf.size = (size_t)n;
        const struct fuse_in_header *header = buf.mem;
        const struct fuse_init_in *in = (const void *)(header + 1);
        done = header->opcode == FUSE_INIT && in->major == FUSE_KERNEL_VERSION;
        fuse_session_process_buf(s->fuse, &buf);
        r = pass_answer(s, in->flags);
        if (fuse_session_exited(s->fuse))
            r = fault_set(fault, -EPROTO, NULL, FAULT_NO_OFFSET,
                          "this kernel's FUSE protocol is too old");
    }
    free(buf.mem);
    return r;
}

/* libfuse talks to a socket of ours, so that we see its answer before the kernel does. */
static int create_fuse(struct session *s)
{
    char name[] = "onepot", flag[] = "-o", option[64], device[32];
    char *argv[] = {name, flag, option, NULL};
    int pair[2];
    struct fuse_args args = {.argc = 3, .argv = argv};

    snprintf(option, sizeof(option), "%s", session_mount_options());
    s->fuse = fuse_session_new(&args, &init_only, sizeof(init_only), s);
    fuse_opt_free_args(&args);
    if (!s->fuse)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    s->libfuse_fd = pair[0];
    snprintf(device, sizeof(device), "/dev/fd/%d", pair[1]);
    if (fuse_session_mount(s->fuse, device) == 0)
        return 0;
    close(pair[1]);
    return -EBADF;
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
    s->libfuse_fd = -1;
    s->buffer_bytes = READER_SPAN_MAX + HEADER_ROOM;
    pthread_mutex_init(&s->turn_lock, NULL);
    pthread_mutex_init(&s->log_lock, NULL);
    pthread_mutex_init(&s->helper_lock, NULL);
    pthread_mutex_init(&s->counters_lock, NULL);
    s->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = s->ended_fd < 0 ? -errno : create_fuse(s);
    if (r == 0)
        r = itself_start(s);
    if (r == 0 && config->verify)
        r = sums_start(s);
    if (r == 0)
        r = negotiate(s, fault);
    trouble_start(s);
    if (r == 0)
        r = told_start(s);
    if (r == 0)
        r = share_start(s);
    if (r == 0)
        r = foresee_start(s); /* before the other threads, which check whether it exists */
    if (r == 0)
        r = watchdog_start(s);
    bool has_helpers = helper_prepare(s) == 0;
    if (r == 0 && has_helpers)
        r = populate_start(s); /* before there are workers */
    if (r == 0 && has_helpers)
        r = walk_start(s);
    if (r == 0)
        r = loop_start(s);
    if (r < 0) {
        if (!s->ahead)
            recorder_abandon(config->recorder);
        loop_end(s);
        session_stop(s, false);
        return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "the session can't start: %s%s",
                         strerror(-r), fault_limit(r));
    }
    *ret_session = s;
    return 0;
}

int session_ended_fd(const struct session *s)
{
    return s->ended_fd;
}

static void update_stage(struct session *s)
{
    struct counters *c = s->config.counters;
    struct stage_report report;

    stage_get_report(s->config.stage, &report);
    if (report.failure && report.reason[0] && !s->stream_failure_told) {
        s->stream_failure_told = true;
        memcpy(c->stage_reason, report.reason, sizeof(c->stage_reason));
        session_log(
            s,
            "%s: unpacking it has ended early: %s; what has arrived is served, reads of "
            "the rest fail",
            s->config.pot->path, report.reason);
    }
    atomic_store(&c->stage_here_bytes, report.bytes_here);
    atomic_store(&c->stage_stream_bytes, report.stream_bytes);
    atomic_store(&c->stage_stream_ns, report.stream_ns);
    atomic_store(&c->stage_demands, report.demands);
    atomic_store(&c->stage_demand_bytes, report.demand_bytes);
    atomic_store(&c->stage_past_bytes, report.past_bytes);
    atomic_store(&c->stage_away, (uint32_t)report.away);
    atomic_store(&c->stage_failure, (uint32_t)report.failure); /* last: see stage_reason */
}

void session_update_counters(struct session *s)
{
    struct counters *c = s->config.counters;
    struct block_cache_stats stats;
    struct reader_source_stats source;

    pthread_mutex_lock(&s->counters_lock);
    foresee_update_counters(s);
    reader_cache_stats(s->config.reader, &stats);
    reader_source_stats(s->config.reader, &source);
    atomic_store(&c->cache_hits, stats.hits);
    atomic_store(&c->cache_misses, stats.misses);
    atomic_store(&c->cache_waits, stats.waits);
    atomic_store(&c->cache_evictions, stats.evictions);
    atomic_store(&c->cache_bytes, stats.bytes);
    atomic_store(&c->prefetched, stats.ahead);
    atomic_store(&c->prefetched_used, stats.ahead_used);
    atomic_store(&c->prefetched_dropped, stats.ahead_dropped);
    atomic_store(&c->source_reads, source.reads);
    atomic_store(&c->source_bytes, source.bytes);
    if (s->config.stage)
        update_stage(s);
    trouble_update_counters(s);
    pthread_mutex_unlock(&s->counters_lock);
}

void session_give_back(struct session *s)
{
    share_stop(s);
}

static bool join(pthread_t thread, const struct timespec *until)
{
    return thread_join_until(thread, until) == 0;
}

static void free_worker(struct session *s, struct worker *w)
{
    reader_scratch_free(w->scratch);
    if (w->buffer)
        munmap(w->buffer, s->buffer_bytes);
    if (w->reply_buffer)
        munmap(w->reply_buffer, LISTING_BYTES);
    if (w->owns_fd)
        close(w->fd);
    free(w);
}

/* Join all workers; the session has ended, so there will be no more. */
static bool join_workers(struct session *s, const struct timespec *until)
{
    bool all = true;

    pthread_mutex_lock(&s->turn_lock);
    unsigned count = s->worker_count;
    pthread_mutex_unlock(&s->turn_lock);
    for (unsigned i = 0; i < count; i++)
        if (s->workers[i]->started)
            all &= join(s->workers[i]->thread, until);
    return all;
}

int session_stop(struct session *s, bool connected)
{
    struct timespec until;

    loop_end(s);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 2;
    bool all = !connected && join_workers(s, &until);
    if (s->watchdog_started)
        all &= join(s->watchdog, &until);
    all &= populate_join(s, &until) == 0;
    all &= walk_join(s, &until) == 0;
    all &= foresee_join(s, &until) == 0;
    session_update_counters(s);
    share_stop(s);
    if (!all)
        return -EBUSY;
    source_on_error(s->config.pot->source, NULL, NULL); /* others may still read it */
    for (unsigned i = 0; i < s->worker_count; i++)
        free_worker(s, s->workers[i]);
    populate_release(s);
    walk_release(s);
    foresee_release(s);
    if (s->fuse)
        fuse_session_destroy(s->fuse); /* closes its end of the socket */
    if (s->libfuse_fd >= 0)
        close(s->libfuse_fd);
    close(s->fd);
    if (s->ended_fd >= 0)
        close(s->ended_fd);
    itself_free(s->itself);
    sums_free(s->sums);
    told_free(s->told);
    pthread_mutex_destroy(&s->turn_lock);
    pthread_mutex_destroy(&s->counters_lock);
    pthread_mutex_destroy(&s->log_lock);
    pthread_mutex_destroy(&s->helper_lock);
    free(s);
    return 0;
}
