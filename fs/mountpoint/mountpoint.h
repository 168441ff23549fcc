/*
 * Mount points: resolve their path, mount a FUSE filesystem there by any way that this node
 * allows, unmount it again. None of this asks the mounted filesystem anything, so a mount whose
 * daemon is dead or hangs is handled like any other.
 */
#ifndef ONEPOT_MOUNTPOINT_H
#define ONEPOT_MOUNTPOINT_H

#include <limits.h>
#include <stdbool.h>

/* Ways to mount, in the order in which they are tried. */
enum mount_method {
    MOUNT_BY_SYSCALL = 1,     /* mount(2): root, or root of a user namespace */
    MOUNT_BY_FUSERMOUNT3 = 2, /* the setuid helper of libfuse 3 */
    MOUNT_BY_FUSERMOUNT = 4,  /* that of libfuse 2 */
    MOUNT_BY_NAMESPACE = 8,   /* a private namespace: namespace.h */
    MOUNT_BY_PARENT = 16,     /* /dev/fd/N: mounted by the process that started us */
};

/*
 * The ways that $ONEPOT_MOUNT_METHODS allows, a list of mount, fusermount3, fusermount,
 * namespace; all if it is not set. -EINVAL for any other word.
 */
int mount_methods(unsigned *ret_methods);

struct mount_request {
    const char *mountpoint; /* canonical, an existing directory */
    const char *fsname;     /* shown as the device: the archive */
    bool allow_other;
    bool default_permissions;
    bool noexec;
};

#define MOUNT_REPORT_MAX 1536

/* Each attempted way with its error: "mount(2): Operation not permitted; ..." */
struct mount_report {
    char tried[MOUNT_REPORT_MAX];
};
void mount_report_add(struct mount_report *report, const char *way, const char *said);

/*
 * Try the ways among `methods`, except namespace and parent, which are handled elsewhere. 0 and
 * the descriptor of /dev/fuse, or -EPERM (or another reason) and the report.
 */
int mountpoint_mount(const struct mount_request *request, unsigned methods,
                     struct mount_report *report, enum mount_method *ret_method, int *ret_fd);

/* mount(2) only: 0 or -errno. Works for root of the namespaces that the caller is in. */
int mountpoint_mount_here(const struct mount_request *request, int *ret_fd);

/* Advice after a failure, derived from this node's state: "load the ...". */
const char *mount_advice(unsigned methods);

/*
 * The canonical absolute path of a directory. It may be a mount point, dead or alive, or may
 * not exist: only its parents and symbolic links are looked at.
 */
int mountpoint_resolve(const char *path, char ret_path[PATH_MAX]);

/*
 * Unmount the topmost mount at `path`. Not lazy: -EBUSY if something in it is open. Lazy: it
 * leaves the tree at once, and ends with its last user. -EINVAL: nothing is mounted there.
 * -EPERM and the like: not allowed. Does not ask the daemon.
 */
int mountpoint_unmount(const char *path, bool lazy);

/*
 * Does the mount answer? Calls statfs(2) in a child, which is left behind if it hangs. 0;
 * -ETIMEDOUT; -ENOTCONN: its daemon is dead; other errors of statfs(2).
 */
int mountpoint_answers(const char *path, int timeout_ms);

#endif
