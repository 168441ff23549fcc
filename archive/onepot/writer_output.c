/*
 * The writer's output, summed window by window.
 *
 * Output is queued as it lies in memory and written by writev(2), so that no byte is copied on
 * its way to the page cache. The data has to pass the CPU for its sum anyway, so a copy inside
 * the kernel (copy_file_range) would save nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include <xxhash.h>

#include "numbers.h"
#include "output.h"
#include "write_at.h"
#include "writer_private.h"

/*
 * How much goes into one call. Measured on ext4 (Linux 6.18, which answers a large write with
 * large folios): a 64 KB call takes a third of the CPU time per byte that a 512 KB call takes.
 */
#define WRITE_BYTES (64u << 10)

int writer_write_failed(struct writer *w, int err, struct fault *fault)
{
    w->error = err;
    fault_set(fault, err, NULL, w->offset - w->queued_bytes, "can't be written: %s",
              fault_errno(err));
    if (err == -ENOSPC || err == -EDQUOT)
        fault_advise(fault, "free some space or choose another place with -o");
    if (err == -EFBIG)
        fault_advise(fault, "a limit (ulimit -f) or the filesystem allows no larger file");
    return err;
}

/* Makes one call: as many buffers as WRITE_BYTES allows, or a part of the first. */
static ssize_t writer_write_some(int fd, const struct iovec *iov, int count)
{
    size_t sum = 0;
    int n = 0;
    while (n < count && iov[n].iov_len <= WRITE_BYTES - sum)
        sum += iov[n++].iov_len;
    ssize_t done = n ? writev(fd, iov, n) : write(fd, iov->iov_base, WRITE_BYTES);
    return done < 0 ? -errno : done;
}

/* Writes iov[0..count) completely. */
static int writer_write_vector(int fd, struct iovec *iov, int count)
{
    while (count > 0) {
        ssize_t n = writer_write_some(fd, iov, count);
        if (n == -EINTR)
            continue;
        if (n < 0)
            return (int)n;
        iovec_advance(&iov, &count, (size_t)n);
    }
    return 0;
}

int writer_flush(struct writer *w, struct fault *fault)
{
    int r = writer_write_vector(w->output->fd, w->queue, w->queued);
    if (r < 0)
        return writer_write_failed(w, r, fault);
    for (int i = 0; i < w->queued; i++)
        free(w->owned[i]);
    w->queued = 0;
    w->queued_bytes = 0;
    return 0;
}

int writer_end_window(struct writer *w)
{
    int r = vector_push(&w->window_sums, XXH3_64bits_digest(w->window_state));
    XXH3_64bits_reset(w->window_state);
    return r;
}

/* Sums the next bytes of the file, window by window. */
static int writer_sum_windows(struct writer *w, const uint8_t *bytes, size_t len)
{
    int r = 0;
    for (size_t done = 0, n; r == 0 && done < len; done += n) {
        uint64_t room = INDEX_WINDOW_BYTES - (w->offset + done) % INDEX_WINDOW_BYTES;
        n = (size_t)min_u64(len - done, room);
        XXH3_64bits_update(w->window_state, bytes + done, n);
        if (n == room)
            r = writer_end_window(w);
    }
    return r;
}

int writer_put(struct writer *w, void *bytes, size_t len, void *owned, struct fault *fault)
{
    int r = writer_sum_windows(w, bytes, len);
    if (r < 0 || len == 0) {
        free(owned);
        return r;
    }
    w->queue[w->queued] = (struct iovec){bytes, len};
    w->owned[w->queued] = owned;
    w->queued++;
    w->queued_bytes += len;
    w->offset += len;
    if (w->queued == WRITER_QUEUE_MAX || w->queued_bytes >= WRITE_BYTES)
        return writer_flush(w, fault);
    return 0;
}
