/*
 * Findings about existing mounts, and about leftovers of dead ones.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "doctor.h"
#include "fault.h"
#include "report.h"
#include "mountpoint.h"
#include "state.h"
#include "summary.h"

#define ANSWER_MS 2000

/* False: reads of it fail, which is reported. */
static bool see_trouble(struct findings *f, enum finding_kind kind, const struct counters *c)
{
    const char *trouble = summary_trouble(c);
    if (trouble)
        finding_add(f, kind, c->mountpoint, "reads of it fail: %.*s",
                    (int)sizeof(c->trouble[0]), trouble);
    return !trouble;
}

/* It is the mount that was asked about. */
static bool is_seen(const struct findings *f, const struct counters *c)
{
    for (size_t i = 0; i < f->count; i++)
        if (strncmp(f->at[i].subject, c->mountpoint, sizeof(f->at[i].subject) - 1) == 0)
            return true;
    return false;
}

static void see_dead(struct findings *f, const struct slot *slot)
{
    const struct counters *c = slot->counters;
    if (slot_daemon_lives(slot) && !is_seen(f, c))
        see_trouble(f, FINDING_WARNING, c);
    if (slot_daemon_lives(slot) || !slot_is_mounted(slot))
        return;
    finding_add(f, FINDING_WARNING, c->mountpoint,
                "its daemon is dead: every use of it is an error");
    finding_advise(f, "'onepot umount %s' removes it", c->mountpoint);
}

void doctor_leftovers(struct findings *f)
{
    f->section = "mounts";
    auto_slots struct slot_list list = {0};
    size_t before = f->count;
    int r = state_list(&list);
    if (r < 0) {
        finding_add(f, FINDING_WARNING, "of this user", "not known: %s", fault_errno(r));
        return;
    }
    for (size_t i = 0; i < list.count; i++)
        see_dead(f, list.at[i]);
    if (f->count == before)
        finding_add(f, FINDING_GOOD, "of this user", "%zu, all can be read", list.count);
}

static void see_mount(struct findings *f, const struct slot *slot)
{
    const struct counters *c = slot->counters;
    int r = slot_daemon_lives(slot) ? mountpoint_answers(c->mountpoint, ANSWER_MS) : -ENOTCONN;
    if (r == 0 && see_trouble(f, FINDING_WRONG, c)) {
        finding_add(f, FINDING_GOOD, c->mountpoint, "answers; daemon %d, of %s",
                    (int)c->daemon_pid, c->archive);
    } else if (r < 0) {
        finding_add(f, FINDING_WRONG, c->mountpoint, "%s",
                    r == -ENOTCONN    ? "its daemon is dead"
                    : r == -ETIMEDOUT ? "does not answer: the storage of its archive may hang"
                                      : fault_errno(r));
        finding_advise(f,
                       r == -ENOTCONN ? "'onepot umount %s' removes it"
                                      : "'onepot umount --lazy %s' takes it away",
                       c->mountpoint);
    }
    if (c->last_error[0] && !summary_trouble(c))
        finding_add(f, FINDING_WARNING, "last error", "%.*s", (int)sizeof(c->last_error),
                    c->last_error);
}

bool doctor_mount(struct findings *f, const char *path)
{
    f->section = "mount";
    auto_slots struct slot_list list = {0};
    const struct slot *slot;
    if (state_list(&list) < 0 || find_mount(&list, path, &slot) < 0)
        return false;
    see_mount(f, slot);
    return true;
}
