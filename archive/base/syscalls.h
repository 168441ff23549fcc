/*
 * System calls newer than Linux 4.18 and glibc 2.28, which the oldest systems lack. Numbers are
 * the same on every architecture; a kernel that lacks the call answers ENOSYS.
 */
#ifndef ONEPOT_SYSCALLS_H
#define ONEPOT_SYSCALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif

/* A descriptor of the process, close-on-exec, or -errno. -ENOSYS before Linux 5.3. */
static inline int syscall_pidfd_open(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    return fd < 0 ? -errno : fd;
}

/*
 * Linux 5.6: a descriptor of the name alone (O_PATH), with a limit on where the path may lead.
 * -errno.
 */
#define SYSCALL_CACHED 0x20u /* RESOLVE_CACHED: as far as the kernel has it in memory, 5.12 */
#define SYSCALL_WITHIN 0x07u /* RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS: one filesystem */
static inline int syscall_open_name(int folder_fd, const char *path, uint64_t resolve)
{
    const uint64_t flags_mode_resolve[] = {O_PATH | O_CLOEXEC, 0, resolve};
    int fd = (int)syscall(SYS_openat2, folder_fd, path, flags_mode_resolve,
                          sizeof(flags_mode_resolve));
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
