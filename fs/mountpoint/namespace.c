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
#include <stdatomic.h>
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
#include "counters.h"
#include "fault.h"
#include "file_id.h"
#include "layer.h"
#include "message.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "process.h"

#define ENTER_LIMIT_MS 10000

/* The child's report: the step it reached, and the result. */
struct word {
    enum { ENTERED, MOUNTED, ANSWERED, COVERED } about;
    int err;                       /* 0 or -errno */
    unsigned dev_major, dev_minor; /* MOUNTED */
};

/* ---- talk over the socket ---- */

/* The next message; -EPIPE when the other side is gone. */
static int receive_word(int sock, int timeout_ms, struct word *ret_word, int *ret_fd)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    int r = poll(&p, 1, timeout_ms);

    if (r <= 0)
        return r < 0 ? -errno : -ETIMEDOUT;
    return message_receive(sock, ret_word, sizeof(*ret_word), 0, ret_fd);
}

static int send_word(int sock, struct word word, int fd)
{
    return message_send(sock, &word, sizeof(word), fd);
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

/* Enter the namespace's root and working directory. */
static int enter_other(const struct namespace *ns)
{
    struct stat before, after;
    char cwd[PATH_MAX];

    if (!getcwd(cwd, sizeof(cwd)) || stat("/", &before) < 0)
        return -errno;
    int r = set_namespaces(ns);
    if (r < 0)
        return r;
    if (stat("/", &after) < 0 || !file_id_equal(file_id_of(&before), file_id_of(&after)))
        return -EXDEV; /* a chroot */
    return chdir(cwd) < 0 ? -errno : 0;
}

struct launch {
    void (*run)(void *ctx); /* does not return */
    void *ctx;
};

static int cover_mount(const struct mount_request *rq)
{
    return rq && rq->layer ? layer_mount(rq->layer, rq->mountpoint, rq->noexec) : -EINVAL;
}

/*
 * Serve the parent's requests: '?' asks whether the mount answers, '+' puts the layer over it,
 * '!' launches.
 */
static _Noreturn void serve_wishes(int sock, const char *mountpoint,
                                   const struct mount_request *rq, struct launch launch)
{
    char wish;
    while (read(sock, &wish, 1) == 1) {
        struct statfs st;
        if (wish == '!') {
            close(sock);
            launch.run(launch.ctx);
            break;
        }
        struct word word = {.about = wish == '+' ? COVERED : ANSWERED};
        if (wish == '+')
            word.err = cover_mount(rq);
        else
            word.err = statfs(mountpoint, &st) < 0 ? -errno : 0;
        send_word(sock, word, -1);
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
static _Noreturn void namespace_child(int sock, const struct namespace *ns,
                                      const struct mount_request *rq, struct launch launch)
{
    int r = rq ? enter_new() : enter_other(ns);

    send_word(sock, (struct word){.about = ENTERED, .err = r}, -1);
    if (r == 0 && rq)
        r = mount_there(sock, rq);
    if (r == 0)
        serve_wishes(sock, ns->mountpoint, rq, launch);
    _exit(125);
}

/* ---- in the parent ---- */

/* Open the namespaces at two places, below a process's folder in /proc. */
static int open_namespaces(struct namespace *ns, pid_t pid, const char *user, const char *mnt)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, user);
    ns->user_ns = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, mnt);
    ns->mnt_ns = ns->user_ns < 0 ? -1 : open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return ns->mnt_ns < 0 ? -errno : 0;
}

/* Read the child's messages until it has mounted. */
static int hear_child(struct namespace *ns, struct mount_report *report, int *ret_fuse_fd)
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
        r = open_namespaces(ns, ns->child, "ns/user", "ns/mnt");
    if (r < 0) {
        mount_report_add(
            report, word.about == ENTERED ? "namespace" : "mount(2) in a private namespace",
            fault_errno(r));
        cleanup_closep(&fd);
        return r;
    }
    ns->dev_major = word.dev_major;
    ns->dev_minor = word.dev_minor;
    *ret_fuse_fd = fd;
    return 0;
}

static int fork_child(struct namespace *ns, const struct mount_request *rq,
                      struct launch launch)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ns->child = fork();
    if (ns->child == 0) {
        close(pair[0]);
        namespace_child(pair[1], ns, rq, launch);
    }
    int r = ns->child < 0 ? -errno : 0;
    close(pair[1]);
    ns->sock = pair[0];
    return r;
}

int namespace_start(const struct mount_request *rq, struct mount_report *report,
                    struct namespace *ret_namespace, int *ret_fuse_fd)
{
    struct namespace ns = NAMESPACE_NONE;

    ns.mountpoint = rq->mountpoint;
    int r = fork_child(&ns, rq, (struct launch){rq->launch, rq->launch_ctx});
    if (r == 0)
        r = hear_child(&ns, report, ret_fuse_fd);
    if (r < 0)
        namespace_close(&ns);
    else
        *ret_namespace = ns;
    return r;
}

int namespace_join(pid_t pid, int user_fd, int mount_fd, const char *mountpoint,
                   void (*launch)(void *ctx), void *ctx, struct namespace *ret_namespace)
{
    struct namespace ns = NAMESPACE_NONE;
    char user[32], mnt[32];
    struct word word;
    int fd;

    ns.mountpoint = mountpoint;
    snprintf(user, sizeof(user), "fd/%d", user_fd);
    snprintf(mnt, sizeof(mnt), "fd/%d", mount_fd);
    int r = open_namespaces(&ns, pid, user, mnt);
    if (r == 0)
        r = fork_child(&ns, NULL, (struct launch){launch, ctx});
    if (r == 0)
        r = receive_word(ns.sock, ENTER_LIMIT_MS, &word, &fd);
    if (r == 0)
        r = word.err;
    if (r < 0)
        namespace_close(&ns);
    else
        *ret_namespace = ns;
    return r;
}

static int ask_child(const struct namespace *ns, const char *wish, int timeout_ms)
{
    struct word word;
    int fd;

    if (send(ns->sock, wish, 1, MSG_NOSIGNAL) < 0)
        return -errno;
    int r = receive_word(ns->sock, timeout_ms, &word, &fd);
    return r < 0 ? r : word.err;
}

int namespace_answers(const struct namespace *ns, int timeout_ms)
{
    return ask_child(ns, "?", timeout_ms);
}

int namespace_cover(const struct namespace *ns, int timeout_ms)
{
    return ask_child(ns, "+", timeout_ms);
}

int namespace_go(struct namespace *ns)
{
    int r = send(ns->sock, "!", 1, MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(steal_fd(&ns->sock));
    return r;
}

struct unmounting {
    const struct namespace *ns;
    int flags;
};

static int unmount_inside(void *ctx)
{
    const struct unmounting *u = ctx;
    const struct namespace *ns = u->ns;
    int r = set_namespaces(ns);

    /* A layer lies over it. */
    do
        if (r == 0 && umount2(ns->mountpoint, u->flags) < 0)
            r = -errno;
    while (r == 0 && mountinfo_has(ns->mountpoint, ns->dev_major, ns->dev_minor));
    return r;
}

struct measuring {
    const struct namespace *ns;
    struct counters *counters;
};

/* An overlay answers for its upper layer. */
static int measure_inside(void *ctx)
{
    const struct measuring *m = ctx;
    struct statfs st;
    int r = set_namespaces(m->ns);

    if (r < 0 || statfs(m->ns->mountpoint, &st) < 0)
        return r < 0 ? r : -errno;
    atomic_store(&m->counters->layer_bytes,
                 (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize);
    atomic_store(&m->counters->layer_files, (uint64_t)(st.f_files - st.f_ffree));
    return 0;
}

void namespace_measure(const struct namespace *ns, struct counters *counters)
{
    struct measuring m = {ns, counters};
    process_try(measure_inside, &m, ENTER_LIMIT_MS);
}

int namespace_unmount(const struct namespace *ns, bool lazy)
{
    struct unmounting u = {ns, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)};
    return process_try(unmount_inside, &u, -1);
}

void namespace_forget(struct namespace *ns)
{
    cleanup_closep(&ns->sock);
    cleanup_closep(&ns->user_ns);
    cleanup_closep(&ns->mnt_ns);
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
