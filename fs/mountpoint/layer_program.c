/*
 * We mount, and hand /dev/fuse to the program: it needs no right to mount then, which an
 * ordinary user's namespace would take from it at exec. It is mounted at dir/view first, since
 * the program looks its folders up by their paths, which the layer is about to hide.
 *
 * A mount namespace lives as long as a process in it, and the program would live as long as the
 * mount. So the program gets a copy of the namespace from before it has the layer: when the
 * last process of the command has ended, the layer goes, and then the program.
 */
#include "layer_program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "fault.h"
#include "fusermount.h"
#include "process.h"
#include "syscalls.h"

#define PROGRAM LAYER_PROGRAM
#define START_LIMIT_MS 10000

/* Where the program has its descriptors; the last tells it that it is mounted. */
enum { FUSE_FD = 3, LOWER_FD, CHANGES_FD, WORK_FD, TALK_FD, FDS_END };

struct inside {
    char path[64]; /* of something in the tmpfs */
};

static struct inside inside(int dir, const char *name)
{
    struct inside in;
    snprintf(in.path, sizeof(in.path), "/proc/self/fd/%d/%s", dir, name);
    return in;
}

/* ---- in the child ---- */

/* Keep these descriptors, each at its place (-1: none), and no others: locks of the mount among
 * them. */
static bool take_places(const int fds[FDS_END])
{
    int high[FDS_END];
    bool is_good = true;

    for (int i = 0; i < FDS_END; i++) {
        high[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD, FDS_END);
        is_good &= fds[i] < 0 || high[i] >= 0;
    }
    for (int i = 0; is_good && i < FDS_END; i++)
        is_good = high[i] < 0 ? close(i) == 0 || errno == EBADF : dup2(high[i], i) >= 0;
    syscall_close_range(FDS_END, ~0u);
    return is_good;
}

/* Signals to the command are not for it; libfuse leaves the ones alone that are ignored. */
static void leave_signals(void)
{
    const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
    sigset_t none;

    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
}

/* With link counts of directories it would list each of them as soon as it is looked at. */
#define FOLDERS                                                                                \
    "static_nlink,lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/"  \
    "%d"

static _Noreturn void program_run(const char *program)
{
    char options[128], device[32];
    snprintf(options, sizeof(options), FOLDERS, LOWER_FD, CHANGES_FD, WORK_FD);
    snprintf(device, sizeof(device), "/dev/fd/%d", FUSE_FD);
    close(TALK_FD);
    execl(program, PROGRAM, "-f", "-o", options, device, NULL);
    _exit(127);
}

/* Take a copy of the namespace, say so, and run the program once it is told to. */
static _Noreturn void program_child(const char *program, const int fds[FDS_END - FUSE_FD])
{
    const int null = open("/dev/null", O_RDWR);
    const int places[FDS_END] = {null, null, null, fds[0], fds[1], fds[2], fds[3], fds[4]};
    char word = 'c';

    leave_signals();
    if (null >= 0 && take_places(places) && chdir("/") == 0 && unshare(CLONE_NEWNS) == 0 &&
        write(TALK_FD, &word, 1) == 1 && read(TALK_FD, &word, 1) == 1)
        program_run(program);
    _exit(1);
}

/* ---- in the parent ---- */

static int mount_fuse(int fd, const char *at, bool noexec)
{
    const unsigned long flags =
        MS_NOSUID | MS_NODEV | MS_NOATIME | (noexec ? (unsigned long)MS_NOEXEC : 0);
    char options[128];

    snprintf(options, sizeof(options),
             "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions", fd,
             (unsigned)geteuid(), (unsigned)getegid());
    return mount(PROGRAM, at, "fuse." PROGRAM, flags, options) < 0 ? -errno : 0;
}

/* Start the program, mount at dir/view when it has its namespace, and let it serve. */
static int program_serve(const char *program, int dir, const int fds[4], bool noexec)
{
    int pair[2];
    char word = 'm';

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int talk = pair[0];
    /* Nobody's child: the caller becomes the command, which has no children yet. */
    int r = process_fork_orphan();
    if (r == 0)
        program_child(program, (const int[]){fds[0], fds[1], fds[2], fds[3], pair[1]});
    r = r < 0 ? r : 0;
    close(pair[1]);
    if (r == 0 && read(talk, &word, 1) != 1)
        r = -EPERM;
    if (r == 0)
        r = mount_fuse(fds[0], inside(dir, "view").path, noexec);
    if (r == 0 && send(talk, &word, 1, MSG_NOSIGNAL) != 1)
        r = -EPIPE;
    return r;
}

static int program_mount(const char *program, int dir, bool noexec)
{
    struct statfs st;
    auto_close int lower = openat(dir, "lower", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int changes = openat(dir, "changes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int work = openat(dir, "work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (lower < 0 || changes < 0 || work < 0 || fuse < 0)
        return -errno;
    int r = program_serve(program, dir, (const int[]){fuse, lower, changes, work}, noexec);
    close(steal_fd(&fuse)); /* or nobody would see that the program has ended */
    return r == 0 && statfs(inside(dir, "view").path, &st) < 0 ? -errno : r;
}

int layer_program_mount(int dir, int lower, const char *mountpoint, bool noexec)
{
    char program[PATH_MAX];

    if (process_find_program(PROGRAM, program) < 0)
        return -ENOENT;
    if (mkdirat(dir, "lower", 0700) < 0 || mkdirat(dir, "view", 0700) < 0 ||
        mount(inside(lower, "").path, inside(dir, "lower").path, NULL, MS_BIND, NULL) < 0)
        return -errno;
    int r = program_mount(program, dir, noexec);
    if (r == 0 && mount(inside(dir, "view").path, mountpoint, NULL, MS_BIND, NULL) < 0)
        r = -errno;
    umount2(inside(dir, "view").path, MNT_DETACH);
    umount2(inside(dir, "lower").path, MNT_DETACH);
    return r;
}

/* ---- for all to see ---- */

/* It ends with its starter until it is mounted, when it becomes another process by itself. */
static _Noreturn void start_child(const struct layer_program *start, int output)
{
    const int null = open("/dev/null", O_RDONLY);
    const int places[FDS_END] = {null,         output,         output,      -1,
                                 start->lower, start->changes, start->work, -1};
    char options[256];

    if (null < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || !take_places(places))
        _exit(1);
    leave_signals();
    snprintf(options, sizeof(options), FOLDERS ",nosuid,nodev,noatime%s%s", LOWER_FD,
             CHANGES_FD, WORK_FD, start->noexec ? ",noexec" : "",
             start->allow_other ? ",allow_other" : "");
    execl(start->program, PROGRAM, "-o", options, start->mountpoint, NULL);
    _exit(127);
}

int layer_program_start(const struct layer_program *start, char said[LAYER_PROGRAM_SAID_MAX])
{
    uint64_t end_ms = now_ms() + START_LIMIT_MS;
    char text[FUSERMOUNT_SAID_MAX] = "";
    int pair[2], r;

    if (pipe2(pair, O_CLOEXEC) < 0)
        return -errno;
    auto_close int output = pair[0];
    pid_t pid = fork();
    if (pid == 0)
        start_child(start, pair[1]);
    close(pair[1]);
    r = pid < 0 ? -errno : fusermount_hear(output, pid, end_ms, PROGRAM, text);
    if (r < 0)
        snprintf(said, LAYER_PROGRAM_SAID_MAX, "%s", text[0] ? text : fault_errno(r));
    return r;
}
