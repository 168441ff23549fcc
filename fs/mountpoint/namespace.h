/*
 * A private mount namespace, within a user namespace if the caller is not root. Where nobody
 * may mount for everybody to see, or the place is occupied, an ordinary user may still mount
 * for one process and its children, if the kernel allows user namespaces. Only `run` can use
 * that: its command is that process.
 *
 *     namespace_start(&request, report, &ns, &fuse_fd)
 *         a child enters the namespaces, mounts, hands back the descriptor, waits
 *     ... a daemon serves the descriptor, outside of the namespaces ...
 *     namespace_answers(&ns, timeout)    the child sees its mount
 *     namespace_cover(&ns, timeout)      the child mounts a layer over it, if there is one
 *     namespace_go(&ns)                  the child calls launch(ctx), which execs
 *     namespace_unmount(&ns, lazy)       when the command has ended
 *
 * The caller is the child's parent and waits for it. If the caller dies before namespace_go,
 * the child ends.
 */
#ifndef ONEPOT_NAMESPACE_H
#define ONEPOT_NAMESPACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct counters;
struct mount_request;
struct mount_report;

struct namespace
{
    pid_t child;
    unsigned dev_major, dev_minor; /* of the mount */
    int sock;                      /* to the child until namespace_go */
    int user_ns, mnt_ns;           /* keep the namespaces, to unmount inside them */
    const char *mountpoint;
};
#define NAMESPACE_NONE ((struct namespace){.sock = -1, .user_ns = -1, .mnt_ns = -1})

/*
 * The request's `launch` must not return. Its strings must live as long as the namespace.
 */
int namespace_start(const struct mount_request *request, struct mount_report *report,
                    struct namespace *ret_namespace, int *ret_fuse_fd);

/*
 * Start a child in the namespaces that process `pid`, of the same user, holds by these
 * descriptors. It sees the mount there, and waits like the child of namespace_start. -EXDEV:
 * its root would be another directory; -EPERM and the like: not allowed, or they are gone.
 */
int namespace_join(pid_t pid, int user_fd, int mount_fd, const char *mountpoint,
                   void (*launch)(void *ctx), void *ctx, struct namespace *ret_namespace);

/* As mountpoint_answers, from inside. */
int namespace_answers(const struct namespace *ns, int timeout_ms);

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

#endif
