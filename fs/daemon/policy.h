/*
 * Which scheduling policy a worker has. With SCHED_BATCH one that is woken does not interrupt
 * the reader that asked, which is about to sleep anyway: 8 % more files a second with 2 and 4
 * readers. But where other programs keep the CPUs busy it does not interrupt those either, and
 * waits for the end of their turn, milliseconds for each request. So a worker looks how long it
 * waited for its CPU (run_delay in /proc/thread-self/schedstat). It begins as an ordinary
 * thread, becomes a batch one after a tenth of a second with requests, and where that makes it
 * wait it is ordinary again for a while, twice as long each time.
 *
 * Threads: each worker has one of its own.
 */
#ifndef ONEPOT_DAEMON_POLICY_H
#define ONEPOT_DAEMON_POLICY_H

#include <stdbool.h>
#include <stdint.h>

struct policy {
    int stat_fd; /* -1: the kernel does not tell, and the thread is an ordinary one */
    unsigned requests;
    uint64_t waited_ns, turns;   /* of the thread's life, when last looked at */
    uint64_t tried_ns, until_ns; /* batch since; ordinary until, 0: it is not */
    uint64_t for_ns;             /* how long it was last ordinary; 0: it has just begun */
};

/* For the calling thread, which is an ordinary one. */
void policy_begin(struct policy *policy);
void policy_end(struct policy *policy);

/* After a request of the calling thread. Once in a few of them it looks. */
void policy_after_request(struct policy *policy);

/*
 * At `at_ns` the thread has waited so long for so many turns on a CPU. True: it shall be
 * ordinary, false: batch. What policy_after_request asks; without system calls.
 */
bool policy_is_ordinary(struct policy *policy, uint64_t at_ns, uint64_t waited_ns,
                        uint64_t turns);

#endif
