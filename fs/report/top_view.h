/*
 * One mount in `onepot top`: its work since the last look, in a few lines.
 *
 *     struct top_sample was = {0}, is;
 *     top_sample(slot->counters, now_ns, &is);
 *     top_print(out, slot->counters, "serving", &was, &is);
 */
#ifndef ONEPOT_TOP_VIEW_H
#define ONEPOT_TOP_VIEW_H

#include <stdint.h>
#include <stdio.h>

#include "counters.h"
#include "summary.h"

/* The counters that have rates, at one moment. */
struct top_sample {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0: no sample */
    int32_t daemon_pid;
    uint64_t daemon_start_ticks; /* these two tell mounts apart */
    struct summary sum;
    uint64_t cache_hits, cache_misses;
    uint64_t source_reads, source_bytes, troubles;
};

void top_sample(const struct counters *counters, uint64_t at_ns, struct top_sample *ret_sample);

/*
 * Print the rates between two samples, or since the mount began if there is no first one.
 * `state` is as from find_mount_state.
 */
void top_print(FILE *out, const struct counters *counters, const char *state,
               const struct top_sample *was, const struct top_sample *is);

#endif
