/*
 * lfs is looked for in absolute folders of $PATH alone, since it runs in a folder of data. A
 * name goes behind "./", so that none is taken for an option.
 */
#include "stripes.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fault.h"
#include "path.h"
#include "process.h"

#define LFS_LIMIT_MS 10000
#define LFS_TEXT_MAX 4096
#define LUSTRE_MAGIC 0x0bd00bd0u
#define ONE_STRIPE_BYTES (UINT64_C(1) << 30)

/* For tests: every filesystem is Lustre, and more bytes than this are many. */
static const char *assumed_bytes(void)
{
    return getenv("ONEPOT_ASSUME_LUSTRE");
}

/* The program, if the descriptor's file is on Lustre. */
static bool find_lfs(int fd, char ret_path[PATH_MAX])
{
    struct statfs fs;
    bool is_lustre =
        assumed_bytes() || (fstatfs(fd, &fs) == 0 && (uint32_t)fs.f_type == LUSTRE_MAGIC);
    return is_lustre && process_find_program("lfs", ret_path) == 0;
}

bool stripes_are_few(unsigned count, uint64_t bytes)
{
    const char *assumed = assumed_bytes();
    return count <= 1 && bytes > (assumed ? strtoull(assumed, NULL, 10) : ONE_STRIPE_BYTES);
}

static _Noreturn void lfs_execute(int folder_fd, char *const argv[], int output)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fchdir(folder_fd) < 0 || dup2(null, STDIN_FILENO) < 0 ||
        dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)
        _exit(126);
    execv(argv[0], argv);
    _exit(127);
}

/* Run it, and read what it writes. -EIO: it failed. */
static int lfs_run(int folder_fd, char *const argv[], char text[LFS_TEXT_MAX])
{
    int fds[2];

    text[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    auto_close int output = fds[0];
    pid_t pid = fork();
    if (pid == 0)
        lfs_execute(folder_fd, argv, fds[1]);
    int r = pid < 0 ? -errno : 0;
    close(fds[1]);
    if (r == 0)
        r = process_hear(pid, output, now_ms() + LFS_LIMIT_MS, text, LFS_TEXT_MAX);
    return r > 0 ? -EIO : r;
}

static char *name_here(const char *name)
{
    char *here;
    return asprintf(&here, "./%s", name) < 0 ? NULL : here;
}

/* The last number that it prints: of a layout in parts, the widest one's. */
static int last_number(char *text, long *ret_number)
{
    char *save = NULL;
    int r = -EIO;

    for (char *line = strtok_r(text, " \n", &save); line; line = strtok_r(NULL, " \n", &save)) {
        char *end;
        long number = strtol(line, &end, 10);
        if (*end == '\0') {
            *ret_number = number;
            r = 0;
        }
    }
    return r;
}

/* `how`: -c of a file, or -dc of a folder. */
static int count_stripes(int folder_fd, char *how, const char *name, long *ret_count)
{
    char lfs[PATH_MAX], text[LFS_TEXT_MAX];
    auto_free char *here = name_here(name);
    char *argv[] = {lfs, "getstripe", how, here, NULL};

    if (!here)
        return -ENOMEM;
    if (!find_lfs(folder_fd, lfs))
        return -ENOTSUP;
    int r = lfs_run(folder_fd, argv, text);
    return r < 0 ? r : last_number(text, ret_count);
}

int stripes_of(const char *path, unsigned *ret_count)
{
    auto_free char *real = realpath(path, NULL);
    long count;

    if (!real)
        return -errno;
    auto_close int folder_fd = path_open_folder(real);
    int r = folder_fd < 0 ? folder_fd : count_stripes(folder_fd, "-c", path_base(real), &count);
    if (r == 0 && (count < 1 || count > (long)STRIPES_MAX))
        r = -EIO;
    if (r == 0)
        *ret_count = (unsigned)count;
    return r;
}

int stripes_of_new(const char *path, unsigned *ret_count)
{
    auto_close int folder_fd = path_open_folder(path);
    long count;
    int r = folder_fd < 0 ? folder_fd : count_stripes(folder_fd, "-dc", "", &count);

    if (r == 0 && (count < -1 || count > (long)STRIPES_MAX))
        r = -EIO;
    if (r == 0)
        *ret_count = count < 0 ? UINT_MAX : (unsigned)count;
    return r;
}

int stripes_make(int folder_fd, const char *name, unsigned count, char said[STRIPES_SAID_MAX])
{
    char lfs[PATH_MAX], text[LFS_TEXT_MAX], number[16];
    auto_free char *here = name_here(name);
    char *argv[] = {lfs, "setstripe", "-c", number, here, NULL};

    snprintf(number, sizeof(number), "%u", count);
    if (!here || !find_lfs(folder_fd, lfs)) {
        snprintf(said, STRIPES_SAID_MAX, "its folder is not on Lustre, or there is no lfs");
        return here ? -ENOTSUP : -ENOMEM;
    }
    int r = lfs_run(folder_fd, argv, text);
    text[strcspn(text, "\n")] = '\0';
    snprintf(said, STRIPES_SAID_MAX, "%.*s", STRIPES_SAID_MAX - 1,
             r == -EIO && text[0] ? text : fault_errno(r));
    return r;
}
