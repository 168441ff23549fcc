/*
 * Ends a mount from outside of its daemon: for umount, for the last `run`, for any process that
 * finds a dead one. The kernel closes the connection; the daemon notices, logs its last line
 * and removes its slot. Whatever it can no longer do is done here.
 */
#ifndef ONEPOT_UNMOUNTER_H
#define ONEPOT_UNMOUNTER_H

#include <stdbool.h>
#include <stddef.h>

#include "mountpoint.h"
#include "state.h"

/*
 * Unmount. While it is busy, try again for `wait_ms`; then, if `lazy`, detach it. 0; -EBUSY;
 * -ECHILD when it was detached and is still in use; other errors of unmounting. With `ns`, in
 * that namespace. Extracted files are removed, whoever reads them. The caller holds the slot's
 * lock exclusively.
 */
int unmounter_unmount(struct slot *slot, int wait_ms, bool lazy, const struct namespace *ns);

/*
 * Try once, in this namespace, as mountpoint_unmount does, but never unmount what somebody else
 * has mounted over it: -EBUSY then.
 */
int unmounter_try(const struct slot *slot, bool lazy);

/*
 * Remove the slot's files, under the registry's lock. Returns false, and keeps them, if the
 * mount is still there, for example because its helper could not be started. Without its slot
 * nobody would find the mount; with it, the next start removes it.
 */
bool unmounter_forget(const struct slot *slot);

/*
 * Wait for the daemon of a mount that was ended. If it is still there after `wait_ms`, `kill`
 * ends it and its connection. Then unmounter_forget, if the files are still there. -EBUSY: it
 * lives.
 */
int unmounter_finish(struct slot *slot, int wait_ms, bool kill);

/* Does the mount at its place report a dead daemon? Answers within a second. */
bool unmounter_is_dead(const struct slot *slot);

/*
 * Remove a dead daemon's leftovers: the mount that no longer answers, and the files. Under the
 * registry's lock, for a slot in condition SLOT_DEAD. -errno if the mount stays.
 */
int unmounter_heal(const struct slot *slot);

/* Remove dead daemons' leftovers: in one folder of slots; NULL: in all of this user's on this
 * node. */
void unmounter_sweep(const char *folder);

/*
 * Remove the copy that a mount used if nobody uses it any more, and others at the same place.
 */
void unmounter_sweep_copy(const struct counters *counters);

/* "used by bash (12), python3 (13)", or any other known reason why it is busy. */
const char *unmounter_explain(const struct slot *slot, char *buf, size_t size);

/*
 * The processes in whose mount namespace it is mounted: containers keep a copy of the mounts
 * that existed when they were started. "bash (1234), python3 (1250)", cut to `size` with "...";
 * NULL: none, as far as this user can see. Takes at most two seconds, whatever hangs.
 */
const char *unmounter_elsewhere(const struct counters *counters, char *buf, size_t size);

#endif
