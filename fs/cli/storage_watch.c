#include "storage_watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "interrupt.h"
#include "mountinfo.h"
#include "numbers.h"
#include "pause.h"
#include "process.h"
#include "source.h"
#include "syscalls.h"
#include "thread.h"

#define STACK_BYTES (128u << 10)
#define TASKS_MOST 512
#define LOOK_EVERY_MS 200
#define LOOK_EVERY_NS (LOOK_EVERY_MS * UINT64_C(1000000))
#define PATIENCE_NS UINT64_C(1000000000) /* in one call, after a signal */
#define TELL_S 5
#define LEAVE_MS 100 /* for the end of a child that is not stuck */

/* A thread of this process, or of a child that parses for it. */
struct task {
    pid_t id;
    bool is_seen; /* at this look */
    struct storage_wait wait;
};

static struct storage_watch {
    pthread_t thread;
    bool started;
    sem_t runs;           /* posted once the thread has started */
    struct pause pause;   /* between two looks */
    pthread_mutex_t lock; /* of what follows; held during a look */
    bool watches;
    bool has_told;
    bool is_apart;
    bool writes_file; /* standard output is one */
    int word_fd;      /* to the parent, if this is a child apart */
    const char *path;
    unsigned timeout_s;
    struct task tasks[TASKS_MOST];
    size_t task_count;
    pid_t ids[TASKS_MOST];       /* of a child */
    struct storage_wait longest; /* of all tasks at this look */
    enum storage_verdict verdict;
    char file[PATH_MAX]; /* that the longest wait is for; empty: unknown */
    int signal;          /* of the process at this look */
    /*
     * The clock of waits counts at most two looks' time between two looks: a process that was
     * stopped could take no answer.
     */
    uint64_t looked_ns, clock_ns;
    int status; /* exit status of the process that it ends */
} storage_watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* clang-format off */
static const long calls_of_paths[] = {
    SYS_openat, SYS_statx, SYS_statfs, SYS_readlinkat, SYS_faccessat, SYS_mkdirat, SYS_unlinkat,
    SYS_linkat, SYS_symlinkat, SYS_renameat2, SYS_fchmodat, SYS_fchownat, SYS_utimensat,
#ifdef SYS_faccessat2
    SYS_faccessat2,
#endif
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_open
    SYS_open, SYS_stat, SYS_lstat, SYS_readlink, SYS_access, SYS_mkdir, SYS_unlink, SYS_rmdir,
    SYS_rename, SYS_link, SYS_symlink,
#endif
};

/* Without fsync and close, which may have much to write. */
static const long calls_of_descriptors[] = {
    SYS_read, SYS_readv, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_fstat, SYS_fstatfs,
    SYS_getdents64, SYS_write, SYS_writev, SYS_pwrite64, SYS_pwritev, SYS_pwritev2,
    SYS_copy_file_range, SYS_ftruncate, SYS_fallocate,
};
/* clang-format on */

static bool is_in(long call, const long *calls, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(*calls); i++)
        if (calls[i] == call)
            return true;
    return false;
}

/* Is the descriptor a file's, whose storage may hang, and no pipe's, device's or terminal's? */
static bool is_of_file(const struct storage_watch *w, int fd, char ret_file[PATH_MAX])
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, ret_file, PATH_MAX - 1);
    ret_file[n < 0 ? 0 : n] = '\0';
    return *ret_file == '/' && strncmp(ret_file, "/memfd:", 7) != 0 &&
           strncmp(ret_file, "/dev/", 5) != 0 &&
           (fd > STDERR_FILENO || (fd == STDOUT_FILENO && w->writes_file));
}

/* A FIFO has a path as well, and waits for a person or a program. */
static bool waits_for_pipe(pid_t thread)
{
    char path[64], place[64];

    snprintf(path, sizeof(path), "/proc/self/task/%d/wchan", (int)thread);
    return proc_text(path, place, sizeof(place)) == 0 &&
           (strstr(place, "pipe") || strstr(place, "partner"));
}

/* Is the thread in a system call to a filesystem? */
static bool asks_storage(const struct storage_watch *w, pid_t thread, char ret_file[PATH_MAX])
{
    struct process_facts facts = {.is_stuck = false};
    char path[64], text[256];
    unsigned long long first;
    long call;

    ret_file[0] = '\0';
    /* Through self: where /proc is another PID namespace's, there is no such thread. */
    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)thread);
    if (proc_text(path, text, sizeof(text)) < 0 || sscanf(text, "%ld %llx", &call, &first) != 2)
        return false; /* it runs */
    if (call < 0)     /* a page fault, perhaps in a mapped file */
        return process_look(thread, &facts) == 0 && facts.is_stuck;
    return (is_in(call, calls_of_paths, sizeof(calls_of_paths)) ||
            (is_in(call, calls_of_descriptors, sizeof(calls_of_descriptors)) &&
             is_of_file(w, (int)first, ret_file))) &&
           !waits_for_pipe(thread);
}

/* The signal that this process has, or waits with, for its end; 0: none. */
static int storage_signal(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    uint64_t of_thread = 0, of_process = 0;

    process_status_number(getpid(), "\nSigPnd:", 16, &of_thread);
    process_status_number(getpid(), "\nShdPnd:", 16, &of_process);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if ((of_thread | of_process) & (UINT64_C(1) << (signals[i] - 1)))
            return signals[i];
    return atomic_load(interrupt_flag());
}

enum storage_verdict storage_judge(struct storage_wait *w, const struct storage_look *look,
                                   uint64_t now)
{
    if (!look->asks_storage || look->waits != w->waits)
        w->since_ns = now;
    w->waits = look->waits;
    if (!look->signal)
        w->asked_ns = now;
    else if (now - w->asked_ns > PATIENCE_NS && now - w->since_ns > PATIENCE_NS)
        return STORAGE_DIE;
    return w->timeout_s && now - w->since_ns > w->timeout_s * UINT64_C(1000000000)
               ? STORAGE_GIVE_UP
               : STORAGE_WAIT;
}

/* ---- all threads ---- */

static struct task *find_task(struct storage_watch *w, pid_t id)
{
    for (size_t i = 0; i < w->task_count; i++)
        if (w->tasks[i].id == id)
            return &w->tasks[i];
    if (w->task_count == TASKS_MOST)
        return NULL;
    struct task *task = &w->tasks[w->task_count++];
    *task = (struct task){.id = id, .wait = {.since_ns = w->clock_ns, .asked_ns = w->clock_ns}};
    return task;
}

static void judge_task(struct storage_watch *w, pid_t id, const struct storage_look *look,
                       const char *file)
{
    struct task *task = find_task(w, id);

    if (!task)
        return;
    task->is_seen = true;
    task->wait.timeout_s = w->timeout_s;
    enum storage_verdict verdict = storage_judge(&task->wait, look, w->clock_ns);
    if (verdict > w->verdict)
        w->verdict = verdict;
    if (task->wait.since_ns >= w->longest.since_ns)
        return;
    w->longest = task->wait;
    strcpy(w->file, file);
}

static void look_at_thread(struct storage_watch *w, pid_t thread)
{
    char file[PATH_MAX];
    struct storage_look look = {.asks_storage = asks_storage(w, thread, file),
                                .signal = w->signal};

    process_status_number(thread, "\nvoluntary_ctxt_switches:", 10, &look.waits);
    judge_task(w, thread, &look, file);
}

/* The threads of a process, without opendir, which allocates. */
static size_t list_threads(const char *process, pid_t ret_ids[TASKS_MOST])
{
    _Alignas(struct dirent64) char names[4096];
    size_t count = 0;
    char path[64];
    long n;

    snprintf(path, sizeof(path), "/proc/%s/task", process);
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, names, sizeof(names))) > 0)
        for (const char *p = names; p < names + n;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)p;
            pid_t id = atoi(entry->d_name);
            if (id > 0 && count < TASKS_MOST)
                ret_ids[count++] = id;
            p += entry->d_reclen;
        }
    return count;
}

/*
 * A child that parses an archive in a sandbox hides its calls. But it has nobody to wait for
 * but storage: it does if all of its threads sleep.
 */
static void look_at_parser(struct storage_watch *w, const char *process)
{
    struct storage_look look = {.asks_storage = true, .signal = w->signal};
    struct process_facts facts = {.is_fork = false};
    size_t count = list_threads(process, w->ids);

    for (size_t i = 0; i < count; i++) {
        uint64_t waits = 0;
        process_status_number(w->ids[i], "\nvoluntary_ctxt_switches:", 10, &waits);
        look.waits += waits;
        look.asks_storage &= process_look(w->ids[i], &facts) == 0 && facts.is_fork &&
                             (facts.is_asleep || facts.is_stuck);
    }
    if (count > 0)
        judge_task(w, atoi(process), &look, "");
}

/* The kernel may have been built without this list. */
static void look_at_children(struct storage_watch *w, pid_t thread)
{
    char path[64], text[512], *save;

    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)thread);
    if (proc_text(path, text, sizeof(text)) < 0)
        return;
    for (char *child = strtok_r(text, " ", &save); child; child = strtok_r(NULL, " ", &save))
        look_at_parser(w, child);
}

static void look_at_all(struct storage_watch *w)
{
    const pid_t self = (pid_t)syscall(SYS_gettid);
    pid_t ids[TASKS_MOST];
    size_t kept = 0;

    w->verdict = STORAGE_WAIT;
    w->longest = (struct storage_wait){.since_ns = w->clock_ns};
    w->signal = storage_signal();
    for (size_t i = 0; i < w->task_count; i++)
        w->tasks[i].is_seen = false;
    size_t count = list_threads("self", ids);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] != self)
            look_at_thread(w, ids[i]);
        look_at_children(w, ids[i]);
    }
    for (size_t i = 0; i < w->task_count; i++)
        if (w->tasks[i].is_seen)
            w->tasks[kept++] = w->tasks[i];
    w->task_count = kept;
}

/* ---- the end ---- */

/* Its last word to the parent, which then waits no longer. */
struct last_word {
    int status; /* of exit */
    int signal; /* 0: none ended it */
};

/*
 * This process ends when its first thread comes back. Nobody must wait until then for the end
 * of its output.
 */
static void storage_leave(const struct storage_watch *w, int status, int number)
{
    const struct last_word word = {status, number};

    if (w->is_apart && write(w->word_fd, &word, sizeof(word)) == sizeof(word))
        for (int fd = 0; fd <= 2; fd++)
            close(fd);
    if (number)
        interrupt_die_of(number);
    _exit(status);
}

/* The file that hangs, or the one that the command named. */
static const char *silent_file(const struct storage_watch *w)
{
    return w->file[0] ? w->file : w->path;
}

static void storage_give_up(const struct storage_watch *w)
{
    cli_failf(silent_file(w),
              "its storage has not answered for %u s; try again, or wait longer with "
              "--io-timeout",
              w->timeout_s);
    fflush(NULL);
    storage_leave(w, w->status, 0);
}

/* Once in a wait. */
static void tell_of_wait(struct storage_watch *w)
{
    bool is_long = w->clock_ns - w->longest.since_ns > TELL_S * UINT64_C(1000000000);
    char limit[32] = "";

    if (w->timeout_s)
        snprintf(limit, sizeof(limit), " for up to %u s", w->timeout_s);
    if (is_long && !w->has_told)
        cli_note("%s: its storage has not answered for %d s; this waits for it%s",
                 silent_file(w), TELL_S, limit);
    w->has_told = is_long;
}

static void look_and_act(struct storage_watch *w)
{
    uint64_t now = now_ns();

    w->clock_ns += min_u64(now - w->looked_ns, 2 * LOOK_EVERY_NS);
    w->looked_ns = now;
    look_at_all(w);
    if (w->verdict == STORAGE_DIE)
        storage_leave(w, w->status, w->signal);
    if (w->verdict == STORAGE_GIVE_UP)
        storage_give_up(w);
    tell_of_wait(w);
}

/*
 * Allocates nothing. A watched thread forks, and not every allocator is intact in a child
 * whose parent was using it just then. The same holds while a thread starts, hence `runs`.
 */
static void *storage_watch_run(void *arg)
{
    struct storage_watch *w = arg;

    sem_post(&w->runs);
    while (pause_for(&w->pause, LOOK_EVERY_NS)) {
        pthread_mutex_lock(&w->lock);
        if (w->watches)
            look_and_act(w);
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

/* ---- a child apart ---- */

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

static _Noreturn void end_as(int status, int number)
{
    const struct rlimit none = {0, 0};

    if (number) {
        setrlimit(RLIMIT_CORE, &none); /* the child's is enough */
        interrupt_die_of(number);
    }
    _exit(status);
}

static _Noreturn void leave_behind(pid_t child, int status, int number)
{
    if (waitpid(child, NULL, WNOHANG) == 0)
        cli_note("process %d is left behind; it ends when the storage answers", (int)child);
    end_as(status, number);
}

/* End as the child has, or without it. */
static void end_if_over(pid_t child, int word_fd)
{
    struct last_word word;
    struct pollfd p = {.fd = word_fd, .events = POLLIN};
    int status;

    if (waitpid(child, &status, WNOHANG) == child)
        end_as(WEXITSTATUS(status), WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    if (poll(&p, 1, 0) <= 0 || read(word_fd, &word, sizeof(word)) != sizeof(word))
        return;
    for (int ms = 0; ms < LEAVE_MS && waitpid(child, NULL, WNOHANG) == 0; ms++)
        poll(NULL, 0, 1);
    leave_behind(child, word.status, word.signal);
}

/* A signal of a terminal comes to the child by itself. */
static void pass_on(pid_t child, int signals, int *asked)
{
    struct signalfd_siginfo info;

    if (read(signals, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGCHLD)
        return;
    if (info.ssi_code != SI_KERNEL)
        kill(child, (int)info.ssi_signo);
    *asked = (int)info.ssi_signo;
}

/* A child that is stuck in a call when a signal kills it has nobody who could tell. */
static _Noreturn void attend(pid_t child, int word_fd, const sigset_t *set)
{
    struct process_facts facts = {.start_ticks = 0};
    int signals = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK), asked = 0;
    uint64_t killed_ns = 0;

    signal(SIGCHLD, SIG_DFL);
    process_look(child, &facts);
    for (;;) {
        struct pollfd p[] = {{.fd = signals, .events = POLLIN},
                             {.fd = word_fd, .events = POLLIN}};
        end_if_over(child, word_fd);
        poll(p, 2, asked ? LOOK_EVERY_MS : -1);
        if (p[1].revents == POLLHUP)
            word_fd = -1; /* it ends */
        pass_on(child, signals, &asked);
        if (!asked || !process_is_killed(child, facts.start_ticks))
            continue;
        killed_ns = killed_ns ? killed_ns : now_ns();
        if (now_ns() - killed_ns > PATIENCE_NS)
            leave_behind(child, CLI_FAILED, asked);
    }
}

/*
 * A signal that is caught, even if only to die of it, waits for a thread that is stuck, and the
 * second thread sees it. One that is not would end that thread first.
 */
static void die_by_handler(void)
{
    struct sigaction now;

    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
        if (sigaction(passed_on[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            /* NOLINTNEXTLINE(bugprone-signal-handler): all that it calls is safe in one */
            signal(passed_on[i], interrupt_die_of);
}

/* Go on in a child; this process attends to it. Without one it goes on as it is. */
static void storage_part(struct storage_watch *w)
{
    sigset_t set, before;
    int word[2];
    pid_t parent = getpid();

    if (pipe2(word, O_CLOEXEC) < 0)
        return;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
        sigaddset(&set, passed_on[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    pid_t child = fork();
    if (child > 0) {
        close(word[1]);
        attend(child, word[0], &set);
    }
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
        _exit(CLI_FAILED);
    if (child == 0)
        die_by_handler();
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(word[0]);
    w->is_apart = child == 0;
    w->word_fd = word[1];
    if (child < 0)
        close(word[1]);
}

bool storage_watch_is_apart(void)
{
    return storage_watch.is_apart;
}

/* ---- local storage ---- */

/* Takes over the descriptor, and returns it if it is of this node's storage. */
static int if_here(int fd)
{
    struct mount_entry mount;

    if (fd < 0 ||
        (mountinfo_of(fd, &mount) == 0 && mount.is_of_node && storage_of(fd).is_local))
        return fd;
    close(fd);
    return -EXDEV;
}

/*
 * The kernel's memory tells where a path leads, without a question to any filesystem. It may
 * have forgotten the path's end. A folder of this node's storage may be asked for that, as far
 * as no link and no mount leads out of it.
 */
static int open_here(const char *path)
{
    char above[PATH_MAX];
    int fd = if_here(syscall_open_name(AT_FDCWD, path, SYSCALL_CACHED));

    for (size_t len = strlen(path); fd == -EAGAIN && len > 0 && len < sizeof(above);) {
        while (len > 0 && path[len - 1] == '/')
            len--;
        while (len > 0 && path[len - 1] != '/')
            len--;
        snprintf(above, sizeof(above), "%.*s", len ? (int)len : 1, len ? path : ".");
        auto_close int folder = if_here(syscall_open_name(AT_FDCWD, above, SYSCALL_CACHED));
        fd = folder < 0 ? folder
                        : if_here(syscall_open_name(folder, path + len, SYSCALL_WITHIN));
    }
    return fd;
}

bool storage_is_here(const char *path)
{
    auto_close int fd = open_here(path);
    return fd >= 0;
}

/* A folder of archives, or a list, may lead elsewhere. */
static bool are_files_here(char *const *words, size_t count)
{
    struct stat st;

    for (size_t i = 0; i < count; i++) {
        auto_close int fd = open_here(words[i]);
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
            return false;
    }
    return count > 0;
}

/* ---- the second thread ---- */

static void storage_watch_start(struct storage_watch *w)
{
    pause_init(&w->pause);
    sem_init(&w->runs, 0, 0);
    w->started = thread_start(&w->thread, STACK_BYTES, storage_watch_run, w) == 0;
    while (w->started && sem_wait(&w->runs) < 0)
        ; /* interrupted by a signal */
}

void storage_watch_begin(char *const *words, size_t count, unsigned timeout_s, int status)
{
    struct storage_watch *w = &storage_watch;
    struct stat st;

    if (!w->is_apart && are_files_here(words, count))
        return;
    if (!w->is_apart)
        storage_part(w);
    if (!w->started)
        storage_watch_start(w);
    pthread_mutex_lock(&w->lock);
    w->path = words[0];
    w->timeout_s = timeout_s;
    w->task_count = 0;
    w->looked_ns = now_ns();
    w->status = status;
    w->has_told = false;
    w->watches = true;
    pthread_mutex_unlock(&w->lock);
    w->writes_file = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode);
}

void storage_watch_end(void)
{
    pthread_mutex_lock(&storage_watch.lock);
    storage_watch.watches = false;
    pthread_mutex_unlock(&storage_watch.lock);
}

void storage_watch_stop(void)
{
    struct storage_watch *w = &storage_watch;

    if (!w->started)
        return;
    pause_end(&w->pause);
    pthread_join(w->thread, NULL);
    sem_destroy(&w->runs);
    w->started = false;
}
