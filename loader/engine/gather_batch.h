/*
 * A batch without a loader, in memory of the caller, laid out as in a loader's slab (slab.h):
 * data, then tables. onepot_archive_gather and onepot_archive_images make the data alone.
 */
#ifndef ONEPOT_GATHER_BATCH_H
#define ONEPOT_GATHER_BATCH_H

#include "fill.h"

struct gather_batch {
    const struct onepot_archive *archive;
    const uint64_t *samples;
    uint64_t count;
    uint32_t align;                     /* of bytes; 0: a default */
    const struct onepot_images *images; /* what pictures become; NULL: samples are bytes */
    uint64_t seed, epoch;               /* of random crops */
};

/* How many bytes the data takes, and all of the batch. */
int gather_batch_bytes(const struct gather_batch *batch, struct onepot_error *error,
                       uint64_t *ret_data, uint64_t *ret_all);

/* Make the batch, in `size` bytes at a multiple of 8. */
int gather_batch_fill(const struct gather_batch *batch, void *memory, uint64_t size,
                      struct onepot_error *error);

#endif
