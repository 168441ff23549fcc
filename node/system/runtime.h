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

/*
 * ---- the registry ----
 *
 * Entries that the processes of one user share in such a folder, each of one or more files
 * NAME.SUFFIX, that come, are judged and go only under the folder's lock, its file "lock".
 * Whoever lives by an entry holds a lock (flock) on one of its files. A lock goes with its
 * process however that ends, so that a file without one was left by a process that was killed.
 * Such a lock is tried only under the folder's lock, lest a probe be taken for a user.
 *
 * Files are opened by the folder's descriptor, never by a path, and only regular files of ours
 * that nobody else may open.
 */
struct registry {
    char path[PATH_MAX]; /* "/dev/shm/onepot-1000" */
    int fd;
    int lock_fd; /* -1: not locked */
};

#define REGISTRY_NONE                                                                          \
    {                                                                                          \
        .fd = -1, .lock_fd = -1                                                                \
    }

/*
 * Open a folder as runtime_open does, with `create` made first if need be, and lock it.
 * -ENOENT: there is none; -EPERM: it is not ours alone (a symbolic link, another owner, open to
 * others); -ETIMEDOUT: the lock was held for ten seconds in which this process ran, or for 20
 * (was its holder stopped?).
 */
int registry_lock(const char *path, bool create, struct registry *ret_registry);

/* The same of a folder that is open as `fd`, which is duplicated. -ENOENT: it was removed. */
int registry_lock_open(const char *path, int fd, struct registry *ret_registry);

/* Unlock and close, unless it is not locked. */
void registry_unlock(struct registry *registry);
/* The same, and before that remove the folder if nothing but its lock is left in it. */
void registry_remove(struct registry *registry);

/*
 * Open NAME and SUFFIX; `flags` has the access mode, and O_CREAT | O_EXCL for a new file
 * (0600). -EPERM: it is not a regular file of ours, closed to others.
 */
int registry_open(int folder_fd, const char *name, const char *suffix, int flags, int *ret_fd);

/* Does nobody hold it? If so, this process does until it closes the descriptor. */
bool registry_take(int fd);

bool registry_has(int folder_fd, const char *name, const char *suffix);

void registry_unlink(int folder_fd, const char *name, const char *suffix);

/* Is `file` a NAME shorter than `size` and this suffix? */
bool registry_name(const char *file, const char *suffix, char *ret_name, size_t size);

#endif
