/*
 * Reading ahead (cache/ahead/ahead.h). Workers report what readers ask for; the threads of that
 * room plan, and fetch into the block cache or, through the mount itself (mount_fetcher),
 * into the kernel's cache.
 *
 * Division of work: an archive on this node's storage without a known order has files brought
 * into the kernel's cache of the mount. Any other has them brought into the block cache. An
 * archive that is copied whole to this node (--stage) is on this node's storage once the copy
 * is complete, and before that needs neither. Directories of a walk come through the mount.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ahead.h"
#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "core.h"
#include "futex.h"
#include "mountinfo.h"
#include "numbers.h"
#include "plan.h"
#include "syscalls.h"

#define FETCHERS_REMOTE 32u
#define FETCHERS_LOCAL 4u
#define ORDER_BYTES_LEAST (UINT64_C(64) << 20)
#define ORDER_BYTES_MOST (UINT64_C(1) << 30)
#define STUCK_MAX_S 1000000u
#define ORDER_SHARE 8u     /* of the free memory, for keeping known orders */
#define WALK_ENTRIES 4096u /* entries in an archive that make listing ahead worthwhile, */
#define NAMES_ENTRIES 256u /* and the same for names that are looked up */
#define ALL_NAMES_MOST (64u << 10) /* entries; 70 MB of the kernel's memory */
#define NEARBY_FILES 4096u /* files that make reading ahead through the mount worthwhile */

#define CHILDREN COUNTERS_AHEAD
#define VIEWS_MAX 64u
#define PROBE_NS UINT64_C(1000000000) /* for a place that may be our mount */
#define STOPPED_LOOKS 20u             /* of these, after which a child counts as dead */
#define LOOK_NS 50000000              /* between two looks whether a child lives */
#define NAME_PREFIX ".onepot-ahead-"
#define NAME_PREFIX_LEN (sizeof(NAME_PREFIX) - 1)
#define NAME_BYTES 64
#define LIST_BYTES (64u << 10) /* of a request, at most */
#define LIST_BYTES_LEAST 4096u
#define ENTRY_BYTES 192u /* of a listing, roughly, for each entry */
#define RING 2u          /* a child always has the next batch */

#define NOT_READY UINT32_MAX

/* ---- fetching through the mount ---- */

/*
 * Fetches through the mount itself (struct fetcher), so that the kernel asks for the
 * files that readers will want. A file that is read cold costs its reader a round trip or two,
 * with two changes of process each. Files that one process requests in a row, without waiting
 * for each, cost half of that, and reads from the page cache then cost no request at all. So
 * processes of our own go through the mount like any reader: they list directories, open files
 * and announce to the kernel that they will need them (posix_fadvise).
 *
 * Why processes. A thread that waits in its own mount keeps the descriptors of its process
 * open; if that process is killed then, the connection never ends and nobody can unmount. The
 * child has closed the device, so it is a reader like any other. It sees the mount in a private
 * namespace, where its open files do not keep others from unmounting; where such a namespace is
 * not allowed there is no child for a mount of our own. It is forked by `begin` and killed by
 * `end`. It has only a copy of the daemon's memory and a ring of wants that both share, and
 * calls nothing that may lock or allocate, because other threads may have been in the middle of
 * such calls. It plans nothing.
 *
 * A child that dies or stops is no loss: the daemon takes nothing from the ring but the number
 * of batches done and an error, waits for no child without an end, and does not replace it.
 */

/* ---- viewpoints ---- */

/*
 * Where processes of ours see the mount, to read through it. A mount that the
 * daemon made itself is at its mount point. One that a parent has made (a container runtime),
 * or that is private to the command of a `run`, lies in other namespaces; processes of the same
 * user that live there show the way. Which of the places that they have is this mount is proved
 * by asking there for a name that only this daemon knows.
 */
struct viewpoint {
    pid_t pid; /* a process that sees it; 0: this one does */
    char path[PATH_MAX];
};

#define NAMESPACES_MAX 64u /* that are looked into */
#define PLACES_MAX 16u     /* in each */

static ino_t namespace_of(const char *pid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%.20s/ns/mnt", pid);
    return stat(path, &st) < 0 ? 0 : st.st_ino;
}

static size_t add_places(pid_t pid, struct viewpoint *views, size_t most)
{
    auto_free struct mount_entry *entries = calloc(PLACES_MAX, sizeof(*entries));
    char path[64] = "/proc/self/mountinfo";
    size_t count = 0;
    if (!entries)
        return 0;
    if (pid)
        snprintf(path, sizeof(path), "/proc/%d/mountinfo", (int)pid);
    /* The last mount is the newest, and most probably ours. */
    for (size_t i = mountinfo_fuse_in(path, geteuid(), entries, PLACES_MAX);
         i-- > 0 && count < most; count++) {
        views[count].pid = pid;
        strcpy(views[count].path, entries[i].path);
    }
    return count;
}

/* Is it the first process of this user in a mount namespace that was not seen? */
static bool is_news(const char *pid, ino_t *seen, size_t *count)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%.20s", pid);
    if (!isdigit((unsigned char)pid[0]) || *count == NAMESPACES_MAX || stat(path, &st) < 0 ||
        st.st_uid != geteuid())
        return false;
    ino_t ns = namespace_of(pid);
    for (size_t i = 0; i < *count; i++)
        if (seen[i] == ns)
            return false;
    seen[(*count)++] = ns;
    return ns != 0;
}

/* Places that may be it, at most `most`; returns their number. */
static size_t viewpoint_list(struct viewpoint *ret_views, size_t most)
{
    ino_t seen[NAMESPACES_MAX] = {namespace_of("self")};
    size_t namespaces = 1, count = 0;
    auto_closedir DIR *proc = opendir("/proc");

    for (struct dirent *e; proc && (e = readdir(proc));)
        if (is_news(e->d_name, seen, &namespaces))
            count += add_places(atoi(e->d_name), ret_views + count, most - count);
    return count + add_places(0, ret_views + count, most - count);
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

/* Enter the namespaces of a process: it may be in our own user namespace, or in one of ours. */
static bool join_process(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)pid);
    auto_close int mnt = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    auto_close int user = open(path, O_RDONLY | O_CLOEXEC);
    if (mnt < 0 || user < 0)
        return false;
    return setns(mnt, CLONE_NEWNS) == 0 ||
           (setns(user, CLONE_NEWUSER) == 0 && setns(mnt, CLONE_NEWNS) == 0);
}

/*
 * In a separate process, without locks or allocations: a descriptor of the directory there, or
 * -1. The process gets a namespace in which that is a private copy, so that others may unmount
 * theirs meanwhile. Where it may not have one, it sees a foreign place as that process does,
 * and keeps it busy.
 */
static int viewpoint_enter(const struct viewpoint *view)
{
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    char path[PATH_MAX + 64];
    int outside = -1;

    if (view->pid) {
        snprintf(path, sizeof(path), "/proc/%d/root%s", (int)view->pid, view->path);
        outside = open(path, flags);
    }
    if (view->pid && !join_process(view->pid))
        return outside;
    if (!take_private_view(view->path))
        return outside;
    cleanup_closep(&outside);
    return open("/", flags);
}

/* ---- children ---- */

/* Shared with a child. */
struct ring {
    _Atomic uint32_t given, done; /* batches; futexes. done: NOT_READY until the child is */
    _Atomic int32_t error;        /* 0 or -errno, of any batch */
    _Atomic uint32_t seen; /* the mount is elsewhere, and the daemon has heard the child */
    struct {
        size_t count;
        struct reader_want wants[PLAN_BATCH_MAX];
    } batches[RING];
};

/* A child, or the place for one. */
struct fetch_child {
    struct mount_fetcher *fetcher;
    unsigned number;
    struct ring *ring;
    uint32_t given;
    bool taken; /* all that follows is under the lock */
    pid_t pid;  /* 0: none. Others can change counters->ahead_pids, but not this one */
    /*
     * The mount is elsewhere: the child asks there for a name that nobody else knows, and the
     * daemon notes that it came.
     */
    char name[NAME_BYTES];
};

struct mount_fetcher {
    struct session *session;
    struct ring *rings;
    struct fetch_child children[CHILDREN];
    pthread_mutex_t view_lock; /* before `lock` */
    struct viewpoint view;
    bool has_view; /* this is where children see the mount */
    pthread_mutex_t lock;
    unsigned asked;
    bool stopped;
};

/* ---- the child ---- */

static bool is_own_mount(const struct counters *counters, int root_fd)
{
    struct stat st;

    return fstat(root_fd, &st) == 0 &&
           st.st_dev == makedev(counters->mount_dev_major, counters->mount_dev_minor);
}

/* Does a request at this directory reach our daemon? */
static bool is_answered_by_us(const struct fetch_child *c, int root_fd)
{
    struct stat st;

    return fstatat(root_fd, c->name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT &&
           atomic_load(&c->ring->seen);
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
        _exit(EXIT_FAILURE);
    prctl(PR_SET_NAME, "onepot-ahead");
    sched_setscheduler(0, SCHED_BATCH, &param);
}

struct child {
    const struct session *session;
    int root_fd, directory_fd;
    uint32_t directory; /* that is open, if directory_fd >= 0 */
    uint64_t listed;    /* the position of directory_fd */
    _Alignas(struct dirent64) char dirents[LIST_BYTES];
};

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

/* Open a directory in place of the last one. False: not possible. */
static bool child_turn_to(struct child *c, uint32_t directory)
{
    if (c->directory_fd >= 0 && c->directory == directory)
        return true;
    if (c->directory_fd >= 0)
        close(c->directory_fd);
    c->directory = directory;
    c->listed = 0;
    c->directory_fd = child_open_directory(c, directory);
    return c->directory_fd >= 0;
}

/*
 * The kernel keeps a listing that was read from the beginning to the end in one go, so this
 * goes on where the last one of the directory ended, which may be further than it was asked
 * for.
 */
static int child_list(struct child *c, const struct reader_want *want)
{
    uint64_t from = want->offset ? want->offset + 2 : 0; /* "." and ".." come first */
    uint64_t to = want->offset + want->len + 2;
    uint32_t first, count;
    long n = 1;

    if (index_children(c->session->index, want->position, &first, &count) < 0)
        return 0;
    if (!child_turn_to(c, want->position))
        return -errno;
    if (c->listed < from || c->listed > to) {
        c->listed = from;
        lseek(c->directory_fd, (off_t)from, SEEK_SET);
    }
    while (n > 0 && (c->listed < to || to == UINT64_C(2) + count)) {
        uint64_t bytes = (to - min_u64(c->listed, to)) * ENTRY_BYTES;
        n = syscall(SYS_getdents64, c->directory_fd, c->dirents,
                    max_u64(min_u64(bytes, LIST_BYTES), LIST_BYTES_LEAST));
        for (long i = 0; i < n; c->listed++)
            i += ((const struct dirent64 *)(const void *)(c->dirents + i))->d_reclen;
    }
    return n < 0 ? -errno : 0;
}

static int child_read(struct child *c, const struct reader_want *want, bool wait)
{
    const struct index *index = c->session->index;
    char name[INDEX_NAME_MAX + 1], last;
    uint32_t directory;
    const char *chars;
    size_t len;

    if (index_parent(index, want->position, &directory) < 0 ||
        index_name(index, want->position, &chars, &len) < 0 || len > INDEX_NAME_MAX)
        return 0;
    memcpy(name, chars, len);
    name[len] = '\0';
    if (!child_turn_to(c, directory))
        return -errno;
    int fd = openat(c->directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    posix_fadvise(fd, (off_t)want->offset, (off_t)want->len, POSIX_FADV_WILLNEED);
    if (wait) {
        ssize_t n = pread(fd, &last, 1, (off_t)(want->offset + want->len) - 1);
        (void)n; /* a reader will get the error itself */
    }
    close(fd);
    return 0;
}

/* Fetch, and wait until the kernel has all. An error counts only if it is the mount's end. */
static int child_fetch(struct child *c, const struct reader_want *wants, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct node node;
        int r = index_node(c->session->index, wants[i].position, &node);
        if (r == 0)
            r = S_ISDIR(node.mode) ? child_list(c, &wants[i])
                                   : child_read(c, &wants[i], i + 1 == count);
        if (r == -ENOTCONN || r == -ECONNABORTED)
            return -ENOTCONN;
    }
    return 0;
}

static _Noreturn void child_main(const struct fetch_child *place, pid_t parent)
{
    static struct child child; /* each process has its own copy */
    const struct mount_fetcher *f = place->fetcher;
    const struct session_config *config = &f->session->config;
    struct ring *ring = place->ring;

    child_prepare(parent);
    /* Before it has a view of its own: who has unmounted the mount ends those that have one. */
    if (config->mountpoint)
        atomic_store(&config->counters->ahead_pids[place->number], getpid());
    child.session = f->session;
    child.directory_fd = -1;
    child.root_fd = viewpoint_enter(&f->view);
    if (child.root_fd < 0 ||
        !(config->mountpoint ? is_own_mount(config->counters, child.root_fd)
                             : is_answered_by_us(place, child.root_fd)))
        _exit(EXIT_FAILURE);
    for (uint32_t next = 0;; next++) {
        atomic_store(&ring->done, next);
        futex_wake(&ring->done, 1, FUTEX_OF_NODE);
        while (atomic_load(&ring->given) == next)
            futex_wait(&ring->given, next, FUTEX_OF_NODE, NULL);
        int r = child_fetch(&child, ring->batches[next % RING].wants,
                            ring->batches[next % RING].count);
        if (r < 0)
            atomic_store(&ring->error, r);
    }
}

/* ---- children, for the daemon ---- */

/* Is the child in one of these states (waitid(2))? */
static bool child_is(const struct fetch_child *c, int states)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)c->pid, &info, states | WNOWAIT | WNOHANG) < 0 ||
           info.si_pid != 0;
}

static bool mount_fetcher_has_stopped(struct mount_fetcher *f)
{
    pthread_mutex_lock(&f->lock);
    bool stopped = f->stopped;
    pthread_mutex_unlock(&f->lock);
    return stopped;
}

/*
 * Wait until the child has done `batches`. False: it has ended, it stays stopped, which
 * would keep an unmounted mount alive, or its time is over.
 */
static bool child_await(struct fetch_child *c, uint32_t batches, uint64_t most_ns)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    uint64_t begun = now_ns();
    unsigned stopped = 0;
    uint32_t done;

    while ((int32_t)((done = atomic_load(&c->ring->done)) - batches) < 0) {
        futex_wait(&c->ring->done, done, FUTEX_OF_NODE, &look);
        stopped = child_is(c, WSTOPPED) ? stopped + 1 : 0;
        if (mount_fetcher_has_stopped(c->fetcher) || child_is(c, WEXITED) ||
            stopped > STOPPED_LOOKS || (most_ns && now_ns() - begun > most_ns))
            return (int32_t)(atomic_load(&c->ring->done) - batches) >= 0;
    }
    return true;
}

/* Under the lock. */
static void child_set_pid(struct fetch_child *c, pid_t pid)
{
    const struct session_config *config = &c->fetcher->session->config;

    c->pid = pid;
    if (config->mountpoint || !pid)
        atomic_store(&config->counters->ahead_pids[c->number], pid);
}

/* Under the lock. */
static void child_set_name(struct fetch_child *c)
{
    uint64_t secret = 0;

    if (getrandom(&secret, sizeof(secret), GRND_NONBLOCK) < 0)
        secret = now_ns();
    snprintf(c->name, sizeof(c->name), NAME_PREFIX "%016" PRIx64 "-%u", secret,
             c->fetcher->asked++);
}

static bool child_fork(struct fetch_child *c)
{
    struct mount_fetcher *f = c->fetcher;
    pid_t parent = getpid();

    c->given = 0;
    atomic_store(&c->ring->given, 0);
    atomic_store(&c->ring->done, NOT_READY);
    atomic_store(&c->ring->error, 0);
    atomic_store(&c->ring->seen, 0);
    pthread_mutex_lock(&f->lock);
    if (!f->session->config.mountpoint)
        child_set_name(c);
    pid_t pid = f->stopped ? -1 : fork();
    if (pid == 0)
        child_main(c, parent);
    child_set_pid(c, pid > 0 ? pid : 0);
    pthread_mutex_unlock(&f->lock);
    return pid > 0;
}

/* Kill it, and wait for its end; not for long where `most_ns` says so. */
static void child_kill(struct fetch_child *c, uint64_t most_ns)
{
    struct mount_fetcher *f = c->fetcher;
    const struct timespec rest = {.tv_nsec = 2000000};
    uint64_t until = now_ns() + most_ns;
    siginfo_t info;

    kill(c->pid, SIGKILL);
    while (most_ns && !child_is(c, WEXITED) && now_ns() < until)
        nanosleep(&rest, NULL);
    while (!most_ns && waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT) < 0 &&
           errno == EINTR)
        ;
    pthread_mutex_lock(&f->lock); /* so that no other process is signalled */
    waitpid(c->pid, NULL, WNOHANG);
    child_set_pid(c, 0);
    pthread_mutex_unlock(&f->lock);
}

/*
 * Other programs' mounts are among the places, and one that hangs may not keep us from trying
 * the next: its child is killed, and left behind if even that takes long.
 */
static bool child_start(struct fetch_child *c, bool is_sure)
{
    if (!child_fork(c))
        return false;
    if (child_await(c, 0, is_sure ? 0 : PROBE_NS))
        return true;
    child_kill(c, is_sure ? 0 : PROBE_NS);
    return false;
}

/* Try the places that may be the mount, until one is. */
static bool child_start_somewhere(struct fetch_child *c)
{
    struct mount_fetcher *f = c->fetcher;
    auto_free struct viewpoint *views = calloc(VIEWS_MAX, sizeof(*views));
    size_t count = views ? viewpoint_list(views, VIEWS_MAX) : 0;

    for (size_t i = 0; i < count && !f->has_view; i++) {
        f->view = views[i];
        f->has_view = child_start(c, false);
    }
    return f->has_view;
}

/* ---- the fetcher ---- */

static struct fetch_child *mount_fetcher_place(struct mount_fetcher *f)
{
    struct fetch_child *c = NULL;

    pthread_mutex_lock(&f->lock);
    for (unsigned i = 0; i < CHILDREN && !c; i++)
        if (!f->children[i].taken)
            c = &f->children[i];
    if (c)
        c->taken = true;
    pthread_mutex_unlock(&f->lock);
    return c;
}

static void mount_fetcher_give_back(struct fetch_child *c)
{
    pthread_mutex_lock(&c->fetcher->lock);
    c->taken = false;
    pthread_mutex_unlock(&c->fetcher->lock);
}

static int mount_fetcher_begin(void *ctx, void **ret_child)
{
    struct mount_fetcher *f = ctx;
    struct fetch_child *c = mount_fetcher_place(f);

    if (!c)
        return -EAGAIN;
    pthread_mutex_lock(&f->view_lock);
    bool looks = !f->has_view, started = looks && child_start_somewhere(c);
    pthread_mutex_unlock(&f->view_lock);
    if (!looks)
        started = child_start(c, true);
    if (!started) {
        atomic_store(&f->session->lists_ahead, false);
        mount_fetcher_give_back(c);
        return -ENOENT;
    }
    *ret_child = c;
    return 0;
}

static int mount_fetcher_fetch(void *ctx, void *child, const struct reader_want *wants,
                               size_t count)
{
    struct fetch_child *c = child;
    struct ring *ring = c->ring;
    uint32_t number = c->given++;

    (void)ctx;
    ring->batches[number % RING].count = count;
    memcpy(ring->batches[number % RING].wants, wants, count * sizeof(*wants));
    atomic_store(&ring->given, number + 1);
    futex_wake(&ring->given, 1, FUTEX_OF_NODE);
    return child_await(c, number, 0) ? atomic_load(&ring->error) : -ENOTCONN;
}

static void mount_fetcher_end_child(void *child)
{
    child_kill(child, 0);
    mount_fetcher_give_back(child);
}

static const struct fetcher mount_fetcher = {
    .begin = mount_fetcher_begin,
    .fetch = mount_fetcher_fetch,
    .end = mount_fetcher_end_child,
};

/*
 * The first request of a child at a mount that is elsewhere. It also shows the child's process
 * ID as the mount's PID namespace has it, by which its other requests are known.
 */
/* A look-up in the root: is it how a child shows that it has found the mount? */
static void mount_fetcher_look_up(struct mount_fetcher *f, struct request *rq)
{
    const char *name = rq->arg;

    if (rq->header->opcode != FUSE_LOOKUP || strncmp(name, NAME_PREFIX, NAME_PREFIX_LEN) != 0)
        return;
    pthread_mutex_lock(&f->lock);
    for (unsigned i = 0; i < CHILDREN; i++) {
        if (strncmp(name, f->children[i].name, NAME_BYTES) != 0)
            continue;
        rq->unseen = true;
        atomic_store(&f->session->config.counters->ahead_pids[i], (int32_t)rq->header->pid);
        if (!rq->header->pid)
            atomic_store(&f->session->nobody_is_fetcher, true);
        atomic_store(&f->rings[i].seen, 1);
    }
    pthread_mutex_unlock(&f->lock);
}

/* Kill its children and let nobody wait for them. From any thread. */
static void mount_fetcher_end(struct mount_fetcher *f)
{
    pthread_mutex_lock(&f->lock);
    f->stopped = true;
    for (unsigned i = 0; i < CHILDREN; i++)
        if (f->children[i].pid)
            kill(f->children[i].pid, SIGKILL);
    pthread_mutex_unlock(&f->lock);
    for (unsigned i = 0; i < CHILDREN; i++)
        futex_wake(&f->rings[i].done, 1, FUTEX_OF_NODE);
}

static int mount_fetcher_new(struct session *s, struct mount_fetcher **ret_fetcher)
{
    const char *mountpoint = s->config.mountpoint;
    struct mount_fetcher *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->session = s;
    f->rings = mmap(NULL, CHILDREN * sizeof(*f->rings), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f->rings == MAP_FAILED) {
        free(f);
        return -errno;
    }
    for (unsigned i = 0; i < CHILDREN; i++)
        f->children[i] = (struct fetch_child){.fetcher = f, .number = i, .ring = &f->rings[i]};
    if (mountpoint) {
        f->has_view = true;
        snprintf(f->view.path, sizeof(f->view.path), "%s", mountpoint);
    }
    pthread_mutex_init(&f->view_lock, NULL);
    pthread_mutex_init(&f->lock, NULL);
    *ret_fetcher = f;
    return 0;
}

static void mount_fetcher_free(struct mount_fetcher *f)
{
    if (!f)
        return;
    munmap(f->rings, CHILDREN * sizeof(*f->rings));
    pthread_mutex_destroy(&f->view_lock);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- the feature ---- */

struct ahead_feature {
    struct session *session;
    struct ahead *ahead;
    struct mount_fetcher *mount; /* NULL: nothing is fetched through the mount */
    bool records;
    struct observer *observers[SESSION_WORKERS_MAX]; /* by number of their workers */
};

static void note_order(void *ctx, const char *line)
{
    session_note(ctx, line);
}

/*
 * How much may be fetched before its reader asks: into the block cache from a distant archive,
 * else into the kernel's.
 */
static uint64_t window_bytes(const struct session *s, bool local)
{
    const struct session_config *config = &s->config;

    if (config->stage || (local && !config->order))
        return 0;
    return min_u64(config->readahead_bytes, local ? budget_room_bytes("") / 8
                                                  : config->counters->cache_budget_bytes / 2);
}

/* The memory that is free for files near the ones that are read; 0: not now. */
static uint64_t room_bytes(void *ctx)
{
    const struct session_config *config = &((const struct session *)ctx)->config;

    /*
     * Bytes not copied yet are far away. While a stream is unpacked, as many requests would
     * wait as the kernel allows.
     */
    if (!source_is_local(config->fileset->source) ||
        (config->stage && stage_stream_progress_ns(config->stage) != 0))
        return 0;
    return budget_room_bytes("");
}

/* Fetches through the mount. */
static int set_mount(struct session *s, struct ahead_options *o,
                     struct mount_fetcher **ret_mount)
{
    const struct session_config *config = &s->config;
    const struct index_info *info = index_info(s->index);
    bool local = config->stage || source_is_local(config->fileset->source);

    if (!config->readahead_bytes || !(config->mountpoint || config->is_elsewhere))
        return 0;
    o->mount_fetchers = config->counters->threads;
    /* On one CPU nothing is gained by listing ahead of a walk. */
    o->walks = o->mount_fetchers > 1 && info->entries >= WALK_ENTRIES;
    o->names = info->entries >= NAMES_ENTRIES;
    o->all_names = o->walks && info->entries <= ALL_NAMES_MOST &&
                   info->entries <= listing_budget_entries(s) && config->mountpoint &&
                   config->readahead_bytes == UINT64_MAX;
    /* A record shows only what readers ask the mount for. */
    if (local && !config->order && !config->recorder && info->files >= NEARBY_FILES)
        o->nearby_bytes = config->readahead_bytes;
    if (!o->walks && !o->names && !o->nearby_bytes)
        return 0;
    o->room_bytes = room_bytes;
    o->room_ctx = s;
    o->mount = &mount_fetcher;
    int r = mount_fetcher_new(s, ret_mount);
    atomic_store(&s->lists_ahead, r == 0 && o->names);
    o->mount_ctx = *ret_mount;
    return r;
}

static int feature_ahead_start(struct session *s, void **ret_state)
{
    bool local = source_is_local(s->config.fileset->source);
    uint64_t room = budget_room_bytes("") / ORDER_SHARE;
    struct ahead_options options = {
        .index = s->index,
        .root = s->config.root,
        .seed = s->config.seed,
        .window_bytes = window_bytes(s, local),
        .most_bytes = min_u64(max_u64(room, ORDER_BYTES_LEAST), ORDER_BYTES_MOST),
        .given = s->config.order,
        .log = note_order,
        .log_ctx = s,
        .fetcher = &ahead_reader_fetcher,
        .fetcher_ctx = s->config.reader,
        .fetchers = local ? FETCHERS_LOCAL : FETCHERS_REMOTE,
        .recorder = s->config.recorder,
        .stuck_ms = s->config.io_timeout_s < STUCK_MAX_S ? s->config.io_timeout_s * 500u : 0,
        .now_ns = now_ns,
        .replaced = &s->config.counters->replacements,
    };
    struct ahead_feature *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->session = s;
    f->records = options.recorder;
    int r = set_mount(s, &options, &f->mount);
    if (r == 0 && (options.recorder || options.window_bytes || options.mount))
        r = ahead_new(&options, &f->ahead);
    if (r < 0 || !f->ahead) {
        mount_fetcher_free(f->mount);
        free(f);
        return r;
    }
    s->config.recorder = NULL; /* taken over */
    *ret_state = f;
    return 0;
}

static int feature_ahead_add_worker(void *state, struct worker *w)
{
    struct ahead_feature *f = state;

    return ahead_observer(f->ahead, &f->observers[w->number]);
}

static int feature_ahead_before_read(void *state, struct read *read)
{
    const struct ahead_feature *f = state;
    const struct request *rq = read->rq;
    const struct observation seen = {.time_ns = rq->received_ns,
                                     .offset = read->offset,
                                     .position = read->position,
                                     .len = read->size,
                                     .task = rq->header->pid};

    if (!rq->own)
        observer_note(f->observers[rq->worker->number], &seen);
    return 0;
}

static void feature_ahead_after_listing(void *state, const struct request *rq, uint32_t from,
                                        uint32_t to, bool attributes)
{
    const struct ahead_feature *f = state;
    const struct observation seen = {.time_ns = rq->received_ns,
                                     .kind = OBSERVED_LISTING,
                                     .position = rq->position,
                                     .offset = from,
                                     .len = to - from,
                                     .names_only = !attributes,
                                     .own = rq->own,
                                     .task = rq->header->pid};

    observer_note(f->observers[rq->worker->number], &seen);
}

static void feature_ahead_after_lookup(void *state, const struct request *rq, uint32_t position)
{
    const struct ahead_feature *f = state;
    const struct observation seen = {.time_ns = rq->received_ns,
                                     .kind = OBSERVED_LOOKUP,
                                     .position = position,
                                     .task = rq->header->pid};

    if (!rq->own)
        observer_note(f->observers[rq->worker->number], &seen);
}

static bool feature_ahead_answer(void *state, struct request *rq)
{
    const struct ahead_feature *f = state;

    if (f->mount)
        mount_fetcher_look_up(f->mount, rq);
    return false; /* there is no such name */
}

static void name_folder(const struct session *s, uint32_t directory)
{
    struct counters *c = s->config.counters;
    size_t len;

    if (index_path(s->index, directory, c->order_folder, sizeof(c->order_folder), &len) < 0)
        c->order_folder[0] = '\0';
}

static void feature_ahead_update_counters(void *state)
{
    const struct ahead_feature *f = state;
    const struct session *s = f->session;
    struct counters *c = s->config.counters;
    struct ahead_stats stats;

    if (!source_is_local(s->config.fileset->source)) /* it has none, if it had none at first */
        ahead_set_window(f->ahead, window_bytes(s, false));
    ahead_stats(f->ahead, &stats);
    atomic_store(&c->foreseen_kind, stats.kind);
    atomic_store(&c->foreseen_requests, stats.requests);
    atomic_store(&c->foreseen_bytes, stats.bytes);
    atomic_store(&c->foreseen_used, stats.used);
    atomic_store(&c->foreseen_late, stats.late);
    atomic_store(&c->foreseen_unused, stats.unused);
    atomic_store(&c->foreseen_in_order, stats.in_order);
    atomic_store(&c->foreseen_lost, stats.observations_lost);
    if (stats.orders_recognised != atomic_load(&c->orders_recognised))
        name_folder(s, stats.order_directory);
    atomic_store(&c->orders_recognised, stats.orders_recognised);
    atomic_store(&c->orders_lost, stats.orders_lost);
    atomic_store(&c->order_files, stats.order_files);
    atomic_store(&c->order_epoch, stats.order_epoch);
    atomic_store(&c->order_reads, stats.order_reads);
    atomic_store(&c->order_world, stats.world);
    atomic_store(&c->order_local, stats.local);
}

static void feature_ahead_end(void *state)
{
    const struct ahead_feature *f = state;

    ahead_end(f->ahead);
    if (f->mount)
        mount_fetcher_end(f->mount);
}

static int feature_ahead_join(void *state, const struct timespec *until)
{
    const struct ahead_feature *f = state;
    int recorded, r = ahead_join(f->ahead, until, &recorded);
    struct ahead_stats stats;

    ahead_stats(f->ahead, &stats);
    if (recorded < 0)
        session_log(f->session, "the record of reads could not be written: %s",
                    fault_errno(recorded));
    else if (f->records && stats.observations_lost > 0)
        session_log(f->session, "the record of reads is incomplete: %llu reads came too fast",
                    (unsigned long long)stats.observations_lost);
    return r;
}

static void feature_ahead_free(void *state)
{
    struct ahead_feature *f = state;

    ahead_free(f->ahead);
    mount_fetcher_free(f->mount);
    free(f);
}

const struct feature ahead_feature = {
    .start = feature_ahead_start,
    .add_worker = feature_ahead_add_worker,
    .before_read = feature_ahead_before_read,
    .after_listing = feature_ahead_after_listing,
    .after_lookup = feature_ahead_after_lookup,
    .answer = feature_ahead_answer,
    .update_counters = feature_ahead_update_counters,
    .end = feature_ahead_end,
    .join = feature_ahead_join,
    .free = feature_ahead_free,
};
