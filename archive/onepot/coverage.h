/*
 * Which sum covers which bytes of an onepot archive. Exactly one covers each byte:
 *
 *   - data of a member that is stored as it is: the member's sum, index_sum;
 *   - all else before the index (headers, padding, compressed frames, the headers of frames
 *     and raw blocks): the sums of the archive's windows, index_window_sum;
 *   - the index, the footer, and what frames them: sums of their own, or a fixed value.
 *
 * So these three steps check the whole file:
 *
 *     onepot_check_trailer(source, index, &fault);                      onepot_format.h
 *     coverage_new(index, &fault, &c);
 *     for each window:  coverage_check_window(c, source, window, buf, &fault);
 *     for each file:    its bytes, read by reader.h or through index_extent, against index_sum
 *
 * (A compressed member's data is checked twice: its frame by the windows, and the decompressed
 * data by index_sum.)
 *
 * Threads: any number may use it at once.
 */
#ifndef ONEPOT_COVERAGE_H
#define ONEPOT_COVERAGE_H

#include <stdint.h>

#include "fault.h"
#include "index.h"
#include "source.h"

struct coverage;

/* A range of member data that lies in the archive as it is. */
struct coverage_range {
    uint64_t offset; /* in the archive */
    uint64_t length;
    uint32_t position; /* of the member's inode */
};

/*
 * Collects the ranges of all members, 24 bytes each. -EUCLEAN: two of them overlap, or the
 * index has no sums of windows, or a wrong number of them. -ENOMEM.
 */
int coverage_new(const struct index *index, struct fault *fault,
                 struct coverage **ret_coverage);
void coverage_free(struct coverage *coverage); /* NULL is fine */

/* Number of windows. They count from 0; the last may be shorter than INDEX_WINDOW_BYTES. */
uint64_t coverage_windows(const struct coverage *coverage);

/*
 * Reads a window and compares its sum. Returns 0, -EUCLEAN with a fault that has the window's
 * offset, or an error of reading. `buf` holds INDEX_WINDOW_BYTES and gets the window's bytes.
 */
int coverage_check_window(const struct coverage *coverage, const struct source *source,
                          uint64_t window, void *buf, struct fault *fault);

/*
 * The ranges that end behind `from` and begin before `to`, in the order of the archive. With
 * them, a report of a damaged window can name the members in it.
 */
uint64_t coverage_between(const struct coverage *coverage, uint64_t from, uint64_t to,
                          const struct coverage_range **ret_ranges);

#endif
