/*
 * The child enters its namespaces with its own user and group mapped to themselves:
 * the command sees the same IDs as always. Supplementary groups stay in force but
 * can't be changed (setgroups is denied, without which the kernel accepts no group
 * map from an ordinary user).
 *
 * /dev/fuse is opened inside: the kernel wants the namespace of whoever opened the
 * device to be that of the mount. Reading it works from anywhere.
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
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "namespace.h"

#define ENTER_LIMIT_MS 10000

/* What the child says: where it is, and how that went. */
struct word {
    enum { ENTERED, MOUNTED, ANSWERED } about;
    int err; /* 0 or -errno */
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

/* The next word; -EPIPE when the other side is gone. *ret_fd is -1 if none came along. */
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

static int enter(void)
{
    char uid_map[64], gid_map[64];
    unsigned uid = geteuid(), gid = getegid();

    snprintf(uid_map, sizeof(uid_map), "%u %u 1", uid, uid);
    snprintf(gid_map, sizeof(gid_map), "%u %u 1", gid, gid);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return -errno;
    int r = write_text("/proc/self/setgroups", "deny");
    if (r == 0 || r == -ENOENT) /* there is none before Linux 3.19 */
        r = write_text("/proc/self/uid_map", uid_map);
    if (r == 0)
        r = write_text("/proc/self/gid_map", gid_map);
    /* Mounts of the node still come in; ours does not go out. */
    if (r == 0 && mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        r = -errno;
    return r;
}

/* Serve the parent's wishes: '?' asks whether the mount answers, '!' launches. */
static void obey(int sock, const char *mountpoint, void (*launch)(void *ctx), void *ctx)
{
    char wish;
    while (read(sock, &wish, 1) == 1) {
        struct stat st;
        if (wish == '!') {
            close(sock);
            launch(ctx);
            break;
        }
        int err = stat(mountpoint, &st) < 0 ? -errno : 0;
        send_word(sock, (struct word){ANSWERED, err}, -1);
    }
    _exit(125);
}

static _Noreturn void child(int sock, const struct mount_request *rq, void (*launch)(void *ctx),
                            void *ctx)
{
    int fuse_fd = -1, r = enter();

    send_word(sock, (struct word){ENTERED, r}, -1);
    if (r < 0)
        _exit(125);
    r = mountpoint_mount_here(rq, &fuse_fd);
    send_word(sock, (struct word){MOUNTED, r}, fuse_fd);
    if (r < 0)
        _exit(125);
    close(fuse_fd);
    obey(sock, rq->mountpoint, launch, ctx);
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

/* Hear the child out until it has mounted. */
static int hear(struct namespace *ns, struct mount_report *report, int *ret_fuse_fd)
{
    struct word word = {ENTERED, 0};
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
    *ret_fuse_fd = fd;
    return 0;
}

int namespace_start(const struct mount_request *rq, struct mount_report *report,
                    void (*launch)(void *ctx), void *ctx, struct namespace *ret_namespace,
                    int *ret_fuse_fd)
{
    struct namespace ns = NAMESPACE_NONE;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ns.mountpoint = rq->mountpoint;
    ns.child = fork();
    if (ns.child == 0) {
        close(pair[0]);
        child(pair[1], rq, launch, ctx);
    }
    close(pair[1]);
    ns.sock = pair[0];
    int r = ns.child < 0 ? -errno : hear(&ns, report, ret_fuse_fd);
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
        if (setns(ns->user_ns, CLONE_NEWUSER) < 0 || setns(ns->mnt_ns, CLONE_NEWNS) < 0)
            _exit(errno);
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
