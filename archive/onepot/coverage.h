/*
 * Which bytes of an onepot archive are under which sum. Each byte is under exactly one:
 *
 *   - the data of a member that is stored as it is: under the member's sum, index_sum;
 *   - all else before the index (headers, padding, compressed frames, the headers of
 *     frames and raw blocks): under the sums of the archive's windows, index_rest_sum;
 *   - the index, footer, and what frames them: under sums of their own, or a fixed value.
 *
 * So the whole file has been checked when these three have:
 *
 *     onepot_check_trailer(source, index, &fault);                      onepot_format.h
 *     coverage_new(index, &fault, &c);
 *     for each window:  coverage_check_window(c, source, window, buf, &fault);
 *     for each file:    its bytes, read by reader.h or through index_extent, against index_sum
 *
 * (A compressed member's data is checked twice: its frame by the windows, and what comes out
 * of it by index_sum.)
 *
 * Threads: one made, it may be used by any number at once.
 */
#ifndef ONEPOT_COVERAGE_H
#define ONEPOT_COVERAGE_H

#include <stdint.h>

#include "fault.h"
#include "index.h"
#include "source.h"

struct coverage;

/* Data of a member that lies in the archive as it is. */
struct coverage_range {
    uint64_t offset; /* in the archive */
    uint64_t length;
    uint32_t position; /* of its inode */
};

/*
 * Collect the ranges of all members: 24 bytes each. -EUCLEAN when two of them overlap, or
 * the index has no sums of windows, or not as many as the archive has windows; -ENOMEM.
 */
int coverage_new(const struct index *index, struct fault *fault,
                 struct coverage **ret_coverage);
void coverage_free(struct coverage *coverage); /* NULL is fine */

/* Windows are numbered from 0; the last one may be shorter than INDEX_WINDOW_BYTES. */
uint64_t coverage_windows(const struct coverage *coverage);

/*
 * Read a window and compare its sum: 0, -EUCLEAN with a fault whose offset is that of the
 * window, or an error of reading. `buf` has INDEX_WINDOW_BYTES, and the window in it then.
 */
int coverage_check_window(const struct coverage *coverage, const struct source *source,
                          uint64_t window, void *buf, struct fault *fault);

/*
 * The ranges that end behind `from` and begin before `to`, in the order of the archive: with
 * them a damaged window can be described by the members in it.
 */
uint64_t coverage_between(const struct coverage *coverage, uint64_t from, uint64_t to,
                          const struct coverage_range **ret_ranges);

#endif
