/*
 * Finds out whether a mount would work. A trial decides: it mounts on an empty directory in a
 * private folder, reads the kernel's description of itself from the first request, and unmounts
 * again. All other findings show a person the reason.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "doctor.h"
#include "fault.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "process.h"

#define INIT_WAIT_MS 2000
#define TRIAL_LIMIT_S 60    /* it never takes this long */
#define TRIAL_ANSWER_MS 200 /* a dead mount answers at once */
/* In the INIT request of the kernel's FUSE protocol: a header of 40 bytes, then this. */
#define INIT_HEADER_BYTES 40u
#define FLAG_NO_OPEN (UINT32_C(1) << 17)
#define FLAG_PARALLEL_DIROPS (UINT32_C(1) << 18)
#define FLAG_CACHE_SYMLINKS (UINT32_C(1) << 23)
#define FLAG_NO_OPENDIR (UINT32_C(1) << 24)
#define FLAG_READDIRPLUS (UINT32_C(1) << 13)

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

struct init {
    uint32_t major, minor, readahead_bytes, flags;
};

static void see_kernel(struct findings *f)
{
    struct utsname name;
    if (uname(&name) == 0)
        finding_add(f, FINDING_FACT, "kernel", "%s %s", name.sysname, name.release);
}

static void see_device(struct findings *f)
{
    auto_close int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    int err = errno;
    if (fd >= 0) {
        finding_add(f, FINDING_GOOD, "/dev/fuse", "is there, and can be opened");
        return;
    }
    finding_add(f, FINDING_WARNING, "/dev/fuse",
                err == ENOENT ? "is not there" : "can't be opened: %s", fault_errno(err));
    finding_advise(f, err == ENOENT || err == ENODEV
                          ? "ask the administrators of this node to load the module fuse; "
                            "in a container, pass the device in"
                          : "ask the administrators of this node for access to it");
}

static void see_helper(struct findings *f)
{
    char path[PATH_MAX];
    struct stat st;
    if (geteuid() == 0)
        return;
    if (process_find_program("fusermount3", path) < 0 &&
        process_find_program("fusermount", path) < 0) {
        finding_add(f, FINDING_FACT, "fusermount3", "is not there; it is in the package fuse3");
        return;
    }
    bool setuid = stat(path, &st) == 0 && st.st_uid == 0 && st.st_mode & S_ISUID;
    finding_add(f, setuid ? FINDING_GOOD : FINDING_FACT, "fusermount3", "%s, %s", path,
                setuid ? "setuid root" : "not setuid root: of no use to you");
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        finding_add(f, FINDING_WARNING, "no_new_privs",
                    "is set for this process: setuid programs like fusermount3 can't help it");
}

/* May users give others access? fusermount3 looks it up in /etc/fuse.conf. */
static void see_allow_other(struct findings *f)
{
    char line[256], word[64];
    bool allowed = false;
    auto_fclose FILE *file = geteuid() == 0 ? NULL : fopen("/etc/fuse.conf", "re");

    if (geteuid() == 0)
        return;
    while (file && fgets(line, sizeof(line), file))
        allowed |= sscanf(line, " %63s", word) == 1 && strcmp(word, "user_allow_other") == 0;
    finding_add(f, FINDING_FACT, "--allow-other", "%s",
                allowed ? "is allowed to users (user_allow_other in /etc/fuse.conf)"
                        : "is not for users: /etc/fuse.conf has no user_allow_other");
}

/* Read the kernel's first request. It is not answered, since the mount is removed again. */
static void read_init(int fd, struct init *ret_init)
{
    static char request[1 << 20];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, INIT_WAIT_MS) > 0 &&
        read(fd, request, sizeof(request)) >= (ssize_t)(INIT_HEADER_BYTES + sizeof(*ret_init)))
        memcpy(ret_init, request + INIT_HEADER_BYTES, sizeof(*ret_init));
}

static void see_protocol(struct findings *f, const struct init *init)
{
    static const struct {
        uint32_t flag;
        const char *without;
    } features[] = {
        {FLAG_READDIRPLUS, "listings don't bring attributes along"},
        {FLAG_NO_OPEN, "each open costs a request"},
        {FLAG_NO_OPENDIR, "each listing costs two more requests"},
        {FLAG_PARALLEL_DIROPS, "look-ups in one directory wait for each other"},
        {FLAG_CACHE_SYMLINKS, "symbolic links are read each time"},
    };
    finding_add(f, FINDING_FACT, "FUSE protocol", "%u.%u, read-ahead of %u KiB", init->major,
                init->minor, init->readahead_bytes >> 10);
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        if (!(init->flags & features[i].flag))
            finding_add(f, FINDING_WARNING, "FUSE protocol", "this kernel is old: %s",
                        features[i].without);
}

struct trial {
    struct mount_report report;
    enum mount_method method;
    struct init init; /* all zero: the kernel has not asked */
};

/* Is never reached: the child waits for a word that does not come. */
static void trial_launch(void *ctx)
{
    (void)ctx;
    _exit(0);
}

static int try_mount(const char *folder, unsigned methods, struct trial *trial)
{
    const struct mount_request request = {.methods = methods,
                                          .mountpoint = folder,
                                          .fsname = "onepot-doctor",
                                          .launch = methods == MOUNT_BY_NAMESPACE ? trial_launch
                                                                                  : NULL};
    struct mounted mounted;
    int r = mountpoint_mount(&request, &trial->report, &mounted);
    if (r < 0)
        return r;
    read_init(mounted.fuse_fd, &trial->init);
    if (mounted.method == MOUNT_BY_NAMESPACE)
        namespace_close(&mounted.ns); /* the mount goes with its last process */
    else
        r = mountpoint_unmount(folder, true);
    if (r < 0)
        mount_report_add(&trial->report, "unmount", mountpoint_unmount_error(r));
    close(mounted.fuse_fd);
    trial->method = mounted.method;
    return r;
}

static const char *const places[] = {"/dev/shm", "/tmp"};
static const char trial_prefix[] = "onepot-doctor-";

/*
 * Remove the leftovers of a killed trial, a mount or an empty folder. A trial that still runs
 * does not answer.
 */
static void sweep_trial(const char *folder)
{
    struct mount_entry entry;
    struct stat st;
    if (mountinfo_find(folder, &entry) == 0) {
        if (entry.is_onepot && mountpoint_answers(folder, TRIAL_ANSWER_MS) == -ENOTCONN &&
            mountpoint_unmount(folder, true) == 0)
            rmdir(folder);
    } else if (lstat(folder, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
               time(NULL) - st.st_mtime > TRIAL_LIMIT_S) {
        rmdir(folder);
    }
}

static void sweep_trials(void)
{
    char folder[PATH_MAX];
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        auto_closedir DIR *dir = opendir(places[i]);
        for (struct dirent *e; dir && (e = readdir(dir));) {
            if (strncmp(e->d_name, trial_prefix, sizeof(trial_prefix) - 1) != 0)
                continue;
            snprintf(folder, sizeof(folder), "%s/%s", places[i], e->d_name);
            sweep_trial(folder);
        }
    }
}

static int trial_make_folder(char folder[64])
{
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(folder, 64, "%s/%sXXXXXX", places[i], trial_prefix);
        if (mkdtemp(folder))
            return 0;
    }
    folder[0] = '\0';
    return -errno;
}

/*
 * The same in a new folder, which is removed with it, whatever signal comes meanwhile.
 */
static int try_in_folder(unsigned methods, struct trial *trial)
{
    char folder[64];
    sigset_t ending, before;
    sigemptyset(&ending);
    for (size_t i = 0; i < sizeof(ending_signals) / sizeof(ending_signals[0]); i++)
        sigaddset(&ending, ending_signals[i]);
    sigprocmask(SIG_BLOCK, &ending, &before);
    int r = trial_make_folder(folder);
    if (r < 0)
        mount_report_add(&trial->report, "a folder for it can't be made", fault_errno(r));
    else
        r = try_mount(folder, methods, trial);
    if (folder[0])
        rmdir(folder);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return r;
}

/* Can `run` mount in namespaces of its own? It is tried as `run` does it. */
static bool see_namespaces(struct findings *f)
{
    struct trial trial = {0};
    if (try_in_folder(MOUNT_BY_NAMESPACE, &trial) == 0) {
        finding_add(f, FINDING_GOOD, "namespaces", "'onepot run' can mount in its own");
        return true;
    }
    finding_add(f, FINDING_FACT, "namespaces", "'onepot run' can't mount in its own: %s",
                trial.report.tried);
    const char *advice = mount_namespace_advice();
    if (advice)
        finding_advise(f, "%s", advice);
    return false;
}

void doctor_mounting(struct findings *f)
{
    f->section = "mounting";
    struct trial trial = {0};
    unsigned methods;

    see_kernel(f);
    see_device(f);
    see_helper(f);
    see_allow_other(f);
#ifdef HAVE_PRELOAD
    doctor_preload(f);
#endif
    if (mount_methods(&methods) < 0) {
        finding_add(f, FINDING_WRONG, "trial", "ONEPOT_MOUNT_METHODS names an unknown way");
        return;
    }
    sweep_trials();
    bool namespaces = see_namespaces(f);
    int r = try_in_folder(methods & ~(unsigned)MOUNT_BY_NAMESPACE, &trial);
    if (r == 0) {
        finding_add(f, FINDING_GOOD, "trial", "a mount works, %s",
                    mount_method_name(trial.method));
        if (trial.init.major)
            see_protocol(f, &trial.init);
        return;
    }
    finding_add(f, FINDING_WRONG, "trial", "a mount does not work: %s", trial.report.tried);
    finding_advise(f, "%s",
                   namespaces && methods & MOUNT_BY_NAMESPACE
                       ? "'onepot run' can do it in a private namespace"
                       : mount_advice(methods));
}
