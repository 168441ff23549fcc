/*
 * In a folder writable by all, another user may take our name. So we never use anything but a
 * directory that is ours alone.
 */
#include "runtime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "fault.h"
#include "file_id.h"
#include "path.h"
#include "place.h"

#define AGAIN_MOST 1000 /* times a removed folder is created again */

/* Add a directory that is not in the list yet. */
static size_t runtime_add_place(char places[RUNTIME_FOLDERS_MAX][PATH_MAX], size_t count,
                                const char *path)
{
    char real[PATH_MAX];
    struct stat st;

    if (!path || path[0] != '/' || path_real(path, real, NULL) < 0 || stat(real, &st) < 0 ||
        !S_ISDIR(st.st_mode))
        return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(places[i], real) == 0)
            return count;
    memcpy(places[count], real, sizeof(real));
    return count + 1;
}

size_t runtime_places(enum runtime_use use, char places[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    char session[32];
    const char *own = getenv("ONEPOT_RUNTIME_DIR");
    size_t count = 0;
    if (own && *own) {
        if (!runtime_add_place(places, 0, own)) /* opening it says why */
            snprintf(places[0], sizeof(places[0]), "%s", own);
        return 1;
    }
    count = runtime_add_place(places, count, "/dev/shm");
    count = runtime_add_place(places, count, getenv("TMPDIR"));
    count = runtime_add_place(places, count, "/tmp");
    if (use == RUNTIME_COPIES)
        return count;
    snprintf(session, sizeof(session), "/run/user/%u", place_uid());
    count = runtime_add_place(places, count, getenv("XDG_RUNTIME_DIR"));
    return runtime_add_place(places, count, session);
}

size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    size_t places = runtime_places(RUNTIME_STATE, folders), count = 0;
    unsigned uid = place_uid();

    for (size_t i = 0; i < places; i++) {
        char folder[PATH_MAX];
        int n = snprintf(folder, sizeof(folder), "%s/onepot-%u",
                         strcmp(folders[i], "/") ? folders[i] : "", uid);
        if (n >= 0 && (size_t)n + RUNTIME_NAME_MAX < sizeof(folder))
            memcpy(folders[count++], folder, sizeof(folder));
    }
    return count;
}

/* Split "/dev/shm/onepot-1000", and judge and open the place before the last slash. */
static int runtime_open_place(const char *folder, const char **ret_name,
                              struct place *ret_place, struct place_refusal *ret_refusal)
{
    char above[PATH_MAX];
    const char *slash = strrchr(folder, '/');
    int n = slash ? snprintf(above, sizeof(above), "%.*s", (int)(slash - folder), folder) : -1;

    if (n < 0 || (size_t)n >= sizeof(above))
        return -EINVAL;
    *ret_name = slash + 1;
    return place_open(n ? above : "/", PLACE_SHARED, ret_place, ret_refusal);
}

/* -EPERM, -EXDEV for any entry of this name that is not a folder of ours, closed to others. */
static int runtime_enter(int place_fd, const char *name, struct stat *ret_st, int *ret_fd)
{
    auto_close int entry = -1;
    int r = place_open_entry(place_fd, name, &entry);
    if (r < 0)
        return r;
    if (fstat(entry, ret_st) < 0)
        return -errno;
    if (!S_ISDIR(ret_st->st_mode) || !place_is_ours(ret_st) || (ret_st->st_mode & 077) != 0)
        return -EPERM;
    int fd = openat(entry, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

/* With `create`, -ENOENT means that another process removed the folder again meanwhile. */
static int runtime_open_once(const char *folder, bool create, int *ret_fd,
                             struct place_refusal *ret_refusal)
{
    struct place place;
    const char *name;
    int r = runtime_open_place(folder, &name, &place, ret_refusal);

    if (r < 0)
        return create && r == -ENOENT ? -ENOTDIR : r;
    if (create && mkdirat(place.fd, name, 0700) == 0)
        r = fchmodat(place.fd, name, 0700, 0) < 0 ? -errno : 0; /* undo the umask */
    else if (create && errno != EEXIST)
        r = -errno;
    ret_refusal->st = (struct stat){0};
    if (r == 0)
        r = runtime_enter(place.fd, name, &ret_refusal->st, ret_fd);
    close(place.fd);
    ret_refusal->err = -r;
    snprintf(ret_refusal->path, sizeof(ret_refusal->path), "%s", folder);
    return r == -EXDEV ? -EPERM : r;
}

int runtime_open(const char *folder, bool create, int *ret_fd)
{
    struct place_refusal refusal;
    int r = runtime_open_once(folder, create, ret_fd, &refusal);
    for (int again = 0; create && r == -ENOENT && again < AGAIN_MOST; again++)
        r = runtime_open_once(folder, create, ret_fd, &refusal);
    return r;
}

const char *runtime_explain(const char *folder, int err, char *buf, size_t size)
{
    struct place_refusal refusal;
    auto_close int fd = -1;

    int r = runtime_open_once(folder, false, &fd, &refusal);
    if (r == -EPERM)
        place_explain(&refusal, buf, size);
    else if (r == -ENOENT && err == -ENOTDIR)
        snprintf(buf, size, "%s: the folder that it would be in does not exist", folder);
    else
        snprintf(buf, size, "%s: %s", folder, fault_errno(err));
    return buf;
}

static bool runtime_is_empty(int folder_fd)
{
    auto_closedir DIR *dir = path_list(folder_fd);
    bool empty = dir != NULL;

    for (struct dirent *e; empty && (e = readdir(dir));)
        empty = path_is_dots(e->d_name) || strcmp(e->d_name, "lock") == 0;
    return empty;
}

void runtime_remove(const char *folder, int folder_fd)
{
    struct place place;
    const char *name;

    if (!runtime_is_empty(folder_fd) || runtime_open_place(folder, &name, &place, NULL) < 0)
        return;
    if (file_is_named(place.fd, name, folder_fd, NULL) == 1) {
        unlinkat(folder_fd, "lock", 0);
        unlinkat(place.fd, name, AT_REMOVEDIR);
    }
    close(place.fd);
}
