/*
 * Decides from observations what to fetch. It has no threads and fetches nothing: threads.c
 * does, and tests drive it by hand.
 *
 *     plan_observe(plan, &observation)             a read
 *     n = plan_take(plan, wants, max)              what one thread is to fetch now
 *     plan_finished(plan, wants, n, result)        it was fetched, or could not be
 *     if (plan_job(plan, &job)) { plan_work(job); plan_job_done(plan, job); }
 *
 * A known order, given or recognised, goes first. Files outside of it, or all files without
 * one, are looked at for sequences (scan.h).
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

/* `stop`: true ends long work at once; NULL: never. */
int plan_new(const struct ahead_options *options, const _Atomic bool *stop,
             struct plan **ret_plan);
void plan_free(struct plan *plan); /* no job may be at work; NULL is fine */

/* Change the window. Neither the old nor the new one may be 0. */
void plan_set_window(struct plan *plan, uint64_t window_bytes);

void plan_observe(struct plan *plan, const struct observation *observation);

/* Returns how many; 0: nothing for now. See struct fetcher for which come together. */
size_t plan_take(struct plan *plan, struct reader_want *wants, size_t max);
void plan_finished(struct plan *plan, const struct reader_want *wants, size_t count,
                   int result);

/* The order changed since the last call, so earlier values of `due` mean nothing any more. */
bool plan_order_changed(struct plan *plan);

/* Data due before this is no longer of use; 0 without an order. */
uint64_t plan_passed(const struct plan *plan);

struct plan_job;
bool plan_job(struct plan *plan, struct plan_job **ret_job);
void plan_work(struct plan_job *job);
/* After plan_work; or without it, if nobody will ever call it. */
void plan_job_done(struct plan *plan, struct plan_job *job);

/* All but `observations_lost`. */
const struct ahead_stats *plan_stats(const struct plan *plan);

#endif
