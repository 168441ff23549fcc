/*
 * The folders that hold the slots, and their lock.
 *
 * All decisions (create, share, last one out, heal) are made under the registry's lock, and
 * only they try NAME.lock: a probe at another time could make another process believe that the
 * mount is in use.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "path.h"
#include "runtime.h"
#include "state.h"
#include "vector.h"

/* ---- the registry's lock ---- */

int registry_lock(const char *folder, bool create, struct registry *ret_registry)
{
    auto_close int folder_fd = -1;
    int fd, r;

    if (strlen(folder) >= sizeof(ret_registry->folder))
        return -ENAMETOOLONG;
    r = runtime_lock(folder, create, &folder_fd, &fd);
    if (r < 0)
        return r;
    strcpy(ret_registry->folder, folder);
    ret_registry->lock_fd = fd;
    return 0;
}

/* ---- leftovers ---- */

static bool unlink_unlocked(const char *path)
{
    auto_close int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0;
}

/* Remove a slot that another version of the program made, if nobody holds it. */
static void sweep_foreign(const char *folder, const char *name)
{
    char path[PATH_MAX];
    auto_slot struct slot *slot = NULL;

    if (slot_open(folder, name, &slot) != -EPROTO)
        return;
    snprintf(path, sizeof(path), "%s/%s.stat", folder, name);
    auto_close int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (rmdir(path) < 0 && errno != ENOENT)
        return;
    snprintf(path, sizeof(path), "%s/%s.lock", folder, name);
    if (unlink_unlocked(path)) {
        snprintf(path, sizeof(path), "%s/%s.stat", folder, name);
        unlink(path);
    }
}

static bool has_file(int folder_fd, const char *name, const char *suffix)
{
    char file[STATE_FILE_MAX];
    struct stat st;
    snprintf(file, sizeof(file), "%s%s", name, suffix);
    return fstatat(folder_fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static void sweep_entry(const char *folder, int folder_fd, const char *file)
{
    char path[PATH_MAX], name[STATE_NAME_MAX];

    if (strlen(file) >= STATE_FILE_MAX || strcmp(file, "lock") == 0)
        return;
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (!has_file(folder_fd, file, ".stat") && rmdir(path) == 0)
        return;
    if (runtime_cut_suffix(file, ".so", name, sizeof(name))) {
        if (!has_file(folder_fd, name, ".stat"))
            unlink(path);
    } else if (runtime_cut_suffix(file, ".lock", name, sizeof(name))) {
        if (!has_file(folder_fd, name, ".stat"))
            unlink_unlocked(path);
    } else if (runtime_cut_suffix(file, ".stat", name, sizeof(name))) {
        if (has_file(folder_fd, name, ".lock"))
            sweep_foreign(folder, name);
        else
            unlink_unlocked(path);
    }
}

void registry_sweep(const struct registry *registry)
{
    auto_closedir DIR *dir = opendir(registry->folder);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (!path_is_dots(e->d_name))
            sweep_entry(registry->folder, dirfd(dir), e->d_name);
}

/* Find out what a folder holds besides its lock. If it can't be read it counts as in use. */
static void look_into(const char *folder, bool *ret_slots, bool *ret_others)
{
    char name[STATE_NAME_MAX];
    auto_closedir DIR *dir = opendir(folder);

    *ret_slots = *ret_others = !dir;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        *ret_slots |= runtime_cut_suffix(e->d_name, ".stat", name, sizeof(name));
        *ret_others |= !path_is_dots(e->d_name) && strcmp(e->d_name, "lock") != 0;
    }
}

void registry_unlock(struct registry *registry)
{
    bool slots, others;
    if (registry->lock_fd < 0)
        return;
    look_into(registry->folder, &slots, &others);
    if (!slots && others) {
        registry_sweep(registry); /* only leftovers of killed processes remain */
        look_into(registry->folder, &slots, &others);
    }
    runtime_unlock(registry->folder, &registry->lock_fd, !others);
}

/* ---- lists ---- */

void slot_list_free(struct slot_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        slot_close(list->at[i]);
    vector_free(list);
}

/* Add the slot that a file named X.stat represents, if it is one. */
static int list_file(struct slot_list *list, const char *folder, const char *file)
{
    char name[STATE_NAME_MAX];
    auto_slot struct slot *slot = NULL;

    if (!runtime_cut_suffix(file, ".stat", name, sizeof(name)))
        return 0;
    int r = slot_open(folder, name, &slot);
    if (r == 0)
        r = vector_push(list, slot);
    if (r == 0)
        slot = NULL;
    return r == -ENOMEM ? r : 0;
}

static int list_folder(struct slot_list *list, const char *folder)
{
    auto_close int fd = -1;
    int r = runtime_open(folder, false, &fd);
    if (r < 0)
        return r == -ENOMEM ? r : 0; /* missing, or not ours */
    auto_closedir DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    steal_fd(&fd);
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        r = list_file(list, folder, e->d_name);
    return r;
}

static int state_by_name(const void *a, const void *b)
{
    return strcmp((*(struct slot *const *)a)->name, (*(struct slot *const *)b)->name);
}

static int list_done(struct slot_list *list, int r, struct slot_list *ret_list)
{
    if (r < 0)
        slot_list_free(list);
    if (list->count > 1)
        qsort(list->at, list->count, sizeof(list->at[0]), state_by_name);
    *ret_list = *list;
    return r;
}

int registry_list(const struct registry *registry, struct slot_list *ret_list)
{
    struct slot_list list = {0};
    int r = list_folder(&list, registry->folder);
    return list_done(&list, r, ret_list);
}

int state_list(struct slot_list *ret_list)
{
    char folders[RUNTIME_FOLDERS_MAX][PATH_MAX];
    struct slot_list list = {0};
    size_t count = runtime_folders(folders);
    int r = 0;

    for (size_t i = 0; i < count && r == 0; i++)
        r = list_folder(&list, folders[i]);
    return list_done(&list, r, ret_list);
}
