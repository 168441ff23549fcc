/*
 * A path in two parts: its folder and the name in it. And the entries of a folder.
 */
#ifndef ONEPOT_PATH_H
#define ONEPOT_PATH_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_id.h"

/* "." or "..", as in a folder's list. */
static inline bool path_are_dots(const char *name, size_t len)
{
    return len > 0 && len <= 2 && name[0] == '.' && name[len - 1] == '.';
}

static inline bool path_is_dots(const char *name)
{
    return path_are_dots(name, strlen(name));
}

/* Can an entry of a directory have this name, whose length is another matter? */
static inline bool path_is_name(const char *name, size_t len)
{
    return len > 0 && !path_are_dots(name, len) && !memchr(name, '/', len) &&
           !memchr(name, '\0', len);
}

/*
 * The next name of a path in an archive, which is advanced past it. False at the end. Empty
 * names and "." are none, so that "./a//b/" has the names of "a/b".
 */
static inline bool path_next_name(const char **path, size_t *len, const char **ret_name,
                                  size_t *ret_len)
{
    while (*len > 0) {
        const char *name = *path, *slash = (const char *)memchr(name, '/', *len);
        size_t name_len = slash ? (size_t)(slash - name) : *len;
        size_t step = slash ? name_len + 1 : name_len;
        *path += step;
        *len -= step;
        if (name_len > 0 && !(name_len == 1 && name[0] == '.')) {
            *ret_name = name;
            *ret_len = name_len;
            return true;
        }
    }
    return false;
}

/*
 * Does a symbolic link at `path` in a tree lead out of that, by its words alone? An absolute
 * target does; a target's own links count as links of their own.
 */
static inline bool path_leads_out(const char *path, size_t path_len, const char *target,
                                  size_t target_len)
{
    const char *name;
    size_t len, depth = 0;
    if (target_len > 0 && target[0] == '/')
        return true;
    while (path_next_name(&path, &path_len, &name, &len))
        depth++;
    depth -= depth > 0; /* from its folder on */
    while (path_next_name(&target, &target_len, &name, &len)) {
        bool is_up = len == 2 && path_are_dots(name, len);
        if (is_up && depth-- == 0)
            return true;
        depth += !is_up;
    }
    return false;
}

/*
 * The canonical path (PATH_MAX bytes) of what a path leads to, for those who write there: the
 * kernel follows it first, with its own checks of links (fs.protected_symlinks, -EACCES), which
 * realpath goes around. -ELOOP: it was changed meanwhile and leads elsewhere. *ret_id, unless
 * that is NULL, tells the file.
 */
static inline int path_real(const char *path, char *ret_path, struct file_id *ret_id)
{
    struct stat followed, found;
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = fstat(fd, &followed) < 0 || !realpath(path, ret_path) || lstat(ret_path, &found) < 0
                ? -errno
                : 0;
    close(fd);
    if (r == 0 && !file_id_equal(file_id_of(&followed), file_id_of(&found)))
        return -ELOOP;
    if (r == 0 && ret_id)
        *ret_id = file_id_of(&found);
    return r;
}

/*
 * A stream of the entries of an open folder, by a descriptor of the stream's. NULL: they can't
 * be read; errno tells why.
 */
static inline DIR *path_list(int folder_fd)
{
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0) {
        int err = errno;
        close(fd);
        errno = err;
    }
    return dir;
}

/*
 * Open what lies at `path` below a folder (any descriptor of it; "" is the folder itself). No
 * symbolic link is followed, so that whoever can write there can't lead out of it: -ELOOP or
 * -ENOTDIR. The descriptor, or -errno.
 */
static inline int path_open_below(int folder_fd, const char *path, int flags)
{
    char name[NAME_MAX + 1];
    const char *next, *part;
    size_t left = strlen(path), len;
    int fd = -1, at = folder_fd;
    for (next = path; path_next_name(&next, &left, &part, &len);) {
        if (len > NAME_MAX)
            fd = -ENAMETOOLONG;
        else {
            memcpy(name, part, len);
            name[len] = '\0';
            fd = openat(at, name,
                        left ? O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
                             : flags | O_NOFOLLOW);
            fd = fd < 0 ? -errno : fd;
        }
        if (at != folder_fd)
            close(at);
        if (fd < 0)
            return fd;
        at = fd;
    }
    if (fd >= 0)
        return fd;
    fd = openat(folder_fd, ".", flags);
    return fd < 0 ? -errno : fd;
}

/* The part behind the last slash. */
static inline const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The part before the last slash, or "." without one. The caller frees it. NULL: no memory. */
static inline char *path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
}

/* A descriptor (O_PATH) of the folder that a path leads to, or -errno. */
static inline int path_open_folder(const char *path)
{
    char *folder = path_folder(path);
    if (!folder)
        return -ENOMEM;
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd;
    free(folder);
    return r;
}

#endif
