#include "viewpoint.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cleanup.h"
#include "mountinfo.h"

#define NAMESPACES_MAX 64u /* that are looked into */
#define PLACES_MAX 16u     /* in each */

/* ---- finding ---- */

static ino_t namespace_of(const char *pid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%.20s/ns/mnt", pid);
    return stat(path, &st) < 0 ? 0 : st.st_ino;
}

static size_t add_places(pid_t pid, struct viewpoint *views, size_t most)
{
    auto_free struct mount_entry *entries = calloc(PLACES_MAX, sizeof(*entries));
    char path[64] = "/proc/self/mountinfo";
    size_t count = 0;
    if (!entries)
        return 0;
    if (pid)
        snprintf(path, sizeof(path), "/proc/%d/mountinfo", (int)pid);
    /* The last mount is the newest, and most probably ours. */
    for (size_t i = mountinfo_fuse_in(path, geteuid(), entries, PLACES_MAX);
         i-- > 0 && count < most; count++) {
        views[count].pid = pid;
        strcpy(views[count].path, entries[i].path);
    }
    return count;
}

/* Is it the first process of this user in a mount namespace that was not seen? */
static bool is_news(const char *pid, ino_t *seen, size_t *count)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%.20s", pid);
    if (!isdigit((unsigned char)pid[0]) || *count == NAMESPACES_MAX || stat(path, &st) < 0 ||
        st.st_uid != geteuid())
        return false;
    ino_t ns = namespace_of(pid);
    for (size_t i = 0; i < *count; i++)
        if (seen[i] == ns)
            return false;
    seen[(*count)++] = ns;
    return ns != 0;
}

size_t viewpoint_list(struct viewpoint *ret_views, size_t most)
{
    ino_t seen[NAMESPACES_MAX] = {namespace_of("self")};
    size_t namespaces = 1, count = 0;
    auto_closedir DIR *proc = opendir("/proc");

    for (struct dirent *e; proc && (e = readdir(proc));)
        if (is_news(e->d_name, seen, &namespaces))
            count += add_places(atoi(e->d_name), ret_views + count, most - count);
    return count + add_places(0, ret_views + count, most - count);
}

/* ---- entering ---- */

/*
 * Make a copy of the mount the "/" of a namespace that holds nothing else, so that other mounts
 * are free to end meanwhile. It is bound onto itself first, because an ordinary user may not
 * move the copies of mounts that a new namespace starts with.
 */
static bool take_private_view(const char *mountpoint)
{
    if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return false;
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount(mountpoint, mountpoint, NULL, MS_BIND, NULL) == 0 && chdir(mountpoint) == 0 &&
           syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0 &&
           chdir("/") == 0;
}

/* Enter the namespaces of a process: it may be in our own user namespace, or in one of ours. */
static bool join_process(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)pid);
    auto_close int mnt = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    auto_close int user = open(path, O_RDONLY | O_CLOEXEC);
    if (mnt < 0 || user < 0)
        return false;
    return setns(mnt, CLONE_NEWNS) == 0 ||
           (setns(user, CLONE_NEWUSER) == 0 && setns(mnt, CLONE_NEWNS) == 0);
}

int viewpoint_enter(const struct viewpoint *view)
{
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    char path[PATH_MAX + 64];
    int outside = -1;

    if (view->pid) {
        snprintf(path, sizeof(path), "/proc/%d/root%s", (int)view->pid, view->path);
        outside = open(path, flags);
    }
    if (view->pid && !join_process(view->pid))
        return outside;
    if (!take_private_view(view->path))
        return outside;
    cleanup_closep(&outside);
    return open("/", flags);
}
