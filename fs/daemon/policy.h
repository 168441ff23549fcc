/*
 * Chooses each worker's scheduling policy. Under SCHED_BATCH a woken worker does not preempt
 * the reader that asked, which is about to sleep anyway: 8 % more files a second with 2 and 4
 * readers. But where other programs keep the CPUs busy, the worker does not preempt those
 * either, and waits milliseconds per request for their time slice to end. So each worker
 * measures how long it waited for its CPU (run_delay in /proc/thread-self/schedstat). It begins
 * as an ordinary thread and turns to SCHED_BATCH after a tenth of a second with requests. If
 * that makes it wait, it becomes ordinary again for a while, twice as long each time.
 *
 * Threads: each worker has a struct policy of its own.
 */
#ifndef ONEPOT_DAEMON_POLICY_H
#define ONEPOT_DAEMON_POLICY_H

#include <stdbool.h>
#include <stdint.h>

struct policy {
    int stat_fd; /* -1: the kernel reports no waits, and the thread stays ordinary */
    unsigned requests;
    uint64_t waited_ns, turns;   /* over the thread's life, at the last look */
    uint64_t tried_ns, until_ns; /* SCHED_BATCH since; ordinary until, 0: it is not */
    uint64_t for_ns;             /* length of the last ordinary period; 0: none yet */
};

/* For the calling thread, which must be an ordinary one. */
void policy_begin(struct policy *policy);
void policy_end(struct policy *policy);

/* Called after each request of the calling thread. Measures once in a few requests. */
void policy_after_request(struct policy *policy);

/*
 * The decision of policy_after_request, without system calls. At `at_ns` the thread has waited
 * `waited_ns` for `turns` turns on a CPU. True: it should be ordinary; false: SCHED_BATCH.
 */
bool policy_is_ordinary(struct policy *policy, uint64_t at_ns, uint64_t waited_ns,
                        uint64_t turns);

#endif
