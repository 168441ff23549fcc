/*
 * DistributedSampler's arithmetic over a permutation. A sampler holds only its own elements: of
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

#define LITTLE_BYTES (UINT64_C(64) << 20) /* that any job has */

struct onepot_sampler {
    struct onepot_sampler_options options; /* completed */
    const uint64_t *list;                  /* the caller's; or NULL */
    uint64_t length;
    uint64_t first, step;      /* place of element i in the epoch: first + i * step */
    struct permutation *taken; /* its own elements; NULL: not shuffled */
};

/* ---- options ---- */

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

/* Bytes of each element of a shuffle. */
static uint64_t sampler_item_bytes(const struct onepot_sampler_options *o)
{
    return o->samples > UINT64_C(1) << 32 ? 8 : 4;
}

/* Put an error into words. Returns `err`. */
static int sampler_error(struct onepot_error *error, int err,
                         const struct onepot_sampler_options *o)
{
    if (err == -ENOMEM)
        return error_set(error, err,
                         "no memory for an order of %" PRIu64
                         " samples: a shuffle takes %" PRIu64 " bytes for each",
                         o->samples, sampler_item_bytes(o));
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

/*
 * Complete the options: defaults, and rank and world size from the environment of the launcher
 * if the latter is 0. The number of elements depends on them, not on the shuffle. -EINVAL: an
 * option is out of range.
 */
static int sampler_plan(struct onepot_sampler_options *o, struct onepot_error *error,
                        uint64_t *ret_length)
{
    uint64_t stride, last;
    int r = o->world_size == 0 ? onepot_launcher_rank(&o->rank, &o->world_size, error) : 0;
    if (r < 0)
        return r;
    o->workers = o->workers ? o->workers : 1;
    o->window = o->window ? o->window : SAMPLER_WINDOW;
    /* The place of the last element must not overflow; nor must samples + world_size. */
    if (o->rank >= o->world_size || o->worker >= o->workers ||
        __builtin_mul_overflow(o->world_size, o->workers, &stride) ||
        __builtin_add_overflow(o->samples, stride, &last))
        return sampler_error(error, -EINVAL, o);
    bool rounds_up = !o->drop_last && o->samples % o->world_size != 0;
    uint64_t all = o->samples / o->world_size + rounds_up; /* of the rank's workers together */
    *ret_length = all / o->workers + (o->worker < all % o->workers);
    return 0;
}

/* ---- the order ---- */

/* Memory is promised freely, and taken away from the whole job once it is used up. */
static bool sampler_fits(const struct onepot_sampler_options *o)
{
    uint64_t bytes;
    return !__builtin_mul_overflow(o->samples, sampler_item_bytes(o), &bytes) &&
           (bytes < LITTLE_BYTES || bytes < budget_memory_bytes(""));
}

static int sampler_shuffle(struct onepot_sampler *s, const struct permutation_stop *stop)
{
    const struct onepot_sampler_options *o = &s->options;
    uint64_t seed = o->seed + o->epoch;
    if (!sampler_fits(o))
        return -ENOMEM;
    int r = o->block
                ? permutation_new_blocks(o->samples, seed, o->block, o->window, stop, &s->taken)
                : permutation_new(o->samples, seed, stop, &s->taken);
    if (r == 0 && (s->step > 1 || s->first > 0))
        r = permutation_take(s->taken, s->first, s->step, s->length, stop);
    return r;
}

int sampler_new(const struct onepot_sampler_options *options, const uint64_t *list,
                const struct permutation_stop *stop, struct onepot_error *error,
                struct onepot_sampler **ret_sampler)
{
    struct onepot_sampler s = {.options = *options, .list = list};
    int r = sampler_plan(&s.options, error, &s.length);
    if (r < 0)
        return r;
    s.first = s.options.rank + s.options.worker * s.options.world_size;
    s.step = s.options.world_size * s.options.workers;
    struct onepot_sampler *sampler = malloc(sizeof(*sampler));
    if (!sampler)
        return error_set(error, -ENOMEM, "out of memory");
    if (!list && !s.options.no_shuffle && s.length > 0)
        r = sampler_shuffle(&s, stop);
    *sampler = s;
    if (r < 0) {
        onepot_sampler_free(sampler);
        return sampler_error(error, r, &s.options);
    }
    *ret_sampler = sampler;
    return 0;
}

int onepot_sampler_new(const struct onepot_sampler_options *options, struct onepot_error *error,
                       struct onepot_sampler **ret_sampler)
{
    struct onepot_sampler_options o = {0};
    int r = options_read(&o, sizeof(o), options, error);
    return r < 0 ? r : sampler_new(&o, NULL, NULL, error, ret_sampler);
}

void onepot_sampler_free(struct onepot_sampler *sampler)
{
    if (!sampler)
        return;
    permutation_free(sampler->taken);
    free(sampler);
}

/* ---- questions ---- */

uint64_t onepot_sampler_length(const struct onepot_sampler *sampler)
{
    return sampler->length;
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
    return sampler->options.epoch;
}

int onepot_sampler_set_epoch(struct onepot_sampler *sampler, uint64_t epoch)
{
    struct onepot_sampler_options options = sampler->options;
    struct onepot_sampler *other;
    if (epoch == options.epoch)
        return 0;
    options.epoch = epoch;
    int r = sampler_new(&options, NULL, NULL, NULL, &other);
    if (r < 0)
        return r;
    permutation_free(sampler->taken);
    *sampler = *other;
    free(other);
    return 0;
}

/* The sample of element i. */
static uint64_t sampler_at(const struct onepot_sampler *s, uint64_t i, bool *ret_valid)
{
    uint64_t place = s->first + i * s->step;
    *ret_valid = place < s->options.samples;
    if (s->taken)
        return permutation_at(s->taken, i);
    place %= s->options.samples;
    return s->list ? s->list[place] : place;
}

int onepot_sampler_get(const struct onepot_sampler *sampler, uint64_t first, uint64_t count,
                       uint64_t *ret_indices, uint8_t *ret_valid)
{
    if (first > sampler->length || count > sampler->length - first)
        return -ERANGE;
    for (uint64_t i = 0; i < count; i++) {
        bool valid;
        ret_indices[i] = sampler_at(sampler, first + i, &valid);
        if (ret_valid)
            ret_valid[i] = valid;
    }
    return 0;
}
