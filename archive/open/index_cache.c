/*
 * The cache folder: indexes that can't lie beside their archives, and indexes of unions and
 * views. Nobody asks for them by name, so unused ones have to go by themselves.
 *
 * Each time that one is saved, the others are looked at: one that was not used for 90 days is
 * removed, and those used longest ago are removed until the rest has room within the bound. The
 * time of access is the time of use. It is set here, at most once a day, since many filesystems
 * are mounted so that reading leaves it alone.
 *
 * In use. Whoever maps an index of local storage holds a shared lock on it (flock): on the open
 * file that is mapped, so that the lock lasts as long as the mapping (overlayfs maps another
 * one). It can't be removed meanwhile. An index on a network filesystem is read once and never
 * mapped, and locks there may hang: none is taken. A process that opened a file just before it
 * was removed goes on with it, or makes another.
 *
 * A name alone decides nothing. Files are removed only from a folder of this user to which
 * nobody else can write, by a descriptor of it, and only regular files whose name ends as a
 * cached index's does.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "file_id.h"
#include "leftovers.h"
#include "numbers.h"
#include "path.h"
#include "place.h"
#include "pot_private.h"
#include "vector.h"

#define DAY_S 86400
#define KEPT_DAYS 90
#define KEPT_BYTES (UINT64_C(2) << 30)
#define PATH_KEY_LEN 16 /* hexadecimal digits of the hash of an archive's path */

enum { NAME_PART = 100 }; /* of the archive's name, within the name of its index */

/* ---- names ---- */

/* The folder for indexes that can't lie beside their archive. -ENOENT: there is none. */
static int cache_folder(char **ret_folder)
{
    const char *base = getenv("XDG_CACHE_HOME");
    if (base && base[0] == '/')
        return asprintf(ret_folder, "%s/onepot", base) < 0 ? -ENOMEM : 0;
    base = getenv("HOME");
    if (!base || base[0] != '/')
        return -ENOENT;
    return asprintf(ret_folder, "%s/.cache/onepot", base) < 0 ? -ENOMEM : 0;
}

int index_cache_path(const char *name, const char *key, char **ret_path)
{
    auto_free char *folder = NULL;
    int r = cache_folder(&folder);
    if (r < 0)
        return r;
    return asprintf(ret_path, "%s/%.*s-%s" INDEX_SUFFIX, folder, NAME_PART, name, key) < 0
               ? -ENOMEM
               : 0;
}

int pot_cached_index_path(const char *archive, uint64_t offset, bool is_joined, char **ret_path)
{
    char key[PATH_KEY_LEN + INDEX_TAG_LEN], tag[INDEX_TAG_LEN];
    auto_free char *full = realpath(archive, NULL);
    if (!full)
        return -errno;
    uint64_t hash = XXH3_64bits(full, strlen(full));
    snprintf(key, sizeof(key), "%016" PRIx64 "%s", hash,
             saved_index_tag(offset, is_joined, tag));
    return index_cache_path(strrchr(full, '/') + 1, key, ret_path);
}

/* Does the name (`len` bytes) end as index_cache_path makes them? */
static bool cache_names(const void *unused, const char *name, size_t len)
{
    size_t suffix = strlen(INDEX_SUFFIX);
    (void)unused;
    if (len <= suffix || memcmp(name + len - suffix, INDEX_SUFFIX, suffix) != 0)
        return false;
    const char *end = name + len - suffix, *dash = memrchr(name, '-', len - suffix);
    if (!dash)
        return false;
    size_t digits = strspn(dash + 1, "0123456789abcdef");
    const char *rest = dash + 1 + digits;
    if (*rest == '@' && rest[1] != INDEX_JOINED[1])
        rest += 1 + strspn(rest + 1, "0123456789");
    if (strncmp(rest, INDEX_JOINED, strlen(INDEX_JOINED)) == 0)
        rest += strlen(INDEX_JOINED);
    return rest == end && (digits == PATH_KEY_LEN || digits == RECIPE_NAME_LEN);
}

/* ---- use ---- */

void index_cache_used(const char *path)
{
    static const struct timespec now[] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    struct stat st;
    if (lstat(path, &st) == 0 && time(NULL) - st.st_atim.tv_sec > DAY_S)
        utimensat(AT_FDCWD, path, now, AT_SYMLINK_NOFOLLOW);
}

void index_cache_lock(int fd)
{
    if (storage_of(fd).is_local)
        flock(fd, LOCK_SH | LOCK_NB);
}

/* ---- removing ---- */

struct cached {
    int64_t used_sec;
    uint64_t bytes;
    char *name;
};

typedef VECTOR(struct cached) cached_list;

static int by_use(const void *a, const void *b)
{
    int64_t x = ((const struct cached *)a)->used_sec, y = ((const struct cached *)b)->used_sec;
    return (x < y) - (x > y);
}

static void cached_free(cached_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->at[i].name);
    vector_free(list);
}

/* All of the folder, the last used first. */
static int cached_find(int folder, cached_list *list)
{
    struct stat st;
    auto_closedir DIR *dir = path_list(folder);
    if (!dir)
        return -errno;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!cache_names(NULL, e->d_name, strlen(e->d_name)) ||
            fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
            continue;
        int64_t used =
            st.st_atim.tv_sec > st.st_mtim.tv_sec ? st.st_atim.tv_sec : st.st_mtim.tv_sec;
        char *name = strdup(e->d_name);
        if (!name || vector_push(list, (struct cached){used, (uint64_t)st.st_size, name}) < 0) {
            free(name);
            return -ENOMEM;
        }
    }
    if (list->count > 0)
        qsort(list->at, list->count, sizeof(*list->at), by_use);
    return 0;
}

/* 0; -EBUSY: it is in use. */
static int cached_remove(int folder, const char *name)
{
    struct stat st;
    auto_close int fd =
        openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (storage_of(fd).is_local && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return -EBUSY;
    if (file_is_named(folder, name, fd, &st) != 1 || !S_ISREG(st.st_mode))
        return -ENOENT; /* another one was saved there meanwhile */
    return unlinkat(folder, name, 0) < 0 ? -errno : 0;
}

/* Keep `new`, all in use, and as much of the rest, used since `oldest_sec`, as has room. */
static int cache_bound(int folder, const char *new, uint64_t bytes, int64_t oldest_sec,
                       struct pot_cache *cache)
{
    cached_list list = {0};
    uint64_t kept = 0;
    int r = cached_find(folder, &list);
    for (size_t i = 0; i < list.count; i++) {
        const struct cached *c = &list.at[i];
        bool is_new = new &&strcmp(c->name, new) == 0;
        bool fits = c->used_sec >= oldest_sec && kept <= bytes && c->bytes <= bytes - kept;
        int err = is_new || fits ? -EEXIST : cached_remove(folder, c->name);
        if (err == 0) {
            cache->removed++;
            cache->removed_bytes += c->bytes;
        } else if (err == -EEXIST || err == -EBUSY)
            kept += c->bytes;
        else if (err != -ENOENT && r == 0)
            r = err;
        cache->in_use += err == -EBUSY;
    }
    cached_free(&list);
    leftovers_remove(folder, &(struct leftovers){.match = cache_names});
    return r;
}

/* Of a place in which nobody else can replace what we put there. */
static int cache_place(const char *path, struct fault *fault, struct place *ret_place)
{
    struct place_refusal refusal;
    char text[PATH_MAX + 256];
    int r = place_open(path, PLACE_SHARED, ret_place, &refusal);
    return r == 0 || r == -ENOENT ? r
                                  : fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                                              place_explain(&refusal, text, sizeof(text)));
}

/* Open the folder, if nobody else can put anything into it. */
static int cache_open(const char *path, struct fault *fault, int *ret_fd)
{
    struct place place;
    int r = cache_place(path, fault, &place);
    if (r < 0)
        return r;
    if (!S_ISDIR(place.st.st_mode) || !place_is_ours(&place.st) || place.st.st_mode & 0002) {
        close(place.fd);
        return fault_set(fault, -EPERM, NULL, FAULT_NO_OFFSET,
                         "%s is no folder of this user alone", path);
    }
    *ret_fd = place.fd;
    return 0;
}

/* Make the missing folders of a path, for this user alone. */
static int cache_make(char *path, struct fault *fault)
{
    struct place above;
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return -ENOENT;
    *slash = '\0';
    int r = cache_place(path, fault, &above);
    if (r == -ENOENT && (r = cache_make(path, fault)) == 0)
        r = cache_place(path, fault, &above);
    if (r == 0) {
        if (mkdirat(above.fd, slash + 1, 0700) == 0)
            fchmodat(above.fd, slash + 1, 0700, 0); /* undo the umask */
        else if (errno != EEXIST)
            r = fault_set(fault, -errno, NULL, FAULT_NO_OFFSET, "no folder can be made in %s",
                          path);
        close(above.fd);
    }
    *slash = '/';
    return r;
}

int index_cache_open(const char *path, struct fault *fault, int *ret_fd)
{
    auto_free char *folder = path_folder(path);
    int r = folder ? cache_open(folder, fault, ret_fd) : -ENOMEM;
    if (r == -ENOENT && (r = cache_make(folder, fault)) == 0)
        r = cache_open(folder, fault, ret_fd);
    return r;
}

void index_cache_saved(int folder_fd, const char *path)
{
    const char *text = getenv("ONEPOT_INDEX_CACHE");
    struct pot_cache ignored = {0};
    uint64_t bytes;
    if (!text || size_parse(text, &bytes) < 0)
        bytes = KEPT_BYTES;
    cache_bound(folder_fd, path_base(path), bytes, time(NULL) - KEPT_DAYS * DAY_S, &ignored);
}

int pot_clean_cache(struct pot_cache *ret_cache, struct fault *fault)
{
    auto_free char *folder = NULL;
    auto_close int fd = -1;
    *ret_cache = (struct pot_cache){0};
    int r = cache_folder(&folder);
    if (r == 0)
        r = cache_open(folder, fault, &fd);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = cache_bound(fd, NULL, 0, INT64_MAX, ret_cache);
    return r < 0 ? fault_set_errno(fault, r, NULL, folder) : 0;
}
