#include "helper.h"

#include <dirent.h>
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

#include "clock.h"
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
        _exit(MOUNT_FETCH_FAILED);
    prctl(PR_SET_NAME, "onepot-ahead");
    sched_setscheduler(0, SCHED_BATCH, &param);
}

struct child {
    const struct session *session;
    int root_fd, directory_fd;
    _Alignas(struct dirent64) char dirents[MOUNT_FETCHER_LIST_BYTES];
};

static _Noreturn void child_main(struct helper *h, helper_work *work, pid_t parent)
{
    static struct child child; /* each process has its own copy */
    const struct session_config *config = &h->session->config;

    child_prepare(parent);
    if (!take_private_view(config->mountpoint))
        _exit(MOUNT_FETCH_FAILED);
    child.session = h->session;
    child.root_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (child.root_fd < 0 || !is_own_mount(config->counters, child.root_fd))
        _exit(MOUNT_FETCH_FAILED);
    _exit((int)work(h, &child));
}

/* A descriptor of a directory below the mount's root, or -1. */
static int child_open_directory(const struct child *c, uint32_t directory)
{
    static char root[4096], buf[4096]; /* private to this process */
    const struct session *s = c->session;
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
    return openat(c->root_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* ---- what a plan fetches by ---- */

static bool helper_fetch_open(void *ctx, uint32_t directory, uint32_t skip)
{
    struct child *c = ctx;

    c->directory_fd = child_open_directory(c, directory);
    if (c->directory_fd >= 0 && skip > 0)
        lseek(c->directory_fd, (off_t)skip + 2,
              SEEK_SET); /* entry 0 comes after "." and ".." */
    return c->directory_fd >= 0;
}

static uint32_t helper_fetch_list(void *ctx, size_t buffer_bytes)
{
    struct child *c = ctx;
    long n = syscall(SYS_getdents64, c->directory_fd, c->dirents, buffer_bytes);
    uint32_t count = 0;

    for (long i = 0; i < n; count++)
        i += ((const struct dirent64 *)(const void *)(c->dirents + i))->d_reclen;
    return count;
}

static int helper_fetch_read(void *ctx, const char *name, uint64_t size_bytes, bool wait)
{
    const struct child *c = ctx;
    int fd = openat(c->directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char last;

    if (fd < 0)
        return -errno;
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    if (wait) {
        ssize_t n = pread(fd, &last, 1, (off_t)size_bytes - 1);
        (void)n; /* a reader will get the error itself */
    }
    close(fd);
    return 0;
}

static void helper_fetch_close(void *ctx)
{
    const struct child *c = ctx;

    close(c->directory_fd);
}

uint64_t helper_cold_reads(const struct session *s)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        sum += atomic_load_explicit(&s->config.counters->slots[i].read_files,
                                    memory_order_relaxed);
    return sum;
}

static struct mount_readers helper_fetch_readers(void *ctx)
{
    const struct child *c = ctx;

    return (struct mount_readers){now_ns(), session_last_request_ns(c->session),
                                  helper_cold_reads(c->session)};
}

static void helper_fetch_wait(void *ctx, _Atomic uint32_t *word, uint32_t value,
                              uint64_t most_ns)
{
    const struct timespec most = {.tv_sec = (time_t)(most_ns / 1000000000u),
                                  .tv_nsec = (long)(most_ns % 1000000000u)};

    (void)ctx;
    futex_wait(word, value, FUTEX_OF_NODE, &most);
}

const struct mount_fetcher helper_fetcher = {
    .open = helper_fetch_open,
    .list = helper_fetch_list,
    .read = helper_fetch_read,
    .close = helper_fetch_close,
    .readers = helper_fetch_readers,
    .wait = helper_fetch_wait,
};

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

static enum mount_fetch await_child(struct helper *h, unsigned i)
{
    pid_t pid = atomic_load(&h->pids[i]);
    int status = 0;
    siginfo_t info;

    if (!pid)
        return MOUNT_FETCH_FAILED;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&h->lock); /* so that no other process is signalled */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    set_pid(h, i, 0);
    pthread_mutex_unlock(&h->lock);
    return WIFEXITED(status) ? (enum mount_fetch)WEXITSTATUS(status) : MOUNT_FETCH_FAILED;
}

enum mount_fetch helper_run(struct helper *h, unsigned count, helper_work *work)
{
    enum mount_fetch outcome = MOUNT_FETCH_FAILED;

    for (unsigned i = 0; i < count; i++)
        start_child(h, i, work);
    for (unsigned i = 0; i < count; i++) {
        enum mount_fetch one = await_child(h, i);
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
