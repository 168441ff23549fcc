/*
 * onepot umount: end mounts, by mount point, by archive, or all of this job.
 *
 * A mount in use is left alone, except with --lazy. Nothing here touches the mount itself, so
 * one whose daemon hangs or is dead is ended like any other.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleaner.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "report.h"
#include "holders.h"
#include "job.h"
#include "layer.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "process.h"
#include "stage.h"
#include "state.h"
#include "summary.h"
#include "unmounter.h"

#define DAEMON_END_MS 5000
#define DETACHED_END_MS 200 /* if its users finish within this time, report that */
#define RETRY_MS 20
#define HOLDERS_SHOWN 8

static int umount_main(int argc, char **argv);

const struct cli_command command_umount = {
    "umount", umount_main, "end a mount",
    "[--wait SECONDS] [--lazy] MOUNTPOINT|ARCHIVE... | --all",
    "End mounts, and print a summary of each.\n"};

struct request {
    struct job job;
    unsigned wait_s;
    bool lazy;
    bool all;
};

/* ---- one slot ---- */

/* The verdict on a mount: an exit status of the command, or one of these. */
enum verdict {
    VERDICT_GO = CLI_USAGE + 1, /* we may end it: we hold its lock, or --lazy needs none */
    VERDICT_GONE,               /* already detached; its daemon still runs */
    VERDICT_WAIT,               /* a process is starting or ending it right now */
};

static int judge_held(struct slot *slot, const struct request *rq)
{
    struct counters *c = slot->counters;
    char text[256] = "";
    int pids[HOLDERS_SHOWN];
    size_t count = slot_lock_holders(slot, pids, HOLDERS_SHOWN), len = 0;

    for (size_t i = 0; i < count && len < sizeof(text) - 16; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%d", i ? ", " : "", pids[i]);
    if (atomic_load(&c->holders) > 0 && !rq->lazy) {
        holders_end(c);
        cli_note("%s: it stays until 'onepot run' (process %s) has ended", c->mountpoint, text);
        return CLI_OK;
    }
    if (!rq->lazy)
        return cli_failf(c->mountpoint,
                         "'onepot run' (process %s) uses it, and unmounts it at its end; "
                         "--lazy takes it away",
                         text);
    atomic_store(&c->state, MOUNT_DRAINING); /* nobody shares it any more */
    return VERDICT_GO;
}

/* Give back the share of who asks. VERDICT_GO: it was the last. */
static int judge_share(struct counters *c, const struct request *rq)
{
    char name[PROCESS_NAME_MAX];
    int pid;

    if (atomic_load(&c->holders) == 0 || rq->all || rq->lazy)
        return VERDICT_GO;
    int others = holders_give_back(c, &pid);
    if (others < 0)
        return cli_failf(c->mountpoint,
                         "it stays, for %s (process %d); this script did not mount it, or gave "
                         "it back; --lazy takes it away",
                         process_name(pid, name), pid);
    if (others == 0)
        return VERDICT_GO;
    cli_note("%s: it stays, for %d other mount command%s", c->mountpoint, others,
             others == 1 ? "" : "s");
    return CLI_OK;
}

/* A daemon lives: decide whether we may end its mount. */
static int judge_alive(struct slot *slot, const struct request *rq)
{
    struct counters *c = slot->counters;
    bool here = slot_is_mounted(slot);
    int r;

    /* Extracted files may be those that an umount which was killed has left. */
    if (atomic_load(&c->state) == MOUNT_ENDED && !here && !c->extracted)
        return VERDICT_GONE;
    if (c->private_namespace)
        return cli_failf(c->archive, "it is mounted for process %d alone, and ends with it",
                         c->daemon_pid);
    if (!here && c->mount_dev_minor)
        return cli_failf(c->mountpoint,
                         "it is mounted inside of a container or another namespace, by "
                         "process %d, and can only be unmounted there",
                         c->daemon_pid);
    r = judge_share(c, rq);
    if (r != VERDICT_GO)
        return r;
    if (slot_lock(slot, true, false) == 0)
        return VERDICT_GO;
    if (slot_lock(slot, false, false) < 0)
        return VERDICT_WAIT;
    slot_unlock(slot);
    return judge_held(slot, rq);
}

/* Under the registry's lock. */
static int umount_judge_slot(struct slot *slot, const struct request *rq)
{
    if (!slot_is_current(slot))
        return CLI_OK;
    switch (slot_condition(slot)) {
    case SLOT_ALIVE:
        return judge_alive(slot, rq);
    case SLOT_STARTING:
        return VERDICT_WAIT;
    case SLOT_DEAD:
        break;
    }
    return cleaner_heal(slot);
}

static int judge_locked(struct slot *slot, const struct request *rq)
{
    auto_registry registry = REGISTRY_NONE;
    int r = slots_lock_of(slot, &registry);

    if (r == 0)
        return umount_judge_slot(slot, rq);
    if (r == -ENOENT)
        return CLI_OK;
    return cli_failf(slot->folder, "it can't be locked: %s", fault_errno(r));
}

static bool umount_is_stopped(const struct counters *c)
{
    return process_is_stopped(c->daemon_pid, c->daemon_start_ticks);
}

static int report_busy(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    char text[512];

    unmounter_explain(slot, text, sizeof(text));
    if (umount_is_stopped(c))
        return cli_failf(
            c->mountpoint,
            "%s; its daemon (process %d) is stopped: 'kill -CONT %d' lets it go on", text,
            c->daemon_pid, c->daemon_pid);
    return cli_failf(c->mountpoint, "%s", text);
}

/* Detached, but still in use. */
static int report_detached(struct slot *slot)
{
    const struct counters *c = slot->counters;

    if (unmounter_finish(slot, DETACHED_END_MS, false) == 0)
        return CLI_OK;
    if (umount_is_stopped(c))
        cli_note("%s: taken out of the tree; its users hang, because its daemon (process "
                 "%d) is stopped: continue or kill it",
                 c->mountpoint, c->daemon_pid);
    else
        cli_note("%s: taken out of the tree; its users are served until they are done",
                 c->mountpoint);
    return CLI_OK;
}

/*
 * Unmounted here, which is what was asked for, but its daemon lives: a container started
 * meanwhile has a copy of the mount.
 */
static int report_lingering(const struct counters *c)
{
    char text[256];
    const char *users = unmounter_elsewhere(c, text, sizeof(text));

    if (!users)
        return cli_failf(
            c->mountpoint,
            "unmounted, but its daemon (process %d) does not end: it is stuck in a "
            "read, or serves an overlay or another user's container",
            c->daemon_pid);
    cli_note(
        "%s: unmounted here; %s, in a container or another mount namespace, still sees it, "
        "and is served until that ends",
        c->mountpoint, users);
    return CLI_OK;
}

static int end_slot(struct slot *slot, const struct request *rq)
{
    const struct counters *c = slot->counters;
    char line[SUMMARY_MAX], other[PATH_MAX];
    /* Looked for before, as the kernel may give the number to another mount at once. */
    bool is_bound = c->mount_dev_minor &&
                    mountinfo_device_in("/proc/self/mountinfo", c->mount_dev_major,
                                        c->mount_dev_minor, slot_mount_path(slot), other) == 0;
    int r = unmounter_unmount(slot, (int)rq->wait_s * 1000, rq->lazy, NULL);

    if (r == -EBUSY)
        return report_busy(slot);
    if (r == -ECHILD)
        return report_detached(slot);
    if (r < 0)
        return cli_failf(c->mountpoint, "it can't be unmounted: %s",
                         mountpoint_unmount_error(r));
    if (is_bound && mountinfo_has(other, c->mount_dev_major, c->mount_dev_minor))
        return cli_failf(c->mountpoint,
                         "unmounted, but it is mounted at %s, too (a bind mount), and served "
                         "until that is unmounted",
                         other);
    /* A stopped daemon does not notice its end. One that runs may be serving a container. */
    r = unmounter_finish(slot, umount_is_stopped(c) ? 0 : DAEMON_END_MS, umount_is_stopped(c));
    cli_note("%s: %s", c->archive, summary_line(c, line, sizeof(line)));
    layer_note(c, c->archive);
    return r < 0 ? report_lingering(c) : CLI_OK;
}

static int umount_slot(struct slot *slot, const struct request *rq)
{
    uint64_t end = now_ms() + rq->wait_s * 1000;
    int verdict;

    while ((verdict = judge_locked(slot, rq)) == VERDICT_WAIT && now_ms() < end)
        poll(NULL, 0, RETRY_MS);
    if (verdict == VERDICT_WAIT)
        return cli_failf(slot->counters->mountpoint,
                         "another process is mounting or unmounting it");
    if (verdict == VERDICT_GONE)
        return report_detached(slot);
    if (verdict != VERDICT_GO)
        return verdict;
    int status = end_slot(slot, rq);
    slot_unlock(slot);
    return status;
}

/* ---- which slots ---- */

static bool umount_is_of_job(const struct slot *slot, const struct request *rq)
{
    return strcmp(slot->counters->job, rq->job.id) == 0;
}

static int newer_first(const void *a, const void *b)
{
    uint64_t x = (*(struct slot *const *)a)->counters->started_ns;
    uint64_t y = (*(struct slot *const *)b)->counters->started_ns;
    return (x < y) - (x > y);
}

/*
 * The newest first, because a mount of an archive inside another mount, or on a directory of
 * it, must go first.
 */
static int umount_all(struct slot_list *list, const struct request *rq)
{
    int status = CLI_OK;

    if (list->count)
        qsort(list->at, list->count, sizeof(list->at[0]), newer_first);
    for (size_t i = 0; i < list->count; i++)
        if (umount_is_of_job(list->at[i], rq) && umount_slot(list->at[i], rq) != CLI_OK)
            status = CLI_FAILED;
    return status;
}

/* Is it one of the archives of a union? */
static bool has_archive(const struct counters *c, const char *path)
{
    for (size_t at = 0; at < c->archive_names_bytes;
         at += strnlen(c->archive_names + at, c->archive_names_bytes - at) + 1)
        if (strcmp(c->archive_names + at, path) == 0)
            return true;
    return false;
}

/*
 * End mounts of an archive by this job. Returns their number; *status is not OK if one failed.
 */
static size_t umount_archive(const struct slot_list *list, const char *path, const char *given,
                             const struct request *rq, int *status)
{
    struct stat st;
    bool exists = stat(given, &st) == 0;
    size_t found = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct counters *c = list->at[i]->counters;
        bool same = exists ? c->archive_dev == st.st_dev && c->archive_ino == st.st_ino
                           : strcmp(c->archive, path) == 0 || strcmp(c->archive, given) == 0;
        same |=
            (exists && S_ISDIR(st.st_mode) && strcmp(c->archive, path) == 0) || /* --plain */
            has_archive(c, path) ||
            (c->archive_names_bytes && strcmp(c->archive, given) == 0); /* a folder */
        if (!same || !umount_is_of_job(list->at[i], rq))
            continue;
        found++;
        if (umount_slot(list->at[i], rq) != CLI_OK)
            *status = CLI_FAILED;
    }
    return found;
}

/* A mount of onepot without a slot of ours: another user's, or its folder was removed. */
static int umount_unknown(const struct mount_entry *entry, const struct request *rq)
{
    const char *path = entry->path;
    uint64_t end = now_ms() + rq->wait_s * 1000;
    int r;

    while ((r = mountpoint_unmount(path, false)) == -EBUSY && now_ms() < end)
        poll(NULL, 0, RETRY_MS);
    if (r == -EBUSY && rq->lazy)
        r = mountpoint_unmount(path, true);
    if (r < 0)
        return cli_failf(path, "it can't be unmounted: %s", mountpoint_unmount_error(r));
    /* If its daemon is dead nothing else removes its state, and the copy of its archive. */
    return geteuid() == 0 ? cleaner_user(entry->uid, NULL, false) : CLI_OK;
}

static int umount_one(const struct slot_list *list, const char *given, const struct request *rq)
{
    struct mount_entry entry;
    char path[PATH_MAX], text[PATH_MAX];
    int status = CLI_OK, r;
    const char *rest;
    struct slot *around = find_mount_around(list, given, text, &rest);

    if (around && !rest[strspn(rest, "/")])
        return umount_slot(around, rq);
    if (around && rest[strspn(rest, "/.")])
        return cli_failf(given, "it lies in the mount at %s; name that one",
                         around->counters->mountpoint);
    r = mountinfo_resolve(given, path);
    if (r < 0)
        return cli_fail(given, r, NULL);
    around = find_mount_around(list, path, text, &rest);
    if (around && !*rest)
        return umount_slot(around, rq);
    bool is_mounted = mountinfo_find(path, &entry) == 0;
    if (is_mounted && entry.is_onepot)
        return umount_unknown(&entry, rq);
    if (is_mounted)
        return cli_failf(given, "what is mounted there is not onepot's");
    if (umount_archive(list, path, given, rq, &status) > 0)
        return status;
    return cli_failf(given, "it is not mounted, nor an archive that this job mounted here; "
                            "'onepot stat' lists your mounts");
}

static int umount_named(const struct slot_list *list, char **names, const struct request *rq)
{
    int status = CLI_OK;
    for (; *names; names++)
        if (umount_one(list, *names, rq) != CLI_OK)
            status = CLI_FAILED;
    return status;
}

/* ---- copies ---- */

/* Copies of killed daemons use memory of a job that may not mount anything again. */
static void sweep_copies(const struct slot_list *list)
{
    stage_sweep(NULL);
    for (size_t i = 0; i < list->count; i++)
        unmounter_sweep_copy(list->at[i]->counters);
}

/* ---- the command line ---- */

static int umount_main(int argc, char **argv)
{
    struct request rq = {.wait_s = 5};
    auto_slots struct slot_list list = {0};
    const struct cli_option options[] = {
        {"--all", "all that this user's job mounted on this node", .flag = &rq.all},
        {"--wait=SECONDS", "how long to wait for a mount that is in use (default 5)",
         .count = &rq.wait_s, .max = 86400},
        {"--lazy",
         "then take it out of the tree, for all who share it; processes that use it may finish",
         .flag = &rq.lazy},
        {NULL},
    };
    int status = cli_parse(&command_umount, options, argc, argv);

    if (status != CLI_GO_ON)
        return status;
    if (rq.all != (optind == argc))
        return cli_usage_error(&command_umount,
                               rq.all ? "--all takes no mount point or archive"
                                      : "no mount point and no archive was named");
    job_detect(&rq.job);
    int r = state_list(&list);
    if (r < 0)
        return cli_fail(NULL, r, NULL);
    status = rq.all ? umount_all(&list, &rq) : umount_named(&list, argv + optind, &rq);
    sweep_copies(&list);
    return status;
}
