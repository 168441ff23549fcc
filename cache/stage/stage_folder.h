/*
 * Where copies lie: in a folder `onepot-stage-UID` (0700, the user's own) in /dev/shm, $TMPDIR
 * or /tmp, or where the user says. $ONEPOT_RUNTIME_DIR, if set, replaces these places. Each is
 * judged (place.h). A copy
 * is two files there (0600), beside a lock:
 *
 *   NAME.copy   the bytes. The process that makes the copy holds a lock (flock) on it.
 *   NAME.state  which bytes are there (stage_state.h). Each process that uses the copy holds a
 *               shared lock on it: a copy without one was left by a killed process.
 *   lock        of the folder: copies come, are judged, and go only under it. It is held only
 *               for moments.
 *
 * A folder that is a link, or not ours alone, is not used. Neither is a file that is not a
 * regular file of ours.
 */
#ifndef ONEPOT_STAGE_FOLDER_H
#define ONEPOT_STAGE_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "registry.h"
#include "runtime.h"
#include "fault.h"
#include "stage_state.h"

#define STAGE_NAME_MAX 160

/* "/dev/shm" and so on: the places that exist, best first. With `given`, that one alone. */
struct stage_places {
    size_t count;
    char path[RUNTIME_FOLDERS_MAX][PATH_MAX];
};
struct stage_places stage_places(const char *given);

/*
 * Open and lock the folder in `place`; with `create`, make it if need be. -ENOENT: there is
 * none; -EPERM: it is not ours alone; -ETIMEDOUT: its lock was taken for ten seconds.
 *
 * It ends by registry_remove: no process reads by a path in an empty folder, so whoever takes
 * the name then only has copies made elsewhere.
 */
int stage_folder_lock(const char *place, bool create, struct registry *ret_folder);

/* One line on why it can't be locked, after the error `err`: see runtime_explain. */
void stage_folder_explain(const char *place, int err, char *buf, size_t size);

/* Remove both files. */
void stage_folder_remove(const struct registry *folder, const char *name);

/* One copy of a folder. */
struct stage_file {
    const struct registry *folder;
    const char *name;
    int fd;                    /* of its state; -ENOENT: it has none; or another error */
    struct stage_state *state; /* NULL: it can't be read */
};

/* Call `fn` for each NAME.state, and each NAME.copy without one, until it returns not 0. */
int stage_folder_each(const struct registry *folder,
                      int (*fn)(void *ctx, const struct stage_file *file), void *ctx);

struct stage_room {
    uint64_t free_bytes;   /* of the filesystem */
    uint64_t memory_bytes; /* for the job to use; UINT64_MAX: the place is on a disk */
    bool is_local;
};
/* The room in `place`. What copies under way will still take is not deducted. */
int stage_room_of(const char *place, struct stage_room *ret_room);

#endif
