/*
 * The planner comes for observations every few milliseconds, so that no reader has to wake it.
 * When there is something to fetch, it takes the first piece and calls one fetcher. A fetcher
 * that found work calls the next one before it begins, until one finds nothing. So as many run
 * as there is work for. A fetcher takes work from the plan under the lock and at the last
 * moment, so that no queue holds what a reader has asked for meanwhile.
 *
 * A fetcher may hang in a read that is never answered, and nobody can call it back. One that is
 * at its work for longer than stuck_ms no longer counts, and another one may be started in its
 * place, up to a bound. If it comes back after all and there is one too many, it ends.
 */
#include "ahead.h"

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

#include "clock.h"
#include "thread.h"

#define TICK_US 2000u   /* between two looks while there are reads */
#define CALM_US 500000u /* without a read, after which it sleeps until the next */
#define BATCH 1024u     /* observations at a time */
#define WANTS_MAX 64u   /* of one fetch */
#define STACK_BYTES (256u << 10)
#define NICE_WORK 10 /* of the thread for long work: readers need the processor first */
#define HUNG_MAX 32u /* fetchers that are replaced at the same time */
#define LOOK_NS UINT64_C(100000000) /* between two looks for fetchers that hang */

enum fetcher_state { FETCHER_NONE, FETCHER_RUNS, FETCHER_HANGS, FETCHER_ENDED };

struct fetcher {
    struct ahead *ahead;
    pthread_t thread;
    enum fetcher_state state;
    uint64_t began_ns; /* when its present fetch began; 0: it has none */
};

struct ahead {
    struct ahead_options options;
    struct observers *observers;
    _Atomic bool ended;

    pthread_mutex_t lock; /* for the plan and all that follows */
    pthread_cond_t fetch, work;
    struct plan *plan;
    struct plan_job *job;             /* waits for the thread for long work */
    unsigned idle;                    /* fetchers that wait for work */
    unsigned running;                 /* all fetchers except those that hang */
    uint64_t looked_ns;               /* when it last looked for hung fetchers */
    bool working;                     /* the thread for long work was started */
    bool no_threads;                  /* no more threads can be started */
    struct plan_want held[WANTS_MAX]; /* for the fetcher that was called */
    size_t held_count;

    pthread_t planner;
    pthread_t worker;
    struct fetcher fetcher[AHEAD_FETCHERS_MAX + HUNG_MAX];
    struct observation batch[BATCH];
};

static int start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int r = -pthread_create(thread, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return r;
}

/* ---- fetchers ---- */

static int fetch(struct ahead *a, struct reader_scratch *scratch, const struct plan_want *wants,
                 size_t count)
{
    struct reader_want parts[WANTS_MAX];

    for (size_t i = 0; i < count; i++)
        parts[i] = (struct reader_want){wants[i].position, wants[i].offset, wants[i].len,
                                        wants[i].due};
    return reader_prefetch_many(a->options.reader, scratch, parts, count);
}

static void *run_fetcher(void *arg);

/* Under the lock. NULL: all of them hang. */
static struct fetcher *free_fetcher(struct ahead *a)
{
    for (unsigned i = 0; i < sizeof(a->fetcher) / sizeof(a->fetcher[0]); i++) {
        struct fetcher *f = &a->fetcher[i];
        if (f->state == FETCHER_ENDED)
            pthread_join(f->thread, NULL); /* it no longer needs the lock */
        if (f->state == FETCHER_NONE || f->state == FETCHER_ENDED)
            return f;
    }
    return NULL;
}

static void start_fetcher(struct ahead *a)
{
    struct fetcher *f = free_fetcher(a);

    if (!f)
        return;
    *f = (struct fetcher){.ahead = a, .state = FETCHER_RUNS};
    a->no_threads = start(&f->thread, run_fetcher, f) < 0;
    if (a->no_threads)
        f->state = FETCHER_NONE;
    else
        a->running++;
}

/* Under the lock: have one more fetcher look for work. */
static void call_fetcher(struct ahead *a)
{
    if (atomic_load(&a->ended)) /* ahead_join may be done with all fetchers but the hung ones */
        return;
    if (a->idle > 0)
        pthread_cond_signal(&a->fetch);
    else if (a->running < a->options.fetchers && !a->no_threads)
        start_fetcher(a);
}

/* Under the lock, now and then. */
static void look_for_hung(struct ahead *a)
{
    uint64_t now = now_ns(), stuck_ns = a->options.stuck_ms * UINT64_C(1000000);
    unsigned hanging = 0;

    if (!stuck_ns || now - a->looked_ns < LOOK_NS)
        return;
    a->looked_ns = now;
    for (unsigned i = 0; i < sizeof(a->fetcher) / sizeof(a->fetcher[0]); i++)
        hanging += a->fetcher[i].state == FETCHER_HANGS;
    for (unsigned i = 0; i < sizeof(a->fetcher) / sizeof(a->fetcher[0]) && hanging < HUNG_MAX;
         i++) {
        struct fetcher *f = &a->fetcher[i];
        if (f->state != FETCHER_RUNS || !f->began_ns || now < f->began_ns + stuck_ns)
            continue;
        f->state = FETCHER_HANGS;
        hanging++;
        a->running--;
        if (a->options.replaced)
            atomic_fetch_add(a->options.replaced, 1);
    }
}

/* Under the lock: a fetcher is back from its work. False: it is one too many. */
static bool come_back(struct ahead *a, struct fetcher *f)
{
    f->began_ns = 0;
    if (f->state != FETCHER_HANGS)
        return true;
    if (a->running >= a->options.fetchers)
        return false;
    f->state = FETCHER_RUNS;
    a->running++;
    return true;
}

/* Under the lock. */
static size_t take(struct ahead *a, struct plan_want *wants)
{
    size_t count = a->held_count;

    if (count == 0)
        return plan_take(a->plan, wants, WANTS_MAX);
    memcpy(wants, a->held, count * sizeof(*wants));
    a->held_count = 0;
    return count;
}

static void fetch_all(struct fetcher *f, struct reader_scratch *scratch)
{
    struct plan_want wants[WANTS_MAX];
    struct ahead *a = f->ahead;

    while (!atomic_load(&a->ended)) {
        size_t count = take(a, wants);
        if (count == 0) {
            a->idle++;
            pthread_cond_wait(&a->fetch, &a->lock);
            a->idle--;
            continue;
        }
        call_fetcher(a);
        f->began_ns = now_ns();
        pthread_mutex_unlock(&a->lock);
        int r = fetch(a, scratch, wants, count);
        pthread_mutex_lock(&a->lock);
        plan_finished(a->plan, wants, count, r);
        if (!come_back(a, f))
            return;
    }
}

static void *run_fetcher(void *arg)
{
    struct reader_scratch *scratch = NULL;
    struct fetcher *f = arg;
    struct ahead *a = f->ahead;

    prctl(PR_SET_NAME, "onepot-fetch");
    int r = reader_scratch_new(a->options.reader, &scratch);
    pthread_mutex_lock(&a->lock);
    if (r == 0)
        fetch_all(f, scratch);
    else
        a->no_threads = true;
    a->running -= f->state == FETCHER_RUNS;
    f->state = FETCHER_ENDED;
    pthread_mutex_unlock(&a->lock);
    reader_scratch_free(scratch);
    return NULL;
}

/* ---- long work ---- */

static void *run_worker(void *arg)
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
static void call_worker(struct ahead *a)
{
    struct plan_job *job;

    if (a->job || !plan_job(a->plan, &job))
        return;
    if (!a->working && start(&a->worker, run_worker, a) < 0) {
        plan_work(job);
        plan_job_done(a->plan, job);
        return;
    }
    a->working = true;
    a->job = job;
    pthread_cond_signal(&a->work);
}

/* ---- the planner ---- */

static void plan_reads(struct ahead *a, unsigned count)
{
    for (unsigned i = 0; a->options.recorder && i < count; i++)
        if (a->batch[i].offset == 0)
            recorder_note(a->options.recorder, a->batch[i].position);
    if (!a->options.plan.window_bytes)
        return;
    pthread_mutex_lock(&a->lock);
    for (unsigned i = 0; i < count; i++)
        plan_observe(a->plan, &a->batch[i]);
    if (plan_order_changed(a->plan))
        reader_forget_order(a->options.reader);
    reader_passed(a->options.reader, plan_passed(a->plan));
    call_worker(a);
    look_for_hung(a);
    if (a->held_count == 0)
        a->held_count = plan_take(a->plan, a->held, WANTS_MAX);
    if (a->held_count > 0)
        call_fetcher(a);
    pthread_mutex_unlock(&a->lock);
}

static void *run_planner(void *arg)
{
    struct ahead *a = arg;
    uint64_t calm_us = CALM_US;

    prctl(PR_SET_NAME, "onepot-plan");
    while (!atomic_load(&a->ended)) {
        unsigned count = observers_take(a->observers, a->batch, BATCH);
        plan_reads(a, count);
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

int ahead_new(const struct ahead_options *options, struct ahead **ret_ahead)
{
    struct ahead *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->options = *options;
    if (a->options.fetchers > AHEAD_FETCHERS_MAX)
        a->options.fetchers = AHEAD_FETCHERS_MAX;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->fetch, NULL);
    pthread_cond_init(&a->work, NULL);
    a->options.plan.stop = &a->ended;
    int r = observers_new(&a->observers);
    if (r == 0)
        r = plan_new(&a->options.plan, &a->plan);
    if (r == 0)
        r = start(&a->planner, run_planner, a);
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
    plan_stats(a->plan, &ret_stats->plan);
    pthread_mutex_unlock(&a->lock);
    ret_stats->lost = observers_lost(a->observers);
}

void ahead_end(struct ahead *a)
{
    atomic_store(&a->ended, true);
    observers_wake(a->observers);
    pthread_mutex_lock(&a->lock);
    pthread_cond_broadcast(&a->fetch);
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
}

static bool join(pthread_t thread, const struct timespec *until)
{
    return thread_join_until(thread, until) == 0;
}

/* Record what is left. The planner has ended. */
static int finish_record(struct ahead *a)
{
    struct recorder *recorder = a->options.recorder;
    unsigned count;

    while ((count = observers_take(a->observers, a->batch, BATCH)) > 0)
        for (unsigned i = 0; i < count; i++)
            if (a->batch[i].offset == 0)
                recorder_note(recorder, a->batch[i].position);
    a->options.recorder = NULL;
    return recorder_finish(recorder);
}

static bool is_started(struct ahead *a, const struct fetcher *f)
{
    pthread_mutex_lock(&a->lock);
    bool started = f->state != FETCHER_NONE;
    pthread_mutex_unlock(&a->lock);
    return started;
}

int ahead_join(struct ahead *a, const struct timespec *until, int *ret_recorded)
{
    bool all = join(a->planner, until);

    *ret_recorded = 0;
    if (all && a->options.recorder)
        *ret_recorded = finish_record(a);
    for (unsigned i = 0; i < sizeof(a->fetcher) / sizeof(a->fetcher[0]); i++)
        all &= !is_started(a, &a->fetcher[i]) || join(a->fetcher[i].thread, until);
    if (a->working)
        all &= join(a->worker, until);
    return all ? 0 : -EBUSY;
}

void ahead_free(struct ahead *a)
{
    if (!a)
        return;
    if (a->job) /* no thread got to it */
        plan_job_done(a->plan, a->job);
    plan_free(a->plan);
    observers_free(a->observers);
    pthread_cond_destroy(&a->fetch);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
