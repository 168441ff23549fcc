/*
 * The private folder of a user on this node, `onepot-UID` (0700), for what processes of one
 * user share; UID is place_uid(). It lies in $ONEPOT_RUNTIME_DIR if that is set, else in
 * /dev/shm, $TMPDIR, /tmp, $XDG_RUNTIME_DIR or /run/user/UID. A place is used only if nobody
 * else could replace the folder (place.h).
 *
 * The folders of a session come last, since they go with it while a job stays, and since not
 * every step of a job is told of them. They are what other users can't take: with names taken
 * in all the others, they still serve. The private /tmp and /dev/shm that Slurm gives to a job
 * (job_container/tmpfs) have these names, and need no rank of their own.
 */
#ifndef ONEPOT_RUNTIME_H
#define ONEPOT_RUNTIME_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define RUNTIME_FOLDERS_MAX 5
#define RUNTIME_NAME_MAX 200 /* longest file name in it */

enum runtime_use {
    RUNTIME_STATE,
    RUNTIME_COPIES, /* without the session's folders: they are small, and full ones end it */
};

/*
 * The directories of this node that may hold such folders, best first: real paths, each once.
 * They exist; whether one can be trusted is judged when a folder in it is opened. If
 * $ONEPOT_RUNTIME_DIR is set it is the only one, even if it does not exist: its user wants a
 * separate world.
 */
size_t runtime_places(enum runtime_use use, char places[RUNTIME_FOLDERS_MAX][PATH_MAX]);

/* The folders to try, best first. They need not exist. */
size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX]);

/*
 * Open our folder, created first if `create`. It must be a real directory, owned by us and
 * closed to others, in a place where nobody else could replace it; else -EPERM. -ENOENT: there
 * is none. What lies in the folder is opened by this descriptor (openat), not by its path.
 */
int runtime_open(const char *folder, bool create, int *ret_fd);

/*
 * One line on a folder that could not be opened or locked for `err`: its path or the one above
 * that is at fault, with its owner. Returns buf.
 */
const char *runtime_explain(const char *folder, int err, char *buf, size_t size);

/* Remove the folder that is open as `folder_fd`, if nothing is left in it but the file "lock".
 */
void runtime_remove(const char *folder, int folder_fd);

#endif
