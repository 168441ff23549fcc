/*
 * Which one of how many processes this is, by the environment that a launcher of
 * parallel jobs gives to what it starts.
 *
 *     struct launcher l;
 *     r = launcher_find(launcher_environment, NULL, &fault, &l);
 *     ... write the shards with number % l.world == l.rank ...
 *
 * Known are torchrun, Open MPI, PMIx, PMI, MVAPICH2, Horovod, Flux, PALS and Slurm. When
 * several have left their mark the most specific decides, in this order: torchrun under
 * srun counts as torchrun.
 *
 * Slurm tells a rank also to what is no parallel step: the batch script is told that it is
 * task 0 of as many as the job asked for. There, and in the shell of an allocation, its
 * variables don't count: the process is one of one.
 */
#ifndef ONEPOT_LAUNCHER_H
#define ONEPOT_LAUNCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"

struct launcher {
    const char *name;   /* "Open MPI"; NULL: none, then it is rank 0 of 1 */
    uint32_t rank;      /* < world */
    uint32_t world;     /* processes that were started together; at least 1 */
    int32_t local_rank; /* among those of this node; -1: not told */
    char note[192];     /* what a person should be told of it, or "" */
};

/* The value of a variable, or NULL. A variable that is set to nothing counts as not set. */
typedef const char *launcher_getenv(void *ctx, const char *name);

/* That of this process; `ctx` is not used. */
const char *launcher_environment(void *ctx, const char *name);

/* Is this process a task of a step that srun started, and not in Slurm's batch script? */
bool launcher_in_slurm_step(launcher_getenv *get, void *ctx);

/*
 * Slurm tells a shell that `srun -n2 --pty bash` starts, and all that is called there, that it
 * is rank 0 of 2. But there is one person, whose command nobody has started twice: Slurm's rank
 * does not count where the process has a controlling terminal, and a shell with job control put
 * it into a process group of its own. A task with a terminal that is not called from such a
 * shell
 * (`srun -n2 --pty python train.py`) is a rank as the others are. Of both, the note tells.
 *
 * 0, or -EINVAL with a fault whose member is the variable that makes no sense: no number,
 * a rank that is not below the world size, a rank without a world size.
 */
int launcher_find(launcher_getenv *get, void *ctx, struct fault *fault,
                  struct launcher *ret_launcher);

/*
 * A number that all processes of one start have in common, and those of another start most
 * likely not. 0: the launcher (the name that launcher_find gave; may be NULL) does not tell.
 */
uint64_t launcher_start(launcher_getenv *get, void *ctx, const char *launcher);

#endif
