/*
 * Who uses a mount: processes with an open file, a mapping, a working directory or a
 * program in it. Known from /proc by text, never by asking the mount.
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
 * Find up to `max` of them, other than this process and `except`. Processes of other
 * users can only be seen by root. At most two seconds, whatever hangs. Returns how many.
 */
size_t users_find(const struct mount_entry *entry, int except, struct mount_user users[],
                  size_t max);

/*
 * Find up to `max` processes that wait for the answer of some daemon: what they are opening is
 * in none of the above yet. Otherwise as users_find.
 */
size_t users_waiting(int except, struct mount_user users[], size_t max);

/*
 * Find up to `max` processes in whose mount namespace a filesystem is mounted: containers
 * keep a copy of what was mounted when they were started. Otherwise as users_find.
 */
size_t users_elsewhere(unsigned dev_major, unsigned dev_minor, int except,
                       struct mount_user users[], size_t max);

/* "bash (1234), python3 (1250)", cut with "..." to `size`; returns buf. */
const char *users_describe(const struct mount_user users[], size_t count, char *buf,
                           size_t size);

#endif
