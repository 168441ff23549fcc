/*
 * Finds the owner of whatever outlives the command that made it: a mount, a copy of an archive.
 * It is removed when the owning process and its session have ended. So a job that forgets to
 * clean up leaves nothing, even where no control group ends its processes.
 *
 *     batch job           its outermost process: the script, salloc's shell, a task of srun; or
 *                         the batch system's leader of their session (slurmstepd)
 *     login, cron, make   the leader of the session: the shell of the terminal or of ssh, the
 *                         command of cron
 *     Jupyter's "!", sudo, script, expect
 *                         these run a command in a new terminal; the owner is the leader
 *                         of the program's session, which Jupyter's kernel is itself
 *     a service of systemd, `setsid onepot mount`, `ssh node onepot mount`
 *                         nobody: the command is its whole session
 *
 * It is never the subshell of `data=$(onepot mount x)`, nor a script that a shell runs.
 */
#ifndef ONEPOT_OWNER_H
#define ONEPOT_OWNER_H

#include <sys/types.h>

#include "counters.h"
#include "process.h"

/* The owner of the things that this process leaves behind. 0: nobody. */
pid_t owner_find(void);

/*
 * Add one more owner (0: one that never ends). The mount goes with the last of its owners.
 * Under the registry's lock.
 */
void owner_add(struct counters *counters, pid_t pid);

/*
 * Watch one living owner. An owner that has ended is replaced by the rest of its session. True:
 * one is watched, or none can be known and *ret_watch is PROCESS_WATCH_NONE. False: all have
 * ended. The calling process doesn't count.
 */
bool owner_watch(const struct counters *counters, struct process_watch *ret_watch);

#endif
