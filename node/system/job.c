/*
 * Job identity from the environment. A variable counts only if its batch system surely set it.
 * Grid Engine names its job plainly JOB_ID, so that is believed only together with a second
 * variable of the same system.
 */
#include "job.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

#define JOB_NODES_MAX 100000000u /* more than there are, yet too few to overflow anything */

/* The first id variable that is set decides; `step` may be part of the job's name. */
static const struct batch_system {
    const char *id, *step;
    const char *witness; /* must be set too; NULL: none needed */
} systems[] = {
    {"SLURM_JOB_ID", "SLURM_STEP_ID", NULL},
    {"SLURM_JOBID", "SLURM_STEPID", NULL},
    {"PBS_JOBID", NULL, NULL},
    {"LSB_JOBID", "LSB_JOBINDEX", NULL},
    {"FLUX_JOB_ID", NULL, NULL},
    {"OAR_JOB_ID", NULL, NULL},
    {"COBALT_JOBID", NULL, NULL},
    {"JOB_ID", "SGE_TASK_ID", "SGE_ROOT"},
    {"JOB_ID", "SGE_TASK_ID", "SGE_CELL"},
};

const char *job_variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && *value ? value : NULL;
}

/* Copy the characters that are safe in a file name in any locale. */
static void job_copy_safe(char to[JOB_ID_MAX], const char *from)
{
    size_t n = 0;
    for (; from && from[n] && n < JOB_ID_MAX - 1; n++) {
        unsigned char c = (unsigned char)from[n];
        bool safe = c < 128 && (isalnum(c) || c == '.' || c == '_' || c == '-');
        to[n] = safe ? (char)c : '_';
    }
    to[n] = '\0';
}

void job_detect(struct job *ret_job)
{
    *ret_job = (struct job){0};
    for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++) {
        const struct batch_system *s = &systems[i];
        if (!job_variable(s->id) || (s->witness && !job_variable(s->witness)))
            continue;
        ret_job->variable = s->id;
        job_copy_safe(ret_job->id, job_variable(s->id));
        job_copy_safe(ret_job->step, job_variable(s->step));
        return;
    }
}

bool job_has(const char *setting, pid_t pid)
{
    auto_free char *line = NULL;
    char path[32];
    size_t size = 0;
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    auto_fclose FILE *f = fopen(path, "re");
    while (f && getdelim(&line, &size, '\0', f) > 0)
        if (strcmp(line, setting) == 0)
            return true;
    return false;
}

static unsigned long job_number(const char *name)
{
    const char *text = job_variable(name);
    char *end = NULL;
    unsigned long number = text && isdigit((unsigned char)*text) ? strtoul(text, &end, 10) : 0;
    return end && !*end && number <= JOB_NODES_MAX ? number : 0;
}

unsigned job_nodes(const char **ret_variable)
{
    /* From the batch system's, which counts whatever is started in it, to processes by node. */
    static const struct {
        const char *count, *for_each_node;
    } counts[] = {
        {"SLURM_JOB_NUM_NODES", NULL},
        {"SLURM_NNODES", NULL},
        {"FLUX_JOB_NNODES", NULL},
        {"PBS_NUM_NODES", NULL},
        {"GROUP_WORLD_SIZE", NULL}, /* torchrun's agents */
        {"WORLD_SIZE", "LOCAL_WORLD_SIZE"},
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_SIZE", "MPI_LOCALNRANKS"},
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        unsigned long count = job_number(counts[i].count);
        unsigned long each = counts[i].for_each_node ? job_number(counts[i].for_each_node) : 1;
        if (!count || !each)
            continue;
        *ret_variable = counts[i].count;
        return (unsigned)((count + each - 1) / each);
    }
    *ret_variable = NULL;
    return 1;
}
