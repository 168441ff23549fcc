/*
 * Brings in bytes that nobody asked for yet. Parts of files become pieces and compressed
 * blocks. Pieces are gathered until a round of reads is worth it, but not held back while this
 * thread waits for something else.
 */
#include <errno.h>

#include "reader_private.h"

/* Pieces that are MINE and not read yet. */
struct prefetch {
    struct reader *reader;
    struct reader_scratch *scratch;
    unsigned count;
    struct piece pieces[PIECES_MAX];
};

/* Reads the gathered pieces. */
static int prefetch_flush(struct prefetch *p)
{
    int err = 0;
    reader_read_pieces(p->reader, p->scratch, p->pieces, p->count);
    for (unsigned i = 0; i < p->count; i++) {
        if (p->pieces[i].block)
            block_cache_put(p->reader->cache, p->pieces[i].block);
        else if (err == 0)
            err = p->pieces[i].begun;
    }
    p->count = 0;
    return err;
}

static int prefetch_piece(struct prefetch *p, const struct extent *extent, uint64_t len,
                          uint64_t due, uint64_t *ret_len)
{
    struct piece *piece = &p->pieces[p->count];
    int r = reader_find_piece(p->reader, extent, len, piece);
    if (r < 0)
        return r;
    *ret_len = piece->length;
    r = block_cache_begin_ahead(p->reader->cache, reader_piece_key(piece), piece->block_bytes,
                                due, &piece->block);
    if (r == -EEXIST)
        return 0;
    if (r < 0)
        return r;
    piece->begun = r;
    return ++p->count == PIECES_MAX ? prefetch_flush(p) : 0;
}

/* Adds one extent, or a piece of it. */
static int prefetch_extent(struct prefetch *p, const struct extent *extent, uint64_t len,
                           uint64_t due, uint64_t *ret_len)
{
    struct reader *reader = p->reader;
    *ret_len = extent->length < len ? extent->length : len;
    switch (extent->kind) {
    case EXTENT_HOLE:
        return 0;
    case EXTENT_STORED:
        if (reader->cache_stored)
            return prefetch_piece(p, extent, *ret_len, due, ret_len);
        source_advise(reader->source, SOURCE_SOON, extent->source_offset, *ret_len);
        return 0;
    case EXTENT_BLOCK:
        if (p->count > 0 && !block_cache_has(reader->cache, extent->source_offset)) {
            int r = prefetch_flush(p); /* begun pieces do not wait for a decompression */
            if (r < 0)
                return r;
        }
        return reader_prefetch_block(reader, p->scratch, extent, due);
    }
    return -EUCLEAN;
}

static int prefetch_want(struct prefetch *p, const struct reader_want *want)
{
    for (uint64_t done = 0; done < want->len;) {
        struct extent extent;
        uint64_t got = 0;
        int r = index_extent(p->reader->index, want->position, want->offset + done, &extent);
        if (r == -ENXIO)
            return 0;
        if (r == 0)
            r = prefetch_extent(p, &extent, want->len - done, want->due, &got);
        if (r == 0 && got == 0)
            r = -EUCLEAN;
        if (r < 0)
            return r;
        done += got;
    }
    return 0;
}

int reader_prefetch(struct reader *reader, struct reader_scratch *scratch,
                    const struct reader_want *wants, size_t count)
{
    struct prefetch p; /* its pieces are not cleared */
    p.reader = reader;
    p.scratch = scratch;
    p.count = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++)
        r = prefetch_want(&p, &wants[i]);
    int err = prefetch_flush(&p);
    return r < 0 ? r : err;
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
            if (reader_find_piece(reader, &extent, extent.length, &piece) < 0)
                return;
            block_cache_note_due(reader->cache, reader_piece_key(&piece), due);
        }
        if (piece.length == 0)
            return;
        at += piece.length;
    }
}
