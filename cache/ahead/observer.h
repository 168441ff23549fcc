/*
 * What readers ask for, told by the threads that answer them to one that plans ahead. Each
 * thread that answers has an observer of its own, a ring that it alone writes: telling costs a
 * few stores and no lock. What does not fit because the planner is slow is lost and counted.
 *
 *     observers_new(&all);
 *     observer_new(all, &mine);                      once for each thread that answers
 *     observer_note(mine, &observation);             there, for each read
 *     n = observers_take(all, batch, max);           the planner, sorted by time
 *     observers_wait(all, timeout)                   until there is something
 */
#ifndef ONEPOT_OBSERVER_H
#define ONEPOT_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

struct observers;
struct observer;

struct observation {
    uint64_t time_ns;
    uint64_t offset; /* in the file */
    uint32_t position;
    uint32_t len;
    uint32_t task; /* the thread that asks */
};

#define OBSERVERS_MAX 512u

int observers_new(struct observers **ret_observers);
void observers_free(struct observers *observers); /* and all of them; NULL is fine */

/* Lives as long as the observers. -EAGAIN: too many. -ENOMEM. */
int observer_new(struct observers *observers, struct observer **ret_observer);

/* By the one thread that it belongs to. */
void observer_note(struct observer *observer, const struct observation *observation);

/* By one thread at a time. How many there were, at most `max`. */
unsigned observers_take(struct observers *observers, struct observation *batch, unsigned max);

/*
 * Sleep until there is something to take; with `pause_us` other than 0 for so long in any case,
 * but for rings that fill up: who comes for many at once costs those who tell less.
 */
void observers_wait(struct observers *observers, uint64_t pause_us);
/* Whoever waits does so no more, nor does who is about to. From any thread. */
void observers_wake(struct observers *observers);

/* How many were lost. */
uint64_t observers_lost(const struct observers *observers);

#endif
