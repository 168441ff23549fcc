/*
 * Locking a mapping costs no memory, but not every driver can lock pages that it must not write
 * to, and older ones mark the pages of a file as changed: then all of it would be written back.
 * If a driver can't, a copy is made, which every driver can lock.
 *
 * A driver faults pages in one after another while it locks them. Several threads, with one
 * call for each range, take a fraction of that time.
 */
#include "upload.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "budget.h"
#include "share.h"
#include "error.h"
#include "numbers.h"
#include "thread.h"
#include "dataset.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

#define PART_BYTES (UINT64_C(64) << 20)
#define THREADS 4u /* beside the loader's, which gather meanwhile */
#define STACK_BYTES (64u << 10)

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

/* ---- what can be collected ---- */

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

static int check_room(const struct dataset *d, uint64_t room, struct onepot_error *error)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->pot_count; i++)
        bytes += source_size(d->pots[i]->source);
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
    int r = map ? locked_bring(d->pots[i]->source) : 0;
    if (r < 0)
        return error_errno(error, r, d->pots[i]->path);
    piece->bytes = source_size(d->pots[i]->source);
    if (!map || !piece->bytes)
        return 0; /* no sample is in this archive */
    bring_all(map, NULL, piece->bytes);
    if (l->type->lock(l->device->device, map, piece->bytes,
                      !source_is_memory(d->pots[i]->source), error) == 0)
        piece->mapped = map;
    else
        r = lock_copy(l, piece, d->pots[i]->source, map, error);
    return r;
}

/* ---- reports to the rest of the job ---- */

static uint64_t locked_use(void *ctx, uint64_t bytes)
{
    (void)ctx;
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
        claim_update(l->claim, locked_use, NULL);
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
    int r = check_room(d, room_bytes, error);
    if (r < 0)
        return r;
    struct locked *l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(error, -ENOMEM, "no memory for a loader");
    l->users = 1;
    l->type = device->type;
    l->count = d->pot_count;
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

struct locked *locked_keep(struct locked *locked)
{
    atomic_fetch_add(&locked->users, 1);
    return locked;
}

int locked_see(const struct locked *locked, const struct onepot_device *device,
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

void locked_find(const struct locked *locked, const uint64_t *bases, const uint64_t *samples,
                 uint64_t count, uint64_t *ret_addresses)
{
    for (uint64_t i = 0; i < count; i++) {
        const struct record *record = archive_first(locked->archive, samples[i]);
        ret_addresses[i] = bases[record_archive(record)] + record_offset(record);
    }
}
