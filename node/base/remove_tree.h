/*
 * Remove a directory with all that lies in it on its filesystem, as far as this user may. The
 * walk goes by descriptors and single names: it follows no link, and a directory that is
 * renamed meanwhile leads it nowhere else. It enters no mount.
 */
#ifndef ONEPOT_REMOVE_TREE_H
#define ONEPOT_REMOVE_TREE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Remove the directory `name` of an open folder (AT_FDCWD: a path). Directories in it that
 * their owner closed are opened. Stops at `end_ms` (now_ms of clock.h); UINT64_MAX: no limit.
 * True: nothing is left.
 */
bool remove_tree(int folder_fd, const char *name, uint64_t end_ms);

#endif
