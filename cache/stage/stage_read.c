/*
 * Reads an archive while a copy of it is made. A chunk that is there is read from the copy. The
 * reader itself fetches a missing chunk, without regard to the stream. It fetches all of it: on
 * a slow filesystem that takes hardly longer, and the neighbouring bytes will be wanted, too.
 * If somebody else is fetching the chunk, the reader waits, but not for long. Then it takes the
 * few bytes that it wants from the source and leaves the copy alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "stage_private.h"

#define WAIT_MS 200u
#define WAITS 10 /* two seconds in all */

static int read_copy(const struct stage *stage, uint8_t *buf, size_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t n = pread(stage->copy_fd, buf, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        buf += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_copy(const struct stage *stage, const uint8_t *buf, size_t len,
                      uint64_t offset)
{
    while (len > 0) {
        ssize_t n = pwrite(stage->copy_fd, buf, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        buf += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* The page cache need not keep copied bytes, too, unless the source lies in memory anyway. */
static void drop_pages(const struct stage *stage, uint64_t offset, size_t len)
{
    posix_fadvise(source_fd(stage->source), (off_t)offset, (off_t)len, POSIX_FADV_DONTNEED);
}

static bool claim_is_young(const struct timespec *begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec - begun->tv_sec < STAGE_CLAIM_OLD_S / 2;
}

int stage_fetch(struct stage *stage, uint64_t chunk, void *buf)
{
    uint64_t offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(stage->state, chunk);
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    int r = source_read_origin(stage->source, buf, len, offset);
    if (r < 0) {
        stage_settle(stage->state, chunk, CHUNK_ABSENT);
        return r;
    }
    drop_pages(stage, offset, len);
    r = write_copy(stage, buf, len, offset);
    /*
     * The part that was written helps nobody, and others may want the room. But after a while
     * another process may have the claim, and have written the same bytes.
     */
    if (r < 0 && claim_is_young(&begun))
        fallocate(stage->copy_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)len);
    stage_settle(stage->state, chunk, r < 0 ? CHUNK_ABSENT : CHUNK_HERE);
    if (r < 0)
        stage_fail(stage, -r);
    return -r;
}

/* Fetch a chunk for a reader. 0: it is in `buf`; else -errno. */
static int fetch_wanted(struct stage *stage, uint64_t chunk, uint8_t *buf)
{
    struct stage_state *state = stage->state;
    int r = stage_fetch(stage, chunk, buf);
    if (r < 0)
        return r;
    atomic_fetch_add(&state->demands, 1);
    atomic_fetch_add(&state->demand_bytes, stage_chunk_len(state, chunk));
    return 0;
}

static bool may_keep(const struct stage *stage)
{
    int failure = atomic_load_explicit(&stage->state->failure, memory_order_relaxed);
    return failure != ENOSPC && failure != EDQUOT;
}

/* Have a chunk made, by this reader or another process. False: it won't be there soon. */
static bool await_chunk(struct stage *stage, uint64_t chunk, uint8_t **buf, bool *ret_in_buf)
{
    struct stage_state *state = stage->state;
    *ret_in_buf = false;
    if (stage->expands)
        return stage_await_stream(stage, chunk);
    for (int tries = 0; !stage_chunk_here(state, chunk); tries++) {
        if (may_keep(stage) && stage_claim_demand(state, chunk)) {
            if (!*buf)
                *buf = malloc(STAGE_CHUNK_BYTES);
            if (!*buf)
                stage_settle(state, chunk, CHUNK_ABSENT);
            return *ret_in_buf = *buf && fetch_wanted(stage, chunk, *buf) == 0;
        }
        if (tries == WAITS || atomic_load(&state->failure) ||
            atomic_load(&state->chunk[chunk]) <= CHUNK_BAD)
            return stage_chunk_here(state, chunk);
        stage_wait(state, chunk, WAIT_MS);
    }
    return true;
}

static int read_past(const struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    atomic_fetch_add_explicit(&stage->state->past_bytes, len, memory_order_relaxed);
    return source_read_origin(stage->source, to, len, offset);
}

/* If the copy itself fails, as a disk may, read the source, if that has the same bytes. */
static int read_here(struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    int r = read_copy(stage, to, len, offset);
    return r < 0 && !stage->unpacked ? read_past(stage, to, len, offset) : r;
}

static int read_wanted(struct stage *stage, uint8_t *to, size_t len, uint64_t offset,
                       uint8_t **buf)
{
    uint64_t chunk = offset / STAGE_CHUNK_BYTES;
    bool in_buf;
    if (!await_chunk(stage, chunk, buf, &in_buf))
        return stage->unpacked ? -EIO : read_past(stage, to, len, offset);
    if (!in_buf)
        return read_here(stage, to, len, offset);
    memcpy(to, *buf + offset % STAGE_CHUNK_BYTES, len);
    return 0;
}

static bool is_whole(void *ctx)
{
    const struct stage *stage = ctx;
    return atomic_load_explicit(&stage->state->whole, memory_order_acquire) != 0;
}

/* Also once the stream has ended, since a thread that waited may not have read yet. */
static uint64_t further_ns(void *ctx)
{
    const struct stage *stage = ctx;
    return stage->expands ? atomic_load(&stage->state->progress_ns) : 0;
}

static bool has(void *ctx, uint64_t offset, uint64_t len)
{
    const struct stage *stage = ctx;
    if (is_whole(ctx) || len == 0)
        return true;
    for (uint64_t i = offset / STAGE_CHUNK_BYTES; i <= (offset + len - 1) / STAGE_CHUNK_BYTES;
         i++)
        if (!stage_chunk_here(stage->state, i))
            return false;
    return true;
}

/* From a copy on a disk, only bytes in memory. -EAGAIN: they may be on the disk alone. */
static int read_now(struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    struct iovec iov = {.iov_base = to, .iov_len = len};
    if (stage->in_memory)
        return read_here(stage, to, len, offset);
    ssize_t n = preadv2(stage->copy_fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
    if (n < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
        return read_here(stage, to, len, offset); /* no way to know */
    return n == (ssize_t)len ? 0 : -EAGAIN;
}

static int read_staged(void *ctx, void *buf, size_t len, uint64_t offset, bool may_wait)
{
    struct stage *stage = ctx;
    uint8_t *to = buf;
    bool here = has(ctx, offset, len);
    if (!may_wait)
        return here ? read_now(stage, to, len, offset) : -EAGAIN;
    if (here)
        return read_here(stage, to, len, offset);
    auto_free uint8_t *chunk = NULL; /* not from a pool, whose lock a fork could inherit */
    int r = 0;
    while (r == 0 && len > 0) {
        size_t left = STAGE_CHUNK_BYTES - (size_t)(offset % STAGE_CHUNK_BYTES);
        size_t n = len < left ? len : left;
        r = read_wanted(stage, to, n, offset, &chunk);
        to += n;
        offset += n;
        len -= n;
    }
    return r;
}

static int bring(void *ctx, uint64_t offset, uint64_t len)
{
    struct stage *stage = ctx;
    if (has(ctx, offset, len))
        return 0;
    auto_free uint8_t *buf = NULL;
    bool ignored;
    for (uint64_t i = offset / STAGE_CHUNK_BYTES; i <= (offset + len - 1) / STAGE_CHUNK_BYTES;
         i++)
        if (!await_chunk(stage, i, &buf, &ignored) || !stage_chunk_here(stage->state, i))
            return may_keep(stage) ? -EIO : -ENOSPC;
    return 0;
}

static bool release(void *ctx)
{
    struct stage *stage = ctx;
    if (stage_stop(stage) < 0) {
        stage_abandon(stage);
        return false;
    }
    stage_close(stage);
    return true;
}

static void attach(struct stage *stage, struct source *source, bool (*on_close)(void *ctx))
{
    source_set_copy(source, &(struct source_copy){.read = read_staged,
                                                  .has = has,
                                                  .bring = bring,
                                                  .is_whole = is_whole,
                                                  .further_ns = further_ns,
                                                  .release = on_close,
                                                  .map = stage->map,
                                                  .fd = stage->copy_fd,
                                                  .ctx = stage});
}

void stage_attach(struct stage *stage, struct source *source)
{
    attach(stage, source, NULL);
}

void stage_give(struct stage *stage, struct source *source)
{
    attach(stage, source, release);
}
