/*
 * Events are made with their slab and used again with it. A stream that uses a batch is known
 * only by its address. Its event is recorded when the batch is retired, so that one event
 * covers all that the stream was given.
 *
 * The thread that gathered the last sample of a batch queues its copy. One lock keeps the tasks
 * of a batch together on the stream.
 */
#include "upload.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "frames.h"
#include "numbers.h"
#include "upload_private.h"

/* How often the end of a capture is waited for, and how long each time. */
#define CAPTURE_PAUSES 1000u
#define CAPTURE_PAUSE_NS 10000000

/* ---- errors and times; under the lock ---- */

int upload_note(struct upload *u, int r, const struct onepot_error *error)
{
    if (r < 0)
        error_set(&u->error, r, "%s: %.*s", u->shared->name,
                  (int)sizeof(error->text) - NAME_ROOM, error->text);
    return r;
}

/* NULL: that epoch is too long ago. */
static struct onepot_transfer *transfer_of(struct upload *u, uint64_t epoch)
{
    struct onepot_transfer *t = &u->epochs[epoch % EPOCHS];
    if (t->epoch < epoch)
        *t = (struct onepot_transfer){.epoch = epoch};
    return t->epoch == epoch ? t : NULL;
}

void *upload_arrival(const struct twin *t)
{
    return t->images ? t->converted : t->sent;
}

/*
 * Take the time of the copy, if it is done by now. Where epochs are short, many batches belong
 * to later epochs. Their times are taken when the consumer gets there, which is before their
 * slab is used again.
 */
static void upload_measure(struct upload *u, struct twin *t)
{
    uint64_t ns;
    if (!t->unmeasured || t->epoch > u->epoch + 1 ||
        u->type->elapsed(u->device, t->begun, t->sent, NULL, &ns))
        return;
    t->unmeasured = false;
    struct onepot_transfer *to = transfer_of(u, t->epoch);
    if (!to)
        return;
    to->copy_bytes += t->bytes;
    to->copy_ns += ns;
    to->batches++;
}

/* ---- users of a batch that is over ---- */

/* Record their events. False: a stream captures a graph, and nothing may be recorded on it. */
static bool record_uses(struct upload *u, const struct twin *t)
{
    struct onepot_error error;
    bool captures = false;
    for (size_t i = 0; i < t->use_count; i++) {
        const struct use *use = &t->uses.at[i];
        int r = u->type->record(u->device, use->event, use->stream, &error);
        captures = captures || r == -EBUSY;
        if (r != -EBUSY)
            upload_note(u, r, &error);
    }
    return !captures;
}

/*
 * Under the lock. A batch that was not sent has no users; those of the batch before it stay.
 *
 * If a stream can't be followed, it was destroyed, or the device is lost. In either case
 * `record` has waited for what it could. While a stream captures, an event behind everything
 * would break the capture, too; what is known of the batch's streams is asked first.
 */
static void note_users(struct upload *u, struct twin *t)
{
    if (!t->lent && !t->use_count)
        return;
    if (!record_uses(u, t)) {
        t->guard = GUARD_LATER;
        return;
    }
    t->guard = !t->lent                                           ? GUARD_NONE
               : u->type->record_all(u->device, t->all, NULL) < 0 ? GUARD_WAIT
                                                                  : GUARD_EVENT;
    t->retired = t->lent ? 0 : t->use_count;
    t->use_count = 0;
    t->lent = false;
}

/* Settles what no event stands for. If a capture is in the way, its end is waited for: -EBUSY,
 * if that does not come. */
static int await_users(struct upload *u, struct twin *t, struct onepot_error *error)
{
    int r = 0;
    for (unsigned i = 0; i < CAPTURE_PAUSES; i++) {
        pthread_mutex_lock(&u->lock);
        if (t->guard == GUARD_LATER)
            note_users(u, t);
        pthread_mutex_unlock(&u->lock);
        r = t->guard == GUARD_LATER  ? error_set(error, -EBUSY,
                                                 "a stream that used the memory of this batch "
                                                  "has long been capturing a graph")
            : t->guard == GUARD_WAIT ? u->type->wait_all(u->device, error)
                                     : 0;
        if (r != -EBUSY)
            break;
        nanosleep(&(struct timespec){.tv_nsec = CAPTURE_PAUSE_NS}, NULL);
    }
    return r;
}

/* ---- memory ---- */

static void free_twin(struct upload *u, struct twin *t)
{
    for (size_t i = 0; i < t->uses.count; i++)
        if (t->uses.at[i].event)
            u->type->event_free(u->device, t->uses.at[i].event);
    void *const events[] = {t->begun, t->sent, t->converted, t->all};
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            u->type->event_free(u->device, events[i]);
    if (t->images)
        u->type->release(u->device, DEVICE_MEMORY_OWN, t->images, t->image_bytes);
    vector_free(&t->uses);
    free(t);
}

size_t upload_image_room(const struct upload *u, size_t bytes)
{
    if (!u->images.channels)
        return 0;
    uint64_t images = bytes / convert_bytes_of_one(&u->images);
    if (u->decoder || u->decompressor)
        images = min_u64(images, u->batch_size);
    return images * convert_bytes_of_floats(&u->images);
}

static int make_twin(struct upload *u, size_t bytes, struct onepot_error *error,
                     struct twin **ret_twin)
{
    void *memory = NULL;
    struct twin *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(error, -ENOMEM, "no memory for a batch");
    t->upload = u;
    t->image_bytes = upload_image_room(u, bytes);
    void **const events[] = {&t->begun, &t->sent, &t->all,
                             t->image_bytes ? &t->converted : NULL};
    int r = 0;
    for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]) && r == 0; i++)
        if (events[i])
            r = u->type->event_new(u->device, i < 2, error, events[i]);
    if (r == 0 && t->image_bytes)
        r = u->type->allocate(u->device, DEVICE_MEMORY_OWN, t->image_bytes, error, &t->images);
    if (r == 0)
        r = u->type->allocate(u->device, DEVICE_MEMORY_OWN, bytes, error, &memory);
    if (r < 0) {
        free_twin(u, t);
        return r;
    }
    t->memory = memory;
    *ret_twin = t;
    return 0;
}

static const uint64_t *upload_bases(void *ctx)
{
    const struct locked *locked = atomic_load(&((struct upload *)ctx)->locked);
    return locked ? locked_bases(locked) : NULL;
}

static int upload_allocate(struct slab *slab, size_t bytes, void *ctx)
{
    struct upload *u = ctx;
    struct onepot_error error;
    void *memory;
    size_t host_bytes = upload_bases(ctx) ? slab_tables_bytes(u->batch_size) : bytes;
    int r = u->type->allocate(u->device, DEVICE_MEMORY_LOCKED, host_bytes, &error, &memory);
    if (r == 0) {
        r = make_twin(u, bytes, &error, &slab->twin);
        if (r < 0)
            u->type->release(u->device, DEVICE_MEMORY_LOCKED, memory, host_bytes);
    }
    pthread_mutex_lock(&u->lock);
    if (r == 0) {
        slab->memory = memory;
        slab->twin->host_bytes = host_bytes;
        slab->twin->next = u->twins;
        u->twins = slab->twin;
    }
    upload_note(u, r, &error);
    pthread_mutex_unlock(&u->lock);
    return r;
}

/* Waits for everything that may still read or write the memory. */
static void upload_release(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct twin *t = slab->twin, **at = &u->twins;
    pthread_mutex_lock(&u->lock);
    if (t->guard == GUARD_LATER)
        note_users(u, t);
    pthread_mutex_unlock(&u->lock);
    if (u->decoder || u->decompressor) /* it may have written to a batch that was never sent */
        u->type->event_wait(u->device, t->sent, NULL);
    u->type->event_wait(u->device, upload_arrival(t), NULL);
    for (size_t i = 0; i < t->retired; i++)
        u->type->event_wait(u->device, t->uses.at[i].event, NULL);
    if (t->guard == GUARD_EVENT)
        u->type->event_wait(u->device, t->all, NULL);
    else if (t->guard == GUARD_WAIT)
        u->type->wait_all(u->device, NULL);
    pthread_mutex_lock(&u->lock);
    upload_measure(u, t);
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    pthread_mutex_unlock(&u->lock);
    u->type->release(u->device, DEVICE_MEMORY_OWN, t->memory, slab->capacity);
    u->type->release(u->device, DEVICE_MEMORY_LOCKED, slab->memory, t->host_bytes);
    free_twin(u, t);
    slab->twin = NULL;
}

/* ---- sending; under the lock ---- */

const void *upload_on_device(const struct slab *slab, const void *host)
{
    size_t tables = slab->bases ? slab_tables_at(slab->batch.bytes) : 0;
    return slab->twin->memory + tables + ((const uint8_t *)host - slab->memory);
}

static int queue_gather(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    const struct onepot_batch *batch = &slab->batch;
    const uint8_t *end = (const uint8_t *)(slab->sources + batch->samples);
    struct device_gather gather = {.to = slab->twin->memory,
                                   .bytes = batch->bytes,
                                   .count = batch->samples,
                                   .from = upload_on_device(slab, slab->sources),
                                   .offsets = upload_on_device(slab, slab->offsets),
                                   .sizes = upload_on_device(slab, slab->sizes),
                                   .width = locked_width(atomic_load(&u->locked))};
    int r =
        u->type->copy(u->device, u->stream, slab->twin->memory + slab_tables_at(batch->bytes),
                      slab->memory, (size_t)(end - slab->memory), error);
    return r < 0 ? r : u->type->gather(u->device, u->stream, &gather, error);
}

/* The slab's bytes [from, end). */
static int queue_part(struct upload *u, struct slab *slab, size_t from, size_t end,
                      struct onepot_error *error)
{
    return u->type->copy(u->device, u->stream, slab->twin->memory + from, slab->memory + from,
                         end - from, error);
}

static bool is_made_there(const struct slab *slab, uint64_t i)
{
    if (slab->frames)
        return frames_has(slab->frames, i);
    return slab->pictures && slab->pictures[i].len && !slab->pictures[i].refused;
}

/*
 * The data and the tables behind it, but for samples that the device has decoded or
 * decompressed. If there are none of these, that is one copy.
 */
static int queue_copy(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    size_t from = 0, end = (size_t)(slab->valid + slab->batch.samples - slab->memory);
    int r = 0;
    for (uint64_t i = 0; i < slab->batch.samples && r == 0; i++) {
        if (!is_made_there(slab, i))
            continue;
        if (from < slab->offsets[i])
            r = queue_part(u, slab, from, slab->offsets[i], error);
        slab->twin->bytes -= slab->sizes[i];
        from = slab->offsets[i] + slab->sizes[i];
    }
    return r < 0 ? r : queue_part(u, slab, from, end, error);
}

static int queue_batch(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    struct twin *t = slab->twin;
    int r = slab->bases ? queue_gather(u, slab, error) : queue_copy(u, slab, error);
    if (r == 0)
        r = u->type->record(u->device, t->sent, u->stream, error);
    if (r < 0 || !t->images)
        return r;
    r = u->type->follow(u->device, u->converting, t->sent, error);
    if (r == 0)
        r = u->type->convert(u->device, u->converting, &u->images, slab->batch.samples,
                             t->memory, t->images, error);
    return r < 0 ? r : u->type->record(u->device, t->converted, u->converting, error);
}

/* The users of the batch before, the conversion of its images among them. */
static int follow_users(struct upload *u, struct twin *t, struct onepot_error *error)
{
    int r = t->images ? u->type->follow(u->device, u->stream, t->converted, error) : 0;
    for (size_t i = 0; i < t->retired && r == 0; i++)
        r = u->type->follow(u->device, u->stream, t->uses.at[i].event, error);
    if (r == 0 && t->guard == GUARD_EVENT)
        r = u->type->follow(u->device, u->stream, t->all, error);
    if (r == 0) {
        t->retired = 0;
        t->guard = GUARD_NONE;
    }
    return r;
}

static int queue_frames(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    struct device_work *work = &slab->frames->work;
    work->to = slab->twin->memory;
    work->there = slab->twin->memory + (work->memory - slab->memory);
    return u->type->decompress(u->device, u->decompressor, u->stream, work, error);
}

static int queue_pictures(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    for (uint64_t i = 0; i < slab->batch.samples; i++)
        slab->pictures[i].to = slab->twin->memory + slab->offsets[i];
    return u->type->decode(u->device, u->decoder, u->stream, slab->pictures,
                           slab->batch.samples, error);
}

/* Files and blocks are read until `sent`, which is recorded here, too, lest the batch never is.
 */
static int queue_decoding(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    struct twin *t = slab->twin;
    int r = slab->frames ? queue_frames(u, slab, error) : queue_pictures(u, slab, error);
    t->settled = false;
    int recorded = u->type->record(u->device, t->sent, u->stream, r < 0 ? NULL : error);
    return r < 0 ? r : recorded;
}

static int upload_decode(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct twin *t = slab->twin;
    struct onepot_error error;
    u->type->range("onepot decode");
    int r = await_users(u, t, &error);
    pthread_mutex_lock(&u->decoding);
    pthread_mutex_lock(&u->lock);
    upload_measure(u, t);
    t->unmeasured = false;
    if (r == 0)
        r = follow_users(u, t, &error);
    pthread_mutex_unlock(&u->lock);
    if (r == 0)
        r = queue_decoding(u, slab, &error);
    pthread_mutex_unlock(&u->decoding);
    pthread_mutex_lock(&u->lock);
    upload_note(u, r, &error);
    pthread_mutex_unlock(&u->lock);
    u->type->range(NULL);
    return r;
}

/* Only when it is done it is known which frames were refused. */
static int upload_decompress(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct onepot_error error;
    int r = upload_decode(slab, ctx);
    if (r < 0)
        return r;
    r = u->type->event_wait(u->device, slab->twin->sent, &error);
    if (r == 0)
        u->type->decompress_end(&slab->frames->work);
    pthread_mutex_lock(&u->lock);
    upload_note(u, r, &error);
    pthread_mutex_unlock(&u->lock);
    return r;
}

static int upload_send(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct twin *t = slab->twin;
    struct onepot_error error;
    u->type->range("onepot upload");
    int r = await_users(u, t, &error);
    pthread_mutex_lock(&u->lock);
    upload_measure(u, t);
    if (r == 0)
        r = follow_users(u, t, &error);
    if (r == 0)
        r = u->type->record(u->device, t->begun, u->stream, &error);
    t->bytes = slab->batch.bytes;
    if (r == 0)
        r = queue_batch(u, slab, &error);
    t->settled = false;
    t->unmeasured = r == 0;
    t->epoch = slab->batch.epoch;
    upload_note(u, r, &error);
    pthread_mutex_unlock(&u->lock);
    u->type->range(NULL);
    return r;
}

/* ---- the rest of a slab's life ---- */

/* On an error the copy may still run, so the answer is no. */
static bool upload_is_settled(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    return slab->twin->settled || u->type->is_done(u->device, slab->twin->sent, NULL) > 0;
}

/* On an error the device is lost, and to wait once more would not help. */
static void upload_settle(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct onepot_error error;
    int r = u->type->event_wait(u->device, slab->twin->sent, &error);
    pthread_mutex_lock(&u->lock);
    upload_note(u, r, &error);
    slab->twin->settled = true;
    upload_measure(u, slab->twin);
    pthread_mutex_unlock(&u->lock);
}

static void upload_retire(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    pthread_mutex_lock(&u->lock);
    note_users(u, slab->twin);
    pthread_mutex_unlock(&u->lock);
}

static void close_upload(void *ctx)
{
    upload_close(ctx);
}

static size_t upload_beside(size_t capacity, void *ctx)
{
    return upload_image_room(ctx, capacity);
}

const struct slab_memory upload_memory = {
    .bases = upload_bases,
    .beside = upload_beside,
    .allocate = upload_allocate,
    .release = upload_release,
    .decode = upload_decode,
    .decompress = upload_decompress,
    .send = upload_send,
    .retire = upload_retire,
    .is_settled = upload_is_settled,
    .settle = upload_settle,
    .close = close_upload,
};

/* ---- what it tells ---- */

int upload_error(struct upload *upload, struct onepot_error *error)
{
    pthread_mutex_lock(&upload->lock);
    int r = upload->error.code;
    if (r < 0 && error)
        *error = upload->error;
    pthread_mutex_unlock(&upload->lock);
    return r;
}

void upload_waited(struct upload *upload, uint64_t epoch, uint64_t ns)
{
    pthread_mutex_lock(&upload->lock);
    struct onepot_transfer *t = transfer_of(upload, epoch);
    upload->epoch = epoch;
    if (t)
        t->wait_ns += ns;
    pthread_mutex_unlock(&upload->lock);
}

void upload_transfer(struct upload *upload, bool previous, struct onepot_transfer *ret)
{
    pthread_mutex_lock(&upload->lock);
    for (struct twin *t = upload->twins; t; t = t->next)
        upload_measure(upload, t);
    uint64_t epoch = upload->epoch - (previous && upload->epoch > 0);
    const struct onepot_transfer *t = transfer_of(upload, epoch);
    *ret = t ? *t : (struct onepot_transfer){.epoch = epoch};
    ret->gathers = atomic_load(&upload->locked) != NULL;
    pthread_mutex_unlock(&upload->lock);
}

/* ---- life ---- */

static int start_decoder(struct upload *u, const struct device_images *images,
                         struct onepot_error *error)
{
    if (!u->type->decoder_new)
        return error_set(error, -ENOTSUP, "a \"%s\" device decodes no pictures", u->type->kind);
    return u->type->decoder_new(u->device, images, error, u->decoder_name, &u->decoder);
}

static int start_decompressor(struct upload *u, const struct upload_options *options,
                              struct onepot_error *error)
{
    if (!u->type->decompressor_new)
        return error_set(error, -ENOTSUP, "a \"%s\" device decompresses nothing",
                         u->type->kind);
    return u->type->decompressor_new(u->device, options->block_bytes, options->workspace_bytes,
                                     error, u->decoder_name, &u->decompressor);
}

int upload_new(const struct upload_options *options, struct onepot_error *error,
               struct upload **ret_upload)
{
    struct upload *u = calloc(1, sizeof(*u));
    if (!u)
        return error_set(error, -ENOMEM, "no memory for a loader");
    if (options->images)
        u->images = *options->images;
    u->users = 1;
    u->batch_size = options->batch_size;
    int r = device_share(options->device, error, &u->shared);
    if (r == 0) {
        u->type = u->shared->type;
        u->device = u->shared->device;
        r = u->type->stream_new(u->device, false, error, &u->stream);
    }
    if (r == 0 && options->images)
        r = u->type->stream_new(u->device, true, error, &u->converting);
    if (r == 0 && options->decoded)
        r = start_decoder(u, options->decoded, error);
    if (r == 0 && options->block_bytes)
        r = start_decompressor(u, options, error);
    if (r < 0) {
        if (u->converting)
            u->type->stream_free(u->device, u->converting);
        if (u->stream)
            u->type->stream_free(u->device, u->stream);
        onepot_device_close(u->shared);
        free(u);
        return r;
    }
    pthread_mutex_init(&u->lock, NULL);
    pthread_mutex_init(&u->decoding, NULL);
    *ret_upload = u;
    return 0;
}

const char *upload_decoder(const struct upload *upload)
{
    return upload->decoder_name;
}

void upload_gather(struct upload *upload, struct locked *locked)
{
    atomic_store(&upload->locked, locked);
}

void upload_keep(struct upload *upload)
{
    atomic_fetch_add(&upload->users, 1);
}

static void end_stream(struct upload *u, void *stream)
{
    u->type->stream_wait(u->device, stream, NULL);
    u->type->stream_free(u->device, stream);
}

void upload_close(struct upload *upload)
{
    if (!upload || atomic_fetch_sub(&upload->users, 1) > 1)
        return;
    end_stream(upload, upload->stream);
    if (upload->converting)
        end_stream(upload, upload->converting);
    if (upload->decoder)
        upload->type->decoder_free(upload->device, upload->decoder);
    if (upload->decompressor)
        upload->type->decompressor_free(upload->device, upload->decompressor);
    locked_free(atomic_load(&upload->locked));
    onepot_device_close(upload->shared);
    pthread_mutex_destroy(&upload->lock);
    pthread_mutex_destroy(&upload->decoding);
    free(upload);
}
