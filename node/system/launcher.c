/*
 * Launchers: a table with one line each for the variables of rank, world size and local rank.
 *
 * A launcher is present if its rank is set. Its world size must then be set too: treating a
 * lone rank as a single process would make that process do the work of all. PMIx and PALS have
 * no variable for the size; the program that starts such processes sets its own beside it.
 */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "job.h"
#include "numbers.h"

/* More processes than any machine starts, yet too few to overflow anything. */
#define WORLD_MAX 100000000u

/* Slurm numbers non-parallel steps (batch script, shell of an allocation, ...) from here on. */
#define SLURM_STEP_MAX UINT64_C(0xfffffff0)

#define ALTERNATIVES 3

static const struct names {
    const char *launcher;
    const char *rank;
    const char *world[ALTERNATIVES]; /* the first one set counts */
    const char *local[ALTERNATIVES];
    bool slurm; /* only within a step */
} table[] = {
    {"torchrun", "RANK", {"WORLD_SIZE"}, {"LOCAL_RANK"}, false},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE"},
     {"OMPI_COMM_WORLD_LOCAL_RANK"},
     false},
    {"PMIx",
     "PMIX_RANK",
     {"PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     {"SLURM_LOCALID"},
     false},
    {"PMI", "PMI_RANK", {"PMI_SIZE"}, {"PMI_LOCAL_RANK", "MPI_LOCALRANKID"}, false},
    {"MVAPICH2",
     "MV2_COMM_WORLD_RANK",
     {"MV2_COMM_WORLD_SIZE"},
     {"MV2_COMM_WORLD_LOCAL_RANK"},
     false},
    {"Horovod", "HOROVOD_RANK", {"HOROVOD_SIZE"}, {"HOROVOD_LOCAL_RANK"}, false},
    {"Flux", "FLUX_TASK_RANK", {"FLUX_JOB_SIZE"}, {"FLUX_TASK_LOCAL_ID"}, false},
    {"PALS", "PALS_RANKID", {"PMI_SIZE", "PALS_SIZE"}, {"PALS_LOCAL_RANKID"}, false},
    {"Slurm",
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
     {"SLURM_LOCALID"},
     true},
};

/* Decimal digits and nothing else, at most `max`. */
static bool launcher_parse(const char *text, uint64_t max, uint64_t *ret_number)
{
    const char *rest;
    return digits_parse(text, ret_number, &rest) == 0 && !*rest && *ret_number <= max;
}

static int launcher_no_number(struct fault *fault, const char *name, const char *value)
{
    return fault_set_advised(fault, -EINVAL, name, FAULT_NO_OFFSET,
                             "unset it, or give rank and world size by options",
                             "'%s' is not a number that it can have", value);
}

/* 1: *ret_number is the value of the first variable set, named *ret_name. 0: none is set. */
static int launcher_number(const char *const names[ALTERNATIVES], struct fault *fault,
                           const char **ret_name, uint64_t *ret_number)
{
    for (int i = 0; i < ALTERNATIVES && names[i]; i++) {
        const char *value = job_variable(names[i]);
        if (!value)
            continue;
        if (!launcher_parse(value, WORLD_MAX, ret_number))
            return launcher_no_number(fault, names[i], value);
        *ret_name = names[i];
        return 1;
    }
    return 0;
}

bool launcher_in_slurm_step(void)
{
    const char *step = job_variable("SLURM_STEP_ID");
    if (!step)
        step = job_variable("SLURM_STEPID");
    uint64_t number;
    return step && launcher_parse(step, SLURM_STEP_MAX, &number);
}

static int launcher_no_world(const struct names *n, struct fault *fault)
{
    fault_set(fault, -EINVAL, n->rank, FAULT_NO_OFFSET, "is set, but %s is not", n->world[0]);
    fault_advise(fault, "set both or neither, or give rank and world size by options");
    return -EINVAL;
}

static int launcher_read(const struct names *n, uint64_t rank, struct fault *fault,
                         struct launcher *ret_launcher)
{
    const char *name;
    uint64_t world, local;
    int r = launcher_number(n->world, fault, &name, &world);
    if (r <= 0)
        return r < 0 ? r : launcher_no_world(n, fault);
    if (rank >= world)
        return fault_set_advised(fault, -EINVAL, n->rank, FAULT_NO_OFFSET,
                                 "unset both, or give rank and world size by options",
                                 "is %llu, but %s is %llu: ranks count from 0",
                                 (unsigned long long)rank, name, (unsigned long long)world);
    r = launcher_number(n->local, fault, &name, &local);
    if (r < 0)
        return r;
    *ret_launcher = (struct launcher){.name = n->launcher,
                                      .rank = (uint32_t)rank,
                                      .world = (uint32_t)world,
                                      .local_rank = r ? (int32_t)local : -1};
    return 0;
}

/*
 * Does the rank belong to the step's own task, rather than come from an mpiexec within the
 * step?
 */
static bool launcher_is_slurms(const struct names *n, const struct launcher *launcher)
{
    const char *task = job_variable("SLURM_PROCID");
    uint64_t rank;
    if (n->slurm)
        return true;
    return (strcmp(n->launcher, "PMIx") == 0 || strcmp(n->launcher, "PMI") == 0) &&
           launcher_in_slurm_step() && !job_variable("MPI_LOCALRANKID") && task &&
           launcher_parse(task, WORLD_MAX, &rank) && rank == launcher->rank;
}

static bool launcher_has_terminal(void)
{
    int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* See launcher_find. */
static void launcher_check_terminal(const struct names *n, struct launcher *launcher)
{
    if (launcher->world == 1 || !launcher_is_slurms(n, launcher) || !launcher_has_terminal())
        return;
    uint32_t rank = launcher->rank, world = launcher->world;
    if (getpgrp() == getsid(0)) {
        snprintf(
            launcher->note, sizeof(launcher->note),
            "this is rank %u of %u, as Slurm says, and does its part alone, though it has a "
            "terminal",
            rank, world);
        return;
    }
    *launcher = (struct launcher){.world = 1, .local_rank = -1};
    snprintf(launcher->note, sizeof(launcher->note),
             "Slurm's rank %u of %u does not count in a shell on a terminal: this process does "
             "all; tell rank and world size for a part",
             rank, world);
}

int launcher_find(struct fault *fault, struct launcher *ret_launcher)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const char *rank[ALTERNATIVES] = {table[i].rank}, *name;
        uint64_t number;
        if (table[i].slurm && !launcher_in_slurm_step())
            continue;
        int r = launcher_number(rank, fault, &name, &number);
        if (r == 0)
            continue;
        if (r > 0)
            r = launcher_read(&table[i], number, fault, ret_launcher);
        if (r == 0)
            launcher_check_terminal(&table[i], ret_launcher);
        return r;
    }
    *ret_launcher = (struct launcher){.world = 1, .local_rank = -1};
    return 0;
}

uint64_t launcher_start(const char *launcher)
{
    static const struct {
        const char *launcher;
        const char *tells[ALTERNATIVES];
    } starts[] = {
        {"torchrun", {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
        {"Open MPI", {"PMIX_NAMESPACE"}},
        {"PMIx", {"PMIX_NAMESPACE"}},
        {"PMI", {"PMI_JOBID"}},
        {"Flux", {"FLUX_JOB_ID"}},
        {"PALS", {"PALS_APID"}},
        {"Slurm", {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
    };
    uint64_t start = 0;
    for (size_t i = 0; launcher && i < sizeof(starts) / sizeof(starts[0]); i++)
        for (int k = 0; strcmp(starts[i].launcher, launcher) == 0 && k < ALTERNATIVES; k++) {
            const char *name = starts[i].tells[k], *value = job_variable(name);
            if (value)
                start = XXH3_64bits_withSeed(value, strlen(value), start + 1);
        }
    return start;
}
