/*
 * The protocol: the helper finds a socket in $_FUSE_COMMFD, opens /dev/fuse, mounts, and sends
 * the descriptor back as ancillary data of one byte. It runs with the C locale, because it
 * reports errors only in words, and "Device or resource busy" must be recognised.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "detach.h"
#include "fault.h"
#include "fusermount.h"
#include "message.h"
#include "process.h"
#include "vector.h"

#define HELPER_LIMIT_MS 10000
#define UNKNOWN "unknown argument ignored"

extern char **environ;

struct helper_environment {
    char **at;
    size_t count, capacity;
};

/* Our environment, with the C locale and the socket. */
static int helper_environment(const char *commfd, struct helper_environment *env)
{
    static char locale[] = "LC_ALL=C";
    int r = vector_push(env, locale);

    for (char **e = environ; r == 0 && e && *e; e++)
        if (strncmp(*e, "LC_ALL=", 7) != 0 && strncmp(*e, "_FUSE_COMMFD", 12) != 0)
            r = vector_push(env, *e);
    if (r == 0 && commfd)
        r = vector_push(env, (char *)commfd);
    return r == 0 ? vector_push(env, NULL) : r;
}

/*
 * Start it with no input, all output to the pipe, and signals as at login. By fork, since
 * glibc's posix_spawn fails where a filter answers EPERM to clone3.
 */
static int helper_spawn(char *const argv[], const char *commfd, int output, pid_t *ret_pid)
{
    struct helper_environment env = {0};
    sigset_t all, before, none;
    auto_close int null = detach_open_null();
    int r = null < 0 || access(argv[0], X_OK) < 0 ? -errno : helper_environment(commfd, &env);

    if (r < 0) {
        vector_free(&env);
        return r;
    }
    sigfillset(&all);
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, &all, &before); /* no handler of ours runs in the child */
    pid_t pid = fork();
    if (pid == 0) {
        for (int number = 1; number < NSIG; number++)
            signal(number, SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        if (dup2(null, 0) == 0 && dup2(output, 1) == 1 && dup2(output, 2) == 2)
            execve(argv[0], argv, env.at);
        _exit(127);
    }
    r = pid < 0 ? -errno : 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    vector_free(&env);
    *ret_pid = pid;
    return r;
}

int fusermount_hear(int output, pid_t pid, uint64_t end_ms, const char *name,
                    char said[FUSERMOUNT_SAID_MAX])
{
    int r = process_hear(pid, output, end_ms, said, FUSERMOUNT_SAID_MAX);
    /* fuse-overlayfs begins with options that its libfuse does not know, and goes on. */
    for (char *next;
         strncmp(said, UNKNOWN, strlen(UNKNOWN)) == 0 && (next = strchr(said, '\n'));)
        memmove(said, next + 1, strlen(next));
    said[strcspn(said, "\n")] = '\0';
    if (r == -ETIMEDOUT)
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: no answer within %d s", name,
                 HELPER_LIMIT_MS / 1000);
    else if (r != 0 && !said[0])
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: exit status %d", name, r);
    return r > 0 ? -EPERM : r;
}

static int helper_run(char *const argv[], const char *commfd, char said[FUSERMOUNT_SAID_MAX])
{
    auto_close int read_end = -1, write_end = -1;
    uint64_t end_ms = now_ms() + HELPER_LIMIT_MS;
    int pipe_fds[2];
    pid_t pid;

    said[0] = '\0';
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    read_end = pipe_fds[0];
    write_end = pipe_fds[1];
    int r = helper_spawn(argv, commfd, write_end, &pid);
    if (r < 0) {
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: %s%s", argv[0], fault_errno(r),
                 fault_limit(r));
        return r;
    }
    close(steal_fd(&write_end));
    return fusermount_hear(read_end, pid, end_ms, argv[0], said);
}

int fusermount_mount(const char *path, const char *mountpoint, const char *options,
                     char said[FUSERMOUNT_SAID_MAX], int *ret_fd)
{
    char *argv[] = {(char *)path, (char *)"-o",       (char *)options,
                    (char *)"--", (char *)mountpoint, NULL};
    auto_close int ours = -1, its = -1;
    char commfd[32], byte;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ours = pair[0];
    its = pair[1];
    if (fcntl(its, F_SETFD, 0) < 0) /* the one descriptor that it inherits */
        return -errno;
    snprintf(commfd, sizeof(commfd), "_FUSE_COMMFD=%d", its);
    int r = helper_run(argv, commfd, said);
    if (r < 0)
        return r;
    /* The helper sent the descriptor before it exited. */
    r = message_receive(ours, &byte, 1, MSG_DONTWAIT, ret_fd);
    if (r == 0 && *ret_fd < 0)
        r = -EPROTO;
    if (r < 0)
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: it sent no descriptor", path);
    return r;
}

int fusermount_unmount(const char *path, const char *mountpoint, bool lazy,
                       char said[FUSERMOUNT_SAID_MAX])
{
    char *argv[] = {(char *)path, (char *)(lazy ? "-uz" : "-u"), (char *)"--",
                    (char *)mountpoint, NULL};
    int r = helper_run(argv, NULL, said);
    return r == -EPERM && strstr(said, "busy") ? -EBUSY : r;
}
