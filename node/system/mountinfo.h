/*
 * The mounts that the kernel lists in /proc/self/mountinfo. Only that text is read, so a mount
 * whose daemon is dead or hangs is never touched.
 */
#ifndef ONEPOT_MOUNTINFO_H
#define ONEPOT_MOUNTINFO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct mount_entry {
    unsigned dev_major, dev_minor; /* st_dev of the files in it */
    char path[PATH_MAX];
    bool is_onepot; /* by its type, fuse.onepot */
    unsigned uid;   /* FUSE: who mounted it, by the number there; UINT_MAX: not told */
    char type[32], source[96]; /* cut to the room, and escaped as in the file */
};

/* The topmost mount at exactly this (absolute, canonical) path. -ENOENT: none. */
int mountinfo_find(const char *path, struct mount_entry *ret_entry);

/*
 * The canonical absolute path of a directory. It may be a mount point, dead or alive, or may
 * not exist: only its parents and symbolic links are looked at. -EPERM: a link there is
 * another user's, in a folder where anybody may put one.
 */
int mountinfo_resolve(const char *path, char ret_path[PATH_MAX]);

/*
 * The mount that an open file or folder is in. Its filesystem is asked nothing; with another
 * one, a FUSE program is asked nothing.
 * 1: `other_fd` (-1: none) is in the same one, and that is all. -ENOENT: it is listed no more;
 * -ENOTSUP: the kernel or a missing /proc does not tell.
 */
int mountinfo_of(int fd, int other_fd, struct mount_entry *ret_entry);

/* Is the device still mounted at this path, maybe below another mount? */
bool mountinfo_has(const char *path, unsigned dev_major, unsigned dev_minor);

/*
 * The first place listed in a file like /proc/self/mountinfo where the device is mounted, other
 * than `except` (NULL: any); a bind mount counts. -ENOENT: none.
 */
int mountinfo_device_in(const char *file, unsigned dev_major, unsigned dev_minor,
                        const char *except, char ret_path[PATH_MAX]);

/*
 * The FUSE mounts of a user in a file like /proc/self/mountinfo that may be ours: of type
 * fuse.onepot, or fuse, as parents mount. At most `most`, the newest; returns their number.
 */
size_t mountinfo_fuse_in(const char *file, unsigned uid, struct mount_entry *ret_entries,
                         size_t most);

/*
 * Where cgroup hierarchies are mounted first, from one reading of a file like
 * /proc/self/mountinfo: those of version 1 with these controllers; NULL: version 2. Each gets
 * its path, and the part of it that is visible there ("/" outside containers); one that is
 * missing gets an empty path, and so do all if the file can't be read.
 */
void mountinfo_cgroups(const char *file, const char *const *controllers, size_t count,
                       char (*ret_paths)[PATH_MAX], char (*ret_roots)[PATH_MAX]);

#endif
