/*
 * The devices of a loader, and their tasks: the table that the loader calls (accelerator.h).
 *
 * Uploads (upload.h): events are made with their slab and used again with it. A stream that
 * uses a batch is known only by its address. Its event is recorded when the batch is retired,
 * so that one event covers all that the stream was given. The thread that gathered the last
 * sample of a batch queues its copy. One lock keeps the tasks of a batch together on the
 * stream.
 *
 * Devices that gather share the locked archives, and either all of them gather or none. Locking
 * a mapping costs no memory, but not every driver can lock pages that it must not write to, and
 * older ones mark the pages of a file as changed: then all of it would be written back. If a
 * driver can't, a copy is made, which every driver can lock. A driver faults pages in one after
 * another while it locks them. Several threads, with one call for each range, take a fraction
 * of that time.
 */
#include "upload.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "accelerator.h"
#include "budget.h"
#include "dataset.h"
#include "error.h"
#include "numbers.h"
#include "rank_share.h"
#include "share.h"
#include "thread.h"
#include "vector.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

#define PART_BYTES (UINT64_C(64) << 20)
#define THREADS 4u /* beside the loader's, which gather meanwhile */
#define STACK_BYTES (64u << 10)

#define NAME_ROOM 32 /* for a device's name and ": " */

/* The end of a capture is waited for in ten pauses of which each is twice as long as the one
 * before, ten seconds in all: a wait for the whole device breaks each capture that goes on. */
#define CAPTURE_PAUSES 10u
#define CAPTURE_PAUSE_NS UINT64_C(10000000)

/* Batches: with the one in use and the next, eight (onepot_device.h). */
#define AHEAD_DEVICE 6u
/* Of each of several devices: one has arrived while the other is on its way. */
#define AHEAD_OF_EACH 2u

/* ---- archives in page-locked memory ---- */

/* One archive. */
struct piece {
    const void *mapped; /* the mapping, if that is locked; else */
    void *copy;
    size_t bytes;
};

struct locked {
    _Atomic unsigned users;
    struct onepot_archive *archive; /* its own handle, since batches may outlive their loader */
    struct onepot_device *device;   /* that locked it, */
    const struct device_type *type; /* and its functions */
    struct piece *pieces;
    size_t count;
    struct claim *claim; /* on the copies; NULL: there are none, or no other process can know */
};

/* Is every sample one piece of a mapped archive? */
static bool is_in_pieces(const struct onepot_archive *archive)
{
    const struct dataset *d = archive->dataset;
    for (uint64_t i = 0; i < archive->count; i++) {
        uint64_t first, end;
        archive_records(archive, i, &first, &end);
        const struct record *record = &d->records[first];
        if (end - first != 1 || !d->maps[record_archive(record)] ||
            record_offset(record) == RECORD_OFFSET_NONE)
            return false;
    }
    return true;
}

static int upload_check_room(const struct dataset *d, uint64_t room, struct onepot_error *error)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->fileset_count; i++)
        bytes += source_size(d->filesets[i]->source);
    if (bytes > room)
        return error_set(error, -ENOMEM,
                         "the archives have %" PRIu64 " bytes; there is room to page-lock "
                         "%" PRIu64,
                         bytes, room);
    return 0;
}

/* Bring all of the source into the mapping, and check its length. */
static int locked_bring(struct source *source)
{
    int r = source_bring(source, 0, source_size(source));
    if (r < 0)
        return r;
    return source_is_whole(source) ? 0 : -ENODATA;
}

/* ---- bringing pages into memory ---- */

/* Part by part, in several threads. */
struct bringing {
    const uint8_t *from;
    uint8_t *to; /* NULL: nothing is copied, pages are only faulted in */
    uint64_t bytes;
    _Atomic uint64_t next;
};

/* Faulting in fails on older kernels, and where a file was cut; then locking finds out. */
static void *bring_parts(void *arg)
{
    struct bringing *b = arg;
    uint64_t at;
    while ((at = atomic_fetch_add(&b->next, PART_BYTES)) < b->bytes) {
        uint64_t len = min_u64(PART_BYTES, b->bytes - at);
        if (b->to)
            memcpy(b->to + at, b->from + at, len);
        else
            madvise((void *)(uintptr_t)(b->from + at), len, MADV_POPULATE_READ);
    }
    return NULL;
}

static void bring_all(const void *from, void *to, uint64_t bytes)
{
    struct bringing b = {.from = from, .to = to, .bytes = bytes};
    thread_team(min_u64(THREADS, (bytes - 1) / PART_BYTES + 1), STACK_BYTES, bring_parts, &b);
}

/* ---- locking ---- */

static int lock_copy(struct locked *l, struct piece *piece, struct source *source,
                     const void *map, struct onepot_error *error)
{
    int r = l->type->allocate(l->device->device, DEVICE_MEMORY_LOCKED, piece->bytes, error,
                              &piece->copy);
    if (r < 0)
        return r;
    bring_all(map, piece->copy, piece->bytes);
    return source_is_whole(source) ? 0 : error_errno(error, -ENODATA, source_name(source));
}

static int lock_piece(struct locked *l, size_t i, const struct dataset *d,
                      struct onepot_error *error)
{
    struct piece *piece = &l->pieces[i];
    const void *map = d->maps[i];
    int r = map ? locked_bring(d->filesets[i]->source) : 0;
    if (r < 0)
        return error_errno(error, r, d->filesets[i]->path);
    piece->bytes = source_size(d->filesets[i]->source);
    if (!map || !piece->bytes)
        return 0; /* no sample is in this archive */
    bring_all(map, NULL, piece->bytes);
    if (l->type->lock(l->device->device, map, piece->bytes,
                      !source_is_memory(d->filesets[i]->source), error) == 0)
        piece->mapped = map;
    else
        r = lock_copy(l, piece, d->filesets[i]->source, map, error);
    return r;
}

/* ---- reports to the rest of the job ---- */

static uint64_t locked_use(void *ctx, uint64_t bytes, uint64_t most_bytes, unsigned processes)
{
    (void)ctx, (void)most_bytes, (void)processes;
    return bytes;
}

/*
 * While they are locked, copies are memory of the job that its caches must leave alone. A
 * locked mapping belongs to the page cache, and all ranks of the node share it.
 */
static void claim_copies(struct locked *l)
{
    struct claim_options o = {.total_bytes = budget_cache_bytes(), .unwatched = true};
    for (size_t i = 0; i < l->count; i++)
        o.fixed_bytes += l->pieces[i].copy ? l->pieces[i].bytes : 0;
    if (!o.fixed_bytes || !o.total_bytes)
        return;
    if (claim_new(&o, &l->claim) < 0)
        l->claim = NULL;
    else
        claim_update(l->claim, 0, locked_use, NULL);
}

void locked_free(struct locked *l)
{
    if (!l || atomic_fetch_sub(&l->users, 1) > 1)
        return;
    for (size_t i = 0; l->pieces && i < l->count; i++) {
        const struct piece *piece = &l->pieces[i];
        if (piece->mapped)
            l->type->unlock(l->device->device, piece->mapped, piece->bytes);
        if (piece->copy)
            l->type->release(l->device->device, DEVICE_MEMORY_LOCKED, piece->copy,
                             piece->bytes);
    }
    claim_free(l->claim);
    onepot_archive_close(l->archive);
    onepot_device_close(l->device);
    free(l->pieces);
    free(l);
}

int locked_new(struct onepot_device *device, const struct onepot_archive *archive,
               uint64_t room_bytes, struct onepot_error *error, struct locked **ret_locked)
{
    const struct dataset *d = archive->dataset;
    if (!is_in_pieces(archive))
        return error_set(error, -ENOTSUP,
                         "a device can only gather samples that are stored in one piece");
    int r = upload_check_room(d, room_bytes, error);
    if (r < 0)
        return r;
    struct locked *l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(error, -ENOMEM, "no memory for a loader");
    l->users = 1;
    l->type = device->type;
    l->count = d->fileset_count;
    l->archive = archive_share(archive);
    l->pieces = calloc(l->count + 1, sizeof(*l->pieces));
    r = l->archive && l->pieces ? device_share(device, error, &l->device)
                                : error_set(error, -ENOMEM, "no memory for a loader");
    for (size_t i = 0; i < l->count && r == 0; i++)
        r = lock_piece(l, i, d, error);
    if (r < 0) {
        locked_free(l);
        return r;
    }
    claim_copies(l);
    *ret_locked = l;
    return 0;
}

/* For another user. */
static struct locked *locked_keep(struct locked *locked)
{
    atomic_fetch_add(&locked->users, 1);
    return locked;
}

/* Where a device sees the archives, one address for each; to be freed. */
static int locked_see(const struct locked *locked, const struct onepot_device *device,
                      struct onepot_error *error, uint64_t **ret_bases)
{
    uint64_t *bases = calloc(locked->count + 1, sizeof(*bases));
    int r = bases ? 0 : error_set(error, -ENOMEM, "no memory for a loader");
    for (size_t i = 0; i < locked->count && r == 0; i++) {
        const struct piece *piece = &locked->pieces[i];
        const void *there = piece->mapped ? piece->mapped : piece->copy;
        if (there)
            r = device->type->address(device->device, there, error, &bases[i]);
    }
    if (r < 0)
        free(bases);
    else
        *ret_bases = bases;
    return r;
}

/* The addresses of the first byte of each of these samples. */
static void locked_find(const struct locked *locked, const uint64_t *bases,
                        const uint64_t *samples, uint64_t count, uint64_t *ret_addresses)
{
    for (uint64_t i = 0; i < count; i++) {
        const struct record *record = archive_first(locked->archive, samples[i]);
        ret_addresses[i] = bases[record_archive(record)] + record_offset(record);
    }
}

/* ---- the end of an upload ---- */

static void end_stream(struct upload *u, void *stream)
{
    if (!stream)
        return;
    u->type->stream_wait(u->device, stream, NULL);
    u->type->stream_free(u->device, stream);
}

/* Ends one use; NULL is fine. */
static void upload_close(void *ctx)
{
    struct upload *upload = ctx;
    if (!upload || atomic_fetch_sub(&upload->users, 1) > 1)
        return;
    end_stream(upload, upload->stream);
    end_stream(upload, upload->converting);
    locked_free(upload->locked);
    free(upload->bases);
    onepot_device_close(upload->shared);
    pthread_mutex_destroy(&upload->lock);
    free(upload);
}

/* ---- sizes of images ---- */

/* Before conversion. */
static uint64_t images_bytes_of_one(const struct onepot_conversion *images)
{
    return (uint64_t)images->height * images->width * images->channels;
}

/* How many bytes of floats `bytes` of a slab can make at most. */
static size_t upload_image_room(const struct upload *u, size_t bytes)
{
    if (!u->images.channels)
        return 0;
    uint64_t one = images_bytes_of_one(&u->images);
    return bytes / one * one * (u->images.type == ONEPOT_FLOAT ? 4 : 2);
}

/* ---- slabs of a device ---- */

/* A stream that reads a batch. */
struct use {
    void *stream;
    void *event;
    bool is_recorded; /* the stream reads no further, and may be gone */
};

/* Besides known streams, the next copy waits for: */
enum guard {
    GUARD_NONE,
    GUARD_EVENT, /* `all`, an event behind everything given to the device */
    GUARD_WAIT,  /* everything given to the device, for want of such an event */
    GUARD_LATER, /* nothing is recorded yet: one of the streams captures a graph */
};

struct device_slab {
    struct upload *upload;
    struct device_slab *next;
    uint8_t *memory; /* of the device */
    size_t host_bytes;
    void *images;
    size_t image_bytes;
    void *begun, *sent; /* events around the copy, */
    void *converted;    /* and after the conversion of its images */
    bool settled;       /* the copy was waited for, with or without success */
    bool unmeasured;    /* the times were not taken yet, of: */
    uint64_t epoch, bytes;
    VECTOR(struct use) uses; /* more than are in use have their events already */
    size_t use_count;        /* of the batch; with GUARD_LATER, of the batch before */
    size_t retired;          /* uses of the batch before, which the next copy has to follow */
    bool lent;               /* other streams may read the batch, too */
    enum guard guard;
    void *all;
};

/* ---- errors and times; under the lock ---- */

/* Keep an error for later, with the device's name before it. Returns r. Under the lock. */
static int upload_note(struct upload *u, int r, const struct onepot_error *error)
{
    if (r < 0)
        error_set(&u->error, r, "%s: %.*s", u->shared->name,
                  (int)sizeof(error->text) - NAME_ROOM, error->text);
    return r;
}

/* NULL: that epoch is too long ago. */
static struct onepot_transfer *transfer_of(struct upload *u, uint64_t epoch)
{
    struct onepot_transfer *t = &u->epochs[epoch % UPLOAD_EPOCHS];
    if (t->epoch < epoch)
        *t = (struct onepot_transfer){.epoch = epoch};
    return t->epoch == epoch ? t : NULL;
}

/* The event after which all of the batch is there, images included. */
static void *upload_arrival(const struct device_slab *t)
{
    return t->images ? t->converted : t->sent;
}

/*
 * Take the time of the copy, if it is done by now. Where epochs are short, many batches belong
 * to later epochs. Their times are taken when the consumer gets there, which is before their
 * slab is used again.
 */
static void upload_measure(struct upload *u, struct device_slab *t)
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

/*
 * Record their events. False: a stream captures a graph, and nothing may be recorded on it. A
 * stream that has no event counts as unknown: CUDA may refuse our event on the stream of a
 * green context.
 */
static bool record_uses(struct upload *u, struct device_slab *t)
{
    struct onepot_error error;
    bool recorded = true;
    for (size_t i = 0; i < t->use_count; i++) {
        const struct use *use = &t->uses.at[i];
        int r =
            use->is_recorded ? 0 : u->type->record(u->device, use->event, use->stream, &error);
        recorded = recorded && r != -EBUSY;
        t->lent = t->lent || (r < 0 && r != -EBUSY);
        if (r != -EBUSY && r != -EINVAL)
            upload_note(u, r, &error);
    }
    return recorded;
}

/*
 * Under the lock. A batch that was not sent has no users; the previous batch's stay.
 *
 * While a stream captures, an event behind everything would break the capture, too; the batch's
 * own streams are asked first.
 */
static void note_users(struct upload *u, struct device_slab *t)
{
    if (!t->lent && !t->use_count)
        return;
    t->guard = GUARD_LATER;
    if (!record_uses(u, t))
        return;
    t->guard = !t->lent                                           ? GUARD_NONE
               : u->type->record_all(u->device, t->all, NULL) < 0 ? GUARD_WAIT
                                                                  : GUARD_EVENT;
    t->retired = t->guard == GUARD_NONE ? t->use_count : 0;
    t->use_count = 0;
    t->lent = false;
}

/* Settles what no event stands for. If a capture is in the way, its end is waited for: -EBUSY,
 * if that does not come. */
static int await_users(struct upload *u, struct device_slab *t, struct onepot_error *error)
{
    int r;
    for (unsigned i = 0;; i++) {
        pthread_mutex_lock(&u->lock);
        if (t->guard == GUARD_LATER)
            note_users(u, t);
        pthread_mutex_unlock(&u->lock);
        r = t->guard == GUARD_LATER  ? error_set(error, -EBUSY,
                                                 "a stream that used the memory of this batch "
                                                  "has long been capturing a graph")
            : t->guard == GUARD_WAIT ? u->type->wait_all(u->device, error)
                                     : 0;
        if (r != -EBUSY || i == CAPTURE_PAUSES)
            return r;
        pause_for(&u->pause, CAPTURE_PAUSE_NS << i);
    }
}

/* ---- memory ---- */

static void free_device_slab(struct upload *u, struct device_slab *t)
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

static int make_device_slab(struct upload *u, size_t bytes, struct onepot_error *error,
                            struct device_slab **ret_device_slab)
{
    void *memory = NULL;
    struct device_slab *t = calloc(1, sizeof(*t));
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
        free_device_slab(u, t);
        return r;
    }
    t->memory = memory;
    *ret_device_slab = t;
    return 0;
}

static int upload_allocate(struct slab *slab, size_t bytes, void *ctx)
{
    struct upload *u = ctx;
    struct onepot_error error;
    void *memory;
    size_t host_bytes = u->locked ? slab_bytes(u->batch_size, 0, NULL) : bytes;
    int r = u->type->allocate(u->device, DEVICE_MEMORY_LOCKED, host_bytes, &error, &memory);
    if (r == 0) {
        r = make_device_slab(u, bytes, &error, &slab->device_slab);
        if (r < 0)
            u->type->release(u->device, DEVICE_MEMORY_LOCKED, memory, host_bytes);
    }
    pthread_mutex_lock(&u->lock);
    if (r == 0) {
        slab->memory = memory;
        slab->tables_only = u->locked != NULL;
        slab->device_slab->host_bytes = host_bytes;
        slab->device_slab->next = u->device_slabs;
        u->device_slabs = slab->device_slab;
    }
    upload_note(u, r, &error);
    pthread_mutex_unlock(&u->lock);
    return r;
}

/* Waits for everything that may still read or write the memory. */
static void upload_release(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct device_slab *t = slab->device_slab, **at = &u->device_slabs;
    pthread_mutex_lock(&u->lock);
    if (t->guard == GUARD_LATER)
        note_users(u, t);
    pthread_mutex_unlock(&u->lock);
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
    free_device_slab(u, t);
    slab->device_slab = NULL;
}

/* ---- sending; under the lock ---- */

static void upload_gather_places(struct slab *slab, uint64_t first, uint64_t end, void *ctx)
{
    const struct upload *u = ctx;
    if (slab->tables_only)
        locked_find(u->locked, u->bases, slab->indices + first, end - first,
                    slab->sources + first);
}

/* Where a table of the host lies on the device. */
static const void *upload_on_device(const struct slab *slab, const void *host)
{
    return slab->device_slab->memory + slab->device_at + ((const uint8_t *)host - slab->memory);
}

static int queue_gather(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    const struct onepot_batch *batch = &slab->batch;
    const uint8_t *end = (const uint8_t *)(slab->sources + batch->samples);
    struct device_gather gather = {.to = slab->device_slab->memory,
                                   .bytes = batch->bytes,
                                   .count = batch->samples,
                                   .from = upload_on_device(slab, slab->sources),
                                   .offsets = upload_on_device(slab, slab->offsets),
                                   .sizes = upload_on_device(slab, slab->sizes)};
    int r = u->type->copy(u->device, u->stream, slab->device_slab->memory + slab->device_at,
                          slab->memory, (size_t)(end - slab->memory), error);
    return r < 0 ? r : u->type->gather(u->device, u->stream, &gather, error);
}

/* The data and the tables behind it, in one copy. */
static int queue_copy(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    size_t bytes = (size_t)(slab->valid + slab->batch.samples - slab->memory);
    return u->type->copy(u->device, u->stream, slab->device_slab->memory, slab->memory, bytes,
                         error);
}

static int queue_batch(struct upload *u, struct slab *slab, struct onepot_error *error)
{
    struct device_slab *t = slab->device_slab;
    int r = slab->tables_only ? queue_gather(u, slab, error) : queue_copy(u, slab, error);
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
static int follow_users(struct upload *u, struct device_slab *t, struct onepot_error *error)
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

static int upload_send(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct device_slab *t = slab->device_slab;
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
    return slab->device_slab->settled ||
           u->type->is_done(u->device, slab->device_slab->sent, NULL) > 0;
}

/* On an error the device is lost, and to wait once more would not help. */
static void upload_settle(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    struct onepot_error error;
    int r = u->type->event_wait(u->device, slab->device_slab->sent, &error);
    pthread_mutex_lock(&u->lock);
    upload_note(u, r, &error);
    slab->device_slab->settled = true;
    upload_measure(u, slab->device_slab);
    pthread_mutex_unlock(&u->lock);
}

static void upload_retire(struct slab *slab, void *ctx)
{
    struct upload *u = ctx;
    pthread_mutex_lock(&u->lock);
    note_users(u, slab->device_slab);
    pthread_mutex_unlock(&u->lock);
}

static size_t upload_beside(size_t capacity, void *ctx)
{
    return upload_image_room(ctx, capacity);
}

const struct slab_memory upload_memory = {
    .may_wait = true,
    .beside = upload_beside,
    .gather = upload_gather_places,
    .allocate = upload_allocate,
    .release = upload_release,
    .send = upload_send,
    .retire = upload_retire,
    .is_settled = upload_is_settled,
    .settle = upload_settle,
    .close = upload_close,
};

/* ---- figures ---- */

int upload_error(struct upload *upload, struct onepot_error *error)
{
    pthread_mutex_lock(&upload->lock);
    int r = upload->error.code;
    if (r < 0 && error)
        *error = upload->error;
    pthread_mutex_unlock(&upload->lock);
    return r;
}

/* The consumer waited so long for a batch of this epoch. */
static void upload_waited(struct upload *upload, uint64_t epoch, uint64_t ns)
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
    for (struct device_slab *t = upload->device_slabs; t; t = t->next)
        upload_measure(upload, t);
    uint64_t epoch = upload->epoch - (previous && upload->epoch > 0);
    const struct onepot_transfer *t = transfer_of(upload, epoch);
    *ret = t ? *t : (struct onepot_transfer){.epoch = epoch};
    ret->gathers = upload->locked != NULL;
    pthread_mutex_unlock(&upload->lock);
}

/* ---- life ---- */

int upload_new(struct onepot_device *device, const struct onepot_conversion *images,
               uint64_t batch_size, struct onepot_error *error, struct upload **ret_upload)
{
    struct upload *u = calloc(1, sizeof(*u));
    if (!u)
        return error_set(error, -ENOMEM, "no memory for a loader");
    if (images)
        u->images = *images;
    u->users = 1;
    u->batch_size = batch_size;
    pthread_mutex_init(&u->lock, NULL);
    pause_init(&u->pause);
    int r = device_share(device, error, &u->shared);
    if (r == 0) {
        u->type = u->shared->type;
        u->device = u->shared->device;
        r = u->type->stream_new(u->device, true, error, &u->stream);
    }
    if (r == 0 && images)
        r = u->type->stream_new(u->device, true, error, &u->converting);
    if (r < 0)
        upload_close(u);
    else
        *ret_upload = u;
    return r;
}

/* The device collects the samples, from here. Before the first batch. */
static int upload_gather(struct upload *upload, struct locked *locked,
                         struct onepot_error *error)
{
    int r = locked_see(locked, upload->shared, error, &upload->bases);
    if (r == 0)
        upload->locked = locked_keep(locked);
    return r;
}

static void upload_keep(struct upload *upload)
{
    atomic_fetch_add(&upload->users, 1);
}

/* ---- the consumer's side: its streams follow the batch's arrival, and are noted ---- */

static bool is_known(const struct device_slab *t, const void *stream)
{
    for (size_t i = 0; i < t->use_count; i++)
        if (t->uses.at[i].stream == stream && !t->uses.at[i].is_recorded)
            return true;
    return false;
}

/* Add a use, with an event that an earlier batch may have left there. */
static int add_use(struct upload *u, struct device_slab *t, void *stream,
                   struct onepot_error *error)
{
    if (t->use_count == t->uses.count && vector_push(&t->uses, (struct use){0}) < 0)
        return error_set(error, -ENOMEM, "no memory for an event");
    struct use *use = &t->uses.at[t->use_count];
    int r = use->event ? 0 : u->type->event_new(u->device, false, error, &use->event);
    if (r < 0)
        return r;
    use->stream = stream;
    use->is_recorded = false;
    t->use_count++;
    return 0;
}

/* Make the stream wait for the batch. is_used: the batch's memory waits for the stream. */
static int follow_arrival(struct device_slab *t, void *stream, bool is_used,
                          struct onepot_error *error)
{
    struct onepot_error why;
    struct upload *u = t->upload;
    int r = u->type->stream_check(u->device, stream, &why);
    if (r == 0 && is_used && !is_known(t, stream))
        r = add_use(u, t, stream, &why);
    if (r == 0)
        r = u->type->follow(u->device, stream, upload_arrival(t), &why);
    if (r != -EBUSY && r != -EINVAL)
        upload_note(u, r, &why);
    return r < 0 ? error_set(error, r, "%s: %.*s", u->shared->name,
                             (int)sizeof(why.text) - NAME_ROOM, why.text)
                 : 0;
}

int onepot_batch_use(const struct onepot_batch *batch, void *stream, struct onepot_error *error)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->upload->lock);
    int r = follow_arrival(t, stream, true, error);
    pthread_mutex_unlock(&t->upload->lock);
    return r;
}

int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                      struct onepot_error *error)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    int r = 0;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->upload->lock);
    bool is_named = stream != ONEPOT_NO_STREAM;
    if (is_named)
        r = follow_arrival(t, stream, false, error);
    t->lent = t->lent || (r == 0 && !(is_named && is_known(t, stream)));
    pthread_mutex_unlock(&t->upload->lock);
    return r;
}

int onepot_batch_copy(const struct onepot_batch *batch, void *stream, void *to, size_t room,
                      const void *from, size_t bytes, struct onepot_error *error)
{
    const struct device_slab *t = slab_of(batch)->device_slab;
    if (bytes > room)
        return error_set(error, -EINVAL,
                         "there is room for %zu bytes, and %zu are to be copied", room, bytes);
    if (!t) {
        memcpy(to, from, bytes);
        memset((uint8_t *)to + bytes, 0, room - bytes);
        return 0;
    }
    const struct upload *u = t->upload;
    int r = onepot_batch_use(batch, stream, error);
    if (r == 0 && bytes)
        r = u->type->copy(u->device, stream, to, from, bytes, error);
    if (r == 0 && room > bytes)
        r = u->type->clear(u->device, stream, (uint8_t *)to + bytes, room - bytes, error);
    return r;
}

/* ---- copies that are the consumer's ---- */

struct onepot_duplicate {
    struct onepot_device *device;
    void *memory;
    size_t bytes;
    bool on_host;
};

/* The next copy into the batch's memory waits for this one: the event is recorded at once. */
static int queue_duplicate(struct device_slab *t, void *stream, void *to, const void *from,
                           size_t bytes, struct onepot_error *error)
{
    const struct device_type *type = t->upload->type;
    void *device = t->upload->device;
    int r = follow_arrival(t, stream, false, error);
    if (r == 0 && bytes)
        r = type->copy(device, stream, to, from, bytes, error);
    if (r < 0)
        return r;
    r = add_use(t->upload, t, stream, NULL);
    if (r == 0) {
        struct use *use = &t->uses.at[t->use_count - 1];
        use->is_recorded = true;
        r = type->record(device, use->event, stream, NULL);
    }
    t->lent = t->lent || r < 0;
    return 0;
}

static int fill_duplicate(struct device_slab *t, struct onepot_duplicate *d, void *stream,
                          const void *from, struct onepot_error *error)
{
    struct upload *u = t->upload;
    bool waits = d->on_host || stream == ONEPOT_NO_STREAM;
    int r = device_share(u->shared, error, &d->device);
    if (r == 0 && d->on_host)
        r = (d->memory = malloc(d->bytes + 1)) ? 0 : error_set(error, -ENOMEM, "no memory");
    else if (r == 0)
        r = u->type->allocate(u->device, DEVICE_MEMORY_OWN, d->bytes + 1, error, &d->memory);
    if (r < 0)
        return r;
    stream = waits ? NULL : stream;
    pthread_mutex_lock(&u->lock);
    r = queue_duplicate(t, stream, d->memory, from, d->bytes, error);
    pthread_mutex_unlock(&u->lock);
    return r == 0 && waits ? u->type->stream_wait(u->device, stream, error) : r;
}

int onepot_batch_duplicate(const struct onepot_batch *batch, bool on_host, void *stream,
                           const void *from, size_t bytes, struct onepot_error *error,
                           struct onepot_duplicate **ret_duplicate, void **ret_memory)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    struct onepot_duplicate *d = t ? calloc(1, sizeof(*d)) : NULL;
    if (!d)
        return t ? error_set(error, -ENOMEM, "no memory for a copy")
                 : error_set(error, -ENOTSUP, "the batch is in host memory");
    d->bytes = bytes;
    d->on_host = on_host;
    int r = fill_duplicate(t, d, stream, from, error);
    if (r < 0) {
        onepot_duplicate_free(d);
        return r;
    }
    *ret_duplicate = d;
    *ret_memory = d->memory;
    return 0;
}

void onepot_duplicate_free(struct onepot_duplicate *d)
{
    if (!d)
        return;
    if (d->on_host)
        free(d->memory);
    else if (d->memory)
        d->device->type->release(d->device->device, DEVICE_MEMORY_OWN, d->memory, d->bytes + 1);
    onepot_device_close(d->device);
    free(d);
}

int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    return t ? t->upload->type->event_wait(t->upload->device, upload_arrival(t), error) : 0;
}

int onepot_batch_on_device(const struct onepot_batch *batch,
                           struct onepot_device_batch *ret_where)
{
    const struct slab *slab = slab_of(batch);
    const struct device_slab *t = slab->device_slab;
    if (!t)
        return -ENOTSUP;
    struct onepot_device_batch where = {
        .data = t->memory,
        .bytes = batch->bytes,
        .offsets = upload_on_device(slab, slab->offsets),
        .sizes = upload_on_device(slab, slab->sizes),
        .indices = upload_on_device(slab, slab->indices),
        .labels = upload_on_device(slab, slab->labels),
        .valid = upload_on_device(slab, slab->valid),
        .images = t->images,
        .image_bytes = t->images ? upload_image_room(t->upload, batch->bytes) : 0,
        .device = slab->device,
        .index = t->upload->shared->index,
    };
    return result_write(ret_where, &where, sizeof(where), NULL);
}

/* ---- the devices of a loader ---- */

struct loader_devices {
    struct onepot_device *device[ONEPOT_DEVICES_MAX];
    struct upload *upload[ONEPOT_DEVICES_MAX]; /* the engine's memory */
    uint32_t count;
    struct onepot_conversion convert; /* 0 channels: nothing is converted */
    bool gathers;                     /* from locked archives */
};

static int devices_check_images(const struct onepot_conversion *images,
                                const struct fill_plan *fill, struct onepot_error *error)
{
    int r = convert_check(images, error);
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

/*
 * Decode pictures to bytes, which the device turns into floats: they take a half or a quarter
 * of the floats' way.
 */
static int devices_convert_there(struct loader_devices *d, struct images_plan *images,
                                 struct fill_plan *fill, struct onepot_error *error)
{
    struct onepot_images o = images->o;
    struct onepot_conversion *convert = &d->convert;
    if (!o.type || o.channels_last || images->next)
        return 0;
    o.part = images->part;
    *convert = (struct onepot_conversion){.size = sizeof(*convert),
                                          .height = o.height,
                                          .width = o.width,
                                          .channels = 3,
                                          .type = o.type};
    for (unsigned c = 0; c < 3; c++) {
        convert->mean[c] = images_mean(&o, c);
        convert->scale[c] = images_scale(&o, c);
        o.mean[c] = 0;
        o.std[c] = 1;
    }
    o.type = 0;
    o.channels_last = true;
    int r = images_plan(&o, error, images);
    fill->stride = images->bytes;
    return r;
}

/* ---- which devices ---- */

/* Each is there once, and all are of one kind. */
static int devices_check(const struct loader_devices *d, const struct onepot_device *device,
                         struct onepot_error *error)
{
    for (uint32_t i = 0; i < d->count; i++) {
        const struct onepot_device *other = d->device[i];
        if (other->type != device->type)
            return error_set(error, -EINVAL, "%s and %s: devices of one loader are of one kind",
                             other->name, device->name);
        if (other->index == device->index)
            return error_set(error, -EINVAL, "%s is there twice among the loader's devices",
                             device->name);
    }
    return 0;
}

static int devices_add(struct loader_devices *d, struct onepot_device *device,
                       struct onepot_error *error)
{
    int r = device ? devices_check(d, device, error)
                   : error_set(error, -EINVAL, "one of the loader's devices is NULL");
    if (r == 0)
        r = device_share(device, error, &d->device[d->count]);
    d->count += r == 0;
    return r;
}

/* Of `device` or `devices`. */
static int devices_take(struct loader_devices *d, const struct onepot_loader_options *given,
                        struct onepot_error *error)
{
    int r = 0;
    if (given->device && (given->devices || given->device_count))
        return error_set(error, -EINVAL, "device and devices exclude each other");
    if (given->device)
        return devices_add(d, given->device, error);
    if (!given->devices != !given->device_count)
        return error_set(error, -EINVAL, "no devices are named: at least one is needed");
    if (given->device_count > ONEPOT_DEVICES_MAX)
        return error_set(error, -EINVAL, "more than %u devices", ONEPOT_DEVICES_MAX);
    for (uint32_t i = 0; i < given->device_count && r == 0; i++)
        r = devices_add(d, given->devices[i], error);
    return r;
}

/* ---- what they have to do ---- */

/* Abilities that all of them have, and the least memory that one of them has free. */
static int devices_look(const struct loader_devices *d, bool needs_kernels,
                        struct onepot_error *error, struct onepot_device_info *ret_info)
{
    for (uint32_t i = 0; i < d->count; i++) {
        struct onepot_device_info info = {.size = sizeof(info)};
        int r = onepot_device_info(d->device[i], error, &info);
        if (r < 0)
            return r;
        if (needs_kernels && !info.kernels)
            return error_set(
                error, -ENOTSUP,
                "%s: this libonepot-cuda.so has no kernels for it (built without nvcc, or for "
                "other GPUs): it makes no images and gathers nothing",
                info.name);
        if (i == 0)
            *ret_info = info;
        ret_info->kernels &= info.kernels;
        if (info.free_bytes < ret_info->free_bytes)
            ret_info->free_bytes = info.free_bytes;
    }
    return 0;
}

static uint32_t devices_ahead(const struct loader_devices *d, uint32_t ahead)
{
    uint32_t each = AHEAD_OF_EACH * d->count;
    ahead = ahead < AHEAD_DEVICE ? ahead : AHEAD_DEVICE;
    return d->count > 1 && ahead < each ? each : ahead;
}

static int devices_check_tasks(const struct loader_devices *d,
                               const struct onepot_loader_options *given,
                               const struct fill_plan *fill, struct onepot_error *error)
{
    if (d->gathers && (fill->npy || fill->decode || fill->images || fill->verify))
        return error_set(error, -EINVAL,
                         "a device gathers bytes as they are, without npy, decode, images or "
                         "verify");
    if (given->convert && given->images)
        return error_set(error, -EINVAL, "convert and images exclude each other");
    return 0;
}

static int devices_plan_tasks(struct loader_devices *d,
                              const struct onepot_loader_options *given,
                              struct engine_options *o, struct images_plan *images,
                              struct onepot_error *error)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    d->gathers = given->gather == ONEPOT_GATHER_DEVICE;
    int r = devices_check_tasks(d, given, &o->fill, error);
    if (r == 0 && given->convert) {
        r = options_read(&d->convert, sizeof(d->convert), given->convert, error);
        if (r == 0)
            r = devices_check_images(&d->convert, &o->fill, error);
    }
    if (r == 0)
        r = devices_look(d, given->convert || d->gathers, error, &info);
    if (r == 0 && images && info.kernels)
        r = devices_convert_there(d, images, &o->fill, error);
    if (r < 0)
        return r;
    o->memory = &upload_memory;
    o->devices = d->count;
    o->fill.past = !info.is_host && !o->fill.verify;
    if (!given->prefetch)
        o->ahead = devices_ahead(d, o->ahead);
    uint64_t most = info.free_bytes / 4 * d->count;
    if (!given->memory_bytes && most < o->memory_bytes)
        o->memory_bytes = most;
    return 0;
}

static void devices_close(struct loader_devices *d, bool is_started)
{
    for (uint32_t i = 0; d && i < d->count; i++) {
        if (is_started)
            upload_close(d->upload[i]);
        onepot_device_close(d->device[i]);
    }
    free(d);
}

static int devices_plan(const struct onepot_loader_options *given, struct engine_options *o,
                        struct images_plan *images, struct onepot_error *error,
                        struct loader_devices **ret_devices)
{
    struct loader_devices *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(error, -ENOMEM, "no memory for a loader");
    int r = devices_take(d, given, error);
    if (r == 0)
        r = devices_plan_tasks(d, given, o, images, error);
    if (r < 0) {
        devices_close(d, false);
        return r;
    }
    *ret_devices = d;
    return 0;
}

/* ---- gathering by the devices ---- */

static int devices_lock(struct loader_devices *d, const struct onepot_archive *archive,
                        struct onepot_error *error)
{
    struct locked *locked = NULL;
    uint64_t room = budget_memory_bytes("") / 2 / rank_share_ranks();
    int r = locked_new(d->device[0], archive, room, error, &locked);
    for (uint32_t i = 0; i < d->count && r == 0; i++)
        r = upload_gather(d->upload[i], locked, error);
    locked_free(locked);
    return r;
}

/* ---- uploads ---- */

/* After a fork the device is the parent's: replace it by one of our own. */
static int devices_own(struct loader_devices *d, uint32_t i, struct onepot_error *error)
{
    struct onepot_device *own;
    int r = device_share(d->device[i], error, &own);
    if (r < 0)
        return r;
    onepot_device_close(d->device[i]);
    d->device[i] = own;
    return 0;
}

static int devices_start_upload(struct loader_devices *d, uint32_t i, uint64_t batch_size,
                                struct onepot_error *error)
{
    const struct onepot_conversion *images = d->convert.channels ? &d->convert : NULL;
    int r = devices_own(d, i, error);
    return r < 0 ? r : upload_new(d->device[i], images, batch_size, error, &d->upload[i]);
}

static int devices_start(struct loader_devices *d, struct engine_options *o,
                         struct onepot_error *error)
{
    int r = 0;
    for (uint32_t i = 0; i < d->count; i++)
        d->upload[i] = NULL; /* after a fork they are the parent's */
    for (uint32_t i = 0; i < d->count && r == 0; i++)
        r = devices_start_upload(d, i, o->batch_size, error);
    if (r == 0 && d->gathers)
        r = devices_lock(d, o->fill.archive, error);
    for (uint32_t i = 0; i < d->count; i++) {
        if (r < 0) {
            upload_close(d->upload[i]);
            d->upload[i] = NULL;
            continue;
        }
        upload_keep(d->upload[i]);
        o->memory_ctx[i] = d->upload[i];
    }
    return r;
}

/* ---- measurements and errors ---- */

static void devices_wait(const struct loader_devices *d)
{
    d->device[0]->type->range("onepot wait");
}

static void devices_waited(struct loader_devices *d, bool counts, uint64_t epoch, uint64_t ns)
{
    d->device[0]->type->range(NULL);
    for (uint32_t i = 0; i < d->count && counts; i++)
        upload_waited(d->upload[i], epoch, i ? 0 : ns);
}

static int devices_error(struct loader_devices *d, uint32_t device, struct onepot_error *error)
{
    return upload_error(d->upload[device], error);
}

static const char *devices_name(const struct loader_devices *d, uint32_t device)
{
    return d->device[device]->name;
}

static void add_transfer(struct onepot_transfer *to, const struct onepot_transfer *more)
{
    to->wait_ns += more->wait_ns;
    to->batches += more->batches;
    to->copy_bytes += more->copy_bytes;
    to->copy_ns += more->copy_ns;
}

/* If training has all the memory, that is no reason to fail. */
static int slowest_peak(const struct loader_devices *d, struct onepot_error *error,
                        uint64_t *ret_peak)
{
    *ret_peak = UINT64_MAX;
    for (uint32_t i = 0; i < d->count; i++) {
        uint64_t peak = 0;
        int r = onepot_device_peak(d->device[i], error, &peak);
        if (r < 0 && r != -ENOMEM)
            return r;
        *ret_peak = peak < *ret_peak ? peak : *ret_peak;
    }
    return 0;
}

static int devices_transfer(struct loader_devices *d, bool previous, struct onepot_error *error,
                            struct onepot_transfer *ret_transfer)
{
    struct onepot_transfer transfer, more;
    uint64_t peak;
    int r = slowest_peak(d, error, &peak);
    if (r < 0)
        return r;
    upload_transfer(d->upload[0], previous, &transfer);
    for (uint32_t i = 1; i < d->count; i++) {
        upload_transfer(d->upload[i], previous, &more);
        add_transfer(&transfer, &more);
    }
    transfer.peak_bytes_per_second = peak;
    return result_write(ret_transfer, &transfer, sizeof(transfer), error);
}

static const struct accelerator devices = {
    .plan = devices_plan,
    .start = devices_start,
    .wait = devices_wait,
    .waited = devices_waited,
    .error = devices_error,
    .name = devices_name,
    .transfer = devices_transfer,
    .close = devices_close,
};

const struct accelerator *const loader_accelerator = &devices;

/* ---- the size of a batch ---- */

int onepot_device_batch_size(struct onepot_device *device, const struct onepot_archive *archive,
                             struct onepot_error *error, uint64_t *ret_samples)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    uint64_t mean, worst;
    int r = onepot_device_info(device, error, &info);
    if (r < 0)
        return r;
    r = onepot_archive_batch_for(archive, info.free_bytes / ONEPOT_DEVICE_BATCHES, 0, &mean,
                                 &worst);
    if (r < 0)
        return error_set(error, r, "no memory for the sizes of samples");
    *ret_samples = worst > 8 ? worst & ~UINT64_C(7) : worst;
    return 0;
}
