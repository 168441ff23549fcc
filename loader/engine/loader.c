/*
 * The public loader: its life, its batches, and the words of its errors.
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
#include "budget.h"
#include "epoch.h"
#include "error.h"
#include "loader_clock.h"
#include "loader_private.h"
#include "view.h"

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
int loader_own_engine(struct onepot_loader *loader, struct onepot_error *error)
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
