/*
 * The order of one epoch for one rank. An order never changes. The next epoch is another order,
 * which another thread may make while this one is in use.
 */
#ifndef ONEPOT_SAMPLER_H
#define ONEPOT_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "onepot.h"
#include "permutation.h"

#define ORDER_DEFAULT_WINDOW 64

struct order;

struct order_options {
    uint64_t samples;
    uint64_t rank, world_size; /* rank < world_size */
    uint64_t seed;             /* of this epoch: the seed plus the epoch's number */
    bool shuffle, drop_last;
    uint64_t worker, workers; /* worker < workers */
    uint64_t block, window;   /* block 0: a true shuffle */
    /*
     * NULL, or the caller's order of one epoch: `samples` numbers, of which element i of the
     * epoch is the i-th. It is not copied. `shuffle` is false then.
     */
    const uint64_t *list;
    uint64_t list_epoch;
    const struct permutation_stop *stop; /* NULL: a shuffle is not stopped */
};

/* -EINVAL: an option is out of range. -ENOMEM, also for more than the job's memory. -ECANCELED.
 */
int order_new(const struct order_options *options, struct order **ret_order);
void order_free(struct order *order); /* NULL is fine */

/* The number of elements: it depends on the options, not on the shuffle. */
uint64_t order_length(const struct order_options *options);

/* The sample of element i < order_length. *ret_valid is false for padding. */
uint64_t order_at(const struct order *order, uint64_t i, bool *ret_valid);

/* Put an error of order_new into words. Returns `err`. */
int order_error(struct onepot_error *error, int err, const struct order_options *options);

/* ---- the public sampler, in steps: for callers that can be interrupted ---- */

/* Like onepot_sampler_new. -ECANCELED: it was stopped. */
int sampler_new(const struct onepot_sampler_options *options,
                const struct permutation_stop *stop, struct onepot_error *error,
                struct onepot_sampler **ret_sampler);

/* The options of another epoch's order. */
void sampler_options_of(const struct onepot_sampler *sampler, uint64_t epoch,
                        struct order_options *ret_options);

/* Go to that epoch with its order, which is taken over. */
void sampler_switch(struct onepot_sampler *sampler, uint64_t epoch, struct order *order);

/* If *world_size is 0, take rank and world size from the environment of the launcher. */
int rank_find(uint64_t *rank, uint64_t *world_size, struct onepot_error *error);

#endif
