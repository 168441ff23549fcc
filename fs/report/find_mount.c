/*
 * Finds a mount by its mount point without touching the mount point.
 */
#include "find_mount.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "cli.h"
#include "process.h"
#include "report.h"

/*
 * The absolute path of a mount point, resolved only as far as its parent. Looking at the mount
 * point itself could hang, or fail because the daemon is dead.
 */
static int absolute_path(const char *path, char **ret_path)
{
    auto_free char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    for (size_t len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--)
        copy[len - 1] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    auto_free char *parent = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    if (!parent)
        return -errno;
    bool root = strcmp(parent, "/") == 0;
    return asprintf(ret_path, "%s/%s", root ? "" : parent, name) < 0 ? -ENOMEM : 0;
}

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
    auto_free char *path = NULL;
    int r = absolute_path(mountpoint, &path);
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
