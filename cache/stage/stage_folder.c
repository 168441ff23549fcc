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
#include "place.h"
#include "runtime.h"
#include "source.h"

struct stage_places stage_places(const char *given)
{
    struct stage_places places;
    struct stat st;
    if (!given)
        places.count = runtime_places(RUNTIME_COPIES, places.path);
    else
        places.count = path_real(given, places.path[0], NULL) == 0 &&
                       stat(places.path[0], &st) == 0 && S_ISDIR(st.st_mode);
    return places;
}

/* ---- the folder and its lock ---- */

static int folder_path(const char *place, char ret_path[PATH_MAX])
{
    int n = snprintf(ret_path, PATH_MAX, "%s/onepot-stage-%u", strcmp(place, "/") ? place : "",
                     place_uid());
    return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

void stage_folder_explain(const char *place, int err, char *buf, size_t size)
{
    char path[PATH_MAX];
    if (folder_path(place, path) == 0)
        runtime_explain(path, err, buf, size);
    else
        snprintf(buf, size, "%s: %s", place, fault_errno(err));
}

int stage_folder_lock(const char *place, bool create, struct registry *ret_folder)
{
    char path[PATH_MAX];
    int r = folder_path(place, path);
    return r < 0 ? r : registry_lock(path, create, ret_folder);
}

/* ---- files ---- */

void stage_folder_remove(const struct registry *folder, const char *name)
{
    registry_unlink(folder->fd, name, ".copy");
    registry_unlink(folder->fd, name, ".state");
}

static int folder_call(const struct registry *folder, const char *name,
                       int (*fn)(void *ctx, const struct stage_file *file), void *ctx)
{
    struct stage_file file = {.folder = folder, .name = name};
    auto_close int fd = -1;
    int r = registry_open(folder->fd, name, ".state", O_RDWR, &fd);
    if (r == 0)
        stage_state_map(fd, &file.state);
    file.fd = r < 0 ? r : fd;
    r = fn(ctx, &file);
    stage_state_unmap(file.state);
    return r;
}

int stage_folder_each(const struct registry *folder,
                      int (*fn)(void *ctx, const struct stage_file *file), void *ctx)
{
    char name[STAGE_NAME_MAX];
    DIR *dir = path_list(folder->fd);
    int r = 0;
    if (!dir)
        return -errno;
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        if (registry_name(e->d_name, ".state", name, sizeof(name)) ||
            (registry_name(e->d_name, ".copy", name, sizeof(name)) &&
             !registry_has(folder->fd, name, ".state")))
            r = folder_call(folder, name, fn, ctx);
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
        if (space.f_blocks == 0) /* the filesystem has no limit */
            room.free_bytes = room.memory_bytes;
    }
    *ret_room = room;
    return 0;
}
