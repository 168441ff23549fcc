/*
 * The watchdog's decisions, for given times (CLOCK_MONOTONIC nanoseconds).
 */
#ifndef ONEPOT_WATCHDOG_H
#define ONEPOT_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Has a request received at `since_ns` waited for too long? It may wait for unpacking, and does
 * not count as stalled while that makes progress (last at `progress_ns`; UINT64_MAX: it does).
 * `timeout_ns` 0: never.
 */
bool watchdog_has_stalled(uint64_t since_ns, uint64_t progress_ns, uint64_t now,
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
