/*
 * Removes the leftovers of jobs on this node: mounts whose daemon is dead, their state, and
 * copies of archives that nobody uses and whose owner has ended. For `onepot clean`, and for
 * root, who unmounts other users' mounts.
 *
 * Users may write in their own folders, so root never trusts what lies there. A child that has
 * given up root's rights for good does all the work there, and so can do no more than the user
 * can. Root itself looks only at a folder's owner and name.
 */
#ifndef ONEPOT_CLEANER_H
#define ONEPOT_CLEANER_H

#include <stdbool.h>
#include <sys/types.h>

#include "state.h"

/*
 * Clean up as a user: this one, or, which only root may do, for 20 seconds at most, another.
 * With `job`, also end the mounts of that job that still serve: the job has ended, so any
 * remaining user is no part of it. `remove`: the private folder, too, if nothing is left in it
 * and the user has no process on this node. CLI_OK, or CLI_FAILED after an error was printed.
 */
int cleaner_user(uid_t uid, const char *job, bool remove);

/*
 * The same as each user who has a folder here, with `remove`: 16 side by side, for 20 seconds
 * at most for all of them, subordinate ids (subuid(5)) last. One line for each user who could
 * not be cleaned up after, and one that counts those whose turn did not come.
 */
int cleaner_all(const char *job);

/*
 * Remove what a dead daemon left, and say so: as unmounter_heal, under the registry's lock.
 * CLI_OK or CLI_FAILED.
 */
int cleaner_heal(const struct slot *slot);

#endif
