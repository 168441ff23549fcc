/*
 * How many CPUs the job gave us: as many threads are worth starting, and no more.
 */
#ifndef ONEPOT_CPUS_H
#define ONEPOT_CPUS_H

#include <stdbool.h>
#include <stdint.h>

/* What there is to know of it; 0 where there is no such limit, or it can't be told. */
struct cpus {
    unsigned mask;   /* this thread's affinity */
    unsigned quota;  /* of CPU time, of the cgroup and its parents: rounded up */
    unsigned cpuset; /* of the cgroup */
    unsigned online; /* of the node */
};

/* `root` is put in front of all paths but the kernel's own calls ("" but in tests). */
void cpus_look(const char *root, struct cpus *ret_cpus);

/* min(mask, quota), at least 1: the default of everything that has threads. */
unsigned cpus_allowed(void);

/*
 * Names the set of CPUs that this thread may run on, never 0: processes that have the same
 * number compete for the same ones.
 */
uint64_t cpus_key(void);

/*
 * A batch system binds a task to one core, and what the task starts inherits that. A process
 * that serves all tasks may use what the job has: widen this thread's mask to that, where it
 * is known: the cgroup's set of CPUs if that is less than the node, or the whole node if the
 * batch system says that the job has it. Returns whether there is anything to be gained.
 */
bool cpus_widen(void);

/* May a process with these limits widen its mask? For tests; `all_ours`: the job has the node.
 */
bool cpus_may_widen(const struct cpus *cpus, bool all_ours);

#endif
