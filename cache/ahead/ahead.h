/*
 * Reading ahead: the threads around a plan. One observes and plans, several fetch, and one does
 * the plan's long work. Each starts when there is something for it to do.
 *
 *     ahead_new(&options, &ahead);
 *     ahead_observer(ahead, &observer);        once in each thread that answers readers
 *     observer_note(observer, &observation);   there, before a read is answered
 *     ahead_end(ahead);                        begins no more reads of the archive
 *     ahead_join(ahead, until);                if it returns 0:
 *     ahead_free(ahead);
 */
#ifndef ONEPOT_AHEAD_H
#define ONEPOT_AHEAD_H

#include <stdatomic.h>
#include <time.h>

#include "observer.h"
#include "plan.h"
#include "reader.h"
#include "recorder.h"

struct ahead;

#define AHEAD_FETCHERS_MAX 32u

struct ahead_options {
    struct plan_options plan;
    struct reader *reader;     /* outlives it */
    struct recorder *recorder; /* taken over; NULL: nothing is recorded */
    unsigned fetchers;         /* concurrent reads of the archive, at most AHEAD_FETCHERS_MAX */
    /* A fetcher that is at one fetch for longer is taken for stuck and replaced. 0: never. */
    uint32_t stuck_ms;
    _Atomic uint64_t *replaced; /* counts the replaced fetchers; outlives it; may be NULL */
};

/* Any of its threads may call plan.log. On failure the caller keeps the recorder. */
int ahead_new(const struct ahead_options *options, struct ahead **ret_ahead);

int ahead_observer(struct ahead *ahead, struct observer **ret_observer);

struct ahead_stats {
    struct plan_stats plan;
    uint64_t lost; /* observations dropped for want of room */
};
void ahead_stats(struct ahead *ahead, struct ahead_stats *ret_stats);

/* Change the window, because the budget changed. Neither the old nor the new one may be 0. */
void ahead_set_window(struct ahead *ahead, uint64_t window_bytes);

/* May be called from any thread. */
void ahead_end(struct ahead *ahead);
/*
 * Wait for all its threads until then. -EBUSY: one is still in a read of the archive. In any
 * case the record is complete, or *ret_recorded says why not.
 */
int ahead_join(struct ahead *ahead, const struct timespec *until, int *ret_recorded);
void ahead_free(struct ahead *ahead); /* after ahead_join; NULL is fine */

#endif
