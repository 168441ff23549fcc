/*
 * Users by name, and what belongs to them.
 *
 * The C library finds them by name services (LDAP, sssd), which are shared objects. The static
 * program can't load these, so it knows the users and groups of /etc/passwd and /etc/group
 * alone, and all others by their numbers.
 */
#ifndef ONEPOT_ACCOUNT_H
#define ONEPOT_ACCOUNT_H

#include <stdbool.h>
#include <sys/types.h>

/* The user of that name, or with that number if nobody has the name. */
bool account_find(const char *name, uid_t *ret_uid);

/*
 * Become this user, for good: the groups, too. A user without a name has the group "nogroup".
 * 0, or -errno.
 */
int account_become(uid_t uid);

#endif
