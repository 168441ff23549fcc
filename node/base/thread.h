/*
 * Threads of a library. Signals are left to the program's own threads, and the stack is only
 * as large as the work needs.
 */
#ifndef ONEPOT_THREAD_H
#define ONEPOT_THREAD_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "syscalls.h"

/*
 * glibc starts threads by clone3, and knows another way only where that answers ENOSYS. Under a
 * filter that answers EPERM, a filter of ours answers ENOSYS: the newest one's errno counts.
 * Without the right to set one, it takes no_new_privs. False: clone3 is not missing.
 */
static inline bool thread_mask_clone3(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    if (syscall(SYS_clone3, NULL, 0) >= 0 || errno != EPERM) /* EINVAL: it is there */
        return false;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ||
           (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/*
 * Start a thread with all signals blocked except SIGBUS, which its own reads of a mapped file
 * may raise (lost_pages.h): blocked, it would end the process. 0 or -errno; -ENOSYS: a filter
 * of system calls forbids it.
 */
static inline int thread_start(pthread_t *thread, size_t stack_bytes, void *(*run)(void *),
                               void *arg)
{
    pthread_attr_t attr;
    sigset_t all, kept;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, stack_bytes);
    pthread_sigmask(SIG_SETMASK, &all, &kept);
    int r = pthread_create(thread, &attr, run, arg);
    if (r == EPERM && thread_mask_clone3())
        r = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    pthread_attr_destroy(&attr);
    return r == EPERM ? -ENOSYS : -r;
}

/* A condition whose timed waits go by CLOCK_MONOTONIC. */
static inline void thread_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

#define THREAD_TEAM_MAX 64u

/*
 * Run `run` in so many threads, at most THREAD_TEAM_MAX, of which this is one; in fewer if no
 * more can be started. Returns when all have returned.
 */
static inline void thread_team(uint64_t count, size_t stack_bytes, void *(*run)(void *),
                               void *arg)
{
    pthread_t threads[THREAD_TEAM_MAX - 1];
    unsigned started = 0;
    while (started < THREAD_TEAM_MAX - 1 && started + 1 < count &&
           thread_start(&threads[started], stack_bytes, run, arg) == 0)
        started++;
    run(arg);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/*
 * Wait for the thread to end until CLOCK_MONOTONIC reaches `until`: 0 or ETIMEDOUT.
 * pthread_timedjoin_np uses the time of day, and would wait for hours if that is set back
 * meanwhile.
 */
static inline int thread_join_until(pthread_t thread, const struct timespec *until)
{
    struct timespec now, rest = {.tv_nsec = 50000};
    int r;
    while ((r = pthread_tryjoin_np(thread, NULL)) == EBUSY) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until->tv_sec ||
            (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec))
            return ETIMEDOUT;
        nanosleep(&rest, NULL);
        if (rest.tv_nsec < 5000000)
            rest.tv_nsec *= 2;
    }
    return r;
}

#endif
