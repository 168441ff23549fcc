/*
 * A tree may be deeper than a process may have descriptors. Directories at a certain depth are
 * therefore moved up to the tree's root, and walked from there.
 */
#include "remove_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "path.h"

#define DEPTH_MAX 32u
#define LOOK_EVERY 256u             /* entries between looks at the clock */
#define MOUNT_ROOT UINT64_C(0x2000) /* STATX_ATTR_MOUNT_ROOT, of Linux 5.8 */

struct removal {
    int top_fd; /* of the tree's root */
    dev_t dev;
    uint64_t end_ms;
    unsigned entries, moved;
    bool is_late;
};

/* The mount that an open file is on, whatever its device; -1: /proc does not say. */
static long mount_id(int fd)
{
    char path[48], line[128];
    long id = -1;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    auto_fclose FILE *f = fopen(path, "re");
    while (f && id < 0 && fgets(line, sizeof(line), f))
        if (sscanf(line, "mnt_id: %ld", &id) != 1)
            id = -1;
    return id;
}

/* Has the folder's entry, open as `fd`, something mounted on it? Its device may be the same. */
static bool is_mount(int folder_fd, int fd)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) == 0 &&
        st.stx_attributes_mask & MOUNT_ROOT)
        return st.stx_attributes & MOUNT_ROOT;
    return folder_fd >= 0 && mount_id(folder_fd) != mount_id(fd);
}

/* Open a directory that may have to be opened to us first. -1: it is none, or a mount. */
static int enter(int folder_fd, const char *name, dev_t dev)
{
    char self[32];
    struct stat st;
    auto_close int fd = openat(folder_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || is_mount(folder_fd, fd) || fstat(fd, &st) < 0 || (dev && st.st_dev != dev))
        return -1;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    if ((st.st_mode & S_IRWXU) != S_IRWXU)
        chmod(self, S_IRWXU);
    return openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void clear(struct removal *r, int fd, unsigned depth);

/* Was there something to remove or to move? */
static bool remove_entry(struct removal *r, int folder_fd, const struct dirent *e,
                         unsigned depth)
{
    char up[32];
    bool moved;

    if (++r->entries % LOOK_EVERY == 0 && now_ms() >= r->end_ms)
        r->is_late = true;
    if (r->is_late)
        return false;
    if (e->d_type != DT_DIR && unlinkat(folder_fd, e->d_name, 0) == 0)
        return true;
    auto_close int fd = enter(folder_fd, e->d_name, r->dev);
    if (fd < 0)
        return false;
    if (depth < DEPTH_MAX) {
        clear(r, fd, depth + 1);
        return unlinkat(folder_fd, e->d_name, AT_REMOVEDIR) == 0;
    }
    do {
        snprintf(up, sizeof(up), ".%u", r->moved++);
        moved = renameat(folder_fd, e->d_name, r->top_fd, up) == 0;
    } while (!moved && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR));
    return moved;
}

/* Some filesystems leave entries out of a listing while others are removed: list it again. */
static void clear(struct removal *r, int fd, unsigned depth)
{
    auto_closedir DIR *dir = path_list(fd);
    bool again = dir != NULL;

    while (again) {
        again = false;
        rewinddir(dir);
        for (struct dirent *e; !r->is_late && (e = readdir(dir));)
            if (!path_is_dots(e->d_name))
                again |= remove_entry(r, fd, e, depth);
    }
}

bool remove_tree(int folder_fd, const char *name, uint64_t end_ms)
{
    struct stat st;
    dev_t dev = folder_fd >= 0 && fstat(folder_fd, &st) == 0 ? st.st_dev : 0;
    auto_close int fd = enter(folder_fd, name, dev);

    if (fd >= 0 && fstat(fd, &st) == 0) {
        struct removal r = {.top_fd = fd, .dev = st.st_dev, .end_ms = end_ms};
        clear(&r, fd, 0);
    }
    return unlinkat(folder_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}
