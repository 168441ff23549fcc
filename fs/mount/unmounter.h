/*
 * How a mount is ended from outside of its daemon, by umount, by the last `run`, by
 * whoever finds a dead one. The kernel closes the connection, the daemon sees it, says
 * its last line and removes its slot; what it can't do any more is done here.
 */
#ifndef ONEPOT_UNMOUNTER_H
#define ONEPOT_UNMOUNTER_H

#include <stdbool.h>
#include <stddef.h>

#include "namespace.h"
#include "state.h"

/*
 * Unmount; while it is busy, try again for `wait_ms`, and then, if `lazy`, detach it. 0;
 * -EBUSY; -ECHILD when it was detached and is in use still; other errors of unmounting.
 * With `ns`, in that namespace. The caller holds the slot's lock exclusively.
 */
int unmounter_unmount(struct slot *slot, int wait_ms, bool lazy, const struct namespace *ns);

/*
 * Once, in this namespace, as mountpoint_unmount, but never what somebody else has mounted
 * over it: -EBUSY then.
 */
int unmounter_try(const struct slot *slot, bool lazy);

/*
 * Remove the slot's files, under the registry's lock. Not those of a mount that is there
 * still, because its helper could not be started, say: without its slot nobody would find
 * it; with it, it goes at the next start. False then.
 */
bool unmounter_forget(const struct slot *slot);

/*
 * Wait for a daemon whose mount was ended; if it is not gone by then, `kill` ends it and
 * its connection. Then unmounter_forget, if the files are still there. -EBUSY: it lives.
 */
int unmounter_finish(struct slot *slot, int wait_ms, bool kill);

/*
 * Remove what a dead daemon left: the mount that answers nobody, the files. Under the
 * registry's lock, for a slot in condition SLOT_DEAD. -errno if the mount stays.
 */
int unmounter_heal(const struct slot *slot);

/* What dead daemons left in a folder of slots, or in all of this user's on this node. */
void unmounter_sweep(const char *folder);
void unmounter_sweep_all(void);

/* The copy that a mount used, where nobody does any more, with others at the same place. */
void unmounter_sweep_copy(const struct counters *counters);

/* "used by bash (12), python3 (13)" or what else is known of why it is busy. */
const char *unmounter_explain(const struct slot *slot, char *buf, size_t size);

#endif
