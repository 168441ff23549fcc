/*
 * Each step towards a mount, and how to undo it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "holders.h"
#include "layer.h"
#include "mounter_private.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "process.h"
#include "summary.h"
#include "unmounter.h"

#define RELEASE_WAIT_MS 3000 /* for processes that the command left, when `run` ends */
#define DAEMON_END_MS 5000
#define STALE_LIMIT_MS 2000

/* ---- the mount ---- */

static int cannot_lock(const struct mounter *m, int r)
{
    return cli_failf(m->slot->folder, "it can't be locked: %s", fault_errno(r));
}

/* 0: the directory is empty; -ENOTEMPTY; or the error of reading it. */
static int check_empty(const char *path)
{
    auto_closedir DIR *dir = opendir(path);
    int entries = 0;

    if (!dir)
        return -errno;
    while (entries <= 2 && readdir(dir))
        entries++;
    return entries <= 2 ? 0 : -ENOTEMPTY; /* "." and ".." */
}

/* A mount of onepot is at --at: ours covers it, for the command only. */
static bool covers_a_mount(const struct mounter *m)
{
    struct mount_entry entry;
    return m->is_private && mountinfo_find(m->at, &entry) == 0 && entry.is_onepot;
}

/* Clear a mount of onepot at --at that no slot was found for: dead, or another user's. */
static int clear_stale(struct mounter *m)
{
    struct mount_entry entry;

    if (mountinfo_find(m->at, &entry) < 0 || !entry.is_onepot)
        return 0;
    int r = mountpoint_answers(m->at, STALE_LIMIT_MS);
    if (r != -ENOTCONN && mounter_may_be_private(m)) {
        m->is_private = true;
        strcpy(m->taken, "an archive is mounted there, maybe by another user");
        return 0;
    }
    if (r != -ENOTCONN)
        return cli_failf(m->at, "an archive is mounted there, maybe by another user; take "
                                "another --at, or unmount it if it is yours");
    r = mountpoint_unmount(m->at, true);
    return r < 0 ? cli_failf(m->at, "a dead mount is there, and can't be unmounted: %s",
                             mountpoint_unmount_error(r))
                 : 0;
}

int mounter_refused(const struct mounter *m, const char *at, int err)
{
    return cli_failf(at,
                     "you may not make this directory: %s; ask an administrator for one there "
                     "that is yours (mkdir -p %s; chown %u %s), or %s",
                     fault_errno(err), at, (unsigned)geteuid(), at,
                     m->for_run
                         ? "leave out --at: {} and $ONEPOT_MOUNT name the mount then"
                         : "use another --at, none, or 'onepot run ARCHIVE -- COMMAND {}'");
}

/* The directory at --at, made if need be. */
static int prepare_directory(struct mounter *m)
{
    int r = covers_a_mount(m) ? 0 : clear_stale(m);

    if (r != 0 || covers_a_mount(m))
        return r;
    bool is_made = !m->options->at_is_last; /* a last argument is a directory that is there */
    if (is_made && mkdir(m->at, 0700) == 0) {
        m->slot->counters->owns_mountpoint = 1;
        return 0;
    }
    if (is_made && (errno == EACCES || errno == EPERM || errno == EROFS))
        return mounter_refused(m, m->at, errno);
    if (is_made && errno != EEXIST)
        return cli_fail(m->at, -errno, NULL);
    r = check_empty(m->at);
    if (r == -ENOENT)
        return cli_failf(m->at, "no such directory; make it first");
    if (r == -ENOTEMPTY && !m->options->nonempty)
        return cli_failf(m->at, "the directory is not empty, and a mount would hide what it "
                                "holds; take another one, or -o nonempty");
    if (r == -ENOTDIR)
        return cli_failf(m->at, "is not a directory; name one, or a new path, with --at");
    return r < 0 && r != -ENOTEMPTY ? cli_fail(m->at, r, NULL) : 0;
}

/*
 * The slot's own directory, or DIR/view. Older versions of the program removed the former when
 * they cleaned up while the archive was opened. The latter stays: whoever removed it would take
 * the mount off that the next job has there.
 */
static int restore_directory(const struct mounter *m)
{
    struct stat st;

    if ((mkdir(m->path, 0700) < 0 && errno != EEXIST) || lstat(m->path, &st) < 0)
        return cli_fail(m->path, -errno, NULL);
    return S_ISDIR(st.st_mode) ? 0 : cli_failf(m->path, "is no directory; remove it");
}

/* Others find the mount by its device. */
static void note_device(struct mounter *m)
{
    struct counters *c = m->slot->counters;

    c->private_namespace = !mounted_is_visible(&m->mounted);
    c->mount_dev_major = m->mounted.dev_major;
    c->mount_dev_minor = m->mounted.dev_minor;
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

/* Advice after a failure, derived from this node's state: "load the ...". */
static const char *mount_advice(unsigned methods)
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

static int mount_failed(const struct mounter *m, char report[MOUNT_REPORT_MAX])
{
    const uint64_t bytes = mounter_extracted_bytes(m);
    char files[96] = "";

    if (!report[0])
        mount_report_add(report, "ONEPOT_MOUNT_METHODS", "it leaves no way");
    if (bytes)
        snprintf(files, sizeof(files),
                 "; or use --extract, which makes plain files and takes %s", cli_bytes(bytes));
    if (m->options->writable && m->for_run)
        return cli_failf(
            m->path,
            "--writable needs a namespace for the command, which is not possible here "
            "(%s); %s%s",
            report, mount_advice(MOUNT_BY_NAMESPACE), files);
    if (m->taken[0])
        return cli_failf(m->path,
                         "%s, and a namespace in which this command alone would see its own is "
                         "not possible here (%s); take another --at, or none: then it is in a "
                         "directory of its own",
                         m->taken, report);
    return cli_failf(
        m->path, "it can't be mounted (%s); %s%s", report,
        mount_advice(m->for_run ? m->methods : m->methods & ~(unsigned)MOUNT_BY_NAMESPACE),
        files);
}

/* At its place by mount(2), which can lay a layer over it, too; else where the layer leaves it.
 */
static int mount_below_layer(struct mounter *m, char report[MOUNT_REPORT_MAX])
{
    unsigned methods = m->request.methods;

    m->request.methods = methods & MOUNT_BY_SYSCALL;
    int r = mountpoint_mount(&m->request, report, &m->mounted);
    if (r == 0)
        return 0;
    r = layer_make_below(m->slot);
    if (r < 0) {
        mount_report_add(report, "a folder for the layer", fault_errno(r));
        return r;
    }
    m->request.methods = methods & ~(unsigned)MOUNT_BY_SYSCALL;
    m->request.mountpoint = m->slot->counters->layer_below;
    return mountpoint_mount(&m->request, report, &m->mounted);
}

static int mount_archive(struct mounter *m)
{
    const struct mount_options *o = m->options;
    auto_registry registry = REGISTRY_NONE;
    char report[MOUNT_REPORT_MAX] = "";
    int r = 0;

    m->request = (struct mount_request){
        .mountpoint = m->path,
        .fsname = o->fsname ? o->fsname : m->archive,
        .allow_other = o->allow_other,
        .default_permissions = o->default_permissions,
        .noexec = o->noexec,
        .layer = o->writable ? &m->layer : NULL,
        .launch = m->launch,
        .launch_ctx = m->launch_ctx,
        .parent_fd = m->parent_fd,
    };
    /* Locked, so that no daemon that ends removes the directory meanwhile. */
    if (m->parent_fd < 0)
        r = slots_lock_of(m->slot, &registry);
    if (r < 0)
        return cannot_lock(m, r);
    if (m->parent_fd < 0)
        r = m->at[0] ? prepare_directory(m) : restore_directory(m);
    if (r != 0)
        return r;
    /* prepare_directory may have found that it must be private. */
    m->request.methods = m->methods;
    if (!m->for_run)
        m->request.methods &= ~(unsigned)MOUNT_BY_NAMESPACE;
    if (m->is_private && m->parent_fd < 0)
        m->request.methods &= MOUNT_BY_NAMESPACE;
    r = m->options->writable && !m->for_run
            ? mount_below_layer(m, report)
            : mountpoint_mount(&m->request, report, &m->mounted);
    if (r < 0)
        return mount_failed(m, report);
    m->parent_fd = -1;
    note_device(m);
    return 0;
}

/*
 * A mount that was there before its archive was opened (mounts_first) may be in use by now, and
 * to ask would keep it busy for who unmounts it.
 */
static int check_answers(struct mounter *m)
{
    if (m->options->ends_at_once && m->options->foreground)
        return 0;
    int r = mounted_answers(&m->mounted, m->request.mountpoint, ANSWER_LIMIT_MS);

    if (r == -EINTR && mounter_caught())
        return CLI_FAILED;
    return r < 0 ? cli_failf(m->path, "the mount does not answer: %s%s", fault_errno(r),
                             fault_limit(r))
                 : 0;
}

/* Before anything is mounted: one job at a time writes to a folder. */
static int take_layer(struct mounter *m)
{
    char why[LAYER_WHY_MAX];

    struct counters *c = m->slot->counters;

    snprintf(c->layer_dir, sizeof(c->layer_dir), "%s", m->layer.dir);
    m->layer.files_before = &c->layer_files_before;
    m->layer.writer = getpid();
    if (m->options->writable && layer_take(&m->layer, why) < 0)
        return cli_failf(m->layer.dir, "%s", why);
    return 0;
}

/* One that all see. Its daemon serves it by now. */
static int cover_for_all(struct mounter *m)
{
    char why[LAYER_WHY_MAX];

    m->layer.writer = m->slot->counters->daemon_pid;
    if (layer_cover(m->slot, &m->layer, &m->request, m->mounted.method == MOUNT_BY_SYSCALL,
                    why) == 0)
        return 0;
    return mounter_caught() ? CLI_FAILED
                            : cli_failf(m->layer.dir[0] ? m->layer.dir : m->path,
                                        "--writable is not possible here: %s", why);
}

static int add_layer(struct mounter *m)
{
    if (!m->options->writable)
        return 0;
    if (mounted_is_visible(&m->mounted))
        return cover_for_all(m);
    int r = namespace_cover(&m->mounted.ns, ANSWER_LIMIT_MS);
    if (r == 0 || (r == -EINTR && mounter_caught()))
        return r == 0 ? 0 : CLI_FAILED;
    if (r == -EMEDIUMTYPE)
        return cli_failf(m->layer.dir, LAYER_OF_PROGRAM);
    if (m->layer.dir[0])
        return cli_failf(
            m->layer.dir,
            "overlayfs does not take it: %s; name a folder on a disk of this node, or "
            "none: then what is written lies in memory",
            fault_errno(r));
    return cli_failf(
        m->path,
        "overlayfs can't be mounted: %s; for an ordinary user it needs Linux 5.11, "
        "and for root the module 'overlay'; or install fuse-overlayfs",
        fault_errno(r));
}

void mounter_offer_namespace(const struct mounter *m, struct counters *c)
{
    struct counter_entrance *free = NULL, *e = c->entrance;
    struct process_facts self;

    for (; !free && e < c->entrance + COUNTERS_ENTRANCES; e++)
        if (!e->pid || !process_lives(e->pid, e->start_ticks))
            free = e;
    if (m->mounted.ns.mnt_ns >= 0 && free && process_look(getpid(), &self) == 0)
        *free = (struct counter_entrance){getpid(), m->mounted.ns.user_ns, m->mounted.ns.mnt_ns,
                                          self.start_ticks};
}

/* Let other processes share the mount. */
static int open_to_others(struct mounter *m)
{
    auto_registry registry = REGISTRY_NONE;
    int r = slots_lock_of(m->slot, &registry);

    if (r < 0)
        return cannot_lock(m, r);
    mounter_offer_namespace(m, m->slot->counters);
    if (m->for_run) {
        r = slot_lock(m->slot, false, true);
    } else {
        m->holder = holders_add(m->slot->counters);
        slot_unlock(m->slot);
    }
    return r < 0 ? cannot_lock(m, r) : 0;
}

/* ---- all of it ---- */

/*
 * Starters of containers look for the mount for less than a second, and an image without an
 * index may take longer to open. What they find there answers once it is open.
 */
static bool mounts_first(const struct mounter *m)
{
    return m->options->ends_at_once && m->options->foreground && m->parent_fd < 0;
}

/* Commands that share a layer see what the others wrote. */
static void tell_of_changes(const struct mounter *m)
{
    if (m->mounted.ns.mnt_ns >= 0 && !m->layer.dir[0])
        namespace_measure(&m->mounted.ns, m->slot->counters);
    if (layer_is_changed(m->slot))
        cli_note("%s: other commands of this %s have changed it, and this one shares their "
                 "layer%s",
                 m->options->archive, m->job.id[0] ? "job" : "session",
                 m->layer.dir[0] ? "" : "; with --writable=DIR it would have another");
}

int mounter_start(struct mounter *m)
{
    const bool early = mounts_first(m);
    int (*const mounting[])(struct mounter * m) = {
        take_layer,
        early ? mount_archive : mounter_open_archive,
        early ? mounter_open_archive : mount_archive,
        mounter_start_daemon,
        check_answers,
        add_layer,
        open_to_others,
        NULL,
    };
    int (*const extracting[])(struct mounter * m) = {
        mounter_open_archive, mounter_find_room, mounter_start_daemon,
        mounter_extract,      open_to_others,    NULL,
    };
    int (*const *step)(struct mounter * m) = m->options->extract ? extracting : mounting;
    int r = mounter_prepare(m);

    if (r == 0)
        r = mounter_find_slot(m);
    for (; r == 0 && !m->shared && *step; step++)
        r = mounter_caught() ? CLI_FAILED : (*step)(m);
    if (r == 0 && m->shared && m->options->writable)
        tell_of_changes(m);
    if (r == 0 && mounter_caught())
        r = CLI_FAILED;
    if (r != 0) {
        mounter_abandon(m);
        return r;
    }
    if (!m->options->foreground) { /* the daemon has its own descriptors now */
        recorder_forget(m->recorder);
        m->recorder = NULL;
        reader_free(m->reader);
        m->reader = NULL;
        pot_close(m->pot);
        m->pot = NULL;
        stage_forget(m->stage);
        m->stage = NULL;
    }
    return CLI_GO_ON;
}

/* ---- and back ---- */

/* Undo a mount that was never announced: nobody uses it, except by chance. */
static void undo_mount(struct mounter *m)
{
    auto_registry registry = REGISTRY_NONE;
    int unmounted = 0;

    namespace_close(&m->mounted.ns);
    if (m->options->extract)
        unmounter_unmount(m->slot, 0, false, NULL);
    else if (mounted_is_visible(&m->mounted))
        unmounted = unmounter_try(m->slot, true);
    if (m->session)
        control_stop(steal_ptr(&m->session), false, m->for_run ? CLI_RUN_FAILED : CLI_FAILED);
    if (m->mounted.fuse_fd >= 0)
        close(steal_fd(&m->mounted.fuse_fd));
    if (m->daemon_sock >= 0)
        unmounter_finish(m->slot, DAEMON_END_MS, true);
    /*
     * Better without the registry's lock (no descriptor is left, for example) than not at all.
     */
    if (slot_is_current(m->slot))
        slots_lock_of(m->slot, &registry);
    if (!unmounter_forget(m->slot))
        cli_failf(m->path,
                  "it is still mounted, but does not answer: %s; 'onepot umount' ends it",
                  fault_errno(unmounted));
}

void mounter_abandon(struct mounter *m)
{
    if (m->slot && m->shared)
        mounter_unshare(m);
    else if (m->slot)
        undo_mount(m);
    slot_close(m->slot);
    m->slot = NULL;
    if (m->daemon > 0)
        waitpid(m->daemon, NULL, 0);
    m->daemon = 0;
}

/* End a mount that nobody else uses; bounded, even if the command left processes in it. */
static void end_mount(struct mounter *m, bool died)
{
    const struct namespace *ns = m->mounted.ns.mnt_ns >= 0 ? &m->mounted.ns : NULL;
    char line[SUMMARY_MAX], users[512];
    struct counters *c = m->slot->counters;
    if (m->options->writable && !m->layer.dir[0] && ns)
        namespace_measure(ns, c);
    int r = unmounter_unmount(m->slot, RELEASE_WAIT_MS, false, ns);

    if (r == -EBUSY) {
        cli_failf(m->path, "the command has ended, and it is still %s; it goes away now",
                  ns ? "in use" : unmounter_explain(m->slot, users, sizeof(users)));
        r = unmounter_unmount(m->slot, 0, true, ns);
    }
    namespace_close(&m->mounted.ns); /* or it would keep the mount alive */
    layer_release(&m->layer);
    if (r < 0 && r != -ECHILD && !died)
        cli_failf(m->path, "it can't be unmounted: %s", mountpoint_unmount_error(r));
    if (unmounter_finish(m->slot, DAEMON_END_MS, true) < 0)
        cli_failf(m->path, "its daemon (process %d) does not end: it is stuck in a read",
                  c->daemon_pid);
    else if (!died)
        cli_note("%s: %s", m->options->archive, summary_line(c, line, sizeof(line)));
    if (m->options->writable) {
        layer_gone(m->slot);
        layer_note(c, m->options->archive);
    } else if (atomic_load(&c->direct_refused)) {
        cli_note("%s: the command wanted to write there, and could not (EROFS); with "
                 "--writable, or --writable=DIR, it can",
                 m->options->archive);
    }
}

enum mounter_end mounter_release(struct mounter *m)
{
    const struct counters *c = m->slot->counters;
    bool died =
        (!c->extracted && !slot_daemon_lives(m->slot)) || atomic_load(&c->state) == MOUNT_ENDED;

    bool last = slot_claim_unused(m->slot) && slot_is_current(m->slot);
    if (last)
        end_mount(m, died);
    return died ? MOUNTER_DIED : last ? MOUNTER_ENDED : MOUNTER_STAYS;
}

void mounter_free(struct mounter *m)
{
    bool stuck = m->stage && stage_stop(m->stage) < 0;
    namespace_close(&m->mounted.ns);
    archive_list_free(&m->archives);
    recorder_abandon(m->recorder);
    known_reads_free(m->order);
    reader_free(m->reader);
    if (!stuck) /* a thread is stuck in a read of it */
        pot_close(m->pot);
    stage_close(m->stage);
    layer_release(&m->layer);
    slot_close(m->slot);
    process_watch_close(&m->owner);
    vector_free(&m->inherited);
    int *const fds[] = {&m->log.fd, &m->mounted.fuse_fd, &m->parent_fd, &m->daemon_sock,
                        &m->daemon_lock_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (*fds[i] >= 0)
            close(steal_fd(fds[i]));
}
