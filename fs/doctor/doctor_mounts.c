/*
 * Findings about existing mounts, and about leftovers of dead ones.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "doctor.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "state.h"

#define ANSWER_MS 2000

static bool is_mounted(const struct counters *c)
{
    return mountinfo_has(c->mountpoint, c->mount_dev_major, c->mount_dev_minor);
}

static void see_dead(struct findings *f, const struct slot *slot)
{
    const struct counters *c = slot->counters;
    if (slot_daemon_lives(slot) || !is_mounted(c))
        return;
    struct finding *finding = finding_add(f, FINDING_WARNING, "mounts", c->mountpoint,
                                          "its daemon is dead: every use of it is an error");
    finding_advise(finding, "'onepot umount %s' removes it", c->mountpoint);
}

void doctor_leftovers(struct findings *f)
{
    struct slot_list list;
    size_t before = f->count;
    int r = state_list(&list);
    if (r < 0) {
        finding_add(f, FINDING_WARNING, "mounts", "of this user", "not known: %s",
                    strerror(-r));
        return;
    }
    for (size_t i = 0; i < list.count; i++)
        see_dead(f, list.at[i]);
    if (f->count == before)
        finding_add(f, FINDING_GOOD, "mounts", "of this user", "%zu, none of them dead",
                    list.count);
    slot_list_free(&list);
}

static void see_mount(struct findings *f, const struct slot *slot)
{
    const struct counters *c = slot->counters;
    int r = slot_daemon_lives(slot) ? mountpoint_answers(c->mountpoint, ANSWER_MS) : -ENOTCONN;
    if (r == 0) {
        finding_add(f, FINDING_GOOD, "mount", c->mountpoint, "answers; daemon %d, of %s",
                    (int)c->daemon_pid, c->archive);
    } else {
        struct finding *finding = finding_add(
            f, FINDING_WRONG, "mount", c->mountpoint, "%s",
            r == -ENOTCONN    ? "its daemon is dead"
            : r == -ETIMEDOUT ? "does not answer: the storage of its archive may hang"
                              : strerror(-r));
        finding_advise(finding,
                       r == -ENOTCONN ? "'onepot umount %s' removes it"
                                      : "'onepot umount --lazy %s' takes it away",
                       c->mountpoint);
    }
    if (c->last_error[0])
        finding_add(f, FINDING_WARNING, "mount", "last error", "%.*s",
                    (int)sizeof(c->last_error), c->last_error);
}

bool doctor_mount(struct findings *f, const char *path)
{
    char resolved[PATH_MAX];
    struct slot_list list;
    bool found = false;
    if (mountpoint_resolve(path, resolved) < 0 || state_list(&list) < 0)
        return false;
    for (size_t i = 0; i < list.count && !found; i++) {
        found = strcmp(list.at[i]->counters->mountpoint, resolved) == 0;
        if (found)
            see_mount(f, list.at[i]);
    }
    slot_list_free(&list);
    return found;
}
