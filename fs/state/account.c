#include "account.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"
#include "vector.h"

#define NO_GROUP 65534

#ifdef ONEPOT_STATIC

/* The user of that name, or with that number if `name` is NULL. */
static const struct passwd *account_entry(const char *name, uid_t uid)
{
    const struct passwd *user = NULL;
    auto_fclose FILE *file = fopen("/etc/passwd", "re");
    while (file && (user = fgetpwent(file)))
        if (name ? strcmp(user->pw_name, name) == 0 : user->pw_uid == uid)
            break;
    return user;
}

static bool has_member(const struct group *group, const char *user)
{
    for (char **member = group->gr_mem; *member; member++)
        if (strcmp(*member, user) == 0)
            return true;
    return false;
}

static int account_set_groups(const char *user, gid_t own)
{
    VECTOR(gid_t) groups = {0};
    const struct group *group;
    auto_fclose FILE *file = fopen("/etc/group", "re");
    int r = vector_push(&groups, own);
    while (r == 0 && file && (group = fgetgrent(file)))
        if (has_member(group, user))
            r = vector_push(&groups, group->gr_gid);
    if (r == 0 && setgroups(groups.count, groups.at) < 0)
        r = -errno;
    vector_free(&groups);
    return r;
}

#else

static const struct passwd *account_entry(const char *name, uid_t uid)
{
    return name ? getpwnam(name) : getpwuid(uid);
}

static int account_set_groups(const char *user, gid_t own)
{
    return initgroups(user, own) < 0 ? -errno : 0;
}

#endif

bool account_find(const char *name, uid_t *ret_uid)
{
    const struct passwd *user = account_entry(name, 0);
    char *end;
    unsigned long uid = user ? user->pw_uid : strtoul(name, &end, 10);

    if (!user && (*name < '0' || *name > '9' || *end || uid >= UINT32_MAX))
        return false;
    *ret_uid = (uid_t)uid;
    return true;
}

const char *account_name(uid_t uid, char *buf, size_t size)
{
    const struct passwd *user = account_entry(NULL, uid);
    if (user && strlen(user->pw_name) < size)
        strcpy(buf, user->pw_name);
    else
        snprintf(buf, size, "%u", (unsigned)uid);
    return buf;
}

int account_become(uid_t uid)
{
    const struct passwd *user = account_entry(NULL, uid);
    gid_t gid = user ? user->pw_gid : NO_GROUP;
    int r = user ? account_set_groups(user->pw_name, gid) : setgroups(0, NULL) < 0 ? -errno : 0;

    if (r == 0 && (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0))
        r = -errno;
    return r;
}
