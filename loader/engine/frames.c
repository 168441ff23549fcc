/*
 * Blocks of a batch for a device: found when the batch is planned, each once, in the order of
 * the archives, and read while it is gathered, a part of them with each run of samples. A block
 * that can't be read, or is not what the host has seen, is refused like one that the device
 * does not decompress: the host then finds out what is wrong with its samples.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fill.h"
#include "frames.h"
#include "numbers.h"
#include "view.h"

/* ---- which blocks ---- */

/* The part of a file that one block has, from byte `at` on. False: the host has to read it. */
static bool find_part(const struct dataset *d, uint64_t record, uint64_t at,
                      struct frames_part *ret_part)
{
    const struct record *file = &d->records[record];
    uint32_t archive = record_archive(file);
    struct extent extent;
    if (index_extent(d->pots[archive]->index, file->entry, at, &extent) < 0 ||
        extent.kind != EXTENT_BLOCK || extent.source_offset >= RECORD_OFFSET_NONE ||
        !proofs_get(&d->proofs[archive], &extent, &ret_part->proof))
        return false;
    ret_part->where = (uint64_t)archive << RECORD_OFFSET_BITS | extent.source_offset;
    ret_part->record = record;
    ret_part->packed = extent.packed_bytes;
    ret_part->from = extent.block_offset;
    ret_part->bytes = min_u64(extent.length, file->size_bytes - at);
    return true;
}

/* All parts of a sample, or none of them. */
static void add_sample(const struct fill_plan *plan, struct frames_list *list, uint64_t sample,
                       uint64_t i, uint64_t to)
{
    const struct dataset *d = plan->archive->dataset;
    size_t before = list->parts.count;
    uint64_t first, end;
    archive_records(plan->archive, sample, &first, &end);
    bool is_whole = archive_check(plan->archive, sample, &(uint64_t){0}) == 0;
    for (; first < end && is_whole; first++) {
        for (uint64_t at = 0; at < d->records[first].size_bytes && is_whole;) {
            struct frames_part part = {.sample = i, .to = to};
            is_whole = find_part(d, first, at, &part) && vector_push(&list->parts, part) == 0;
            at += part.bytes;
            to += part.bytes;
        }
    }
    if (!is_whole)
        list->parts.count = before;
}

static int compare_parts(const void *a, const void *b)
{
    const struct frames_part *x = a, *y = b;
    if (x->where != y->where)
        return x->where < y->where ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static bool is_next_frame(const struct frames_list *list, size_t i)
{
    return i == 0 || list->parts.at[i].where != list->parts.at[i - 1].where;
}

/* The frames, and the tables about them; what is packed comes last. */
static size_t frames_head(const struct frames_list *list, uint64_t count)
{
    return slab_rounded(sizeof(struct frames)) + slab_rounded(count) +
           slab_rounded(list->frames * sizeof(struct device_frame)) +
           slab_rounded(list->parts.count * sizeof(struct device_piece));
}

size_t frames_plan(const struct fill_plan *plan, const uint64_t *indices,
                   const uint64_t *offsets, uint64_t count, struct frames_list *list)
{
    uint64_t packed = 0, bytes = 0;
    list->parts.count = 0;
    list->frames = list->room = 0;
    for (uint64_t i = 0; i < count; i++)
        add_sample(plan, list, indices[i], i, offsets[i]);
    if (list->parts.count == 0)
        return 0;
    qsort(list->parts.at, list->parts.count, sizeof(*list->parts.at), compare_parts);
    for (size_t i = 0; i < list->parts.count; i++) {
        bytes += list->parts.at[i].bytes;
        if (!is_next_frame(list, i))
            continue;
        list->frames++;
        packed += list->parts.at[i].packed;
        list->room += slab_rounded(list->parts.at[i].packed);
    }
    if (plan->decompress == ONEPOT_DECOMPRESS_AUTO && packed > bytes)
        return 0;
    list->room += slab_rounded(device_work_tables(list->frames, list->parts.count));
    return SLAB_ALIGN + frames_head(list, count) + list->room;
}

void frames_lay_out(struct slab *slab, const struct frames_list *list, size_t at)
{
    uint8_t *room = slab->memory + slab_rounded(at);
    struct frames *f = (struct frames *)(void *)room;
    struct device_work *w = &f->work;
    room += slab_rounded(sizeof(*f));
    f->samples = memset(room, FRAMES_HOST, slab->batch.samples);
    room += slab_rounded(slab->batch.samples);
    *w = (struct device_work){.bytes = list->room, .to_bytes = slab->batch.bytes};
    w->frames = (struct device_frame *)(void *)room;
    room += slab_rounded(list->frames * sizeof(*w->frames));
    w->pieces = (struct device_piece *)(void *)room;
    w->memory = room + slab_rounded(list->parts.count * sizeof(*w->pieces));
    uint64_t to = slab_rounded(device_work_tables(list->frames, list->parts.count));
    for (size_t i = 0; i < list->parts.count; i++) {
        const struct frames_part *p = &list->parts.at[i];
        if (is_next_frame(list, i)) {
            w->frames[w->frame_count++] =
                (struct device_frame){.at = to,
                                      .packed = p->packed,
                                      .bytes = p->proof.bytes,
                                      .sum = p->proof.sum,
                                      .packed_sum = p->proof.packed_sum,
                                      .where = p->where,
                                      .record = p->record};
            to += slab_rounded(p->packed);
        }
        w->pieces[w->piece_count++] = (struct device_piece){.frame = w->frame_count - 1,
                                                            .from = p->from,
                                                            .bytes = p->bytes,
                                                            .to = p->to,
                                                            .sample = p->sample};
        f->samples[p->sample] = FRAMES_DEVICE;
    }
    slab->frames = f;
}

/* ---- reading them ---- */

static int bring_frame(struct filler *filler, struct dataset *d, const struct device_frame *f,
                       uint8_t *to)
{
    const uint32_t archive = (uint32_t)(f->where >> RECORD_OFFSET_BITS);
    const uint64_t offset = f->where & RECORD_OFFSET_NONE;
    const struct source *source = d->sources[archive];
    if (!d->maps[archive] || source_was_cut(source) ||
        (d->brings[archive] && !source_has(source, offset, f->packed)))
        return fill_read_archive(filler, d, f->record, offset, to, f->packed);
    memcpy(to, d->maps[archive] + offset, f->packed);
    return 0;
}

int frames_bring(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                 uint64_t first, uint64_t end, uint64_t *ret_bad_record)
{
    struct device_work *w = &slab->frames->work;
    const uint64_t count = slab->batch.samples;
    for (uint64_t i = first * w->frame_count / count; i < end * w->frame_count / count; i++) {
        struct device_frame *f = &w->frames[i];
        uint8_t *to = w->memory + f->at;
        int r = bring_frame(filler, plan->archive->dataset, f, to);
        *ret_bad_record = f->record;
        if (r == -ECANCELED)
            return r;
        f->refused = r < 0 || proof_packed_sum(to, f->packed) != f->packed_sum;
    }
    return 0;
}

/* ---- what is left ---- */

int frames_rest(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                uint64_t *ret_done, uint64_t *skipped, uint64_t *ret_bad_record)
{
    const struct frames *f = slab->frames;
    uint64_t done = 0;
    int r = 0;
    for (uint64_t i = 0; i < f->work.piece_count; i++)
        if (f->work.frames[f->work.pieces[i].frame].refused)
            f->samples[f->work.pieces[i].sample] = FRAMES_REFUSED;
    for (uint64_t i = 0; i < slab->batch.samples && r == 0; i++) {
        done += frames_has(f, i);
        if (f->samples[i] == FRAMES_REFUSED)
            r = fill_samples(plan, filler, slab, i, i + 1, skipped, ret_bad_record);
    }
    *ret_done = done;
    return r;
}
