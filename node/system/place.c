/*
 * The path is resolved as text first (realpath) and then walked without following links. A link
 * that appears in between ends the walk, so the open file is the one that was judged.
 */
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cleanup.h"
#include "fault.h"
#include "mountinfo.h"
#include "process.h"
#include "path.h"

#define USERS_ALL UINT64_C(4294967295) /* all that a namespace can give a number to */
#define MAGIC_FUSE 0x65735546

/* ---- users ---- */

/* The number that users without one show as: one for the node, in every namespace. */
static uid_t overflow_user(void)
{
    static _Atomic unsigned number; /* 0: not read yet */
    unsigned n = atomic_load(&number);
    if (n == 0) {
        n = (unsigned)proc_number("/proc/sys/kernel/overflowuid", 0);
        n = n ? n : 65534;
        atomic_store(&number, n);
    }
    return n;
}

bool place_knows_all_users(void)
{
    uint64_t count, sum = 0;
    auto_fclose FILE *map = fopen("/proc/self/uid_map", "re");
    while (map && fscanf(map, "%*u %*u %" SCNu64, &count) == 1)
        sum += count;
    return sum == USERS_ALL;
}

/* May this number stand for a user without one? */
static bool is_unknown(uid_t uid)
{
    return uid == overflow_user() && !place_knows_all_users();
}

bool place_is_ours(const struct stat *st)
{
    return st->st_uid == geteuid() && !is_unknown(st->st_uid);
}

unsigned place_uid(void)
{
    unsigned inside, outside, count, uid = (unsigned)geteuid();
    auto_fclose FILE *f = fopen("/proc/self/uid_map", "re");

    while (f && fscanf(f, "%u %u %u", &inside, &outside, &count) == 3)
        if (uid >= inside && uid - inside < count)
            return outside + (uid - inside);
    return uid;
}

/* Does only root make this folder, whatever the system? The path is real. */
static bool is_of_root_by_name(const char *path)
{
    static const char *const names[] = {"/dev/shm", "/run/user", "/var/tmp"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(path, names[i]) == 0)
            return true;
    return !strchr(path + 1, '/') || strncmp(path, "/usr/", 5) == 0;
}

static bool is_owner_trusted(const struct place *at)
{
    uid_t uid = at->st.st_uid;
    if (is_unknown(uid))
        return is_of_root_by_name(at->path);
    return uid == 0 || uid == geteuid();
}

/*
 * May its filesystem say who owns what? A user's FUSE program says anything. The question is
 * new only where a mount begins; who gave this process its root (above_fd < 0) could give it
 * anything. The type decides where a kernel lists no numbers.
 */
static bool is_filesystem_trusted(int fd, int above_fd)
{
    struct statfs fs;
    struct mount_entry mount;
    int r = above_fd < 0 ? 1 : mountinfo_of(fd, above_fd, &mount);
    if (r == 1)
        return true;
    if (r == -ENOTSUP)
        return fstatfs(fd, &fs) == 0 && fs.f_type != MAGIC_FUSE;
    return r == 0 && (mount.uid == 0 || mount.uid == place_uid());
}

int place_open_entry(int folder_fd, const char *name, int *ret_fd)
{
    auto_close int fd = openat(folder_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (!is_filesystem_trusted(fd, folder_fd))
        return -EXDEV;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* ---- groups ---- */

/* Does nobody but this user have the group, as far as this node's own files say? */
static bool group_has_no_others(gid_t gid, uid_t uid)
{
    bool none = true;
    const struct passwd *user;
    const struct group *group;
    auto_fclose FILE *users = fopen("/etc/passwd", "re");
    auto_fclose FILE *groups = fopen("/etc/group", "re");
    while (none && users && (user = fgetpwent(users)))
        none = user->pw_gid != gid || user->pw_uid == uid;
    while (none && groups && (group = fgetgrent(groups)))
        none = group->gr_gid != gid || !group->gr_mem[0];
    return none;
}

/* The mode's group bits are also the mask of an access control list. */
static bool has_access_list(int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return getxattr(path, "system.posix_acl_access", NULL, 0) >= 0 ||
           (errno != ENODATA && errno != EOPNOTSUPP);
}

static bool is_group_private(const struct place *at)
{
    const struct stat *st = &at->st;
    return st->st_gid == st->st_uid && !is_unknown(st->st_uid) && !has_access_list(at->fd) &&
           group_has_no_others(st->st_gid, st->st_uid);
}

static bool is_mode_trusted(enum place_rule rule, const struct place *at)
{
    const struct stat *st = &at->st;
    bool is_sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX);
    if (is_sticky && rule == PLACE_SHARED)
        return true;
    return !(st->st_mode & S_IWOTH) && (!(st->st_mode & S_IWGRP) || is_group_private(at));
}

/* ---- the walk ---- */

/* Take the next folder, whose path is the first `len` bytes of `real`. */
static int place_step(enum place_rule rule, struct place *at, const char *real, size_t len,
                      const char *name)
{
    int fd = -1;
    int r = place_open_entry(at->fd, name, &fd);
    if (r < 0 && r != -EXDEV)
        return r;
    memcpy(at->path, real, len);
    at->path[len] = '\0';
    if (r < 0)
        return r;
    if (at->fd >= 0)
        close(at->fd);
    at->fd = fd;
    if (fstat(fd, &at->st) < 0)
        return -errno;
    if (S_ISLNK(at->st.st_mode)) /* it was none a moment ago */
        return -ELOOP;
    return is_owner_trusted(at) && is_mode_trusted(rule, at) ? 0 : -EPERM;
}

static int place_walk_to(enum place_rule rule, struct place *at, const char *real)
{
    char name[NAME_MAX + 1];
    const char *end = real;
    int r = place_step(rule, at, "/", 1, "/");

    while (r == 0 && end[0] == '/' && end[1]) {
        const char *from = end + 1;
        end = strchrnul(from, '/');
        if ((size_t)(end - from) >= sizeof(name))
            return -ENAMETOOLONG;
        memcpy(name, from, (size_t)(end - from));
        name[end - from] = '\0';
        r = place_step(rule, at, real, (size_t)(end - real), name);
    }
    return r;
}

/* Mount what an automounter has at the place itself: O_PATH alone does not. */
static void place_touch(const char *path)
{
    char inside[PATH_MAX + 4];
    struct stat st;
    snprintf(inside, sizeof(inside), "%s/.", path);
    if (stat(inside, &st) < 0)
        return; /* a file, or an error that the walk finds as well */
}

int place_open(const char *path, enum place_rule rule, struct place *ret_place)
{
    char real[PATH_MAX], bare[PATH_MAX];
    size_t len = (size_t)snprintf(bare, sizeof(bare), "%s", path);
    int r = len < sizeof(bare) ? -EINVAL : -ENAMETOOLONG;

    *ret_place = (struct place){.fd = -1};
    if (r == -EINVAL && path[0] == '/') {
        while (len > 1 && bare[len - 1] == '/') /* realpath asks about it by faccessat2 */
            bare[--len] = '\0';
        place_touch(path);
        r = path_real(bare, real, NULL);
        if (r == 0)
            r = place_walk_to(rule, ret_place, real);
    }
    if (r == 0)
        return 0;
    ret_place->err = -r;
    if (r != -EPERM && r != -EXDEV)
        snprintf(ret_place->path, sizeof(ret_place->path), "%s", path);
    if (ret_place->fd >= 0)
        close(steal_fd(&ret_place->fd));
    return r == -EXDEV ? -EPERM : r;
}

const char *place_explain(const struct place *refused, char *buf, size_t size)
{
    const struct stat *st = &refused->st;
    unsigned mode = st->st_mode & 07777, uid = st->st_uid;

    if (refused->err == EXDEV)
        snprintf(buf, size, "%s: another user's FUSE program is mounted there", refused->path);
    else if (refused->err != EPERM)
        snprintf(buf, size, "%s: %s", refused->path, fault_errno(refused->err));
    else if (is_unknown(uid))
        snprintf(buf, size,
                 "%s: it belongs to a user without a number in this user namespace (mode %04o)",
                 refused->path, mode);
    else if (uid != 0 && uid != geteuid())
        snprintf(buf, size, "%s: it belongs to user %u, who could replace what lies in it",
                 refused->path, uid);
    else if (S_ISLNK(st->st_mode))
        snprintf(buf, size, "%s: it is a link", refused->path);
    else if (mode & (S_IWGRP | S_IWOTH))
        snprintf(buf, size,
                 "%s: users other than its owner %u may write to it (mode %04o, group %u)%s",
                 refused->path, uid, mode, (unsigned)st->st_gid,
                 mode & S_ISVTX ? "" : " and it is not sticky");
    else
        snprintf(buf, size, "%s: it is no folder that is closed to others (mode %04o)",
                 refused->path, mode);
    return buf;
}
