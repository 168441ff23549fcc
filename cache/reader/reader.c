/*
 * Answers reads, from the source or through the block cache, and brings in bytes ahead of
 * readers. At the end, contents: whole members by the same means.
 */
#include "content.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec.h"
#include "numbers.h"
#include "permits.h"
#include "reader.h"

struct reader {
    const struct index *index;
    struct source *source;
    uint64_t source_bytes;
    bool is_mapped;      /* by ranges: source_map_at */
    bool answers_mapped; /* with places in the mapping */
    size_t page;
    bool is_kept;              /* the source keeps what was read of it (source_keeps) */
    bool ask_mincore;          /* the filesystem does not report whether a read is cached */
    bool cache_stored;         /* stored bytes go through the block cache, not the page cache */
    bool keep_pages;           /* or through both */
    bool lets_go;              /* of compressed blocks that were read whole */
    uint32_t block_bytes;      /* of the largest */
    struct block_cache *cache; /* NULL: nothing is read in blocks */
    _Atomic uint64_t cache_bytes; /* its budget */
    struct permits permits;       /* for unpacking large blocks */
    void *zeros;                  /* READER_SPAN_MAX bytes, for every hole */
    _Alignas(64) _Atomic uint64_t source_reads, source_read_bytes;
};

struct reader_scratch {
    struct reader *reader;
    uint8_t *buffer; /* READER_SPAN_MAX bytes; pages are touched only when needed */
    size_t used;     /* by the current span */
    uint8_t *packed; /* for a compressed block */
    size_t packed_size;
    const struct extent *extent; /* see unpack_next */
    size_t start_bytes;
    struct codec_context *codec; /* NULL before the first block */
    bool skip_sums;              /* of its blocks */
    void (*on_wait)(void *ctx);
    void (*on_unpack)(void *ctx, bool begins);
    void *hook_ctx;
    bool unpacks;              /* on_unpack was told so */
    bool waited;               /* on_wait was called for the current request */
    enum reader_origin origin; /* of the parts of the current request so far */
};

/* A stored block to read: a file's range of the archive, or a piece of it. */
struct piece {
    uint64_t source_offset; /* of the block */
    size_t block_bytes;
    size_t start, length; /* the wanted part of it */
    int begun;            /* enum block_begun; negative: there is nothing to do */
    struct block *block;  /* pinned; NULL: read it without the cache */
};

#define PIECES_MAX READER_IOV_MAX

/*
 * A counting semaphore whose count may change while it is in use.
 */

void permits_init(struct permits *permits)
{
    *permits = (struct permits){0};
    pthread_mutex_init(&permits->lock, NULL);
    pthread_cond_init(&permits->ended, NULL);
}

void permits_free(struct permits *permits)
{
    pthread_cond_destroy(&permits->ended);
    pthread_mutex_destroy(&permits->lock);
}

void permits_limit(struct permits *permits, unsigned most)
{
    pthread_mutex_lock(&permits->lock);
    permits->most = most;
    pthread_cond_broadcast(&permits->ended);
    pthread_mutex_unlock(&permits->lock);
}

static bool permits_are_free(const struct permits *permits)
{
    return permits->most == 0 || permits->taken < permits->most;
}

bool permits_take(struct permits *permits, bool may_wait)
{
    pthread_mutex_lock(&permits->lock);
    while (may_wait && !permits_are_free(permits))
        pthread_cond_wait(&permits->ended, &permits->lock);
    bool took = permits_are_free(permits);
    permits->taken += took;
    pthread_mutex_unlock(&permits->lock);
    return took;
}

void permits_end(struct permits *permits)
{
    pthread_mutex_lock(&permits->lock);
    permits->taken--;
    pthread_cond_signal(&permits->ended);
    pthread_mutex_unlock(&permits->lock);
}

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

#define STORED_KEY (UINT64_C(1) << 63)
#define START_KEY (UINT64_C(1) << 62) /* only the beginning of a compressed block */
/* Bytes between two pieces that are read along with them: less than the ends of the pages. */
#define GAP_BYTES 4096u
#define READ_BYTES_MAX (1u << 20)
/* From here on, unpacking a block takes a permit. */
#define LARGE_BLOCK_BYTES (1u << 20)
/* Below this a part of a stream is always decompressed as a whole. */
#define START_BLOCK_BYTES (256u << 10)

/* Calls on_wait, unless it was called for this request already. */
static void reader_may_wait(struct reader_scratch *scratch)
{
    if (scratch->on_wait && !scratch->waited) {
        scratch->waited = true;
        scratch->on_wait(scratch->hook_ctx);
    }
}

/* Notes that some of the current answer has this origin. */
static void reader_came_from(struct reader_scratch *scratch, enum reader_origin origin)
{
    if (origin > scratch->origin)
        scratch->origin = origin;
}

/* Calls on_unpack if this is news. */
static void reader_unpacks(struct reader_scratch *scratch, bool begins)
{
    if (scratch->on_unpack && scratch->unpacks != begins) {
        scratch->unpacks = begins;
        scratch->on_unpack(scratch->hook_ctx, begins);
    }
}

/* Translates an error of a source to one of this interface. */
static int reader_source_error(int err)
{
    return err == 0 || err == -ENODATA || err == -ENOMEM ? err : -EIO;
}

/*
 * After a read of the source: counts it, and lets the kernel drop pages that we keep ourselves.
 */
static void reader_count_read(struct reader *reader, size_t len, uint64_t offset)
{
    atomic_fetch_add_explicit(&reader->source_reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&reader->source_read_bytes, len, memory_order_relaxed);
    if (reader->cache_stored && !reader->keep_pages)
        source_advise(reader->source, SOURCE_DROP, offset, len);
}

/* Reads bytes of the archive into our own memory. */
static int reader_read_source(struct reader *reader, struct reader_scratch *scratch, void *buf,
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

/* For read_block: the block of this extent, or only its first `start_bytes` (0: all of it). */
static void unpack_next(struct reader_scratch *scratch, const struct extent *extent,
                        size_t start_bytes)
{
    scratch->extent = extent;
    scratch->start_bytes = start_bytes;
}

/* Decompresses what was read: a part of a longer stream. */
static int unpack_part(struct reader_scratch *scratch, void *buf, size_t size, size_t *ret_len)
{
    const struct extent *extent = scratch->extent;
    struct block_point point;
    int r = (scratch->start_bytes ? scratch->start_bytes : extent->block_bytes) > size
                ? -EUCLEAN
                : index_point(scratch->reader->index, extent->block, &point);
    if (r == 0 && scratch->start_bytes)
        r = codec_unpack_start(scratch->codec, extent->codec, &point, scratch->packed,
                               extent->packed_bytes, buf, scratch->start_bytes,
                               extent->block_bytes);
    else if (r == 0)
        r = codec_unpack_part(scratch->codec, extent->codec, &point, scratch->packed,
                              extent->packed_bytes, buf, extent->block_bytes);
    if (r == 0)
        *ret_len = scratch->start_bytes ? scratch->start_bytes : extent->block_bytes;
    return r;
}

static int unpack_block(struct reader_scratch *scratch, void *buf, size_t size, size_t *ret_len)
{
    const struct extent *extent = scratch->extent;
    if (codec_has_point(extent->codec))
        return unpack_part(scratch, buf, size, ret_len);
    return codec_unpack(scratch->codec, extent->codec, scratch->packed, extent->packed_bytes,
                        buf, size, ret_len);
}

/* With tens of megabytes, a decoder of lzma takes seconds. */
static int unpack_large(struct reader_scratch *scratch, struct block *block, void *buf,
                        size_t size, size_t *ret_len)
{
    struct permits *permits = &scratch->reader->permits;
    reader_unpacks(scratch, true);
    if (block)
        block_cache_unpacks(scratch->reader->cache, block);
    if (!permits_take(permits, false)) {
        reader_may_wait(scratch);
        permits_take(permits, true);
    }
    int r = unpack_block(scratch, buf, size, ret_len);
    permits_end(permits);
    reader_unpacks(scratch, false);
    return r;
}

/* Does a block hold the bytes that the extent claims? */
static bool has_extent(const struct extent *extent, size_t len)
{
    return extent->block_offset <= len && extent->length <= len - extent->block_offset;
}

static int read_packed(struct reader_scratch *scratch, struct block *block, void *buf,
                       size_t size, size_t *ret_len)
{
    const struct extent *extent = scratch->extent;
    struct reader *reader = scratch->reader;
    int r = reader_read_source(reader, scratch, scratch->packed, extent->packed_bytes,
                               extent->source_offset);
    if (r < 0)
        return r;
    r = extent->block_bytes > LARGE_BLOCK_BYTES
            ? unpack_large(scratch, block, buf, size, ret_len)
            : unpack_block(scratch, buf, size, ret_len);
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
static int read_block(struct reader_scratch *scratch, struct block *block, void *buf,
                      size_t size, size_t *ret_len)
{
    const struct extent *extent = scratch->extent;
    int r = 0;
    reader_unpacks(scratch, false); /* another thread's unpacking failed */
    if (extent->packed_bytes > scratch->packed_size) {
        uint8_t *packed = malloc(extent->packed_bytes);
        if (!packed)
            return -ENOMEM;
        free(scratch->packed);
        scratch->packed = packed;
        scratch->packed_size = extent->packed_bytes;
    }
    if (!scratch->codec)
        r = codec_context_new(scratch->skip_sums, &scratch->codec);
    if (r < 0)
        return r;
    r = read_packed(scratch, block, buf, size, ret_len);
    if (r == -EUCLEAN && extent->block_bytes <= LARGE_BLOCK_BYTES)
        r = read_packed(scratch, block, buf, size, ret_len);
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
    struct reader_scratch *scratch = ctx;
    if (unpacks)
        reader_unpacks(scratch, true);
    reader_came_from(scratch, READER_FROM_ANOTHER);
    reader_may_wait(scratch);
}

static bool sane_block(const struct reader *reader, const struct extent *extent)
{
    return extent->block_bytes <= reader->block_bytes &&
           extent->block_bytes <= codec_block_max(extent->codec) && extent->packed_bytes > 0 &&
           extent->packed_bytes <= codec_packed_max(reader->block_bytes);
}

/*
 * Decompresses the block of an extent of kind BLOCK into the caller's buffer, which has room
 * for the largest, without the block cache. Errors: reader_get's.
 */
static int reader_unpack(struct reader *reader, struct reader_scratch *scratch,
                         const struct extent *extent, void *buf, size_t *ret_len)
{
    if (!sane_block(reader, extent))
        return -EUCLEAN;
    unpack_next(scratch, extent, 0);
    int r = read_block(scratch, NULL, buf, extent->block_bytes, ret_len);
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
    const size_t start_bytes = start_worth(extent);
    const uint64_t key = extent->source_offset | START_KEY, tries = source_failed_tries();
    struct block *block;
    if (!start_bytes || block_cache_has(reader->cache, extent->source_offset))
        return -EAGAIN;
    unpack_next(scratch, extent, start_bytes);
    int r = block_cache_get(reader->cache, key, start_bytes, fill_block, wait_for_block,
                            scratch, &block);
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

/*
 * Gets the compressed block of an extent, pinned, and checked to hold the bytes that the extent
 * claims.
 */
static int reader_get_block(struct reader *reader, struct reader_scratch *scratch,
                            const struct extent *extent, struct block **ret_block)
{
    struct block *block;
    int r = block_cache_try(reader->cache, extent->source_offset, &block);
    reader_came_from(scratch, r == BLOCK_FORESEEN ? READER_FROM_AHEAD : READER_FROM_CACHE);
    if (r == -EAGAIN) {
        if (!sane_block(reader, extent))
            return -EUCLEAN;
        if (index_info(reader->index)->has_pieces &&
            get_start(reader, scratch, extent, ret_block) == 0)
            return 0;
        unpack_next(scratch, extent, 0);
        const uint64_t tries = source_failed_tries();
        r = block_cache_get(reader->cache, extent->source_offset, extent->block_bytes,
                            fill_block, wait_for_block, scratch, &block);
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

/* Brings the block to the cache ahead of its use. 0 also if it is there already. */
static int reader_prefetch_block(struct reader *reader, struct reader_scratch *scratch,
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
    unpack_next(scratch, extent, 0);
    const uint64_t tries = source_failed_tries();
    r = read_block(scratch, block, block_buffer(block), extent->block_bytes, &len);
    r = block_cache_end(reader->cache, block, r, len);
    if (r == 0) {
        keep_unless_doubtful(reader, block, tries);
        block_cache_put(reader->cache, block);
    }
    return r;
}

/* ---- pieces of stored files ---- */

static uint64_t reader_piece_key(const struct piece *piece)
{
    return piece->source_offset | STORED_KEY;
}

/* Finds the piece in which a stored extent begins, and at most `len` bytes of it. -ENODATA. */
static int reader_find_piece(const struct reader *reader, const struct extent *extent,
                             uint64_t len, struct piece *ret_piece)
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

/* Reads all pieces that are MINE, with as few reads as possible, and ends them. */
static void reader_read_pieces(struct reader *reader, struct reader_scratch *scratch,
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
    int err = 0;
    for (unsigned i = 0; i < count; i++) {
        struct piece *piece = &pieces[i];
        if (piece->begun == BLOCK_LOADING &&
            block_cache_wait(reader->cache, piece->block, wait_for_block, scratch) < 0)
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

/*
 * Gets the stored bytes at `offset` of a file as pinned pieces: at most `max` pieces and `len`
 * bytes, and at least one piece, since the byte at `offset` is known to be stored. On error
 * none is pinned.
 */
static int reader_get_pieces(struct reader *reader, struct reader_scratch *scratch,
                             uint32_t position, uint64_t offset, size_t len, unsigned max,
                             struct piece *pieces, unsigned *ret_count)
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
            if (reader->cache)
                block_cache_forget(reader->cache, reader_piece_key(&piece));
            source_advise(reader->source, SOURCE_WRONG, piece.source_offset, piece.block_bytes);
        }
        if (n == 0)
            return;
    }
}

/*
 * Brings in bytes that nobody asked for yet. Parts of files become pieces and compressed
 * blocks. Pieces are gathered until a round of reads is worth it, but not held back while this
 * thread waits for something else.
 */

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

/*
 * Puts a read together from the runs of bytes that the index names: extents, cut to what was
 * asked for. A short stored run is copied. A long run of a mapped source is answered by its
 * place in the mapping, if the page cache has it. If it has not, or nothing is mapped, the run
 * is read into the scratch buffer: a read distinguishes EIO from a truncated file and does not
 * fault its pages in one by one. Bytes of the mapping are handed out, but never touched here: a
 * missing page is an EFAULT for writev(2), but a SIGBUS for memcpy.
 *
 * To find out whether the page cache has a run, only its first and last pages are probed. The
 * last one also shows whether the file is as long as it was.
 */

/*
 * Stored runs up to this length are copied by one read that does not wait. It answers at once
 * the question of both probes of a mapped run, and costs less than faulting the run's pages
 * into the mapping on their first use.
 */
#define COPY_BYTES_MAX (64u << 10)

static void begin_request(struct reader_scratch *scratch)
{
    scratch->used = 0;
    scratch->waited = false;
    scratch->origin = READER_FROM_NOTHING;
}

/* The extent at `offset`, no longer than `len`. -ENXIO at the end of the file. */
static int next_run(const struct reader *reader, uint32_t position, uint64_t offset, size_t len,
                    struct extent *ret_run)
{
    struct extent run;
    int r = index_extent(reader->index, position, offset, &run);
    if (r < 0)
        return r;
    if (run.length == 0)
        return -EUCLEAN;
    if (run.length > len)
        run.length = len;
    if (run.kind == EXTENT_STORED && (run.source_offset > reader->source_bytes ||
                                      run.length > reader->source_bytes - run.source_offset))
        return -ENODATA;
    *ret_run = run;
    return 0;
}

/*
 * An answer in progress. Its bytes are named by a span, which pins their blocks, or copied to
 * one place.
 */
struct answer {
    struct reader *reader;
    struct reader_scratch *scratch;
    uint32_t position; /* of the file */
    uint64_t offset;   /* in it */
    size_t done;
    uint8_t *copy; /* NULL: the span names the bytes */
    struct span *span;
};

/* Adds bytes that stay in place as long as the span; in a copy, they are there already. */
static void answer_add(struct answer *a, const void *bytes, size_t len)
{
    struct span *span = a->span;
    if (!a->copy) {
        span->iov[span->iov_count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
        span->bytes += len;
    }
    a->done += len;
}

/* Adds bytes of a block in use, which the answer takes over. */
static void answer_add_block(struct answer *a, struct block *block, size_t start, size_t len)
{
    if (a->copy)
        memcpy(a->copy + a->done, block->bytes + start, len);
    else
        a->span->pinned[a->span->pinned_count++] = block;
    answer_add(a, block->bytes + start, len);
    if (a->copy)
        block_cache_put(a->reader->cache, block);
}

/* Takes room from the scratch buffer: a span never needs more than READER_SPAN_MAX. */
static uint8_t *answer_take_scratch(struct reader_scratch *scratch, size_t len)
{
    uint8_t *bytes = scratch->buffer + scratch->used;
    scratch->used += len;
    return bytes;
}

static int answer_read(struct answer *a, size_t len, uint64_t source_offset)
{
    uint8_t *bytes = a->copy ? a->copy + a->done : answer_take_scratch(a->scratch, len);
    int r = reader_read_source(a->reader, a->scratch, bytes, len, source_offset);
    if (r == 0)
        answer_add(a, bytes, len);
    return r;
}

/* Is the page with this byte of a mapping in memory? */
static bool page_cached(const struct reader *reader, const uint8_t *byte)
{
    unsigned char state = 0;
    uintptr_t at = (uintptr_t)byte;
    return mincore((void *)(at - at % reader->page), 1, &state) == 0 && state & 1;
}

/*
 * Does the page cache have the range? For filesystems that don't answer cached reads. Also
 * checks the length of the file, because its last page reads as zeros behind its end.
 */
static bool range_cached(const struct reader *reader, const uint8_t *bytes, uint64_t offset,
                         uint64_t len)
{
    struct stat st;
    uint64_t end = offset + len - 1;
    const struct source *file = source_at(reader->source, &end);
    return page_cached(reader, bytes) && page_cached(reader, bytes + len - 1) &&
           fstat(source_fd(file), &st) == 0 &&
           (!S_ISREG(st.st_mode) || source_start(file) + end < (uint64_t)st.st_size);
}

/*
 * The range as it lies in a mapping, if it can be handed out so: 0; -EAGAIN if that would have
 * to wait, or can't be; -ENODATA if the file ends before.
 */
static int answer_mapped(const struct reader *reader, uint64_t offset, uint64_t len,
                         const uint8_t **ret_bytes)
{
    char byte;
    const uint8_t *bytes = source_map_at(reader->source, offset, len);
    if (!bytes)
        return -EAGAIN;
    *ret_bytes = bytes;
    if (reader->is_kept) /* it may have holes anywhere, and is never cut short */
        return source_has(reader->source, offset, len) ? 0 : -EAGAIN;
    int r = source_read_cached(reader->source, &byte, 1, offset + len - 1);
    if (r == 0 &&
        ((uintptr_t)bytes + len - 1) / reader->page != (uintptr_t)bytes / reader->page)
        r = source_read_cached(reader->source, &byte, 1, offset);
    if (r == -EAGAIN && reader->ask_mincore && range_cached(reader, bytes, offset, len))
        r = 0;
    return r == -EAGAIN ? r : reader_source_error(r);
}

static int answer_stored(struct answer *a, const struct extent *run)
{
    struct reader *reader = a->reader;
    if (!a->copy && reader->answers_mapped &&
        (run->length > COPY_BYTES_MAX || reader->ask_mincore)) {
        const uint8_t *mapped = NULL;
        int r = answer_mapped(reader, run->source_offset, run->length, &mapped);
        if (r == 0) {
            reader_came_from(a->scratch,
                             reader->is_kept ? READER_FROM_COPY : READER_FROM_PAGES);
            answer_add(a, mapped, run->length);
            reader_count_read(reader, run->length, run->source_offset);
        }
        if (r != -EAGAIN)
            return r;
        reader_may_wait(a->scratch);
    }
    return answer_read(a, run->length, run->source_offset);
}

/* Adds as many pieces as there is room for; the caller comes back for the rest. */
static int answer_pieces(struct answer *a, size_t len)
{
    struct piece pieces[PIECES_MAX];
    unsigned count = 0;
    unsigned room = a->copy ? PIECES_MAX : (unsigned)(READER_IOV_MAX - 1 - a->span->iov_count);
    int r = reader_get_pieces(a->reader, a->scratch, a->position, a->offset + a->done, len,
                              room, pieces, &count);
    for (unsigned i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        if (piece->block) /* also after an error, so that no block stays pinned */
            answer_add_block(a, piece->block, piece->start, piece->length);
        else if (r == 0)
            r = answer_read(a, piece->length, piece->source_offset + piece->start);
    }
    return r;
}

static int answer_run(struct answer *a, const struct extent *run)
{
    struct reader *reader = a->reader;
    struct block *block;
    int r;
    switch (run->kind) {
    case EXTENT_HOLE:
        if (a->copy)
            memset(a->copy + a->done, 0, run->length);
        answer_add(a, reader->zeros, run->length);
        return 0;
    case EXTENT_STORED:
        return reader->cache_stored ? answer_pieces(a, run->length) : answer_stored(a, run);
    case EXTENT_BLOCK:
        r = reader_get_block(reader, a->scratch, run, &block);
        if (r < 0)
            return r;
        if (reader->lets_go && run->length == block->len)
            block_cache_let_go(reader->cache, block);
        answer_add_block(a, block, run->block_offset, run->length);
        return 0;
    }
    return -EUCLEAN;
}

/* Adds bytes of the file until `len` are there, it ends, or the span is nearly full. */
static int answer_fill(struct answer *a, size_t len)
{
    bool at_end = false;
    int r = 0;
    while (r == 0 && !at_end && a->done < len &&
           (a->copy || a->span->iov_count < READER_IOV_MAX - 1)) {
        struct extent run;
        r = next_run(a->reader, a->position, a->offset + a->done, len - a->done, &run);
        if (r == -ENXIO)
            return 0;
        if (r == 0)
            r = answer_run(a, &run);
        at_end = r == 0 && run.is_last && a->offset + a->done == run.offset + run.length;
    }
    return r;
}

/* Copies the rest into the last iovec. */
static int answer_rest(struct answer *a, size_t len)
{
    struct answer rest = *a;
    rest.copy = answer_take_scratch(a->scratch, len);
    rest.offset += a->done;
    rest.done = 0;
    int r = answer_fill(&rest, len);
    if (r == 0 && rest.done > 0)
        answer_add(a, rest.copy, rest.done);
    return r;
}

int reader_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, void *buf, size_t len, size_t *ret_len)
{
    struct answer a = {reader, scratch, position, offset, .copy = buf};
    begin_request(scratch);
    int r = answer_fill(&a, len);
    if (r == 0)
        *ret_len = a.done;
    return r;
}

int reader_get(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, struct span *ret_span)
{
    struct answer a = {reader, scratch, position, offset, .span = ret_span};
    ret_span->iov_count = ret_span->pinned_count = 0; /* in place because it is large */
    ret_span->bytes = 0;
    begin_request(scratch);
    if (len > READER_SPAN_MAX)
        len = READER_SPAN_MAX;
    int r = answer_fill(&a, len);
    if (r == 0 && a.done < len && ret_span->iov_count == READER_IOV_MAX - 1)
        r = answer_rest(&a, len - a.done);
    if (r < 0)
        reader_put(reader, ret_span);
    return r;
}

void reader_cut(struct span *span, size_t skip, size_t len)
{
    int kept = 0;
    span->bytes = 0;
    for (int i = 0; i < span->iov_count && span->bytes < len; i++) {
        struct iovec part = span->iov[i];
        size_t past = skip < part.iov_len ? skip : part.iov_len;
        skip -= past;
        part.iov_base = (uint8_t *)part.iov_base + past;
        part.iov_len -= past;
        if (part.iov_len > len - span->bytes)
            part.iov_len = len - span->bytes;
        if (part.iov_len > 0)
            span->iov[kept++] = part;
        span->bytes += part.iov_len;
    }
    span->iov_count = kept;
}

void reader_put(struct reader *reader, struct span *span)
{
    for (int i = 0; i < span->pinned_count; i++)
        block_cache_put(reader->cache, span->pinned[i]);
    span->iov_count = span->pinned_count = 0;
    span->bytes = 0;
}

#define LARGE_BYTES (UINT64_C(64) << 20) /* of an archive: a megabyte is little of it */

static void *map_zeros(size_t len, int protection)
{
    void *p = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int check_blocks(const struct index_info *info, struct fault *fault)
{
    for (unsigned i = 0; i <= 16; i++) { /* the archive's, and those that blocks name */
        const enum codec codec = i > 0 ? (enum codec)(i - 1) : info->codec;
        if (i > 0 && !(info->codecs & 1u << codec)) /* also a later onepot's */
            continue;
        if (!codec_available(codec))
            return fault_set_advised(
                fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                "use a build of onepot with that library, or pack it anew",
                "its blocks are compressed with %s, which this build does not read",
                codec_name(codec));
    }
    uint32_t most = info->codecs ? CODEC_BLOCK_MAX : codec_block_max(info->codec);
    if (info->block_bytes > most)
        return fault_set(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                         "blocks of %u bytes are more than the %u that are supported",
                         info->block_bytes, most);
    return 0;
}

int reader_new(struct fileset *fileset, const struct reader_options *options,
               struct fault *fault, struct reader **ret_reader)
{
    const struct index_info *info = index_info(fileset->index);
    /* index_extent gives no block that is longer than info->block_bytes. */
    int r = info->block_bytes > 0 ? check_blocks(info, fault) : 0;
    if (r < 0)
        return r;
    struct reader *reader = aligned_alloc(64, sizeof(*reader));
    if (!reader)
        return -ENOMEM;
    memset(reader, 0, sizeof(*reader));
    permits_init(&reader->permits);
    reader->index = fileset->index;
    reader->source = fileset->source;
    reader->source_bytes = source_size(fileset->source);
    reader->is_mapped = source_can_map(fileset->source);
    reader->answers_mapped = reader->is_mapped && !options->copies;
    reader->page = (size_t)sysconf(_SC_PAGESIZE);
    reader->is_kept = source_keeps(fileset->source);
    if (reader->is_mapped && !reader->is_kept && reader->source_bytes > 0) {
        char byte; /* if the second read is not cached, the filesystem never reports it */
        reader->ask_mincore = source_read(fileset->source, &byte, 1, 0) == 0 &&
                              source_read_cached(fileset->source, &byte, 1, 0) == -EAGAIN;
    }
    reader->block_bytes = info->block_bytes;
    reader->zeros = map_zeros(READER_SPAN_MAX, PROT_READ);
    r = reader->zeros ? 0 : -ENOMEM;
    reader->cache_stored = options->cache_stored && !reader->is_mapped && !reader->is_kept;
    reader->keep_pages = options->keep_pages;
    reader->lets_go = options->is_kept_above && reader->is_mapped;
    if (reader->cache_stored)
        source_advise(fileset->source, SOURCE_AT_RANDOM, 0, 0);
    /* In spite of that, the kernel would read on from what it read ahead when opening began. */
    if (reader->cache_stored && !reader->keep_pages && reader->source_bytes >= LARGE_BYTES)
        source_advise(fileset->source, SOURCE_DROP, 0, READER_SPAN_MAX);
    const struct block_cache_options cache = {
        .budget_bytes = options->cache_bytes,
        /* Of most blocks. Where stored files are cached, files of all sizes are blocks, too. */
        .block_bytes =
            max_u32(info->block_bytes, reader->cache_stored ? READER_WHOLE_BYTES : 0),
        .huge_pages = !reader->cache_stored, /* with cache_stored, blocks have all sizes */
        .not_for_children = options->not_for_children,
        .stuck_ms = options->stuck_ms,
    };
    atomic_init(&reader->cache_bytes, options->cache_bytes);
    if (r == 0 && cache.block_bytes > 0)
        r = block_cache_new(&cache, &reader->cache);
    if (r < 0) {
        reader_free(reader);
        return r;
    }
    *ret_reader = reader;
    return 0;
}

void reader_free(struct reader *reader)
{
    if (!reader)
        return;
    if (reader->cache)
        block_cache_free(reader->cache);
    permits_free(&reader->permits);
    if (reader->zeros)
        munmap(reader->zeros, READER_SPAN_MAX);
    free(reader);
}

int reader_scratch_new(struct reader *reader, struct reader_scratch **ret_scratch)
{
    struct reader_scratch *scratch = calloc(1, sizeof(*scratch));
    if (!scratch)
        return -ENOMEM;
    scratch->reader = reader;
    scratch->buffer = map_zeros(READER_SPAN_MAX, PROT_READ | PROT_WRITE);
    if (!scratch->buffer) {
        free(scratch);
        return -ENOMEM;
    }
    *ret_scratch = scratch;
    return 0;
}

void reader_scratch_free(struct reader_scratch *scratch)
{
    if (!scratch)
        return;
    if (scratch->codec)
        codec_context_free(scratch->codec);
    free(scratch->packed);
    munmap(scratch->buffer, READER_SPAN_MAX);
    free(scratch);
}

void reader_scratch_hooks(struct reader_scratch *scratch, void (*on_wait)(void *ctx),
                          void (*on_unpack)(void *ctx, bool begins), void *ctx)
{
    scratch->on_wait = on_wait;
    scratch->on_unpack = on_unpack;
    scratch->hook_ctx = ctx;
}

void reader_limit_unpacking(struct reader *reader, unsigned threads)
{
    permits_limit(&reader->permits, threads);
}

enum reader_origin reader_scratch_origin(const struct reader_scratch *scratch)
{
    return scratch->origin;
}

void reader_stats(const struct reader *reader, struct block_cache_stats *ret_cache,
                  uint64_t *ret_reads, uint64_t *ret_bytes)
{
    if (reader->cache)
        block_cache_stats(reader->cache, ret_cache);
    else
        *ret_cache =
            (struct block_cache_stats){.budget_bytes = atomic_load(&reader->cache_bytes)};
    *ret_reads = atomic_load_explicit(&reader->source_reads, memory_order_relaxed);
    *ret_bytes = atomic_load_explicit(&reader->source_read_bytes, memory_order_relaxed);
}

void reader_passed(struct reader *reader, uint64_t due, bool is_new_order)
{
    if (reader->cache)
        block_cache_passed(reader->cache, due, is_new_order);
}

void reader_set_budget(struct reader *reader, uint64_t cache_bytes)
{
    atomic_store(&reader->cache_bytes, cache_bytes);
    if (reader->cache)
        block_cache_set_budget(reader->cache, cache_bytes);
}

/* ---- whole members ---- */

/*
 * Stored bytes are read into a buffer that fits in a CPU's cache, and used there. A mapping
 * would save the copy, but its pages have to be faulted in, and hashing bytes that vanish is a
 * SIGBUS. Decompressed blocks are used where they lie.
 *
 * With CONTENT_THREAD_BLOCKS these are a few buffers that are reused, so that they stay in the
 * CPU's cache and cost no page faults; nothing is shared or locked. A block that belongs to one
 * file gets the first buffer, because nobody will ask for it again. Other blocks get the one of
 * the other buffers that was used longest ago. There are two of these: in a SquashFS, the block
 * that holds the ends of files lies apart from their other blocks.
 */

#define THREAD_BLOCKS 3u

struct thread_block {
    uint64_t source_offset;
    uint8_t *bytes; /* room for the largest block; NULL: not yet used */
    size_t len;     /* 0: holds nothing */
    uint64_t used;  /* when it was used last */
};

struct content {
    struct fileset *fileset;
    struct reader *reader;
    struct reader_scratch *scratch;
    enum content_blocks blocks;
    /* Of the read in progress: */
    uint32_t position;
    content_sink *sink;
    void *ctx;
    uint64_t *where;
    struct thread_block own[THREAD_BLOCKS];
    uint64_t now; /* of uses of these */
    uint64_t near_end;
    uint64_t window_start;
    size_t window_len;
    uint8_t window[CONTENT_NEAR_BYTES];
};

int content_new(struct fileset *fileset, struct reader *reader, enum content_blocks blocks,
                struct content **ret_content)
{
    struct content *s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->fileset = fileset;
    s->reader = reader;
    s->blocks = blocks;
    memset(s->own, 0, sizeof(s->own));
    s->near_end = s->window_start = s->now = 0;
    s->window_len = 0;
    int r = reader_scratch_new(reader, &s->scratch);
    if (r < 0) {
        free(s);
        return r;
    }
    *ret_content = s;
    return 0;
}

void content_free(struct content *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < THREAD_BLOCKS; i++)
        free(s->own[i].bytes);
    reader_scratch_free(s->scratch);
    free(s);
}

void content_skip_sums(struct content *s)
{
    s->scratch->skip_sums = true;
}

void content_expect(struct content *s, uint64_t end)
{
    s->near_end = end;
}

static int content_failed(const struct content *s, int err, uint64_t where)
{
    *s->where = where;
    return err;
}

/* Fills the window from `offset` on: `len` bytes, and expected bytes behind them. */
static int fill_window(struct content *s, uint64_t offset, size_t len)
{
    uint64_t size = source_size(s->fileset->source), end;
    s->window_len = 0;
    if (__builtin_add_overflow(offset, len, &end) || end > size)
        return -ENODATA;
    if (s->near_end > end)
        end = s->near_end < size ? s->near_end : size;
    if (end - offset > CONTENT_NEAR_BYTES)
        end = offset + CONTENT_NEAR_BYTES;
    int r = source_read(s->fileset->source, s->window, (size_t)(end - offset), offset);
    if (r < 0)
        return reader_source_error(r);
    s->window_start = offset;
    s->window_len = (size_t)(end - offset);
    return 0;
}

static int read_stored(struct content *s, const struct extent *extent, uint64_t len)
{
    for (uint64_t done = 0; done < len;) {
        uint64_t offset = extent->source_offset + done;
        size_t n = len - done < CONTENT_NEAR_BYTES ? (size_t)(len - done) : CONTENT_NEAR_BYTES;
        if (offset < s->window_start || n > s->window_len ||
            offset - s->window_start > s->window_len - n) {
            int err = fill_window(s, offset, n);
            if (err < 0)
                return content_failed(s, err, offset);
        }
        int err =
            s->sink(s->ctx, s->window + (offset - s->window_start), n, extent->offset + done);
        if (err)
            return err;
        done += n;
    }
    return 0;
}

/* The buffer with the block of an extent, or else the one that the block gets. */
static struct thread_block *choose_own(struct content *s, const struct extent *extent)
{
    struct thread_block *oldest = &s->own[1];
    for (unsigned i = 0; i < THREAD_BLOCKS; i++)
        if (s->own[i].len > 0 && s->own[i].source_offset == extent->source_offset)
            return &s->own[i];
    if (extent->block_offset == 0 && extent->length == extent->block_bytes)
        return &s->own[0];
    for (unsigned i = 2; i < THREAD_BLOCKS; i++)
        if (s->own[i].used < oldest->used)
            oldest = &s->own[i];
    return oldest;
}

static int fill_own(struct content *s, struct thread_block *own, const struct extent *extent)
{
    own->len = 0;
    if (!own->bytes)
        own->bytes = malloc(s->reader->block_bytes);
    if (!own->bytes)
        return -ENOMEM;
    own->source_offset = extent->source_offset;
    int r = reader_unpack(s->reader, s->scratch, extent, own->bytes, &own->len);
    if (r < 0)
        own->len = 0;
    return r;
}

static int read_thread_block(struct content *s, const struct extent *extent, uint64_t len)
{
    struct thread_block *own = choose_own(s, extent);
    bool has = own->len > 0 && own->source_offset == extent->source_offset;
    int err = has ? 0 : fill_own(s, own, extent);
    if (err == 0 &&
        (extent->block_offset > own->len || extent->length > own->len - extent->block_offset))
        err = -EUCLEAN;
    if (err < 0)
        return content_failed(s, err, extent->source_offset);
    own->used = ++s->now;
    return s->sink(s->ctx, own->bytes + extent->block_offset, (size_t)len, extent->offset);
}

static int read_shared_block(struct content *s, const struct extent *extent, uint64_t len)
{
    for (uint64_t done = 0; done < len;) {
        struct span span;
        size_t n = len - done < READER_SPAN_MAX ? (size_t)(len - done) : READER_SPAN_MAX;
        int err =
            reader_get(s->reader, s->scratch, s->position, extent->offset + done, n, &span);
        if (err == 0 && span.bytes == 0)
            err = -EUCLEAN;
        if (err < 0)
            return content_failed(s, err, extent->source_offset);
        for (int i = 0; err == 0 && i < span.iov_count; i++) {
            err = s->sink(s->ctx, span.iov[i].iov_base, span.iov[i].iov_len,
                          extent->offset + done);
            done += span.iov[i].iov_len;
        }
        reader_put(s->reader, &span);
        if (err)
            return err;
    }
    return 0;
}

int content_read(struct content *s, uint32_t position, uint64_t from, uint64_t to,
                 content_sink *sink, void *ctx, uint64_t *ret_where)
{
    s->position = position;
    s->sink = sink;
    s->ctx = ctx;
    s->where = ret_where;
    while (from < to) {
        struct extent extent;
        int r = index_extent(s->fileset->index, position, from, &extent);
        if (r == -ENXIO)
            break;
        if (r < 0)
            return content_failed(s, r, FAULT_NO_OFFSET);
        uint64_t len = extent.length < to - from ? extent.length : to - from;
        if (extent.kind == EXTENT_STORED)
            r = read_stored(s, &extent, len);
        else if (extent.kind == EXTENT_BLOCK && s->blocks == CONTENT_THREAD_BLOCKS)
            r = read_thread_block(s, &extent, len);
        else if (extent.kind == EXTENT_BLOCK)
            r = read_shared_block(s, &extent, len);
        if (r)
            return r;
        from += len;
    }
    return 0;
}
