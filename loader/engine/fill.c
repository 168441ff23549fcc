/*
 * The hot path: a sample that is stored as it is in a mapped archive costs one memcpy. After a
 * run of these, the archive is asked once whether all of it is still there. If not, the run is
 * done again by reads, which show which samples are lost.
 */
#include "fill.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "copy_past.h"
#include "error.h"
#include "dataset.h"
#include "numbers.h"

/* A watcher sees a longer read as several: storage may be slow, but it moves. */
#define READ_BYTES (UINT64_C(8) << 20)

#define ALIGN_MAX (1u << 20)

#define BUFFER_KEPT (8u << 20) /* from one picture to the next */

/* ---- places ---- */

int fill_check_align(uint32_t align, struct onepot_error *error)
{
    if (align & (align - 1) || align > ALIGN_MAX)
        return error_set(error, -EINVAL, "an alignment of %u is not a power of two up to %u",
                         align, ALIGN_MAX);
    return 0;
}

static bool place_alone(const struct fill_plan *plan, uint64_t size, uint64_t *at,
                        uint64_t *ret_offset)
{
    uint64_t start, mask = plan->align - 1;
    if (__builtin_add_overflow(*at, mask, &start))
        return false;
    *ret_offset = start & ~mask;
    return !__builtin_add_overflow(*ret_offset, size, at);
}

bool fill_places(const struct fill_plan *plan, const uint64_t *indices, uint64_t count,
                 uint64_t *ret_offsets, uint64_t *ret_sizes, uint64_t *ret_bytes)
{
    uint64_t at = 0;
    if (plan->stride || plan->npy) { /* arrays without elements have one size, too */
        for (uint64_t i = 0; i < count; i++) {
            ret_offsets[i] = i * plan->stride;
            ret_sizes[i] = plan->stride;
        }
        return !__builtin_mul_overflow(plan->stride, count, ret_bytes);
    }
    for (uint64_t i = 0; i < count; i++) {
        bool fits = archive_check(plan->archive, indices[i], &(uint64_t){0}) == 0;
        ret_sizes[i] = fits ? archive_size(plan->archive, indices[i]) : 0; /* see fill_one */
        if (!place_alone(plan, ret_sizes[i], &at, &ret_offsets[i]))
            return false;
    }
    *ret_bytes = at;
    return true;
}

void fill_tables(const struct fill_plan *plan, struct slab *slab, const uint64_t *indices,
                 const uint64_t *offsets, const uint64_t *sizes)
{
    uint64_t count = slab->batch.samples;
    bool has_parts = plan->archive->dataset->label_part; /* that are read with the sample */
    for (uint64_t i = 0; i < count; i++)
        slab->labels[i] = has_parts ? -1 : archive_first(plan->archive, indices[i])->label;
    memcpy(slab->indices, indices, count * sizeof(*indices));
    memcpy(slab->offsets, offsets, count * sizeof(*offsets));
    memcpy(slab->sizes, sizes, count * sizeof(*sizes));
    memset(slab->valid, 1, count);
}

/* ---- bytes ---- */

/* A sample is copied from this mapping now. What was copied from another one is checked. */
static void use_mapping(struct filler *filler, struct source *source, uint64_t offset,
                        uint64_t len)
{
    if (filler->mapped && filler->mapped == source) {
        filler->mapped_from = min_u64(filler->mapped_from, offset);
        filler->mapped_to = max_u64(filler->mapped_to, offset + len);
        return;
    }
    if (filler->mapped && !source_range_is_whole(filler->mapped, filler->mapped_from,
                                                 filler->mapped_to - filler->mapped_from))
        filler->is_torn = true;
    filler->mapped = source;
    filler->mapped_from = offset;
    filler->mapped_to = offset + len;
}

/* Is all that was copied since the last call intact? If not, it must be copied again. */
static bool was_whole(struct filler *filler)
{
    use_mapping(filler, NULL, 0, 0);
    bool whole = !filler->is_torn;
    filler->is_torn = false;
    return whole;
}

/* ---- reads, which may take long ---- */

static void begin_read(struct filler *filler, const struct dataset *d)
{
    atomic_store_explicit(&filler->record, filler->present, memory_order_relaxed);
    atomic_store(&filler->since_ns, dataset_now_ns(d));
}

static int end_read(struct filler *filler, int result)
{
    atomic_store(&filler->since_ns, 0);
    return atomic_load(&filler->given_up) ? -ECANCELED : result;
}

static int fill_read_file(struct filler *filler, struct dataset *d, const struct record *record,
                          uint8_t *to)
{
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < record->size_bytes; at += READ_BYTES) {
        uint64_t left = record->size_bytes - at;
        begin_read(filler, d);
        r = cursor_read(d, filler->cursor, record, at, to + at,
                        (size_t)(left < READ_BYTES ? left : READ_BYTES));
        r = end_read(filler, r);
    }
    return r;
}

/* Bring the record into the mapping, if it is not there yet. */
static int fill_bring(struct filler *filler, const struct dataset *d,
                      const struct record *record)
{
    const struct source *source = d->sources[record_archive(record)];
    if (!d->brings[record_archive(record)] ||
        source_has(source, record_offset(record), record->size_bytes))
        return 0;
    begin_read(filler, d);
    int r = source_bring(source, record_offset(record), record->size_bytes);
    return end_read(filler, r);
}

/* All bytes of a file, in the mapping. NULL and 0: they have to be read. */
static int mapped_bytes(struct filler *filler, const struct dataset *d,
                        const struct record *record, const uint8_t **ret_bytes)
{
    uint32_t archive = record_archive(record);
    const uint8_t *map = d->maps[archive];
    struct source *source = d->sources[archive];
    *ret_bytes = NULL;
    if (!map || record_offset(record) == RECORD_OFFSET_NONE || source_was_cut(source))
        return 0;
    int r = fill_bring(filler, d, record);
    if (r < 0)
        return r == -ECANCELED ? r : 0;
    *ret_bytes = map + record_offset(record);
    use_mapping(filler, source, record_offset(record), record->size_bytes);
    return 0;
}

static void filler_free_buffer(struct filler *filler)
{
    free(filler->buffer);
    filler->buffer = NULL;
    filler->room = 0;
}

static int get_cursor(struct filler *filler, struct dataset *d)
{
    return filler->cursor ? 0 : cursor_get(d, NULL, &filler->cursor);
}

static int fill_copy_file(const struct fill_plan *plan, struct filler *filler,
                          const struct record *record, uint8_t *to)
{
    struct dataset *d = plan->archive->dataset;
    const uint8_t *bytes;
    int r = mapped_bytes(filler, d, record, &bytes);
    if (r < 0)
        return r;
    if (bytes) {
        if (plan->past)
            copy_past(to, bytes, record->size_bytes);
        else
            memcpy(to, bytes, record->size_bytes);
        return 0;
    }
    r = get_cursor(filler, d);
    if (r == 0)
        r = fill_read_file(filler, d, record, to);
    if (r == 0 && plan->foresee && filler->again != SLAB_NOT_AGAIN)
        cursor_again(d, filler->cursor, record, filler->again);
    return r;
}

static int fill_verify(const struct dataset *d, const struct record *record,
                       const uint8_t *bytes)
{
    const struct index *index = d->filesets[record_archive(record)]->index;
    uint32_t file = record_file(d, record);
    struct node node;
    uint64_t sum;
    int r = index_sum(index, file, &sum);
    if (r == -ENODATA)
        return 0;
    if (r == 0)
        r = index_node(index, file, &node);
    if (r < 0)
        return r;
    if (node.has_holes) /* the sum leaves holes out */
        return 0;
    return checksum_matches(index_info(index)->sum_kind, sum, bytes, record->size_bytes)
               ? 0
               : -EBADMSG;
}

/* The parts [first, end) of a sample, one after another. *bad is the record that failed. */
static int copy_records(const struct fill_plan *plan, struct filler *filler, uint64_t first,
                        uint64_t end, uint8_t *to, uint64_t *bad)
{
    struct dataset *d = plan->archive->dataset;
    for (; first < end; first++) {
        const struct record *record = &d->records[first];
        filler->present = first;
        int r = fill_copy_file(plan, filler, record, to);
        if (r == 0 && plan->verify)
            r = fill_verify(d, record, to);
        if (r < 0) {
            *bad = first;
            return r;
        }
        to += record->size_bytes;
    }
    return 0;
}

/* May a sample of this length be read into memory? */
static int check_length(const struct fill_plan *plan, struct filler *filler, uint64_t len)
{
    if (plan->npy && plan->kind.size && len > plan->kind.bytes + NPY_HEADER_MAX)
        return -EUCLEAN;
    return plan->images ? images_check_file(plan->budget, len, filler->why) : 0;
}

/* The bytes of a sample's parts wherever they are, for callers that only look at them. */
static int fill_record_bytes(const struct fill_plan *plan, struct filler *filler,
                             uint64_t first, uint64_t end, const uint8_t **ret_bytes,
                             uint64_t *ret_len, uint64_t *bad)
{
    struct dataset *d = plan->archive->dataset;
    const uint8_t *bytes = NULL;
    uint64_t len = 0;
    int r = 0;
    for (uint64_t i = first; i < end; i++)
        len += d->records[i].size_bytes;
    *bad = filler->present = first;
    if (end - first == 1 && !plan->verify)
        r = mapped_bytes(filler, d, &d->records[first], &bytes);
    if (r == 0 && !bytes) {
        r = check_length(plan, filler, len);
        if (r < 0)
            return r;
        if (len > filler->room) {
            filler_free_buffer(filler);
            filler->buffer = malloc(len);
            if (!filler->buffer)
                return -ENOMEM;
            filler->room = len;
        }
        bytes = filler->buffer;
        r = len ? copy_records(plan, filler, first, end, filler->buffer, bad) : 0;
    }
    *ret_bytes = bytes;
    *ret_len = len;
    return r;
}

static int fill_sample_bytes(const struct fill_plan *plan, struct filler *filler,
                             uint64_t sample, const uint8_t **ret_bytes, uint64_t *ret_len,
                             uint64_t *bad)
{
    uint64_t first, end;
    archive_records(plan->archive, sample, &first, &end);
    return fill_record_bytes(plan, filler, first, end, ret_bytes, ret_len, bad);
}

/* ---- decoding ---- */

/* Do both have the same type and shape? */
static int npy_same(const struct onepot_npy *a, const struct onepot_npy *b)
{
    return strcmp(a->type, b->type) == 0 && a->fortran_order == b->fortran_order &&
           a->dimensions == b->dimensions &&
           memcmp(a->shape, b->shape, a->dimensions * sizeof(a->shape[0])) == 0;
}

static int decode_npy(const struct fill_plan *plan, const uint8_t *bytes, uint64_t len,
                      uint8_t *to)
{
    struct onepot_npy npy;
    size_t start;
    int r = npy_parse(bytes, len, &npy, &start);
    if (r < 0)
        return -EUCLEAN;
    if (!npy_same(&npy, &plan->kind))
        return -EPROTOTYPE;
    if (len - start != npy.bytes)
        return -EUCLEAN;
    memcpy(to, bytes + start, npy.bytes);
    return 0;
}

/* The part that is a picture; all of it if none is known by its beginning. */
static void find_picture(const struct fill_plan *plan, uint64_t sample, const uint8_t **bytes,
                         uint64_t *len, uint64_t *bad)
{
    uint64_t first, end, at = 0;
    archive_records(plan->archive, sample, &first, &end);
    for (; first < end; first++) {
        uint64_t size = plan->archive->dataset->records[first].size_bytes;
        if (images_knows(*bytes + at, size)) {
            *bytes += at;
            *len = size;
            *bad = first;
            return;
        }
        at += size;
    }
}

/* The bytes of the part with this name. */
static int fill_part_bytes(const struct fill_plan *plan, struct filler *filler, uint64_t sample,
                           const char *name, const uint8_t **ret_bytes, uint64_t *ret_len,
                           uint64_t *bad)
{
    struct onepot_part part = {.size = sizeof(part)};
    uint64_t first, end, i = 0;
    archive_records(plan->archive, sample, &first, &end);
    *bad = first;
    for (int r = 0; first + i < end; i++) {
        r = onepot_archive_part(plan->archive, sample, i, &part);
        if (r < 0)
            return r;
        if (part.name_len == strlen(name) && memcmp(part.name, name, part.name_len) == 0)
            return fill_record_bytes(plan, filler, first + i, first + i + 1, ret_bytes, ret_len,
                                     bad);
    }
    snprintf(filler->why, sizeof(filler->why), "its sample has no part '%.99s'", name);
    return -EILSEQ;
}

static int decode_pictures(const struct fill_plan *plan, struct filler *filler,
                           struct slab *slab, uint64_t i, uint64_t *bad)
{
    const struct images_place place = {slab->seed, slab->batch.epoch, slab->indices[i]};
    uint8_t *to = slab->memory + slab->offsets[i];
    int r = 0;
    filler->scratch.budget = plan->budget;
    for (const struct images_plan *p = plan->images; r == 0 && p; p = p->next) {
        uint64_t len, end = p->next ? p->next->at : plan->stride;
        const uint8_t *bytes;
        r = *p->part ? fill_part_bytes(plan, filler, place.index, p->part, &bytes, &len, bad)
                     : fill_sample_bytes(plan, filler, place.index, &bytes, &len, bad);
        if (r == 0 && !*p->part)
            find_picture(plan, place.index, &bytes, &len, bad);
        if (r == 0)
            r = images_decode(p, &filler->scratch, &place, bytes, len, to + p->at, filler->why);
        memset(to + p->at + p->bytes, 0, end - p->at - p->bytes);
        if (filler->room > BUFFER_KEPT)
            filler_free_buffer(filler);
    }
    return r;
}

static int decode_sample(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                         uint64_t i, uint64_t *bad)
{
    const uint8_t *bytes;
    uint8_t *to = slab->memory + slab->offsets[i];
    uint64_t len, sample = slab->indices[i];
    if (plan->images)
        return decode_pictures(plan, filler, slab, i, bad);
    int r = fill_sample_bytes(plan, filler, sample, &bytes, &len, bad);
    if (r < 0)
        return r;
    if (plan->npy)
        return decode_npy(plan, bytes, len, to);
    size_t got = 0;
    r = plan->decode(plan->decode_ctx, sample, bytes, len, to, plan->stride, &got);
    if (r < 0)
        return r;
    if (got > plan->stride)
        return -EMSGSIZE;
    memset(to + got, 0, plan->stride - got);
    slab->sizes[i] = got;
    return 0;
}

static int first_kind(struct fill_plan *plan, struct filler *filler, uint64_t *bad)
{
    const uint8_t *bytes;
    uint64_t len;
    size_t start;
    int r = fill_sample_bytes(plan, filler, 0, &bytes, &len, bad);
    if (r == 0 && npy_parse(bytes, len, &plan->kind, &start) < 0)
        r = -EINVAL;
    return r;
}

int fill_npy_kind(struct fill_plan *plan, struct onepot_error *error)
{
    struct filler filler = {.again = SLAB_NOT_AGAIN};
    uint64_t bad = 0;
    if (onepot_archive_samples(plan->archive) == 0)
        return error_set(error, -EINVAL, "there are no samples to tell what kind they are");
    int r = archive_check(plan->archive, 0, &bad);
    if (r == 0)
        r = first_kind(plan, &filler, &bad);
    if (r < 0 && !was_whole(&filler))
        r = first_kind(plan, &filler, &bad);
    if (r < 0)
        dataset_error(error, r, plan->archive->dataset, &plan->archive->dataset->records[bad]);
    if (r == -EINVAL)
        error_set(error, r, "the first sample is not a .npy file of numbers");
    plan->stride = plan->kind.bytes;
    filler_free(&filler);
    return r;
}

/* ---- labels that are parts ---- */

static int fill_label(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                      uint64_t i, uint64_t *bad)
{
    struct dataset *d = plan->archive->dataset;
    const struct record *first = archive_first(plan->archive, slab->indices[i]);
    uint8_t text[LABEL_TEXT_MAX];
    struct record part;
    filler->present = (uint64_t)(first - d->records);
    *bad = filler->present | FILL_LABEL;
    int r = label_find(d, first, &part);
    if (r == -ENOENT)
        return 0;
    if (r == 0)
        r = fill_copy_file(plan, filler, &part, text);
    if (r == 0 && plan->verify)
        r = fill_verify(d, &part, text);
    return r < 0 ? r : label_parse(text, part.size_bytes, &slab->labels[i]);
}

/* ---- a run of samples ---- */

static void fill_prefetch(const struct fill_plan *plan, uint64_t sample)
{
    const struct record *record = archive_first(plan->archive, sample);
    const uint8_t *map = plan->archive->dataset->maps[record_archive(record)];
    if (!map || record_offset(record) == RECORD_OFFSET_NONE || record->size_bytes < 256)
        return;
    __builtin_prefetch(plan->archive->dataset->sources[record_archive(record)]);
    for (unsigned i = 0; i < 4; i++)
        __builtin_prefetch(map + record_offset(record) + 64 * i);
}

/* Clear the gap from the end of a sample to the next: it has bytes of an older batch. */
static void clear_gap(struct slab *slab, uint64_t i)
{
    uint64_t from = slab->offsets[i] + slab->sizes[i];
    uint64_t to = i + 1 < slab->batch.samples ? slab->offsets[i + 1] : slab->batch.bytes;
    memset(slab->memory + from, 0, to - from);
}

static int fill_one(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                    uint64_t i, uint64_t *bad)
{
    int r = archive_check(plan->archive, slab->indices[i], bad);
    filler->why[0] = '\0';
    if (r < 0)
        return r;
    filler->again = plan->foresee ? slab->again[i] : SLAB_NOT_AGAIN;
    if (plan->npy || plan->decode || plan->images)
        return decode_sample(plan, filler, slab, i, bad);
    uint64_t first, end;
    archive_records(plan->archive, slab->indices[i], &first, &end);
    return copy_records(plan, filler, first, end, slab->memory + slab->offsets[i], bad);
}

/* Replaces a picture that can't be decoded, if the plan says so. False: its error counts. */
static bool fill_replace(const struct fill_plan *plan, struct slab *slab, uint64_t i, int err)
{
    if (!plan->images || err != -EILSEQ || plan->images->o.on_error == ONEPOT_ERROR_RAISE)
        return false;
    uint8_t *to = slab->memory + slab->offsets[i];
    bool is_grey = plan->images->o.on_error == ONEPOT_ERROR_GREY;
    memset(to, 0, plan->stride); /* what lies between images, too */
    for (const struct images_plan *p = plan->images; is_grey && p; p = p->next)
        images_grey(p, to + p->at);
    if (!is_grey)
        slab->valid[i] = 0;
    return true;
}

static int fill_run(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                    uint64_t first, uint64_t end, uint64_t *skipped, uint64_t *bad)
{
    bool has_labels = plan->archive->dataset->label_part && slab->labels;
    bool has_data = !slab->tables_only;
    for (uint64_t i = first; i < end; i++) {
        *bad = 0;
        if (i + 1 < end && has_data)
            fill_prefetch(plan, slab->indices[i + 1]);
        int r = has_data ? fill_one(plan, filler, slab, i, bad) : 0;
        if (r < 0 && fill_replace(plan, slab, i, r)) {
            ++*skipped;
            r = 0;
        }
        if (r == 0 && has_labels)
            r = fill_label(plan, filler, slab, i, bad);
        if (r < 0 && !was_whole(filler)) {
            filler->is_torn = true; /* so is the whole run */
            return r;
        }
        if (r < 0 && (!plan->skip_errors || r == -ECANCELED))
            return r;
        if (r < 0) {
            slab->sizes[i] = 0;
            slab->valid[i] = 0;
            ++*skipped;
        }
        if (has_data && (!plan->stride || r < 0))
            clear_gap(slab, i);
    }
    return 0;
}

int fill_samples(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                 uint64_t first, uint64_t end, uint64_t *skipped, uint64_t *ret_bad_record)
{
    uint64_t before = *skipped;
    int r;
    if (slab->tables_only && !plan->archive->dataset->label_part)
        return 0;
    do {
        *skipped = before;
        r = fill_run(plan, filler, slab, first, end, skipped, ret_bad_record);
    } while (r != -ECANCELED && !was_whole(filler));
    if (r == 0 && plan->foresee && filler->cursor)
        cursor_advance(filler->cursor, end - first);
    return r;
}

int fill_error(struct onepot_error *error, int err, const struct dataset *dataset, uint64_t bad,
               const char *why)
{
    const struct record *record = &dataset->records[bad & ~FILL_LABEL];
    if (bad & FILL_LABEL)
        return label_error(error, err, dataset, record);
    if (*why)
        return dataset_error_because(error, err, dataset, record, why);
    return dataset_error(error, err, dataset, record);
}

void filler_free(struct filler *filler)
{
    if (filler->cursor)
        cursor_put(filler->cursor);
    free(filler->scratch.memory);
    filler_free_buffer(filler);
}
