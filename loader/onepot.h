/*
 * libonepot: samples of packed archives, in the order of training, as batches in memory.
 *
 * Conventions, for every function here:
 *
 * - Functions return 0 or a negative errno; results come back through trailing `ret_`
 *   parameters, which are written on success only. Where a function takes a `struct
 *   onepot_error *`, that may be NULL; on failure it is filled with one line that names
 *   file and member.
 * - Options are structs whose first member is their own size: set it to sizeof, leave
 *   what you don't need 0. A program that was built with an older header goes on working;
 *   one that sets what this library does not know yet gets -E2BIG.
 * - Nothing is printed, no signal is handled, there is no global state.
 * - Handles may be used by several threads at once where their section says so. After
 *   fork(2) a handle works on in the child; both processes close their own.
 *
 * Sizes are bytes; indices count samples from 0.
 */
#ifndef ONEPOT_H
#define ONEPOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONEPOT_API __attribute__((visibility("default")))

#define ONEPOT_ERROR_MAX 1024

struct onepot_error {
    int code; /* the negative errno that was returned */
    char text[ONEPOT_ERROR_MAX];
};

/* "0.1.0" */
ONEPOT_API const char *onepot_version(void);

/* ---- sampler: which sample comes when ---- */

/*
 * The order of torch.utils.data.DistributedSampler, bit for bit: element i of a rank is
 *
 *     a[(rank + i * world_size) % samples],  i < length
 *
 * where a is the permutation that torch.randperm makes with seed + epoch (or 0, 1, 2...
 * without shuffle), and the length is samples / world_size, rounded up, or down with
 * drop_last. Where rounding up made some ranks' streams longer than there are samples,
 * the surplus is padding: samples that came before. It is marked as not valid, so that an
 * evaluation can leave it out. Every rank has the same length, always.
 *
 * Threads: functions that take a const sampler may run at once, set_epoch may not.
 */
struct onepot_sampler;

struct onepot_sampler_options {
    size_t size;
    uint64_t samples;    /* how many there are */
    uint64_t rank;       /* < world_size */
    uint64_t world_size; /* 0: rank and size by the launcher's environment, else 0 of 1 */
    uint64_t seed;       /* the same on all ranks; seed + epoch seeds the shuffle */
    uint64_t epoch;
    bool no_shuffle;
    bool drop_last;
    /*
     * For several processes that read for one rank: process `worker` of `workers` has
     * every workers-th element of the rank's stream. 0 workers: one.
     */
    uint64_t worker, workers;
    /*
     * Block shuffle, for data larger than memory on slow storage; 0: a true shuffle.
     * Blocks of `block` neighbours are shuffled, then the samples within each `window`
     * (0: 64) blocks that follow one another. Not torch's order.
     */
    uint64_t block, window;
};

/*
 * -EINVAL: rank or worker out of range, or an environment that makes no sense; -ENOMEM.
 * Costs 4 bytes for each sample (8 from 2^32 on) while it shuffles, and keeps those of
 * the rank's own elements.
 */
ONEPOT_API int onepot_sampler_new(const struct onepot_sampler_options *options,
                                  struct onepot_error *error,
                                  struct onepot_sampler **ret_sampler);
ONEPOT_API void onepot_sampler_free(struct onepot_sampler *sampler); /* NULL is fine */

/* Elements in an epoch of this rank (and worker). */
ONEPOT_API uint64_t onepot_sampler_length(const struct onepot_sampler *sampler);

ONEPOT_API uint64_t onepot_sampler_rank(const struct onepot_sampler *sampler);
ONEPOT_API uint64_t onepot_sampler_world_size(const struct onepot_sampler *sampler);
ONEPOT_API uint64_t onepot_sampler_epoch(const struct onepot_sampler *sampler);

/* Shuffle for another epoch. -ENOMEM: then the epoch is the one before. */
ONEPOT_API int onepot_sampler_set_epoch(struct onepot_sampler *sampler, uint64_t epoch);

/*
 * Elements [first, first + count): their indices, and 1 or 0 for valid or padding (NULL:
 * not wanted). -ERANGE past the end.
 */
ONEPOT_API int onepot_sampler_get(const struct onepot_sampler *sampler, uint64_t first,
                                  uint64_t count, uint64_t *ret_indices, uint8_t *ret_valid);

#ifdef __cplusplus
}
#endif

#endif
