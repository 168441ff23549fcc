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
#include "content.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "reader_private.h"

#define THREAD_BLOCKS 3u

struct thread_block {
    uint64_t source_offset;
    uint8_t *bytes; /* room for the largest block; NULL: not yet used */
    size_t len;     /* 0: holds nothing */
    uint64_t used;  /* when it was used last */
};

struct content {
    struct pot *pot;
    struct reader *reader;
    struct reader_scratch *scratch;
    enum content_blocks blocks;
    struct thread_block own[THREAD_BLOCKS];
    uint64_t now; /* of uses of these */
    uint64_t near_end;
    uint64_t window_start;
    size_t window_len;
    uint8_t window[CONTENT_NEAR_BYTES];
};

/* A read in progress. */
struct reading {
    struct content *content;
    uint32_t position;
    content_sink *sink;
    void *ctx;
    uint64_t *where;
};

int content_new(struct pot *pot, struct reader *reader, enum content_blocks blocks,
                struct content **ret_content)
{
    struct content *s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->pot = pot;
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
    reader_scratch_skip_sums(s->scratch);
}

void content_expect(struct content *s, uint64_t end)
{
    s->near_end = end;
}

static int content_failed(const struct reading *r, int err, uint64_t where)
{
    *r->where = where;
    return err;
}

/* Fills the window from `offset` on: `len` bytes, and expected bytes behind them. */
static int fill_window(struct content *s, uint64_t offset, size_t len)
{
    uint64_t size = source_size(s->pot->source), end;
    s->window_len = 0;
    if (__builtin_add_overflow(offset, len, &end) || end > size)
        return -ENODATA;
    if (s->near_end > end)
        end = s->near_end < size ? s->near_end : size;
    if (end - offset > CONTENT_NEAR_BYTES)
        end = offset + CONTENT_NEAR_BYTES;
    int r = source_read(s->pot->source, s->window, (size_t)(end - offset), offset);
    if (r < 0)
        return reader_source_error(r);
    s->window_start = offset;
    s->window_len = (size_t)(end - offset);
    return 0;
}

static int read_stored(const struct reading *r, const struct extent *extent, uint64_t len)
{
    struct content *s = r->content;
    for (uint64_t done = 0; done < len;) {
        uint64_t offset = extent->source_offset + done;
        size_t n = len - done < CONTENT_NEAR_BYTES ? (size_t)(len - done) : CONTENT_NEAR_BYTES;
        if (offset < s->window_start || n > s->window_len ||
            offset - s->window_start > s->window_len - n) {
            int err = fill_window(s, offset, n);
            if (err < 0)
                return content_failed(r, err, offset);
        }
        int err =
            r->sink(r->ctx, s->window + (offset - s->window_start), n, extent->offset + done);
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

static int read_thread_block(const struct reading *r, const struct extent *extent, uint64_t len)
{
    struct content *s = r->content;
    struct thread_block *own = choose_own(s, extent);
    bool has = own->len > 0 && own->source_offset == extent->source_offset;
    int err = has ? 0 : fill_own(s, own, extent);
    if (err == 0 &&
        (extent->block_offset > own->len || extent->length > own->len - extent->block_offset))
        err = -EUCLEAN;
    if (err < 0)
        return content_failed(r, err, extent->source_offset);
    own->used = ++s->now;
    return r->sink(r->ctx, own->bytes + extent->block_offset, (size_t)len, extent->offset);
}

static int read_shared_block(const struct reading *r, const struct extent *extent, uint64_t len)
{
    struct content *s = r->content;
    for (uint64_t done = 0; done < len;) {
        struct span span;
        size_t n = len - done < READER_SPAN_MAX ? (size_t)(len - done) : READER_SPAN_MAX;
        int err =
            reader_get(s->reader, s->scratch, r->position, extent->offset + done, n, &span);
        if (err == 0 && span.bytes == 0)
            err = -EUCLEAN;
        if (err < 0)
            return content_failed(r, err, extent->source_offset);
        for (int i = 0; err == 0 && i < span.iov_count; i++) {
            err = r->sink(r->ctx, span.iov[i].iov_base, span.iov[i].iov_len,
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
    const struct reading reading = {s, position, sink, ctx, ret_where};
    while (from < to) {
        struct extent extent;
        int r = index_extent(s->pot->index, position, from, &extent);
        if (r == -ENXIO)
            break;
        if (r < 0)
            return content_failed(&reading, r, FAULT_NO_OFFSET);
        uint64_t len = extent.length < to - from ? extent.length : to - from;
        if (extent.kind == EXTENT_STORED)
            r = read_stored(&reading, &extent, len);
        else if (extent.kind == EXTENT_BLOCK && s->blocks == CONTENT_THREAD_BLOCKS)
            r = read_thread_block(&reading, &extent, len);
        else if (extent.kind == EXTENT_BLOCK)
            r = read_shared_block(&reading, &extent, len);
        if (r)
            return r;
        from += len;
    }
    return 0;
}
