/*
 * Brings in bytes that nobody asked for yet. Parts of files become pieces and compressed
 * blocks. Pieces are gathered until a round of reads is worth it, but not held back while this
 * thread waits for something else.
 */
#include <errno.h>

#include "reader_private.h"

/* Pieces that are MINE and not read yet. */
struct batch {
    struct reader *reader;
    struct reader_scratch *scratch;
    unsigned count;
    struct piece pieces[PIECES_MAX];
};

/* Reads the gathered pieces. */
static int flush(struct batch *batch)
{
    int err = 0;
    read_pieces(batch->reader, batch->scratch, batch->pieces, batch->count);
    for (unsigned i = 0; i < batch->count; i++) {
        if (batch->pieces[i].block)
            block_cache_put(batch->reader->cache, batch->pieces[i].block);
        else if (err == 0)
            err = batch->pieces[i].begun;
    }
    batch->count = 0;
    return err;
}

static int add_piece(struct batch *batch, const struct extent *extent, uint64_t len,
                     uint64_t due, uint64_t *ret_len)
{
    struct piece *piece = &batch->pieces[batch->count];
    int r = find_piece(batch->reader, extent, len, piece);
    if (r < 0)
        return r;
    *ret_len = piece->length;
    r = block_cache_begin_ahead(batch->reader->cache, piece_key(piece), piece->block_bytes, due,
                                &piece->block);
    if (r == -EEXIST)
        return 0;
    if (r < 0)
        return r;
    piece->begun = r;
    return ++batch->count == PIECES_MAX ? flush(batch) : 0;
}

/* Adds one extent, or a piece of it. */
static int add_extent(struct batch *batch, const struct extent *extent, uint64_t len,
                      uint64_t due, uint64_t *ret_len)
{
    struct reader *reader = batch->reader;
    *ret_len = extent->length < len ? extent->length : len;
    switch (extent->kind) {
    case EXTENT_HOLE:
        return 0;
    case EXTENT_STORED:
        if (reader->cache_stored)
            return add_piece(batch, extent, *ret_len, due, ret_len);
        source_expect(reader->source, extent->source_offset, *ret_len);
        return 0;
    case EXTENT_BLOCK:
        if (batch->count > 0 && !block_cache_has(reader->cache, extent->source_offset)) {
            int r = flush(batch); /* begun pieces do not wait for a decompression */
            if (r < 0)
                return r;
        }
        return prefetch_block(reader, batch->scratch, extent, due);
    }
    return -EUCLEAN;
}

static int add_want(struct batch *batch, const struct reader_want *want)
{
    for (uint64_t done = 0; done < want->len;) {
        struct extent extent;
        uint64_t got = 0;
        int r =
            index_extent(batch->reader->index, want->position, want->offset + done, &extent);
        if (r == -ENXIO)
            return 0;
        if (r == 0)
            r = add_extent(batch, &extent, want->len - done, want->due, &got);
        if (r == 0 && got == 0)
            r = -EUCLEAN;
        if (r < 0)
            return r;
        done += got;
    }
    return 0;
}

int reader_prefetch_many(struct reader *reader, struct reader_scratch *scratch,
                         const struct reader_want *wants, size_t count)
{
    struct batch batch;
    batch.reader = reader;
    batch.scratch = scratch;
    batch.count = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++)
        r = add_want(&batch, &wants[i]);
    int err = flush(&batch);
    return r < 0 ? r : err;
}

int reader_prefetch(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                    uint64_t offset, uint64_t len, uint64_t due)
{
    const struct reader_want want = {position, offset, len, due};
    return reader_prefetch_many(reader, scratch, &want, 1);
}

void reader_note_due(struct reader *reader, uint32_t position, uint64_t due)
{
    struct extent extent;
    uint64_t at = 0;
    while (reader->cache_stored && index_extent(reader->index, position, at, &extent) == 0) {
        struct piece piece = {.length = extent.length};
        if (extent.kind == EXTENT_BLOCK)
            return;
        if (extent.kind == EXTENT_STORED) {
            if (find_piece(reader, &extent, extent.length, &piece) < 0)
                return;
            block_cache_note_due(reader->cache, piece_key(&piece), due);
        }
        if (piece.length == 0)
            return;
        at += piece.length;
    }
}

bool reader_has(struct reader *reader, uint32_t position, uint64_t offset)
{
    struct extent extent;
    struct piece piece;
    char byte;
    if (index_extent(reader->index, position, offset, &extent) < 0)
        return true; /* no need to wait, whatever the answer is */
    switch (extent.kind) {
    case EXTENT_STORED:
        if (!reader->cache_stored)
            return source_read_cached(reader->source, &byte, 1, extent.source_offset) == 0;
        return find_piece(reader, &extent, 1, &piece) < 0 ||
               block_cache_has(reader->cache, piece_key(&piece));
    case EXTENT_BLOCK:
        return block_cache_has(reader->cache, extent.source_offset);
    case EXTENT_HOLE:
        break;
    }
    return true;
}
