#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "write_at.h"

/* Is it the very library that belongs to this program? */
static bool preload_is_same(const char *path)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    auto_free unsigned char *bytes = malloc(preload_library_bytes);
    struct stat st;

    return fd >= 0 && bytes && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
           (size_t)st.st_size == preload_library_bytes &&
           read_at(fd, bytes, preload_library_bytes, 0) == 0 &&
           memcmp(bytes, preload_library, preload_library_bytes) == 0;
}

/* Whole or not at all under its name, as several processes may write it at once. */
static int preload_write(const char *path)
{
    char temporary[PATH_MAX];
    int n = snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
    auto_close int fd =
        n < PATH_MAX ? open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return n < PATH_MAX ? -errno : -ENAMETOOLONG;
    int r = write_at(fd, preload_library, preload_library_bytes, 0);
    if (r == 0 && rename(temporary, path) < 0)
        r = -errno;
    if (r < 0)
        unlink(temporary);
    return r;
}

static bool preload_may_run(const char *path)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0 && !(fs.f_flag & ST_NOEXEC);
}

int preload_find(const char *path, char ret_path[PATH_MAX])
{
    static const char installed[] = PRELOAD_FOLDER "/libonepot-io.so";
    int r = 0;

    if (preload_library_bytes > 0 && !strpbrk(installed, " :") && preload_is_same(installed) &&
        preload_may_run(installed)) {
        strcpy(ret_path, installed);
        return 0;
    }
    if (preload_library_bytes == 0 || strpbrk(path, " :") || strlen(path) >= PATH_MAX)
        return -ENOTSUP;
    if (!preload_is_same(path))
        r = preload_write(path);
    if (r == 0 && !preload_may_run(path)) {
        unlink(path);
        r = -ENOEXEC;
    }
    if (r == 0)
        strcpy(ret_path, path);
    return r;
}

int preload_value(const char *library, const char *now, char **ret_value)
{
    const char *before = now ? now : "";
    if (strstr(before, library))
        library = "";
    return asprintf(ret_value, "%s%s%s", before, *before && *library ? ":" : "", library) < 0
               ? -ENOMEM
               : 0;
}
