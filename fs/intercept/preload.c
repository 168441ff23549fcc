#include "preload.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "path.h"
#include "fault.h"
#include "place.h"
#include "write_at.h"

#define DAY_S 86400
#define KEPT_DAYS 90

static int refuse(char why[PRELOAD_WHY_MAX], const char *path, int r, const char *reason)
{
    snprintf(why, PRELOAD_WHY_MAX, "%s: %s", path, reason ? reason : fault_errno(r));
    return r;
}

static int open_closed(const char *path, struct place *ret_place, char why[PRELOAD_WHY_MAX])
{
    int r = place_open(path, PLACE_CLOSED, ret_place);
    if (r < 0)
        place_explain(ret_place, why, PRELOAD_WHY_MAX);
    return r;
}

/* ---- the library itself ---- */

/* Has it the bytes of the library that belongs to this program? */
static bool preload_is_same(const struct place *place)
{
    auto_close int fd = open(place->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    auto_free unsigned char *bytes = malloc(preload_library_bytes);

    return fd >= 0 && bytes && S_ISREG(place->st.st_mode) &&
           (size_t)place->st.st_size == preload_library_bytes &&
           read_at(fd, bytes, preload_library_bytes, 0) == 0 &&
           memcmp(bytes, preload_library, preload_library_bytes) == 0;
}

/*
 * Is it there, the same, and can it be loaded and named? ld.so splits LD_PRELOAD at spaces and
 * colons, and replaces what follows a dollar sign.
 */
static int preload_check(const char *path, char ret_path[PATH_MAX], char why[PRELOAD_WHY_MAX])
{
    struct place place;
    struct statvfs fs;
    int r = open_closed(path, &place, why);

    if (r < 0)
        return r;
    auto_close int fd = place.fd;
    if (!preload_is_same(&place))
        return refuse(why, path, -ESTALE, "it is of another version");
    if (fstatvfs(fd, &fs) < 0 || fs.f_flag & ST_NOEXEC)
        return refuse(why, path, -ENOEXEC, "programs can't be run from its filesystem");
    if (strpbrk(place.path, " :$") || strlen(place.path) >= PRELOAD_PATH_BYTES)
        return refuse(why, path, -EINVAL, "LD_PRELOAD can't name such a path");
    strcpy(ret_path, place.path);
    return 0;
}

/* ---- copies ---- */

/* Remove copies of other versions that nobody has used for long. */
static void remove_old(int folder)
{
    struct stat st;
    time_t now = time(NULL);
    auto_closedir DIR *dir = path_list(folder);

    for (const struct dirent *e; dir && (e = readdir(dir));)
        if (fnmatch("libonepot-io-*.so*", e->d_name, 0) == 0 &&
            fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            now - st.st_mtime > KEPT_DAYS * DAY_S)
            unlinkat(folder, e->d_name, 0);
}

/*
 * Whole or not at all under its name, as several processes may write it at once. A user to whom
 * root changes may read root's.
 */
static int write_copy(int folder)
{
    char temporary[80];
    snprintf(temporary, sizeof(temporary), "%s.%d", preload_library_name, (int)getpid());
    unlinkat(folder, temporary, 0); /* of a process that was killed */
    auto_close int fd =
        openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = write_at(fd, preload_library, preload_library_bytes, 0);
    if (r == 0 && (fchmod(fd, geteuid() == 0 ? 0644 : 0600) < 0 ||
                   renameat(folder, temporary, folder, preload_library_name) < 0))
        r = -errno;
    if (r < 0)
        unlinkat(folder, temporary, 0);
    return r;
}

/* Keep the library's mtime within a day of its last use. */
static void touch_copy(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && time(NULL) - st.st_mtime > DAY_S)
        utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

/* A copy in `base`/onepot, each folder of which is judged before anything is made in it. */
static int find_copy(const char *base, char ret_path[PATH_MAX], char why[PRELOAD_WHY_MAX])
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    struct place place;

    if (snprintf(folder, sizeof(folder), "%s/onepot", base) >= PATH_MAX)
        return refuse(why, base, -ENAMETOOLONG, NULL);
    snprintf(path, sizeof(path), "%s/%s", folder, preload_library_name);
    if (preload_check(path, ret_path, why) == 0) {
        touch_copy(ret_path);
        return 0;
    }
    int r = open_closed(base, &place, why);
    if (r < 0)
        return r;
    r = mkdirat(place.fd, "onepot", 0700) < 0 ? -errno : 1;
    if (r == 1 && geteuid() == 0)
        r = fchmodat(place.fd, "onepot", 0755, 0) < 0 ? -errno : 0;
    close(place.fd);
    if (r < 0 && r != -EEXIST)
        return refuse(why, folder, r, NULL);
    r = open_closed(folder, &place, why);
    if (r < 0)
        return r;
    r = write_copy(place.fd);
    if (r == 0)
        remove_old(place.fd);
    close(place.fd);
    return r < 0 ? refuse(why, path, r, NULL) : preload_check(path, ret_path, why);
}

static int find_users_copy(char ret_path[PATH_MAX], char why[PRELOAD_WHY_MAX])
{
    char base[PATH_MAX];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool has_cache = cache && *cache == '/';

    if (!has_cache && (!home || *home != '/'))
        return refuse(why, "HOME", -ENOENT, "it names no folder");
    if (snprintf(base, sizeof(base), "%s%s", has_cache ? cache : home,
                 has_cache ? "" : "/.cache") >= PATH_MAX)
        return refuse(why, "HOME", -ENAMETOOLONG, NULL);
    for (size_t len = strlen(base); len > 1 && base[len - 1] == '/';)
        base[--len] = '\0';
    char *slash = strrchr(base, '/');
    if (access(base, F_OK) < 0 && slash > base) { /* as the folder of indexes is made */
        struct place parent;
        *slash = '\0';
        int r = open_closed(base, &parent, why);
        *slash = '/';
        if (r < 0)
            return r;
        mkdirat(parent.fd, slash + 1, 0700);
        close(parent.fd);
    }
    return find_copy(base, ret_path, why);
}

int preload_find(char ret_path[PATH_MAX], char ret_why[PRELOAD_WHY_MAX])
{
    if (preload_check(PRELOAD_FOLDER "/libonepot-io.so", ret_path, ret_why) == 0 ||
        (geteuid() == 0 && find_copy("/var/cache", ret_path, ret_why) == 0))
        return 0;
    return find_users_copy(ret_path, ret_why);
}

/* ---- LD_PRELOAD ---- */

/* Is it a library of ours, of any version? The first ones lay beside the state of mounts. */
static bool is_ours(const char *path)
{
    const char *name = strrchr(path, '/'), *folder = name;

    while (folder > path && folder[-1] != '/')
        folder--;
    return fnmatch("libonepot-io*.so", name ? name + 1 : path, 0) == 0 ||
           (folder && strncmp(folder, "onepot-", 7) == 0 &&
            folder + 7 + strspn(folder + 7, "0123456789") == name);
}

/* Could nobody else put a file there? What is missing is judged by the folder that is not. */
static bool is_safe(const char *path)
{
    char upper[PATH_MAX];
    struct place place;
    int r = -ENAMETOOLONG;

    if (strlen(path) < sizeof(upper))
        r = place_open(strcpy(upper, path), PLACE_CLOSED, &place);
    for (char *slash; r == -ENOENT && (slash = strrchr(upper, '/'));) {
        slash[slash == upper] = '\0';
        r = place_open(upper, PLACE_CLOSED, &place);
    }
    if (r == 0)
        close(place.fd);
    return r == 0;
}

int preload_value(const char *library, const char *now, char **ret_value, char **ret_unsafe)
{
    auto_free char *before = strdup(now ? now : "");
    auto_free char *value =
        malloc((now ? strlen(now) : 0) + (library ? strlen(library) : 0) + 3);
    auto_free char *unsafe = NULL;
    char *to = value, *at = before;

    if (!before || !value)
        return -ENOMEM;
    for (const char *entry; (entry = strsep(&at, ": "));) {
        if (*entry && !is_ours(entry))
            to = stpcpy(stpcpy(to, to == value ? "" : ":"), entry);
        else if (*entry && !unsafe && (!library || strcmp(entry, library) != 0) &&
                 !is_safe(entry) && !(unsafe = strdup(entry)))
            return -ENOMEM;
    }
    if (library)
        to = stpcpy(stpcpy(to, to == value ? "" : ":"), library);
    *to = '\0';
    *ret_value = steal_ptr(&value);
    *ret_unsafe = steal_ptr(&unsafe);
    return 0;
}
