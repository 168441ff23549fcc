#include "registry.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "runtime.h"

#define LOCK_WAIT_MS 10000
#define LOCK_POLL_MS 2

/* ---- the lock ---- */

static int lock_before(int fd, uint64_t end_ms)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (now_ms() > end_ms)
            return -ETIMEDOUT;
        poll(NULL, 0, LOCK_POLL_MS);
    }
    return 0;
}

/* -ESTALE: the folder was removed while we waited for its lock. Takes over `fd` on success. */
static int lock_until(const char *path, int fd, uint64_t end_ms, struct registry *ret_registry)
{
    struct stat st;
    auto_close int lock_fd =
        openat(fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (lock_fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    int r = lock_before(lock_fd, end_ms);
    if (r < 0)
        return r;
    if (fstat(lock_fd, &st) < 0)
        return -errno;
    if (st.st_nlink == 0)
        return -ESTALE;
    snprintf(ret_registry->path, sizeof(ret_registry->path), "%s", path);
    ret_registry->fd = fd;
    ret_registry->lock_fd = steal_fd(&lock_fd);
    return 0;
}

int registry_lock(const char *path, bool create, struct registry *ret_registry)
{
    uint64_t end_ms = now_ms() + LOCK_WAIT_MS;
    int r;

    if (strlen(path) >= sizeof(ret_registry->path))
        return -ENAMETOOLONG;
    do {
        auto_close int fd = -1;
        r = runtime_open(path, create, &fd);
        if (r == 0)
            r = lock_until(path, fd, end_ms, ret_registry);
        if (r == 0)
            steal_fd(&fd);
    } while (r == -ESTALE);
    return r;
}

int registry_lock_open(const char *path, int fd, struct registry *ret_registry)
{
    auto_close int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return -errno;
    int r = lock_until(path, own, now_ms() + LOCK_WAIT_MS, ret_registry);
    if (r == 0)
        steal_fd(&own);
    return r == -ESTALE ? -ENOENT : r;
}

void registry_unlock(struct registry *registry)
{
    if (registry->lock_fd < 0)
        return;
    flock(registry->lock_fd, LOCK_UN); /* a child may have inherited the descriptor */
    close(steal_fd(&registry->lock_fd));
    close(steal_fd(&registry->fd));
}

void registry_remove(struct registry *registry)
{
    if (registry->lock_fd >= 0)
        runtime_remove(registry->path, registry->fd);
    registry_unlock(registry);
}

/* ---- files ---- */

static bool file_name(const char *name, const char *suffix, char ret_file[NAME_MAX + 1])
{
    int n = snprintf(ret_file, NAME_MAX + 1, "%s%s", name, suffix);
    return n >= 0 && n <= NAME_MAX;
}

int registry_open(int folder_fd, const char *name, const char *suffix, int flags, int *ret_fd)
{
    char file[NAME_MAX + 1];
    struct stat st;
    if (!file_name(name, suffix, file))
        return -ENAMETOOLONG;
    auto_close int fd =
        openat(folder_fd, file, O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return errno == ELOOP ? -EPERM : -errno;
    if ((flags & O_CREAT && fchmod(fd, 0600) < 0) ||
        fstat(fd, &st) < 0) /* whatever the umask */
        return -errno;
    /* The folder is ours, so the number of our user is no one else's. */
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EPERM;
    *ret_fd = steal_fd(&fd);
    return 0;
}

bool registry_take(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

bool registry_has(int folder_fd, const char *name, const char *suffix)
{
    char file[NAME_MAX + 1];
    struct stat st;
    return file_name(name, suffix, file) &&
           fstatat(folder_fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

void registry_unlink(int folder_fd, const char *name, const char *suffix)
{
    char file[NAME_MAX + 1];
    if (file_name(name, suffix, file))
        unlinkat(folder_fd, file, 0);
}

bool registry_name(const char *file, const char *suffix, char *ret_name, size_t size)
{
    size_t n = strlen(file), m = strlen(suffix);

    if (n <= m || n - m >= size || strcmp(file + n - m, suffix) != 0)
        return false;
    memcpy(ret_name, file, n - m);
    ret_name[n - m] = '\0';
    return true;
}
