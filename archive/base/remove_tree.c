#include "remove_tree.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define PASSES 16
#define WALK_FDS 32

/* A directory that its owner closed is opened, for the next pass. */
static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    char above[PATH_MAX];

    (void)st;
    if (kind == FTW_DNR) {
        chmod(path, S_IRWXU);
        return 0;
    }
    if (remove(path) == 0 || errno != EACCES || at->base >= PATH_MAX)
        return 0;
    snprintf(above, sizeof(above), "%.*s", at->base, path);
    if (chmod(above, S_IRWXU) == 0)
        remove(path);
    return 0;
}

void remove_tree(const char *path)
{
    for (int i = 0; i < PASSES && access(path, F_OK) == 0; i++)
        nftw(path, remove_entry, WALK_FDS, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
