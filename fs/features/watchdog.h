/*
 * The watchdog's decisions, for given times (CLOCK_MONOTONIC nanoseconds).
 */
#ifndef ONEPOT_WATCHDOG_H
#define ONEPOT_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The clock of stalls goes by the watchdog's own ticks. While the process is stopped (a batch
 * system's suspend) there are none, and no read could have been answered. All zero at first.
 */
struct watch_clock {
    uint64_t looked_ns; /* the last tick */
    uint64_t ns;
};
#define WATCH_STEP_NS UINT64_C(200000000) /* how much a tick counts at most */
void watch_clock_tick(struct watch_clock *clock, uint64_t now);

/* A worker's wait, as the watchdog saw it last. */
struct watched_wait {
    uint64_t turn, from_ns;
    uint64_t clock_ns; /* of the watch clock when it began */
};

/*
 * Has the request of `turn`, received at `since_ns`, waited for too long? It may wait for
 * unpacking, and does not count as stalled while that makes progress (last at `progress_ns`;
 * UINT64_MAX: it does). `timeout_ns` 0: never. Call it at each tick, with the same `wait`.
 */
bool watchdog_has_stalled(struct watched_wait *wait, uint64_t turn, uint64_t since_ns,
                          uint64_t progress_ns, const struct watch_clock *clock,
                          uint64_t timeout_ns);

/*
 * Reads that were answered with EIO a moment ago, after a long time. The kernel reads ahead,
 * then asks again for the page that the reader waits for; the reader should not wait twice. One
 * thread at a time.
 */
#define STALLED_READS_MAX 64u
struct stalled_reads {
    struct stalled_read {
        uint32_t position;
        uint64_t at_ns; /* 0: nothing */
    } at[STALLED_READS_MAX];
    unsigned next;
};
/*
 * Add a read. It stays valid until STALLED_READS_MAX more are added; set at_ns to 0 to take it
 * back.
 */
struct stalled_read *stalled_reads_add(struct stalled_reads *reads, uint32_t position,
                                       uint64_t now);
/* Was a read of this file just answered? True once for each. */
bool stalled_reads_take(struct stalled_reads *reads, uint32_t position, uint64_t now);

#endif
