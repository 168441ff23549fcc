/*
 * What the kernel has mounted where, from /proc/self/mountinfo: text alone, so that a
 * mount whose daemon is dead or hangs is never touched.
 */
#ifndef ONEPOT_MOUNTINFO_H
#define ONEPOT_MOUNTINFO_H

#include <limits.h>
#include <stdbool.h>

struct mount_entry {
    unsigned dev_major, dev_minor; /* st_dev of the files in it */
    char path[PATH_MAX];
    bool is_onepot; /* by its type, fuse.onepot */
    unsigned uid;   /* of FUSE: who has mounted it */
};

/* The topmost mount at exactly this (absolute, canonical) path. -ENOENT: none. */
int mountinfo_find(const char *path, struct mount_entry *ret_entry);

/* It is still mounted there, maybe below another mount. */
bool mountinfo_has(const char *path, unsigned dev_major, unsigned dev_minor);

/* A place where it is mounted, whichever comes first: a bind mount is one. -ENOENT. */
int mountinfo_find_device(unsigned dev_major, unsigned dev_minor, char ret_path[PATH_MAX]);

/* The same of another process, from its /proc/PID/mountinfo. */
int mountinfo_device_in(const char *file, unsigned dev_major, unsigned dev_minor,
                        char ret_path[PATH_MAX]);

/*
 * Where a cgroup hierarchy is mounted, from a file like /proc/self/mountinfo: the one
 * of version 1 with this controller, or the one of version 2 (NULL). ret_root is the
 * part of the hierarchy that is seen there ("/" outside containers). -ENOENT.
 */
int mountinfo_cgroup(const char *file, const char *controller, char ret_path[PATH_MAX],
                     char ret_root[PATH_MAX]);

#endif
