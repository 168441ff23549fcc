/*
 * State that outlives a process: the mounts on this node. It is kept in the user's private
 * folder (runtime.h). Each mount is a slot there:
 *
 *   NAME.stat  struct counters: identity and figures. The daemon holds a lock (flock) on it
 *              as long as it lives, so that its life can be checked without PIDs.
 *   NAME.lock  exclusive: a process starts or ends the mount. Shared: a `run` uses it.
 *   NAME/      the mount point, unless --at named another; of --extract, the files.
 *   .N-NAME/   files of an --extract whose processes are dead, on their way out. The lock's
 *              next holder removes them when it has released it.
 *   .at-N      a symbolic link to a folder like this one below --extract=DIR.
 *   lock       of the folder ("registry"): slots are created, judged and removed only under
 *              it. It is held for moments, never while an archive is opened.
 *
 * All this is removed with the mount. Leftovers of a killed process are recognised by locks
 * that nobody holds. The folder stays, empty but for its lock: a process that was told a path
 * in it may read there for as long as it lives, and without the folder another user could make
 * it. `onepot clean` removes it.
 *
 * Files are opened by the folder's descriptor, and each must be a regular file of ours.
 *
 * To look at mounts (`stat`): state_list, slot_daemon_lives, slot->counters.
 */
#ifndef ONEPOT_STATE_H
#define ONEPOT_STATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "counters.h"
#include "runtime.h"

#define STATE_NAME_MAX 192
#define STATE_FILE_MAX (STATE_NAME_MAX + 8)

struct slot {
    char folder[PATH_MAX]; /* "/dev/shm/onepot-1000" */
    int folder_fd;
    char name[STATE_NAME_MAX];
    uid_t uid;                 /* the owner of its files */
    struct counters *counters; /* mapped shared; valid even after the files are removed */
    int stat_fd;
    int lock_fd; /* -1: it is another user's, and `counters` a copy */
};

void slot_close(struct slot *slot); /* NULL is fine; releases its locks, removes nothing */

static inline void slot_closep(struct slot **slot)
{
    slot_close(*slot);
}
#define auto_slot __attribute__((cleanup(slot_closep)))

#define STATE_FOLDERS_MAX 12

/*
 * The folders to look for slots in: runtime_folders, and those below --extract=DIR that they
 * know of.
 */
size_t state_folders(char folders[STATE_FOLDERS_MAX][PATH_MAX]);

/*
 * Make another folder, if that is possible, and let state_folders know of it until it is gone.
 * -EMLINK: there are too many; other errors: no folder can be used that could know of it.
 */
int state_remember(const char *folder);

/* Does a daemon serve this slot? The caller needs no lock. */
bool slot_daemon_lives(const struct slot *slot);

/* The path of the mount: its mount point, unless a layer is there (layer.h). */
const char *slot_mount_path(const struct slot *slot);

/*
 * Is it mounted where this process sees it, and not inside a container? Maybe something else is
 * mounted over it.
 */
bool slot_is_mounted(const struct slot *slot);

/* Wait until no daemon serves the slot: 0, or -ETIMEDOUT. */
int slot_wait_daemon(const struct slot *slot, int timeout_ms);

struct slot_list { /* a vector */
    struct slot **at;
    size_t count, capacity;
    size_t left_out; /* slots that can't be listed, or are too many */
};

/*
 * Every slot of this user on this node, in all folders, by name. Slots made by other versions
 * of the program are left out. -ENOMEM, or read errors.
 */
int state_list(struct slot_list *ret_list);
/*
 * For root: also the slots of other users. Nothing is written or waited for there, and
 * what they say is checked: a copy of each record that belongs to its user, is of this version,
 * and claims no mount that the kernel lists as somebody else's. For other callers as
 * state_list.
 */
int state_list_all(struct slot_list *ret_list);

/*
 * Calls `found` for each folder "onepot-UID" or "onepot-stage-UID" that belongs to that user,
 * in the places that all share and in users' sessions. A FUSE program that is mounted on one is
 * not asked: it may never answer. `folder_fd` is O_PATH. Stops at an error of `found`, and
 * returns it.
 */
int state_each_user(int (*found)(void *ctx, const char *path, int folder_fd, uid_t uid),
                    void *ctx);
void slot_list_free(struct slot_list *list); /* closes all slots left in it */
#define auto_slots __attribute__((cleanup(slot_list_free)))

/* ---- the folder and its lock: for processes that make and end mounts ---- */

/* Lock the folder that the slot is in, by the descriptor that it has. -ENOENT: it is gone. */
int slots_lock_of(const struct slot *slot, struct registry *ret_registry);
/*
 * Unlock the folder, unless it is not locked. Without slots it keeps nothing but its lock. Then
 * remove the files that were set aside; what is left of them after five seconds stays for the
 * next time.
 */
void slots_unlock(struct registry *registry);
/* The same, and remove the folder if nothing is left in it. */
void slots_remove(struct registry *registry);

/* A variable that is unlocked at the end of its scope: auto_registry r = REGISTRY_NONE; */
#define auto_registry __attribute__((cleanup(slots_unlock))) struct registry

/* Remove what killed processes left half made: files that belong to no slot. */
void slots_sweep(const struct registry *registry);

/* List the slots of the locked folder. */
int slots_list(const struct registry *registry, struct slot_list *ret_list);

/*
 * Create a slot with its files and its directory, named `name` or `name-2`, `name-3`... The
 * caller then holds its lock exclusively; the counters are zero but for magic, version and
 * size. -ENOSPC and the like: try the next folder.
 */
int slot_create(const struct registry *registry, const char *name, struct slot **ret_slot);

/*
 * Open a slot by its name, with new descriptors; `folder` is the path of `folder_fd`. -ENOENT:
 * gone, or half made or removed; -EPROTO: made by another version, or damaged; -EPERM: a file
 * of it is not a regular file of ours.
 */
int slot_open(const char *folder, int folder_fd, const char *name, struct slot **ret_slot);

/* "JOB.STEP-BASENAME", with every byte replaced that could surprise a shell. */
void slot_name_for(const char *job, const char *step, const char *archive,
                   char ret_name[STATE_NAME_MAX]);

enum slot_condition {
    SLOT_STARTING, /* a process holds it exclusively, and will soon finish or die */
    SLOT_ALIVE,    /* has a daemon; counters->state has the rest. Or a `run` uses its files */
    SLOT_DEAD,     /* has no daemon, and nobody starts one */
};
/* Under the registry's lock, for a slot on which this process has no lock. */
enum slot_condition slot_condition(const struct slot *slot);

/* Do its files still bear its name? Under the registry's lock. */
bool slot_is_current(const struct slot *slot);

/*
 * Remove its files and its directory (which must no longer be a mount point), if it is current;
 * also the mount point, if the mount owns it. Extracted files are set aside; a slot whose files
 * something is mounted over stays. Under the registry's lock.
 */
void slot_remove(const struct slot *slot);

/* The private mount point: FOLDER/NAME. */
void slot_directory(const struct slot *slot, char ret_path[PATH_MAX]);

/*
 * Lock NAME.lock, `exclusive` or shared; -EWOULDBLOCK unless `wait`. Replaces a lock held
 * before, which is lost if the new one can't be had.
 */
int slot_lock(const struct slot *slot, bool exclusive, bool wait);
void slot_unlock(const struct slot *slot);

/*
 * Does no `run` and no mount command use it? Then this process now holds NAME.lock exclusively;
 * else not at all. Takes the registry's lock meanwhile; false if that can't be had.
 */
bool slot_claim_unused(const struct slot *slot);

/* Take the daemon's lock, on a new descriptor; the daemon keeps it until it ends. */
int slot_claim_daemon(const struct slot *slot, int *ret_fd);

/* List PIDs that hold or await NAME.lock, from /proc/locks; returns how many, at most `max`. */
size_t slot_lock_holders(const struct slot *slot, int pids[], size_t max);

#endif
