/*
 * Where copies lie: a folder `onepot-stage-UID` (0700, the user's own) in /dev/shm, $TMPDIR
 * or /tmp, or where the user says; $ONEPOT_RUNTIME_DIR, where set, comes in place of these.
 * A copy is two files there (0600):
 *
 *   NAME.copy   the bytes. Whoever makes the copy holds a lock (flock) on it.
 *   NAME.state  which bytes are there (stage_state.h). Whoever uses the copy holds a shared
 *               lock on it: a copy that nobody holds is what a killed process left.
 *   lock        of the folder: copies come, are judged, and go only under it, for moments.
 *
 * A folder that is not ours alone, or a link, is not used; nor is a file that is no regular
 * file of ours.
 */
#ifndef ONEPOT_STAGE_FOLDER_H
#define ONEPOT_STAGE_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime.h"
#include "fault.h"

#define STAGE_PLACES_MAX RUNTIME_FOLDERS_MAX
#define STAGE_NAME_MAX 160

/* "/dev/shm" and so on: what exists, best first. With `given`, that alone. */
size_t stage_places(const char *given, char places[STAGE_PLACES_MAX][PATH_MAX]);

struct stage_folder {
    char path[PATH_MAX]; /* "/dev/shm/onepot-stage-1000" */
    int fd;
    int lock_fd;
};

/*
 * Open and lock the folder in `place`, made first if `create`. -ENOENT: there is none;
 * -EPERM: it is not ours alone; -ETIMEDOUT: somebody held its lock for ten seconds.
 */
int stage_folder_lock(const char *place, bool create, struct stage_folder *ret_folder);

/* Unlock; the folder goes if nothing is left in it. */
void stage_folder_unlock(struct stage_folder *folder);

/* A regular file of ours in the folder. -EPERM when it is something else. */
int stage_folder_open(const struct stage_folder *folder, const char *name, const char *suffix,
                      bool create, int *ret_fd);

/* Remove both files. */
void stage_folder_remove(const struct stage_folder *folder, const char *name);

/* Call `fn` for each NAME.state and each NAME.copy without one, until it returns other than 0.
 */
int stage_folder_each(const struct stage_folder *folder,
                      int (*fn)(void *ctx, const struct stage_folder *folder, const char *name),
                      void *ctx);

struct stage_room {
    uint64_t free_bytes;   /* of the filesystem */
    uint64_t memory_bytes; /* that the job may still use; UINT64_MAX: it lies on a disk */
    bool is_local;
};
/* What there is in `place`, copies under way in our folder not counted. */
int stage_room_of(const char *place, struct stage_room *ret_room);

#endif
