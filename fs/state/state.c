/*
 * The folders that hold the slots, and their lock.
 *
 * All decisions (create, share, last one out, heal) are made under the registry's lock, and
 * only they try NAME.lock: a probe at another time could make another process believe that the
 * mount is in use. The wait for that lock is bounded, because its holder may have been stopped.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "runtime.h"
#include "state.h"

#define REGISTRY_WAIT_MS 10000
#define REGISTRY_POLL_MS 2

/* ---- the registry's lock ---- */

static int lock_before(int fd, const struct timespec *start)
{
    struct timespec now;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000 >
            REGISTRY_WAIT_MS)
            return -ETIMEDOUT;
        poll(NULL, 0, REGISTRY_POLL_MS);
    }
    return 0;
}

/* One attempt: -ESTALE if the folder was removed while we waited for its lock. */
static int try_registry_lock(const char *folder, bool create, const struct timespec *start,
                             int *ret_fd)
{
    auto_close int dir = -1;
    struct stat st;
    int r = runtime_open(folder, create, &dir);
    if (r < 0)
        return r;
    auto_close int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    r = lock_before(fd, start);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_nlink == 0)
        return -ESTALE;
    *ret_fd = steal_fd(&fd);
    return 0;
}

int registry_lock(const char *folder, bool create, struct registry *ret_registry)
{
    struct timespec start;
    int r, fd = -1;

    if (strlen(folder) >= sizeof(ret_registry->folder))
        return -ENAMETOOLONG;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        r = try_registry_lock(folder, create, &start, &fd);
    while (r == -ESTALE);
    if (r < 0)
        return r;
    strcpy(ret_registry->folder, folder);
    ret_registry->lock_fd = fd;
    return 0;
}

/* ---- leftovers ---- */

static bool ends_with(const char *name, const char *suffix, size_t *ret_stem)
{
    size_t n = strlen(name), m = strlen(suffix);
    if (n <= m || strcmp(name + n - m, suffix) != 0)
        return false;
    *ret_stem = n - m;
    return true;
}

static bool exists(const char *folder, const char *stem, size_t len, const char *suffix)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%.*s%s", folder, (int)len, stem, suffix);
    return lstat(path, &st) == 0;
}

static bool unlink_unlocked(const char *path)
{
    auto_close int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0;
}

/* Remove a slot that another version of the program made, if nobody holds it. */
static void sweep_foreign(const char *folder, const char *name)
{
    char lock[PATH_MAX], stat[PATH_MAX], dir[PATH_MAX];
    struct slot *slot;
    int r = slot_open(folder, name, &slot);
    if (r == 0)
        slot_close(slot);
    if (r != -EPROTO)
        return;
    snprintf(lock, sizeof(lock), "%s/%s.lock", folder, name);
    snprintf(stat, sizeof(stat), "%s/%s.stat", folder, name);
    snprintf(dir, sizeof(dir), "%s/%s", folder, name);
    auto_close int fd = open(stat, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || (rmdir(dir) < 0 && errno != ENOENT))
        return;
    if (unlink_unlocked(lock))
        unlink(stat);
}

static void sweep_entry(const char *folder, const char *file)
{
    char path[PATH_MAX], name[STATE_NAME_MAX];
    size_t stem;

    if (strlen(file) >= STATE_FILE_MAX || strcmp(file, "lock") == 0)
        return;
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (!exists(folder, file, strlen(file), ".stat") && rmdir(path) == 0)
        return;
    if (ends_with(file, ".lock", &stem) && !exists(folder, file, stem, ".stat")) {
        unlink_unlocked(path);
    } else if (ends_with(file, ".stat", &stem) && stem < sizeof(name)) {
        snprintf(name, sizeof(name), "%.*s", (int)stem, file);
        if (!exists(folder, file, stem, ".lock"))
            unlink_unlocked(path);
        else
            sweep_foreign(folder, name);
    }
}

void registry_sweep(const struct registry *registry)
{
    DIR *dir = opendir(registry->folder);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            sweep_entry(registry->folder, e->d_name);
    closedir(dir);
}

static bool folder_is_empty(const char *folder)
{
    DIR *dir = opendir(folder);
    bool empty = true;
    if (!dir)
        return false;
    for (struct dirent *e; empty && (e = readdir(dir));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
                strcmp(e->d_name, "lock") == 0;
    closedir(dir);
    return empty;
}

static bool has_slots(const char *folder)
{
    DIR *dir = opendir(folder);
    bool has = false;
    size_t stem;
    if (!dir)
        return true;
    for (struct dirent *e; !has && (e = readdir(dir));)
        has = ends_with(e->d_name, ".stat", &stem);
    closedir(dir);
    return has;
}

void registry_unlock(struct registry *registry)
{
    char path[PATH_MAX + 8];
    if (registry->lock_fd < 0)
        return;
    if (!has_slots(registry->folder))
        registry_sweep(registry); /* only leftovers of killed processes remain */
    if (folder_is_empty(registry->folder)) {
        snprintf(path, sizeof(path), "%s/lock", registry->folder);
        unlink(path);
        rmdir(registry->folder);
    }
    flock(registry->lock_fd, LOCK_UN); /* a child may have inherited the descriptor */
    close(registry->lock_fd);
    registry->lock_fd = -1;
}

/* ---- lists ---- */

static int list_add(struct slot_list *list, struct slot *slot)
{
    struct slot **grown = realloc(list->slots, (list->count + 1) * sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    list->slots = grown;
    grown[list->count++] = slot;
    return 0;
}

void slot_list_free(struct slot_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        slot_close(list->slots[i]);
    free(list->slots);
    *list = (struct slot_list){0};
}

/* Add the slot that a file named X.stat represents, if it is one. */
static int list_file(struct slot_list *list, const char *folder, const char *file)
{
    char name[STATE_NAME_MAX];
    struct slot *slot;
    size_t stem;

    if (!ends_with(file, ".stat", &stem) || stem >= sizeof(name))
        return 0;
    memcpy(name, file, stem);
    name[stem] = '\0';
    int r = slot_open(folder, name, &slot);
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return 0;
    r = list_add(list, slot);
    if (r < 0)
        slot_close(slot);
    return r;
}

static int list_folder(struct slot_list *list, const char *folder)
{
    auto_close int fd = -1;
    int r = runtime_open(folder, false, &fd);
    if (r < 0)
        return r == -ENOMEM ? r : 0; /* missing, or not ours */
    DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    steal_fd(&fd);
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        r = list_file(list, folder, e->d_name);
    closedir(dir);
    return r;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct slot *const *)a)->name, (*(struct slot *const *)b)->name);
}

static int list_done(struct slot_list *list, int r, struct slot_list *ret_list)
{
    if (r < 0) {
        slot_list_free(list);
        return r;
    }
    if (list->count > 1)
        qsort(list->slots, list->count, sizeof(list->slots[0]), by_name);
    *ret_list = *list;
    return 0;
}

int registry_list(const struct registry *registry, struct slot_list *ret_list)
{
    struct slot_list list = {0};
    int r = list_folder(&list, registry->folder);
    return list_done(&list, r, ret_list);
}

int state_list(struct slot_list *ret_list)
{
    char(*folders)[PATH_MAX] = malloc(RUNTIME_FOLDERS_MAX * PATH_MAX);
    struct slot_list list = {0};
    int r = 0;

    if (!folders)
        return -ENOMEM;
    size_t count = runtime_folders(folders);
    for (size_t i = 0; i < count && r == 0; i++)
        r = list_folder(&list, folders[i]);
    free(folders);
    return list_done(&list, r, ret_list);
}
