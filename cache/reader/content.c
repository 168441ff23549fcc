/*
 * Stored bytes are read into a buffer that fits in a CPU's cache, and used there. A mapping
 * would save the copy, but its pages have to be faulted in, and hashing bytes that vanish is a
 * SIGBUS. Decompressed blocks are used where they lie.
 */
#include "content.h"

#include <errno.h>
#include <stdlib.h>

#include "reader_private.h"
#include "thread_blocks.h"

struct content {
    struct pot *pot;
    struct reader *reader;
    struct reader_scratch *scratch;
    enum content_blocks blocks;
    struct thread_blocks own;
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
    s->near_end = s->window_start = 0;
    s->window_len = 0;
    int r = reader_scratch_new(reader, &s->scratch);
    if (r < 0) {
        free(s);
        return r;
    }
    thread_blocks_init(&s->own, reader, s->scratch);
    *ret_content = s;
    return 0;
}

void content_free(struct content *s)
{
    if (!s)
        return;
    thread_blocks_free(&s->own);
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

static int read_thread_block(const struct reading *r, const struct extent *extent, uint64_t len)
{
    const uint8_t *bytes;
    int err = thread_blocks_get(&r->content->own, extent, &bytes);
    if (err < 0)
        return content_failed(r, err, extent->source_offset);
    return r->sink(r->ctx, bytes, (size_t)len, extent->offset);
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
