#include "helper.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "futex.h"
#include "syscalls.h"
#include "thread.h"

#define STACK_BYTES (256u << 10)

/* ---- the child ---- */

static bool is_own_mount(const struct counters *counters, int root_fd)
{
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

static void child_prepare(pid_t parent)
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

static _Noreturn void child_main(struct helper *h, helper_work *work, pid_t parent)
{
    const struct session_config *config = &h->session->config;

    child_prepare(parent);
    if (!take_private_view(config->mountpoint))
        _exit(HELPER_FAILED);
    int root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0 || !is_own_mount(config->counters, root_fd))
        _exit(HELPER_FAILED);
    _exit((int)work(h, root_fd));
}

int helper_open_directory(const struct session *s, int root_fd, uint32_t directory)
{
    static char root[4096], buf[4096]; /* private to this process */
    const char *path = buf;
    size_t root_len, len;

    if (index_path(s->index, s->config.root, root, sizeof(root), &root_len) < 0 ||
        index_path(s->index, directory, buf, sizeof(buf), &len) < 0)
        return -1;
    if (directory == s->config.root)
        path = ".";
    else if (root_len > 0 &&
             (len <= root_len || memcmp(buf, root, root_len) != 0 || buf[root_len] != '/'))
        return -1;
    else if (root_len > 0)
        path = buf + root_len + 1;
    return openat(root_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* ---- the daemon ---- */

int helper_init(struct helper *h, struct session *s, unsigned slot, unsigned children,
                size_t shared_bytes)
{
    h->session = s;
    h->slot = slot;
    h->children = children;
    pthread_mutex_init(&h->lock, NULL);
    h->shared =
        mmap(NULL, shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (h->shared == MAP_FAILED) {
        h->shared = NULL;
        return -errno;
    }
    h->shared_bytes = shared_bytes;
    return 0;
}

int helper_start(struct helper *h, void *(*run)(void *))
{
    int r = thread_start(&h->thread, STACK_BYTES, run, h);

    h->started = r == 0;
    return r;
}

bool helper_sleep(struct helper *h)
{
    atomic_store(&h->asleep, 1);
    while (atomic_load(&h->asleep) && !atomic_load(&h->session->ended))
        futex_wait(&h->asleep, 1, FUTEX_OF_PROCESS, NULL);
    return !atomic_load(&h->session->ended);
}

void helper_wake(struct helper *h)
{
    if (atomic_exchange(&h->asleep, 0))
        futex_wake(&h->asleep, 1, FUTEX_OF_PROCESS);
}

static void set_pid(struct helper *h, unsigned i, pid_t pid)
{
    atomic_store(&h->pids[i], pid);
    atomic_store(&h->session->config.counters->ahead_pids[h->slot + i], pid);
}

static void start_child(struct helper *h, unsigned i, helper_work *work)
{
    pid_t parent = getpid();

    pthread_mutex_lock(&h->lock);
    pid_t pid = h->stopped ? -1 : fork();
    if (pid == 0)
        child_main(h, work, parent);
    set_pid(h, i, pid > 0 ? pid : 0);
    pthread_mutex_unlock(&h->lock);
}

static enum helper_outcome await_child(struct helper *h, unsigned i)
{
    pid_t pid = atomic_load(&h->pids[i]);
    int status = 0;
    siginfo_t info;

    if (!pid)
        return HELPER_FAILED;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&h->lock); /* so that no other process is signalled */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    set_pid(h, i, 0);
    pthread_mutex_unlock(&h->lock);
    return WIFEXITED(status) ? (enum helper_outcome)WEXITSTATUS(status) : HELPER_FAILED;
}

enum helper_outcome helper_run(struct helper *h, unsigned count, helper_work *work)
{
    enum helper_outcome outcome = HELPER_FAILED;

    for (unsigned i = 0; i < count; i++)
        start_child(h, i, work);
    for (unsigned i = 0; i < count; i++) {
        enum helper_outcome one = await_child(h, i);
        outcome = one > outcome ? one : outcome;
    }
    return outcome;
}

void helper_end(void *helper)
{
    struct helper *h = helper;

    pthread_mutex_lock(&h->lock);
    h->stopped = true;
    for (unsigned i = 0; i < h->children; i++)
        if (atomic_load(&h->pids[i]))
            kill(atomic_load(&h->pids[i]), SIGKILL);
    pthread_mutex_unlock(&h->lock);
    helper_wake(h);
}

int helper_join(void *helper, const struct timespec *until)
{
    const struct helper *h = helper;

    return h->started ? thread_join_until(h->thread, until) : 0;
}

void helper_free(void *helper)
{
    struct helper *h = helper;

    if (h->shared)
        munmap(h->shared, h->shared_bytes);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
