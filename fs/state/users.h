/*
 * Finds the users of a mount: processes with an open file, a mapping, a working directory or a
 * program in it. Reads the text of /proc, and never asks the mount.
 */
#ifndef ONEPOT_USERS_H
#define ONEPOT_USERS_H

#include <stddef.h>

#include "mountinfo.h"
#include "process.h"

struct mount_user {
    int pid;
    char name[PROCESS_NAME_MAX];
};

/*
 * Find up to `max` users, other than this process and `except`. Only root can see other users'
 * processes. Takes at most two seconds, whatever hangs. Returns how many.
 */
size_t users_find(const struct mount_entry *entry, int except, struct mount_user users[],
                  size_t max);

/*
 * Find up to `max` processes that wait for any FUSE daemon's answer. users_find does not see
 * the file that they are opening yet. Otherwise as users_find.
 */
size_t users_waiting(int except, struct mount_user users[], size_t max);

/*
 * Find up to `max` processes in whose mount namespace a filesystem is mounted: containers keep
 * a copy of the mounts that existed when they were started. Otherwise as users_find.
 */
size_t users_elsewhere(unsigned dev_major, unsigned dev_minor, int except,
                       struct mount_user users[], size_t max);

/* "bash (1234), python3 (1250)", cut to `size` with "..."; returns buf. */
const char *users_describe(const struct mount_user users[], size_t count, char *buf,
                           size_t size);

#endif
