/*
 * Reading ahead of readers that go through files in sequence: large files from front to back,
 * then directories in the order of names, then the archive in its own order (streams.h).
 * Fetches that were not used are counted. Across files, a scan that is wrong more often than
 * right pauses, each time for longer.
 */
#ifndef ONEPOT_SCAN_H
#define ONEPOT_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "ahead.h"
#include "chooser.h"
#include "known_reads.h"

struct scan;

/* `options`, whose window may change, and `stats`, to count in, outlive it. -ENOMEM. */
int scan_new(const struct ahead_options *options, struct ahead_stats *stats,
             struct scan **ret_scan);
void scan_free(struct scan *scan); /* NULL is fine */

/*
 * Of a struct scan. A read is `expected` if it was due in a known order. One `take` gives
 * pieces of one file, or files that lie close together.
 */
extern const struct chooser scan_chooser;

/* Readers seem to follow the archive: its files should be sorted. True until they are set. */
bool scan_wants_archive(const struct scan *scan);
/* NULL: it is not possible. Takes them over. */
void scan_set_archive(struct scan *scan, struct known_reads *archive);

#endif
