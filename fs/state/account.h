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
#include <stddef.h>
#include <sys/types.h>

/* The user of that name, or with that number if nobody has the name. */
bool account_find(const char *name, uid_t *ret_uid);

/* The name of that user, or the number. Returns buf. */
const char *account_name(uid_t uid, char *buf, size_t size);

/*
 * Become this user, for good: the groups, too. A user without a name has the group "nogroup".
 * 0, or -errno.
 */
int account_become(uid_t uid);

#endif
