/* Read or write all the bytes, or fail: one call may be interrupted, or do less than asked. */
#ifndef ONEPOT_WRITE_AT_H
#define ONEPOT_WRITE_AT_H

#include <errno.h>
#include <stdint.h>
#include <sys/uio.h>
#include <unistd.h>

/* 0 or -errno; -EIO if a write makes no progress. */
static inline int write_at(int fd, const void *bytes, size_t len, uint64_t offset)
{
    const uint8_t *from = bytes;
    while (len > 0) {
        ssize_t n = pwrite(fd, from, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        from += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* 0 or -errno; -ENODATA if the file ends before. */
static inline int read_at(int fd, void *bytes, size_t len, uint64_t offset)
{
    uint8_t *to = bytes;
    while (len > 0) {
        ssize_t n = pread(fd, to, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        to += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Skip `n` bytes that one call read or wrote, and empty buffers: a count of 0 is the end. */
static inline void iovec_advance(struct iovec **iov, int *count, size_t n)
{
    for (; *count > 0 && n >= (*iov)->iov_len; (*iov)++, (*count)--)
        n -= (*iov)->iov_len;
    if (*count > 0) {
        (*iov)->iov_base = (uint8_t *)(*iov)->iov_base + n;
        (*iov)->iov_len -= n;
    }
}

#endif
