/*
 * The threads around a plan. One observes and plans, several fetch, and one does the plan's
 * long work. Each starts when there is something for it to do.
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

#include "numbers.h"
#include "plan.h"
#include "thread.h"

#define TICK_US 2000u   /* between two looks while there are reads */
#define CALM_US 500000u /* without a read, after which it sleeps until the next */
#define BATCH 1024u     /* observations at a time */
#define WANTS_MAX 64u   /* of one fetch */
#define STACK_BYTES (256u << 10)
#define NICE_WORK 10 /* of the thread for long work: readers need the processor first */
#define HUNG_MAX 32u /* fetch threads that are replaced at the same time */
#define THREADS_MAX (AHEAD_FETCHERS_MAX + HUNG_MAX)
#define LOOK_NS UINT64_C(100000000) /* between two looks for those that hang */

enum fetch_state { FETCH_NONE, FETCH_RUNS, FETCH_HANGS, FETCH_ENDED };

struct fetch_thread {
    struct ahead *ahead;
    pthread_t thread;
    enum fetch_state state;
    uint64_t began_ns; /* when its present fetch began; 0: it has none */
};

struct ahead {
    struct ahead_options options;
    struct observers *observers;
    _Atomic bool ended;

    pthread_mutex_t lock; /* for the plan and all that follows */
    pthread_cond_t fetch, work;
    struct plan *plan;
    struct plan_job *job;               /* waits for the thread for long work */
    unsigned idle;                      /* fetch threads that wait for work */
    unsigned running;                   /* all of them except those that hang */
    uint64_t looked_ns;                 /* when it last looked for hung ones */
    bool working;                       /* the thread for long work was started */
    bool no_threads;                    /* no more threads can be started */
    struct reader_want held[WANTS_MAX]; /* for the fetch thread that was called */
    size_t held_count;

    pthread_t planner, worker;
    struct fetch_thread threads[THREADS_MAX];
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
    if (is_new_order)
        reader_forget_order(reader);
    reader_passed(reader, due);
}

const struct fetcher ahead_reader_fetcher = {
    .begin = reader_fetcher_begin,
    .fetch = reader_fetcher_fetch,
    .end = reader_fetcher_end,
    .passed = reader_fetcher_passed,
};

/* ---- fetch threads; all but their main function are called under the lock ---- */

static void *fetch_thread_main(void *arg);

static struct fetch_thread *fetch_thread_find_free(struct ahead *a)
{
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        struct fetch_thread *t = &a->threads[i];
        if (t->state == FETCH_ENDED)
            pthread_join(t->thread, NULL); /* it no longer needs the lock */
        if (t->state == FETCH_NONE || t->state == FETCH_ENDED)
            return t;
    }
    return NULL; /* all of them hang */
}

static void fetch_thread_start(struct ahead *a)
{
    struct fetch_thread *t = fetch_thread_find_free(a);

    if (!t)
        return;
    *t = (struct fetch_thread){.ahead = a, .state = FETCH_RUNS};
    a->no_threads = thread_start(&t->thread, STACK_BYTES, fetch_thread_main, t) < 0;
    if (a->no_threads)
        t->state = FETCH_NONE;
    else
        a->running++;
}

/* Have one more thread look for work. */
static void fetch_thread_call(struct ahead *a)
{
    if (atomic_load(&a->ended)) /* ahead_join may be done with all but the hung ones */
        return;
    if (a->idle > 0)
        pthread_cond_signal(&a->fetch);
    else if (a->running < a->options.fetchers && !a->no_threads)
        fetch_thread_start(a);
}

/* Now and then. */
static void fetch_threads_look_for_hung(struct ahead *a)
{
    uint64_t now = a->options.now_ns(), stuck_ns = a->options.stuck_ms * UINT64_C(1000000);
    unsigned hanging = 0;

    if (!stuck_ns || now - a->looked_ns < LOOK_NS)
        return;
    a->looked_ns = now;
    for (unsigned i = 0; i < THREADS_MAX; i++)
        hanging += a->threads[i].state == FETCH_HANGS;
    for (unsigned i = 0; i < THREADS_MAX && hanging < HUNG_MAX; i++) {
        struct fetch_thread *t = &a->threads[i];
        if (t->state != FETCH_RUNS || !t->began_ns || now < t->began_ns + stuck_ns)
            continue;
        t->state = FETCH_HANGS;
        hanging++;
        a->running--;
        if (a->options.replaced)
            atomic_fetch_add(a->options.replaced, 1);
    }
}

/* A thread is back from its work. False: it is one too many. */
static bool fetch_thread_comes_back(struct ahead *a, struct fetch_thread *t)
{
    t->began_ns = 0;
    if (t->state != FETCH_HANGS)
        return true;
    if (a->running >= a->options.fetchers)
        return false;
    t->state = FETCH_RUNS;
    a->running++;
    return true;
}

static size_t ahead_take(struct ahead *a, struct reader_want *wants)
{
    size_t count = a->held_count;

    if (count == 0)
        return plan_take(a->plan, wants, WANTS_MAX);
    memcpy(wants, a->held, count * sizeof(*wants));
    a->held_count = 0;
    return count;
}

static void fetch_thread_work(struct fetch_thread *t, void *scratch)
{
    struct reader_want wants[WANTS_MAX];
    struct ahead *a = t->ahead;

    while (!atomic_load(&a->ended)) {
        size_t count = ahead_take(a, wants);
        if (count == 0) {
            a->idle++;
            pthread_cond_wait(&a->fetch, &a->lock);
            a->idle--;
            continue;
        }
        fetch_thread_call(a);
        t->began_ns = a->options.now_ns();
        pthread_mutex_unlock(&a->lock);
        int r = a->options.fetcher->fetch(a->options.fetcher_ctx, scratch, wants, count);
        pthread_mutex_lock(&a->lock);
        plan_finished(a->plan, wants, count, r);
        if (!fetch_thread_comes_back(a, t))
            return;
    }
}

static void *fetch_thread_main(void *arg)
{
    struct fetch_thread *t = arg;
    struct ahead *a = t->ahead;
    void *scratch = NULL;

    prctl(PR_SET_NAME, "onepot-fetch");
    int r = a->options.fetcher->begin(a->options.fetcher_ctx, &scratch);
    pthread_mutex_lock(&a->lock);
    if (r == 0)
        fetch_thread_work(t, scratch);
    else
        a->no_threads = true;
    a->running -= t->state == FETCH_RUNS;
    t->state = FETCH_ENDED;
    pthread_mutex_unlock(&a->lock);
    if (r == 0)
        a->options.fetcher->end(scratch);
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
        if (a->batch[i].offset == 0)
            recorder_note(a->options.recorder, a->batch[i].position);
}

static void planner_plan(struct ahead *a, unsigned count)
{
    if (!a->options.window_bytes)
        return;
    pthread_mutex_lock(&a->lock);
    for (unsigned i = 0; i < count; i++)
        plan_observe(a->plan, &a->batch[i]);
    bool is_new_order = plan_order_changed(a->plan);
    a->options.fetcher->passed(a->options.fetcher_ctx, plan_passed(a->plan), is_new_order);
    worker_call(a);
    fetch_threads_look_for_hung(a);
    if (a->held_count == 0)
        a->held_count = plan_take(a->plan, a->held, WANTS_MAX);
    if (a->held_count > 0)
        fetch_thread_call(a);
    pthread_mutex_unlock(&a->lock);
}

static void *planner_main(void *arg)
{
    struct ahead *a = arg;
    uint64_t calm_us = CALM_US;

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

int ahead_new(const struct ahead_options *options, struct ahead **ret_ahead)
{
    struct ahead *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->options = *options;
    a->options.fetchers = min_u32(options->fetchers, AHEAD_FETCHERS_MAX);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->fetch, NULL);
    pthread_cond_init(&a->work, NULL);
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
    pthread_cond_broadcast(&a->fetch);
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
}

/* Record what is left. The planner has ended. */
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

int ahead_join(struct ahead *a, const struct timespec *until, int *ret_recorded)
{
    int r = thread_join_until(a->planner, until);

    *ret_recorded = 0;
    if (r == 0 && a->options.recorder)
        *ret_recorded = ahead_finish_record(a);
    for (unsigned i = 0; i < THREADS_MAX; i++)
        if (fetch_thread_was_started(a, &a->threads[i]))
            r |= thread_join_until(a->threads[i].thread, until);
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
    pthread_cond_destroy(&a->fetch);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
