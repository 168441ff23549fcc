/* Where the filesystem has no nameless files, the name is removed at once. */
#include "nameless.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cleanup.h"

int nameless_open(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    auto_free char *path = NULL;
    if (asprintf(&path, "%s/.onepot-XXXXXX", folder) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return -errno;
    unlink(path);
    return fd;
}
