/*
 * System calls that a system may lack. A kernel that is too old answers ENOSYS; the filter of a
 * container (seccomp) often answers EPERM to calls that it does not know. Those newer than
 * Linux 4.18 and glibc 2.28 are defined here: their numbers are the same on every architecture.
 */
#ifndef ONEPOT_SYSCALLS_H
#define ONEPOT_SYSCALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif

/*
 * Does this errno say that the call is not to be had here? For calls with another way, which
 * reports a refusal that is genuine.
 */
static inline bool syscall_is_missing(int err)
{
    return err == ENOSYS || err == EPERM;
}

/* memfd_create(2), for which there is no other way. -ENOSYS also where a filter forbids it. */
static inline int syscall_memfd(const char *name, unsigned flags)
{
    int fd = memfd_create(name, flags);
    return fd >= 0 ? fd : syscall_is_missing(errno) ? -ENOSYS : -errno;
}

/*
 * Give a new file of zeros its size, with pages that are its own: posix_fallocate(3), which has
 * no other way where a filter forbids the call. 0 or -errno.
 */
static inline int syscall_reserve(int fd, uint64_t bytes)
{
    static const char zeros[4096];
    int r = posix_fallocate(fd, 0, (off_t)bytes);
    if (!syscall_is_missing(r))
        return -r;
    for (uint64_t at = 0; at < bytes;) {
        size_t len = bytes - at < sizeof(zeros) ? (size_t)(bytes - at) : sizeof(zeros);
        ssize_t n = pwrite(fd, zeros, len, (off_t)at);
        if (n < 0 && errno != EINTR)
            return -errno;
        at += n > 0 ? (uint64_t)n : 0;
    }
    return 0;
}

/*
 * Rename, but not over a file. Where the system or the filesystem has no such rename, a hard
 * link does it; where that is missing too, the name is looked at first. 0 or -errno.
 */
static inline int syscall_rename_new(int from_fd, const char *from, int to_fd, const char *to)
{
    struct stat st;
    if (renameat2(from_fd, from, to_fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && !syscall_is_missing(errno))
        return -errno;
    if (linkat(from_fd, from, to_fd, to, 0) == 0) {
        unlinkat(from_fd, from, 0);
        return 0;
    }
    if (errno == EEXIST || fstatat(to_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    return renameat(from_fd, from, to_fd, to) < 0 ? -errno : 0;
}

/* A descriptor of the process, close-on-exec, or -errno. -ENOSYS before Linux 5.3. */
static inline int syscall_pidfd_open(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : fd;
}

/*
 * Open a path (O_PATH) all names of which the kernel has in memory: no filesystem is asked.
 * -EAGAIN: one would have to be; -EINVAL, -ENOSYS: the kernel can't, before Linux 5.12.
 */
static inline int syscall_open_known(const char *path)
{
    const struct {
        uint64_t flags, mode, resolve;
    } how = {.flags = O_PATH | O_CLOEXEC, .resolve = 0x20}; /* RESOLVE_CACHED */
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));
    return fd < 0 ? -errno : fd;
}

/* Close the descriptors first to last, both included; one by one before Linux 5.9. */
static inline void syscall_close_range(unsigned first, unsigned last)
{
    struct rlimit limit;
    if (first > last || syscall(SYS_close_range, first, last, 0u) == 0)
        return;
    /* The kernel's default for the highest limit (fs.nr_open). */
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 1u << 20)
        limit.rlim_cur = 1u << 20;
    for (unsigned fd = first; fd <= last && fd < limit.rlim_cur; fd++)
        close((int)fd);
}

#endif
