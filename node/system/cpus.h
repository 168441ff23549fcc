/*
 * How many CPUs the job gave us, which is how many threads are worth starting. budget.c counts
 * them with the memory, as the same control groups limit both.
 */
#ifndef ONEPOT_CPUS_H
#define ONEPOT_CPUS_H

#include <stdbool.h>
#include <stdint.h>

/* The limits known; 0 where there is no such limit or it can't be read. */
struct cpus {
    unsigned mask;   /* this thread's affinity */
    unsigned quota;  /* CPU time quota of the cgroup and its parents, rounded up */
    unsigned cpuset; /* of the cgroup */
    unsigned online; /* of the node */
};

/* `root` is prepended to all paths except in direct system calls ("" except in tests). */
void cpus_look(const char *root, struct cpus *ret_cpus);

/* min(mask, quota), at least 1: the default number of threads everywhere. */
unsigned cpus_allowed(void);

/*
 * An identifier of the set of CPUs that this thread may run on, never 0. Processes with the
 * same identifier compete for the same CPUs.
 */
uint64_t cpus_key(void);

/*
 * Widen this thread's mask to all CPUs that the job has. A batch system binds a task to one
 * core, and processes started by the task inherit that, but a process that serves all tasks may
 * use all of the job's. These must be known: they are the cgroup's set of CPUs if smaller than
 * the node, or the whole node if the batch system says that the job has it. Returns whether
 * there is anything to gain.
 */
bool cpus_widen(void);

/*
 * May a process with these limits widen its mask? `all_ours`: the job has the node. For tests.
 */
bool cpus_may_widen(const struct cpus *cpus, bool all_ours);

#endif
