/*
 * Finds a mount by its mount point without touching the mount point.
 */
#include "find_mount.h"

#include <errno.h>
#include <string.h>

#include "cli.h"
#include "mountinfo.h"
#include "process.h"
#include "report.h"

/* How good a guess a mount is: better if it lives, and if it is mounted where we see it. */
static int find_mount_rank(const struct slot *slot)
{
    return 2 * slot_daemon_lives(slot) + slot_is_mounted(slot);
}

/* The best guess among mounts that had this mount point; else the newest. */
static const struct slot *best_of(const struct slot_list *list, const char *path)
{
    const struct slot *best = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const struct slot *slot = list->at[i];
        if (strncmp(slot->counters->mountpoint, path, sizeof(slot->counters->mountpoint)) != 0)
            continue;
        int better = best ? find_mount_rank(slot) - find_mount_rank(best) : 1;
        if (better > 0 || (better == 0 && slot->counters->started_realtime_sec >
                                              best->counters->started_realtime_sec))
            best = slot;
    }
    return best;
}

int find_mount(const struct slot_list *list, const char *mountpoint,
               const struct slot **ret_slot)
{
    char path[PATH_MAX];
    int r = mountinfo_resolve(mountpoint, path);
    if (r < 0)
        return r;
    *ret_slot = best_of(list, path);
    return *ret_slot ? 0 : -ENOENT;
}

int find_named_mount(const struct slot_list *list, const char *mountpoint,
                     const struct slot **ret_slot)
{
    int r = find_mount(list, mountpoint, ret_slot);
    if (r == -ENOENT)
        return cli_failf(
            mountpoint,
            "you have no onepot mount there; 'onepot stat' lists yours on this node");
    return r < 0 ? cli_fail(mountpoint, r, NULL) : CLI_OK;
}

const char *find_mount_state(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    if (!slot_daemon_lives(slot))
        return "dead";
    if (process_is_stopped(c->daemon_pid, c->daemon_start_ticks))
        return "stopped";
    return report_state_name(c);
}
