/*
 * Nothing here waits for a daemon that does not answer: unmounting does not need it, and every
 * wait has a bound.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "layer.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "place.h"
#include "process.h"
#include "remove_tree.h"
#include "stage.h"
#include "unmounter.h"

#define BUSY_STEP_MS 50
#define ANSWER_LIMIT_MS 1000
#define KILLED_LIMIT_MS 500
#define USERS_SHOWN 8
#define SEARCH_LIMIT_MS 2000
#define HOLDERS_MAX 8

/* ---- its users ---- */

/*
 * The users of a mount: processes with an open file, a mapping, a working directory or a
 * program in it. They are found in the text of /proc; the mount is never asked. The search runs
 * in a child, because one file it reads can block: /proc/PID/maps waits for a process's memory
 * lock, which that process may hold in a page fault on the very mount that hangs. After two
 * seconds the child is left alone, and its findings so far count.
 */

struct mount_user {
    int pid;
    char name[PROCESS_NAME_MAX];
};

/* Does a link of /proc point into the mount? */
static bool link_leads_in(const char *link, const char *mountpoint)
{
    char target[PATH_MAX + 32];
    size_t len = strlen(mountpoint);
    ssize_t n = readlink(link, target, sizeof(target) - 1);

    if (n < (ssize_t)len)
        return false;
    target[n] = '\0';
    return strncmp(target, mountpoint, len) == 0 && (target[len] == '\0' || target[len] == '/');
}

static bool has_open_file(int pid, const char *mountpoint)
{
    char path[64 + 256];

    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    auto_closedir DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, e->d_name);
        if (link_leads_in(path, mountpoint))
            return true;
    }
    return false;
}

static bool has_mapping(int pid, const struct mount_entry *entry)
{
    char path[64];
    auto_free char *line = NULL;
    unsigned dev_major, dev_minor;
    size_t size = 0;

    snprintf(path, sizeof(path), "/proc/%d/maps", pid);
    auto_fclose FILE *f = fopen(path, "re");
    while (f && getline(&line, &size, f) > 0)
        if (sscanf(line, "%*s %*s %*s %x:%x", &dev_major, &dev_minor) == 2 &&
            dev_major == entry->dev_major && dev_minor == entry->dev_minor)
            return true;
    return false;
}

/* The cheap and harmless checks come first. */
static bool user_has_it_open(int pid, const struct mount_entry *entry)
{
    static const char *const links[] = {"cwd", "root", "exe"};
    char path[64];

    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
        snprintf(path, sizeof(path), "/proc/%d/%s", pid, links[i]);
        if (link_leads_in(path, entry->path))
            return true;
    }
    return has_open_file(pid, entry->path) || has_mapping(pid, entry);
}

/* Is the filesystem mounted anywhere in that process's namespace? */
static bool user_sees_it(int pid, const struct mount_entry *entry)
{
    char path[64], where[PATH_MAX];

    snprintf(path, sizeof(path), "/proc/%d/mountinfo", pid);
    return mountinfo_device_in(path, entry->dev_major, entry->dev_minor, NULL, where) == 0;
}

/* Is one of its threads in a FUSE request, by the name of the kernel function? */
static bool user_waits(int pid, const struct mount_entry *entry)
{
    char path[64 + 256], where[64];

    (void)entry;
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    auto_closedir DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        snprintf(path, sizeof(path), "/proc/%d/task/%s/wchan", pid, e->d_name);
        if (proc_text(path, where, sizeof(where)) == 0 &&
            (strcmp(where, "request_wait_answer") == 0 || strstr(where, "fuse_request_send") ||
             strstr(where, "fuse_simple_request")))
            return true;
    }
    return false;
}

/* Write the PIDs into the pipe, each as soon as it is found. */
static _Noreturn void users_search_child(bool (*has)(int pid, const struct mount_entry *entry),
                                         const struct mount_entry *entry, int self, int except,
                                         int out)
{
    DIR *dir = opendir("/proc");

    signal(SIGPIPE, SIG_DFL); /* the reader has enough */
    for (struct dirent *e; dir && (e = readdir(dir));) {
        int pid = atoi(e->d_name);
        if (pid <= 0 || pid == self || pid == except || pid == getpid() || !has(pid, entry))
            continue;
        if (write(out, &pid, sizeof(pid)) < 0)
            break;
    }
    _exit(0);
}

static size_t users_collect(int in, struct mount_user users[], size_t max)
{
    uint64_t now, end = now_ms() + SEARCH_LIMIT_MS;
    size_t count = 0;

    while (count < max && (now = now_ms()) < end) {
        struct pollfd p = {.fd = in, .events = POLLIN};
        if (poll(&p, 1, (int)(end - now)) == 0)
            break;
        ssize_t n = read(in, &users[count].pid, sizeof(int));
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof(int))
            break;
        process_name(users[count].pid, users[count].name);
        count++;
    }
    return count;
}

static size_t users_search(bool (*has)(int pid, const struct mount_entry *entry),
                           const struct mount_entry *entry, int except,
                           struct mount_user users[], size_t max)
{
    auto_close int in = -1;
    int fds[2], self = getpid();

    if (pipe2(fds, O_CLOEXEC) < 0)
        return 0;
    in = fds[0];
    pid_t pid = fork();
    if (pid == 0)
        users_search_child(has, entry, self, except, fds[1]);
    close(fds[1]);
    if (pid < 0)
        return 0;
    size_t count = users_collect(in, users, max);
    process_discard(pid); /* it may hang */
    return count;
}

/*
 * Find up to `max` users, other than this process and `except`. Only root can see other users'
 * processes. Takes at most two seconds, whatever hangs. Returns how many.
 */
static size_t users_find(const struct mount_entry *entry, int except, struct mount_user users[],
                         size_t max)
{
    return users_search(user_has_it_open, entry, except, users, max);
}

/*
 * Find up to `max` processes that wait for any FUSE daemon's answer. users_find does not see
 * the file that they are opening yet. Otherwise as users_find.
 */
static size_t users_waiting(int except, struct mount_user users[], size_t max)
{
    return users_search(user_waits, NULL, except, users, max);
}

/* "bash (1234), python3 (1250)", cut to `size` with "..."; returns buf. */
static const char *users_describe(const struct mount_user users[], size_t count, char *buf,
                                  size_t size)
{
    size_t len = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        int n = snprintf(buf + len, size - len, "%s%s (%d)", i ? ", " : "", users[i].name,
                         users[i].pid);
        if (n < 0 || (size_t)n >= size - len - 5) {
            snprintf(buf + len, size - len, "...");
            break;
        }
        len += (size_t)n;
    }
    return buf;
}

const char *unmounter_elsewhere(const struct counters *c, char *buf, size_t size)
{
    struct mount_entry entry = {.dev_major = c->mount_dev_major,
                                .dev_minor = c->mount_dev_minor};
    struct mount_user users[USERS_SHOWN];
    size_t count = entry.dev_major || entry.dev_minor
                       ? users_search(user_sees_it, &entry, c->daemon_pid, users, USERS_SHOWN)
                       : 0;

    return count ? users_describe(users, count, buf, size) : NULL;
}

/* ---- ending it ---- */

static bool is_its_device(const struct counters *c, const struct mount_entry *entry)
{
    return entry->dev_major == c->mount_dev_major && entry->dev_minor == c->mount_dev_minor;
}

/*
 * The counters are a file's word; the kernel's counts. Is the mount there one of onepot by this
 * user, and on the device of this slot, if that is known?
 */
static bool is_its_mount(const struct counters *c, const struct mount_entry *entry)
{
    bool known = c->mount_dev_major || c->mount_dev_minor;
    return entry->is_onepot && (entry->uid == geteuid() || entry->uid == place_uid()) &&
           (!known || is_its_device(c, entry));
}

/* 0: the mount on top at its path is ours. -EBUSY: it lies below another; -EINVAL: it is gone.
 */
static int unmounter_covered(const struct slot *slot)
{
    struct mount_entry top;
    int r = mountinfo_find(slot_mount_path(slot), &top);

    if (r < 0)
        return r == -ENOENT ? -EINVAL : r;
    if (is_its_mount(slot->counters, &top))
        return 0;
    return slot_is_mounted(slot) ? -EBUSY : -EINVAL;
}

int unmounter_try(const struct slot *slot, bool lazy)
{
    int off = layer_uncover(slot, lazy), r = off < 0 ? off : unmounter_covered(slot);
    /* Lazily below a layer: only that layer may still have the mount open, and it is off. */
    return r < 0 ? r : mountpoint_unmount(slot_mount_path(slot), lazy || off > 0);
}

static int unmount_once(const struct slot *slot, bool lazy, const struct namespace *ns)
{
    return ns ? namespace_unmount(ns, lazy) : unmounter_try(slot, lazy);
}

/* Processes that read ahead see the mount in a namespace of their own, and so keep it alive. */
static void end_fetchers(const struct counters *c)
{
    struct process_facts facts;
    for (unsigned i = 0; i < COUNTERS_AHEAD; i++) {
        pid_t pid = atomic_load(&c->ahead_pids[i]);
        if (pid > 0 && process_look(pid, &facts) == 0 && facts.parent == c->daemon_pid &&
            process_is_ours(pid))
            kill(pid, SIGKILL);
    }
}

/* Their daemon ends when their directory is gone. */
static int remove_files(struct slot *slot)
{
    struct counters *c = slot->counters;
    uint32_t before = atomic_exchange(&c->state, MOUNT_ENDED);

    if (remove_tree(slot->folder_fd, slot->name, UINT64_MAX))
        return 0;
    atomic_store(&c->state, before);
    return -ENOTEMPTY;
}

int unmounter_unmount(struct slot *slot, int wait_ms, bool lazy, const struct namespace *ns)
{
    uint64_t end = now_ms() + (uint64_t)wait_ms;
    int r;

    if (slot->counters->extracted)
        return remove_files(slot);

    while ((r = unmount_once(slot, false, ns)) == -EBUSY && now_ms() < end)
        poll(NULL, 0, BUSY_STEP_MS);
    if (r == -EBUSY && lazy) {
        r = unmount_once(slot, true, ns);
        if (r == 0)
            r = -ECHILD;
    }
    if (r == -EINVAL) /* another process was quicker */
        r = 0;
    if (r == 0 || r == -ECHILD) {
        atomic_store(&slot->counters->state, MOUNT_ENDED);
        end_fetchers(slot->counters);
    }
    return r;
}

/* End the connection without its daemon, where fusectl is mounted. */
static void abort_connection(const struct counters *counters)
{
    char path[64];
    if (!counters->mount_dev_minor)
        return;
    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort",
             counters->mount_dev_minor);
    auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);
    struct stat st; /* its owner is who mounted it */
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid())
        return;
    if (write(fd, "1", 1) < 0)
        return; /* killing the daemon has to suffice */
}

/*
 * Does that process hold the daemon's lock, by the kernel's list? True also where the list
 * knows the file by another device (overlayfs).
 */
static bool slot_may_be_held_by(const struct slot *slot, int pid)
{
    int pids[HOLDERS_MAX];
    size_t count = process_lock_holders(slot->stat_fd, pids, HOLDERS_MAX);
    for (size_t i = 0; i < count; i++)
        if (pids[i] == pid)
            return true;
    return count == 0;
}

static void kill_daemon(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    if (c->daemon_pid > 0 && process_lives(c->daemon_pid, c->daemon_start_ticks) &&
        process_is_ours(c->daemon_pid) && slot_may_be_held_by(slot, c->daemon_pid))
        kill(c->daemon_pid, SIGKILL);
}

bool unmounter_forget(const struct slot *slot)
{
    if (!slot->counters->private_namespace && slot_is_mounted(slot))
        return false;
    layer_forget(slot);
    slot_remove(slot);
    return true;
}

int unmounter_finish(struct slot *slot, int wait_ms, bool kill)
{
    auto_registry registry = REGISTRY_NONE;
    int r = slot_wait_daemon(slot, wait_ms);

    if (r < 0 && kill) {
        abort_connection(slot->counters);
        r = slot_wait_daemon(slot, KILLED_LIMIT_MS);
    }
    if (r < 0 && kill) {
        kill_daemon(slot);
        r = slot_wait_daemon(slot, KILLED_LIMIT_MS);
    }
    if (r < 0)
        return -EBUSY;
    if (slot_is_current(slot) && slots_lock_of(slot, &registry) == 0)
        unmounter_forget(slot);
    return 0;
}

bool unmounter_is_dead(const struct slot *slot)
{
    return mountpoint_answers(slot_mount_path(slot), ANSWER_LIMIT_MS) == -ENOTCONN;
}

int unmounter_heal(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    struct mount_entry entry;
    int r = layer_uncover(slot, true);

    if (r < 0)
        return r;
    r = 0;
    if (!c->private_namespace && c->mountpoint[0] == '/' &&
        mountinfo_find(slot_mount_path(slot), &entry) == 0 && is_its_mount(c, &entry) &&
        unmounter_is_dead(slot))
        r = mountpoint_unmount(slot_mount_path(slot), true);
    if (r < 0 && r != -EINVAL)
        return r;
    layer_forget(slot);
    slot_remove(slot);
    return c->extracted && slot_is_current(slot) ? -EBUSY : 0;
}

void unmounter_sweep_copy(const struct counters *counters)
{
    char place[PATH_MAX];

    snprintf(place, sizeof(place), "%.*s", (int)sizeof(counters->stage_folder) - 1,
             counters->stage_folder);
    char *slash = strrchr(place, '/');
    if (!slash || slash == place)
        return;
    *slash = '\0';
    stage_sweep(place);
}

static void sweep_folder(const char *folder)
{
    auto_registry registry = REGISTRY_NONE;
    auto_slots struct slot_list list = {0};

    if (registry_lock(folder, false, &registry) < 0)
        return;
    slots_sweep(&registry);
    slots_list(&registry, &list);
    for (size_t i = 0; i < list.count; i++)
        if (slot_condition(list.at[i]) == SLOT_DEAD)
            unmounter_heal(list.at[i]);
}

void unmounter_sweep(const char *folder)
{
    char folders[STATE_FOLDERS_MAX][PATH_MAX];

    if (folder) {
        sweep_folder(folder);
        return;
    }
    size_t count = state_folders(folders);
    for (size_t i = 0; i < count; i++)
        sweep_folder(folders[i]);
}

const char *unmounter_explain(const struct slot *slot, char *buf, size_t size)
{
    struct mount_user users[USERS_SHOWN];
    struct mount_entry entry;
    size_t count = 0;

    if (unmounter_covered(slot) == -EBUSY && !layer_is_on_top(slot)) {
        snprintf(buf, size, "covered: something else is mounted over it");
        return buf;
    }
    if (mountinfo_find(slot->counters->mountpoint, &entry) == 0)
        count = users_find(&entry, slot->counters->daemon_pid, users, USERS_SHOWN);
    for (size_t i = 0; i < count; i++) /* ours, not a user's */
        for (unsigned k = 0; k < COUNTERS_AHEAD; k++)
            if (users[i].pid == atomic_load(&slot->counters->ahead_pids[k])) {
                users[i--] = users[--count];
                break;
            }
    if (count) {
        strcpy(buf, "used by ");
        users_describe(users, count, buf + strlen(buf), size - strlen(buf));
    } else if ((count = users_waiting(slot->counters->daemon_pid, users, USERS_SHOWN)) > 0) {
        char text[256];
        snprintf(buf, size, "in use, it seems by %s, waiting for an answer",
                 users_describe(users, count, text, sizeof(text)));
    } else if (geteuid() != 0) {
        snprintf(buf, size, "in use, by processes of other users or another mount in it");
    } else {
        snprintf(buf, size,
                 "in use, by no process that can be seen: is something mounted in it?");
    }
    return buf;
}
