/*
 * Finds the user's mount that a path means, and its state. For commands that ask its counters
 * and not the mount itself, which may hang.
 */
#ifndef ONEPOT_FIND_MOUNT_H
#define ONEPOT_FIND_MOUNT_H

#include <limits.h>

#include "state.h"

/*
 * The innermost mount that a path names or leads into, from text alone, since asking the
 * filesystem could hang. NULL: none of the list. `path` is what was given, made absolute, and
 * *rest the part of it after the mount point.
 */
struct slot *find_mount_around(const struct slot_list *list, const char *given,
                               char path[PATH_MAX], const char **rest);

/*
 * The mount at this mount point: of several that had it the one that lives, else the newest. 0;
 * -ENOENT: no mount of this list is there; or -errno if the path can't be resolved.
 */
int find_mount(const struct slot_list *list, const char *mountpoint,
               const struct slot **ret_slot);

/* The same for a command: CLI_OK, or CLI_FAILED after an error was printed. */
int find_named_mount(const struct slot_list *list, const char *mountpoint,
                     const struct slot **ret_slot);

/* "serving", "stopped", "dead"...: from the counters and the kernel. */
const char *find_mount_state(const struct slot *slot);

#endif
