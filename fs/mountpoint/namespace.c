/*
 * A child of root gets only a mount namespace, and keeps its rights. Another user's child also
 * gets a user namespace, with its own user and group mapped to themselves, so the command sees
 * the usual IDs. Supplementary groups stay in force but can't be changed: setgroups is denied,
 * because the kernel otherwise accepts no group map from an ordinary user. Processes that join
 * are in the same user namespace; otherwise they might not read each other's memory, as the
 * ranks of MPI do.
 *
 * /dev/fuse is opened inside, because the kernel requires that the device was opened in the
 * mount's namespace. Reading it works from anywhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "mountinfo.h"
#include "namespace.h"

#define ENTER_LIMIT_MS 10000

/* The child's report: the step it reached, and the result. */
struct word {
    enum { ENTERED, MOUNTED, ANSWERED } about;
    int err;                       /* 0 or -errno */
    unsigned dev_major, dev_minor; /* MOUNTED */
};

/* ---- talk over the socket ---- */

static int send_word(int sock, struct word word, int fd)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = &word, .iov_len = sizeof(word)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = sizeof(control.buf);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* The next message; -EPIPE when the other side is gone. *ret_fd is -1 if no descriptor came. */
static int receive_word(int sock, int timeout_ms, struct word *ret_word, int *ret_fd)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = ret_word, .iov_len = sizeof(*ret_word)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};
    struct pollfd p = {.fd = sock, .events = POLLIN};

    int r = poll(&p, 1, timeout_ms);
    if (r <= 0)
        return r < 0 ? -errno : -ETIMEDOUT;
    ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return -errno;
    if (n != sizeof(*ret_word))
        return -EPIPE;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    *ret_fd = -1;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    return 0;
}

/* ---- in the child ---- */

static int write_text(const char *path, const char *text)
{
    auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int enter_user_namespace(void)
{
    char uid_map[64], gid_map[64];
    unsigned uid = geteuid(), gid = getegid();

    snprintf(uid_map, sizeof(uid_map), "%u %u 1", uid, uid);
    snprintf(gid_map, sizeof(gid_map), "%u %u 1", gid, gid);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -errno;
    int r = write_text("/proc/self/setgroups", "deny");
    if (r == 0 || r == -ENOENT) /* missing before Linux 3.19 */
        r = write_text("/proc/self/uid_map", uid_map);
    if (r == 0)
        r = write_text("/proc/self/gid_map", gid_map);
    return r;
}

static int enter_new(void)
{
    int r = unshare(CLONE_NEWNS) < 0 ? enter_user_namespace() : 0;

    /* Mounts of the node still appear inside; ours does not appear outside. */
    if (r == 0 && mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        r = -errno;
    return r;
}

/* EINVAL means the caller's own user namespace, which it is already in. */
static int set_namespaces(const struct namespace *ns)
{
    if ((setns(ns->user_ns, CLONE_NEWUSER) < 0 && errno != EINVAL) ||
        setns(ns->mnt_ns, CLONE_NEWNS) < 0)
        return -errno;
    return 0;
}

/* Set the root and the working directory to those of the namespace. */
static int enter_other(const struct namespace *ns)
{
    struct stat before, after;
    char cwd[PATH_MAX];

    if (!getcwd(cwd, sizeof(cwd)) || stat("/", &before) < 0)
        return -errno;
    int r = set_namespaces(ns);
    if (r < 0)
        return r;
    if (stat("/", &after) < 0 || after.st_dev != before.st_dev || after.st_ino != before.st_ino)
        return -EXDEV; /* a chroot */
    return chdir(cwd) < 0 ? -errno : 0;
}

/* Serve the parent's requests: '?' asks whether the mount answers, '!' launches. */
static void obey(int sock, const char *mountpoint, void (*launch)(void *ctx), void *ctx)
{
    char wish;
    while (read(sock, &wish, 1) == 1) {
        struct statfs st;
        if (wish == '!') {
            close(sock);
            launch(ctx);
            break;
        }
        int err = statfs(mountpoint, &st) < 0 ? -errno : 0;
        send_word(sock, (struct word){.about = ANSWERED, .err = err}, -1);
    }
    _exit(125);
}

/*
 * A copy here would keep another job's mount at this place alive. And when the original is
 * unmounted, the kernel also unmounts whatever lies there in the namespaces that follow, so
 * something else must lie below ours then. (In a user namespace the copy can't be unmounted.
 * There it goes with the original where mounts are shared, as systemd has them.)
 */
static void replace_copies(const char *mountpoint)
{
    struct mount_entry entry;
    bool any = false;

    while (mountinfo_find(mountpoint, &entry) == 0 && entry.is_onepot &&
           umount2(mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        any = true;
    if (any)
        mount("none", mountpoint, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k");
}

/* Mount, and hand the device back. */
static int mount_there(int sock, const struct mount_request *rq)
{
    struct word word = {.about = MOUNTED};
    struct mount_entry entry;
    auto_close int fuse_fd = -1;

    replace_copies(rq->mountpoint);
    word.err = mountpoint_mount_here(rq, &fuse_fd);
    if (word.err == 0 && mountinfo_find(rq->mountpoint, &entry) == 0) {
        word.dev_major = entry.dev_major;
        word.dev_minor = entry.dev_minor;
    }
    send_word(sock, word, fuse_fd);
    return word.err;
}

/* `rq` is NULL for namespaces that exist already. */
static _Noreturn void child(int sock, const struct namespace *ns,
                            const struct mount_request *rq, void (*launch)(void *ctx),
                            void *ctx)
{
    int r = rq ? enter_new() : enter_other(ns);

    send_word(sock, (struct word){.about = ENTERED, .err = r}, -1);
    if (r == 0 && rq)
        r = mount_there(sock, rq);
    if (r == 0)
        obey(sock, ns->mountpoint, launch, ctx);
    _exit(125);
}

/* ---- in the parent ---- */

static int open_namespaces(struct namespace *ns)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)ns->child);
    ns->user_ns = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)ns->child);
    ns->mnt_ns = open(path, O_RDONLY | O_CLOEXEC);
    return ns->user_ns < 0 || ns->mnt_ns < 0 ? -errno : 0;
}

/* Read the child's messages until it has mounted. */
static int hear(struct namespace *ns, struct mount_report *report, int *ret_fuse_fd)
{
    struct word word = {.about = ENTERED};
    int fd = -1, r = 0;

    while (r == 0 && word.err == 0 && word.about != MOUNTED)
        r = receive_word(ns->sock, ENTER_LIMIT_MS, &word, &fd);
    if (r == 0)
        r = word.err;
    if (r == 0 && fd < 0)
        r = -EPROTO;
    if (r == 0)
        r = open_namespaces(ns);
    if (r < 0) {
        mount_report_add(
            report, word.about == ENTERED ? "namespace" : "mount(2) in a private namespace",
            strerror(-r));
        if (fd >= 0)
            close(fd);
        return r;
    }
    ns->dev_major = word.dev_major;
    ns->dev_minor = word.dev_minor;
    *ret_fuse_fd = fd;
    return 0;
}

static int fork_child(struct namespace *ns, const struct mount_request *rq,
                      void (*launch)(void *ctx), void *ctx)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ns->child = fork();
    if (ns->child == 0) {
        close(pair[0]);
        child(pair[1], ns, rq, launch, ctx);
    }
    int r = ns->child < 0 ? -errno : 0;
    close(pair[1]);
    ns->sock = pair[0];
    return r;
}

int namespace_start(const struct mount_request *rq, struct mount_report *report,
                    void (*launch)(void *ctx), void *ctx, struct namespace *ret_namespace,
                    int *ret_fuse_fd)
{
    struct namespace ns = NAMESPACE_NONE;

    ns.mountpoint = rq->mountpoint;
    int r = fork_child(&ns, rq, launch, ctx);
    if (r == 0)
        r = hear(&ns, report, ret_fuse_fd);
    if (r < 0) {
        namespace_close(&ns);
        return r;
    }
    *ret_namespace = ns;
    return 0;
}

int namespace_join(pid_t pid, int user_fd, int mount_fd, const char *mountpoint,
                   void (*launch)(void *ctx), void *ctx, struct namespace *ret_namespace)
{
    struct namespace ns = NAMESPACE_NONE;
    struct word word;
    char path[64];
    int fd, r = 0;

    ns.mountpoint = mountpoint;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, user_fd);
    ns.user_ns = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, mount_fd);
    ns.mnt_ns = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (ns.user_ns < 0 || ns.mnt_ns < 0)
        r = -errno;
    if (r == 0)
        r = fork_child(&ns, NULL, launch, ctx);
    if (r == 0)
        r = receive_word(ns.sock, ENTER_LIMIT_MS, &word, &fd);
    if (r == 0)
        r = word.err;
    if (r < 0) {
        namespace_close(&ns);
        return r;
    }
    *ret_namespace = ns;
    return 0;
}

int namespace_answers(const struct namespace *ns, int timeout_ms)
{
    struct word word;
    int fd;

    if (send(ns->sock, "?", 1, MSG_NOSIGNAL) < 0)
        return -errno;
    int r = receive_word(ns->sock, timeout_ms, &word, &fd);
    return r < 0 ? r : word.err;
}

int namespace_go(struct namespace *ns)
{
    int r = send(ns->sock, "!", 1, MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(steal_fd(&ns->sock));
    return r;
}

int namespace_unmount(const struct namespace *ns, bool lazy)
{
    int status;
    pid_t pid = fork();

    if (pid < 0)
        return -errno;
    if (pid == 0) {
        int r = set_namespaces(ns);
        if (r < 0)
            _exit(-r);
        _exit(umount2(ns->mountpoint, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) < 0 ? errno
                                                                                     : 0);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

void namespace_forget(struct namespace *ns)
{
    if (ns->sock >= 0)
        close(ns->sock);
    if (ns->user_ns >= 0)
        close(ns->user_ns);
    if (ns->mnt_ns >= 0)
        close(ns->mnt_ns);
    *ns = NAMESPACE_NONE;
}

void namespace_close(struct namespace *ns)
{
    pid_t waiting = ns->sock >= 0 ? ns->child : 0;
    namespace_forget(ns);
    if (waiting > 0) {
        kill(waiting, SIGKILL);
        waitpid(waiting, NULL, 0);
    }
}
