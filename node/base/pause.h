/*
 * Pauses of a thread that others can end for good, and the clock they go by. A test gives it
 * another clock, which only pauses advance, so that nothing has to sleep.
 *
 * Any number of threads may use one. A process forked meanwhile must not use its parent's.
 */
#ifndef ONEPOT_PAUSE_H
#define ONEPOT_PAUSE_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "clock.h"
#include "thread.h"

struct pause {
    pthread_mutex_t lock;
    pthread_cond_t end;
    _Atomic bool ended;
    _Atomic uint64_t *test_ns; /* a test's clock; NULL: CLOCK_MONOTONIC */
};

/* Nothing has to be freed: a forked child could hang in that. */
static inline void pause_init(struct pause *p)
{
    pthread_mutex_init(&p->lock, NULL);
    thread_cond_init(&p->end);
    p->ended = false;
    p->test_ns = NULL;
}

static inline uint64_t pause_now_ns(const struct pause *p)
{
    return p->test_ns ? atomic_load(p->test_ns) : now_ns();
}

/* End this pause and all that follow. */
static inline void pause_end(struct pause *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->ended, true);
    pthread_cond_broadcast(&p->end);
    pthread_mutex_unlock(&p->lock);
}

static inline bool pause_ended(const struct pause *p)
{
    return atomic_load(&p->ended);
}

/* Wait for `ns`, or until pauses are ended: false. */
static inline bool pause_for(struct pause *p, uint64_t ns)
{
    if (p->test_ns) {
        atomic_fetch_add(p->test_ns, ns);
        return !pause_ended(p);
    }
    struct timespec until = clock_timespec(now_ns() + ns);
    pthread_mutex_lock(&p->lock);
    while (!pause_ended(p) && pthread_cond_timedwait(&p->end, &p->lock, &until) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&p->lock);
    return !pause_ended(p);
}

#endif
