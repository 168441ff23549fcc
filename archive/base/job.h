/*
 * Which batch job, and which step of it, this process belongs to: two jobs of one
 * user on one node must not share or end each other's mounts.
 */
#ifndef ONEPOT_JOB_H
#define ONEPOT_JOB_H

#define JOB_ID_MAX 64

struct job {
    const char *variable;  /* "SLURM_JOB_ID": the one that told; NULL outside a job */
    char id[JOB_ID_MAX];   /* "" outside a job */
    char step[JOB_ID_MAX]; /* "" where the batch system has no steps, or outside of one */
};

/*
 * From the environment that Slurm, PBS, LSF, Flux, OAR, Cobalt and Grid Engine give
 * their jobs, in this order. Both are safe as part of a file name: other bytes than
 * letters, digits and "._-" have become '_', and what is too long was cut.
 */
void job_detect(struct job *ret_job);

#endif
