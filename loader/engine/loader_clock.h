/*
 * The time that loaders of a dataset go by, and how their consumers wait. A test gives the
 * dataset another clock, so that a read may hang for a minute that takes no time.
 */
#ifndef ONEPOT_LOADER_CLOCK_H
#define ONEPOT_LOADER_CLOCK_H

#include <pthread.h>

#include "clock.h"
#include "dataset.h"

struct loader_clock {
    uint64_t (*now_ns)(void *ctx);
    /* Wait for the condition, at most until that time (UINT64_MAX: as long as it takes). False:
     * the time has come. */
    bool (*wait)(void *ctx, pthread_cond_t *ready, pthread_mutex_t *lock, uint64_t until_ns);
    void *ctx;
};

static inline uint64_t loader_now_ns(const struct dataset *dataset)
{
    return dataset->clock ? dataset->clock->now_ns(dataset->clock->ctx) : now_ns();
}

#endif
