/*
 * The sandbox: parses untrusted bytes in a child process that can do nothing but compute, read
 * the archive and write one file.
 *
 * It is a fork, not a new program, because it runs a function of this one. The only result is
 * a page of shared memory (progress, fault, result). The parent reads it as warily as a file
 * from the net, since the archive may have taken over the child that parsed it.
 *
 * The order inside the child matters: steps that need privileges or files (limits, /dev/null,
 * closing inherited descriptors) come first, then its threads, which nothing can start later,
 * and the system call filter, which covers them all, last.
 *
 * The parent waits on a pidfd if the kernel has them (5.3), and otherwise checks every 20 ms.
 * All its signals are blocked except within that wait, so that none can slip in between
 * checking a flag and waiting.
 */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "numbers.h"
#include "process.h"
#include "sanitizer.h"
#include "syscalls.h"
#include "vector.h"

enum {
    DEFAULT_STALL_SECONDS = 60,
    DEFAULT_CPU_SECONDS = 30,
    IDLE_FACTOR = 5, /* wall-clock time allowed, in units of stall_seconds */
    WATCH_MS = 200,  /* between two checks of the child */
    TICK_MS = 20,    /* the same, without pidfds */
    REAP_MS = 5000,  /* how long to wait for a killed child: it may hang in a read */
    TICK_MAX_MS =
        1000, /* most time counted for one tick: the whole job may have been stopped */
};
#define DEFAULT_MEMORY_BYTES (UINT64_C(1) << 30)

/* Shared by parent and child. */
struct shared {
    struct progress progress;
    struct fault fault;
    struct source_requests requests;
    _Atomic int done; /* the function returned, so requests and result are valid */
    int result;
};

/* One run, in the parent. */
struct run {
    struct shared *shared;
    pid_t pid;
    int pidfd; /* -1: the kernel lacks pidfds */
    sigset_t signals_before;
    sigset_t signals_waiting; /* signals_before and the signals that don't end the wait */
    int status;               /* as returned by waitpid */
    bool status_lost;
    uint64_t memory_bytes;
    uint32_t stall_seconds, idle_seconds;
    uint64_t stall_cpu_ms; /* stall_seconds of each thread */
    uint64_t cpu_ms;       /* as cpu_seconds, of each thread */
    uint64_t watch_ms;
    const _Atomic bool *stop;
    /* Stall accounting: the progress last seen, and the time used since then. */
    uint64_t bytes_seen;
    uint64_t members_seen;
    uint64_t beats_seen;
    uint64_t cpu_at_change_ms, idle_ms;
};

/* ---- the filter of the child ---- */

/*
 * The system calls that the child may make. Calls not on the list return EPERM instead of
 * killing, because libraries look for things (a locale, a configuration file) that they can do
 * without. No call on it takes a path, so fstat(3) of newer versions of glibc fails. No call
 * here sets limits or reveals another process's. A sanitizer's runtime makes calls that no list
 * foresees, so such a build has no filter.
 */
#if defined(__x86_64__)
#define SANDBOX_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define SANDBOX_ARCH AUDIT_ARCH_AARCH64
#endif

#if defined(SANDBOX_ARCH) && !WITH_SANITIZER
/* Calls for reading an archive and building an index, the frequent ones first. */
static const int allowed_calls[] = {
    SYS_pread64,
    SYS_read,
    SYS_pwrite64,
    SYS_write,
    SYS_brk,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_lseek,
    SYS_preadv,
    SYS_preadv2,
    SYS_readv,
    SYS_pwritev,
    SYS_writev,
    SYS_fstat,
    SYS_fstatfs,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fadvise64,
    SYS_readahead,
    SYS_close,
    SYS_futex,
    SYS_sched_yield,
    SYS_getpid,
    SYS_gettid,
    SYS_sysinfo, /* qsort of glibc */
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_getrandom,
    SYS_restart_syscall,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_exit,
    SYS_exit_group,
};

#define DATA(field) ((uint32_t)offsetof(struct seccomp_data, field))
/* The low half of an argument; the kernel uses no more of those tested here. */
#define ARGUMENT(n) (DATA(args) + 8u * (n))

#define FILTER_MOST 160 /* instructions */

static void filter_emit(struct sock_fprog *p, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    p->filter[p->len++] = (struct sock_filter){.code = code, .jt = jt, .jf = jf, .k = k};
}

static void filter_emit_return(struct sock_fprog *p, uint32_t action)
{
    filter_emit(p, BPF_RET | BPF_K, action, 0, 0);
}

#define ACTION_DENY (SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA))

static void filter_emit_machine_check(struct sock_fprog *p)
{
    filter_emit(p, BPF_LD | BPF_W | BPF_ABS, DATA(arch), 0, 0);
    filter_emit(p, BPF_JMP | BPF_JEQ | BPF_K, SANDBOX_ARCH, 1, 0);
    filter_emit_return(p, ACTION_DENY);
    filter_emit(p, BPF_LD | BPF_W | BPF_ABS, DATA(nr), 0, 0);
#ifdef __x86_64__
    filter_emit(p, BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1); /* the numbers of x32 */
    filter_emit_return(p, ACTION_DENY);
#endif
}

/*
 * Allow `call` only if its argument passes. BPF_JEQ asks whether it equals `value`, BPF_JSET
 * whether it has any of the bits of `value`; the answer must be `wanted`.
 */
static void filter_emit_tested(struct sock_fprog *p, int call, unsigned argument, uint16_t test,
                               uint32_t value, bool wanted)
{
    filter_emit(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4);
    filter_emit(p, BPF_LD | BPF_W | BPF_ABS, ARGUMENT(argument), 0, 0);
    filter_emit(p, BPF_JMP | test | BPF_K, value, wanted, !wanted);
    filter_emit_return(p, ACTION_DENY);
    filter_emit_return(p, SECCOMP_RET_ALLOW);
}

/*
 * Allow mmap, but no code, and no memory that RLIMIT_DATA leaves out: shared memory without a
 * file, and memory that grows downwards as a stack does.
 */
static void filter_emit_mmap(struct sock_fprog *p)
{
    const uint32_t uncounted = MAP_SHARED | MAP_ANONYMOUS;
    filter_emit(p, BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 8);
    filter_emit(p, BPF_LD | BPF_W | BPF_ABS, ARGUMENT(2), 0, 0);
    filter_emit(p, BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 4, 0);
    filter_emit(p, BPF_LD | BPF_W | BPF_ABS, ARGUMENT(3), 0, 0);
    filter_emit(p, BPF_JMP | BPF_JSET | BPF_K, MAP_GROWSDOWN, 2, 0);
    filter_emit(p, BPF_ALU | BPF_AND | BPF_K, uncounted, 0, 0);
    filter_emit(p, BPF_JMP | BPF_JEQ | BPF_K, uncounted, 0, 1);
    filter_emit_return(p, ACTION_DENY);
    filter_emit_return(p, SECCOMP_RET_ALLOW);
}

/*
 * From now on this process may read, write and allocate, and nothing else. Best effort: if the
 * kernel has no filters or a container forbids them, the limits still apply. SPEC_ALLOW keeps
 * the kernel from slowing the child down against Spectre, as it does for filtered processes by
 * default before 5.16.
 */
static void sandbox_filter_system_calls(void)
{
    struct sock_filter code[FILTER_MOST];
    struct sock_fprog program = {.filter = code}, *p = &program;
    filter_emit_machine_check(p);
    filter_emit_mmap(p);
    for (size_t i = 0; i < sizeof(allowed_calls) / sizeof(allowed_calls[0]); i++) {
        filter_emit(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed_calls[i], 0, 1);
        filter_emit_return(p, SECCOMP_RET_ALLOW);
    }
    filter_emit_tested(p, SYS_mprotect, 2, BPF_JSET, PROT_EXEC, false);
    filter_emit_tested(p, SYS_tgkill, 0, BPF_JEQ, (uint32_t)getpid(), true); /* abort(3) */
    filter_emit_tested(p, SYS_fcntl, 1, BPF_JEQ, F_GETFL, true);
    filter_emit_return(p, ACTION_DENY);

    long r = -1;
#ifdef SECCOMP_FILTER_FLAG_SPEC_ALLOW
    r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
#endif
    if (r < 0)
        r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (r > 0)
        _exit(1); /* a thread that can't be filtered */
    if (r < 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

/*
 * Does the filter cover threads that run already? If not (a container allows it through
 * prctl(2) alone), none may be started. A program at no address is looked at after the flag.
 */
static bool sandbox_filter_covers_threads(void)
{
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) < 0 &&
           errno == EFAULT;
}
#else
static void sandbox_filter_system_calls(void) {}

static bool sandbox_filter_covers_threads(void)
{
    return true; /* there is none */
}
#endif

/* ---- the child ---- */

static void sandbox_set_limit(int resource, uint64_t value)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) < 0)
        return;
    if (limit.rlim_max != RLIM_INFINITY && value > limit.rlim_max)
        value = limit.rlim_max;
    limit.rlim_cur = limit.rlim_max = value;
    setrlimit((__rlimit_resource_t)resource, &limit);
}

/* Private memory inherited from the parent, which RLIMIT_DATA counts already. */
static uint64_t sandbox_inherited_data_bytes(void)
{
    char text[256];
    uint64_t data_pages;
    if (proc_text("/proc/self/statm", text, sizeof(text)) < 0 ||
        sscanf(text, "%*u %*u %*u %*u %*u %" SCNu64, &data_pages) != 1)
        return 0;
    return data_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/*
 * Unmap memory that the parent shares with other processes, or with children of other kinds
 * (counters, the state of a copy). An attacker who takes over this process must not write
 * there. `kept` is the memory shared with this child.
 */
static void sandbox_drop_shared_memory(const void *kept)
{
    char line[PATH_MAX + 128], mode[5];
    uintptr_t from, to;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof(line), maps))
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, mode) == 3 &&
            mode[1] == 'w' && mode[3] == 's' && from != (uintptr_t)kept)
            munmap((void *)from, to - from);
    if (maps)
        fclose(maps);
}

static void sandbox_limit_resources(const struct sandbox_limits *limits, uint64_t memory_bytes)
{
    uint64_t data_bytes;
    if (!__builtin_add_overflow(sandbox_inherited_data_bytes(), memory_bytes, &data_bytes))
        sandbox_set_limit(RLIMIT_DATA, data_bytes);
    sandbox_set_limit(RLIMIT_CORE, 0);
    sandbox_set_limit(RLIMIT_NPROC, 0);
    sandbox_set_limit(RLIMIT_NOFILE, 0); /* no new descriptors; those it has stay open */
    if (limits->file_bytes) {
        signal(SIGXFSZ, SIG_IGN); /* write(2) returns EFBIG instead */
        sandbox_set_limit(RLIMIT_FSIZE, limits->file_bytes);
    }
    /* A core may also be piped to a program, which RLIMIT_CORE does not prevent. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static int sandbox_compare_fds(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* Close all descriptors but those to keep; redirect 0, 1 and 2 to /dev/null. */
static void sandbox_drop_descriptors(const struct sandbox_limits *limits)
{
    VECTOR(int) keep = {0};
    const struct source *file;
    vector_append(&keep, limits->keep_fds, limits->keep_fd_count);
    for (size_t at[2] = {0};
         limits->keep_source && (file = source_file_next(limits->keep_source, at));)
        vector_push(&keep, source_fd(file));
    if (keep.count > 0)
        qsort(keep.at, keep.count, sizeof(keep.at[0]), sandbox_compare_fds);

    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (keep.count > 0 &&
            bsearch(&fd, keep.at, keep.count, sizeof(fd), sandbox_compare_fds))
            continue;
        if (null < 0 || (fd != null && dup2(null, fd) < 0))
            close(fd);
    }
    unsigned next = STDERR_FILENO + 1;
    for (size_t i = 0; i < keep.count; i++) {
        if (keep.at[i] < (int)next)
            continue; /* of the first three, or kept twice */
        syscall_close_range(next, (unsigned)keep.at[i] - 1);
        next = (unsigned)keep.at[i] + 1;
    }
    syscall_close_range(next, UINT_MAX);
    vector_free(&keep);
}

/*
 * A child in the foreground ends with its user by Ctrl-C. A child in the background ignores
 * signals sent to the whole job (Ctrl-C that a program handles, SIGUSR1 of a batch system):
 * its parent decides when it ends, and takes it along when killed.
 */
static void sandbox_reset_signals(bool in_background)
{
    for (int s = 1; s < NSIG; s++) {
        /* Ignored signals stay ignored: a job in the background must not react to Ctrl-C. */
        struct sigaction now;
        if (sigaction(s, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            signal(s, SIG_DFL); /* fails for the two that can't be caught */
    }
    sigset_t blocked;
    if (in_background)
        sigfillset(&blocked); /* fault signals still arrive */
    else
        sigemptyset(&blocked);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
}

static int sandbox_run_function(int (*fn)(void *, struct progress *, struct fault *), void *arg,
                                struct shared *shared)
{
    const struct source_requests before = source_requests();
    int r = fn(arg, &shared->progress, &shared->fault);
    const struct source_requests after = source_requests();
    shared->requests =
        (struct source_requests){after.count - before.count, after.bytes - before.bytes};
    shared->result = r;
    atomic_store(&shared->done, 1);
    return r;
}

/* ---- the parent ---- */

static uint64_t sandbox_child_cpu_ms(const struct run *run)
{
    clockid_t clock;
    struct timespec t;
    bool has_time = clock_getcpuclockid(run->pid, &clock) == 0 && clock_gettime(clock, &t) == 0;
    return has_time ? (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000 : 0;
}

/* True when the child is gone. */
static bool sandbox_reap(struct run *run)
{
    pid_t r;
    do {
        r = waitpid(run->pid, &run->status, WNOHANG);
    } while (r < 0 && errno == EINTR);
    run->status_lost = r < 0; /* SIGCHLD is ignored: the kernel has reaped it */
    return r != 0;
}

/* Wait at most `ms` for the child's end, with signals unblocked. -EINTR or 0. */
static int sandbox_pause_for(const struct run *run, uint64_t ms, const sigset_t *signals)
{
    struct pollfd p = {.fd = run->pidfd, .events = POLLIN};
    if (run->pidfd < 0 && ms > TICK_MS)
        ms = TICK_MS;
    struct timespec timeout = clock_timespec(ms * UINT64_C(1000000));
    return ppoll(&p, run->pidfd >= 0, &timeout, signals) < 0 && errno == EINTR ? -EINTR : 0;
}

/*
 * Kill the child and reap it. A child that hangs in an uninterruptible read can't be killed;
 * it is left behind after a while, so that the caller can report the problem.
 */
static void sandbox_end_child(struct run *run)
{
    kill(run->pid, SIGKILL);
    uint64_t end_ms = now_ms() + REAP_MS;
    while (!sandbox_reap(run) && now_ms() < end_ms)
        sandbox_pause_for(run, WATCH_MS, NULL);
}

/* Account for `elapsed_ms` in which the child did not end; an error if that was too long. */
static int sandbox_check_stall(struct run *run, uint64_t elapsed_ms, struct fault *fault)
{
    const struct progress *progress = &run->shared->progress;
    uint64_t bytes = atomic_load(&progress->bytes_done);
    uint64_t members = atomic_load(&progress->members);
    uint64_t beats = atomic_load(&progress->beats);
    uint64_t cpu_ms = sandbox_child_cpu_ms(run);
    uint64_t shown_ms =
        (bytes + atomic_load(&progress->bytes_out)) / 1024 + members / 4 + beats * 2;
    if (cpu_ms / (WITH_SANITIZER ? 20 : 1) > run->cpu_ms + shown_ms)
        return fault_set_advised(
            fault, -E2BIG, NULL, FAULT_NO_OFFSET,
            "unpack it with a program of its format, and pack the folder",
            "its parser has taken %llu seconds of CPU time for the first %llu bytes and %llu "
            "members, more than an archive of such a size may take",
            (unsigned long long)cpu_ms / 1000, (unsigned long long)bytes,
            (unsigned long long)members);
    if (bytes != run->bytes_seen || members != run->members_seen || beats != run->beats_seen) {
        run->bytes_seen = bytes;
        run->members_seen = members;
        run->beats_seen = beats;
        run->cpu_at_change_ms = cpu_ms;
        run->idle_ms = 0;
        return 0;
    }
    run->idle_ms += min_u64(elapsed_ms, TICK_MAX_MS);
    if (cpu_ms >= run->cpu_at_change_ms + run->stall_cpu_ms)
        return fault_set(fault, -EUCLEAN, NULL, bytes ? bytes : FAULT_NO_OFFSET,
                         "the archive kept its parser busy for %u seconds without "
                         "progress: damaged archive",
                         run->stall_seconds);
    if (run->idle_ms >= run->idle_seconds * UINT64_C(1000))
        return fault_set(fault, -ETIMEDOUT, NULL, bytes ? bytes : FAULT_NO_OFFSET,
                         "could not be read: its storage did not answer for %u seconds",
                         run->idle_seconds);
    return 0;
}

/* Wait for the child's end. -EINTR, or the error of a stall: then the child was killed. */
static int sandbox_supervise(struct run *run, sandbox_watch *watch, void *watch_ctx,
                             struct fault *fault)
{
    uint64_t looked_ms = now_ms();
    for (;;) {
        int r = sandbox_pause_for(run, run->watch_ms, &run->signals_waiting);
        if (sandbox_reap(run))
            return 0;
        if (r == -EINTR)
            fault_set(fault, r, NULL, FAULT_NO_OFFSET, "interrupted");
        uint64_t elapsed_ms = now_ms() - looked_ms;
        if (r == 0 && elapsed_ms >= run->watch_ms * 9 / 10) {
            r = watch && !watch(watch_ctx, &run->shared->progress)
                    ? -ECANCELED
                    : sandbox_check_stall(run, elapsed_ms, fault);
            looked_ms += elapsed_ms;
        }
        if (r == 0 && run->stop && atomic_load(run->stop))
            r = -ECANCELED;
        if (r < 0) {
            sandbox_end_child(run);
            return r;
        }
    }
}

static int sandbox_crash(int signal, struct fault *fault)
{
    switch (signal) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
    case SIGQUIT:
        return fault_set(fault, -EINTR, NULL, FAULT_NO_OFFSET, "interrupted");
    case SIGBUS:
        return fault_set(fault, -EIO, NULL, FAULT_NO_OFFSET,
                         "could not be read: truncated meanwhile, or an error of its storage");
    case SIGKILL:
        return fault_set_advised(fault, -ENOMEM, NULL, FAULT_NO_OFFSET,
                                 "give the job more memory",
                                 "its parser was killed, probably because memory ran out");
    default:
        return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "the archive made its parser crash (signal %d): damaged archive",
                         signal);
    }
}

/* The result that an ended child left, or the error that its death means. */
static int sandbox_outcome(const struct run *run, struct fault *fault)
{
    if (!run->status_lost && WIFSIGNALED(run->status))
        return sandbox_crash(WTERMSIG(run->status), fault);
    if (!atomic_load(&run->shared->done))
        return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "the archive made its parser give up: damaged archive");
    int result = run->shared->result;
    source_add_requests(run->shared->requests);
    if (result > 0 || result < -4095)
        return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "the archive confused its parser: damaged archive");
    if (result < 0 && fault && !fault->err) {
        *fault = run->shared->fault; /* has no pointers; fault_describe distrusts its text */
        fault->member[sizeof(fault->member) - 1] = '\0';
        fault->what[sizeof(fault->what) - 1] = '\0';
        fault->advice[sizeof(fault->advice) - 1] = '\0';
        if (fault->err != 0)
            fault->err = -result;
    }
    if (result == -ENOMEM) {
        fault_set(fault, -ENOMEM, NULL, FAULT_NO_OFFSET,
                  "reading it takes more than %llu MiB of memory",
                  (unsigned long long)(run->memory_bytes >> 20));
        fault_advise(fault, "give the job more memory");
    }
    return result;
}

/*
 * Choose the signals that don't end the wait: all that the caller handles, except requests to
 * end. A program with a profiler's timer, or whose batch system sends SIGUSR1, wants to go on;
 * it gets those signals after the wait. Unhandled signals act at once, as usual.
 */
void sandbox_waiting_signals(const sigset_t *before, sigset_t *ret_blocked)
{
    *ret_blocked = *before;
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        bool is_end =
            number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
        if (!is_end && sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN)
            sigaddset(ret_blocked, number);
    }
}

int sandbox_run(int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
                const struct sandbox_limits *limits, sandbox_watch *watch, void *watch_ctx,
                struct fault *fault)
{
    struct run run = {
        .pidfd = -1,
        .memory_bytes = limits->memory_bytes ? limits->memory_bytes : DEFAULT_MEMORY_BYTES,
        .stall_seconds = limits->stall_seconds ? limits->stall_seconds : DEFAULT_STALL_SECONDS,
        .watch_ms = limits->watch_ms ? limits->watch_ms : WATCH_MS,
        .stop = limits->stop,
    };
    run.idle_seconds =
        limits->idle_seconds ? limits->idle_seconds : run.stall_seconds * IDLE_FACTOR;
    run.stall_cpu_ms = run.stall_seconds * UINT64_C(1000) * (1 + limits->threads);
    run.cpu_ms = (limits->cpu_seconds ? limits->cpu_seconds : DEFAULT_CPU_SECONDS) *
                 UINT64_C(1000) * (1 + limits->threads);
    run.shared = mmap(NULL, sizeof(*run.shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.shared == MAP_FAILED)
        return -errno;

    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &run.signals_before);
    sandbox_waiting_signals(&run.signals_before, &run.signals_waiting);
    pid_t parent = getpid();
    run.pid = fork();
    if (run.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (getppid() != parent)
            _exit(1); /* the parent died before the line above */
        sandbox_reset_signals(limits->stop != NULL);
        sandbox_drop_descriptors(limits);
        sandbox_drop_shared_memory(run.shared);
        if (limits->prepare && !WITH_SANITIZER && sandbox_filter_covers_threads())
            limits->prepare(arg);
        sandbox_limit_resources(limits, run.memory_bytes);
        sandbox_filter_system_calls();
        _exit(sandbox_run_function(fn, arg, run.shared) < 0);
    }

    int r = run.pid < 0 ? -errno : 0;
    if (r == 0) {
        run.pidfd = syscall_pidfd_open(run.pid);
        if (watch && limits->watch_at_once && !watch(watch_ctx, &run.shared->progress)) {
            sandbox_end_child(&run);
            r = -ECANCELED;
        } else {
            r = sandbox_supervise(&run, watch, watch_ctx, fault);
        }
        if (watch && r != -ECANCELED && !watch(watch_ctx, &run.shared->progress))
            r = -ECANCELED;
        if (r == 0)
            r = sandbox_outcome(&run, fault);
        if (run.pidfd >= 0)
            close(run.pidfd);
    }
    pthread_sigmask(SIG_SETMASK, &run.signals_before, NULL);
    munmap(run.shared, sizeof(*run.shared));
    return r;
}
