/*
 * DistributedSampler's arithmetic over a permutation. An order holds only its own elements: of
 * a shuffle of n samples for W ranks it keeps n/W numbers.
 */
#include "sampler.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "error.h"
#include "launcher.h"
#include "onepot.h"

/* ---- the order of an epoch ---- */

struct order {
    struct order_options options;
    uint64_t length;
    uint64_t first, step;      /* place of element i in the epoch: first + i * step */
    struct permutation *taken; /* this order's own elements; NULL: not shuffled */
};

#define LITTLE_BYTES (UINT64_C(64) << 20) /* that any job has */

/* Bytes of each element of a shuffle. */
static uint64_t order_item_bytes(const struct order_options *o)
{
    return o->samples > UINT64_C(1) << 32 ? 8 : 4;
}

/* Elements of a rank, all of its workers together. */
static uint64_t rank_length(const struct order_options *options)
{
    uint64_t whole = options->samples / options->world_size;
    bool rounds_up = !options->drop_last && options->samples % options->world_size != 0;
    return whole + rounds_up;
}

uint64_t order_length(const struct order_options *options)
{
    uint64_t all = rank_length(options);
    return all / options->workers + (options->worker < all % options->workers);
}

static int order_check_options(const struct order_options *o)
{
    uint64_t stride, last;
    if (o->world_size == 0 || o->rank >= o->world_size || o->workers == 0 ||
        o->worker >= o->workers || (o->block != 0 && o->window == 0))
        return -EINVAL;
    /* The place of the last element must not overflow; nor must samples + world_size. */
    if (__builtin_mul_overflow(o->world_size, o->workers, &stride) ||
        __builtin_add_overflow(o->samples, stride, &last))
        return -EINVAL;
    return 0;
}

/* Memory is promised freely, and taken away from the whole job once it is used up. */
static bool order_fits(const struct order_options *o)
{
    uint64_t bytes;
    return !__builtin_mul_overflow(o->samples, order_item_bytes(o), &bytes) &&
           (bytes < LITTLE_BYTES || bytes < budget_memory_bytes(""));
}

static int order_shuffle(struct order *order)
{
    const struct order_options *o = &order->options;
    if (!order_fits(o))
        return -ENOMEM;
    int r = o->block ? permutation_new_blocks(o->samples, o->seed, o->block, o->window, o->stop,
                                              &order->taken)
                     : permutation_new(o->samples, o->seed, o->stop, &order->taken);
    if (r == 0 && (order->step > 1 || order->first > 0))
        r = permutation_take(order->taken, order->first, order->step, order->length, o->stop);
    return r;
}

int order_new(const struct order_options *options, struct order **ret_order)
{
    int r = order_check_options(options);
    if (r < 0)
        return r;
    struct order *order = calloc(1, sizeof(*order));
    if (!order)
        return -ENOMEM;
    order->options = *options;
    order->length = order_length(options);
    order->first = options->rank + options->worker * options->world_size;
    order->step = options->world_size * options->workers;
    if (options->shuffle && order->length > 0)
        r = order_shuffle(order);
    if (r < 0) {
        order_free(order);
        return r;
    }
    *ret_order = order;
    return 0;
}

void order_free(struct order *order)
{
    if (!order)
        return;
    permutation_free(order->taken);
    free(order);
}

uint64_t order_at(const struct order *order, uint64_t i, bool *ret_valid)
{
    uint64_t place = order->first + i * order->step;
    *ret_valid = place < order->options.samples;
    if (order->taken)
        return permutation_at(order->taken, i);
    place %= order->options.samples;
    return order->options.list ? order->options.list[place] : place;
}

/* ---- the public sampler ---- */

struct onepot_sampler {
    struct order_options options;
    uint64_t seed, epoch;
    struct order *order;
};

int onepot_launcher_rank(uint64_t *ret_rank, uint64_t *ret_world_size,
                         struct onepot_error *note)
{
    struct launcher launcher;
    struct fault fault = {0};
    int r = launcher_find(&fault, &launcher);
    if (r < 0)
        return error_from_fault(note, r, &fault, "environment");
    *ret_rank = launcher.rank;
    *ret_world_size = launcher.world;
    if (!launcher.note[0])
        return 0;
    error_set(note, 0, "%s", launcher.note);
    return 1;
}

int rank_find(uint64_t *rank, uint64_t *world_size, struct onepot_error *error)
{
    int r = *world_size == 0 ? onepot_launcher_rank(rank, world_size, error) : 0;
    return r < 0 ? r : 0;
}

int order_error(struct onepot_error *error, int err, const struct order_options *o)
{
    if (err == -ENOMEM)
        return error_set(error, err,
                         "no memory for an order of %" PRIu64
                         " samples: a shuffle takes %" PRIu64 " bytes for each",
                         o->samples, order_item_bytes(o));
    if (err == -ECANCELED)
        return error_set(error, err, "interrupted");
    if (o->rank >= o->world_size)
        return error_set(error, err, "rank %" PRIu64 " is not below the world size %" PRIu64,
                         o->rank, o->world_size);
    if (o->worker >= o->workers)
        return error_set(error, err,
                         "worker %" PRIu64 " is not below the number of workers %" PRIu64,
                         o->worker, o->workers);
    return error_set(error, err, "more ranks, workers and samples than 64 bits can count");
}

static void order_options_from(const struct onepot_sampler_options *o,
                               struct order_options *ret)
{
    *ret = (struct order_options){
        .samples = o->samples,
        .rank = o->rank,
        .world_size = o->world_size,
        .seed = o->seed + o->epoch,
        .shuffle = !o->no_shuffle,
        .drop_last = o->drop_last,
        .worker = o->worker,
        .workers = o->workers ? o->workers : 1,
        .block = o->block,
        .window = o->window ? o->window : ORDER_DEFAULT_WINDOW,
    };
}

int sampler_new(const struct onepot_sampler_options *options,
                const struct permutation_stop *stop, struct onepot_error *error,
                struct onepot_sampler **ret_sampler)
{
    struct onepot_sampler_options o = {0};
    int r = options_read(&o, sizeof(o), options, error);
    if (r == 0)
        r = rank_find(&o.rank, &o.world_size, error);
    if (r < 0)
        return r;
    struct onepot_sampler *sampler = calloc(1, sizeof(*sampler));
    if (!sampler)
        return error_set(error, -ENOMEM, "out of memory");
    sampler->seed = o.seed;
    sampler->epoch = o.epoch;
    order_options_from(&o, &sampler->options);
    sampler->options.stop = stop;
    r = order_new(&sampler->options, &sampler->order);
    sampler->options.stop = NULL;
    if (r < 0) {
        order_error(error, r, &sampler->options);
        free(sampler);
        return r;
    }
    *ret_sampler = sampler;
    return 0;
}

int onepot_sampler_new(const struct onepot_sampler_options *options, struct onepot_error *error,
                       struct onepot_sampler **ret_sampler)
{
    return sampler_new(options, NULL, error, ret_sampler);
}

void onepot_sampler_free(struct onepot_sampler *sampler)
{
    if (!sampler)
        return;
    order_free(sampler->order);
    free(sampler);
}

uint64_t onepot_sampler_length(const struct onepot_sampler *sampler)
{
    return sampler->order->length;
}

uint64_t onepot_sampler_rank(const struct onepot_sampler *sampler)
{
    return sampler->options.rank;
}

uint64_t onepot_sampler_world_size(const struct onepot_sampler *sampler)
{
    return sampler->options.world_size;
}

uint64_t onepot_sampler_epoch(const struct onepot_sampler *sampler)
{
    return sampler->epoch;
}

void sampler_options_of(const struct onepot_sampler *sampler, uint64_t epoch,
                        struct order_options *ret_options)
{
    *ret_options = sampler->options;
    ret_options->seed = sampler->seed + epoch;
}

void sampler_switch(struct onepot_sampler *sampler, uint64_t epoch, struct order *order)
{
    order_free(sampler->order);
    sampler->order = order;
    sampler->epoch = epoch;
}

int onepot_sampler_set_epoch(struct onepot_sampler *sampler, uint64_t epoch)
{
    struct order_options options;
    struct order *order;
    if (epoch == sampler->epoch)
        return 0;
    sampler_options_of(sampler, epoch, &options);
    int r = order_new(&options, &order);
    if (r == 0)
        sampler_switch(sampler, epoch, order);
    return r;
}

int onepot_sampler_get(const struct onepot_sampler *sampler, uint64_t first, uint64_t count,
                       uint64_t *ret_indices, uint8_t *ret_valid)
{
    const struct order *order = sampler->order;
    if (first > order->length || count > order->length - first)
        return -ERANGE;
    for (uint64_t i = 0; i < count; i++) {
        bool valid;
        ret_indices[i] = order_at(order, first + i, &valid);
        if (ret_valid)
            ret_valid[i] = valid;
    }
    return 0;
}
