/*
 * What outlives a process: which mounts there are on this node. They are kept in a
 * folder `onepot-UID` (0700, owned by the user) in /dev/shm, else $TMPDIR, else /tmp;
 * $ONEPOT_RUNTIME_DIR, where set, comes before these. A mount is a slot there:
 *
 *   NAME.stat  struct counters: who, what, how much. The daemon holds a lock (flock) on
 *              it as long as it lives, so that whether it lives does not depend on PIDs.
 *   NAME.lock  exclusive: somebody starts or ends the mount. Shared: a `run` uses it.
 *   NAME/      the mount point, unless --at named another.
 *   lock       of the folder ("registry"): slots come, are judged, and go only under it.
 *              It is held for moments, never while an archive is opened.
 *
 * All this goes with the mount, and the folder with its last slot. What a killed
 * process left is known by the locks that nobody holds.
 *
 * To look at mounts (`stat`): state_list, slot_daemon_lives, slot->counters.
 */
#ifndef ONEPOT_STATE_H
#define ONEPOT_STATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counters.h"
#include "runtime.h"

#define STATE_NAME_MAX 192
#define STATE_FILE_MAX (STATE_NAME_MAX + 8)

struct slot {
    char folder[PATH_MAX]; /* "/dev/shm/onepot-1000" */
    char name[STATE_NAME_MAX];
    struct counters *counters; /* mapped shared; stays valid when the files are gone */
    int stat_fd;
    int lock_fd;
};

void slot_close(struct slot *slot); /* NULL is fine; gives up its locks, removes nothing */

/* Does a daemon serve this slot? Without any lock held by the caller. */
bool slot_daemon_lives(const struct slot *slot);

/* Wait until it does not: 0, or -ETIMEDOUT. */
int slot_wait_daemon(const struct slot *slot, int timeout_ms);

struct slot_list {
    struct slot **slots;
    size_t count;
};

/*
 * Every slot of this user on this node, in all folders, by name. Slots that other
 * versions of the program made are left out. -ENOMEM, or errors of reading.
 */
int state_list(struct slot_list *ret_list);
void slot_list_free(struct slot_list *list); /* closes all slots that are left in it */

/* ---- the folder and its lock: for those who make and end mounts ---- */

/* The folders to try: runtime_folders. */

struct registry {
    char folder[PATH_MAX];
    int lock_fd;
};

/*
 * Lock a folder, made first if `create`. -ENOENT: there is none; -EPERM: it is not
 * ours alone (a symbolic link, another owner, open to others); -ETIMEDOUT: somebody
 * held the lock for ten seconds (was it stopped?).
 */
int registry_lock(const char *folder, bool create, struct registry *ret_registry);
/* Unlock (if lock_fd is not -1); the folder goes if there is nothing left in it. */
void registry_unlock(struct registry *registry);

/* Remove what killed processes left half made: files that belong to no slot. */
void registry_sweep(const struct registry *registry);

/* The slots of the locked folder. */
int registry_list(const struct registry *registry, struct slot_list *ret_list);

/*
 * A new slot with its files and its directory, `name` or `name-2`, `name-3`... The
 * caller holds its lock exclusively; the counters are zero but for magic, version and
 * size. -ENOSPC and the like: try the next folder.
 */
int slot_create(const struct registry *registry, const char *name, struct slot **ret_slot);

/*
 * A slot by its name, with descriptors of its own. -ENOENT: gone, or half made or
 * removed; -EPROTO: made by another version.
 */
int slot_open(const char *folder, const char *name, struct slot **ret_slot);

/* "JOB.STEP-BASENAME" with every byte replaced that could surprise a shell. */
void slot_name_for(const char *job, const char *step, const char *archive,
                   char ret_name[STATE_NAME_MAX]);

enum slot_condition {
    SLOT_STARTING, /* somebody holds it exclusively, and will be done soon or die */
    SLOT_ALIVE,    /* has a daemon; counters->state says the rest */
    SLOT_DEAD,     /* has none, and nobody will bring it up */
};
/* Under the registry's lock, for a slot that this process has no lock on. */
enum slot_condition slot_condition(const struct slot *slot);

/* Its files are still those that bear its name. Under the registry's lock. */
bool slot_is_current(const struct slot *slot);

/*
 * Remove its files and its directory (which must not be a mount point any more), if it
 * is current; also the mount point, where the mount owns it. Under the registry's lock.
 */
void slot_remove(const struct slot *slot);

/* The private mount point: FOLDER/NAME. */
void slot_directory(const struct slot *slot, char ret_path[PATH_MAX]);

/*
 * Locks on NAME.lock. `exclusive` or shared; -EWOULDBLOCK unless `wait`. A lock that
 * was held before is replaced, and lost if the new one can't be had.
 */
int slot_lock(const struct slot *slot, bool exclusive, bool wait);
void slot_unlock(const struct slot *slot);

/* The daemon's lock, on a descriptor of its own that it keeps until it ends. */
int slot_claim_daemon(const struct slot *slot, int *ret_fd);

/* PIDs that hold or wait for NAME.lock, from /proc/locks; returns how many, at most `max`. */
size_t slot_lock_holders(const struct slot *slot, int pids[], size_t max);

#endif
