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
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "detach.h"

#define SEARCH_MAX 65536 /* how many descriptors to try where /proc is missing */

static int note(struct inherited *list, int fd)
{
    int *grown = realloc(list->fds, (list->count + 1) * sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    list->fds = grown;
    grown[list->count++] = fd;
    return 0;
}

static int note_by_trying(struct inherited *list)
{
    int r = 0;
    for (int fd = 3; fd < SEARCH_MAX && r == 0; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            r = note(list, fd);
    return r;
}

int detach_note_inherited(struct inherited *ret_inherited)
{
    struct inherited list = {0};
    DIR *dir = opendir("/proc/self/fd");
    int r = 0;

    if (!dir)
        r = note_by_trying(&list);
    for (struct dirent *e; r == 0 && dir && (e = readdir(dir));) {
        int fd = atoi(e->d_name);
        if (fd > 2 && fd != dirfd(dir))
            r = note(&list, fd);
    }
    if (dir)
        closedir(dir);
    if (r < 0) {
        detach_free(&list);
        return r;
    }
    *ret_inherited = list;
    return 0;
}

void detach_free(struct inherited *inherited)
{
    free(inherited->fds);
    *inherited = (struct inherited){0};
}

int detach_here(const struct inherited *inherited, int log_fd)
{
    auto_close int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return -errno;
    setsid(); /* fails only for a group leader, which a forked child is not */
    if (chdir("/") < 0)
        return -errno;
    umask(077);
    if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log_fd >= 0 ? log_fd : null, 2) < 0)
        return -errno;
    for (size_t i = 0; i < inherited->count; i++)
        close(inherited->fds[i]);
    return 0;
}
