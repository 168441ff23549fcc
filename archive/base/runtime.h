/*
 * The private folder of a user on this node, `onepot-UID` (0700), in $ONEPOT_RUNTIME_DIR where
 * that is set, else in /dev/shm, $TMPDIR or /tmp: for what processes of one user share.
 */
#ifndef ONEPOT_RUNTIME_H
#define ONEPOT_RUNTIME_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define RUNTIME_FOLDERS_MAX 4
#define RUNTIME_NAME_MAX 200 /* longest name of a file in it */

/*
 * The directories of this node in which such things lie, best first: real paths, each once.
 * $ONEPOT_RUNTIME_DIR alone where it is set: whoever does wants a world of its own.
 */
size_t runtime_places(char places[RUNTIME_FOLDERS_MAX][PATH_MAX]);

/* The folders to try, best first; which exist is not said. */
size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX]);

/*
 * Open a folder of ours, made first if `create`: a real directory, owned by us, closed to
 * others, else -EPERM. -ENOENT: there is none.
 */
int runtime_open(const char *folder, bool create, int *ret_fd);

#endif
