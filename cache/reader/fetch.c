/*
 * From the source to memory: plain reads, compressed blocks, and pieces of stored files.
 *
 * Pieces make a file of an unmapped archive cacheable. A file that lies in one range is one
 * block, so that it comes with one read. A long file is cut, so that a reader of a few bytes
 * does not fetch a megabyte, and where its file has pages: storage is asked for whole pages,
 * and a read that ends within one would cost a second request for the rest of it. One read
 * fetches several adjoining pieces, each to its own buffer. The key of a piece is its place in
 * the archive, marked to distinguish it from a compressed block.
 */
#include <errno.h>
#include <stdlib.h>

#include "reader_private.h"

#define STORED_KEY (UINT64_C(1) << 63)
#define START_KEY (UINT64_C(1) << 62) /* only the beginning of a compressed block */
/* Bytes between two pieces that are read along with them: less than the ends of the pages. */
#define GAP_BYTES 4096u
#define READ_BYTES_MAX (1u << 20)
/* From here on, unpacking a block takes a permit. */
#define LARGE_BLOCK_BYTES (1u << 20)
/* Below this a part of a stream is always decompressed as a whole. */
#define START_BLOCK_BYTES (256u << 10)

void reader_may_wait(struct reader_scratch *scratch)
{
    if (scratch->on_wait && !scratch->waited) {
        scratch->waited = true;
        scratch->on_wait(scratch->on_wait_ctx);
    }
}

void reader_came_from(struct reader_scratch *scratch, enum reader_origin origin)
{
    if (origin > scratch->origin)
        scratch->origin = origin;
}

void reader_unpacks(struct reader_scratch *scratch, bool begins)
{
    if (scratch->on_unpack && scratch->unpacks != begins) {
        scratch->unpacks = begins;
        scratch->on_unpack(scratch->on_unpack_ctx, begins);
    }
}

int reader_source_error(int err)
{
    return err == 0 || err == -ENODATA || err == -ENOMEM ? err : -EIO;
}

void reader_count_read(struct reader *reader, size_t len, uint64_t offset)
{
    atomic_fetch_add_explicit(&reader->source_reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&reader->source_read_bytes, len, memory_order_relaxed);
    if (reader->cache_stored && !reader->keep_pages)
        source_advise(reader->source, SOURCE_DROP, offset, len);
}

int reader_read_source(struct reader *reader, struct reader_scratch *scratch, void *buf,
                       size_t len, uint64_t offset)
{
    int r = -EAGAIN;
    if (scratch->on_wait && !scratch->waited)
        r = source_read_cached(reader->source, buf, len, offset);
    bool at_once = r != -EAGAIN;
    bool copied = reader->is_kept && (at_once || source_has(reader->source, offset, len));
    reader_came_from(scratch, copied    ? READER_FROM_COPY
                              : at_once ? READER_FROM_PAGES
                                        : READER_FROM_STORAGE);
    if (!at_once) {
        reader_may_wait(scratch);
        r = source_read(reader->source, buf, len, offset);
    }
    reader_count_read(reader, len, offset);
    return reader_source_error(r);
}

/*
 * A block is in doubt if it came while a read of the storage failed (source_failed_tries):
 * readers who wait for it get it, and nobody else does.
 */
static void keep_unless_doubtful(struct reader *reader, struct block *block, uint64_t tries)
{
    if (source_failed_tries() != tries)
        block_cache_let_go(reader->cache, block);
}

/* ---- compressed blocks ---- */

struct block_request {
    struct reader *reader;
    struct reader_scratch *scratch;
    const struct extent *extent; /* NULL: only to wait */
    size_t start_bytes;          /* 0: all of the block, else only so many bytes */
};

static int packed_room(struct reader_scratch *scratch, size_t size)
{
    if (size <= scratch->packed_size)
        return 0;
    uint8_t *packed = malloc(size);
    if (!packed)
        return -ENOMEM;
    free(scratch->packed);
    scratch->packed = packed;
    scratch->packed_size = size;
    return 0;
}

static int new_codec(struct reader_scratch *scratch)
{
    int r = codec_context_new(&scratch->codec);
    if (r == 0 && scratch->skip_sums)
        codec_context_skip_sums(scratch->codec);
    return r;
}

/* Decompresses what was read: a part of a longer stream. */
static int unpack_part(const struct block_request *request, void *buf, size_t size,
                       size_t *ret_len)
{
    const struct extent *extent = request->extent;
    struct reader_scratch *scratch = request->scratch;
    struct block_point point;
    int r = (request->start_bytes ? request->start_bytes : extent->block_bytes) > size
                ? -EUCLEAN
                : index_point(request->reader->index, extent->block, &point);
    if (r == 0 && request->start_bytes)
        r = codec_unpack_start(scratch->codec, extent->codec, &point, scratch->packed,
                               extent->packed_bytes, buf, request->start_bytes,
                               extent->block_bytes);
    else if (r == 0)
        r = codec_unpack_part(scratch->codec, extent->codec, &point, scratch->packed,
                              extent->packed_bytes, buf, extent->block_bytes);
    if (r == 0)
        *ret_len = request->start_bytes ? request->start_bytes : extent->block_bytes;
    return r;
}

static int unpack_block(const struct block_request *request, void *buf, size_t size,
                        size_t *ret_len)
{
    const struct extent *extent = request->extent;
    struct reader_scratch *scratch = request->scratch;
    if (codec_has_point(extent->codec))
        return unpack_part(request, buf, size, ret_len);
    return codec_unpack(scratch->codec, extent->codec, scratch->packed, extent->packed_bytes,
                        buf, size, ret_len);
}

/* With tens of megabytes, a decoder of lzma takes seconds. */
static int unpack_large(const struct block_request *request, struct block *block, void *buf,
                        size_t size, size_t *ret_len)
{
    struct permits *permits = &request->reader->permits;
    reader_unpacks(request->scratch, true);
    if (block)
        block_cache_unpacks(request->reader->cache, block);
    if (!permits_try(permits)) {
        reader_may_wait(request->scratch);
        permits_take(permits);
    }
    int r = unpack_block(request, buf, size, ret_len);
    permits_end(permits);
    reader_unpacks(request->scratch, false);
    return r;
}

/* Does a block hold the bytes that the extent claims? */
static bool has_extent(const struct extent *extent, size_t len)
{
    return extent->block_offset <= len && extent->length <= len - extent->block_offset;
}

static int read_packed(const struct block_request *request, struct block *block, void *buf,
                       size_t size, size_t *ret_len)
{
    const struct extent *extent = request->extent;
    struct reader *reader = request->reader;
    struct reader_scratch *scratch = request->scratch;
    int r = reader_read_source(reader, scratch, scratch->packed, extent->packed_bytes,
                               extent->source_offset);
    if (r < 0)
        return r;
    r = extent->block_bytes > LARGE_BLOCK_BYTES
            ? unpack_large(request, block, buf, size, ret_len)
            : unpack_block(request, buf, size, ret_len);
    if (r == 0 && !has_extent(extent, *ret_len))
        r = -EUCLEAN;
    if (r == -EUCLEAN)
        source_advise(reader->source, SOURCE_WRONG, extent->source_offset,
                      extent->packed_bytes);
    return r;
}

/*
 * Reads and decompresses to `buf`, which is `block`'s (NULL: nobody waits for it). If
 * decompressing fails, reads once more, as storage may have been wrong for a moment; except a
 * large block, for which others wait no longer as for storage.
 */
static int read_block(const struct block_request *request, struct block *block, void *buf,
                      size_t size, size_t *ret_len)
{
    const struct extent *extent = request->extent;
    struct reader_scratch *scratch = request->scratch;
    reader_unpacks(scratch, false); /* another thread's unpacking failed */
    int r = packed_room(scratch, extent->packed_bytes);
    if (r == 0 && !scratch->codec)
        r = new_codec(scratch);
    if (r < 0)
        return r;
    r = read_packed(request, block, buf, size, ret_len);
    if (r == -EUCLEAN && extent->block_bytes <= LARGE_BLOCK_BYTES)
        r = read_packed(request, block, buf, size, ret_len);
    return r;
}

/* block_fill */
static int fill_block(void *ctx, uint64_t key, struct block *block, size_t size,
                      size_t *ret_len)
{
    (void)key; /* the extent's offset */
    return read_block(ctx, block, block_buffer(block), size, ret_len);
}

/* block_wait: another thread fills this block, and may itself wait for a device. */
static void wait_for_block(void *ctx, bool unpacks)
{
    const struct block_request *request = ctx;
    if (unpacks)
        reader_unpacks(request->scratch, true);
    reader_came_from(request->scratch, READER_FROM_ANOTHER);
    reader_may_wait(request->scratch);
}

static bool sane_block(const struct reader *reader, const struct extent *extent)
{
    return extent->block_bytes <= reader->block_bytes &&
           extent->block_bytes <= codec_block_max(extent->codec) && extent->packed_bytes > 0 &&
           extent->packed_bytes <= codec_packed_max(reader->block_bytes);
}

int reader_unpack(struct reader *reader, struct reader_scratch *scratch,
                  const struct extent *extent, void *buf, size_t *ret_len)
{
    if (!sane_block(reader, extent))
        return -EUCLEAN;
    struct block_request request = {reader, scratch, extent, 0};
    int r = read_block(&request, NULL, buf, extent->block_bytes, ret_len);
    return r == 0 && *ret_len > extent->block_bytes ? -EUCLEAN : r;
}

/*
 * How much of a part of a stream to decompress for one file in it; 0: all. Where reads come by
 * chance, the rest would be in vain; where they come in order, the rest is what comes next. The
 * first read of a part tells: in order, it is near its beginning. A second one gets all of it.
 */
static size_t start_worth(const struct extent *extent)
{
    const uint64_t size = extent->block_bytes, piece = point_piece_bytes(extent->block_bytes);
    const uint64_t end = (uint64_t)extent->block_offset + extent->length;
    const uint64_t len = (end + piece - 1) / piece * piece;
    return extent->codec == CODEC_DEFLATE_POINT && size >= START_BLOCK_BYTES &&
                   extent->block_offset >= size / POINT_PIECES && len <= size - size / 8
               ? (size_t)len
               : 0;
}

/* A block with the beginning of this one, as far as the extent goes. -EAGAIN: there is none. */
static int get_start(struct reader *reader, struct reader_scratch *scratch,
                     const struct extent *extent, struct block **ret_block)
{
    struct block_request request = {reader, scratch, extent, start_worth(extent)};
    const uint64_t key = extent->source_offset | START_KEY, tries = source_failed_tries();
    struct block *block;
    if (!request.start_bytes || !index_has_pieces(reader->index) ||
        block_cache_has(reader->cache, extent->source_offset))
        return -EAGAIN;
    int r = block_cache_get(reader->cache, key, request.start_bytes, fill_block, wait_for_block,
                            &request, &block);
    reader_unpacks(scratch, false);
    if (r == 0)
        keep_unless_doubtful(reader, block, tries);
    if (r == 0 && block->len < (size_t)extent->block_offset + extent->length) {
        block_cache_put(reader->cache, block);
        return -EAGAIN;
    }
    *ret_block = block;
    return r < 0 ? -EAGAIN : 0; /* the whole block shows the reason */
}

int reader_get_block(struct reader *reader, struct reader_scratch *scratch,
                     const struct extent *extent, struct block **ret_block)
{
    struct block *block;
    int r = block_cache_try(reader->cache, extent->source_offset, &block);
    reader_came_from(scratch, r == BLOCK_FORESEEN ? READER_FROM_AHEAD : READER_FROM_CACHE);
    if (r == -EAGAIN) {
        if (!sane_block(reader, extent))
            return -EUCLEAN;
        if (get_start(reader, scratch, extent, ret_block) == 0)
            return 0;
        struct block_request request = {reader, scratch, extent, 0};
        const uint64_t tries = source_failed_tries();
        r = block_cache_get(reader->cache, extent->source_offset, extent->block_bytes,
                            fill_block, wait_for_block, &request, &block);
        reader_unpacks(scratch, false);
        if (r == 0)
            keep_unless_doubtful(reader, block, tries);
    }
    if (r < 0)
        return r;
    if (!has_extent(extent, block->len)) {
        block_cache_forget(reader->cache, extent->source_offset);
        block_cache_put(reader->cache, block);
        return -EUCLEAN;
    }
    *ret_block = block;
    return 0;
}

int reader_prefetch_block(struct reader *reader, struct reader_scratch *scratch,
                          const struct extent *extent, uint64_t due)
{
    struct block *block;
    size_t len = 0;
    if (!sane_block(reader, extent))
        return -EUCLEAN;
    int r = block_cache_begin_ahead(reader->cache, extent->source_offset, extent->block_bytes,
                                    due, &block);
    if (r == -EEXIST)
        return 0;
    if (r < 0)
        return r;
    struct block_request request = {reader, scratch, extent, 0};
    const uint64_t tries = source_failed_tries();
    r = read_block(&request, block, block_buffer(block), extent->block_bytes, &len);
    r = block_cache_end(reader->cache, block, r, len);
    if (r == 0) {
        keep_unless_doubtful(reader, block, tries);
        block_cache_put(reader->cache, block);
    }
    return r;
}

/* ---- pieces of stored files ---- */

uint64_t reader_piece_key(const struct piece *piece)
{
    return piece->source_offset | STORED_KEY;
}

int reader_find_piece(const struct reader *reader, const struct extent *extent, uint64_t len,
                      struct piece *ret_piece)
{
    uint64_t end, in_whole = extent->source_offset - extent->whole_offset;
    if (__builtin_add_overflow(extent->whole_offset, extent->whole_length, &end) ||
        end > reader->source_bytes || end >= STORED_KEY)
        return -ENODATA;
    if (in_whole >= extent->whole_length || len == 0)
        return -EUCLEAN;
    uint64_t start = 0, size = extent->whole_length;
    if (size > READER_WHOLE_BYTES) {
        uint64_t at = extent->whole_offset;
        const struct source *file = source_at(reader->source, &at);
        uint64_t before = (source_start(file) + at) % READER_PIECE_BYTES; /* in the file */
        uint64_t next = (before + in_whole) / READER_PIECE_BYTES * READER_PIECE_BYTES +
                        READER_PIECE_BYTES - before;
        start = next < READER_PIECE_BYTES ? 0 : next - READER_PIECE_BYTES;
        size = (next < size ? next : size) - start;
    }
    uint64_t left = size - (in_whole - start);
    *ret_piece = (struct piece){
        .source_offset = extent->whole_offset + start,
        .block_bytes = (size_t)size,
        .start = (size_t)(in_whole - start),
        .length = (size_t)(left < len ? left : len),
    };
    return 0;
}

/*
 * How many pieces from this one on, all MINE, one read can fetch. *ret_bytes: the length of
 * that read.
 */
static unsigned fetch_joined(const struct piece *pieces, unsigned count, size_t *ret_bytes)
{
    size_t bytes = pieces[0].block_bytes;
    unsigned n = 1;
    for (; n < count && pieces[n].begun == BLOCK_MINE; n++) {
        uint64_t end = pieces[0].source_offset + bytes, next = pieces[n].source_offset;
        if (next < end || next - end > GAP_BYTES ||
            next - pieces[0].source_offset + pieces[n].block_bytes > READ_BYTES_MAX)
            break;
        bytes = (size_t)(next - pieces[0].source_offset) + pieces[n].block_bytes;
    }
    *ret_bytes = bytes;
    return n;
}

/* Reads once into the buffers of `count` pieces. Bytes between the pieces go to `gap`. */
static int read_joined(struct reader *reader, struct reader_scratch *scratch,
                       const struct piece *pieces, unsigned count, size_t bytes)
{
    struct iovec iov[2 * PIECES_MAX];
    uint8_t gap[GAP_BYTES];
    uint64_t at = pieces[0].source_offset;
    int n = 0;
    for (unsigned i = 0; i < count; i++) {
        size_t between = (size_t)(pieces[i].source_offset - at);
        if (between > 0)
            iov[n++] = (struct iovec){.iov_base = gap, .iov_len = between};
        iov[n++] = (struct iovec){.iov_base = block_buffer(pieces[i].block),
                                  .iov_len = pieces[i].block_bytes};
        at = pieces[i].source_offset + pieces[i].block_bytes;
    }
    reader_came_from(scratch, READER_FROM_STORAGE);
    reader_may_wait(scratch);
    int r = source_readv(reader->source, iov, n, pieces[0].source_offset);
    reader_count_read(reader, bytes, pieces[0].source_offset);
    return reader_source_error(r);
}

static void fetch_end_piece(struct reader *reader, struct piece *piece, int result,
                            uint64_t tries)
{
    piece->begun = block_cache_end(reader->cache, piece->block, result, piece->block_bytes);
    if (piece->begun < 0)
        piece->block = NULL;
    else
        keep_unless_doubtful(reader, piece->block, tries);
}

void reader_read_pieces(struct reader *reader, struct reader_scratch *scratch,
                        struct piece *pieces, unsigned count)
{
    for (unsigned i = 0, n; i < count; i += n) {
        size_t bytes;
        n = 1;
        if (pieces[i].begun != BLOCK_MINE)
            continue;
        n = fetch_joined(&pieces[i], count - i, &bytes);
        const uint64_t tries = source_failed_tries();
        int r = read_joined(reader, scratch, &pieces[i], n, bytes);
        for (unsigned k = i; k < i + n; k++)
            fetch_end_piece(reader, &pieces[k], r, tries);
    }
}

/*
 * Waits for pieces that others read. Returns the first error, or else `begun`; if that is one,
 * no piece is pinned any more. If others failed to read a piece, perhaps because of bytes that
 * they read along with it, a read of our own follows.
 */
static int settle_pieces(struct reader *reader, struct reader_scratch *scratch,
                         struct piece *pieces, unsigned count, int begun)
{
    struct block_request request = {reader, scratch, NULL};
    int err = 0;
    for (unsigned i = 0; i < count; i++) {
        struct piece *piece = &pieces[i];
        if (piece->begun == BLOCK_LOADING &&
            block_cache_wait(reader->cache, piece->block, wait_for_block, &request) < 0)
            piece->block = NULL;
        if (piece->begun < 0 && err == 0)
            err = piece->begun;
        /* Two files overlap, and the other one is shorter. */
        if (piece->block && piece->block->len < piece->start + piece->length) {
            block_cache_put(reader->cache, piece->block);
            piece->block = NULL;
        }
    }
    err = err < 0 ? err : begun;
    for (unsigned i = 0; err < 0 && i < count; i++)
        if (pieces[i].block)
            block_cache_put(reader->cache, pieces[i].block);
    return err;
}

/* Finds the next piece, and begins it. -ENXIO: no stored bytes follow. */
static int fetch_begin_piece(struct reader *reader, struct reader_scratch *scratch,
                             uint32_t position, uint64_t offset, size_t len,
                             struct piece *ret_piece)
{
    struct extent extent;
    int r = index_extent(reader->index, position, offset, &extent);
    if (r == 0 && extent.kind != EXTENT_STORED)
        return -ENXIO;
    if (r == 0)
        r = reader_find_piece(reader, &extent, len, ret_piece);
    if (r < 0)
        return r;
    ret_piece->begun = block_cache_begin(reader->cache, reader_piece_key(ret_piece),
                                         ret_piece->block_bytes, &ret_piece->block);
    if (ret_piece->begun == -ENOMEM) { /* then go without the cache */
        ret_piece->begun = BLOCK_READY;
        ret_piece->block = NULL;
    }
    reader_came_from(scratch, ret_piece->begun == BLOCK_FORESEEN ? READER_FROM_AHEAD
                                                                 : READER_FROM_CACHE);
    return ret_piece->begun < 0 ? ret_piece->begun : 0;
}

int reader_get_pieces(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                      uint64_t offset, size_t len, unsigned max, struct piece *pieces,
                      unsigned *ret_count)
{
    unsigned count = 0;
    size_t done = 0;
    int r = 0;
    while (r == 0 && done < len && count < max) {
        r = fetch_begin_piece(reader, scratch, position, offset + done, len - done,
                              &pieces[count]);
        if (r == 0)
            done += pieces[count++].length;
    }
    if (r == -ENXIO && count > 0)
        r = 0;
    reader_read_pieces(reader, scratch, pieces, count);
    r = settle_pieces(reader, scratch, pieces, count, r);
    *ret_count = r < 0 ? 0 : count;
    return r;
}

void reader_forget(struct reader *reader, uint32_t position, uint64_t offset, uint64_t len)
{
    for (uint64_t done = 0, n; done < len; done += n) {
        struct extent extent;
        struct piece piece;
        if (index_extent(reader->index, position, offset + done, &extent) < 0)
            return;
        n = extent.length < len - done ? extent.length : len - done;
        if (extent.kind == EXTENT_BLOCK) {
            block_cache_forget(reader->cache, extent.source_offset);
            block_cache_forget(reader->cache, extent.source_offset | START_KEY);
            source_advise(reader->source, SOURCE_WRONG, extent.source_offset,
                          extent.packed_bytes);
        } else if (extent.kind == EXTENT_STORED) {
            if (reader_find_piece(reader, &extent, n, &piece) < 0)
                return;
            n = piece.length;
            block_cache_forget(reader->cache, reader_piece_key(&piece));
            source_advise(reader->source, SOURCE_WRONG, piece.source_offset, piece.block_bytes);
        }
        if (n == 0)
            return;
    }
}
