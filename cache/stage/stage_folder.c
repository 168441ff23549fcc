/*
 * The folder of the copies. It may lie in a directory that everybody can write to. So it is
 * opened without following a link, and the checks look at the open folder, not at its name.
 */
#include "stage_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "path.h"
#include "runtime.h"
#include "source.h"

struct stage_places stage_places(const char *given)
{
    struct stage_places places;
    struct stat st;
    if (!given)
        places.count = runtime_places(places.path);
    else
        places.count = realpath(given, places.path[0]) && stat(places.path[0], &st) == 0 &&
                       S_ISDIR(st.st_mode);
    return places;
}

/* ---- the folder and its lock ---- */

int stage_folder_lock(const char *place, bool create, struct stage_folder *ret_folder)
{
    struct stage_folder folder = {.fd = -1, .lock_fd = -1};
    int n = snprintf(folder.path, sizeof(folder.path), "%s/onepot-stage-%u",
                     strcmp(place, "/") ? place : "", runtime_uid());
    if (n < 0 || (size_t)n >= sizeof(folder.path))
        return -ENAMETOOLONG;
    int r = runtime_lock(folder.path, create, &folder.fd, &folder.lock_fd);
    if (r == 0)
        *ret_folder = folder;
    return r;
}

/* A stream of the folder's entries with a descriptor of its own. */
static DIR *folder_list(const struct stage_folder *folder)
{
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0)
        close(fd);
    return dir;
}

static bool folder_is_empty(const struct stage_folder *folder)
{
    DIR *dir = folder_list(folder);
    bool empty = dir != NULL;
    for (struct dirent *e; empty && (e = readdir(dir));)
        empty = path_is_dots(e->d_name) || strcmp(e->d_name, "lock") == 0;
    if (dir)
        closedir(dir);
    return empty;
}

void stage_folder_unlock(struct stage_folder *folder)
{
    if (folder->lock_fd < 0)
        return;
    runtime_unlock(folder->path, &folder->lock_fd, folder_is_empty(folder));
    close(steal_fd(&folder->fd));
}

/* ---- files ---- */

int stage_folder_open(const struct stage_folder *folder, const char *name, const char *suffix,
                      bool create, int *ret_fd)
{
    char file[STAGE_NAME_MAX + 16];
    struct stat st;
    snprintf(file, sizeof(file), "%s%s", name, suffix);
    int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0);
    auto_close int fd = openat(folder->fd, file, flags, 0600);
    if (fd < 0)
        return errno == ELOOP ? -EPERM : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EPERM;
    *ret_fd = steal_fd(&fd);
    return 0;
}

void stage_folder_remove(const struct stage_folder *folder, const char *name)
{
    char file[STAGE_NAME_MAX + 16];
    static const char *const suffixes[] = {".copy", ".state"};
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        snprintf(file, sizeof(file), "%s%s", name, suffixes[i]);
        unlinkat(folder->fd, file, 0);
    }
}

static bool folder_has_state(const struct stage_folder *folder, const char *name)
{
    char file[STAGE_NAME_MAX + 16];
    struct stat st;
    snprintf(file, sizeof(file), "%s.state", name);
    return fstatat(folder->fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int stage_folder_each(const struct stage_folder *folder,
                      int (*fn)(void *ctx, const struct stage_folder *folder, const char *name),
                      void *ctx)
{
    char name[STAGE_NAME_MAX];
    DIR *dir = folder_list(folder);
    int r = 0;
    if (!dir)
        return -errno;
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        if (runtime_cut_suffix(e->d_name, ".state", name, sizeof(name)) ||
            (runtime_cut_suffix(e->d_name, ".copy", name, sizeof(name)) &&
             !folder_has_state(folder, name)))
            r = fn(ctx, folder, name);
    closedir(dir);
    return r;
}

/* ---- room ---- */

int stage_room_of(const char *place, struct stage_room *ret_room)
{
    struct statvfs space;
    auto_close int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &space) < 0)
        return -errno;
    struct storage storage = storage_of(fd);
    struct stage_room room = {.memory_bytes = UINT64_MAX, .is_local = storage.is_local};
    if (__builtin_mul_overflow((uint64_t)space.f_bavail, (uint64_t)space.f_frsize,
                               &room.free_bytes))
        room.free_bytes = INT64_MAX;
    if (storage.is_memory) {
        room.memory_bytes = budget_free_bytes("");
        if (space.f_blocks == 0) /* the filesystem has no limit of its own */
            room.free_bytes = room.memory_bytes;
    }
    *ret_room = room;
    return 0;
}
