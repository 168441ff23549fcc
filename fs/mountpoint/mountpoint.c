/*
 * Tries each way to mount in turn, and keeps each failure's message; also unmounts.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "fusermount.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "session.h"

#define LINKS_MAX 40 /* as many symbolic links as Linux follows */

/* ---- the ways to mount ---- */

static const struct way {
    const char *name;
    unsigned method;
} ways[] = {
    {"mount", MOUNT_BY_SYSCALL},
    {"fusermount3", MOUNT_BY_FUSERMOUNT3},
    {"fusermount", MOUNT_BY_FUSERMOUNT},
    {"namespace", MOUNT_BY_NAMESPACE},
};
#define WAY_COUNT (sizeof(ways) / sizeof(ways[0]))

static unsigned method_named(const char *word, size_t len)
{
    for (size_t i = 0; i < WAY_COUNT; i++)
        if (strlen(ways[i].name) == len && memcmp(ways[i].name, word, len) == 0)
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

void mount_report_add(struct mount_report *report, const char *way, const char *said)
{
    size_t len = strlen(report->tried), n = strlen(way);
    /* A helper's lines begin with its own name. */
    if (strncmp(said, way, n) == 0 && strncmp(said + n, ": ", 2) == 0)
        said += n + 2;
    snprintf(report->tried + len, sizeof(report->tried) - len, "%s%s: %s", len ? "; " : "", way,
             said);
}

/* The number in a file of /proc, or `otherwise`. */
static long read_number(const char *path, long otherwise)
{
    long value;
    FILE *f = fopen(path, "re");
    if (!f)
        return otherwise;
    if (fscanf(f, "%ld", &value) != 1)
        value = otherwise;
    fclose(f);
    return value;
}

static bool no_new_privs(void)
{
    char line[128];
    int set = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "NoNewPrivs: %d", &set) == 1)
            break;
    if (f)
        fclose(f);
    return set;
}

const char *mount_advice(unsigned methods)
{
    char path[PATH_MAX];

    if (access("/dev/fuse", F_OK) < 0)
        return "this node has no /dev/fuse: ask its administrators to load the fuse module (in "
               "a container, to pass the device in)";
    if (access("/dev/fuse", R_OK | W_OK) < 0)
        return "/dev/fuse is closed to you: ask the administrators of this node to open it "
               "(mode "
               "0666); 'onepot extract' needs no mount";
    if (access("/proc/self/mountinfo", R_OK) < 0)
        return "there is no /proc here; mount it first, or run outside of this chroot or "
               "container";
    if (fusermount_find("fusermount3", path) < 0 && fusermount_find("fusermount", path) < 0)
        return "ask for the package fuse3 (fusermount3) on this node";
    if (no_new_privs())
        return "no_new_privs is set for this process, so that fusermount3, which is setuid, "
               "can't help: mount before it is set, or outside of the container";
    if ((methods & MOUNT_BY_NAMESPACE) &&
        read_number("/proc/sys/user/max_user_namespaces", 1) == 0)
        return "user namespaces are switched off as well (user.max_user_namespaces is 0)";
    if ((methods & MOUNT_BY_NAMESPACE) &&
        read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) != 0)
        return "user namespaces are restricted by AppArmor "
               "(kernel.apparmor_restrict_unprivileged_userns is 1)";
    if (!(methods & MOUNT_BY_NAMESPACE))
        return "'onepot run' may still work, by a private namespace";
    return "'onepot extract' makes plain files of it, without a mount";
}

/* ---- mount ---- */

int mountpoint_mount_here(const struct mount_request *rq, int *ret_fd)
{
    unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOATIME;
    char data[256];
    auto_close int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    snprintf(data, sizeof(data), "fd=%d,rootmode=40000,user_id=%u,group_id=%u,%s%s%s", fd,
             (unsigned)geteuid(), (unsigned)getegid(), session_mount_options(),
             rq->allow_other ? ",allow_other" : "",
             rq->default_permissions ? ",default_permissions" : "");
    if (rq->noexec)
        flags |= MS_NOEXEC;
    if (mount(rq->fsname, rq->mountpoint, "fuse.onepot", flags, data) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

static int by_syscall(const struct mount_request *rq, struct mount_report *report, int *ret_fd)
{
    int r = mountpoint_mount_here(rq, ret_fd);
    if (r < 0)
        mount_report_add(report,
                         access("/dev/fuse", R_OK | W_OK) < 0 ? "/dev/fuse" : "mount(2)",
                         strerror(-r));
    return r;
}

/* The list after -o, with commas and backslashes in the archive's name escaped. */
static int helper_options(const struct mount_request *rq, char **ret_options)
{
    size_t size = 2 * strlen(rq->fsname) + 256, n;
    char *options = malloc(size);

    if (!options)
        return -ENOMEM;
    n = (size_t)snprintf(
        options, size,
        "ro,nosuid,nodev,noatime,subtype=onepot,%s%s%s%s,fsname=", session_mount_options(),
        rq->noexec ? ",noexec" : "", rq->allow_other ? ",allow_other" : "",
        rq->default_permissions ? ",default_permissions" : "");
    for (const char *p = rq->fsname; *p; p++) {
        if (*p == ',' || *p == '\\')
            options[n++] = '\\';
        options[n++] = *p;
    }
    options[n] = '\0';
    *ret_options = options;
    return 0;
}

static int by_helper(const char *program, const struct mount_request *rq,
                     struct mount_report *report, int *ret_fd)
{
    char path[PATH_MAX], said[FUSERMOUNT_SAID_MAX] = "";
    auto_free char *options = NULL;
    int r = fusermount_find(program, path);

    if (r < 0) {
        mount_report_add(report, program, "not found");
        return r;
    }
    if (access("/proc/self/mountinfo", R_OK) < 0) {
        /*
         * Without it the helper would mount, but then fail to find the mount and refuse to
         * unmount it.
         */
        mount_report_add(report, program, "it needs /proc");
        return -ENOENT;
    }
    r = helper_options(rq, &options);
    if (r == 0)
        r = fusermount_mount(path, rq->mountpoint, options, said, ret_fd);
    if (r < 0)
        mount_report_add(report, program, said[0] ? said : strerror(-r));
    return r;
}

int mountpoint_mount(const struct mount_request *rq, unsigned methods,
                     struct mount_report *report, enum mount_method *ret_method, int *ret_fd)
{
    static const struct {
        enum mount_method method;
        const char *helper; /* NULL: mount(2) */
    } order[] = {
        {MOUNT_BY_SYSCALL, NULL},
        {MOUNT_BY_FUSERMOUNT3, "fusermount3"},
        {MOUNT_BY_FUSERMOUNT, "fusermount"},
    };
    int r = -EPERM;

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (!(methods & order[i].method))
            continue;
        r = order[i].helper ? by_helper(order[i].helper, rq, report, ret_fd)
                            : by_syscall(rq, report, ret_fd);
        if (r == 0) {
            *ret_method = order[i].method;
            return 0;
        }
    }
    return r;
}

/* ---- paths ---- */

/* Split `path` into the folder and the last component; false if that is "." or "..". */
static bool split(const char *path, char folder[PATH_MAX], char base[PATH_MAX])
{
    size_t len = strlen(path);

    while (len > 1 && path[len - 1] == '/')
        len--;
    size_t start = len;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(base, PATH_MAX, "%.*s", (int)(len - start), path + start);
    snprintf(folder, PATH_MAX, "%.*s", (int)start, path);
    if (start == 0)
        strcpy(folder, ".");
    return base[0] && strcmp(base, ".") != 0 && strcmp(base, "..") != 0;
}

/* Follow one symbolic link at `path`, which lies in `folder`. 0: there was none. */
static int follow_link(const char *folder, char path[PATH_MAX])
{
    char target[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof(target) - 1);

    if (n < 0)
        return errno == EINVAL || errno == ENOENT ? 0 : -errno;
    target[n] = '\0';
    int need = target[0] == '/' ? snprintf(path, PATH_MAX, "%s", target)
                                : snprintf(path, PATH_MAX, "%s/%s", folder, target);
    return need < PATH_MAX ? 1 : -ENAMETOOLONG;
}

int mountpoint_resolve(const char *path, char ret_path[PATH_MAX])
{
    char at[PATH_MAX], folder[PATH_MAX], base[PATH_MAX], real[PATH_MAX];
    struct mount_entry entry;

    if (!*path)
        return -ENOENT;
    if (snprintf(at, sizeof(at), "%s", path) >= PATH_MAX)
        return -ENAMETOOLONG;
    for (int links = 0; links < LINKS_MAX; links++) {
        if (!split(at, folder, base))
            return realpath(at, ret_path) ? 0 : -errno;
        if (!realpath(folder, real))
            return -errno;
        if (snprintf(at, sizeof(at), "%s/%s", strcmp(real, "/") ? real : "", base) >= PATH_MAX)
            return -ENAMETOOLONG;
        int r = mountinfo_find(at, &entry) == 0 ? 0 : follow_link(real, at);
        if (r < 0)
            return r;
        if (r == 0) {
            strcpy(ret_path, at);
            return 0;
        }
    }
    return -ELOOP;
}

/* ---- unmount ---- */

int mountpoint_unmount(const char *path, bool lazy)
{
    char helper[PATH_MAX], said[FUSERMOUNT_SAID_MAX];
    struct mount_entry entry;
    unsigned methods = 0;
    int r = -EPERM;

    if (mount_methods(&methods) < 0 || (methods & MOUNT_BY_SYSCALL))
        r = umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) < 0 ? -errno : 0;
    for (size_t i = 0; i < WAY_COUNT && r == -EPERM; i++) {
        if (!(ways[i].method & (MOUNT_BY_FUSERMOUNT3 | MOUNT_BY_FUSERMOUNT)) ||
            fusermount_find(ways[i].name, helper) < 0)
            continue;
        r = fusermount_unmount(helper, path, lazy, said);
    }
    if (r == -EPERM && mountinfo_find(path, &entry) == -ENOENT)
        return -EINVAL;
    return r;
}

/* ---- answers ---- */

int mountpoint_answers(const char *path, int timeout_ms)
{
    auto_close int read_end = -1, write_end = -1;
    int fds[2], status;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    read_end = fds[0];
    write_end = fds[1];
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        struct statfs st; /* stat may be answered by the kernel, long after the daemon died */
        _exit(statfs(path, &st) < 0 ? errno : 0);
    }
    close(steal_fd(&write_end)); /* the child closes its copy by ending */
    struct pollfd p = {.fd = read_end, .events = POLLIN};
    int r = poll(&p, 1, timeout_ms);
    if (r <= 0) {
        int err = r < 0 ? errno : ETIMEDOUT;
        kill(pid, SIGKILL); /* it ends when the kernel permits */
        waitpid(pid, &status, WNOHANG);
        return -err;
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    if (!WIFEXITED(status))
        return -EIO;
    /* ECONNABORTED: the daemon died before it answered. */
    return WEXITSTATUS(status) == ECONNABORTED ? -ENOTCONN : -WEXITSTATUS(status);
}
