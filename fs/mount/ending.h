/*
 * When a mount ends: the decisions of control.h, without a clock and without a mount. Times are
 * nanoseconds of one clock, which the caller has read.
 */
#ifndef ONEPOT_ENDING_H
#define ONEPOT_ENDING_H

#include <stdbool.h>
#include <stdint.h>

#define SECOND_NS UINT64_C(1000000000)
#define ENDING_QUIET_NS (2 * SECOND_NS) /* without a request: nobody reads */

enum ending_phase {
    ENDING_SERVING,
    ENDING_DRAINING,
    ENDING_UNMOUNTED, /* detached; processes that still have a file open are served */
};

struct ending {
    enum ending_phase phase;
    uint64_t idle_ns;     /* end after so long without use; 0: never */
    uint64_t deadline_ns; /* end of draining; 0: none */
    uint64_t retry_ns;    /* next attempt to unmount */
    int interrupts;       /* how often a person has pressed Ctrl-C */
};

/*
 * It is asked to end, within `limit_ns` (0: no limit). The first of several limits counts.
 * True: it was not ending yet.
 */
bool ending_begin(struct ending *ending, uint64_t now_ns, uint64_t limit_ns);

/*
 * A person asks: first with the grace period, then with three seconds, then at once. Returns
 * false for at once; else *ret_limit_ns is for ending_begin.
 */
bool ending_interrupt(struct ending *ending, uint64_t grace_ns, uint64_t *ret_limit_ns);

enum ending_step {
    ENDING_WAIT,
    ENDING_TRY,    /* to unmount, unless it is in use */
    ENDING_DETACH, /* even if it is */
};

/* Decide what to do now. `last_ns`: the last use. */
enum ending_step ending_next(const struct ending *ending, uint64_t now_ns, uint64_t last_ns);

/* An attempt to unmount is made now; schedule the next one. */
void ending_tried(struct ending *ending, uint64_t now_ns);

/*
 * How many milliseconds nothing has to be done unless something happens; -1: for ever.
 * `must_look`: something must be looked at that can't be waited for.
 */
int ending_patience_ms(const struct ending *ending, uint64_t now_ns, uint64_t last_ns,
                       bool must_look);

#endif
