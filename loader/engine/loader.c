/*
 * The public loader: its options, checked and completed from the archive and the job's
 * resources; its life, its batches, and the words of its errors; its position, as numbers from
 * which a later loader goes on, and what was delivered.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "accelerator.h"
#include "batch_fit.h"
#include "budget.h"
#include "cpus.h"
#include "engine.h"
#include "epoch.h"
#include "error.h"
#include "loader_clock.h"
#include "numbers.h"
#include "onepot_device.h"
#include "rank_share.h"
#include "dataset.h"

#define RUN_MAPPED 64u   /* samples that a thread takes at a time, */
#define RUN_READ 4u      /* and where each may wait for a device, or is decoded */
#define THREADS_READ 32u /* reads in flight that suit slow storage */
#define AHEAD_LEAST 4u
#define IO_TIMEOUT_MS 60000u

struct onepot_loader {
    struct onepot_archive *archive; /* its own handle */
    struct engine_options options;
    _Atomic(struct engine *) engine;
    _Atomic int owner;    /* the process that has the engine, or is about to make one */
    pthread_mutex_t lock; /* for seeks, and what changes with them: seed and digest */
    struct loader_devices *devices; /* NULL: batches are for the host (accelerator.h) */
    struct images_plan *images;     /* or NULL */
    struct images_budget budget;    /* of pictures that are decoded */
    uint64_t seed;
    _Atomic uint64_t length; /* as options.length, which the lock guards */
    uint64_t *list;          /* the caller's order of an epoch, or NULL; */
    uint64_t list_hash;      /* and what tells it from others, not 0 */
    bool has_digest;
    uint8_t digest[ONEPOT_DIGEST_BYTES];
};

/* ---- defaults ---- */

static uint64_t free_bytes(void)
{
    return budget_free_bytes("");
}

/* How many batches to have ahead: enough for two runs for every thread. */
static uint32_t ahead_for(const struct engine_options *o)
{
    uint64_t samples = 2 * o->run * o->threads;
    uint64_t ahead = samples / o->batch_size + 2;
    return (uint32_t)min_u64(max_u64(ahead, AHEAD_LEAST), ENGINE_AHEAD_MAX);
}

static void choose_threads(const struct onepot_loader_options *given, struct engine_options *o)
{
    bool mapped = dataset_is_mapped(o->fill.archive->dataset);
    o->threads = given->threads ? given->threads : rank_share_cpus();
    o->run = o->fill.images ? RUN_READ : RUN_MAPPED;
    o->cpus = given->threads || !mapped ? 0 : cpus_allowed();
    if (!mapped) {
        o->mapped_threads = o->threads;
        o->mapped_run = o->run;
        o->threads = given->threads ? given->threads : max_u32(o->threads, THREADS_READ);
        o->run = RUN_READ;
    }
    o->ahead = given->prefetch ? given->prefetch : ahead_for(o);
}

/* ---- options ---- */

static int loader_check_options(const struct onepot_loader_options *o,
                                struct onepot_error *error)
{
    if (o->batch_size == 0 || o->batch_size > UINT32_MAX)
        return error_set(error, -EINVAL, "a batch has 1 to %" PRIu32 " samples", UINT32_MAX);
    if (o->threads > ENGINE_THREADS_MAX)
        return error_set(error, -EINVAL, "more than %u threads", ENGINE_THREADS_MAX);
    if (o->prefetch > ENGINE_AHEAD_MAX)
        return error_set(error, -EINVAL, "more than %u batches ahead", ENGINE_AHEAD_MAX);
    if ((o->npy != 0) + (o->decode != NULL) + (o->images != NULL) > 1)
        return error_set(error, -EINVAL, "npy, images and a decoder exclude each other");
    if (o->decode && o->decoded_bytes == 0)
        return error_set(error, -EINVAL,
                         "the room for what is decoded is missing (decoded_bytes)");
    return fill_check_align(o->align, error);
}

static int plan_fill(const struct onepot_loader_options *given, struct fill_plan *fill,
                     struct onepot_error *error)
{
    fill->align = given->align ? given->align : BATCH_FIT_ALIGN;
    fill->verify = given->verify;
    fill->skip_errors = given->skip_errors;
    /* A single rank reads all samples again in the next epoch, and no order lets a cache keep
     * more for its start than fits. With several ranks, each epoch wants another part. */
    fill->foresee = given->world_size > 1 && !dataset_is_mapped(fill->archive->dataset);
    fill->npy = given->npy;
    fill->decode = given->decode;
    fill->decode_ctx = given->decode_ctx;
    if (fill->npy)
        return fill_npy_kind(fill, error);
    if (fill->images) {
        fill->stride = fill->images->all_bytes;
        return 0;
    }
    fill->stride =
        fill->decode ? given->decoded_bytes : onepot_archive_common_size(fill->archive);
    return 0;
}

/* The elements of such an order that are delivered. */
static uint64_t loader_length(const struct order_options *order, uint64_t batch_size)
{
    uint64_t length = order_length(order);
    return order->drop_last ? length - length % batch_size : length;
}

static int plan_order(struct onepot_loader_options *given, struct engine_options *o,
                      struct onepot_error *error)
{
    int r = rank_find(&given->rank, &given->world_size, error);
    if (r < 0)
        return r;
    o->order = (struct order_options){
        .samples = o->fill.archive->count,
        .rank = given->rank,
        .world_size = given->world_size,
        .seed = given->seed,
        .shuffle = !given->no_shuffle,
        .drop_last = given->drop_last,
        .workers = 1,
        .block = given->block,
        .window = given->window ? given->window : ORDER_DEFAULT_WINDOW,
    };
    if (given->rank >= given->world_size)
        return order_error(error, -EINVAL, &o->order);
    o->batch_size = given->batch_size;
    o->length = loader_length(&o->order, o->batch_size);
    return 0;
}

/*
 * Complete the options of an engine, whose `fill.archive` is set, from the caller's options and
 * the job's resources. Writes rank and world size to `given`.
 */
static int loader_plan(struct onepot_loader_options *given, struct engine_options *o,
                       struct onepot_error *error)
{
    int r = loader_check_options(given, error);
    if (r == 0)
        r = plan_order(given, o, error);
    if (r == 0)
        r = plan_fill(given, &o->fill, error);
    if (r < 0)
        return r;
    choose_threads(given, o);
    uint32_t timeout_ms = given->io_timeout_ms ? given->io_timeout_ms : IO_TIMEOUT_MS;
    if (timeout_ms != ONEPOT_NEVER)
        o->io_timeout_ns = timeout_ms * UINT64_C(1000000);
    o->memory_bytes = given->memory_bytes;
    o->job_bytes = budget_cache_bytes();
    o->is_fixed = given->memory_bytes > 0;
    if (!given->memory_bytes) {
        o->memory_bytes = rank_share_bytes();
        o->free_bytes = free_bytes;
        o->left_bytes = budget_memory_bytes("") / 8;
    }
    o->memory = &slab_host_memory;
    return 0;
}

/* ---- life ---- */

static int loader_start(struct onepot_loader *loader, const struct place *place,
                        struct onepot_error *error)
{
    int r = loader->devices
                ? loader_accelerator->start(loader->devices, &loader->options, error)
                : 0;
    if (r < 0)
        return r;
    images_budget_init(&loader->budget, loader->options.memory_bytes, loader->options.threads);
    loader->options.fill.budget = &loader->budget;
    struct engine *engine;
    r = engine_new(&loader->options, place, &engine);
    if (r == -EAGAIN)
        return error_set(error, r, "no thread can be started: the limit is reached");
    if (r < 0)
        return error_set(error, r, "no memory for a loader");
    atomic_store(&loader->engine, engine);
    return 0;
}

static int loader_plan_images(struct onepot_loader *loader,
                              const struct onepot_loader_options *given,
                              struct onepot_error *error)
{
    if (!given->images)
        return 0;
    int r = images_plan_all(given->images, error, &loader->images);
    loader->options.fill.images = loader->images;
    return r;
}

static int loader_plan_devices(struct onepot_loader *loader,
                               const struct onepot_loader_options *given,
                               struct onepot_error *error)
{
    if (!given->device && !given->devices && !given->device_count) {
        if (given->convert || given->gather == ONEPOT_GATHER_DEVICE)
            return error_set(error, -EINVAL, "images and gathering need a device");
        return 0;
    }
    if (!loader_accelerator)
        return error_set(error, -ENODEV, "this onepot was built without devices");
    return loader_accelerator->plan(given, &loader->options, loader->images, error,
                                    &loader->devices);
}

int onepot_loader_new(const struct onepot_archive *archive,
                      const struct onepot_loader_options *options, struct onepot_error *error,
                      struct onepot_loader **ret_loader)
{
    struct onepot_loader_options given = {0};
    int r = options_read(&given, sizeof(given), options, error);
    if (r < 0)
        return r;
    struct onepot_loader *loader = calloc(1, sizeof(*loader));
    if (!loader || !(loader->archive = archive_share(archive))) {
        free(loader);
        return error_set(error, -ENOMEM, "no memory for a loader");
    }
    pthread_mutex_init(&loader->lock, NULL);
    atomic_init(&loader->owner, (int)getpid());
    loader->options.fill.archive = loader->archive;
    loader->seed = given.seed;
    r = loader_plan_images(loader, &given, error);
    if (r == 0)
        r = loader_plan(&given, &loader->options, error);
    if (r == 0)
        r = loader_plan_devices(loader, &given, error);
    atomic_init(&loader->length, loader->options.length);
    if (r == 0)
        r = loader_start(loader, &(struct place){.epoch = given.epoch}, error);
    if (r < 0) {
        onepot_loader_free(loader);
        return r;
    }
    *ret_loader = loader;
    return 0;
}

void onepot_loader_free(struct onepot_loader *loader)
{
    if (!loader)
        return;
    struct engine *engine = loader->engine;
    bool own = engine && engine_is_own(engine);
    engine_free(engine);
    if (loader->devices)
        loader_accelerator->close(loader->devices, own || !engine);
    if (loader->owner == (int)getpid())
        pthread_mutex_destroy(&loader->lock);
    onepot_archive_close(loader->archive);
    free(loader->list);
    free(loader->images);
    free(loader);
}

/* Makes a new lock, since a thread of the parent may have held the old one at the fork. */
static int loader_start_as_child(struct onepot_loader *loader, struct onepot_error *error)
{
    struct place place;
    pthread_mutex_init(&loader->lock, NULL);
    engine_place(loader->engine, &place);
    int r = loader_start(loader, &place, error);
    if (r < 0)
        atomic_store(&loader->owner, 0);
    return r;
}

/* In a child, the first thread makes a new engine, where the parent's was. */
static int loader_own_engine(struct onepot_loader *loader, struct onepot_error *error)
{
    while (!engine_is_own(loader->engine)) {
        int pid = (int)getpid(), owner = atomic_load(&loader->owner);
        if (owner != pid && atomic_compare_exchange_strong(&loader->owner, &owner, pid))
            return loader_start_as_child(loader, error);
        sched_yield();
    }
    return 0;
}

/* ---- batches ---- */

static int loader_say_full(const struct onepot_loader *loader, const struct engine_need *need,
                           struct onepot_error *error)
{
    struct onepot_stats stats = {0};
    char where[40] = "", parts[80] = "";
    engine_stats(loader->engine, &stats);
    if (loader->options.devices > 1) {
        snprintf(where, sizeof(where), " on %s",
                 loader_accelerator->name(loader->devices, need->device));
        snprintf(parts, sizeof(parts), ", of which each of %u devices may have the same part",
                 loader->options.devices);
    }
    return error_set(error, -ENOBUFS,
                     "the next batch needs %" PRIu64 " bytes%s, but batches that are kept have "
                     "%" PRIu64 " of %" PRIu64
                     "%s, or the job has no more for this process; release some, or allow more "
                     "(memory_bytes)",
                     need->bytes, where, stats.slab_bytes, stats.part_bytes, parts);
}

/* A batch with an error is released at once. */
static int loader_fail_batch(struct onepot_loader *loader, struct slab *slab,
                             struct onepot_error *error)
{
    const struct dataset *d = loader->archive->dataset;
    int r = slab->err;
    if (slab->lost)
        loader_accelerator->error(loader->devices, slab->device, error);
    else if (slab->abandoned)
        dataset_stalled(error, d, &d->records[slab->bad_record], slab->stalled_ns);
    else
        fill_error(error, r, d, slab->bad_record, slab->why);
    engine_release(slab);
    return r;
}

int loader_next_of(struct onepot_loader *loader, uint64_t epoch, int timeout_ms,
                   struct onepot_error *error, const struct onepot_batch **ret_batch)
{
    uint64_t deadline = UINT64_MAX;
    struct engine_need need = {0};
    struct slab *slab;
    int r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    if (timeout_ms >= 0)
        deadline = loader_now_ns(loader->archive->dataset) + (uint64_t)timeout_ms * 1000000u;
    uint64_t start_ns = loader_now_ns(loader->archive->dataset);
    if (loader->devices)
        loader_accelerator->wait(loader->devices);
    r = engine_take(loader->engine, epoch, deadline, &need, &slab);
    if (loader->devices)
        loader_accelerator->waited(loader->devices, r == 1 || r == -ETIMEDOUT,
                                   onepot_loader_epoch(loader, NULL),
                                   loader_now_ns(loader->archive->dataset) - start_ns);
    if (r == -ENOBUFS)
        return loader_say_full(loader, &need, error);
    if (r == -ETIME)
        return dataset_stalled(error, loader->archive->dataset,
                               &loader->archive->dataset->records[need.record],
                               loader->options.io_timeout_ns);
    if (r == -ETIMEDOUT)
        return error_set(error, r, "no batch was ready in time");
    if (r == -ENODATA)
        return error_set(error, r, "this epoch has no order yet");
    if (r < 0) { /* the device may have failed, which is more than a lack of memory */
        int why = loader->devices
                      ? loader_accelerator->error(loader->devices, need.device, error)
                      : 0;
        return why < 0 ? why : error_set(error, r, "no memory for the next batch");
    }
    if (r == 0)
        return r;
    if (slab->err)
        return loader_fail_batch(loader, slab, error);
    *ret_batch = &slab->batch;
    return 1;
}

int onepot_loader_next(struct onepot_loader *loader, int timeout_ms, struct onepot_error *error,
                       const struct onepot_batch **ret_batch)
{
    return loader_next_of(loader, ANY_EPOCH, timeout_ms, error, ret_batch);
}

void onepot_batch_release(const struct onepot_batch *batch)
{
    if (batch && atomic_fetch_sub(&slab_of(batch)->users, 1) == 1)
        engine_release(slab_of(batch));
}

void onepot_batch_keep(const struct onepot_batch *batch)
{
    atomic_fetch_add(&slab_of(batch)->users, 1);
}

uint64_t onepot_loader_batches(const struct onepot_loader *loader)
{
    uint64_t length = atomic_load(&loader->length), size = loader->options.batch_size;
    return length / size + (length % size != 0);
}

uint64_t onepot_loader_samples(const struct onepot_loader *loader)
{
    return atomic_load(&loader->length);
}

uint64_t onepot_loader_epoch(const struct onepot_loader *loader, uint64_t *ret_done)
{
    struct place place;
    engine_place(loader->engine, &place);
    if (ret_done)
        *ret_done = place.done;
    return place.epoch;
}

int onepot_loader_set_epoch(struct onepot_loader *loader, uint64_t epoch)
{
    struct place place;
    int r = loader_own_engine(loader, NULL);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    engine_place(loader->engine, &place);
    if (place.epoch != epoch || place.done != 0)
        r = engine_seek(loader->engine, &(struct place){.epoch = epoch}, &loader->options.order,
                        loader->options.length);
    pthread_mutex_unlock(&loader->lock);
    return r;
}

/* With the lock. Takes the list over, also on failure. -EINVAL: too many. */
static int loader_take_list(struct onepot_loader *loader, uint64_t epoch, uint64_t *list,
                            uint64_t count)
{
    struct order_options order = loader->options.order;
    uint64_t sum;
    if (__builtin_add_overflow(count, order.world_size, &sum)) {
        free(list);
        return -EINVAL;
    }
    order.samples = count;
    order.shuffle = false;
    order.list = list;
    order.list_epoch = epoch;
    uint64_t length = loader_length(&order, loader->options.batch_size);
    int r = engine_seek(loader->engine, &(struct place){.epoch = epoch}, &order, length);
    uint64_t *old = r < 0 ? list : loader->list;
    if (r == 0) {
        loader->list = list;
        loader->list_hash = XXH3_64bits(list, count * sizeof(*list)) | 1;
        loader->options.order = order;
        loader->options.length = length;
        atomic_store(&loader->length, length);
    }
    free(old);
    return r;
}

int onepot_loader_order(struct onepot_loader *loader, uint64_t epoch, const uint64_t *samples,
                        uint64_t count, struct onepot_error *error)
{
    uint64_t bytes;
    for (uint64_t i = 0; i < count; i++)
        if (samples[i] >= loader->archive->count)
            return error_set(error, -ERANGE, "there is no sample %" PRIu64, samples[i]);
    int r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow(count + 1, sizeof(*samples), &bytes))
        return error_set(error, -EINVAL, "too many samples for an order");
    uint64_t *list = malloc(bytes);
    if (!list)
        return error_set(error, -ENOMEM, "no memory for an order");
    if (count)
        memcpy(list, samples, count * sizeof(*list));
    pthread_mutex_lock(&loader->lock);
    r = loader_take_list(loader, epoch, list, count);
    pthread_mutex_unlock(&loader->lock);
    return r == 0 ? 0
                  : error_set(error, r, "%s for an order",
                              r == -EINVAL ? "too many samples" : "no memory");
}

int onepot_loader_npy(const struct onepot_loader *loader, struct onepot_npy *ret_npy)
{
    if (!loader->options.fill.npy)
        return -ENOTSUP;
    return result_write(ret_npy, &loader->options.fill.kind, sizeof(*ret_npy), NULL);
}

int onepot_loader_stats(struct onepot_loader *loader, struct onepot_stats *ret_stats)
{
    struct onepot_stats stats = {0};
    engine_stats(loader->engine, &stats);
    stats.prefetch = loader->options.ahead;
    stats.memory_bytes = loader->options.memory_bytes;
    dataset_cache_stats(loader->archive->dataset, &stats);
    return result_write(ret_stats, &stats, sizeof(stats), NULL);
}

int onepot_loader_transfer(struct onepot_loader *loader, bool previous,
                           struct onepot_error *error, struct onepot_transfer *ret_transfer)
{
    if (!loader->devices || !engine_is_own(loader->engine))
        return error_set(error, -ENOTSUP, "the loader has no device");
    return loader_accelerator->transfer(loader->devices, previous, error, ret_transfer);
}

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
