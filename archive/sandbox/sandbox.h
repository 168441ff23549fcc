/*
 * Run a function in a child process that can do no harm: limits on memory and time, only the
 * descriptors it needs, no way to gain privileges, killed when its parent dies. The child
 * returns a number and a fault; its product is a file that it wrote. A child that crashes or
 * exceeds a limit gives -EUCLEAN with a fault that says so.
 */
#ifndef ONEPOT_SANDBOX_H
#define ONEPOT_SANDBOX_H

#include <stdatomic.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"

struct sandbox_limits {
    uint64_t memory_bytes;  /* private memory (RLIMIT_DATA); 0: the default of 1 GiB */
    uint64_t file_bytes;    /* of a file that it writes; beyond that EFBIG; 0: no limit */
    uint32_t stall_seconds; /* CPU time without progress before it is killed; 0: 60 s */
    uint32_t idle_seconds;  /* the same, while it waits and does nothing; 0: five times that */
    uint32_t cpu_seconds;   /* CPU time in all, besides its share (below); 0: 30 s */
    const int *keep_fds;    /* descriptors that stay open */
    size_t keep_fd_count;
    const struct source *keep_source; /* and the descriptors of its files; NULL: none */
    /*
     * Called in the child with `arg` of sandbox_run before the limits are set: the only chance
     * to start threads, which come under the same limits. (Not called where the filter would
     * not cover them, nor in a build with a sanitizer, whose locks may stay locked in a child.)
     * NULL: nothing to do.
     */
    void (*prepare)(void *arg);
    uint32_t threads;   /* that it starts: a stall may use so much more CPU time */
    uint32_t watch_ms;  /* interval between calls of the watch; 0: 200 */
    bool watch_at_once; /* call it also as soon as the child has begun */
    /*
     * The child is killed soon after this becomes true: -ECANCELED. Signals do not reach it.
     * NULL: the caller waits for the child, and signals end it.
     */
    const _Atomic bool *stop;
};

/*
 * Called in the parent about five times a second (limits.watch_ms) while the child works, and
 * once more when it is gone, unless it was stopped. Signals are blocked during the call. False
 * stops the child: sandbox_run returns -ECANCELED.
 */
typedef bool sandbox_watch(void *ctx, const struct progress *progress);

/*
 * Call fn(arg, progress, fault) in a child; returns its 0 or -errno. `watch` may be NULL. The
 * caller may have threads, but the child has none of them: neither fn nor prepare may take
 * locks of the parent. -EINTR: SIGINT, SIGTERM, SIGHUP or SIGQUIT arrived and the caller
 * handles it. Other signals that it handles wait until the child has ended.
 *
 * A child stalls when no number in its progress changes for too long. If it used stall_seconds
 * of CPU time meanwhile, the archive is at fault (-EUCLEAN); if idle_seconds went by, the
 * storage is (-ETIMEDOUT). -ENOMEM: fn or the kernel ran out of memory.
 *
 * -E2BIG: it took more CPU time in all than its progress accounts for. A parser whose time
 * grows with the square of its members makes progress for hours. Beside cpu_seconds it may have
 * a second for each MiB that it read or wrote, 0.25 ms for each member, and 2 ms for each beat:
 * each is several times as much as the slowest honest archive takes.
 */
int sandbox_run(int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
                const struct sandbox_limits *limits, sandbox_watch *watch, void *watch_ctx,
                struct fault *fault);

/*
 * The signals that sandbox_run has blocked while it waits, for somebody who waits for threads
 * that call it: the ones that `before` blocks, and the ones that the program handles, except
 * requests to end.
 */
void sandbox_waiting_signals(const sigset_t *before, sigset_t *ret_blocked);

#endif
