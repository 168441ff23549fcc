/*
 * In a folder writable by all, another user may take our name. So we never use anything but a
 * directory that is ours alone.
 */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"

#define LOCK_WAIT_MS 10000
#define LOCK_POLL_MS 2
#define AGAIN_MOST 1000 /* times a removed folder is created again */

/* Add a directory that is not in the list yet. */
static size_t runtime_add_place(char places[RUNTIME_FOLDERS_MAX][PATH_MAX], size_t count,
                                const char *path)
{
    char real[PATH_MAX];
    struct stat st;

    if (!path || path[0] != '/' || !realpath(path, real) || stat(real, &st) < 0 ||
        !S_ISDIR(st.st_mode))
        return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(places[i], real) == 0)
            return count;
    memcpy(places[count], real, sizeof(real));
    return count + 1;
}

size_t runtime_places(char places[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    size_t count = runtime_add_place(places, 0, getenv("ONEPOT_RUNTIME_DIR"));
    if (count)
        return count;
    count = runtime_add_place(places, count, "/dev/shm");
    count = runtime_add_place(places, count, getenv("TMPDIR"));
    return runtime_add_place(places, count, "/tmp");
}

unsigned runtime_uid(void)
{
    unsigned inside, outside, count, uid = (unsigned)geteuid();
    auto_fclose FILE *f = fopen("/proc/self/uid_map", "re");

    while (f && fscanf(f, "%u %u %u", &inside, &outside, &count) == 3)
        if (uid >= inside && uid - inside < count)
            return outside + (uid - inside);
    return uid;
}

size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    size_t places = runtime_places(folders), count = 0;
    unsigned uid = runtime_uid();

    for (size_t i = 0; i < places; i++) {
        char folder[PATH_MAX];
        int n = snprintf(folder, sizeof(folder), "%s/onepot-%u",
                         strcmp(folders[i], "/") ? folders[i] : "", uid);
        if (n >= 0 && (size_t)n + RUNTIME_NAME_MAX < sizeof(folder))
            memcpy(folders[count++], folder, sizeof(folder));
    }
    return count;
}

/* With `create`, -ENOENT means that another process removed the folder again meanwhile. */
static int runtime_open_once(const char *folder, bool create, int *ret_fd)
{
    struct stat st;

    if (create && mkdir(folder, 0700) == 0) {
        if (chmod(folder, 0700) < 0) /* undo the umask */
            return -errno;
    } else if (create && errno != EEXIST) {
        return -errno;
    }
    auto_close int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR || errno == EACCES ? -EPERM : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EPERM;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int runtime_open(const char *folder, bool create, int *ret_fd)
{
    int r = runtime_open_once(folder, create, ret_fd);
    for (int again = 0; create && r == -ENOENT && again < AGAIN_MOST; again++)
        r = runtime_open_once(folder, create, ret_fd);
    return r;
}

/* ---- the lock ---- */

static int runtime_lock_before(int fd, uint64_t end_ms)
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

/* -ESTALE: the folder was removed while we waited for its lock. */
static int runtime_lock_once(const char *folder, bool create, uint64_t end_ms, int *ret_fd,
                             int *ret_lock_fd)
{
    auto_close int dir = -1;
    struct stat st;
    int r = runtime_open(folder, create, &dir);

    if (r < 0)
        return r;
    auto_close int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    r = runtime_lock_before(fd, end_ms);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_nlink == 0)
        return -ESTALE;
    *ret_fd = steal_fd(&dir);
    *ret_lock_fd = steal_fd(&fd);
    return 0;
}

int runtime_lock(const char *folder, bool create, int *ret_fd, int *ret_lock_fd)
{
    uint64_t end_ms = now_ms() + LOCK_WAIT_MS;
    int r;

    do
        r = runtime_lock_once(folder, create, end_ms, ret_fd, ret_lock_fd);
    while (r == -ESTALE);
    return r;
}

void runtime_unlock(const char *folder, int *lock_fd, bool remove)
{
    char path[PATH_MAX + 8];

    if (remove) {
        snprintf(path, sizeof(path), "%s/lock", folder);
        unlink(path);
        rmdir(folder);
    }
    flock(*lock_fd, LOCK_UN); /* a child may have inherited the descriptor */
    close(steal_fd(lock_fd));
}

bool runtime_cut_suffix(const char *file, const char *suffix, char *ret_name, size_t size)
{
    size_t n = strlen(file), m = strlen(suffix);

    if (n <= m || n - m >= size || strcmp(file + n - m, suffix) != 0)
        return false;
    memcpy(ret_name, file, n - m);
    ret_name[n - m] = '\0';
    return true;
}
