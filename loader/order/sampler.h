/*
 * The order of one epoch, as a rank sees it. It never changes: the next epoch is another
 * order, which another thread may make while this one is in use.
 */
#ifndef ONEPOT_SAMPLER_H
#define ONEPOT_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "onepot.h"

#define ORDER_DEFAULT_WINDOW 64

struct order;

struct order_options {
    uint64_t samples;
    uint64_t rank, world_size; /* rank < world_size */
    uint64_t seed;             /* of the epoch: the seed plus its number */
    bool shuffle, drop_last;
    uint64_t worker, workers; /* worker < workers */
    uint64_t block, window;   /* block 0: a true shuffle */
};

/* -EINVAL for what is out of range, -ENOMEM. */
int order_new(const struct order_options *options, struct order **ret_order);
void order_free(struct order *order); /* NULL is fine */

/* How many elements: a function of the options, not of the shuffle. */
uint64_t order_length(const struct order_options *options);

/* Element i < order_length: the index of its sample, and whether it is none of the padding. */
uint64_t order_at(const struct order *order, uint64_t i, bool *ret_valid);

/* The words for an error of order_new; returns `err`. */
int order_error(struct onepot_error *error, int err, const struct order_options *options);

/* Where *world_size is 0: rank and world size by the environment of the launcher. */
int rank_find(uint64_t *rank, uint64_t *world_size, struct onepot_error *error);

#endif
