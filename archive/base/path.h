/*
 * A path in two parts: its folder and the name in it.
 */
#ifndef ONEPOT_PATH_H
#define ONEPOT_PATH_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* "." or "..", as in a folder's list. */
static inline bool path_is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
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
