/*
 * Tries each way to mount in turn, and keeps each failure's message; also unmounts.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "fault.h"
#include "fusermount.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "path.h"
#include "process.h"
#include "session.h"

#define OPTIONS_MAX 256

/* ---- mount ---- */

/* The part of the options that the kernel and the helpers understand alike. */
static void common_options(const struct mount_request *rq, char ret_options[OPTIONS_MAX])
{
    snprintf(ret_options, OPTIONS_MAX, "%s%s%s", SESSION_MOUNT_OPTIONS,
             rq->allow_other ? ",allow_other" : "",
             rq->default_permissions ? ",default_permissions" : "");
}

int mountpoint_mount_here(const struct mount_request *rq, int *ret_fd)
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

static int mount_by_syscall(const char *program, const struct mount_request *rq,
                            struct mount_report *report, struct mounted *mounted)
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
                           struct mount_report *report, struct mounted *mounted)
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
                              struct mount_report *report, struct mounted *mounted)
{
    (void)program;
    return rq->launch ? namespace_start(rq, report, &mounted->ns, &mounted->fuse_fd) : -EPERM;
}

static int mount_by_parent(const char *program, const struct mount_request *rq,
                           struct mount_report *report, struct mounted *mounted)
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
                 struct mount_report *report, struct mounted *mounted);
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

int mountpoint_mount(const struct mount_request *rq, struct mount_report *report,
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

void mount_report_add(struct mount_report *report, const char *way, const char *said)
{
    size_t len = strlen(report->tried), n = strlen(way);
    /* A helper's lines begin with its own name. */
    if (strncmp(said, way, n) == 0 && strncmp(said + n, ": ", 2) == 0)
        said += n + 2;
    snprintf(report->tried + len, sizeof(report->tried) - len, "%s%s: %s", len ? "; " : "", way,
             said);
}

/* The switch of the administrators that keeps users from namespaces, and what to do; or NULL.
 */
static const char *namespace_advice(void)
{
    static const struct {
        const char *path, *advice;
        long off;
    } switches[] = {
        {"/proc/sys/user/max_user_namespaces",
         "user namespaces are switched off: root allows them by 'sysctl "
         "user.max_user_namespaces=10000'; or ask for the package fuse3 (fusermount3)",
         0},
        {"/proc/sys/kernel/unprivileged_userns_clone",
         "user namespaces are switched off: root allows them by 'sysctl "
         "kernel.unprivileged_userns_clone=1'; or ask for the package fuse3 (fusermount3)",
         0},
        {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
         "AppArmor lets nobody use user namespaces: root allows it by 'sysctl "
         "kernel.apparmor_restrict_unprivileged_userns=0'; or ask for the package fuse3 "
         "(fusermount3)",
         1},
    };
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
        if (proc_number(switches[i].path, !switches[i].off) == switches[i].off)
            return switches[i].advice;
    return NULL;
}

const char *mount_advice(unsigned methods)
{
    const char *switched = namespace_advice();
    char path[PATH_MAX];

    if (access("/dev/fuse", F_OK) < 0)
        return "this node has no /dev/fuse: ask its administrators to load the fuse module (in "
               "a container, to pass the device in)";
    if (access("/dev/fuse", R_OK | W_OK) < 0)
        return "/dev/fuse is closed to you: ask the administrators of this node to open it "
               "(mode 0666)";
    if (access("/proc/self/mountinfo", R_OK) < 0)
        return "there is no /proc here; mount it first, or run outside of this chroot or "
               "container";
    if (process_find_program("fusermount3", path) < 0 &&
        process_find_program("fusermount", path) < 0)
        return switched && methods & MOUNT_BY_NAMESPACE
                   ? switched
                   : "ask for the package fuse3 (fusermount3) on this node";
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return "no_new_privs is set for this process, so that fusermount3, which is setuid, "
               "can't help: mount before it is set, or outside of the container";
    if (switched)
        return switched;
    if (!(methods & MOUNT_BY_NAMESPACE))
        return "'onepot run' may still work, by a private namespace";
    return "'onepot doctor' shows what this node allows";
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
