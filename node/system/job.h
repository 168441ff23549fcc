/*
 * The batch job and step that this process belongs to. Two jobs of one user on one node must
 * not share or end each other's mounts.
 */
#ifndef ONEPOT_JOB_H
#define ONEPOT_JOB_H

#include <stdbool.h>
#include <sys/types.h>

#define JOB_ID_MAX 64

struct job {
    const char
        *variable; /* the one that identified the job, "SLURM_JOB_ID"; NULL outside a job */
    char id[JOB_ID_MAX];   /* "" outside a job */
    char step[JOB_ID_MAX]; /* "" outside a step, or where the batch system has none */
};

/*
 * Identify the job from the environment set by Slurm, PBS, LSF, Flux, OAR, Cobalt or Grid
 * Engine, in this order. `id` and `step` are safe as part of a file name: bytes other than
 * letters, digits and "._-" become '_', and long values are truncated.
 */
void job_detect(struct job *ret_job);

/* Was the process started with this setting, such as "SLURM_JOB_ID=12"? */
bool job_has(const char *setting, pid_t pid);

/* The value of a variable; NULL: it is not set, or empty, or `name` is NULL. */
const char *job_variable(const char *name);

/*
 * The number of nodes of the job, as its batch system or launcher sets it; 1 if neither does.
 * *ret_variable names what told it ("SLURM_JOB_NUM_NODES"), or is NULL.
 */
unsigned job_nodes(const char **ret_variable);

#endif
