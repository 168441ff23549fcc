/*
 * What jobs left behind on this node: mounts whose daemon is dead, their state, copies of
 * archives that nobody uses and whose owner has ended. For `onepot clean`, and for root who
 * unmounts what is another user's.
 *
 * What lies in a user's folders is the user's to write, and is never trusted by root: a child
 * that has given up root's rights for good does all of it, so that it can do no more than its
 * user can. Root itself looks at nothing but who owns a folder of which name.
 */
#ifndef ONEPOT_CLEANER_H
#define ONEPOT_CLEANER_H

#include <sys/types.h>

/*
 * As this user. With `job` also what that job has mounted and still serves: it has ended, and
 * whoever uses it is none of it any more. CLI_OK, or CLI_FAILED after an error was printed.
 */
int cleaner_own(const char *job);

/* As another user, which only root may; for a minute at most. */
int cleaner_user(uid_t uid, const char *job);

/* As each user who has a folder here. */
int cleaner_all(const char *job);

#endif
