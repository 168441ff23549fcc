/*
 * Copies bytes from the archive into a file. Each piece is hashed and written while it is still
 * in the CPU's cache.
 */
#include "extract_private.h"
#include "numbers.h"
#include "write_at.h"

struct copy {
    struct extraction *x;
    int fd;
    struct checksum *hash; /* or NULL */
    bool write_failed;
};

static int write_piece(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct copy *c = ctx;
    if (extract_stopped(c->x))
        return -EINTR;
    if (c->hash)
        checksum_add(c->hash, bytes, len);
    int r = write_at(c->fd, bytes, len, offset);
    c->write_failed = r < 0;
    atomic_fetch_add_explicit(&c->x->progress.bytes_done, len, memory_order_relaxed);
    return r;
}

int bytes_copy(struct extractor *e, uint32_t position, uint64_t from, uint64_t to, int fd,
               struct checksum *hash, struct trouble *trouble)
{
    struct copy c = {.x = e->x, .fd = fd, .hash = hash};
    trouble->doing = "can't be read";
    int r =
        content_read(e->worker->content, position, from, to, write_piece, &c, &trouble->offset);
    if (c.write_failed)
        trouble->doing = "can't be written";
    return r;
}

static int bytes_hash_range(struct extractor *e, uint64_t from, uint64_t to, int fd,
                            struct checksum *hash)
{
    while (from < to) {
        size_t n = min_u64(to - from, READ_BACK_BYTES);
        ssize_t got = pread(fd, e->worker->buffer, n, (off_t)from);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -EIO;
        checksum_add(hash, e->worker->buffer, (size_t)got);
        from += (uint64_t)got;
    }
    return 0;
}

int bytes_hash_written(struct extractor *e, uint32_t position, uint64_t from, uint64_t to,
                       int fd, struct checksum *hash)
{
    while (from < to) {
        struct extent extent;
        int r = index_extent(e->x->index, position, from, &extent);
        if (r < 0)
            return r;
        uint64_t len = min_u64(extent.length, to - from);
        if (extent.kind != EXTENT_HOLE)
            r = bytes_hash_range(e, from, from + len, fd, hash);
        if (r < 0)
            return r;
        from += len;
    }
    return 0;
}
