/*
 * The rank of this process and the number of processes started with it, from the environment
 * that a launcher of parallel jobs sets.
 *
 *     struct launcher l;
 *     r = launcher_find(&fault, &l);
 *     ... write the shards with number % l.world == l.rank ...
 *
 * Known launchers are torchrun, Open MPI, PMIx, PMI, MVAPICH2, Horovod, Flux, PALS and Slurm.
 * If several have left variables, the most specific decides, in this order: torchrun under
 * srun counts as torchrun.
 *
 * Slurm also gives a rank to processes outside any parallel step: the batch script appears as
 * task 0 of as many as the job asked for. There, and in the shell of an allocation, Slurm's
 * variables don't count: the process is one of one.
 */
#ifndef ONEPOT_LAUNCHER_H
#define ONEPOT_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"

struct launcher {
    const char *name;   /* "Open MPI"; NULL: no launcher, so rank 0 of 1 */
    uint32_t rank;      /* < world */
    uint32_t world;     /* processes started together; at least 1 */
    int32_t local_rank; /* rank on this node; -1: unknown */
    char note[192];     /* a remark for the user, or "" */
};

/* Is this process a task of a step that srun started, and not in Slurm's batch script? */
bool launcher_in_slurm_step(void);

/*
 * Find the launcher. A variable set to the empty string counts as not set.
 *
 * Slurm's rank is ignored in an interactive shell. Slurm gives the shell that `srun -n2 --pty
 * bash` starts, and every command called there, rank 0 of 2, but a person started that command
 * only once. So the rank does not count if the process has a controlling terminal and a shell
 * with job control put it into its own process group. A task with a terminal but without such a
 * shell (`srun -n2 --pty python train.py`) is a rank like any other. The note reports both
 * cases.
 *
 * 0, or -EINVAL with a fault whose member is the variable that makes no sense: not a number, a
 * rank not below the world size, or a rank without a world size.
 */
int launcher_find(struct fault *fault, struct launcher *ret_launcher);

/*
 * A number shared by all processes of one start, and most likely by no other start. 0: the
 * launcher (as named by launcher_find; may be NULL) provides none.
 */
uint64_t launcher_start(const char *launcher);

#endif
