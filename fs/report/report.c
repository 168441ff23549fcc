/*
 * Takes a report; shared by its two forms.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "mountinfo.h"
#include "process.h"
#include "report.h"

/*
 * "serving" and the like: the state in the counters, which a daemon that is gone may have left.
 */
static const char *report_state_name(const struct counters *c)
{
    static const char *const names[] = {[MOUNT_STARTING] = "starting",
                                        [MOUNT_SERVING] = "serving",
                                        [MOUNT_DRAINING] = "draining"};
    uint32_t state = atomic_load_explicit(&c->state, memory_order_relaxed);
    return state < MOUNT_ENDED ? names[state] : "ended";
}

void report_take(const struct counters *c, const char *state, struct report *ret_report)
{
    uint64_t now = now_ns();
    int64_t today = (int64_t)time(NULL), started = c->started_realtime_sec;

    ret_report->counters = c;
    ret_report->state = state ? state : report_state_name(c);
    ret_report->uptime_s = today > started ? (uint64_t)(today - started) : 0;
    summary_read(c, &ret_report->sum);
    uint64_t last_ns = ret_report->sum.last_request_ns;
    ret_report->idle_ns = !last_ns ? UINT64_MAX : now > last_ns ? now - last_ns : 0;
}

int report_render(const struct counters *counters, bool json, char **ret_text, size_t *ret_len)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct report report;

    if (!out)
        return -ENOMEM;
    report_take(counters, NULL, &report);
    if (json)
        report_json(&(struct json){.out = out, .lines = 1}, &report);
    else
        report_text(out, &report);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return -ENOMEM;
    }
    *ret_text = text;
    *ret_len = len;
    return 0;
}

/*
 * Finds a mount by its mount point without touching the mount point.
 */

/*
 * How good a guess a mount is: better if it lives, and if it is mounted where we see it. Root's
 * own comes before another user's, who may claim anything.
 */
static int find_mount_rank(const struct slot *slot)
{
    return 4 * (slot->uid == geteuid()) + 2 * slot_daemon_lives(slot) + slot_is_mounted(slot);
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

/* Is ".." the first component after a mount point? */
static bool leads_out(const char *rest)
{
    while (*rest == '/' || (rest[0] == '.' && (rest[1] == '/' || !rest[1])))
        rest++;
    return rest[0] == '.' && rest[1] == '.' && (rest[2] == '/' || !rest[2]);
}

static bool absolute_text(const char *given, char path[PATH_MAX])
{
    char folder[PATH_MAX];

    if (given[0] == '/')
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
    return getcwd(folder, sizeof(folder)) &&
           snprintf(path, PATH_MAX, "%s/%s", folder, given) < PATH_MAX;
}

struct slot *find_mount_around(const struct slot_list *list, const char *given,
                               char path[PATH_MAX], const char **rest)
{
    struct slot *found = NULL;
    size_t longest = 0;

    if (!absolute_text(given, path))
        return NULL;
    for (size_t i = 0; i < list->count; i++) {
        const char *mountpoint = list->at[i]->counters->mountpoint;
        size_t len = strlen(mountpoint);
        if ((len > longest || (len == longest && slot_is_mounted(list->at[i]))) &&
            strncmp(path, mountpoint, len) == 0 && (path[len] == '/' || path[len] == '\0') &&
            !leads_out(path + len) && slot_is_current(list->at[i])) {
            found = list->at[i];
            longest = len;
        }
    }
    *rest = path + longest;
    return found;
}

int find_mount(const struct slot_list *list, const char *mountpoint,
               const struct slot **ret_slot)
{
    char path[PATH_MAX];
    const char *rest;
    const struct slot *around = find_mount_around(list, mountpoint, path, &rest);
    if (around && rest[strspn(rest, "/.")] && !strstr(rest, "/..") && slot_is_mounted(around))
        return -ENOENT; /* a look at what lies in it could hang */
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
        return atomic_load(&c->state) == MOUNT_ENDED ? report_state_name(c) : "dead";
    if (process_is_stopped(c->daemon_pid, c->daemon_start_ticks))
        return "stopped";
    return report_state_name(c);
}
