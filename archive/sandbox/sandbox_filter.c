/*
 * The system calls that the sandbox's child may make. Calls not on the list return EPERM
 * instead of killing, because libraries look for things (a locale, a configuration file) that
 * they can do without. No call on it takes a path, so fstat(3) of newer versions of glibc
 * fails. No call here sets limits or reveals another process's. A sanitizer's runtime makes
 * calls that no list foresees, so such a build has no filter.
 */
#include "sandbox_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sanitizer.h"

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

struct program {
    struct sock_filter code[160];
    unsigned short len;
};

static void filter_emit(struct program *p, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
    p->code[p->len++] = (struct sock_filter){.code = code, .jt = jt, .jf = jf, .k = k};
}

static void filter_emit_return(struct program *p, uint32_t action)
{
    filter_emit(p, BPF_RET | BPF_K, action, 0, 0);
}

#define ACTION_DENY (SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA))

static void filter_emit_machine_check(struct program *p)
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
static void filter_emit_tested(struct program *p, int call, unsigned argument, uint16_t test,
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
static void filter_emit_mmap(struct program *p)
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

void sandbox_filter_system_calls(void)
{
    struct program p = {.len = 0};
    filter_emit_machine_check(&p);
    filter_emit_mmap(&p);
    for (size_t i = 0; i < sizeof(allowed_calls) / sizeof(allowed_calls[0]); i++) {
        filter_emit(&p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed_calls[i], 0, 1);
        filter_emit_return(&p, SECCOMP_RET_ALLOW);
    }
    filter_emit_tested(&p, SYS_mprotect, 2, BPF_JSET, PROT_EXEC, false);
    filter_emit_tested(&p, SYS_tgkill, 0, BPF_JEQ, (uint32_t)getpid(), true); /* abort(3) */
    filter_emit_tested(&p, SYS_fcntl, 1, BPF_JEQ, F_GETFL, true);
    filter_emit_return(&p, ACTION_DENY);

    struct sock_fprog program = {.len = p.len, .filter = p.code};
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

/* A program at no address is looked at after the flag. */
bool sandbox_filter_covers_threads(void)
{
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) < 0 &&
           errno == EFAULT;
}
#else
void sandbox_filter_system_calls(void) {}

bool sandbox_filter_covers_threads(void)
{
    return true; /* there is none */
}
#endif
