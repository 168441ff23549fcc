/*
 * Run a function in a child process that can harm nobody: limits on memory and time,
 * no descriptors but those it needs, no privileges to gain, killed when its parent
 * dies. What it returns is a number and a fault; its product is a file that it wrote.
 * A child that crashes or exceeds a limit becomes -EUCLEAN with a fault that says so.
 */
#ifndef ONEPOT_SANDBOX_H
#define ONEPOT_SANDBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"

struct sandbox_limits {
    uint64_t memory_bytes;  /* private memory (RLIMIT_DATA); 0: the default of 1 GiB */
    uint64_t file_bytes;    /* of a file that it writes: then EFBIG; 0: no limit */
    uint32_t stall_seconds; /* killed after so long without progress; 0: 60 s */
    uint32_t idle_seconds;  /* the same, when it waits and does nothing; 0: five times that */
    const int *keep_fds;    /* descriptors that stay open, at most 16 */
    size_t keep_fd_count;
    uint32_t watch_ms;        /* between two calls of the watch; 0: 200 */
    bool watch_at_once;       /* it is called as soon as the child has begun, too */
    const _Atomic bool *stop; /* it is killed soon after this is true: -ECANCELED; it does
                                 without signals. NULL: it is waited for, and signals end it */
};

/*
 * Called in the parent about five times a second (limits.watch_ms) while the child works, and
 * once more when it is gone, unless it was stopped. Signals are blocked meanwhile.
 */
typedef void sandbox_watch(void *ctx, const struct progress *progress);

/*
 * Call fn(arg, progress, fault) in a child; 0 or -errno of fn comes back. `watch` may
 * be NULL. The caller may have threads (the child runs fn without them: fn must not
 * take locks of the parent). -EINTR when SIGINT, SIGTERM, SIGHUP or SIGQUIT arrived and the
 * caller handles it; other signals that it handles wait until the child has ended.
 *
 * Stalled means: no number in its progress changed while the child used
 * stall_seconds of CPU time, which is the archive's fault (-EUCLEAN), or while idle_seconds
 * went by, which is the storage's (-ETIMEDOUT). -ENOMEM when fn, or the kernel, ran out of
 * memory.
 */
int sandbox_run(int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
                const struct sandbox_limits *limits, sandbox_watch *watch, void *watch_ctx,
                struct fault *fault);

#endif
