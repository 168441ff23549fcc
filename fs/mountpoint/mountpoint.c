/*
 * Tries each way to mount in turn, a private namespace among them, and keeps each failure's
 * message; also unmounts.
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
#include "clock.h"
#include "counters.h"
#include "detach.h"
#include "fault.h"
#include "file_id.h"
#include "layer.h"
#include "message.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "path.h"
#include "process.h"
#include "session.h"
#include "vector.h"

#define OPTIONS_MAX 256
#define ENTER_LIMIT_MS 10000

/* ---- fusermount3 and fusermount ---- */

/*
 * These setuid helpers mount and unmount for an ordinary user. They are separate programs, so
 * everything here is bounded in time, and errors come with the helper's words.
 *
 * The protocol: the helper finds a socket in $_FUSE_COMMFD, opens /dev/fuse, mounts, and sends
 * the descriptor back as ancillary data of one byte. It runs with the C locale, because it
 * reports errors only in words, and "Device or resource busy" must be recognised.
 */
#define HELPER_LIMIT_MS 10000
#define UNKNOWN "unknown argument ignored"

extern char **environ;

/*
 * Start it with no input, all output to the pipe, signals as at login, and our environment with
 * the C locale and the socket. By fork, since glibc's posix_spawn fails where a filter answers
 * EPERM to clone3.
 */
static int helper_spawn(char *const argv[], const char *commfd, int output, pid_t *ret_pid)
{
    static char locale[] = "LC_ALL=C";
    VECTOR(char *) env = {0};
    sigset_t all, before, none;
    auto_close int null = detach_open_null();
    int r = null < 0 || access(argv[0], X_OK) < 0 ? -errno : vector_push(&env, locale);

    for (char **e = environ; r == 0 && e && *e; e++)
        if (strncmp(*e, "LC_ALL=", 7) != 0 && strncmp(*e, "_FUSE_COMMFD", 12) != 0)
            r = vector_push(&env, *e);
    if (r == 0 && commfd)
        r = vector_push(&env, (char *)commfd);
    if (r == 0)
        r = vector_push(&env, NULL);
    if (r < 0) {
        vector_free(&env);
        return r;
    }
    sigfillset(&all);
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, &all, &before); /* no handler of ours runs in the child */
    pid_t pid = fork();
    if (pid == 0) {
        for (int number = 1; number < NSIG; number++)
            signal(number, SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        if (dup2(null, 0) == 0 && dup2(output, 1) == 1 && dup2(output, 2) == 2)
            execve(argv[0], argv, env.at);
        _exit(127);
    }
    r = pid < 0 ? -errno : 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    vector_free(&env);
    *ret_pid = pid;
    return r;
}

int fusermount_hear(int output, pid_t pid, uint64_t end_ms, const char *name,
                    char said[FUSERMOUNT_SAID_MAX])
{
    int r = process_hear(pid, output, end_ms, said, FUSERMOUNT_SAID_MAX);
    /* fuse-overlayfs begins with options that its libfuse does not know, and goes on. */
    for (char *next;
         strncmp(said, UNKNOWN, strlen(UNKNOWN)) == 0 && (next = strchr(said, '\n'));)
        memmove(said, next + 1, strlen(next));
    said[strcspn(said, "\n")] = '\0';
    if (r == -ETIMEDOUT)
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: no answer within %d s", name,
                 HELPER_LIMIT_MS / 1000);
    else if (r != 0 && !said[0])
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: exit status %d", name, r);
    return r > 0 ? -EPERM : r;
}

static int helper_run(char *const argv[], const char *commfd, char said[FUSERMOUNT_SAID_MAX])
{
    auto_close int read_end = -1, write_end = -1;
    uint64_t end_ms = now_ms() + HELPER_LIMIT_MS;
    int pipe_fds[2];
    pid_t pid;

    said[0] = '\0';
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    read_end = pipe_fds[0];
    write_end = pipe_fds[1];
    int r = helper_spawn(argv, commfd, write_end, &pid);
    if (r < 0) {
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: %s%s", argv[0], fault_errno(r),
                 fault_limit(r));
        return r;
    }
    close(steal_fd(&write_end));
    return fusermount_hear(read_end, pid, end_ms, argv[0], said);
}

int fusermount_mount(const char *path, const char *mountpoint, const char *options,
                     char said[FUSERMOUNT_SAID_MAX], int *ret_fd)
{
    char *argv[] = {(char *)path, (char *)"-o",       (char *)options,
                    (char *)"--", (char *)mountpoint, NULL};
    auto_close int ours = -1, its = -1;
    char commfd[32], byte;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ours = pair[0];
    its = pair[1];
    if (fcntl(its, F_SETFD, 0) < 0) /* the one descriptor that it inherits */
        return -errno;
    snprintf(commfd, sizeof(commfd), "_FUSE_COMMFD=%d", its);
    int r = helper_run(argv, commfd, said);
    if (r < 0)
        return r;
    /* The helper sent the descriptor before it exited. */
    r = message_receive(ours, &byte, 1, MSG_DONTWAIT, ret_fd);
    if (r == 0 && *ret_fd < 0)
        r = -EPROTO;
    if (r < 0)
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: it sent no descriptor", path);
    return r;
}

int fusermount_unmount(const char *path, const char *mountpoint, bool lazy,
                       char said[FUSERMOUNT_SAID_MAX])
{
    char *argv[] = {(char *)path, (char *)(lazy ? "-uz" : "-u"), (char *)"--",
                    (char *)mountpoint, NULL};
    int r = helper_run(argv, NULL, said);
    return r == -EPERM && strstr(said, "busy") ? -EBUSY : r;
}

/* ---- mount(2) ---- */

/* The part of the options that the kernel and the helpers understand alike. */
static void common_options(const struct mount_request *rq, char ret_options[OPTIONS_MAX])
{
    snprintf(ret_options, OPTIONS_MAX, "%s%s%s", SESSION_MOUNT_OPTIONS,
             rq->allow_other ? ",allow_other" : "",
             rq->default_permissions ? ",default_permissions" : "");
}

/* mount(2) alone: 0 or -errno. Works for root of the namespaces that the caller is in. */
static int mountpoint_mount_here(const struct mount_request *rq, int *ret_fd)
{
    unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOATIME;
    char options[OPTIONS_MAX], data[OPTIONS_MAX + 128];
    auto_close int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    common_options(rq, options);
    snprintf(data, sizeof(data), "fd=%d,rootmode=40000,user_id=%u,group_id=%u,%s", fd,
             (unsigned)geteuid(), (unsigned)getegid(), options);
    if (rq->noexec)
        flags |= MS_NOEXEC;
    if (mount(rq->fsname, rq->mountpoint, "fuse.onepot", flags, data) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* ---- private namespaces ---- */

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

/* The child's report: the step it reached, and the result. */
struct word {
    enum { ENTERED, MOUNTED, ANSWERED, COVERED } about;
    int err;                       /* 0 or -errno */
    unsigned dev_major, dev_minor; /* MOUNTED */
};

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

static int cover_mount(const struct mount_request *rq)
{
    return rq && rq->layer ? layer_mount(rq->layer, rq->mountpoint, rq->noexec) : -EINVAL;
}

/*
 * Serve the parent's requests: '?' asks whether the mount answers, '+' puts the layer over it,
 * '!' launches.
 */
static _Noreturn void serve_wishes(int sock, const char *mountpoint,
                                   const struct mount_request *rq, void (*launch)(void *ctx),
                                   void *ctx)
{
    char wish;
    while (read(sock, &wish, 1) == 1) {
        struct statfs st;
        if (wish == '!') {
            close(sock);
            launch(ctx);
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
                                      const struct mount_request *rq, void (*launch)(void *ctx),
                                      void *ctx)
{
    int r = rq ? enter_new() : enter_other(ns);

    send_word(sock, (struct word){.about = ENTERED, .err = r}, -1);
    if (r == 0 && rq)
        r = mount_there(sock, rq);
    if (r == 0)
        serve_wishes(sock, ns->mountpoint, rq, launch, ctx);
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
static int hear_child(struct namespace *ns, char report[MOUNT_REPORT_MAX], int *ret_fuse_fd)
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
                      void (*launch)(void *ctx), void *ctx)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ns->child = fork();
    if (ns->child == 0) {
        close(pair[0]);
        namespace_child(pair[1], ns, rq, launch, ctx);
    }
    int r = ns->child < 0 ? -errno : 0;
    close(pair[1]);
    ns->sock = pair[0];
    return r;
}

/*
 * The request's `launch` must not return. Its strings must live as long as the namespace.
 */
static int namespace_start(const struct mount_request *rq, char report[MOUNT_REPORT_MAX],
                           struct namespace *ret_namespace, int *ret_fuse_fd)
{
    struct namespace ns = NAMESPACE_NONE;

    ns.mountpoint = rq->mountpoint;
    int r = fork_child(&ns, rq, rq->launch, rq->launch_ctx);
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
        r = fork_child(&ns, NULL, launch, ctx);
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

/* As mountpoint_answers, from inside. */
static int namespace_answers(const struct namespace *ns, int timeout_ms)
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

/* A child's task in a namespace. */
struct visit {
    const struct namespace *ns;
    int flags;                 /* umount2's */
    struct counters *counters; /* for what it measures */
};

static int unmount_inside(void *ctx)
{
    const struct visit *v = ctx;
    const struct namespace *ns = v->ns;
    int r = set_namespaces(ns);

    /* A layer lies over it. */
    do
        if (r == 0 && umount2(ns->mountpoint, v->flags) < 0)
            r = -errno;
    while (r == 0 && mountinfo_has(ns->mountpoint, ns->dev_major, ns->dev_minor));
    return r;
}

/* An overlay answers for its upper layer. */
static int measure_inside(void *ctx)
{
    const struct visit *v = ctx;
    struct statfs st;
    int r = set_namespaces(v->ns);

    if (r < 0 || statfs(v->ns->mountpoint, &st) < 0)
        return r < 0 ? r : -errno;
    atomic_store(&v->counters->layer_bytes,
                 (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize);
    atomic_store(&v->counters->layer_files, (uint64_t)(st.f_files - st.f_ffree));
    return 0;
}

void namespace_measure(const struct namespace *ns, struct counters *counters)
{
    struct visit v = {.ns = ns, .counters = counters};
    process_try(measure_inside, &v, ENTER_LIMIT_MS);
}

int namespace_unmount(const struct namespace *ns, bool lazy)
{
    struct visit v = {.ns = ns, .flags = UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)};
    return process_try(unmount_inside, &v, -1);
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

/* ---- the ways ---- */

static int mount_by_syscall(const char *program, const struct mount_request *rq,
                            char report[MOUNT_REPORT_MAX], struct mounted *mounted)
{
    (void)program;
    int r = mountpoint_mount_here(rq, &mounted->fuse_fd);
    if (r < 0)
        mount_report_add(report,
                         access("/dev/fuse", R_OK | W_OK) < 0 ? "/dev/fuse" : "mount(2)",
                         fault_errno(r));
    return r;
}

/* The list after -o, with commas and backslashes in the archive's name escaped. */
static char *helper_options(const struct mount_request *rq)
{
    char common[OPTIONS_MAX], *options;
    size_t size = 2 * strlen(rq->fsname) + OPTIONS_MAX + 64;

    options = malloc(size);
    if (!options)
        return NULL;
    common_options(rq, common);
    char *to = options + snprintf(options, size,
                                  "ro,nosuid,nodev,noatime,subtype=onepot,%s%s,fsname=", common,
                                  rq->noexec ? ",noexec" : "");
    for (const char *p = rq->fsname; *p; p++) {
        if (*p == ',' || *p == '\\')
            *to++ = '\\';
        *to++ = *p;
    }
    *to = '\0';
    return options;
}

static int mount_by_helper(const char *program, const struct mount_request *rq,
                           char report[MOUNT_REPORT_MAX], struct mounted *mounted)
{
    char path[PATH_MAX], said[FUSERMOUNT_SAID_MAX] = "";

    if (process_find_program(program, path) < 0) {
        mount_report_add(report, program, "not found");
        return -ENOENT;
    }
    if (access("/proc/self/mountinfo", R_OK) < 0) {
        /*
         * Without it the helper would mount, but then fail to find the mount and refuse to
         * unmount it.
         */
        mount_report_add(report, program, "it needs /proc");
        return -ENOENT;
    }
    auto_free char *options = helper_options(rq);
    int r = options ? fusermount_mount(path, rq->mountpoint, options, said, &mounted->fuse_fd)
                    : -ENOMEM;
    if (r < 0 && strstr(said, "determine username"))
        snprintf(said, sizeof(said), "your user ID, %u, has no entry in the passwd database",
                 (unsigned)getuid());
    if (r < 0)
        mount_report_add(report, program, said[0] ? said : fault_errno(r));
    return r;
}

static int mount_in_namespace(const char *program, const struct mount_request *rq,
                              char report[MOUNT_REPORT_MAX], struct mounted *mounted)
{
    (void)program;
    return rq->launch ? namespace_start(rq, report, &mounted->ns, &mounted->fuse_fd) : -EPERM;
}

static int mount_by_parent(const char *program, const struct mount_request *rq,
                           char report[MOUNT_REPORT_MAX], struct mounted *mounted)
{
    (void)program;
    (void)report;
    mounted->fuse_fd = rq->parent_fd;
    return 0;
}

/* ---- the table ---- */

static const struct mount_way {
    enum mount_method method;
    const char *name; /* in $ONEPOT_MOUNT_METHODS, and a helper's program; NULL: none */
    int (*mount)(const char *program, const struct mount_request *rq,
                 char report[MOUNT_REPORT_MAX], struct mounted *mounted);
    bool is_helper;
    bool is_visible; /* to everybody on the node */
} ways[] = {
    {MOUNT_BY_SYSCALL, "mount", mount_by_syscall, false, true},
    {MOUNT_BY_FUSERMOUNT3, "fusermount3", mount_by_helper, true, true},
    {MOUNT_BY_FUSERMOUNT, "fusermount", mount_by_helper, true, true},
    {MOUNT_BY_NAMESPACE, "namespace", mount_in_namespace, false, false},
    {MOUNT_BY_PARENT, NULL, mount_by_parent, false, false},
};
#define WAY_COUNT (sizeof(ways) / sizeof(ways[0]))

static const struct mount_way *way_of(enum mount_method method)
{
    for (size_t i = 0; i < WAY_COUNT; i++)
        if (ways[i].method == method)
            return &ways[i];
    return NULL;
}

bool mounted_is_visible(const struct mounted *mounted)
{
    return mounted->method && way_of(mounted->method)->is_visible;
}

static unsigned method_named(const char *word, size_t len)
{
    for (size_t i = 0; i < WAY_COUNT; i++)
        if (ways[i].name && strlen(ways[i].name) == len && memcmp(ways[i].name, word, len) == 0)
            return ways[i].method;
    return 0;
}

int mount_methods(unsigned *ret_methods)
{
    const char *list = getenv("ONEPOT_MOUNT_METHODS");
    unsigned methods = 0;

    if (!list || !*list)
        list = "mount,fusermount3,fusermount,namespace";
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        unsigned method = method_named(p, len);
        if (!method)
            return -EINVAL;
        methods |= method;
        p += len + (p[len] == ',');
    }
    *ret_methods = methods;
    return 0;
}

int mountpoint_mount(const struct mount_request *rq, char report[MOUNT_REPORT_MAX],
                     struct mounted *ret_mounted)
{
    struct mounted mounted = MOUNTED_NONE;
    struct mount_entry entry;
    int r = -EPERM;

    for (size_t i = 0; i < WAY_COUNT && r < 0; i++) {
        if (!(rq->methods & ways[i].method))
            continue;
        r = ways[i].mount(ways[i].name, rq, report, &mounted);
        mounted.method = ways[i].method;
    }
    if (r < 0)
        return r;
    if (mounted.method == MOUNT_BY_NAMESPACE) {
        mounted.dev_major = mounted.ns.dev_major;
        mounted.dev_minor = mounted.ns.dev_minor;
    } else if (mounted_is_visible(&mounted) && mountinfo_find(rq->mountpoint, &entry) == 0) {
        mounted.dev_major = entry.dev_major;
        mounted.dev_minor = entry.dev_minor;
    }
    *ret_mounted = mounted;
    return 0;
}

/* ---- reports ---- */

void mount_report_add(char report[MOUNT_REPORT_MAX], const char *way, const char *said)
{
    size_t len = strlen(report), n = strlen(way);
    /* A helper's lines begin with its own name. */
    if (strncmp(said, way, n) == 0 && strncmp(said + n, ": ", 2) == 0)
        said += n + 2;
    snprintf(report + len, MOUNT_REPORT_MAX - len, "%s%s: %s", len ? "; " : "", way, said);
}

/* ---- unmount ---- */

/*
 * By the folder above and the name in it, where nobody can put a link in between: root must not
 * unmount /home for a user who moves his folders. The mount itself is not opened, as that would
 * keep it busy. -ELOOP: the path leads elsewhere by now.
 */
static int unmount_named(const char *path, int flags)
{
    char real[PATH_MAX], at[PATH_MAX + 64];
    if (strcmp(path, "/") == 0)
        return umount2(path, flags) < 0 ? -errno : 0;
    auto_free char *folder = path_folder(path);
    if (!folder)
        return -ENOMEM;
    auto_close int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    snprintf(at, sizeof(at), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(at, real, sizeof(real) - 1);
    if (n < 0)
        return -errno;
    real[n] = '\0';
    if (strcmp(real, folder) != 0)
        return -ELOOP;
    snprintf(at, sizeof(at), "/proc/self/fd/%d/%s", fd, path_base(path));
    return umount2(at, flags) < 0 ? -errno : 0;
}

int mountpoint_unmount(const char *path, bool lazy)
{
    char helper[PATH_MAX], said[FUSERMOUNT_SAID_MAX];
    struct mount_entry entry;
    unsigned methods = 0;
    int r = -EPERM;

    if (mount_methods(&methods) < 0 || (methods & MOUNT_BY_SYSCALL))
        r = unmount_named(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0));
    for (size_t i = 0; i < WAY_COUNT && r == -EPERM; i++)
        if (ways[i].is_helper && process_find_program(ways[i].name, helper) == 0)
            r = fusermount_unmount(helper, path, lazy, said);
    if (r == -EPERM && mountinfo_find(path, &entry) == -ENOENT)
        return -EINVAL;
    return r;
}

/* The helper looks for a user's mounts in mtab, and says nothing of use without it. */
const char *mountpoint_unmount_error(int err)
{
    return err == -EPERM && geteuid() != 0 && access("/etc/mtab", R_OK) < 0
               ? "Operation not permitted; fusermount3 needs /etc/mtab, which is missing here: "
                 "root makes it "
                 "by 'ln -s /proc/self/mounts /etc/mtab'"
               : fault_errno(err);
}

/* ---- answers ---- */

/* stat may be answered by the kernel, long after the daemon died; statfs is not. */
static int ask_statfs(void *path)
{
    struct statfs st;
    return statfs(path, &st) < 0 ? -errno : 0;
}

int mountpoint_answers(const char *path, int timeout_ms)
{
    int r = process_try(ask_statfs, (void *)path, timeout_ms);
    return r == -ECONNABORTED ? -ENOTCONN : r; /* the daemon died before it answered */
}

int mounted_answers(const struct mounted *mounted, const char *path, int timeout_ms)
{
    if (mounted->method == MOUNT_BY_PARENT)
        return 0;
    return mounted->ns.sock >= 0 ? namespace_answers(&mounted->ns, timeout_ms)
                                 : mountpoint_answers(path, timeout_ms);
}
