/*
 * The private folder of a user on this node, `onepot-UID` (0700), for what processes of one
 * user share. It lies in $ONEPOT_RUNTIME_DIR if that is set, else in /dev/shm, $TMPDIR or
 * /tmp.
 */
#ifndef ONEPOT_RUNTIME_H
#define ONEPOT_RUNTIME_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define RUNTIME_FOLDERS_MAX 4
#define RUNTIME_NAME_MAX 200 /* longest file name in it */

/*
 * The directories of this node that may hold such folders, best first: real paths, each once.
 * If $ONEPOT_RUNTIME_DIR is set it is the only one: its user wants a separate world.
 */
size_t runtime_places(char places[RUNTIME_FOLDERS_MAX][PATH_MAX]);

/*
 * The number in their names: our user as the outside of our user namespace knows it. There the
 * roots of all users' containers differ, while in it each is 0.
 */
unsigned runtime_uid(void);

/* The folders to try, best first. They need not exist. */
size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX]);

/*
 * Open our folder, created first if `create`. It must be a real directory, owned by us and
 * closed to others, else -EPERM. -ENOENT: there is none.
 */
int runtime_open(const char *folder, bool create, int *ret_fd);

/*
 * The same, and take the lock of the folder, its file "lock". What shares the folder comes, is
 * judged and goes only under this lock. The wait is bounded, because its holder may have been
 * stopped: -ETIMEDOUT after ten seconds.
 */
int runtime_lock(const char *folder, bool create, int *ret_fd, int *ret_lock_fd);
/* Give it up, and remove the folder first if nothing but the lock is left in it. */
void runtime_unlock(const char *folder, int *lock_fd, bool remove);

/* Is `file` a NAME shorter than `size` and this suffix? */
bool runtime_cut_suffix(const char *file, const char *suffix, char *ret_name, size_t size);

#endif
