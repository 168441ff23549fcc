/*
 * Entries that the processes of one user share in a private folder of theirs (runtime.h), each
 * of one or more files NAME.SUFFIX, that come, are judged and go only under the folder's lock,
 * its file "lock". Whoever lives by an entry holds a lock (flock) on one of its files. A lock
 * goes with its process however that ends, so that a file without one was left by a process
 * that was killed. Such a lock is tried only under the folder's lock, lest a probe be taken
 * for a user.
 *
 * Files are opened by the folder's descriptor, never by a path, and only regular files of ours
 * that nobody else may open.
 */
#ifndef ONEPOT_REGISTRY_H
#define ONEPOT_REGISTRY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

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
 * others); -ETIMEDOUT: another process has held the lock for ten seconds (was it stopped?).
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
