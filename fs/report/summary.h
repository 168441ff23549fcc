/*
 * A mount's counters, added up; their growth in an interval, as a row of a table; and the line
 * that summarises them at the mount's end. The time that readers waited shows whether a GPU was
 * starved.
 */
#ifndef ONEPOT_SUMMARY_H
#define ONEPOT_SUMMARY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cli.h"
#include "counters.h"

static inline uint64_t counter_get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

struct summary {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0: not read yet */
    uint64_t requests[COUNTERS_OPCODES];
    uint64_t requests_all;
    uint64_t errors;
    uint64_t reads_waited;           /* for storage, or for another thread */
    uint64_t read_bytes, read_files; /* each file once, see summary_read */
    uint64_t starts;                 /* reads of files from their beginning, as far as seen */
    uint64_t sent_bytes;             /* by the daemon */
    uint64_t ahead_requests, ahead_bytes, ahead_files; /* before a reader asked */
    uint64_t direct_bytes, direct_files;               /* read without the daemon */
    uint64_t service_ns, read_service_ns;
    uint64_t last_request_ns; /* CLOCK_MONOTONIC; 0: none yet */
    uint64_t histogram[COUNTERS_BUCKETS];
    uint64_t origins[COUNTERS_ORIGINS];  /* successful READs */
    uint64_t source_reads, source_bytes; /* of the archive */
    uint64_t cache_hits, cache_misses;   /* of the block cache; waits for another are hits */
};

/*
 * Add up all slots of a mount, which may be running.
 *
 * A file that was read ahead is read from the kernel's cache, and the daemon does not see that.
 * So it counts as read, once, and so do the bytes, unless most files were read by processes
 * that say which ones those were (intercept.h).
 */
void summary_read(const struct counters *counters, struct summary *ret_summary);

/* The work of an interval. */
struct summary_rates {
    double seconds;
    double files, bytes, requests; /* per second */
    double waiting; /* readers that waited for data, on average: with 1, one did nothing else */
    double cached;  /* percent of reads that waited for nothing; negative: there were none */
    bool has_errors;
};

/* From one summary to a later one; from the mount's start if `was` was not read. */
void summary_rates(const struct counters *counters, const struct summary *was,
                   const struct summary *is, struct summary_rates *ret_rates);

/* How a row may look, in a table or in a log. */
struct summary_style {
    unsigned columns; /* at least 40: with more, there are more columns and longer names */
    bool is_terminal; /* that understands ANSI sequences */
    bool has_blocks;  /* UTF-8 */
    bool has_colours;
};

/* The style for a file: a terminal's width is asked for. */
void summary_style(FILE *out, struct summary_style *ret_style);

/*
 * Print one mount's row, without a newline: files and MiB per second, how many readers waited,
 * as a bar that one reader fills, cached reads, job, and archive. `state` is as from
 * find_mount_state; one that does not serve, or has extracted files, has a word in place of the
 * bar. Names are
 * escaped, and keep their ends. `counters` NULL: the headings. `user` NULL: no column of users.
 */
void summary_row(FILE *out, const struct summary_style *style, const char *user,
                 const struct counters *counters, const char *state,
                 const struct summary_rates *rates);

/* Time of the last use: a request, or a command that began to share the mount. */
uint64_t summary_last_use_ns(const struct counters *counters);

/* Why reads failed: "ARCHIVE: what happened; what to do". NULL: none did. */
const char *summary_trouble(const struct counters *counters);

/*
 * "1,234 files, 20.3 GiB read in 10.0 min (34.6 MiB/s); readers waited 12.3 s", or "nothing was
 * read, only listed"; and what summary_trouble says, but for the name of a mount's only
 * archive. Cut to `size`, for which SUMMARY_MAX is enough. Returns buf.
 */
#define SUMMARY_MAX 768
const char *summary_line(const struct counters *counters, char *buf, size_t size);

#endif
