/*
 * The threads around a plan, and the rings through which they hear of reads. One observes and
 * plans, several fetch, and one does the plan's long work. Each starts when there is something
 * for it to do.
 *
 * The planner comes for observations every few milliseconds, so that no reader has to wake it.
 * When there is something to fetch, it takes the first piece and calls one fetch thread. A
 * thread that found work calls the next one before it begins, until one finds nothing. So as
 * many run as there is work for. They take work from the plan under the lock and at the last
 * moment, so that no queue holds what a reader has asked for meanwhile.
 *
 * A fetch may hang in a read that is never answered, and nobody can call it back. A thread that
 * is at one for longer than stuck_ms no longer counts, and another one may be started in its
 * place, up to a bound. If it comes back after all and there is one too many, it ends.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "chooser.h"
#include "clock.h"
#include "futex.h"
#include "numbers.h"
#include "observer.h"
#include "plan.h"
#include "thread.h"

/* ---- observers ---- */

/*
 * The planner sleeps on one word for all rings. The word says what should wake it: the first
 * observation (IDLE), or only a ring that is half full (PAUSED), since then it wakes by itself
 * soon.
 */

enum { AWAKE, PAUSED, IDLE };

struct observer {
    struct observers *all;
    _Alignas(64) _Atomic uint32_t written; /* by its thread */
    _Atomic uint64_t lost;
    _Alignas(64) _Atomic uint32_t taken; /* by the planner */
    struct observation ring[OBSERVER_RING];
};

struct observers {
    pthread_mutex_t lock; /* for new observers */
    _Atomic unsigned count;
    struct observer *at[OBSERVERS_MAX];
    _Atomic uint32_t sleep; /* futex */
    _Atomic bool woken;     /* by observers_wake, perhaps before the sleep began */
};

int observers_new(struct observers **ret_observers)
{
    struct observers *all = calloc(1, sizeof(*all));

    if (!all)
        return -ENOMEM;
    pthread_mutex_init(&all->lock, NULL);
    *ret_observers = all;
    return 0;
}

void observers_free(struct observers *all)
{
    if (!all)
        return;
    for (unsigned i = 0; i < all->count; i++)
        free(all->at[i]);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

int observer_new(struct observers *all, struct observer **ret_observer)
{
    struct observer *o = NULL;
    int r = 0;

    if (posix_memalign((void **)&o, 64, sizeof(*o)) != 0)
        return -ENOMEM;
    o->all = all;
    atomic_init(&o->written, 0);
    atomic_init(&o->taken, 0);
    atomic_init(&o->lost, 0);
    pthread_mutex_lock(&all->lock);
    unsigned count = atomic_load_explicit(&all->count, memory_order_relaxed);
    if (count == OBSERVERS_MAX) {
        r = -EAGAIN;
    } else {
        all->at[count] = o;
        atomic_store_explicit(&all->count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&all->lock);
    if (r < 0)
        free(o);
    else
        *ret_observer = o;
    return r;
}

static void observers_end_sleep(struct observers *all)
{
    if (atomic_exchange(&all->sleep, AWAKE) != AWAKE)
        futex_wake(&all->sleep, 1, FUTEX_OF_PROCESS);
}

void observer_note(struct observer *o, const struct observation *observation)
{
    uint32_t at = atomic_load_explicit(&o->written, memory_order_relaxed);
    uint32_t used = at - atomic_load_explicit(&o->taken, memory_order_acquire);

    if (used >= OBSERVER_RING) {
        atomic_fetch_add_explicit(&o->lost, 1, memory_order_relaxed);
        return;
    }
    o->ring[at % OBSERVER_RING] = *observation;
    /* Ordered with the load of `sleep`: either this thread sees that the planner sleeps, or
     * the planner sees this observation. */
    atomic_store(&o->written, at + 1);
    uint32_t sleep = atomic_load(&o->all->sleep);
    if (sleep == IDLE || (sleep == PAUSED && used >= OBSERVER_RING / 2))
        observers_end_sleep(o->all);
}

static unsigned observer_take(struct observer *o, struct observation *batch, unsigned max)
{
    uint32_t from = atomic_load_explicit(&o->taken, memory_order_relaxed);
    uint32_t there = atomic_load_explicit(&o->written, memory_order_acquire) - from;
    unsigned n = min_u32(there, max);

    for (unsigned i = 0; i < n; i++)
        batch[i] = o->ring[(from + i) % OBSERVER_RING];
    atomic_store_explicit(&o->taken, from + n, memory_order_release);
    return n;
}

unsigned observers_take(struct observers *all, struct observation *batch, unsigned max)
{
    unsigned rings = atomic_load_explicit(&all->count, memory_order_acquire), n = 0, from = 0;

    for (unsigned i = 0; i < rings && n < max; i++) {
        unsigned got = observer_take(all->at[i], batch + n, max - n);
        from += got > 0;
        n += got;
    }
    if (from > 1)
        qsort(batch, n, sizeof(*batch), compare_u64);
    return n;
}

static bool observers_is_empty(struct observers *all)
{
    unsigned rings = atomic_load_explicit(&all->count, memory_order_acquire);

    for (unsigned i = 0; i < rings; i++)
        if (atomic_load(&all->at[i]->written) !=
            atomic_load_explicit(&all->at[i]->taken, memory_order_relaxed))
            return false;
    return true;
}

void observers_wait(struct observers *all, uint64_t pause_us)
{
    uint32_t how = pause_us ? PAUSED : IDLE;
    struct timespec limit = clock_timespec(pause_us * 1000);

    atomic_store(&all->sleep, how);
    if (!atomic_load(&all->woken) && (pause_us || observers_is_empty(all)))
        futex_wait(&all->sleep, how, FUTEX_OF_PROCESS, pause_us ? &limit : NULL);
    atomic_store(&all->sleep, AWAKE);
    atomic_store(&all->woken, false);
}

void observers_wake(struct observers *all)
{
    atomic_store(&all->woken, true);
    observers_end_sleep(all);
}

uint64_t observers_lost(const struct observers *all)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < atomic_load(&all->count); i++)
        sum += atomic_load_explicit(&all->at[i]->lost, memory_order_relaxed);
    return sum;
}

/* ---- threads ---- */

#define TICK_US 2000u   /* between two looks while there are reads */
#define CALM_US 500000u /* without a read, after which it sleeps until the next */
#define BATCH 1024u     /* observations at a time */
#define REST_MS 300u    /* without work, after which a thread with a process ends */
#define STACK_BYTES (256u << 10)
#define NICE_WORK 10 /* of the thread for long work: readers need the processor first */
#define HUNG_MAX 32u /* fetch threads that are replaced at the same time */
#define THREADS_MAX (AHEAD_FETCHERS_MAX + HUNG_MAX)
#define LOOK_NS UINT64_C(100000000) /* between two looks for hung ones */

enum fetch_state { FETCH_NONE, FETCH_RUNS, FETCH_HANGS, FETCH_LEAVES, FETCH_ENDED };

struct fetch_thread {
    struct fetch_pool *pool;
    pthread_t thread;
    enum fetch_state state;
    uint64_t began_ns; /* when its present fetch began; 0: it has none */
};

/* The threads that fetch in one way. */
struct fetch_pool {
    struct ahead *ahead;
    const struct fetcher *fetcher;
    void *ctx;
    unsigned most;
    uint32_t stuck_ms;
    long rest_ms; /* a thread ends after so long without work; 0: never */
    pthread_cond_t called;
    unsigned idle;          /* threads that wait for work */
    unsigned running;       /* all of them except hung ones */
    bool no_threads;        /* no more threads can be started */
    struct plan_batch held; /* for the thread that was called */
    struct fetch_thread threads[THREADS_MAX];
};

struct ahead {
    struct ahead_options options;
    struct observers *observers;
    _Atomic bool ended;

    pthread_mutex_t lock; /* for the plan and all that follows */
    pthread_cond_t work;
    struct plan *plan;
    struct plan_job *job; /* waits for the thread for long work */
    uint64_t looked_ns;   /* when it last looked for hung threads */
    bool working;         /* the thread for long work was started */

    pthread_t planner, worker;
    struct fetch_pool pools[WAYS];
    struct observation batch[BATCH];
};

/* ---- the fetcher of a reader ---- */

static int reader_fetcher_begin(void *reader, void **ret_scratch)
{
    return reader_scratch_new(reader, (struct reader_scratch **)ret_scratch);
}

static int reader_fetcher_fetch(void *reader, void *scratch, const struct reader_want *wants,
                                size_t count)
{
    return reader_prefetch(reader, scratch, wants, count);
}

static void reader_fetcher_end(void *scratch)
{
    reader_scratch_free(scratch);
}

static void reader_fetcher_passed(void *reader, uint64_t due, bool is_new_order)
{
    reader_passed(reader, due, is_new_order);
}

const struct fetcher ahead_reader_fetcher = {
    .begin = reader_fetcher_begin,
    .fetch = reader_fetcher_fetch,
    .end = reader_fetcher_end,
    .passed = reader_fetcher_passed,
};

/* ---- fetch threads; all but their main function are called under the lock ---- */

static void *fetch_thread_main(void *arg);

static struct fetch_thread *fetch_thread_find_free(struct fetch_pool *p)
{
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        struct fetch_thread *t = &p->threads[i];
        if (t->state == FETCH_ENDED)
            pthread_join(t->thread, NULL); /* it no longer needs the lock */
        if (t->state == FETCH_NONE || t->state == FETCH_ENDED)
            return t;
    }
    return NULL; /* all of them hang */
}

static void fetch_thread_start(struct fetch_pool *p)
{
    struct fetch_thread *t = fetch_thread_find_free(p);

    if (!t)
        return;
    *t = (struct fetch_thread){.pool = p, .state = FETCH_RUNS};
    p->no_threads = thread_start(&t->thread, STACK_BYTES, fetch_thread_main, t) < 0;
    if (p->no_threads)
        t->state = FETCH_NONE;
    else
        p->running++;
}

/* Have one more thread look for work. */
static void fetch_pool_call(struct fetch_pool *p)
{
    if (atomic_load(&p->ahead->ended)) /* ahead_join may be done with all but the hung ones */
        return;
    if (p->idle > 0)
        pthread_cond_signal(&p->called);
    else if (p->running < p->most && !p->no_threads)
        fetch_thread_start(p);
}

/* Now and then. */
static void fetch_pool_look_for_hung(struct fetch_pool *p, uint64_t now)
{
    const struct ahead *a = p->ahead;
    uint64_t stuck_ns = p->stuck_ms * UINT64_C(1000000);
    unsigned hanging = 0;

    for (unsigned i = 0; i < THREADS_MAX; i++)
        hanging += p->threads[i].state == FETCH_HANGS;
    for (unsigned i = 0; stuck_ns && i < THREADS_MAX && hanging < HUNG_MAX; i++) {
        struct fetch_thread *t = &p->threads[i];
        if (t->state != FETCH_RUNS || !t->began_ns || now < t->began_ns + stuck_ns)
            continue;
        t->state = FETCH_HANGS;
        hanging++;
        p->running--;
        if (a->options.replaced)
            atomic_fetch_add(a->options.replaced, 1);
    }
}

/* A thread is back from its work. False: it is one too many. */
static bool fetch_thread_comes_back(struct fetch_thread *t)
{
    struct fetch_pool *p = t->pool;

    t->began_ns = 0;
    if (t->state != FETCH_HANGS)
        return true;
    if (p->running >= p->most)
        return false;
    t->state = FETCH_RUNS;
    p->running++;
    return true;
}

static bool fetch_pool_take(struct fetch_pool *p, struct plan_batch *batch)
{
    if (p->held.count == 0)
        return plan_take(p->ahead->plan, (enum fetch_way)(p - p->ahead->pools), batch);
    *batch = p->held;
    p->held.count = 0;
    return true;
}

/* Wait until there may be work. False: for too long. */
static bool fetch_pool_wait(struct fetch_pool *p)
{
    struct timespec until;
    int r;

    p->idle++;
    if (p->rest_ms) {
        until = clock_in_ms(CLOCK_MONOTONIC, p->rest_ms);
        r = pthread_cond_timedwait(&p->called, &p->ahead->lock, &until);
    } else {
        r = pthread_cond_wait(&p->called, &p->ahead->lock);
    }
    p->idle--;
    return r == 0;
}

static void fetch_thread_work(struct fetch_thread *t, void *scratch)
{
    struct fetch_pool *p = t->pool;
    struct ahead *a = p->ahead;
    struct plan_batch batch;
    bool may_wait = true;

    while (!atomic_load(&a->ended)) {
        if (!fetch_pool_take(p, &batch)) {
            if (!may_wait)
                return;
            may_wait = fetch_pool_wait(p);
            continue;
        }
        may_wait = true;
        fetch_pool_call(p);
        t->began_ns = a->options.now_ns();
        pthread_mutex_unlock(&a->lock);
        int r = p->fetcher->fetch(p->ctx, scratch, batch.wants, batch.count);
        pthread_mutex_lock(&a->lock);
        plan_finished(a->plan, &batch, r);
        if (!fetch_thread_comes_back(t))
            return;
    }
}

static void *fetch_thread_main(void *arg)
{
    struct fetch_thread *t = arg;
    struct fetch_pool *p = t->pool;
    struct ahead *a = p->ahead;
    void *scratch = NULL;

    prctl(PR_SET_NAME, "onepot-fetch");
    int r = p->fetcher->begin(p->ctx, &scratch);
    pthread_mutex_lock(&a->lock);
    if (r == 0)
        fetch_thread_work(t, scratch);
    else
        p->no_threads = true;
    unsigned counted = t->state == FETCH_RUNS;
    t->state = FETCH_LEAVES;
    pthread_mutex_unlock(&a->lock);
    if (r == 0)
        p->fetcher->end(scratch);
    pthread_mutex_lock(&a->lock);
    p->running -= counted;
    t->state = FETCH_ENDED;
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- long work ---- */

static void *worker_main(void *arg)
{
    struct ahead *a = arg;

    prctl(PR_SET_NAME, "onepot-orders");
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE_WORK); /* it works without, too */
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->ended)) {
        struct plan_job *job = a->job;
        if (!job) {
            pthread_cond_wait(&a->work, &a->lock);
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        plan_work(job);
        pthread_mutex_lock(&a->lock);
        a->job = NULL;
        plan_job_done(a->plan, job);
        observers_wake(a->observers); /* now there may be something to fetch */
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Under the lock. */
static void worker_call(struct ahead *a)
{
    struct plan_job *job;

    if (a->job || !plan_job(a->plan, &job))
        return;
    if (!a->working && thread_start(&a->worker, STACK_BYTES, worker_main, a) < 0) {
        plan_work(job);
        plan_job_done(a->plan, job);
        return;
    }
    a->working = true;
    a->job = job;
    pthread_cond_signal(&a->work);
}

/* ---- the planner ---- */

static void ahead_record(struct ahead *a, unsigned count)
{
    for (unsigned i = 0; a->options.recorder && i < count; i++)
        if (a->batch[i].kind == OBSERVED_READ && a->batch[i].offset == 0)
            recorder_note(a->options.recorder, a->batch[i].position);
}

static void planner_call(struct ahead *a, enum fetch_way way)
{
    struct fetch_pool *p = &a->pools[way];

    if (p->held.count > 0 || plan_take(a->plan, way, &p->held))
        fetch_pool_call(p);
}

static void planner_plan(struct ahead *a, unsigned count)
{
    uint64_t now = a->options.now_ns();
    bool is_new_order;

    pthread_mutex_lock(&a->lock);
    uint64_t passed = plan_observe(a->plan, a->batch, count, &is_new_order);
    if (a->options.window_bytes) {
        a->options.fetcher->passed(a->options.fetcher_ctx, passed, is_new_order);
        worker_call(a);
        planner_call(a, WAY_CACHE);
    }
    if (a->options.mount)
        planner_call(a, WAY_MOUNT);
    if (now - a->looked_ns >= LOOK_NS) {
        a->looked_ns = now;
        fetch_pool_look_for_hung(&a->pools[WAY_CACHE], now);
    }
    pthread_mutex_unlock(&a->lock);
}

static void *planner_main(void *arg)
{
    struct ahead *a = arg;
    /* Names may be wanted before anybody asks (names.c). */
    uint64_t calm_us = CALM_US - (a->options.all_names ? NAMES_BEGIN_NS / 1000 + TICK_US : 0);

    prctl(PR_SET_NAME, "onepot-plan");
    while (!atomic_load(&a->ended)) {
        unsigned count = observers_take(a->observers, a->batch, BATCH);
        ahead_record(a, count);
        planner_plan(a, count);
        calm_us = count ? 0 : calm_us + TICK_US;
        if (count == BATCH)
            continue;
        if (calm_us >= CALM_US && a->options.recorder)
            recorder_flush(a->options.recorder);
        observers_wait(a->observers, calm_us < CALM_US ? TICK_US : 0);
    }
    return NULL;
}

/* ---- start and end ---- */

static void ahead_set_pools(struct ahead *a)
{
    const struct ahead_options *o = &a->options;
    struct fetch_pool *cache = &a->pools[WAY_CACHE], *mount = &a->pools[WAY_MOUNT];

    *cache = (struct fetch_pool){.fetcher = o->fetcher,
                                 .ctx = o->fetcher_ctx,
                                 .most = min_u32(o->fetchers, AHEAD_FETCHERS_MAX),
                                 .stuck_ms = o->stuck_ms};
    *mount = (struct fetch_pool){.fetcher = o->mount,
                                 .ctx = o->mount_ctx,
                                 .most = min_u32(o->mount_fetchers, AHEAD_MOUNT_FETCHERS_MAX),
                                 .rest_ms = REST_MS};
    for (unsigned i = 0; i < WAYS; i++) {
        a->pools[i].ahead = a;
        thread_cond_init(&a->pools[i].called);
    }
}

int ahead_new(const struct ahead_options *options, struct ahead **ret_ahead)
{
    struct ahead *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->options = *options;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    ahead_set_pools(a);
    int r = observers_new(&a->observers);
    if (r == 0)
        r = plan_new(&a->options, &a->ended, &a->plan);
    if (r == 0)
        r = thread_start(&a->planner, STACK_BYTES, planner_main, a);
    if (r < 0) {
        a->options.recorder = NULL;
        ahead_free(a);
        return r;
    }
    *ret_ahead = a;
    return 0;
}

int ahead_observer(struct ahead *a, struct observer **ret_observer)
{
    return observer_new(a->observers, ret_observer);
}

void ahead_set_window(struct ahead *a, uint64_t window_bytes)
{
    pthread_mutex_lock(&a->lock);
    plan_set_window(a->plan, window_bytes);
    pthread_mutex_unlock(&a->lock);
}

void ahead_stats(struct ahead *a, struct ahead_stats *ret_stats)
{
    pthread_mutex_lock(&a->lock);
    *ret_stats = *plan_stats(a->plan);
    pthread_mutex_unlock(&a->lock);
    ret_stats->observations_lost = observers_lost(a->observers);
}

void ahead_end(struct ahead *a)
{
    atomic_store(&a->ended, true);
    observers_wake(a->observers);
    pthread_mutex_lock(&a->lock);
    for (unsigned i = 0; i < WAYS; i++)
        pthread_cond_broadcast(&a->pools[i].called);
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
}

/* Record the rest. The planner has ended. */
static int ahead_finish_record(struct ahead *a)
{
    struct recorder *recorder = a->options.recorder;
    unsigned count;

    while ((count = observers_take(a->observers, a->batch, BATCH)) > 0)
        ahead_record(a, count);
    a->options.recorder = NULL;
    return recorder_finish(recorder);
}

static bool fetch_thread_was_started(struct ahead *a, const struct fetch_thread *t)
{
    pthread_mutex_lock(&a->lock);
    bool started = t->state != FETCH_NONE;
    pthread_mutex_unlock(&a->lock);
    return started;
}

static int fetch_pool_join(struct fetch_pool *p, const struct timespec *until)
{
    int r = 0;

    for (unsigned i = 0; i < THREADS_MAX; i++)
        if (fetch_thread_was_started(p->ahead, &p->threads[i]))
            r |= thread_join_until(p->threads[i].thread, until);
    return r;
}

int ahead_join(struct ahead *a, const struct timespec *until, int *ret_recorded)
{
    int r = thread_join_until(a->planner, until);

    *ret_recorded = 0;
    if (r == 0 && a->options.recorder)
        *ret_recorded = ahead_finish_record(a);
    for (unsigned i = 0; i < WAYS; i++)
        r |= fetch_pool_join(&a->pools[i], until);
    if (a->working)
        r |= thread_join_until(a->worker, until);
    return r ? -EBUSY : 0;
}

void ahead_free(struct ahead *a)
{
    if (!a)
        return;
    if (a->job) /* no thread got to it */
        plan_job_done(a->plan, a->job);
    plan_free(a->plan);
    observers_free(a->observers);
    for (unsigned i = 0; i < WAYS; i++)
        pthread_cond_destroy(&a->pools[i].called);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
