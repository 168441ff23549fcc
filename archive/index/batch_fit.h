/*
 * How many samples fit into a piece of memory as a batch of the loader: each sample starts at
 * a multiple of some power of two, and has its place in five tables beside the data.
 */
#ifndef ONEPOT_BATCH_FIT_H
#define ONEPOT_BATCH_FIT_H

#include <stddef.h>
#include <stdint.h>

#define BATCH_FIT_ALIGN 64u
#define BATCH_FIT_TABLES 33u /* bytes per sample in the tables */

/*
 * Compute how many of `count` samples fit: on average, and with the largest ones in the batch.
 * `sizes` is overwritten. At most `count`; 0: not even one.
 */
void batch_fit(uint64_t *sizes, size_t count, uint64_t bytes, uint32_t align,
               uint64_t *ret_mean, uint64_t *ret_worst);

#endif
