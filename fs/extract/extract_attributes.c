/*
 * The attributes that members and folders get.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "extract_private.h"

#define XATTR_VALUE_MAX 65536u /* Linux's limit */

bool attributes_keep_owner(const struct extraction *x, const struct node *node)
{
    return node->uid == x->uid && node->gid == x->gid;
}

mode_t attributes_mode(const struct extraction *x, const struct node *node)
{
    mode_t mode = node->mode & 07777;
    if (!x->options->exact_modes)
        return mode & 0777 & ~x->umask;
    /* A set-id bit is only for files of the intended owner. */
    if (!S_ISDIR(node->mode) &&
        (!x->options->privileged || (!x->options->owners && !attributes_keep_owner(x, node))))
        mode &= ~(mode_t)(S_ISUID | S_ISGID);
    return mode;
}

static bool is_in_namespace(const struct xattr *xattr, const char *namespace)
{
    size_t len = strlen(namespace);
    return xattr->name_len > len && memcmp(xattr->name, namespace, len) == 0;
}

/* Attributes that give rights, or that programs obey: security, trusted. */
static bool is_privileged(const struct xattr *xattr)
{
    return !is_in_namespace(xattr, "user.") && !is_in_namespace(xattr, "system.posix_acl_");
}

bool attributes_lack_privileges(const struct extraction *x, const struct node *node)
{
    uint64_t cursor = 0;
    struct xattr xattr;
    if (x->options->privileged)
        return false;
    if (S_ISCHR(node->mode) || S_ISBLK(node->mode) ||
        (node->mode & (S_ISUID | S_ISGID) && !S_ISDIR(node->mode)))
        return true;
    while (node->has_xattrs && index_xattr_next(x->index, node->position, &cursor, &xattr) == 0)
        if (is_privileged(&xattr))
            return true;
    return false;
}

static bool may_restore(const struct extraction *x, const struct xattr *xattr)
{
    return x->options->exact_modes || is_in_namespace(xattr, "user.");
}

/* Set the attributes of the open file or, if `fd` is -1, of the file at `path` itself. */
static int set_xattrs(struct extraction *x, int fd, const char *path, uint32_t position)
{
    uint64_t cursor = 0;
    struct xattr xattr;
    bool lost = false;
    int r;
    while ((r = index_xattr_next(x->index, position, &cursor, &xattr)) == 0) {
        char name[INDEX_NAME_MAX + 1];
        if (is_privileged(&xattr) && !x->options->privileged)
            continue; /* already counted */
        if (!may_restore(x, &xattr)) {
            lost = true;
            continue;
        }
        memcpy(name, xattr.name, xattr.name_len);
        name[xattr.name_len] = '\0';
        if (xattr.value_len <= XATTR_VALUE_MAX &&
            (fd >= 0 ? fsetxattr(fd, name, xattr.value, xattr.value_len, 0)
                     : lsetxattr(path, name, xattr.value, xattr.value_len, 0)) == 0)
            continue;
        lost = true;
    }
    if (lost)
        atomic_fetch_add_explicit(&x->lost_xattrs, 1, memory_order_relaxed);
    return r == -ENOENT ? 0 : r;
}

/* Times as futimens takes them: the time of the last access stays. */
struct times {
    struct timespec at[2];
};

static struct times node_times(const struct node *node)
{
    return (struct times){
        {{.tv_nsec = UTIME_OMIT},
         {.tv_sec = (time_t)node->mtime_sec, .tv_nsec = (long)node->mtime_nsec}}};
}

int attributes_set_time(int folder_fd, const char *name, const struct node *node)
{
    return utimensat(folder_fd, name, node_times(node).at, AT_SYMLINK_NOFOLLOW) < 0 ? -errno
                                                                                    : 0;
}

static bool needs_chown(const struct extraction *x, const struct node *node)
{
    return x->options->owners && (!attributes_keep_owner(x, node) || x->inherits);
}

int attributes_set(struct extraction *x, int fd, const struct node *node, mode_t have_mode)
{
    mode_t mode = attributes_mode(x, node);
    bool chown = needs_chown(x, node);
    int r = 0;
    if (chown && fchown(fd, node->uid, node->gid) < 0)
        return -errno;
    if (node->has_xattrs)
        r = set_xattrs(x, fd, NULL, node->position);
    if (r < 0)
        return r;
    if ((have_mode != mode || chown || x->inherits || mode & 07000) && fchmod(fd, mode) < 0)
        return -errno;
    return futimens(fd, node_times(node).at) < 0 ? -errno : 0;
}

int attributes_set_by_name(struct extraction *x, int folder_fd, const char *name,
                           const struct node *node)
{
    if (needs_chown(x, node) &&
        fchownat(folder_fd, name, node->uid, node->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (node->has_xattrs) {
        /* The name is one component, so lsetxattr follows only the path to the open folder. */
        char path[sizeof("/proc/self/fd/-2147483648/") + INDEX_NAME_MAX];
        snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", folder_fd, name);
        int r = set_xattrs(x, -1, path, node->position);
        if (r < 0)
            return r;
    }
    return attributes_set_time(folder_fd, name, node);
}
