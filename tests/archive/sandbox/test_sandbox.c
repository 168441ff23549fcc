/*
 * The sandbox holds what it promises: whatever the child does, the parent gets an
 * errno and a fault, soon, and nothing is left behind.
 */
#include <check.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sandbox.h"
#include "sanitizer.h"
#include "suite.h"

typedef int function(void *arg, struct progress *progress, struct fault *fault);

#define IDLE_S 1000 /* however long a busy machine lets the child wait */

static int run(function *fn, void *arg, struct fault *fault)
{
    memset(fault, 0, sizeof(*fault));
    struct sandbox_limits limits = {.stall_seconds = 1, .idle_seconds = IDLE_S};
    return sandbox_run(fn, arg, &limits, NULL, NULL, fault);
}

/* No child of this process is left, dead or alive. */
static void assert_no_children(void)
{
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}

static int fn_ok(void *arg, struct progress *progress, struct fault *fault)
{
    (void)fault;
    progress->members = 42;
    snprintf(progress->note, sizeof(progress->note), "a remark");
    return *(int *)arg;
}

static bool keep_last(void *ctx, const struct progress *progress)
{
    struct progress *last = ctx;
    last->members = progress->members;
    memcpy(last->note, progress->note, sizeof(last->note));
    return true;
}

START_TEST(result_and_final_progress_come_back)
{
    struct fault fault = {0};
    struct progress last = {0};
    struct sandbox_limits limits = {0};
    int zero = 0, enoent = -ENOENT;
    ck_assert_int_eq(sandbox_run(fn_ok, &zero, &limits, keep_last, &last, &fault), 0);
    ck_assert_uint_eq(last.members, 42);
    ck_assert_str_eq(last.note, "a remark");
    ck_assert_int_eq(fault.err, 0);
    ck_assert_int_eq(sandbox_run(fn_ok, &enoent, &limits, NULL, NULL, &fault), -ENOENT);
    ck_assert_int_eq(fault.err, 0);
    assert_no_children();
}
END_TEST

static int fn_asks_storage(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg, (void)progress, (void)fault;
    source_add_requests((struct source_requests){3, 500});
    return 0;
}

START_TEST(requests_of_the_child_are_counted_with_its_parents)
{
    struct fault fault;
    const struct source_requests before = source_requests();
    ck_assert_int_eq(run(fn_asks_storage, NULL, &fault), 0);
    ck_assert_uint_eq(source_requests().count - before.count, 3);
    ck_assert_uint_eq(source_requests().bytes - before.bytes, 500);
}
END_TEST

static int fn_fault(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg, (void)progress;
    return fault_set(fault, -EINVAL, "a/b", 77, "is odd");
}

START_TEST(fault_of_the_child_comes_back)
{
    struct fault fault;
    ck_assert_int_eq(run(fn_fault, NULL, &fault), -EINVAL);
    ck_assert_int_eq(fault.err, EINVAL);
    ck_assert_str_eq(fault.member, "a/b");
    ck_assert_str_eq(fault.what, "is odd");
    ck_assert_uint_eq(fault.offset, 77);
    ck_assert_int_eq(sandbox_run(fn_fault, NULL, &(struct sandbox_limits){0}, NULL, NULL, NULL),
                     -EINVAL);
}
END_TEST

static int fn_hostile_fault(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg;
    memset(fault, 'x', sizeof(*fault)); /* no terminator anywhere, err is 0x78787878 */
    memset(progress->note, 'y', sizeof(progress->note));
    return -EBADMSG;
}

START_TEST(fault_without_an_end_is_ended)
{
    struct fault fault;
    ck_assert_int_eq(run(fn_hostile_fault, NULL, &fault), -EBADMSG);
    ck_assert_int_eq(fault.err, EBADMSG);
    ck_assert_uint_eq(strnlen(fault.what, sizeof(fault.what)), sizeof(fault.what) - 1);
    ck_assert_uint_eq(strnlen(fault.member, sizeof(fault.member)), sizeof(fault.member) - 1);
    ck_assert_uint_eq(strnlen(fault.advice, sizeof(fault.advice)), sizeof(fault.advice) - 1);
}
END_TEST

static int fn_odd_result(void *arg, struct progress *progress, struct fault *fault)
{
    (void)progress, (void)fault;
    return *(int *)arg;
}

START_TEST(result_that_is_no_errno_means_damaged)
{
    static const int odd[] = {1, 4096, -4096, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        struct fault fault;
        int value = odd[i];
        ck_assert_int_eq(run(fn_odd_result, &value, &fault), -EUCLEAN);
        ck_assert_ptr_nonnull(strstr(fault.what, "damaged"));
    }
}
END_TEST

static int fn_raise(void *arg, struct progress *progress, struct fault *fault)
{
    (void)progress, (void)fault;
    signal(*(int *)arg, SIG_DFL); /* a sanitizer may catch it */
    raise(*(int *)arg);
    return 0;
}

START_TEST(crash_means_damaged_archive)
{
    static const struct {
        int signal;
        int err;
    } cases[] = {
        {SIGSEGV, EUCLEAN}, {SIGABRT, EUCLEAN}, {SIGFPE, EUCLEAN},
        {SIGILL, EUCLEAN},  {SIGSYS, EUCLEAN},  {SIGBUS, EIO},
        {SIGKILL, ENOMEM},  {SIGINT, EINTR},    {SIGTERM, EINTR},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fault fault;
        int signal = cases[i].signal;
        ck_assert_int_eq(run(fn_raise, &signal, &fault), -cases[i].err);
        ck_assert_int_eq(fault.err, cases[i].err);
        ck_assert_str_ne(fault.what, "");
        if (signal == SIGSEGV)
            ck_assert_str_eq(fault.what, "the archive made its parser crash (signal 11): "
                                         "damaged archive");
    }
    assert_no_children();
}
END_TEST

static int fn_exit(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg, (void)progress, (void)fault;
    _exit(0);
}

START_TEST(exit_without_a_result_means_damaged)
{
    struct fault fault;
    ck_assert_int_eq(run(fn_exit, NULL, &fault), -EUCLEAN);
}
END_TEST

static int fn_spin(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg, (void)progress, (void)fault;
    for (volatile bool on = true; on;)
        ;
    return 0;
}

/* Says that it has begun, and waits for a word: for ever, if none comes. */
static struct talk {
    int begun[2], word[2];
} talk;

static int fn_wait(void *arg, struct progress *progress, struct fault *fault)
{
    char byte;
    (void)arg, (void)progress, (void)fault;
    if (write(talk.begun[1], "x", 1) != 1)
        return -errno;
    return read(talk.word[0], &byte, 1) == 1 ? 0 : -EIO;
}

static int run_waiting(uint32_t idle_seconds, struct fault *fault)
{
    const int keep[] = {talk.begun[1], talk.word[0]};
    struct sandbox_limits limits = {
        .stall_seconds = 1, .idle_seconds = idle_seconds, .keep_fds = keep, .keep_fd_count = 2};
    *fault = (struct fault){0};
    return sandbox_run(fn_wait, NULL, &limits, NULL, NULL, fault);
}

static void begin_talk(void)
{
    ck_assert_int_eq(pipe(talk.begun) | pipe(talk.word), 0);
}

static void end_talk(void)
{
    for (int i = 0; i < 2; i++) {
        close(talk.begun[i]);
        close(talk.word[i]);
    }
}

static bool not_twice(void *ctx, const struct progress *progress)
{
    (void)progress;
    return ++*(int *)ctx < 2;
}

START_TEST(watch_may_stop_the_child)
{
    const struct sandbox_limits limits = {.watch_ms = 1};
    struct fault fault = {0};
    int looks = 0;
    ck_assert_int_eq(sandbox_run(fn_spin, NULL, &limits, not_twice, &looks, &fault),
                     -ECANCELED);
    ck_assert_int_eq(looks, 2);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

static bool never(void *ctx, const struct progress *progress)
{
    (void)progress;
    ++*(int *)ctx;
    return false;
}

START_TEST(first_look_may_stop_the_child)
{
    const struct sandbox_limits limits = {.watch_at_once = true};
    struct fault fault = {0};
    int looks = 0;
    ck_assert_int_eq(sandbox_run(fn_spin, NULL, &limits, never, &looks, &fault), -ECANCELED);
    ck_assert_int_eq(looks, 1);
    assert_no_children();
}
END_TEST

START_TEST(busy_child_without_progress_is_killed)
{
    struct fault fault;
    ck_assert_int_eq(run(fn_spin, NULL, &fault), -EUCLEAN);
    ck_assert_ptr_nonnull(strstr(fault.what, "without progress"));
    assert_no_children();
}
END_TEST

START_TEST(idle_child_without_progress_is_killed)
{
    struct fault fault;
    begin_talk();
    ck_assert_int_eq(run_waiting(1, &fault), -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(fault.what, "did not answer for 1 seconds"));
    assert_no_children();
    end_talk();
}
END_TEST

/* Works twice as long as a stall may last, and makes progress all the time. */
static int fn_slow(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg, (void)fault;
    struct timespec t;
    do {
        progress->bytes_done++;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    } while (t.tv_sec < 2);
    return 0;
}

START_TEST(slow_child_with_progress_may_go_on)
{
    struct fault fault;
    ck_assert_int_eq(run(fn_slow, NULL, &fault), 0);
}
END_TEST

/* A member for each 10 ms: what it has to show comes too dear. */
static int fn_quadratic(void *arg, struct progress *progress, struct fault *fault)
{
    (void)arg, (void)fault;
    struct timespec t;
    do {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        progress->members = (uint64_t)t.tv_sec * 100 + (uint64_t)t.tv_nsec / 10000000;
    } while (t.tv_sec < 100);
    return 0;
}

START_TEST(cpu_time_is_bounded_by_what_it_has_to_show)
{
    struct fault fault = {0};
    struct sandbox_limits limits = {.idle_seconds = IDLE_S, .cpu_seconds = 1};
    ck_assert_int_eq(sandbox_run(fn_quadratic, NULL, &limits, NULL, NULL, &fault), -E2BIG);
    ck_assert_ptr_nonnull(strstr(fault.what, "seconds of CPU time"));
    ck_assert_ptr_null(strstr(fault.what, "damaged"));
    assert_no_children();
}
END_TEST

static int fn_eat_memory(void *arg, struct progress *progress, struct fault *fault)
{
    (void)fault;
    uint64_t limit = *(uint64_t *)arg;
    for (uint64_t bytes = 0; bytes < 4 * limit; bytes += 1 << 20) {
        void *p =
            mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return bytes < limit + (limit >> 1) ? -ENOMEM : -E2BIG;
        progress->bytes_done = bytes;
    }
    return 0;
}

START_TEST(memory_is_limited)
{
    struct fault fault = {0};
    uint64_t limit = 64 << 20;
    struct sandbox_limits limits = {.memory_bytes = limit};
    ck_assert_int_eq(sandbox_run(fn_eat_memory, &limit, &limits, NULL, NULL, &fault), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(fault.what, "64 MiB"));
}
END_TEST

static int fn_write_much(void *arg, struct progress *progress, struct fault *fault)
{
    (void)progress, (void)fault;
    char block[4096] = {0};
    for (int i = 0; i < 64; i++)
        if (write(*(int *)arg, block, sizeof(block)) < 0)
            return -errno;
    return 0;
}

#if !WITH_SANITIZER && (defined(__x86_64__) || defined(__aarch64__))
static int fn_map(void *arg, struct progress *progress, struct fault *fault)
{
    (void)progress, (void)fault;
    void *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, *(int *)arg | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? -errno : 0;
}

START_TEST(memory_that_escapes_its_limit_is_refused)
{
    struct fault fault;
    int counted = MAP_PRIVATE, shared = MAP_SHARED, stack = MAP_PRIVATE | MAP_GROWSDOWN;
    ck_assert_int_eq(run(fn_map, &counted, &fault), 0);
    ck_assert_int_eq(run(fn_map, &shared, &fault), -EPERM);
    ck_assert_int_eq(run(fn_map, &stack, &fault), -EPERM);
}
END_TEST
#endif

static int fn_write_to(void *arg, struct progress *progress, struct fault *fault)
{
    (void)progress, (void)fault;
    memset(arg, 'x', 4096);
    return 0;
}

START_TEST(shared_memory_of_the_parent_is_out_of_reach)
{
    struct fault fault;
    char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_int_eq(run(fn_write_to, shared, &fault), -EUCLEAN);
    ck_assert_int_eq(shared[0], 0);
    munmap(shared, 4096);
}
END_TEST

START_TEST(written_file_is_limited)
{
    struct fault fault = {0};
    int fd = memfd_create("test", 0);
    struct sandbox_limits limits = {.file_bytes = 65536, .keep_fds = &fd, .keep_fd_count = 1};
    ck_assert_int_eq(sandbox_run(fn_write_much, &fd, &limits, NULL, NULL, &fault), -EFBIG);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_eq(st.st_size, 65536);
    close(fd);
}
END_TEST

/* Tells which descriptor was found open that should not be, or 0. */
static int fn_check_descriptors(void *arg, struct progress *progress, struct fault *fault)
{
    (void)fault;
    const int *keep = arg;
    struct stat st;
    for (int fd = 0; fd < 3; fd++)
        if (syscall(SYS_fstat, fd, &st) < 0 || !S_ISCHR(st.st_mode))
            return -EBADF;
    for (int fd = 3; fd < 300; fd++) {
        bool expected = fd == keep[0] || fd == keep[1];
        if ((fcntl(fd, F_GETFL) >= 0) != expected) {
            progress->members = (uint64_t)fd;
            return -EMFILE;
        }
    }
    return write(keep[1], "x", 1) == 1 ? 0 : -errno;
}

START_TEST(only_the_descriptors_asked_for_are_open)
{
    struct fault fault = {0};
    int fds[6];
    for (int i = 0; i < 6; i++)
        fds[i] = memfd_create("test", MFD_CLOEXEC);
    int far = fcntl(fds[0], F_DUPFD, 250);
    int keep[2] = {fds[4], fds[1]}; /* in no order */
    struct sandbox_limits limits = {.keep_fds = keep, .keep_fd_count = 2};
    ck_assert_int_eq(sandbox_run(fn_check_descriptors, keep, &limits, NULL, NULL, &fault), 0);
    struct stat st;
    ck_assert_int_eq(fstat(fds[1], &st), 0);
    ck_assert_int_eq(st.st_size, 1);
    close(far);
    for (int i = 0; i < 6; i++)
        close(fds[i]);
}
END_TEST

static int fn_try_harm(void *arg, struct progress *progress, struct fault *fault)
{
    (void)progress, (void)fault;
    if (open("/etc/passwd", O_RDONLY) >= 0)
        return -1;
    if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0)
        return -2;
    if (memfd_create("x", 0) >= 0)
        return -3;
    if (dup(0) >= 0)
        return -4;
    (void)arg;
#if !WITH_SANITIZER && (defined(__x86_64__) || defined(__aarch64__))
    /* What only the system call filter forbids. */
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    if (pid > 0)
        return -5;
    pid_t parent = *(pid_t *)arg;
    if (kill(parent, 0) == 0)
        return -6;
    if (unlink("/nonexistent/x") == 0 || errno != EPERM)
        return -7;
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
        MAP_FAILED)
        return -8;
    if (syscall(SYS_ptrace, 0, 0, 0, 0) == 0 || errno != EPERM)
        return -9;
    /* Pointers whose lower half is zero are none either. */
    struct rlimit *limit = mmap((void *)(1ul << 32), 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (limit != (void *)(1ul << 32))
        return -10;
    limit->rlim_cur = limit->rlim_max = RLIM_INFINITY;
    if (syscall(SYS_prlimit64, parent, RLIMIT_CPU, limit, NULL) == 0)
        return -11;
    struct stat st;
    if (stat("/", &st) == 0 || syscall(SYS_newfstatat, AT_FDCWD, "/", &st, 0) == 0)
        return -12;
    free(malloc(1 << 22)); /* still possible */
#endif
    return 0;
}

START_TEST(child_reaches_nothing_outside)
{
    struct fault fault;
    pid_t pid = getpid();
    ck_assert_int_eq(run(fn_try_harm, &pid, &fault), 0);
}
END_TEST

#if !WITH_SANITIZER && (defined(__x86_64__) || defined(__aarch64__))
struct early_thread {
    pthread_t thread;
    _Atomic int runs, may_try, result;
};

static void *early_thread_run(void *arg)
{
    struct early_thread *early = arg;
    atomic_store(&early->runs, 1);
    while (!atomic_load(&early->may_try))
        sched_yield();
    bool is_refused = unlink("/nonexistent/x") < 0 && errno == EPERM;
    atomic_store(&early->result, is_refused ? 1 : -EUCLEAN);
    return NULL;
}

static void early_thread_start(void *arg)
{
    struct early_thread *early = arg;
    if (pthread_create(&early->thread, NULL, early_thread_run, early) != 0)
        return;
    while (!atomic_load(&early->runs))
        sched_yield();
}

static int fn_let_thread_try(void *arg, struct progress *progress, struct fault *fault)
{
    struct early_thread *early = arg;
    (void)progress, (void)fault;
    if (!atomic_load(&early->runs))
        return -ENOTSUP;
    atomic_store(&early->may_try, 1);
    pthread_join(early->thread, NULL);
    return early->result == 1 ? 0 : early->result;
}

START_TEST(threads_started_before_the_filter_come_under_it)
{
    struct fault fault = {0};
    struct early_thread early = {0};
    struct sandbox_limits limits = {.prepare = early_thread_start};
    ck_assert_int_eq(sandbox_run(fn_let_thread_try, &early, &limits, NULL, NULL, &fault), 0);
}
END_TEST
#endif

static volatile sig_atomic_t signals_seen;

static void on_signal(int signal)
{
    (void)signal;
    signals_seen++;
}

/* A thread that sends a signal to another one, whose child has begun, and then maybe a word. */
struct sender {
    pthread_t thread, to;
    int signal;
    bool lets_go;
};

static void *send_signal(void *arg)
{
    const struct sender *sender = arg;
    char byte;
    bool sent = read(talk.begun[0], &byte, 1) == 1 &&
                pthread_kill(sender->to, sender->signal) == 0 &&
                (!sender->lets_go || write(talk.word[1], "x", 1) == 1);
    return sent ? arg : NULL;
}

/* Run a child during which this thread gets a signal. */
static int run_with_signal(int signal, bool lets_go, struct fault *fault)
{
    struct sender sender = {.to = pthread_self(), .signal = signal, .lets_go = lets_go};
    void *sent;
    begin_talk();
    ck_assert_int_eq(pthread_create(&sender.thread, NULL, send_signal, &sender), 0);
    int r = run_waiting(IDLE_S, fault);
    ck_assert_int_eq(pthread_join(sender.thread, &sent), 0);
    ck_assert_ptr_nonnull(sent);
    end_talk();
    return r;
}

START_TEST(signal_to_end_interrupts)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGTERM, &action, &before);
    struct fault fault;
    ck_assert_int_eq(run_with_signal(SIGTERM, false, &fault), -EINTR);
    sigaction(SIGTERM, &before, NULL);
    assert_no_children();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ck_assert_int_eq(sigismember(&mask, SIGTERM), 0);
    ck_assert_int_eq(sigismember(&mask, SIGALRM), 0);
}
END_TEST

START_TEST(other_handled_signals_wait)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGALRM, &action, &before);
    signals_seen = 0;
    struct fault fault;
    int r = run_with_signal(SIGALRM, true, &fault);
    sigaction(SIGALRM, &before, NULL);
    ck_assert_int_eq(r, 0);
    ck_assert_int_eq(signals_seen, 1);
}
END_TEST

START_TEST(works_when_sigchld_is_ignored)
{
    struct fault fault = {0};
    int zero = 0;
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    int r = sandbox_run(fn_ok, &zero, &(struct sandbox_limits){0}, NULL, NULL, &fault);
    int crash = run(fn_exit, NULL, &fault);
    signal(SIGCHLD, before);
    ck_assert_int_eq(r, 0);
    ck_assert_int_eq(crash, -EUCLEAN);
}
END_TEST

static int fn_tell_pid(void *arg, struct progress *progress, struct fault *fault)
{
    pid_t pid = getpid();
    if (write(*(int *)arg, &pid, sizeof(pid)) != sizeof(pid))
        return -errno;
    return fn_wait(NULL, progress, fault);
}

/* Also where the kernel knows no filters. */
static void may_have_none_of(pid_t child, __rlimit_resource_t resource)
{
    struct rlimit limit;
    ck_assert_int_eq(prlimit(child, resource, NULL, &limit), 0);
    ck_assert_uint_eq(limit.rlim_max, 0);
}

/* A parent that is killed takes its child with it. */
START_TEST(killed_parent_leaves_no_orphan)
{
    int pipe_fds[2];
    ck_assert_int_eq(pipe(pipe_fds), 0);
    begin_talk();
    pid_t parent = fork();
    if (parent == 0) {
        struct fault fault = {0};
        const int keep[] = {pipe_fds[1], talk.begun[1], talk.word[0]};
        struct sandbox_limits limits = {.keep_fds = keep, .keep_fd_count = 3};
        sandbox_run(fn_tell_pid, &pipe_fds[1], &limits, NULL, NULL, &fault);
        _exit(0);
    }
    close(pipe_fds[1]);
    pid_t child = 0;
    ck_assert_int_eq(read(pipe_fds[0], &child, sizeof(child)), sizeof(child));
    ck_assert_int_gt(child, 0);
    may_have_none_of(child, RLIMIT_CORE);
    may_have_none_of(child, RLIMIT_NPROC);
    may_have_none_of(child, RLIMIT_NOFILE);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    char byte;
    /* The last writer is gone when this returns: the end of file proves it. */
    ck_assert_int_eq(read(pipe_fds[0], &byte, 1), 0);
    close(pipe_fds[0]);
    end_talk();
}
END_TEST

static void *run_in_thread(void *arg)
{
    int zero = 0;
    for (int i = 0; i < 20 && !*(int *)arg; i++) {
        struct fault fault = {0};
        *(int *)arg =
            sandbox_run(fn_ok, &zero, &(struct sandbox_limits){0}, NULL, NULL, &fault);
    }
    return NULL;
}

START_TEST(many_threads_may_run_children)
{
    pthread_t threads[4];
    int results[4] = {0};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_in_thread, &results[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(results[i], 0);
    }
    assert_no_children();
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("sandbox");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, result_and_final_progress_come_back);
    tcase_add_test(tests, requests_of_the_child_are_counted_with_its_parents);
    tcase_add_test(tests, fault_of_the_child_comes_back);
    tcase_add_test(tests, fault_without_an_end_is_ended);
    tcase_add_test(tests, result_that_is_no_errno_means_damaged);
    tcase_add_test(tests, crash_means_damaged_archive);
    tcase_add_test(tests, exit_without_a_result_means_damaged);
    tcase_add_test(tests, watch_may_stop_the_child);
    tcase_add_test(tests, first_look_may_stop_the_child);
    tcase_add_test(tests, busy_child_without_progress_is_killed);
    tcase_add_test(tests, idle_child_without_progress_is_killed);
    tcase_add_test(tests, slow_child_with_progress_may_go_on);
    tcase_add_test(tests, cpu_time_is_bounded_by_what_it_has_to_show);
    tcase_add_test(tests, memory_is_limited);
#if !WITH_SANITIZER && (defined(__x86_64__) || defined(__aarch64__))
    tcase_add_test(tests, memory_that_escapes_its_limit_is_refused);
#endif
    tcase_add_test(tests, shared_memory_of_the_parent_is_out_of_reach);
    tcase_add_test(tests, written_file_is_limited);
    tcase_add_test(tests, only_the_descriptors_asked_for_are_open);
    tcase_add_test(tests, child_reaches_nothing_outside);
#if !WITH_SANITIZER && (defined(__x86_64__) || defined(__aarch64__))
    tcase_add_test(tests, threads_started_before_the_filter_come_under_it);
#endif
    tcase_add_test(tests, signal_to_end_interrupts);
    tcase_add_test(tests, other_handled_signals_wait);
    tcase_add_test(tests, works_when_sigchld_is_ignored);
    tcase_add_test(tests, killed_parent_leaves_no_orphan);
    tcase_add_test(tests, many_threads_may_run_children);

    Suite *suite = suite_create("sandbox");
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
