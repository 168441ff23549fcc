/*
 * State that outlives a process: the mounts on this node. It is kept in a folder `onepot-UID`
 * (0700, owned by the user) in /dev/shm, else $TMPDIR, else /tmp; $ONEPOT_RUNTIME_DIR, if set,
 * comes before these. Each mount is a slot there:
 *
 *   NAME.stat  struct counters: identity and figures. The daemon holds a lock (flock) on it
 *              as long as it lives, so that its life can be checked without PIDs.
 *   NAME.lock  exclusive: a process starts or ends the mount. Shared: a `run` uses it.
 *   NAME.so    libonepot-io.so, if a reader was started with it (preload.h).
 *   NAME/      the mount point, unless --at named another.
 *   lock       of the folder ("registry"): slots are created, judged and removed only under
 *              it. It is held for moments, never while an archive is opened.
 *
 * All this is removed with the mount, and the folder with its last slot. Leftovers of a killed
 * process are recognised by locks that nobody holds.
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
    struct counters *counters; /* mapped shared; valid even after the files are removed */
    int stat_fd;
    int lock_fd;
};

void slot_close(struct slot *slot); /* NULL is fine; releases its locks, removes nothing */

static inline void slot_closep(struct slot **slot)
{
    slot_close(*slot);
}
#define auto_slot __attribute__((cleanup(slot_closep)))

/* Does a daemon serve this slot? The caller needs no lock. */
bool slot_daemon_lives(const struct slot *slot);

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
};

/*
 * Every slot of this user on this node, in all folders, by name. Slots made by other versions
 * of the program are left out. -ENOMEM, or read errors.
 */
int state_list(struct slot_list *ret_list);
void slot_list_free(struct slot_list *list); /* closes all slots left in it */
#define auto_slots __attribute__((cleanup(slot_list_free)))

/* ---- the folder and its lock: for processes that make and end mounts ---- */

struct registry {
    char folder[PATH_MAX];
    int lock_fd;
};

/*
 * Lock a folder; with `create`, make it first if needed. -ENOENT: there is none; -EPERM: it is
 * not ours alone (a symbolic link, another owner, open to others); -ETIMEDOUT: another process
 * has held the lock for ten seconds (was it stopped?).
 */
int registry_lock(const char *folder, bool create, struct registry *ret_registry);
/* Unlock, unless lock_fd is -1; removes the folder if it is empty. */
void registry_unlock(struct registry *registry);

/* A variable that is unlocked at the end of its scope: auto_registry r = REGISTRY_NONE; */
#define auto_registry __attribute__((cleanup(registry_unlock))) struct registry
#define REGISTRY_NONE                                                                          \
    {                                                                                          \
        .lock_fd = -1                                                                          \
    }

/* Remove what killed processes left half made: files that belong to no slot. */
void registry_sweep(const struct registry *registry);

/* List the slots of the locked folder. */
int registry_list(const struct registry *registry, struct slot_list *ret_list);

/*
 * Create a slot with its files and its directory, named `name` or `name-2`, `name-3`... The
 * caller then holds its lock exclusively; the counters are zero but for magic, version and
 * size. -ENOSPC and the like: try the next folder.
 */
int slot_create(const struct registry *registry, const char *name, struct slot **ret_slot);

/*
 * Open a slot by its name, with descriptors of its own. -ENOENT: gone, or half made or removed;
 * -EPROTO: made by another version.
 */
int slot_open(const char *folder, const char *name, struct slot **ret_slot);

/* "JOB.STEP-BASENAME", with every byte replaced that could surprise a shell. */
void slot_name_for(const char *job, const char *step, const char *archive,
                   char ret_name[STATE_NAME_MAX]);

enum slot_condition {
    SLOT_STARTING, /* a process holds it exclusively, and will soon finish or die */
    SLOT_ALIVE,    /* has a daemon; counters->state has the rest */
    SLOT_DEAD,     /* has no daemon, and nobody starts one */
};
/* Under the registry's lock, for a slot on which this process has no lock. */
enum slot_condition slot_condition(const struct slot *slot);

/* Do its files still bear its name? Under the registry's lock. */
bool slot_is_current(const struct slot *slot);

/*
 * Remove its files and its directory (which must no longer be a mount point), if it is current;
 * also the mount point, if the mount owns it. Under the registry's lock.
 */
void slot_remove(const struct slot *slot);

/* The private mount point: FOLDER/NAME. */
void slot_directory(const struct slot *slot, char ret_path[PATH_MAX]);

/* The path of the library that readers preload: FOLDER/NAME.so. */
void slot_library(const struct slot *slot, char ret_path[PATH_MAX]);

/*
 * Lock NAME.lock, `exclusive` or shared; -EWOULDBLOCK unless `wait`. Replaces a lock held
 * before, which is lost if the new one can't be had.
 */
int slot_lock(const struct slot *slot, bool exclusive, bool wait);
void slot_unlock(const struct slot *slot);

/* Take the daemon's lock, on a descriptor of its own; the daemon keeps it until it ends. */
int slot_claim_daemon(const struct slot *slot, int *ret_fd);

/* List PIDs that hold or await NAME.lock, from /proc/locks; returns how many, at most `max`. */
size_t slot_lock_holders(const struct slot *slot, int pids[], size_t max);

#endif
