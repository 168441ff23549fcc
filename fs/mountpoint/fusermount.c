/*
 * The protocol: the helper finds a socket in $_FUSE_COMMFD, opens /dev/fuse, mounts, and sends
 * the descriptor back as ancillary data of one byte. It runs with the C locale, because it
 * reports errors only in words, and "Device or resource busy" must be recognised.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "fusermount.h"

#define HELPER_LIMIT_MS 10000
#define REAP_STEP_US 200

extern char **environ;

int fusermount_find(const char *program, char ret_path[PATH_MAX])
{
    static const char usual[] = "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin:/usr/local/sbin";
    const char *path = getenv("PATH");
    auto_free char *all = NULL;
    char *save = NULL;

    if (asprintf(&all, "%s:%s", path ? path : "", usual) < 0) {
        all = NULL;
        return -ENOMEM;
    }
    for (char *dir = strtok_r(all, ":", &save); dir; dir = strtok_r(NULL, ":", &save)) {
        int n = snprintf(ret_path, PATH_MAX, "%s/%s", dir, program);
        if (dir[0] == '/' && n < PATH_MAX && access(ret_path, X_OK) == 0)
            return 0;
    }
    return -ENOENT;
}

/* Our environment, with the C locale and the socket. The array is one allocation. */
static int helper_environment(const char *commfd, char ***ret_env)
{
    static char locale[] = "LC_ALL=C";
    size_t count = 0, n = 0;

    while (environ && environ[count])
        count++;
    char **env = calloc(count + 3, sizeof(*env));
    if (!env)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "LC_ALL=", 7) != 0 &&
            strncmp(environ[i], "_FUSE_COMMFD", 12) != 0)
            env[n++] = environ[i];
    env[n++] = locale;
    if (commfd)
        env[n] = (char *)commfd;
    *ret_env = env;
    return 0;
}

/* Start it with no input, all output to the pipe, and signals as at login. */
static int spawn(char *const argv[], const char *commfd, int output, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    auto_free char **env = NULL;
    sigset_t none, all;
    int r = helper_environment(commfd, &env);

    if (r < 0)
        return r;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    r = -posix_spawn(ret_pid, argv[0], &actions, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return r;
}

static long since_ms(const struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000;
}

/* Read its output until it closes that or the time is over; keep the first line. */
static void listen_to(int fd, const struct timespec *start, char said[FUSERMOUNT_SAID_MAX])
{
    size_t len = 0;
    char rest[256];

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        long left = HELPER_LIMIT_MS - since_ms(start);
        if (left <= 0 || (poll(&p, 1, (int)left) == 0))
            break;
        bool room = len < FUSERMOUNT_SAID_MAX - 1;
        ssize_t n = read(fd, room ? said + len : rest,
                         room ? FUSERMOUNT_SAID_MAX - 1 - len : sizeof(rest));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += room ? (size_t)n : 0;
    }
    said[len] = '\0';
    said[strcspn(said, "\n")] = '\0';
}

/* Its exit status, 0 to 255; -ETIMEDOUT after it was killed. */
static int reap(pid_t pid, const struct timespec *start)
{
    int status;
    pid_t got;

    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (since_ms(start) > HELPER_LIMIT_MS) {
            kill(pid, SIGKILL);
            poll(NULL, 0, 100);
            waitpid(pid, &status, WNOHANG); /* unless it is stuck in the kernel */
            return -ETIMEDOUT;
        }
        usleep(REAP_STEP_US);
    }
    return got == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static int run_helper(char *const argv[], const char *commfd, char said[FUSERMOUNT_SAID_MAX])
{
    auto_close int read_end = -1, write_end = -1;
    struct timespec start;
    int pipe_fds[2];
    pid_t pid;

    said[0] = '\0';
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return -errno;
    read_end = pipe_fds[0];
    write_end = pipe_fds[1];
    int r = spawn(argv, commfd, write_end, &pid);
    if (r < 0) {
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: %s", argv[0], strerror(-r));
        return r;
    }
    close(steal_fd(&write_end));
    listen_to(read_end, &start, said);
    r = reap(pid, &start);
    if (r == -ETIMEDOUT)
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: no answer within %d s", argv[0],
                 HELPER_LIMIT_MS / 1000);
    else if (r != 0 && !said[0])
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: exit status %d", argv[0], r);
    return r > 0 ? -EPERM : r;
}

/* Receive the descriptor that the helper sent before it exited. */
static int receive_fd(int sock, int *ret_fd)
{
    char byte;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof(control.buf)};

    if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) < 0)
        return -errno;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
        return -EPROTO;
    memcpy(ret_fd, CMSG_DATA(c), sizeof(int));
    return 0;
}

int fusermount_mount(const char *path, const char *mountpoint, const char *options,
                     char said[FUSERMOUNT_SAID_MAX], int *ret_fd)
{
    char *argv[] = {(char *)path, (char *)"-o",       (char *)options,
                    (char *)"--", (char *)mountpoint, NULL};
    auto_close int ours = -1, its = -1;
    char commfd[32];
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ours = pair[0];
    its = pair[1];
    if (fcntl(its, F_SETFD, 0) < 0) /* the one descriptor that it inherits */
        return -errno;
    snprintf(commfd, sizeof(commfd), "_FUSE_COMMFD=%d", its);
    int r = run_helper(argv, commfd, said);
    if (r < 0)
        return r;
    r = receive_fd(ours, ret_fd);
    if (r < 0)
        snprintf(said, FUSERMOUNT_SAID_MAX, "%s: it sent no descriptor", path);
    return r;
}

int fusermount_unmount(const char *path, const char *mountpoint, bool lazy,
                       char said[FUSERMOUNT_SAID_MAX])
{
    char *argv[] = {(char *)path, (char *)(lazy ? "-uz" : "-u"), (char *)"--",
                    (char *)mountpoint, NULL};
    int r = run_helper(argv, NULL, said);
    return r == -EPERM && strstr(said, "busy") ? -EBUSY : r;
}
