/*
 * The planner sleeps on one word for all rings. The word says what should wake it: the first
 * observation (IDLE), or only a ring that is half full (PAUSED), since then it wakes by itself
 * soon.
 */
#include "observer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "futex.h"
#include "numbers.h"

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
