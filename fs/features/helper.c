#include "helper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "futex.h"
#include "syscalls.h"
#include "thread.h"

#define STACK_BYTES (256u << 10)
#define VIEWS_MAX 64u
#define PROBE_NS UINT64_C(1000000000) /* for a place that may be our mount */
#define HELPER_PREFIX ".onepot-ahead-"
#define HELPER_PREFIX_LEN (sizeof(HELPER_PREFIX) - 1)

/* ---- the child ---- */

static bool is_own_mount(const struct counters *counters, int root_fd)
{
    struct stat st;

    return fstat(root_fd, &st) == 0 &&
           st.st_dev == makedev(counters->mount_dev_major, counters->mount_dev_minor);
}

/* Does a request at this directory reach our daemon? */
static bool is_answered_by_us(const struct helper *h, unsigned i, int root_fd)
{
    struct stat st;

    return fstatat(root_fd, h->names[i], &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT &&
           atomic_load(&h->seen[i]);
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

static _Noreturn void child_main(struct helper *h, unsigned i, helper_work *work, pid_t parent)
{
    static struct child child; /* each process has its own copy */
    const struct session_config *config = &h->session->config;

    child_prepare(parent);
    child.session = h->session;
    child.root_fd = viewpoint_enter(&h->view);
    if (child.root_fd < 0 ||
        !(config->mountpoint ? is_own_mount(config->counters, child.root_fd)
                             : is_answered_by_us(h, i, child.root_fd)))
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
    shared_bytes = (shared_bytes + sizeof(*h->seen) - 1) / sizeof(*h->seen) * sizeof(*h->seen);
    h->shared_bytes = shared_bytes + COUNTERS_AHEAD * sizeof(*h->seen);
    h->shared =
        mmap(NULL, h->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (h->shared == MAP_FAILED) {
        h->shared = NULL;
        return -errno;
    }
    h->seen = (void *)((char *)h->shared + shared_bytes);
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
    if (h->session->config.mountpoint || !pid)
        atomic_store(&h->session->config.counters->ahead_pids[h->slot + i], pid);
}

/*
 * The first request of a child at a mount that is elsewhere. It also shows the child's process
 * ID as the mount's PID namespace has it, by which its other requests are known.
 */
bool helper_answer(void *helper, struct request *rq)
{
    struct helper *h = helper;
    const char *name = rq->arg;

    if (rq->header->opcode != FUSE_LOOKUP ||
        strncmp(name, HELPER_PREFIX, HELPER_PREFIX_LEN) != 0)
        return false;
    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; i < h->children; i++) {
        if (strncmp(name, h->names[i], HELPER_NAME_MAX) != 0)
            continue;
        rq->unseen = true;
        atomic_store(&h->session->config.counters->ahead_pids[h->slot + i],
                     (int32_t)rq->header->pid);
        if (!rq->header->pid)
            atomic_store(&h->session->nobody_is_helper, true);
        atomic_store(&h->seen[i], 1);
    }
    pthread_mutex_unlock(&h->lock);
    return false; /* there is no such name */
}

static void name_child(struct helper *h, unsigned i)
{
    uint64_t secret = 0;

    if (getrandom(&secret, sizeof(secret), GRND_NONBLOCK) < 0)
        secret = now_ns();
    snprintf(h->names[i], HELPER_NAME_MAX, HELPER_PREFIX "%016" PRIx64 "-%u", secret,
             h->asked++);
    atomic_store(&h->seen[i], 0);
}

static void start_child(struct helper *h, unsigned i, helper_work *work)
{
    pid_t parent = getpid();

    pthread_mutex_lock(&h->lock);
    if (!h->session->config.mountpoint)
        name_child(h, i);
    pid_t pid = h->stopped ? -1 : fork();
    if (pid == 0)
        child_main(h, i, work, parent);
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

static enum mount_fetch no_work(struct helper *h, void *ctx)
{
    (void)h;
    (void)ctx;
    return MOUNT_FETCH_DONE;
}

static bool has_ended_in_time(pid_t pid)
{
    const struct timespec rest = {.tv_nsec = 2000000};
    uint64_t until = now_ns() + PROBE_NS;
    siginfo_t info = {0};

    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
           info.si_pid == 0 && now_ns() < until)
        nanosleep(&rest, NULL);
    return info.si_pid != 0;
}

/*
 * Other programs' mounts are among the places, and one that hangs may not keep us from trying
 * the next: its child is killed, and left behind if even that takes long.
 */
static bool try_view(struct helper *h)
{
    start_child(h, 0, no_work);
    pid_t pid = atomic_load(&h->pids[0]);
    if (pid && !has_ended_in_time(pid)) {
        kill(pid, SIGKILL);
        if (!has_ended_in_time(pid)) {
            set_pid(h, 0, 0);
            return false;
        }
    }
    return await_child(h, 0) == MOUNT_FETCH_DONE;
}

/* Try the places that may be the mount, until one is. */
static bool find_view(struct helper *h)
{
    auto_free struct viewpoint *views = calloc(VIEWS_MAX, sizeof(*views));
    size_t count = views ? viewpoint_list(views, VIEWS_MAX) : 0;

    for (size_t i = 0; i < count && !h->has_view; i++) {
        h->view = views[i];
        h->has_view = try_view(h);
    }
    return h->has_view;
}

static bool has_view(struct helper *h)
{
    const char *mountpoint = h->session->config.mountpoint;

    if (mountpoint) {
        h->has_view = true;
        snprintf(h->view.path, sizeof(h->view.path), "%s", mountpoint);
    }
    return h->has_view || find_view(h);
}

enum mount_fetch helper_run(struct helper *h, unsigned count, helper_work *work)
{
    enum mount_fetch outcome = MOUNT_FETCH_FAILED;

    if (!has_view(h))
        return outcome;
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
