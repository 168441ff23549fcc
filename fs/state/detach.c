/*
 * The steps of becoming a daemon that every caller shares.
 *
 * Core dumps and the OOM score are left alone. A crash of the daemon should be visible to the
 * node's administrators, and its dump holds no page of the archive (file mappings are not
 * dumped). As for the OOM score, an ordinary user could only make the daemon a likelier victim.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "detach.h"

#define SEARCH_MAX 65536 /* how many descriptors to try where /proc is missing */

int detach_note_inherited(struct inherited *ret_inherited)
{
    struct inherited list = {0};
    auto_closedir DIR *dir = opendir("/proc/self/fd");
    int r = 0;

    for (struct dirent *e; r == 0 && dir && (e = readdir(dir));) {
        int fd = atoi(e->d_name);
        if (fd > 2 && fd != dirfd(dir))
            r = vector_push(&list, fd);
    }
    for (int fd = 3; !dir && fd < SEARCH_MAX && r == 0; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            r = vector_push(&list, fd);
    if (r < 0)
        vector_free(&list);
    *ret_inherited = list;
    return r;
}

int detach_open_null(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    fd = memfd_create("onepot-null", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0)
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_WRITE);
    return fd;
}

int detach_here(const struct inherited *inherited, int log_fd)
{
    auto_close int null = detach_open_null();
    if (null < 0)
        return -errno;
    setsid(); /* fails only for a group leader, which a forked child is not */
    if (chdir("/") < 0)
        return -errno;
    umask(077);
    if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log_fd >= 0 ? log_fd : null, 2) < 0)
        return -errno;
    for (size_t i = 0; i < inherited->count; i++)
        close(inherited->at[i]);
    return 0;
}
