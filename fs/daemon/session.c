/*
 * A session: INIT, its lines for the log, its features, its workers, start and stop. After INIT
 * they answer every request (ops.c), and neither allocate nor lock on the way.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "codec.h"
#include "core.h"
#include "cpus.h"
#include "feature.h"
#include "futex.h"
#include "process.h"
#include "reader.h"
#include "thread.h"

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
    const struct fileset *fileset = s->config.fileset;
    struct extent extent;

    if (!fileset_is_several(fileset) || index_extent(s->index, position, 0, &extent) < 0 ||
        extent.kind == EXTENT_HOLE)
        return fileset->path;
    return source_name(source_at(fileset->source, &extent.source_offset));
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
                    : s->config.fileset->is_plain
                        ? "check its storage, and mount the folder anew"
                        : "'onepot verify' tells what else can't be read; copy the archive "
                          "again, and mount it anew");
}

/* ---- features ---- */

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

/* ---- workers ---- */

/*
 * Which worker waits for the next request, and on which CPU. A request costs a few microseconds
 * of work, but waking a thread on another CPU costs up to seventy. So the waiting worker should
 * be on the CPU of the reader that will ask.
 *
 * There is one worker for each CPU that the process may use, bound to it. Most of them are
 * parked: only as many wait on the device as there is work. The kernel wakes waiters in turn,
 * wherever they are, so one waiter too many sends every other request to the wrong CPU. The
 * waiting worker follows the reader: every few requests it looks up the CPU of the process that
 * asked, and hands its turn to the worker there. A second worker is woken when a request finds
 * another one behind it, and parks again after a while without such a backlog.
 *
 * A worker that is about to wait for a device or to decompress says so first. If no other is
 * left to take requests, one is woken, or an extra one started that is bound to no CPU. So a
 * slow read delays only its own reader.
 */
#define CALM_REQUESTS 64  /* requests without a backlog until a second worker parks */
#define FOLLOW_REQUESTS 8 /* requests between two looks at the reader's CPU, 4 us each */
#define LONG_NS 50000u    /* a request so long that others may have waited behind it */
#define PROMPT_NS 5000u   /* from an answer to the receipt of a request that waited */
#define EXTRA_WORKERS 64u /* how many may wait for slow reads at once */
#define STACK_BYTES (256u << 10)

static int features_add_worker(const struct features *features, struct worker *worker)
{
    int r = 0;

    EACH_FEATURE (f, features, add_worker)
        if (r == 0)
            r = f->feature->add_worker(f->state, worker);
    return r;
}

static void features_on_request(const struct features *features)
{
    EACH_FEATURE (f, features, on_request)
        f->feature->on_request(f->state);
}

static void features_end(const struct features *features)
{
    EACH_FEATURE (f, features, end)
        f->feature->end(f->state);
}

/* A separate descriptor spares a worker contention on the device's lock. */
static void clone_device(struct worker *w)
{
    uint32_t source = (uint32_t)w->session->fd;

    auto_close int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    bool is_clone = fd >= 0 && ioctl(fd, FUSE_DEV_IOC_CLONE, &source) == 0;
    w->fd = is_clone ? steal_fd(&fd) : w->session->fd;
}

static void *worker_thread(void *arg);
static void loop_end(struct session *session);

/* The hook of a scratch. Kept apart from since_ns, by which an idle CPU finds work. */
static void worker_unpacks(void *arg, bool begins)
{
    struct worker *w = arg;

    atomic_store(&w->unpacked_ns, begins ? UINT64_MAX : now_ns());
}

/* Equip a worker once, however often its thread is started in vain. */
static int worker_equip(struct worker *w)
{
    int r = 0;

    w->buffer = w->buffer ? w->buffer : malloc(REQUEST_BYTES);
    w->reply_buffer = w->reply_buffer ? w->reply_buffer : malloc(LISTING_BYTES);
    if (!w->buffer || !w->reply_buffer)
        return -ENOMEM;
    if (!w->scratch)
        r = reader_scratch_new(w->session->config.reader, &w->scratch);
    if (r < 0)
        return r;
    reader_scratch_hooks(w->scratch, loop_about_to_wait, worker_unpacks, w);
    r = features_add_worker(&w->session->features, w);
    if (r == 0)
        clone_device(w);
    return r;
}

static int worker_spawn(struct worker *w)
{
    int r = w->fd < 0 ? worker_equip(w) : 0;

    if (r == 0)
        r = thread_start(&w->thread, STACK_BYTES, worker_thread, w);
    w->started = r == 0;
    return r;
}

/* A new worker, parked and without a thread. -EAGAIN when there are too many. */
static int worker_add(struct session *s, int cpu)
{
    struct loop *l = &s->loop;
    struct worker *w;

    if (l->worker_count == SESSION_WORKERS_MAX)
        return -EAGAIN;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->session = s;
    w->number = l->worker_count;
    w->cpu = cpu;
    w->fd = -1;
    w->parked = 1;
    w->last_resort = w->number == SESSION_WORKERS_MAX - 1;
    w->slot = &s->config.counters->slots[w->number % COUNTERS_SLOTS];
    l->workers[l->worker_count++] = w;
    return 0;
}

static int worker_unpark_locked(struct worker *w)
{
    int r = 0;

    w->calm = 0; /* set before it may run, since it then counts itself */
    atomic_store(&w->parked, 0);
    if (!w->started)
        r = worker_spawn(w);
    else
        futex_wake(&w->parked, 1, FUTEX_OF_PROCESS);
    if (r == 0)
        w->session->loop.active++;
    else
        atomic_store(&w->parked, 1);
    return r;
}

static bool worker_is_free(const struct worker *w)
{
    return atomic_load(&w->parked) && !w->dismissed;
}

/*
 * Reads of a stream that is still being unpacked may all wait for minutes, and must not hold up
 * other requests; nor may the last resort answer them.
 */
unsigned loop_workers_limit(unsigned bound, unsigned stuck, bool has_stream)
{
    unsigned limit = bound + EXTRA_WORKERS + stuck;

    return has_stream && limit < SESSION_WORKERS_MAX - 1 ? SESSION_WORKERS_MAX - 1 : limit;
}

int loop_wake_another_locked(struct session *s)
{
    struct loop *l = &s->loop;
    const struct stage *stage = s->config.stage;
    unsigned stuck = 0;
    int r = 0;

    if (atomic_load(&s->ended))
        return -ESHUTDOWN; /* session_stop waits only for the workers that exist */
    for (unsigned i = 0; i < l->worker_count; i++) {
        struct worker *w = l->workers[i];

        if (worker_is_free(w) && (r == 0 || w->started)) { /* or there are no more threads */
            r = worker_unpark_locked(w);
            if (r == 0)
                return 0;
        }
        stuck += w->dismissed;
    }
    if (r < 0)
        return r;
    bool has_stream = stage && stage_stream_progress_ns(stage) > 0;
    if (l->worker_count >= loop_workers_limit(l->bound_count, stuck, has_stream))
        return -EAGAIN;
    r = worker_add(s, -1);
    return r < 0 ? r : worker_unpark_locked(l->workers[l->worker_count - 1]);
}

/* How many workers take requests, and not one that may take long. */
static unsigned loop_waiting(const struct loop *l)
{
    return l->active - l->blocked;
}

/* Make a worker wait for requests if none does. It is not there if all are stuck. */
static void loop_ensure_waiter_locked(struct session *s)
{
    if (s->loop.active <= s->loop.blocked)
        loop_wake_another_locked(s);
}

void loop_about_to_wait(void *arg)
{
    struct worker *w = arg;
    struct session *s = w->session;
    struct loop *l = &s->loop;

    features_on_request(&s->reading);
    pthread_mutex_lock(&l->lock);
    if (!w->blocked && !w->dismissed) { /* once per request; too late if dismissed */
        w->blocked = true;
        l->blocked++;
        loop_ensure_waiter_locked(s);
    }
    pthread_mutex_unlock(&l->lock);
}

void loop_dismiss_locked(struct worker *w)
{
    struct loop *l = &w->session->loop;

    w->dismissed = true;
    l->active--;
    l->blocked -= w->blocked;
    loop_ensure_waiter_locked(w->session);
}

/* Wait until it is this worker's turn again. */
static void worker_park(struct worker *w)
{
    while (atomic_load(&w->parked) && !atomic_load(&w->session->ended))
        futex_wait(&w->parked, 1, FUTEX_OF_PROCESS, NULL);
}

/* Give the turn back, under the lock. The caller parks after unlocking. */
static void worker_park_locked(struct worker *w)
{
    atomic_store(&w->parked, 1);
    w->session->loop.active--;
}

int loop_parse_cpu(const char *stat)
{
    const char *p = strrchr(stat, ')'); /* the command's name may hold anything; 3 is next */

    for (int field = 2; p && field < 39; field++)
        p = strchr(p + 1, ' ');
    return p ? atoi(p + 1) : -1;
}

/* The CPU on which the requesting thread last ran, or -1. */
static int cpu_of(uint32_t pid)
{
    char name[32], buf[1024];

    snprintf(name, sizeof(name), "/proc/%u/stat", pid);
    return proc_text(name, buf, sizeof(buf)) < 0 ? -1 : loop_parse_cpu(buf);
}

/* Hand the turn to the worker on the reader's CPU. True: this worker parks. */
static bool worker_follow_reader(struct worker *w, uint32_t pid)
{
    struct loop *l = &w->session->loop;
    int cpu = cpu_of(pid);
    bool hand_over = false;

    if (cpu < 0 || cpu >= SESSION_CPUS_MAX || cpu == w->cpu || l->cpu_worker[cpu] < 0)
        return false;
    pthread_mutex_lock(&l->lock);
    struct worker *other = l->workers[l->cpu_worker[cpu]];
    if (loop_waiting(l) == 1 && worker_is_free(other) && worker_unpark_locked(other) == 0) {
        worker_park_locked(w);
        hand_over = true;
    }
    pthread_mutex_unlock(&l->lock);
    return hand_over;
}

/* If it did, it was received the moment that the last one was done. */
bool loop_has_waited(uint64_t took_ns, uint64_t done_ns, uint64_t received_ns)
{
    return took_ns > LONG_NS && received_ns - done_ns < PROMPT_NS;
}

/* Is another request behind this one, or was this one behind the last? */
static bool worker_has_backlog(const struct worker *w, uint64_t received_ns)
{
    struct pollfd p = {.fd = w->fd, .events = POLLIN};

    return loop_has_waited(w->took_ns, w->done_ns, received_ns) || poll(&p, 1, 0) > 0;
}

/* On a backlog, wake a second worker. */
static void worker_share_backlog(struct worker *w, uint64_t received_ns)
{
    struct loop *l = &w->session->loop;

    if (!worker_has_backlog(w, received_ns)) {
        w->calm++;
        return;
    }
    w->calm = 0;
    if (loop_waiting(l) >= l->running_max) /* a hint: checked again below */
        return;
    pthread_mutex_lock(&l->lock);
    if (loop_waiting(l) < l->running_max)
        loop_wake_another_locked(w->session);
    pthread_mutex_unlock(&l->lock);
}

/* An extra worker does so as soon as another one waits. */
bool loop_steps_back(unsigned waiting, bool is_bound, unsigned calm)
{
    return waiting > 1 && (!is_bound || calm >= CALM_REQUESTS);
}

/* After an answer: if it is no longer this worker's turn, park until it is. */
static void worker_after_request(struct worker *w, uint32_t pid)
{
    struct loop *l = &w->session->loop;
    bool is_bound = w->cpu >= 0, parks = false;

    if (w->blocked || w->calm >= CALM_REQUESTS || !is_bound) {
        pthread_mutex_lock(&l->lock);
        l->blocked -= w->blocked;
        w->blocked = false;
        parks = loop_steps_back(loop_waiting(l), is_bound, w->calm);
        if (parks)
            worker_park_locked(w);
        w->calm = 0;
        pthread_mutex_unlock(&l->lock);
    }
    if (!parks && ++w->since_follow >= FOLLOW_REQUESTS && pid) {
        w->since_follow = 0;
        if (is_bound && l->bound_count > 1 && loop_waiting(l) == 1)
            parks = worker_follow_reader(w, pid);
    }
    if (parks)
        worker_park(w);
}

/*
 * The stalled read has ended after all. Others have taken this worker's place; it parks among
 * them until it is needed again.
 */
static void worker_come_back(struct worker *w)
{
    struct loop *l = &w->session->loop;

    pthread_mutex_lock(&l->lock);
    w->blocked = w->lost = false;
    w->calm = 0;
    atomic_store(&w->parked, 1);
    w->dismissed = false;
    pthread_mutex_unlock(&l->lock);
    worker_park(w);
}

static bool is_fetcher(const struct session *s, uint32_t pid)
{
    bool is = false;

    if (!pid)
        return atomic_load_explicit(&s->nobody_is_fetcher, memory_order_relaxed);
    for (unsigned i = 0; i < COUNTERS_AHEAD; i++)
        is |= (uint32_t)atomic_load_explicit(&s->config.counters->ahead_pids[i],
                                             memory_order_relaxed) == pid;
    return is;
}

/* Take one request and answer it. -errno of the device; -ENODEV is the end. */
static int worker_serve_one(struct worker *w)
{
    struct session *s = w->session;
    struct request rq = {.worker = w, .header = w->buffer};
    ssize_t n = read(w->fd, w->buffer, REQUEST_BYTES);

    if (n < 0)
        return errno == EINTR || errno == EAGAIN || errno == ENOENT ? 0 : -errno;
    if ((size_t)n < sizeof(*rq.header) || rq.header->len != (size_t)n)
        return 0;
    rq.received_ns = now_ns();
    rq.own = is_fetcher(s, rq.header->pid);
    rq.arg = rq.header + 1;
    rq.arg_len = (size_t)n - sizeof(*rq.header);
    atomic_store_explicit(&w->unique, rq.header->unique, memory_order_relaxed);
    atomic_store_explicit(&w->since_ns, rq.received_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->turn, 1, memory_order_release);
    features_on_request(&s->reading);
    worker_share_backlog(w, rq.received_ns);
    if (w->last_resort && rq.header->opcode == FUSE_READ)
        reply_error(&rq, -EIO);
    else
        ops_dispatch(&rq);
    if (w->lost)
        worker_come_back(w);
    else
        worker_after_request(w, rq.own ? 0 : rq.header->pid);
    return 0;
}

static void bind_to_cpu(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set); /* if this fails, it still works */
}

static void *worker_thread(void *arg)
{
    struct worker *w = arg;
    struct session *s = w->session;
    int r = 0;

    if (w->cpu >= 0)
        bind_to_cpu(w->cpu);
    while (r == 0 && !atomic_load(&s->ended))
        r = worker_serve_one(w);
    if (r < 0)
        loop_end(s);
    return NULL;
}

static void loop_end(struct session *s)
{
    struct loop *l = &s->loop;
    uint64_t one = 1;

    if (atomic_exchange(&s->ended, true))
        return;
    /*
     * Change the futex words under the lock, or a worker about to sleep on one would miss it.
     */
    pthread_mutex_lock(&l->lock);
    for (unsigned i = 0; i < l->worker_count; i++) {
        atomic_store(&l->workers[i]->parked, 0);
        futex_wake(&l->workers[i]->parked, 1, FUTEX_OF_PROCESS);
    }
    pthread_mutex_unlock(&l->lock);
    features_end(&s->features);
    if (write(s->ended_fd, &one, sizeof(one)) < 0)
        return; /* can't fail on an eventfd at 0 */
}

/* Wait for all workers, after loop_end. False: one is still in a request. */
static bool loop_join(struct session *s, const struct timespec *until)
{
    struct loop *l = &s->loop;
    bool all = true;

    pthread_mutex_lock(&l->lock);
    unsigned count = l->worker_count; /* there will be no more */
    pthread_mutex_unlock(&l->lock);
    for (unsigned i = 0; i < count; i++)
        if (l->workers[i]->started)
            all &= thread_join_until(l->workers[i]->thread, until) == 0;
    return all;
}

static void worker_free(struct worker *w)
{
    reader_scratch_free(w->scratch);
    free(w->buffer);
    free(w->reply_buffer);
    if (w->fd >= 0 && w->fd != w->session->fd)
        close(w->fd);
    free(w);
}

static void loop_free(struct session *s)
{
    for (unsigned i = 0; i < s->loop.worker_count; i++)
        worker_free(s->loop.workers[i]);
    pthread_mutex_destroy(&s->loop.lock);
}

static void loop_init(struct loop *l)
{
    pthread_mutex_init(&l->lock, NULL);
    for (int cpu = 0; cpu < SESSION_CPUS_MAX; cpu++)
        l->cpu_worker[cpu] = -1;
}

static int loop_start_locked(struct session *s)
{
    struct loop *l = &s->loop;
    const unsigned allowed_time = s->config.counters->threads;
    cpu_set_t allowed;
    int r = 0;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
        CPU_ZERO(&allowed); /* more CPUs than the set holds: bind none */
    for (int cpu = 0; cpu < SESSION_CPUS_MAX && r == 0; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        l->cpu_worker[cpu] = (int)l->worker_count;
        r = worker_add(s, cpu);
    }
    l->bound_count = l->worker_count;
    if (r == 0 && l->worker_count == 0)
        r = worker_add(s, -1);
    /* A quota of CPU time may allow less than all of the CPUs. */
    l->running_max = s->config.threads                ? s->config.threads
                     : allowed_time < l->worker_count ? allowed_time
                                                      : l->worker_count;
    return r < 0 ? r : worker_unpark_locked(l->workers[0]);
}

static int loop_start(struct session *s)
{
    pthread_mutex_lock(&s->loop.lock); /* the watchdog is already running */
    int r = loop_start_locked(s);
    pthread_mutex_unlock(&s->loop.lock);
    return r;
}

/* ---- start and stop ---- */

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
    s->index = config->fileset->index;
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
