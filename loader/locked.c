/*
 * Locking what is mapped costs no memory, but not every driver can lock pages that it must not
 * write to; then a copy is made, which any of them can.
 */
#include "locked.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "view.h"

#define MEASURE_BYTES (32u << 20)
#define MEASURE_SAMPLES 4096u
#define MEASURE_STEP 7919u /* a prime: samples that lie apart */
#define ALIGN 64u

/* One archive. */
struct piece {
    const void *mapped; /* locked where it lies, or */
    void *copy;
    size_t bytes;
};

struct locked {
    struct onepot_archive *archive; /* its own handle: batches may outlive their loader */
    struct onepot_device *device;
    const struct device_type *type;
    struct piece *pieces;
    uint64_t *bases;
    size_t count;
};

/* ---- what can be collected ---- */

/* Every sample is one piece of a mapped archive. */
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

/* All of it is there, and as long as it should be: else reading the mapping would be a SIGBUS.
 */
static int bring(const struct source *source)
{
    struct stat st;
    int r = source_bring(source, 0, source_size(source));
    if (r < 0)
        return r;
    if (fstat(source_map_fd(source), &st) < 0)
        return -errno;
    return S_ISREG(st.st_mode) && (uint64_t)st.st_size < source_size(source) ? -ENODATA : 0;
}

/* ---- locking ---- */

static int lock_copy(struct locked *l, struct piece *piece, const void *map,
                     struct onepot_error *error)
{
    int r = l->type->allocate(l->device->device, DEVICE_MEMORY_LOCKED, piece->bytes, error,
                              &piece->copy);
    if (r == 0)
        memcpy(piece->copy, map, piece->bytes);
    return r;
}

static int lock_piece(struct locked *l, size_t i, const struct dataset *d,
                      struct onepot_error *error)
{
    struct piece *piece = &l->pieces[i];
    const void *map = d->maps[i];
    int r = map ? bring(d->pots[i]->source) : 0;
    if (r < 0)
        return error_errno(error, r, d->pots[i]->path);
    piece->bytes = source_size(d->pots[i]->source);
    if (!map || !piece->bytes)
        return 0; /* no sample is in it */
    if (l->type->lock(l->device->device, map, piece->bytes, error) == 0)
        piece->mapped = map;
    else
        r = lock_copy(l, piece, map, error);
    if (r == 0)
        r = l->type->address(l->device->device, piece->mapped ? piece->mapped : piece->copy,
                             error, &l->bases[i]);
    return r;
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
    l->device = device;
    l->type = device->type;
    l->count = d->pot_count;
    l->archive = archive_share(archive);
    l->pieces = calloc(l->count + 1, sizeof(*l->pieces));
    l->bases = calloc(l->count + 1, sizeof(*l->bases));
    r = l->archive && l->pieces && l->bases
            ? 0
            : error_set(error, -ENOMEM, "no memory for a loader");
    for (size_t i = 0; i < l->count && r == 0; i++)
        r = lock_piece(l, i, d, error);
    if (r < 0) {
        locked_free(l);
        return r;
    }
    *ret_locked = l;
    return 0;
}

void locked_free(struct locked *locked)
{
    if (!locked)
        return;
    for (size_t i = 0; locked->pieces && i < locked->count; i++) {
        const struct piece *piece = &locked->pieces[i];
        if (piece->mapped)
            locked->type->unlock(locked->device->device, piece->mapped, piece->bytes);
        if (piece->copy)
            locked->type->release(locked->device->device, DEVICE_MEMORY_LOCKED, piece->copy,
                                  piece->bytes);
    }
    onepot_archive_close(locked->archive);
    free(locked->pieces);
    free(locked->bases);
    free(locked);
}

const uint64_t *locked_bases(const struct locked *locked)
{
    return locked->bases;
}

/* ---- how fast it is ---- */

struct trial {
    uint64_t *tables; /* page-locked: from, offsets, sizes */
    uint8_t *memory;  /* the device's: data, then the tables */
    void *stream, *begun, *ended;
    uint64_t count, bytes;
};

#define TRIAL_TABLES (3 * MEASURE_SAMPLES * sizeof(uint64_t))

static int trial_make(const struct locked *l, struct trial *t, struct onepot_error *error)
{
    void *device = l->device->device, *tables = NULL, *memory = NULL;
    int r = l->type->stream_new(device, error, &t->stream);
    if (r == 0)
        r = l->type->event_new(device, error, &t->begun);
    if (r == 0)
        r = l->type->event_new(device, error, &t->ended);
    if (r == 0)
        r = l->type->allocate(device, DEVICE_MEMORY_LOCKED, TRIAL_TABLES, error, &tables);
    t->tables = tables;
    if (r == 0)
        r = l->type->allocate(device, DEVICE_MEMORY_OWN, MEASURE_BYTES + TRIAL_TABLES, error,
                              &memory);
    t->memory = memory;
    return r;
}

static void trial_free(const struct locked *l, struct trial *t)
{
    void *device = l->device->device;
    if (t->stream)
        l->type->stream_free(device, t->stream);
    if (t->begun)
        l->type->event_free(device, t->begun);
    if (t->ended)
        l->type->event_free(device, t->ended);
    if (t->tables)
        l->type->release(device, DEVICE_MEMORY_LOCKED, t->tables, TRIAL_TABLES);
    if (t->memory)
        l->type->release(device, DEVICE_MEMORY_OWN, t->memory, MEASURE_BYTES + TRIAL_TABLES);
}

/* Samples far from each other, as many as there is room for. */
static void trial_choose(const struct locked *l, const struct onepot_archive *archive,
                         struct trial *t)
{
    const struct dataset *d = archive->dataset;
    uint64_t at = 0;
    for (uint64_t i = 0; i < MEASURE_SAMPLES && i < archive->count; i++) {
        uint64_t first, end;
        archive_records(archive, i * MEASURE_STEP % archive->count, &first, &end);
        const struct record *record = &d->records[first];
        if (record->size_bytes > MEASURE_BYTES - at)
            break;
        t->tables[i] = l->bases[record_archive(record)] + record_offset(record);
        t->tables[MEASURE_SAMPLES + i] = at;
        t->tables[2 * MEASURE_SAMPLES + i] = record->size_bytes;
        at = (at + record->size_bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
        t->bytes += record->size_bytes;
        t->count++;
        if (at > MEASURE_BYTES)
            break;
    }
}

/* Twice, because what is done first pays for more than itself. */
static int trial_run(const struct locked *l, const struct trial *t, struct onepot_error *error,
                     uint64_t *ret_ns)
{
    void *device = l->device->device;
    const uint64_t *tables = (const uint64_t *)(const void *)(t->memory + MEASURE_BYTES);
    struct device_gather gather = {.to = t->memory,
                                   .count = t->count,
                                   .from = tables,
                                   .offsets = tables + MEASURE_SAMPLES,
                                   .sizes = tables + 2 * MEASURE_SAMPLES};
    gather.bytes = t->tables[MEASURE_SAMPLES + t->count - 1] +
                   t->tables[2 * MEASURE_SAMPLES + t->count - 1];
    int r = l->type->copy(device, t->stream, t->memory + MEASURE_BYTES, t->tables, TRIAL_TABLES,
                          error);
    for (unsigned i = 0; i < 2 && r == 0; i++) {
        r = l->type->record(device, t->begun, t->stream, error);
        if (r == 0)
            r = l->type->gather(device, t->stream, &gather, error);
    }
    if (r == 0)
        r = l->type->record(device, t->ended, t->stream, error);
    if (r == 0)
        r = l->type->stream_wait(device, t->stream, error);
    return r < 0 ? r : l->type->elapsed(device, t->begun, t->ended, error, ret_ns);
}

int locked_measure(const struct locked *locked, const struct onepot_archive *archive,
                   struct onepot_error *error, uint64_t *ret_bytes_per_second)
{
    struct trial t = {0};
    uint64_t ns = 0;
    int r = trial_make(locked, &t, error);
    if (r == 0) {
        trial_choose(locked, archive, &t);
        r = t.count ? trial_run(locked, &t, error, &ns)
                    : error_set(error, -ENOTSUP, "there is nothing to gather");
    }
    trial_free(locked, &t);
    if (r < 0)
        return r;
    *ret_bytes_per_second = (uint64_t)((double)t.bytes * 1e9 / (double)(ns ? ns : 1));
    return 0;
}
