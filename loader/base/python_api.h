/*
 * Functions for the Python module beyond onepot.h and sampler.h: other threads or signals can
 * end a call, and a batch may lie in the caller's memory.
 */
#ifndef ONEPOT_PYTHON_API_H
#define ONEPOT_PYTHON_API_H

#include "onepot.h"
#include "permutation.h"

#define ANY_EPOCH UINT64_MAX

/*
 * Like onepot_archive_fold. `stop`: asked now and then while labels are read. -ECANCELED.
 */
int archive_fold(const struct onepot_archive *archive, uint32_t folds, uint32_t fold,
                 bool held_out, uint64_t seed, bool stratify,
                 const struct permutation_stop *stop, struct onepot_error *error,
                 struct onepot_archive **ret_part);

/* Like onepot_loader_new. awaits_order: nothing is read before
 * onepot_loader_order but, with npy, the first sample, which tells the type. */
int loader_new(const struct onepot_archive *archive,
               const struct onepot_loader_options *options, bool awaits_order,
               struct onepot_error *error, struct onepot_loader **ret_loader);

/*
 * Like onepot_loader_next, but for this epoch only. Returns 0 at its end, or if the loader went
 * to another epoch. Every thread that calls gets that 0, however many there are.
 */
int loader_next_of(struct onepot_loader *loader, uint64_t epoch, int timeout_ms,
                   struct onepot_error *error, const struct onepot_batch **ret_batch);

/*
 * A batch without a loader, in memory of the caller, laid out as in a loader's slab (slab.h):
 * data, then tables. onepot_archive_gather and onepot_archive_images make the data alone.
 */
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
