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
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "futex.h"
#include "internal.h"

#define CALM_REQUESTS 64  /* requests without a backlog until a second worker parks */
#define FOLLOW_REQUESTS 8 /* requests between two looks at the reader's CPU, 4 us each */
#define LONG_NS 50000u    /* a request so long that others may have waited behind it */
#define PROMPT_NS 5000u   /* from an answer to the receipt of a request that waited */
#define EXTRA_WORKERS 64u /* how many may wait for slow reads at once */
#define STACK_BYTES (256u << 10)

static void *map_private(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* A descriptor of its own spares a worker contention on the device's lock. */
static void clone_device(struct worker *w)
{
    uint32_t source = (uint32_t)w->session->fd;

    w->fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    w->owns_fd = w->fd >= 0;
    if (w->owns_fd && ioctl(w->fd, FUSE_DEV_IOC_CLONE, &source) == 0)
        return;
    if (w->owns_fd)
        close(w->fd);
    w->fd = w->session->fd;
    w->owns_fd = false;
}

static int worker_spawn(struct worker *w)
{
    pthread_attr_t attr;
    int r;

    w->buffer = map_private(w->session->buffer_bytes);
    w->reply_buffer = map_private(LISTING_BYTES);
    if (!w->buffer || !w->reply_buffer)
        return -ENOMEM;
    r = reader_scratch_new(w->session->config.reader, &w->scratch);
    if (r < 0)
        return r;
    reader_scratch_on_wait(w->scratch, loop_about_to_wait, w);
    r = foresee_worker(w);
    if (r < 0)
        return r;
    clone_device(w);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    r = -pthread_create(&w->thread, &attr, loop_worker, w);
    pthread_attr_destroy(&attr);
    w->started = r == 0;
    return r;
}

/* A new worker, parked and without a thread. -EAGAIN when there are too many. */
static int worker_add(struct session *s, int cpu, struct worker **ret_worker)
{
    struct worker *w;

    if (s->worker_count == SESSION_WORKERS_MAX)
        return -EAGAIN;
    w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->session = s;
    w->number = s->worker_count;
    w->cpu = cpu;
    w->fd = -1;
    w->parked = 1;
    w->last_resort = w->number == SESSION_WORKERS_MAX - 1;
    w->slot = &s->config.counters->slots[w->number % COUNTERS_SLOTS];
    s->workers[s->worker_count++] = w;
    *ret_worker = w;
    return 0;
}

static int unpark_locked(struct worker *w)
{
    int r = 0;

    w->calm = 0; /* set before it may run, since it then counts itself */
    atomic_store(&w->parked, 0);
    if (!w->started)
        r = worker_spawn(w);
    else
        futex_wake(&w->parked, 1, FUTEX_OF_PROCESS);
    if (r == 0)
        w->session->active++;
    else
        atomic_store(&w->parked, 1);
    return r;
}

static bool is_free(const struct worker *w)
{
    return atomic_load(&w->parked) && !w->dismissed;
}

/*
 * How many workers there may be. Reads of a stream that is still being unpacked may all wait
 * for minutes, and must not hold up other requests; nor may the last resort answer them.
 */
static unsigned workers_limit(const struct session *s, unsigned stuck)
{
    unsigned limit = s->bound_count + EXTRA_WORKERS + stuck, most = SESSION_WORKERS_MAX - 1;
    bool has_stream = s->config.stage && stage_stream_progress_ns(s->config.stage) > 0;

    return has_stream && limit < most ? most : limit;
}

int loop_wake_another_locked(struct session *s)
{
    unsigned stuck = 0;
    struct worker *w;
    int r;

    if (atomic_load(&s->ended))
        return -ESHUTDOWN; /* session_stop waits only for the workers that exist */
    for (unsigned i = 0; i < s->worker_count; i++) {
        if (is_free(s->workers[i]))
            return unpark_locked(s->workers[i]);
        stuck += s->workers[i]->dismissed;
    }
    if (s->worker_count >= workers_limit(s, stuck))
        return -EAGAIN;
    r = worker_add(s, -1, &w);
    return r < 0 ? r : unpark_locked(w);
}

int loop_ensure_waiter_locked(struct session *s)
{
    return s->active > s->blocked ? 0 : loop_wake_another_locked(s);
}

void loop_about_to_wait(void *arg)
{
    struct worker *w = arg;
    struct session *s = w->session;

    watchdog_arm(s);
    pthread_mutex_lock(&s->turn_lock);
    if (!w->blocked && !w->dismissed) { /* once per request; too late if dismissed */
        w->blocked = true;
        s->blocked++;
        loop_ensure_waiter_locked(s);
    }
    pthread_mutex_unlock(&s->turn_lock);
}

void loop_dismiss_locked(struct worker *w)
{
    w->dismissed = true;
    w->session->active--;
    if (w->blocked)
        w->session->blocked--;
    loop_ensure_waiter_locked(w->session);
}

/* Wait until it is this worker's turn again. */
static void park(struct worker *w)
{
    while (atomic_load(&w->parked) && !atomic_load(&w->session->ended))
        futex_wait(&w->parked, 1, FUTEX_OF_PROCESS, NULL);
}

/* Give the turn back, under turn_lock. The caller parks after unlocking. */
static void park_locked(struct worker *w)
{
    atomic_store(&w->parked, 1);
    w->session->active--;
}

/* The CPU on which the requesting thread last ran, or -1. */
static int cpu_of(uint32_t pid)
{
    char name[32], buf[1024];
    auto_close int fd = -1;
    const char *p;
    ssize_t n;

    snprintf(name, sizeof(name), "/proc/%u/stat", pid);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    n = read(fd, buf, sizeof(buf) - 1);
    if (n <= 0)
        return -1;
    buf[n] = '\0';
    p = strrchr(buf, ')'); /* the command's name may hold anything; field 3 is next */
    for (int field = 2; p && field < 39; field++)
        p = strchr(p + 1, ' ');
    return p ? atoi(p + 1) : -1;
}

/* Hand the turn to the worker on the reader's CPU. True: this worker parks. */
static bool follow(struct worker *w, uint32_t pid)
{
    struct session *s = w->session;
    struct worker *other;
    int cpu = cpu_of(pid);
    bool hand_over = false;

    if (cpu < 0 || cpu >= (int)(sizeof(s->cpu_worker) / sizeof(s->cpu_worker[0])) ||
        cpu == w->cpu || s->cpu_worker[cpu] < 0)
        return false;
    pthread_mutex_lock(&s->turn_lock);
    other = s->workers[s->cpu_worker[cpu]];
    if (s->active - s->blocked == 1 && is_free(other) && unpark_locked(other) == 0) {
        park_locked(w);
        hand_over = true;
    }
    pthread_mutex_unlock(&s->turn_lock);
    return hand_over;
}

/*
 * Is there another request behind this one? Or did this one wait while the last was being
 * answered (by decompression), so that it was received the moment that one was done?
 */
static bool has_backlog(const struct worker *w, uint64_t received_ns)
{
    struct pollfd p = {.fd = w->fd, .events = POLLIN};

    return (w->took_ns > LONG_NS && received_ns - w->done_ns < PROMPT_NS) || poll(&p, 1, 0) > 0;
}

/* On a backlog, wake a second worker. */
static void share_backlog(struct worker *w, uint64_t received_ns)
{
    struct session *s = w->session;

    if (!has_backlog(w, received_ns)) {
        w->calm++;
        return;
    }
    w->calm = 0;
    if (s->active - s->blocked >= s->running_max) /* a hint: checked again below */
        return;
    pthread_mutex_lock(&s->turn_lock);
    if (s->active - s->blocked < s->running_max)
        loop_wake_another_locked(s);
    pthread_mutex_unlock(&s->turn_lock);
}

/* After an answer: if it is no longer this worker's turn, park until it is. */
static void after_request(struct worker *w, uint32_t pid)
{
    struct session *s = w->session;
    bool parks = false;

    if (w->blocked || w->calm >= CALM_REQUESTS || w->cpu < 0) {
        pthread_mutex_lock(&s->turn_lock);
        if (w->blocked) {
            w->blocked = false;
            s->blocked--;
        }
        /* An extra worker steps back as soon as another one waits. */
        if (s->active - s->blocked > 1 && (w->cpu < 0 || w->calm >= CALM_REQUESTS)) {
            park_locked(w);
            parks = true;
        }
        w->calm = 0;
        pthread_mutex_unlock(&s->turn_lock);
    }
    if (!parks && ++w->since_follow >= FOLLOW_REQUESTS && pid) {
        w->since_follow = 0;
        if (w->cpu >= 0 && s->bound_count > 1 && s->active - s->blocked == 1)
            parks = follow(w, pid);
    }
    if (parks)
        park(w);
}

/*
 * The stalled read has ended after all. Others have taken this worker's place; it parks among
 * them until it is needed again.
 */
static void come_back(struct worker *w)
{
    struct session *s = w->session;

    pthread_mutex_lock(&s->turn_lock);
    w->blocked = w->lost = false;
    w->calm = 0;
    atomic_store(&w->parked, 1);
    w->dismissed = false;
    pthread_mutex_unlock(&s->turn_lock);
    park(w);
}

/* Take one request and answer it. -errno of the device; -ENODEV is the end. */
static int serve_one(struct worker *w)
{
    struct session *s = w->session;
    struct request rq = {.worker = w, .header = w->buffer};
    ssize_t n = read(w->fd, w->buffer, s->buffer_bytes);

    if (n < 0)
        return errno == EINTR || errno == EAGAIN || errno == ENOENT ? 0 : -errno;
    if ((size_t)n < sizeof(*rq.header) || rq.header->len != (size_t)n)
        return 0;
    rq.received_ns = now_ns();
    rq.own = helper_is(s, rq.header->pid);
    rq.arg = rq.header + 1;
    rq.arg_len = (size_t)n - sizeof(*rq.header);
    atomic_store_explicit(&w->unique, rq.header->unique, memory_order_relaxed);
    atomic_store_explicit(&w->since_ns, rq.received_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&w->turn, 1, memory_order_release);
    if (!atomic_load_explicit(&s->watchdog_armed, memory_order_relaxed))
        watchdog_arm(s);
    share_backlog(w, rq.received_ns);
    if (w->last_resort && rq.header->opcode == FUSE_READ)
        reply_error(&rq, -EIO);
    else
        ops_dispatch(&rq);
    if (w->lost)
        come_back(w);
    else
        after_request(w, rq.own ? 0 : rq.header->pid);
    return 0;
}

static void bind_to_cpu(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set); /* if this fails, it still works */
}

void *loop_worker(void *arg)
{
    struct worker *w = arg;
    struct session *s = w->session;
    int r = 0;

    if (w->cpu >= 0)
        bind_to_cpu(w->cpu);
    while (r == 0 && !atomic_load(&s->ended))
        r = serve_one(w);
    if (r < 0)
        loop_end(s);
    return NULL;
}

void loop_end(struct session *s)
{
    uint64_t one = 1;

    if (atomic_exchange(&s->ended, true))
        return;
    /*
     * Change the futex words under the lock, or a worker about to sleep on one would miss it.
     */
    pthread_mutex_lock(&s->turn_lock);
    for (unsigned i = 0; i < s->worker_count; i++) {
        atomic_store(&s->workers[i]->parked, 0);
        futex_wake(&s->workers[i]->parked, 1, FUTEX_OF_PROCESS);
    }
    pthread_mutex_unlock(&s->turn_lock);
    atomic_store(&s->watchdog_armed, 1);
    futex_wake(&s->watchdog_armed, 1, FUTEX_OF_PROCESS);
    helper_end_all(s);
    populate_end(s);
    walk_end(s);
    foresee_end(s);
    trouble_end(s);
    if (write(s->ended_fd, &one, sizeof(one)) < 0)
        return; /* can't fail on an eventfd at 0 */
}

static int start_locked(struct session *s)
{
    const int cpus = (int)(sizeof(s->cpu_worker) / sizeof(s->cpu_worker[0]));
    cpu_set_t allowed;
    struct worker *w;
    int r = 0;

    for (int cpu = 0; cpu < cpus; cpu++)
        s->cpu_worker[cpu] = -1;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
        CPU_ZERO(&allowed); /* more CPUs than the set holds: bind none */
    for (int cpu = 0; cpu < cpus && r == 0; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        s->cpu_worker[cpu] = (int)s->worker_count;
        r = worker_add(s, cpu, &w);
    }
    s->bound_count = s->worker_count;
    if (r == 0 && s->worker_count == 0)
        r = worker_add(s, -1, &w);
    /* A quota of CPU time may allow less than all of the CPUs. */
    unsigned allowed_time = cpus_allowed();
    s->running_max = s->config.threads                ? s->config.threads
                     : allowed_time < s->worker_count ? allowed_time
                                                      : s->worker_count;
    return r < 0 ? r : unpark_locked(s->workers[0]);
}

int loop_start(struct session *s)
{
    pthread_mutex_lock(&s->turn_lock); /* the watchdog is already running */
    int r = start_locked(s);
    pthread_mutex_unlock(&s->turn_lock);
    return r;
}
