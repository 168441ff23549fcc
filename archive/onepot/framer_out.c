/*
 * The framer's output. Frames go to the file: compressed ones, or raw ones that are written by
 * hand (zstd's format: RFC 8878). The place of each member's data goes to the index. framer.c
 * explains the two kinds.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "framer_private.h"

#define RAW_HEADER_BYTES 9u

/* ---- places of members' data ---- */

/* Records where a part of the member's data lies in the file. */
static int add_piece(struct framer *f, const struct builder_piece *piece)
{
    if (framer_grow(&f->pieces, f->piece_count, 1, &f->piece_capacity, sizeof(*f->pieces)) < 0)
        return -ENOMEM;
    f->pieces[f->piece_count++] = *piece;
    return 0;
}

/* The part of a piece from `skip` on with this `length`, placed at `offset`. */
static struct builder_piece cut_piece(const struct builder_piece *piece, uint64_t skip,
                                      uint64_t length, uint64_t offset)
{
    struct builder_piece cut = *piece;
    cut.offset = offset;
    cut.length = length;
    if (piece->fragment == BUILDER_NO_FRAGMENT)
        cut.source_offset += skip;
    else
        cut.fragment_offset += (uint32_t)skip;
    return cut;
}

/* The pieces describe the data as it is stored; moves them to where the extents put it. */
static int spread_pieces(struct framer *f, const struct map *map)
{
    struct builder_piece *stored = f->pieces;
    size_t count = f->piece_count, piece = 0;
    uint64_t skip = 0;
    f->pieces = NULL;
    f->piece_count = f->piece_capacity = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < map->count; i++) {
        for (uint64_t at = 0; r == 0 && at < map->extents[i].length;) {
            uint64_t length = map->extents[i].length - at;
            if (piece == count) {
                r = -EINVAL;
                break;
            }
            if (length > stored[piece].length - skip)
                length = stored[piece].length - skip;
            struct builder_piece cut =
                cut_piece(&stored[piece], skip, length, map->extents[i].offset + at);
            r = add_piece(f, &cut);
            at += length;
            skip += length;
            if (skip == stored[piece].length) {
                piece++;
                skip = 0;
            }
        }
    }
    free(stored);
    return r;
}

/* All data of an inode was written. */
static int end_pieces(struct framer *f, uint32_t inode)
{
    struct map *map = f->first_map;
    int r = 0;
    if (map && map->inode == inode) {
        r = spread_pieces(f, map);
        f->first_map = map->next;
        free(map);
    }
    if (r == 0)
        r = builder_set_pieces(f->w->builder, inode, f->pieces, f->piece_count);
    f->piece_count = 0;
    return r;
}

/* ---- frames ---- */

/* Writes the compressed frame to the file, and its places to the index. */
static int emit_packed(struct framer *f, struct frame *frame, struct fault *fault)
{
    struct builder_block block = {
        .source_offset = f->w->offset,
        .packed_bytes = (uint32_t)frame->job.out_len,
        .block_bytes = (uint32_t)frame->len,
    };
    uint32_t number;
    int r = builder_add_fragment(f->w->builder, &block, &number);
    for (size_t i = 0; r == 0 && i < frame->place_count; i++) {
        const struct place *p = &frame->places[i];
        struct builder_piece piece = {.offset = p->stream,
                                      .length = p->length,
                                      .fragment = number,
                                      .fragment_offset = p->offset};
        r = add_piece(f, &piece);
        if (r == 0 && p->last)
            r = end_pieces(f, p->inode);
    }
    if (r < 0)
        return r;
    uint8_t *out = frame->job.out;
    frame->job.out = NULL;
    return writer_put_rest(f->w, out, frame->job.out_len, out, fault);
}

/* Progress through the parts and places of a raw frame that is being written. */
struct raw_writer {
    struct framer *f;
    struct frame *frame;
    size_t part, part_done;
    size_t place;
    size_t at;      /* in the frame's content */
    uint8_t *heads; /* headers of the frame and its blocks; the queue will own them */
};

/* Where the block that begins at `start` ends: between members, if possible. */
static size_t block_end(const struct raw_writer *raw, size_t start)
{
    const struct frame *frame = raw->frame;
    size_t end = frame->len - start < RAW_BLOCK_BYTES ? frame->len : start + RAW_BLOCK_BYTES;
    for (size_t i = raw->place; end < frame->len && i < frame->place_count; i++) {
        const struct place *p = &frame->places[i];
        if (p->offset >= end)
            break;
        if (p->offset > start && (size_t)p->offset + p->length > end)
            end = p->offset;
    }
    return end;
}

/* Writes the next `len` bytes of the content, which are member data or not. */
static int put_parts(struct raw_writer *raw, size_t len, bool data, struct fault *fault)
{
    raw->at += len;
    while (len > 0) {
        struct part *part = &raw->frame->parts[raw->part];
        size_t n = part->len - raw->part_done < len ? part->len - raw->part_done : len;
        uint8_t *bytes = part->bytes + raw->part_done;
        void *owned = NULL;
        raw->part_done += n;
        len -= n;
        if (raw->part_done == part->len) {
            owned = part->owned;
            part->owned = NULL;
            raw->part++;
            raw->part_done = 0;
        }
        int r = data ? writer_put_data(raw->f->w, bytes, n, owned, fault)
                     : writer_put_rest(raw->f->w, bytes, n, owned, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Writes data of the current place, up to `end`. */
static int put_place(struct raw_writer *raw, size_t end, struct fault *fault)
{
    const struct place *p = &raw->frame->places[raw->place];
    size_t place_end = (size_t)p->offset + p->length;
    size_t len = (place_end < end ? place_end : end) - raw->at;
    struct builder_piece piece = {.offset = p->stream + (raw->at - p->offset),
                                  .length = len,
                                  .source_offset = raw->f->w->offset,
                                  .fragment = BUILDER_NO_FRAGMENT};
    int r = add_piece(raw->f, &piece);
    if (r == 0 && raw->at + len == place_end) {
        raw->place++;
        if (p->last)
            r = end_pieces(raw->f, p->inode);
    }
    return r < 0 ? r : put_parts(raw, len, true, fault);
}

/* Writes the content up to `end`: places and the bytes between them. */
static int put_block(struct raw_writer *raw, size_t end, struct fault *fault)
{
    int r = 0;
    while (r == 0 && raw->at < end) {
        size_t next = end;
        if (raw->place < raw->frame->place_count && raw->frame->places[raw->place].offset < end)
            next = raw->frame->places[raw->place].offset;
        r = next > raw->at ? put_parts(raw, next - raw->at, false, fault)
                           : put_place(raw, end, fault);
    }
    return r;
}

/* A block's header: its length, no compression, whether it is the last. */
static void put_block_head(uint8_t *head, size_t len, bool last)
{
    uint32_t word = (uint32_t)len << 3 | last;
    head[0] = (uint8_t)word;
    head[1] = (uint8_t)(word >> 8);
    head[2] = (uint8_t)(word >> 16);
}

/* Magic; descriptor: content size in 4 bytes, which is also the window; content size. */
static void put_frame_head(uint8_t *head, size_t len)
{
    static const uint8_t fixed[] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0};
    uint32_t size = htole32((uint32_t)len);
    memcpy(head, fixed, sizeof(fixed));
    memcpy(head + sizeof(fixed), &size, sizeof(size));
}

/* Upper limit: each block but the last is full, or ends where a place begins. */
static size_t most_blocks(const struct frame *frame)
{
    return frame->len / RAW_BLOCK_BYTES + frame->place_count + 1;
}

static int emit_raw(struct framer *f, struct frame *frame, struct fault *fault)
{
    struct raw_writer raw = {.f = f, .frame = frame};
    raw.heads = malloc(RAW_HEADER_BYTES + 3 * most_blocks(frame));
    if (!raw.heads)
        return -ENOMEM;
    uint8_t *head = raw.heads;
    put_frame_head(head, frame->len);
    int r = writer_put_rest(f->w, head, RAW_HEADER_BYTES, NULL, fault);
    head += RAW_HEADER_BYTES;
    bool owned = false;
    while (r == 0 && raw.at < frame->len) {
        size_t end = block_end(&raw, raw.at);
        owned = end == frame->len;
        put_block_head(head, end - raw.at, owned);
        r = writer_put_rest(f->w, head, 3, owned ? raw.heads : NULL, fault);
        head += 3;
        if (r == 0)
            r = put_block(&raw, end, fault);
    }
    if (!owned)
        free(raw.heads); /* what is queued of them will not be written any more */
    return r;
}

int framer_emit(struct framer *f, struct frame *frame, struct fault *fault)
{
    int r = frame->job.error;
    if (r == 0 && frame->job.out) {
        r = emit_packed(f, frame, fault);
    } else if (r == 0) {
        if (frame->in) {
            uint8_t *in = frame->in;
            size_t len = frame->len;
            frame->in = NULL;
            frame->len = 0;
            r = framer_add_part(frame, in, len, in);
        }
        if (r == 0)
            r = emit_raw(f, frame, fault);
    }
    framer_free_frame(frame);
    return r;
}
