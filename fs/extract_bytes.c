/*
 * From the archive into a file. Stored bytes are read into a buffer that fits in the
 * CPU's cache, hashed there and written from there: a mapping would save the copy, but
 * its pages have to be faulted in, and a hash of bytes that vanish is a SIGBUS. One read
 * takes in the neighbours that are next, as small files lie close together.
 * Decompressed blocks are written as they lie in the block cache.
 */
#include <errno.h>
#include <unistd.h>

#include "extract_private.h"

static int write_all(int fd, const uint8_t *bytes, size_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t n = pwrite(fd, bytes, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        bytes += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static int write_bytes(struct extractor *e, const uint8_t *bytes, size_t len, uint64_t offset,
                       int fd, XXH3_state_t *hash, struct trouble *trouble)
{
    if (hash)
        XXH3_64bits_update(hash, bytes, len);
    int r = write_all(fd, bytes, len, offset);
    if (r < 0) {
        *trouble = (struct trouble){"can't be written", FAULT_NO_OFFSET};
        return r;
    }
    atomic_fetch_add_explicit(&e->x->progress.bytes_done, len, memory_order_relaxed);
    return 0;
}

/* Bytes [offset, offset + len) of the archive, len <= WINDOW_BYTES. */
static int window_get(struct extractor *e, uint64_t offset, size_t len,
                      const uint8_t **ret_bytes)
{
    struct window *w = &e->window;
    if (offset < w->start || len > w->len || offset - w->start > w->len - len) {
        uint64_t end = offset + len;
        if (e->near_end > end)
            end = e->near_end;
        if (end > source_size(e->x->pot->source))
            end = source_size(e->x->pot->source);
        w->len = 0;
        if (end < offset + len)
            return -ENODATA;
        size_t want = end - offset < WINDOW_BYTES ? (size_t)(end - offset) : WINDOW_BYTES;
        int r = source_read(e->x->pot->source, w->bytes, want, offset);
        if (r < 0)
            return r;
        w->start = offset;
        w->len = want;
    }
    *ret_bytes = w->bytes + (offset - w->start);
    return 0;
}

static int copy_stored(struct extractor *e, const struct extent *extent, uint64_t len, int fd,
                       XXH3_state_t *hash, struct trouble *trouble)
{
    for (uint64_t done = 0; done < len;) {
        size_t n = len - done < WINDOW_BYTES ? (size_t)(len - done) : WINDOW_BYTES;
        const uint8_t *bytes;
        if (extract_stopped(e->x))
            return -EINTR;
        int r = window_get(e, extent->source_offset + done, n, &bytes);
        if (r < 0) {
            *trouble = (struct trouble){"can't be read", extent->source_offset + done};
            return r;
        }
        r = write_bytes(e, bytes, n, extent->offset + done, fd, hash, trouble);
        if (r < 0)
            return r;
        done += n;
    }
    return 0;
}

static int copy_block(struct extractor *e, uint32_t position, const struct extent *extent,
                      uint64_t len, int fd, XXH3_state_t *hash, struct trouble *trouble)
{
    struct reader *reader = e->x->reader;
    for (uint64_t done = 0; done < len;) {
        struct span span;
        size_t n = len - done < READER_SPAN_MAX ? (size_t)(len - done) : READER_SPAN_MAX;
        if (extract_stopped(e->x))
            return -EINTR;
        int r = reader_get(reader, e->scratch, position, extent->offset + done, n, &span);
        if (r == 0 && span.bytes == 0)
            r = -EUCLEAN;
        if (r < 0) {
            *trouble = (struct trouble){"can't be read", extent->source_offset};
            return r;
        }
        for (int i = 0; r == 0 && i < span.iov_count; i++) {
            r = write_bytes(e, span.iov[i].iov_base, span.iov[i].iov_len, extent->offset + done,
                            fd, hash, trouble);
            done += span.iov[i].iov_len;
        }
        reader_put(reader, &span);
        if (r < 0)
            return r;
    }
    return 0;
}

int bytes_copy(struct extractor *e, uint32_t position, uint64_t from, uint64_t to, int fd,
               XXH3_state_t *hash, struct trouble *trouble)
{
    while (from < to) {
        struct extent extent;
        int r = index_extent(e->x->index, position, from, &extent);
        if (r < 0) {
            *trouble = (struct trouble){"can't be read", FAULT_NO_OFFSET};
            return r;
        }
        uint64_t len = extent.length < to - from ? extent.length : to - from;
        if (extent.kind == EXTENT_STORED)
            r = copy_stored(e, &extent, len, fd, hash, trouble);
        else if (extent.kind == EXTENT_BLOCK)
            r = copy_block(e, position, &extent, len, fd, hash, trouble);
        if (r < 0)
            return r;
        from += len;
    }
    return 0;
}

static int hash_range(struct extractor *e, uint64_t from, uint64_t to, int fd,
                      XXH3_state_t *hash)
{
    e->window.len = 0; /* its buffer serves for this */
    while (from < to) {
        size_t n = to - from < WINDOW_BYTES ? (size_t)(to - from) : WINDOW_BYTES;
        ssize_t got = pread(fd, e->window.bytes, n, (off_t)from);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        XXH3_64bits_update(hash, e->window.bytes, (size_t)got);
        from += (uint64_t)got;
    }
    return 0;
}

int bytes_hash_written(struct extractor *e, uint32_t position, uint64_t from, uint64_t to,
                       int fd, XXH3_state_t *hash)
{
    while (from < to) {
        struct extent extent;
        int r = index_extent(e->x->index, position, from, &extent);
        if (r < 0)
            return r;
        uint64_t len = extent.length < to - from ? extent.length : to - from;
        if (extent.kind != EXTENT_HOLE)
            r = hash_range(e, from, from + len, fd, hash);
        if (r < 0)
            return r;
        from += len;
    }
    return 0;
}
