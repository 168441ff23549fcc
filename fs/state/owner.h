/*
 * To whom something belongs that outlives the command which made it: a mount, a copy of an
 * archive. It goes when that process, and its session, have ended, so that a job that forgot to
 * clean up leaves nothing, also where no control group ends what it started.
 *
 *     batch job           its outermost process: the script, salloc's shell, a task of srun; or
 *                         what the batch system leads their session by (slurmstepd)
 *     login, cron, make   the leader of the session: the shell of the terminal or of ssh, the
 *                         command of cron
 *     Jupyter's "!", sudo, script, expect
 *                         what the program belongs to that runs a command in a terminal of its
 *                         own: the leader of its session, which Jupyter's kernel is itself
 *     a service of systemd, `setsid onepot mount`, `ssh node onepot mount`
 *                         nobody: the command is all that there is of its session
 *
 * It is never the subshell of `data=$(onepot mount x)`, nor a script that a shell runs.
 */
#ifndef ONEPOT_OWNER_H
#define ONEPOT_OWNER_H

#include <sys/types.h>

#include "counters.h"
#include "process.h"

/* The owner of what this process leaves behind. 0: nobody. */
pid_t owner_find(void);

/*
 * One more process (0: nobody ever ends it) that a mount belongs to: it goes with the last of
 * them. Under the registry's lock.
 */
void owner_add(struct counters *counters, pid_t pid);

/*
 * Watch one of those that live; of an owner that has ended, what is left of its session counts.
 * True: one is watched, or nobody can tell and *ret_watch is PROCESS_WATCH_NONE; false: all
 * have ended. The process itself doesn't count.
 */
bool owner_watch(const struct counters *counters, struct process_watch *ret_watch);

#endif
