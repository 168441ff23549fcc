/*
 * A loader's position, as numbers from which a later loader goes on, and what was delivered.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "loader_private.h"
#include "view.h"

/* ---- position ---- */

static int find_digest(struct onepot_loader *loader, struct onepot_error *error, char *hex)
{
    if (!loader->has_digest) {
        int r = onepot_archive_digest(loader->archive, loader->digest);
        if (r < 0)
            return error_errno(error, r, loader->archive->dataset->pots[0]->path);
        loader->has_digest = true;
    }
    for (unsigned i = 0; i < ONEPOT_DIGEST_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", loader->digest[i]);
    return 0;
}

/* With the lock. */
static int present_state(struct onepot_loader *loader, struct onepot_error *error,
                         struct onepot_state *state)
{
    const struct order_options *o = &loader->options.order;
    struct place place;
    engine_place(loader->engine, &place);
    *state = (struct onepot_state){
        .size = sizeof(*state),
        .version = 1,
        .samples = loader->archive->count,
        .seed = loader->seed,
        .epoch = place.epoch,
        .done = place.done * o->world_size,
        .shuffle = o->shuffle,
        .drop_last = o->drop_last,
        .block = o->block,
        .window = o->block ? o->window : 0,
        .order = o->list && o->list_epoch == place.epoch ? loader->list_hash : 0,
    };
    return find_digest(loader, error, state->digest);
}

int onepot_loader_state(struct onepot_loader *loader, struct onepot_error *error,
                        struct onepot_state *ret_state)
{
    struct onepot_state state;
    int r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    r = present_state(loader, error, &state);
    pthread_mutex_unlock(&loader->lock);
    return r == 0 ? result_write(ret_state, &state, sizeof(state), error) : r;
}

/* With the lock. */
static int loader_restore_locked(struct onepot_loader *loader, const struct onepot_state *state,
                                 struct onepot_error *error)
{
    struct onepot_state now;
    uint64_t world = loader->options.order.world_size;
    int r = present_state(loader, error, &now);
    if (r < 0)
        return r;
    if (state->version != 1)
        return error_set(error, -EINVAL, "a state of version %" PRIu64 " is not known",
                         state->version);
    if (memcmp(state->digest, now.digest, sizeof(now.digest)) != 0 ||
        state->samples != now.samples)
        return error_set(
            error, -ESTALE,
            "the state belongs to another archive (digest %.32s, here %.32s) or to "
            "another selection of its samples",
            state->digest, now.digest);
    const struct order_options *order = &loader->options.order;
    uint64_t hash = order->list && order->list_epoch == state->epoch ? loader->list_hash : 0;
    if (state->order != hash && (state->order || state->done))
        return error_set(error, -EINVAL,
                         "the state was made with another order of epoch %" PRIu64,
                         state->epoch);
    if (state->shuffle != now.shuffle || state->drop_last != now.drop_last ||
        state->block != now.block || state->window != now.window)
        return error_set(error, -EINVAL, "the state was made with other options of the order");
    /* The end of an epoch is the same for any number of ranks, whatever their padding. */
    bool ended = !state->drop_last && state->done >= loader->options.order.samples;
    if (!ended && state->done % world != 0)
        return error_set(error, -EINVAL,
                         "%" PRIu64 " elements that are done can't be dealt to %" PRIu64
                         " ranks: the global batch must be the same",
                         state->done, world);
    loader->seed = loader->options.order.seed = state->seed;
    return engine_seek(
        loader->engine,
        &(struct place){.epoch = state->epoch,
                        .done = ended ? loader->options.length : state->done / world},
        &loader->options.order, loader->options.length);
}

int onepot_loader_restore(struct onepot_loader *loader, const struct onepot_state *state,
                          struct onepot_error *error)
{
    struct onepot_state then = {0};
    int r = options_read(&then, sizeof(then), state, error);
    if (r == 0)
        r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    r = loader_restore_locked(loader, &then, error);
    pthread_mutex_unlock(&loader->lock);
    return r;
}

/* ---- what was delivered ---- */

void onepot_loader_delivered(struct onepot_loader *loader,
                             struct onepot_delivered *ret_delivered)
{
    struct place place;
    engine_place(loader->engine, &place);
    *ret_delivered = place.delivered;
}

void onepot_archive_all(const struct onepot_archive *archive,
                        struct onepot_delivered *ret_delivered)
{
    *ret_delivered = (struct onepot_delivered){0};
    for (uint64_t i = 0; i < archive->count; i++)
        engine_delivered_count(ret_delivered, i);
}

void onepot_delivered_add(struct onepot_delivered *to, const struct onepot_delivered *more)
{
    to->samples += more->samples;
    to->sum_a += more->sum_a;
    to->sum_b += more->sum_b;
}
