/*
 * The one place that mounts. A table has the ways in which a FUSE filesystem can be mounted,
 * and each has the same interface:
 *
 *     mount(2)                 root, or root of a user namespace
 *     fusermount3, fusermount  the setuid helpers of libfuse 3 and 2, by the protocol that
 *                              fusermount3 documents (_FUSE_COMMFD; mountpoint.c)
 *     namespace                a private namespace, for the command of `run` (below)
 *     parent                   /dev/fd/N: the process that started us has mounted
 *
 *     struct mounted mounted = MOUNTED_NONE;
 *     r = mountpoint_mount(&request, report, &mounted);
 *     ... a daemon serves mounted.fuse_fd ...
 *     mounted_answers(&mounted, path, timeout_ms)
 *     mountpoint_unmount(path, lazy)
 *
 * libfuse's fuse_session_mount is not used: it tries mount(2) and fusermount3 only, prints the
 * reason of a failure where we have to tell it, waits for the helper without a limit, and ties
 * the mount to a session in the same process, but here one process mounts and another serves,
 * which may be in another namespace.
 *
 * None of this asks the mounted filesystem anything but mounted_answers, so a mount whose
 * daemon is dead or hangs is handled like any other.
 */
#ifndef ONEPOT_MOUNTPOINT_H
#define ONEPOT_MOUNTPOINT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct counters;

/* A private namespace, see below. */
struct namespace
{
    pid_t child;
    unsigned dev_major, dev_minor; /* of the mount */
    int sock;                      /* to the child until namespace_go */
    int user_ns, mnt_ns;           /* keep the namespaces, to unmount inside them */
    const char *mountpoint;
};
#define NAMESPACE_NONE ((struct namespace){.sock = -1, .user_ns = -1, .mnt_ns = -1})

/* In the order in which they are tried. */
enum mount_method {
    MOUNT_BY_SYSCALL = 1,
    MOUNT_BY_FUSERMOUNT3 = 2,
    MOUNT_BY_FUSERMOUNT = 4,
    MOUNT_BY_NAMESPACE = 8,
    MOUNT_BY_PARENT = 16,
};

/*
 * The ways that $ONEPOT_MOUNT_METHODS allows, a list of mount, fusermount3, fusermount,
 * namespace; all of these if it is not set. -EINVAL for any other word.
 */
int mount_methods(unsigned *ret_methods);

struct mount_request {
    unsigned methods;       /* those to try */
    const char *mountpoint; /* canonical, an existing directory */
    const char *fsname;     /* shown as the device: the archive */
    bool allow_other;
    bool default_permissions;
    bool noexec;
    const struct layer *layer; /* that will lie over it (namespace_cover); NULL: none */
    void (*launch)(void *ctx); /* MOUNT_BY_NAMESPACE: see namespace_join */
    void *launch_ctx;
    int parent_fd; /* MOUNT_BY_PARENT: the device; the result takes it over */
};

/* Each attempted way with its error: "mount(2): Operation not permitted; ..." */
#define MOUNT_REPORT_MAX 1536
void mount_report_add(char report[MOUNT_REPORT_MAX], const char *way, const char *said);

struct mounted {
    enum mount_method method;      /* 0: not mounted */
    int fuse_fd;                   /* of /dev/fuse; -1: handed over */
    unsigned dev_major, dev_minor; /* of the mount; 0: not known */
    struct namespace ns;           /* MOUNT_BY_NAMESPACE */
};
#define MOUNTED_NONE ((struct mounted){.fuse_fd = -1, .ns = NAMESPACE_NONE})

/*
 * Try the ways of the request until one works. 0, or -EPERM (or another reason) and the report.
 * The process must have only one thread.
 */
int mountpoint_mount(const struct mount_request *request, char report[MOUNT_REPORT_MAX],
                     struct mounted *ret_mounted);

/* Does everybody on this node see it, and not one command or a container alone? */
bool mounted_is_visible(const struct mounted *mounted);

/*
 * Does the mount answer? It is asked from where it is seen: as mountpoint_answers,
 * or by the child in its namespace; 0 for a parent's, which can't be asked.
 */
int mounted_answers(const struct mounted *mounted, const char *path, int timeout_ms);

/*
 * Unmount the topmost mount at `path`. Not lazy: -EBUSY if something in it is open. Lazy: it
 * leaves the tree at once, and ends with its last user. The path is canonical. -EINVAL: nothing
 * is mounted there; -ELOOP: a link is in it by now; -EPERM and the like: not allowed. Does not
 * ask the daemon.
 */
int mountpoint_unmount(const char *path, bool lazy);

/* Words for its error, and for a missing mtab, which fusermount3 does not name. */
const char *mountpoint_unmount_error(int err);

/*
 * Does the mount answer? Calls statfs(2) in a child, which is left behind if it hangs. 0;
 * -ETIMEDOUT; -ENOTCONN: its daemon is dead; other errors of statfs(2).
 */
int mountpoint_answers(const char *path, int timeout_ms);

/*
 * A private mount namespace, within a user namespace if the caller is not root. Where nobody
 * may mount for everybody to see, or the place is occupied, an ordinary user may still mount
 * for one process and its children, if the kernel allows user namespaces. Only `run` can use
 * that: its command is that process.
 *
 *     mountpoint_mount(&request, report, &mounted)
 *         a child enters the namespaces, mounts, hands back the descriptor, waits
 *     ... a daemon serves the descriptor, outside of the namespaces ...
 *     mounted_answers(&mounted, path, timeout)    the child sees its mount
 *     namespace_cover(&ns, timeout)      the child mounts a layer over it, if there is one
 *     namespace_go(&ns)                  the child calls launch(ctx), which execs
 *     namespace_unmount(&ns, lazy)       when the command has ended
 *
 * The caller is the child's parent and waits for it. If the caller dies before namespace_go,
 * the child ends.
 */

/*
 * Start a child in the namespaces that process `pid`, of the same user, holds by these
 * descriptors. It sees the mount there, and waits like the child of mountpoint_mount. -EXDEV:
 * its root would be another directory; -EPERM and the like: not allowed, or they are gone.
 */
int namespace_join(pid_t pid, int user_fd, int mount_fd, const char *mountpoint,
                   void (*launch)(void *ctx), void *ctx, struct namespace *ret_namespace);

/* Mount the request's layer (layer.h) over the mount, which answers by now. 0 or -errno. */
int namespace_cover(const struct namespace *ns, int timeout_ms);

/*
 * The bytes and files that a layer in memory holds, from inside: a child writes them to the
 * counters, unless nothing tells.
 */
void namespace_measure(const struct namespace *ns, struct counters *counters);

int namespace_go(struct namespace *ns);

/*
 * As mountpoint_unmount, from inside, with what lies over the mount; processes that the command
 * left may still use it.
 */
int namespace_unmount(const struct namespace *ns, bool lazy);

/* Only close the descriptors: for a process that was forked meanwhile. */
void namespace_forget(struct namespace *ns);

/* End a child that still waits; release the namespaces. */
void namespace_close(struct namespace *ns);

/* ---- helpers: fusermount3, fusermount, fuse-overlayfs ---- */

#define FUSERMOUNT_SAID_MAX 256

/*
 * Mount, and return the descriptor of /dev/fuse. `path` is from process_find_program, `options`
 * a list as after -o. On failure `said` has the helper's first line. The process must have only
 * one thread.
 */
int fusermount_mount(const char *path, const char *mountpoint, const char *options,
                     char said[FUSERMOUNT_SAID_MAX], int *ret_fd);

/* -EBUSY, -ENOENT (no helper), -ETIMEDOUT, else -EPERM with the helper's words. */
int fusermount_unmount(const char *path, const char *mountpoint, bool lazy,
                       char said[FUSERMOUNT_SAID_MAX]);

/*
 * Wait for a helper: until it has closed its `output` and ended. 0, or -errno, and its first
 * line or what is wrong.
 */
int fusermount_hear(int output, pid_t pid, uint64_t end_ms, const char *name,
                    char said[FUSERMOUNT_SAID_MAX]);

#endif
