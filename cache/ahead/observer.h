/*
 * Reports readers' requests, from the threads that answer them to one thread that plans ahead.
 * Each answering thread has its own observer, a ring that it alone writes. So a report costs a
 * few stores and no lock. If the planner is slow and a ring is full, observations are lost and
 * counted. (threads.c has them.)
 *
 *     observers_new(&all);
 *     observer_new(all, &mine);                      once for each thread that answers
 *     observer_note(mine, &observation);             there, for each read, listing and LOOKUP
 *     n = observers_take(all, batch, max);           the planner; sorted by time
 *     observers_wait(all, timeout)                   until there is an observation
 */
#ifndef ONEPOT_OBSERVER_H
#define ONEPOT_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

struct observers;
struct observer;

enum observed { OBSERVED_READ, OBSERVED_LISTING, OBSERVED_LOOKUP };

/*
 * Bytes of a file that a reader asked for, names of a directory that the kernel received, or
 * the name of a regular file that it asked for.
 */
struct observation {
    uint64_t time_ns; /* first, as they are sorted by it */
    uint64_t offset;  /* in the file; or the first entry, a position */
    uint32_t position;
    uint32_t len;
    uint32_t task;   /* the thread that reads */
    uint8_t kind;    /* enum observed */
    bool own;        /* a process that reads ahead asked for it */
    bool names_only; /* they came without attributes */
};

#define OBSERVERS_MAX 512u
#define OBSERVER_RING 4096u /* observations; a power of two */

int observers_new(struct observers **ret_observers);
void observers_free(struct observers *observers); /* and each observer of them; NULL is fine */

/* Lives as long as `observers`. -EAGAIN: too many. -ENOMEM. */
int observer_new(struct observers *observers, struct observer **ret_observer);

/* Only the thread that owns the observer may call this. */
void observer_note(struct observer *observer, const struct observation *observation);

/* One thread at a time. Returns how many there were, at most `max`. */
unsigned observers_take(struct observers *observers, struct observation *batch, unsigned max);

/*
 * Sleep until there is something to take. If `pause_us` is not 0, sleep so long in any case,
 * unless a ring fills up: taking many at once costs the answering threads less.
 */
void observers_wait(struct observers *observers, uint64_t pause_us);
/* End the wait of a thread that sleeps, or is about to. From any thread. */
void observers_wake(struct observers *observers);

/* How many observations were lost. */
uint64_t observers_lost(const struct observers *observers);

#endif
