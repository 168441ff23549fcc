/*
 * A process of our own that reads through the mount like any reader, so that the kernel asks
 * for what readers will want.
 *
 * Why a process. A thread that waits in its own mount keeps the descriptors of its process
 * open; if that process is killed then, the connection never ends and nobody can unmount. The
 * child has closed the device, so it is a reader like any other. It sees the mount in a
 * namespace of its own, where its open files do not keep others from unmounting; where such a
 * namespace is not allowed there is no helper. It is forked on demand and ends when the readers
 * pause. After the fork it calls nothing that may lock or allocate, because other threads may
 * have been in the middle of such calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"
#include "syscalls.h"

/* ---- the child ---- */

static bool is_own_mount(const struct session *s, int root_fd)
{
    const struct counters *counters = s->config.counters;
    struct stat st;

    return fstat(root_fd, &st) == 0 &&
           st.st_dev == makedev(counters->mount_dev_major, counters->mount_dev_minor);
}

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

static void prepare(pid_t parent)
{
    struct sched_param param = {0};
    sigset_t none;

    syscall_close_range(0, ~0u); /* above all the device */
    sigemptyset(&none);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(HELPER_FAILED);
    prctl(PR_SET_NAME, "onepot-ahead");
    sched_setscheduler(0, SCHED_BATCH, &param);
}

static _Noreturn void child_main(const struct session *s, helper_work *work, void *arg,
                                 pid_t parent)
{
    int root_fd;

    prepare(parent);
    if (!take_private_view(s->config.mountpoint))
        _exit(HELPER_FAILED);
    root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0 || !is_own_mount(s, root_fd))
        _exit(HELPER_FAILED);
    _exit((int)work(arg, root_fd));
}

/* The directory's path below the entry shown as the root, in `buf`, or NULL. */
static const char *path_below_root(const struct session *s, uint32_t directory, char *buf,
                                   size_t size)
{
    char *end;
    size_t len;

    if (directory == s->config.root)
        return ".";
    if (index_path(s->index, directory, buf, size, &len) < 0)
        return NULL;
    if (s->root_len == 0)
        return buf;
    end = buf + s->root_len;
    return len > s->root_len && memcmp(buf, s->root_path, s->root_len) == 0 && *end == '/'
               ? end + 1
               : NULL;
}

int helper_open_directory(const struct session *s, int root_fd, uint32_t directory)
{
    static char buf[sizeof(s->root_path)]; /* private to this process */
    const char *path = path_below_root(s, directory, buf, sizeof(buf));

    return path ? openat(root_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
}

/* ---- the daemon ---- */

int helper_prepare(struct session *s)
{
    return index_path(s->index, s->config.root, s->root_path, sizeof(s->root_path),
                      &s->root_len);
}

static void set_pid(struct session *s, unsigned slot, pid_t pid)
{
    atomic_store(&s->helpers[slot], pid);
    atomic_store(&s->config.counters->ahead_pids[slot], pid);
}

void helper_start(struct session *s, unsigned slot, helper_work *work, void *arg)
{
    pid_t parent = getpid(), pid;

    pthread_mutex_lock(&s->helper_lock);
    pid = s->helpers_stopped ? -1 : fork();
    if (pid == 0)
        child_main(s, work, arg, parent);
    set_pid(s, slot, pid > 0 ? pid : 0);
    pthread_mutex_unlock(&s->helper_lock);
}

enum helper_outcome helper_await(struct session *s, unsigned slot)
{
    pid_t pid = atomic_load(&s->helpers[slot]);
    int status = 0;
    siginfo_t info;

    if (!pid)
        return HELPER_FAILED;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&s->helper_lock); /* so that no other process is signalled */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    set_pid(s, slot, 0);
    pthread_mutex_unlock(&s->helper_lock);
    return WIFEXITED(status) ? (enum helper_outcome)WEXITSTATUS(status) : HELPER_FAILED;
}

bool helper_is(const struct session *s, uint32_t pid)
{
    bool is = false;

    for (unsigned i = 0; i < COUNTERS_AHEAD; i++)
        is |= (uint32_t)atomic_load_explicit(&s->helpers[i], memory_order_relaxed) == pid;
    return is && pid;
}

void helper_end_all(struct session *s)
{
    pthread_mutex_lock(&s->helper_lock);
    s->helpers_stopped = true;
    for (unsigned i = 0; i < COUNTERS_AHEAD; i++)
        if (atomic_load(&s->helpers[i]))
            kill(atomic_load(&s->helpers[i]), SIGKILL);
    pthread_mutex_unlock(&s->helper_lock);
}
