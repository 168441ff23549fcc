/*
 * Keeps readers from hanging. A read of the archive that stalls can't be cancelled: its thread
 * sits in the kernel until the filesystem answers. So this thread looks at the requests in hand
 * several times a second. It answers one that is older than --io-timeout with EIO in place of
 * its worker. Time that unpacking takes does not count, nor does time for which this process
 * was stopped. The worker is dismissed and another
 * takes its turn; when the read ends after all, the worker comes back (session.c).
 *
 * It also finds a worker that is held up without having said so (by a page fault in the middle
 * of a mapped range) while no other waits for requests.
 *
 * An idle mount costs nothing: after a tick without any request this thread sleeps until a
 * request arms it.
 */
#include "watchdog.h"

#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "core.h"
#include "futex.h"
#include "numbers.h"
#include "thread.h"

#define TICK_NS (100u * 1000 * 1000)
#define HELD_UP_NS (50u * 1000 * 1000)
#define ASKED_AGAIN_NS (200u * 1000 * 1000)
#define LONG_READ_NS (1000u * 1000 * 1000) /* so long a failed read was retried in vain */
#define STACK_BYTES (64u << 10)

struct watchdog {
    struct session *session;
    pthread_t thread;
    bool started;
    struct watch_clock clock;
    struct watched_wait waits[SESSION_WORKERS_MAX]; /* by worker */
    _Atomic uint32_t armed;       /* futex: 0 while it sleeps for want of work */
    struct stalled_reads stalled; /* under the loop's lock */
    _Atomic uint64_t stalled_ns;  /* when the last one was added; 0: never */
};

void watch_clock_tick(struct watch_clock *clock, uint64_t now)
{
    clock->ns += min_u64(now - clock->looked_ns, WATCH_STEP_NS);
    clock->looked_ns = now;
}

bool watchdog_has_stalled(struct watched_wait *wait, uint64_t turn, uint64_t since_ns,
                          uint64_t progress_ns, const struct watch_clock *clock,
                          uint64_t timeout_ns)
{
    uint64_t from = max_u64(since_ns, progress_ns), now = clock->looked_ns;

    if (!timeout_ns || from >= now)
        return false;
    if (wait->turn != turn || wait->from_ns != from)
        *wait =
            (struct watched_wait){turn, from, clock->ns - min_u64(now - from, WATCH_STEP_NS)};
    return clock->ns - wait->clock_ns > timeout_ns;
}

struct stalled_read *stalled_reads_add(struct stalled_reads *reads, uint32_t position,
                                       uint64_t now)
{
    struct stalled_read *read = &reads->at[reads->next++ % STALLED_READS_MAX];

    *read = (struct stalled_read){.position = position, .at_ns = now};
    return read;
}

bool stalled_reads_take(struct stalled_reads *reads, uint32_t position, uint64_t now)
{
    for (unsigned i = 0; i < STALLED_READS_MAX; i++) {
        struct stalled_read *read = &reads->at[i];
        if (!read->at_ns || read->position != position)
            continue;
        bool just_now = now - read->at_ns < ASKED_AGAIN_NS;
        read->at_ns = 0;
        if (just_now)
            return true;
    }
    return false;
}

static void watchdog_arm(void *state)
{
    struct watchdog *d = state;

    if (atomic_load(&d->armed) == 0 && atomic_exchange(&d->armed, 1) == 0)
        futex_wake(&d->armed, 1, FUTEX_OF_PROCESS);
}

/* Noted before the answer, since the kernel may ask again right after it. */
static struct stalled_read *note_stall_locked(struct watchdog *d, uint32_t position)
{
    uint64_t now = now_ns();

    atomic_store(&d->stalled_ns, now);
    return stalled_reads_add(&d->stalled, position, now);
}

static int watchdog_before_read(void *state, struct read *read)
{
    struct watchdog *d = state;
    struct loop *loop = &d->session->loop;
    uint64_t last = atomic_load_explicit(&d->stalled_ns, memory_order_relaxed);

    if (last == 0 || now_ns() - last > ASKED_AGAIN_NS)
        return 0;
    pthread_mutex_lock(&loop->lock);
    bool found =
        stalled_reads_take(&d->stalled, read->position, now_ns()); /* not before the lock */
    pthread_mutex_unlock(&loop->lock);
    return found ? -EIO : 0;
}

static void watchdog_after_read(void *state, struct read *read)
{
    struct watchdog *d = state;
    struct loop *loop = &d->session->loop;

    if (read->result == 0 || now_ns() - read->rq->received_ns < LONG_READ_NS)
        return;
    pthread_mutex_lock(&loop->lock);
    note_stall_locked(d, read->position);
    pthread_mutex_unlock(&loop->lock);
}

/*
 * Answer for a worker, unless it has answered itself meanwhile. The lock keeps a worker that
 * finds its request answered from coming back before it is dismissed.
 */
static void answer_for(struct watchdog *d, struct worker *w, uint64_t turn, uint64_t unique,
                       uint64_t age_ns)
{
    struct session *s = d->session;
    uint32_t position = atomic_load(&w->position);
    char path[LOG_PATH_MAX];

    pthread_mutex_lock(&s->loop.lock);
    struct stalled_read *stalled = note_stall_locked(d, position);
    bool answered = reply_for_stalled(w, turn, unique) != -EALREADY;
    if (answered)
        loop_dismiss_locked(w);
    else
        stalled->at_ns = 0;
    pthread_mutex_unlock(&s->loop.lock);
    if (!answered)
        return;
    atomic_fetch_add(&s->config.counters->stalls, 1);
    atomic_fetch_add(&s->config.counters->replacements, 1);
    session_trouble(s, TROUBLE_READ,
                    "%s: %s: a read has been waiting for %.1f s; answered with an input/output "
                    "error (see --io-timeout): does the archive's storage hang?",
                    log_archive(s, position), log_path(s, position, path),
                    (double)age_ns / 1e9);
}

static unsigned count_workers(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    unsigned count = loop->worker_count;
    pthread_mutex_unlock(&loop->lock);
    return count;
}

/* Look at all workers once; true if one has a request in hand. */
static bool look_at_workers(struct watchdog *d)
{
    struct session *s = d->session;
    const uint64_t now = now_ns(), timeout_ns = s->config.io_timeout_s * UINT64_C(1000000000);
    uint64_t progress_ns = source_progress_ns(s->config.fileset->source);
    unsigned count = count_workers(&s->loop), busy = 0, held_up = 0;

    watch_clock_tick(&d->clock, now);
    for (unsigned i = 0; i < count; i++) {
        struct worker *w = s->loop.workers[i];
        uint64_t turn = atomic_load(&w->turn);
        uint64_t unique = atomic_load(&w->unique), since = atomic_load(&w->since_ns);

        if (turn % 2 == 0)
            continue;
        busy++;
        held_up += now > since && now - since > HELD_UP_NS;
        uint64_t unpacked_ns = atomic_load(&w->unpacked_ns);
        if (watchdog_has_stalled(&d->waits[i], turn, since, max_u64(progress_ns, unpacked_ns),
                                 &d->clock, timeout_ns))
            answer_for(d, w, turn, unique, now - since);
    }
    if (held_up) {
        pthread_mutex_lock(&s->loop.lock);
        if (s->loop.active <= held_up)
            loop_wake_another_locked(s);
        pthread_mutex_unlock(&s->loop.lock);
    }
    return busy > 0;
}

/* If so, its progress must be reported even while nobody sends a request. */
static bool is_staging(const struct session *s)
{
    return s->config.stage && !atomic_load(&s->config.counters->stage_failure) &&
           atomic_load(&s->config.counters->stage_here_bytes) < s->config.counters->stage_bytes;
}

/* Turns of all workers, summed: changes with each request. */
static uint64_t sum_turns(struct loop *loop)
{
    unsigned count = count_workers(loop);
    uint64_t sum = 0;

    for (unsigned i = 0; i < count; i++)
        sum += atomic_load(&loop->workers[i]->turn);
    return sum;
}

/*
 * Nobody sends requests: sleep. A request that came meanwhile found the watchdog armed and did
 * not wake it, so it is checked for here.
 */
static void watchdog_disarm(struct watchdog *d)
{
    uint64_t before = sum_turns(&d->session->loop);

    session_update_counters(d->session);
    atomic_store(&d->armed, 0);
    if (look_at_workers(d) || sum_turns(&d->session->loop) != before)
        atomic_store(&d->armed, 1);
}

/* When a reader's last request was answered; 0: there was none. */
static uint64_t last_request_ns(const struct session *s)
{
    const struct counter_slot *slots = s->config.counters->slots;
    uint64_t last = 0;

    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        last = max_u64(last,
                       atomic_load_explicit(&slots[i].last_request_ns, memory_order_relaxed));
    return last;
}

static void *watchdog_run(void *arg)
{
    const struct timespec tick = {.tv_nsec = TICK_NS};
    struct watchdog *d = arg;
    struct session *s = d->session;

    while (!atomic_load(&s->ended)) {
        bool busy = look_at_workers(d);
        if (!busy && !is_staging(s) && now_ns() - last_request_ns(s) > 10ull * TICK_NS)
            watchdog_disarm(d);
        if (atomic_load(&d->armed)) {
            futex_wait(&d->armed, 1, FUTEX_OF_PROCESS, &tick);
            session_update_counters(s);
        } else if (!atomic_load(&s->ended)) {
            futex_wait(&d->armed, 0, FUTEX_OF_PROCESS, NULL);
        }
    }
    return NULL;
}

static int watchdog_start(struct session *s, void **ret_state)
{
    struct watchdog *d = calloc(1, sizeof(*d));
    int r;

    if (!d)
        return -ENOMEM;
    d->session = s;
    d->armed = is_staging(s); /* later, a request may have armed it */
    *ret_state = d;
    r = thread_start(&d->thread, STACK_BYTES, watchdog_run, d);
    d->started = r == 0;
    return r;
}

static void watchdog_end(void *state)
{
    struct watchdog *d = state;

    atomic_store(&d->armed, 1);
    futex_wake(&d->armed, 1, FUTEX_OF_PROCESS);
}

static int watchdog_join(void *state, const struct timespec *until)
{
    const struct watchdog *d = state;

    return d->started ? thread_join_until(d->thread, until) : 0;
}

const struct feature watchdog_feature = {
    .start = watchdog_start,
    .on_request = watchdog_arm,
    .before_read = watchdog_before_read,
    .after_read = watchdog_after_read,
    .end = watchdog_end,
    .join = watchdog_join,
    .free = free,
};
