/*
 * In a folder that everybody may write to, a name of ours may be taken by somebody else: what
 * is no directory of ours alone is never used.
 */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

/* Add BASE/onepot-UID where BASE is a directory that is not in the list yet. */
static size_t add_folder(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX], size_t count,
                         const char *base)
{
    char real[PATH_MAX], folder[PATH_MAX];
    struct stat st;

    if (!base || !*base || !realpath(base, real) || stat(real, &st) < 0 || !S_ISDIR(st.st_mode))
        return count;
    int n = snprintf(folder, sizeof(folder), "%s/onepot-%u", strcmp(real, "/") ? real : "",
                     (unsigned)geteuid());
    if (n < 0 || (size_t)n + RUNTIME_NAME_MAX >= sizeof(folder))
        return count;
    for (size_t i = 0; i < count; i++)
        if (strcmp(folders[i], folder) == 0)
            return count;
    memcpy(folders[count], folder, sizeof(folder));
    return count + 1;
}

size_t runtime_folders(char folders[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    size_t count = add_folder(folders, 0, getenv("ONEPOT_RUNTIME_DIR"));
    if (count)
        return count; /* whoever sets it wants a world of its own */
    count = add_folder(folders, count, "/dev/shm");
    count = add_folder(folders, count, getenv("TMPDIR"));
    return add_folder(folders, count, "/tmp");
}

int runtime_open(const char *folder, bool create, int *ret_fd)
{
    struct stat st;

    if (create && mkdir(folder, 0700) == 0) {
        if (chmod(folder, 0700) < 0) /* whatever the umask took away */
            return -errno;
    } else if (create && errno != EEXIST) {
        return -errno;
    }
    auto_close int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR ? -EPERM : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return -EPERM;
    *ret_fd = steal_fd(&fd);
    return 0;
}
