/*
 * In a folder writable by all, another user may take our name. So we never use anything but a
 * directory that is ours alone.
 */
#include "runtime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fault.h"
#include "file_id.h"
#include "numbers.h"
#include "path.h"
#include "place.h"

#define AGAIN_MOST 1000 /* times a removed folder is created again */
#define LOCK_WAIT_MS 10000
#define LOCK_WAIT_MOST_MS 20000 /* however little of it this process ran */
#define LOCK_POLL_MS 2

/* Add a directory that is not in the list yet. */
static size_t runtime_add_place(char places[RUNTIME_FOLDERS_MAX][PATH_MAX], size_t count,
                                const char *path)
{
    char real[PATH_MAX];
    struct stat st;

    if (!path || path[0] != '/' || path_real(path, real, NULL) < 0 || stat(real, &st) < 0 ||
        !S_ISDIR(st.st_mode))
        return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(places[i], real) == 0)
            return count;
    memcpy(places[count], real, sizeof(real));
    return count + 1;
}

size_t runtime_places(enum runtime_use use, char places[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    char session[32];
    const char *own = getenv("ONEPOT_RUNTIME_DIR");
    size_t count = 0;
    if (own && *own) {
        if (!runtime_add_place(places, 0, own)) /* opening it says why */
            snprintf(places[0], sizeof(places[0]), "%s", own);
        return 1;
    }
    count = runtime_add_place(places, count, "/dev/shm");
    count = runtime_add_place(places, count, getenv("TMPDIR"));
    count = runtime_add_place(places, count, "/tmp");
    if (use == RUNTIME_COPIES)
        return count;
    snprintf(session, sizeof(session), "/run/user/%u", place_uid());
    count = runtime_add_place(places, count, getenv("XDG_RUNTIME_DIR"));
    return runtime_add_place(places, count, session);
}

size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    size_t places = runtime_places(RUNTIME_STATE, folders), count = 0;
    unsigned uid = place_uid();

    for (size_t i = 0; i < places; i++) {
        char folder[PATH_MAX];
        int n = snprintf(folder, sizeof(folder), "%s/onepot-%u",
                         strcmp(folders[i], "/") ? folders[i] : "", uid);
        if (n >= 0 && (size_t)n + RUNTIME_NAME_MAX < sizeof(folder))
            memcpy(folders[count++], folder, sizeof(folder));
    }
    return count;
}

/* Split "/dev/shm/onepot-1000", and judge and open the place before the last slash. */
static int runtime_open_place(const char *folder, const char **ret_name,
                              struct place *ret_place)
{
    char above[PATH_MAX];
    const char *slash = strrchr(folder, '/');
    int n = slash ? snprintf(above, sizeof(above), "%.*s", (int)(slash - folder), folder) : -1;

    if (n < 0 || (size_t)n >= sizeof(above))
        return -EINVAL;
    *ret_name = slash + 1;
    return place_open(n ? above : "/", PLACE_SHARED, ret_place);
}

/* -EPERM, -EXDEV for any entry of this name that is not a folder of ours, closed to others. */
static int runtime_enter(int place_fd, const char *name, struct stat *ret_st, int *ret_fd)
{
    auto_close int entry = -1;
    int r = place_open_entry(place_fd, name, &entry);
    if (r < 0)
        return r;
    if (fstat(entry, ret_st) < 0)
        return -errno;
    if (!S_ISDIR(ret_st->st_mode) || !place_is_ours(ret_st) || (ret_st->st_mode & 077) != 0)
        return -EPERM;
    int fd = openat(entry, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

/* With `create`, -ENOENT means that another process removed the folder again meanwhile. */
static int runtime_open_once(const char *folder, bool create, int *ret_fd,
                             struct place *ret_refused)
{
    struct place place = {.fd = -1};
    const char *name;
    int r = runtime_open_place(folder, &name, &place);

    *ret_refused = place;
    if (r < 0)
        return create && r == -ENOENT ? -ENOTDIR : r;
    if (create && mkdirat(place.fd, name, 0700) == 0)
        r = fchmodat(place.fd, name, 0700, 0) < 0 ? -errno : 0; /* undo the umask */
    else if (create && errno != EEXIST)
        r = -errno;
    ret_refused->st = (struct stat){0};
    if (r == 0)
        r = runtime_enter(place.fd, name, &ret_refused->st, ret_fd);
    close(place.fd);
    ret_refused->err = -r;
    snprintf(ret_refused->path, sizeof(ret_refused->path), "%s", folder);
    return r == -EXDEV ? -EPERM : r;
}

int runtime_open(const char *folder, bool create, int *ret_fd)
{
    struct place refused;
    /* Most often there is none, and then the folders above need not be judged. O_PATH asks
     * nothing of a FUSE program that is mounted there. */
    auto_close int any = create ? -1 : open(folder, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (!create && any < 0 && errno == ENOENT)
        return -ENOENT;
    int r = runtime_open_once(folder, create, ret_fd, &refused);
    for (int again = 0; create && r == -ENOENT && again < AGAIN_MOST; again++)
        r = runtime_open_once(folder, create, ret_fd, &refused);
    return r;
}

const char *runtime_explain(const char *folder, int err, char *buf, size_t size)
{
    struct place refused;
    auto_close int fd = -1;

    int r = runtime_open_once(folder, false, &fd, &refused);
    if (r == -EPERM)
        place_explain(&refused, buf, size);
    else if (r == -ENOENT && err == -ENOTDIR)
        snprintf(buf, size, "%s: the folder that it would be in does not exist", folder);
    else
        snprintf(buf, size, "%s: %s", folder, fault_errno(err));
    return buf;
}

static bool runtime_is_empty(int folder_fd)
{
    auto_closedir DIR *dir = path_list(folder_fd);
    bool empty = dir != NULL;

    for (struct dirent *e; empty && (e = readdir(dir));)
        empty = path_is_dots(e->d_name) || strcmp(e->d_name, "lock") == 0;
    return empty;
}

/* Remove the folder that is open as `folder_fd`, if nothing is left in it but the file "lock".
 */
static void runtime_remove(const char *folder, int folder_fd)
{
    struct place place;
    const char *name;

    if (!runtime_is_empty(folder_fd) || runtime_open_place(folder, &name, &place) < 0)
        return;
    if (file_is_named(place.fd, name, folder_fd, NULL) == 1) {
        unlinkat(folder_fd, "lock", 0);
        unlinkat(place.fd, name, AT_REMOVEDIR);
    }
    close(place.fd);
}

/* ---- the registry: its lock ---- */

/* -ESTALE: the folder was removed while we waited for its lock. Takes over `fd` on success. */
static int lock_folder(const char *path, int fd, uint64_t begun_ms,
                       struct registry *ret_registry)
{
    uint64_t last_ms = now_ms(), waited_ms = 0;
    struct stat st;
    auto_close int lock_fd =
        openat(fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (lock_fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    while (flock(lock_fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (waited_ms > LOCK_WAIT_MS || last_ms - begun_ms > LOCK_WAIT_MOST_MS)
            return -ETIMEDOUT;
        poll(NULL, 0, LOCK_POLL_MS);
        /* Time in which this process did not get to run doesn't count: then the lock's holder
         * may not have run, either. */
        uint64_t ms = now_ms();
        waited_ms += min_u64(ms - last_ms, 2 * LOCK_POLL_MS);
        last_ms = ms;
    }
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
    const uint64_t begun_ms = now_ms();
    int r;

    if (strlen(path) >= sizeof(ret_registry->path))
        return -ENAMETOOLONG;
    do {
        auto_close int fd = -1;
        r = runtime_open(path, create, &fd);
        if (r == 0)
            r = lock_folder(path, fd, begun_ms, ret_registry);
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
    int r = lock_folder(path, own, now_ms(), ret_registry);
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

/* ---- the registry: its files ---- */

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
