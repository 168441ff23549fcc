/*
 * Plans fetches from observations. It has no threads and fetches nothing: threads.c does, and
 * tests drive it by hand.
 *
 *     plan_observe(plan, observations, count, ..)  reads, listings and LOOKUPs
 *     if (plan_take(plan, way, &batch))            what one thread is to fetch now
 *         plan_finished(plan, &batch, result)      it was fetched, or could not be
 *     if (plan_job(plan, &job)) { plan_work(job); plan_job_done(plan, job); }
 *
 * Its choosers are listed in chooser.h. A known order, given or recognised, goes first. Files
 * outside of it, or all files without one, are looked at for sequences.
 *
 * A job is long work (up to seconds) that needs nothing of the plan, so plan_work may run in
 * another thread meanwhile. There is at most one job at a time.
 */
#ifndef ONEPOT_PLAN_H
#define ONEPOT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ahead.h"

struct plan;

#define PLAN_BATCH_MAX 64u

enum fetch_way { WAY_CACHE, WAY_MOUNT, WAYS };

/* `stop`: true ends long work at once; NULL: never. */
int plan_new(const struct ahead_options *options, const _Atomic bool *stop,
             struct plan **ret_plan);
void plan_free(struct plan *plan); /* no job may be at work; NULL is fine */

/* Change the window. Neither the old nor the new one may be 0. */
void plan_set_window(struct plan *plan, uint64_t window_bytes);

/*
 * Take the next reads, listings and look-ups. Returns the `due` before which data is no longer
 * of use; 0 without an order. *ret_is_new_order: the order changed since the last call, so
 * earlier values of `due` mean nothing any more.
 */
uint64_t plan_observe(struct plan *plan, const struct observation *observations, unsigned count,
                      bool *ret_is_new_order);

/* See struct fetcher for which wants come together. */
struct plan_batch {
    unsigned chooser; /* the plan's own */
    size_t count;     /* 0: none */
    struct reader_want wants[PLAN_BATCH_MAX];
};
/* False: nothing for now. */
bool plan_take(struct plan *plan, enum fetch_way way, struct plan_batch *ret_batch);
void plan_finished(struct plan *plan, const struct plan_batch *batch, int result);

struct plan_job;
bool plan_job(struct plan *plan, struct plan_job **ret_job);
void plan_work(struct plan_job *job);
/* After plan_work; or without it, if nobody will ever call it. */
void plan_job_done(struct plan *plan, struct plan_job *job);

/* All but `observations_lost`. */
const struct ahead_stats *plan_stats(const struct plan *plan);

#endif
