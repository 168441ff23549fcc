/*
 * Reading ahead: the threads around a plan. One observes and plans, some fetch, one has the
 * plan's long work; all of them start when there is something to do.
 *
 *     ahead_new(&options, &ahead);
 *     ahead_observer(ahead, &observer);        once in each thread that answers readers
 *     observer_note(observer, &observation);   there, before a read is answered
 *     ahead_end(ahead);                        no more reads of the archive are begun
 *     ahead_join(ahead, until);                and then, if that is 0:
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
    unsigned fetchers;         /* reads of the archive at once, at most AHEAD_FETCHERS_MAX */
    /* Who fetches for longer than that is taken for stuck, and replaced. 0: nobody is. */
    uint32_t stuck_ms;
    _Atomic uint64_t *replaced; /* counts those; outlives it; may be NULL */
};

/* Lines of plan.log come from any of its threads. When it fails the recorder is left alone. */
int ahead_new(const struct ahead_options *options, struct ahead **ret_ahead);

int ahead_observer(struct ahead *ahead, struct observer **ret_observer);

struct ahead_stats {
    struct plan_stats plan;
    uint64_t lost; /* observations for which there was no room */
};
void ahead_stats(struct ahead *ahead, struct ahead_stats *ret_stats);

/* Another window than at the start, not 0: the budget has changed. */
void ahead_set_window(struct ahead *ahead, uint64_t window_bytes);

/* From any thread. */
void ahead_end(struct ahead *ahead);
/*
 * All its threads, until then. -EBUSY: one is still in a read of the archive. What was recorded
 * is there in any case, or *ret_recorded says why not.
 */
int ahead_join(struct ahead *ahead, const struct timespec *until, int *ret_recorded);
void ahead_free(struct ahead *ahead); /* after ahead_join; NULL is fine */

#endif
