/*
 * The public loader: options and defaults, the words of its errors, and where it is.
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

#include "budget.h"
#include "clock.h"
#include "cpus.h"
#include "engine.h"
#include "error.h"
#include "portion.h"
#include "trial.h"
#include "upload.h"
#include "view.h"

#define DEFAULT_ALIGN 64u
#define RUN_MAPPED 64u   /* samples that a thread takes at a time; */
#define RUN_READ 4u      /* where each may wait for a device */
#define THREADS_READ 32u /* reads in flight that slow storage likes */
#define AHEAD_LEAST 4u
#define ALIGN_MAX (1u << 20)
#define IO_TIMEOUT_MS 60000u

struct onepot_loader {
    struct onepot_archive *archive; /* its own handle */
    struct engine_options options;
    _Atomic(struct engine *) engine;
    _Atomic int owner;    /* the process whose engine it is, or that is about to make one */
    pthread_mutex_t lock; /* of seeks, and of what follows from them: seed and digest */
    struct onepot_device *device; /* NULL: batches are for the host */
    struct onepot_images images;  /* 0 channels: none are made */
    struct upload *upload;        /* the engine's memory, if there is a device */
    enum onepot_gather gather;
    uint64_t seed;
    bool has_digest;
    uint8_t digest[ONEPOT_DIGEST_BYTES];
};

/* ---- defaults ---- */

static uint64_t free_bytes(void)
{
    return budget_free_bytes("");
}

static bool is_mapped(const struct dataset *d)
{
    for (size_t i = 0; i < d->pot_count; i++)
        if (!d->maps[i] || !source_is_local(d->pots[i]->source))
            return false;
    return true;
}

/* How many batches are ahead: enough for every thread to have two runs to take. */
static uint32_t ahead_for(const struct engine_options *o)
{
    uint64_t samples = 2 * o->run * o->threads;
    uint64_t ahead = samples / (o->batch_size ? o->batch_size : 1) + 2;
    if (ahead < AHEAD_LEAST)
        ahead = AHEAD_LEAST;
    return ahead < ENGINE_AHEAD_MAX ? (uint32_t)ahead : ENGINE_AHEAD_MAX;
}

static void choose_threads(const struct onepot_loader_options *given, struct engine_options *o)
{
    bool mapped = is_mapped(o->fill.archive->dataset);
    o->threads = given->threads ? given->threads : portion_cpus();
    if (!given->threads && !mapped && o->threads < THREADS_READ)
        o->threads = THREADS_READ;
    o->cpus = given->threads || !mapped ? 0 : cpus_allowed();
    o->run = mapped ? RUN_MAPPED : RUN_READ;
    o->ahead = given->prefetch ? given->prefetch : ahead_for(o);
}

/* ---- options ---- */

static int check_options(const struct onepot_loader_options *o, struct onepot_error *error)
{
    if (o->batch_size == 0 || o->batch_size > UINT32_MAX)
        return error_set(error, -EINVAL, "a batch has 1 to %" PRIu32 " samples", UINT32_MAX);
    if (o->threads > ENGINE_THREADS_MAX)
        return error_set(error, -EINVAL, "more than %u threads", ENGINE_THREADS_MAX);
    if (o->prefetch > ENGINE_AHEAD_MAX)
        return error_set(error, -EINVAL, "more than %u batches ahead", ENGINE_AHEAD_MAX);
    if (o->align & (o->align - 1) || o->align > ALIGN_MAX)
        return error_set(error, -EINVAL, "an alignment of %u is no power of two up to %u",
                         o->align, ALIGN_MAX);
    if (o->npy && o->decode)
        return error_set(error, -EINVAL, "npy and a decoder exclude each other");
    if (o->decode && o->decoded_bytes == 0)
        return error_set(error, -EINVAL,
                         "the room for what is decoded is missing (decoded_bytes)");
    return 0;
}

static int plan_fill(const struct onepot_loader_options *given, struct fill_plan *fill,
                     struct onepot_error *error)
{
    fill->align = given->align ? given->align : DEFAULT_ALIGN;
    fill->verify = given->verify;
    fill->skip_errors = given->skip_errors;
    /* Of one rank the next epoch reads all, and no order of it lets a cache have more of it at
     * its start than there is room for; of several each wants another part. */
    fill->foresee = given->world_size > 1 && !is_mapped(fill->archive->dataset);
    fill->npy = given->npy;
    fill->decode = given->decode;
    fill->decode_ctx = given->decode_ctx;
    if (fill->npy)
        return fill_npy_kind(fill, error);
    fill->stride =
        fill->decode ? given->decoded_bytes : onepot_archive_common_size(fill->archive);
    return 0;
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
    o->length = order_length(&o->order);
    if (given->drop_last)
        o->length -= o->length % o->batch_size;
    return 0;
}

static int plan_all(struct onepot_loader_options *given, struct engine_options *o,
                    struct onepot_error *error)
{
    int r = check_options(given, error);
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
        o->memory_bytes = portion_bytes();
        o->free_bytes = free_bytes;
        o->left_bytes = budget_memory_bytes("") / 8;
    }
    o->memory = &slab_host_memory;
    return 0;
}

static int check_images(const struct onepot_images *images, const struct fill_plan *fill,
                        struct onepot_error *error)
{
    int r = images_check(images, error);
    if (r < 0)
        return r;
    uint64_t bytes = images_bytes_of_one(images);
    if (fill->stride != bytes)
        return error_set(error, -EINVAL,
                         "images have %" PRIu64 " bytes each, samples %" PRIu64
                         " (0: not all the same)",
                         bytes, fill->stride);
    return 0;
}

/* A device, and what it shall do. */
static int plan_device(struct onepot_loader *loader, const struct onepot_loader_options *given,
                       struct onepot_error *error)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct engine_options *o = &loader->options;
    int r = 0;
    if (!given->device) {
        if (given->images || given->gather == ONEPOT_GATHER_DEVICE)
            return error_set(error, -EINVAL, "images and gathering need a device");
        return 0;
    }
    if (given->images) {
        r = options_read(&loader->images, sizeof(loader->images), given->images, error);
        if (r == 0)
            r = check_images(&loader->images, &o->fill, error);
    }
    if (r == 0)
        r = device_share(given->device, error, &loader->device);
    if (r == 0)
        r = onepot_device_info(loader->device, error, &info);
    if (r < 0)
        return r;
    if (!info.kernels && (given->images || given->gather == ONEPOT_GATHER_DEVICE))
        return error_set(
            error, -ENOTSUP,
            "%s: this libonepot-cuda.so was built without nvcc: it makes no images "
            "and gathers nothing",
            info.name);
    o->memory = &upload_memory;
    loader->gather = given->gather;
    if (given->gather == ONEPOT_GATHER_AUTO && (info.is_host || !info.kernels))
        loader->gather = ONEPOT_GATHER_HOST;
    if (!given->memory_bytes && info.free_bytes / 4 < o->memory_bytes)
        o->memory_bytes = info.free_bytes / 4;
    return 0;
}

/* Is gathering by the device worth it, where that is open? And how much of it does it take? */
static bool try_gathering(struct onepot_loader *loader, struct locked *locked)
{
    struct onepot_error unseen;
    struct trial_result result;
    uint64_t peak = 0;
    bool open = loader->gather == ONEPOT_GATHER_AUTO;
    /* The peak first: it wakes the link up. */
    int r = open ? onepot_device_peak(loader->device, &unseen, &peak) : 0;
    if (r == 0)
        r = trial(loader->device, locked_bases(locked), loader->archive, &unseen, &result);
    if (r == 0)
        locked_set_width(locked, result.width);
    return !open || (r == 0 && trial_is_won(&result, peak, loader->options.threads));
}

/* Archives that the device collects batches from; NULL: the host does, by choice. */
static int lock_archives(struct onepot_loader *loader, struct onepot_error *error,
                         struct locked **ret_locked)
{
    const struct fill_plan *fill = &loader->options.fill;
    struct locked *locked = NULL;
    struct onepot_error unseen;
    uint64_t part = loader->gather == ONEPOT_GATHER_AUTO ? 8 : 2;
    *ret_locked = NULL;
    if (!error)
        error = &unseen;
    if (loader->gather == ONEPOT_GATHER_HOST)
        return 0;
    int r = fill->npy || fill->decode || fill->verify
                ? error_set(error, -EINVAL,
                            "a device gathers bytes as they are, without npy, decode or verify")
                : locked_new(loader->device, loader->archive,
                             budget_memory_bytes("") / part / portion_ranks(), error, &locked);
    if (r == 0 && !try_gathering(loader, locked)) {
        locked_free(locked);
        locked = NULL;
    }
    *ret_locked = locked;
    return loader->gather == ONEPOT_GATHER_AUTO ? 0 : r;
}

/* After a fork the device is the parent's: one of our own in its place. */
static int own_device(struct onepot_loader *loader, struct onepot_error *error)
{
    struct onepot_error unseen;
    struct onepot_device *own;
    int r = device_share(loader->device, error ? error : &unseen, &own);
    if (r < 0)
        return r;
    onepot_device_close(loader->device);
    loader->device = own;
    return 0;
}

/* Another upload each time: after a fork the old one is the parent's. */
static int start_upload(struct onepot_loader *loader, struct onepot_error *error)
{
    struct upload_options options = {
        .images = loader->images.channels ? &loader->images : NULL,
        .batch_size = loader->options.batch_size,
    };
    int r = own_device(loader, error);
    options.device = loader->device;
    if (r == 0)
        r = lock_archives(loader, error, &options.locked);
    if (r == 0)
        r = upload_new(&options, error, &loader->upload);
    if (r < 0)
        return r;
    loader->options.fill.bases = options.locked ? locked_bases(options.locked) : NULL;
    upload_keep(loader->upload);
    loader->options.memory_ctx = loader->upload;
    return 0;
}

static int start(struct onepot_loader *loader, const struct place *place,
                 struct onepot_error *error)
{
    int r = loader->device ? start_upload(loader, error) : 0;
    if (r < 0)
        return r;
    struct engine *engine;
    r = engine_new(&loader->options, place, &engine);
    if (r == -EAGAIN)
        return error_set(error, r, "no thread can be started: the limit is reached");
    if (r < 0)
        return error_set(error, r, "no memory for a loader");
    atomic_store(&loader->engine, engine);
    return 0;
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
    r = plan_all(&given, &loader->options, error);
    if (r == 0)
        r = plan_device(loader, &given, error);
    if (r == 0)
        r = start(loader, &(struct place){.epoch = given.epoch}, error);
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
    if (own || !engine)
        upload_close(loader->upload);
    if (loader->owner == (int)getpid())
        pthread_mutex_destroy(&loader->lock);
    onepot_device_close(loader->device);
    onepot_archive_close(loader->archive);
    free(loader);
}

/* A thread of the parent may have held the lock when it forked. */
static int start_as_child(struct onepot_loader *loader, struct onepot_error *error)
{
    struct place place;
    pthread_mutex_init(&loader->lock, NULL);
    engine_place(loader->engine, &place);
    int r = start(loader, &place, error);
    if (r < 0)
        atomic_store(&loader->owner, 0);
    return r;
}

/* In a child: an engine of its own, where the parent's was; made by the thread that is first.
 */
static int own_engine(struct onepot_loader *loader, struct onepot_error *error)
{
    int pid = (int)getpid();
    while (!engine_is_own(loader->engine)) {
        int owner = atomic_load(&loader->owner);
        if (owner != pid && atomic_compare_exchange_strong(&loader->owner, &owner, pid))
            return start_as_child(loader, error);
        sched_yield();
    }
    return 0;
}

/* ---- batches ---- */

static int full(const struct onepot_loader *loader, uint64_t need, struct onepot_error *error)
{
    struct engine_stats stats;
    engine_stats(loader->engine, &stats);
    return error_set(error, -ENOBUFS,
                     "the next batch needs %" PRIu64 " bytes, but batches that are kept have "
                     "%" PRIu64 " of %" PRIu64
                     ", or the job has no more for this process; release some, or allow "
                     "more (memory_bytes)",
                     need, stats.slab_bytes, stats.part_bytes);
}

/* A batch with an error goes back at once. */
static int hand_back(struct onepot_loader *loader, struct slab *slab,
                     struct onepot_error *error)
{
    const struct dataset *d = loader->archive->dataset;
    int r = slab->err;
    if (slab->lost)
        upload_error(loader->upload, error);
    else if (slab->abandoned)
        dataset_stalled(error, d, &d->records[slab->bad_record], slab->stalled_ns);
    else
        dataset_error(error, r, d, &d->records[slab->bad_record]);
    engine_release(slab);
    return r;
}

int onepot_loader_next(struct onepot_loader *loader, int timeout_ms, struct onepot_error *error,
                       const struct onepot_batch **ret_batch)
{
    uint64_t need = 0, deadline = UINT64_MAX;
    struct slab *slab;
    int r = own_engine(loader, error);
    if (r < 0)
        return r;
    if (timeout_ms >= 0)
        deadline = now_ns() + (uint64_t)timeout_ms * 1000000u;
    uint64_t start_ns = now_ns();
    if (loader->device)
        loader->device->type->range("onepot wait");
    r = engine_take(loader->engine, deadline, &need, &slab);
    if (loader->device)
        loader->device->type->range(NULL);
    if (loader->upload && (r == 1 || r == -ETIMEDOUT))
        upload_waited(loader->upload, onepot_loader_epoch(loader, NULL), now_ns() - start_ns);
    if (r == -ENOBUFS)
        return full(loader, need, error);
    if (r == -ETIME)
        return dataset_stalled(error, loader->archive->dataset,
                               &loader->archive->dataset->records[need],
                               loader->options.io_timeout_ns);
    if (r == -ETIMEDOUT)
        return error_set(error, r, "no batch was ready in time");
    if (r < 0 && (!loader->upload || upload_error(loader->upload, error) == 0))
        return error_set(error, r, "no memory for the next batch");
    if (r <= 0)
        return r;
    if (slab->err)
        return hand_back(loader, slab, error);
    *ret_batch = &slab->batch;
    return 1;
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
    const struct engine_options *o = &loader->options;
    return o->length / o->batch_size + (o->length % o->batch_size != 0);
}

uint64_t onepot_loader_samples(const struct onepot_loader *loader)
{
    return loader->options.length;
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
    int r = own_engine(loader, NULL);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    engine_place(loader->engine, &place);
    if (place.epoch != epoch || place.done != 0)
        engine_seek(loader->engine, &(struct place){.epoch = epoch}, loader->seed);
    pthread_mutex_unlock(&loader->lock);
    return 0;
}

int onepot_loader_npy(const struct onepot_loader *loader, struct onepot_npy *ret_npy)
{
    size_t size = ret_npy->size;
    if (!loader->options.fill.npy)
        return -ENOTSUP;
    struct onepot_npy npy = loader->options.fill.kind;
    npy.size = size;
    memcpy(ret_npy, &npy, size < sizeof(npy) ? size : sizeof(npy));
    return 0;
}

void onepot_loader_stats(struct onepot_loader *loader, struct onepot_stats *ret_stats)
{
    struct engine_stats e;
    size_t size = ret_stats->size;
    engine_stats(loader->engine, &e);
    struct onepot_stats stats = {
        .size = size,
        .batches = e.batches,
        .samples = e.samples,
        .bytes = e.bytes,
        .wait_ns = e.wait_ns,
        .gather_ns = e.gather_ns,
        .skipped = e.skipped,
        .slab_bytes = e.slab_bytes,
        .threads = e.threads,
        .prefetch = loader->options.ahead,
        .memory_bytes = loader->options.memory_bytes,
        .part_bytes = e.part_bytes,
    };
    dataset_cache_stats(loader->archive->dataset, &stats);
    memcpy(ret_stats, &stats, size < sizeof(stats) ? size : sizeof(stats));
}

int onepot_loader_transfer(struct onepot_loader *loader, bool previous,
                           struct onepot_error *error, struct onepot_transfer *ret_transfer)
{
    struct onepot_transfer transfer;
    size_t size = ret_transfer->size;
    uint64_t peak = 0;
    if (!loader->upload || !engine_is_own(loader->engine))
        return error_set(error, -ENOTSUP, "the loader has no device");
    int r = onepot_device_peak(loader->device, error, &peak);
    if (r < 0 && r != -ENOMEM) /* the training has it all: no reason to fail */
        return r;
    upload_transfer(loader->upload, previous, &transfer);
    transfer.size = size;
    transfer.peak_bytes_per_second = peak;
    memcpy(ret_transfer, &transfer, size < sizeof(transfer) ? size : sizeof(transfer));
    return 0;
}

/* ---- where it is ---- */

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
        .samples = o->samples,
        .seed = loader->seed,
        .epoch = place.epoch,
        .done = place.done * o->world_size,
        .shuffle = o->shuffle,
        .drop_last = o->drop_last,
        .block = o->block,
        .window = o->block ? o->window : 0,
    };
    return find_digest(loader, error, state->digest);
}

int onepot_loader_state(struct onepot_loader *loader, struct onepot_error *error,
                        struct onepot_state *ret_state)
{
    struct onepot_state state;
    size_t size = ret_state->size;
    int r = own_engine(loader, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    r = present_state(loader, error, &state);
    pthread_mutex_unlock(&loader->lock);
    if (r < 0)
        return r;
    state.size = size;
    memcpy(ret_state, &state, size < sizeof(state) ? size : sizeof(state));
    return 0;
}

/* With the lock. */
static int restore(struct onepot_loader *loader, const struct onepot_state *state,
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
    if (state->shuffle != now.shuffle || state->drop_last != now.drop_last ||
        state->block != now.block || state->window != now.window)
        return error_set(error, -EINVAL, "the state was made with other options of the order");
    if (state->done % world != 0)
        return error_set(error, -EINVAL,
                         "%" PRIu64 " elements that are done can't be dealt to %" PRIu64
                         " ranks: the global batch must be the same",
                         state->done, world);
    loader->seed = loader->options.order.seed = state->seed;
    engine_seek(loader->engine,
                &(struct place){.epoch = state->epoch, .done = state->done / world},
                state->seed);
    return 0;
}

int onepot_loader_restore(struct onepot_loader *loader, const struct onepot_state *state,
                          struct onepot_error *error)
{
    struct onepot_state then = {0};
    int r = options_read(&then, sizeof(then), state, error);
    if (r == 0)
        r = own_engine(loader, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    r = restore(loader, &then, error);
    pthread_mutex_unlock(&loader->lock);
    return r;
}

/* ---- what was delivered ---- */

/* Two bijections of 64 bits with good mixing (Stafford's variants 13 and 4 of MurmurHash3's
 * finaliser); two sums, so that no exchange of samples goes unnoticed. */
static uint64_t mix_a(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t mix_b(uint64_t x)
{
    x = (x ^ x >> 33) * UINT64_C(0x62a9d9ed799705f5);
    x = (x ^ x >> 28) * UINT64_C(0xcb24d0a5c88c35b3);
    return x ^ x >> 32;
}

void delivered_count(struct onepot_delivered *delivered, uint64_t index)
{
    delivered->samples++;
    delivered->sum_a += mix_a(index + 1);
    delivered->sum_b += mix_b(index + 1);
}

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
        delivered_count(ret_delivered, i);
}

void onepot_delivered_add(struct onepot_delivered *to, const struct onepot_delivered *more)
{
    to->samples += more->samples;
    to->sum_a += more->sum_a;
    to->sum_b += more->sum_b;
}
