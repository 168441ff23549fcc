/*
 * Findings in general, and those about memory and CPUs, from /proc and cgroups.
 */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "budget.h"
#include "share.h"
#include "cli.h"
#include "cpus.h"
#include "job.h"
#include "vector.h"

void findings_free(struct findings *f)
{
    vector_free(f);
}

void finding_add(struct findings *f, enum finding_kind kind, const char *subject,
                 const char *format, ...)
{
    struct finding finding = {.kind = kind, .section = f->section};
    va_list args;

    snprintf(finding.subject, sizeof(finding.subject), "%s", subject);
    va_start(args, format);
    vsnprintf(finding.text, sizeof(finding.text), format, args);
    va_end(args);
    f->failed |= vector_push(f, finding) < 0;
}

void finding_advise(struct findings *f, const char *format, ...)
{
    va_list args;

    if (f->failed)
        return;
    va_start(args, format);
    vsnprintf(f->at[f->count - 1].advice, sizeof(f->at->advice), format, args);
    va_end(args);
}

/* ---- memory ---- */

/* budget_see */
static void see_limit(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    struct findings *f = ctx;
    if (limit == UINT64_MAX)
        finding_add(f, FINDING_FACT, path, "no limit");
    else if (used == UINT64_MAX)
        finding_add(f, FINDING_FACT, path, "%s%s", cli_bytes(limit),
                    strstr(path, "meminfo") ? " available on the node now" : "");
    else
        finding_add(f, FINDING_FACT, path, "%s, of which %s are used, page cache included",
                    cli_bytes(limit), cli_bytes(used));
}

static void see_claims(struct findings *f)
{
    struct job job;
    job_detect(&job);
    if (job.id[0])
        finding_add(f, FINDING_FACT, "job", "%s", job.id);
    else
        finding_add(f, FINDING_FACT, "job", "none: no batch system names one");
    const struct claim_others others = claims_of_job(job.id);
    if (others.count == 0)
        finding_add(f, FINDING_FACT, "others of it", "no mount and no loader shares it");
    else
        finding_add(f, FINDING_FACT, "others of it", "%u mount%s, which may take %s",
                    others.count, others.count == 1 ? " or loader" : "s and loaders",
                    cli_bytes(others.using_bytes));
}

void doctor_memory(struct findings *f)
{
    f->section = "memory";
    uint64_t least = budget_memory_bytes("");
    budget_explain("", see_limit, f);
    if (least == UINT64_MAX)
        finding_add(f, FINDING_WARNING, "the job's share",
                    "not known: neither cgroups nor /proc/meminfo could be read");
    else
        finding_add(f, FINDING_FACT, "the job's share", "%s, the least of these",
                    cli_bytes(least));
    finding_add(f, FINDING_FACT, "cache of mounts",
                "%s, a quarter of that, unless --cache says otherwise",
                cli_bytes(budget_cache_bytes()));
    see_claims(f);
}

/* ---- CPUs ---- */

static void see_count(struct findings *f, const char *subject, unsigned count, const char *none)
{
    if (count)
        finding_add(f, FINDING_FACT, subject, "%u", count);
    else
        finding_add(f, FINDING_FACT, subject, "%s", none);
}

void doctor_cpus(struct findings *f)
{
    f->section = "CPUs";
    struct cpus cpus;
    cpus_look("", &cpus);
    see_count(f, "of the node", cpus.online, "not known");
    see_count(f, "affinity mask", cpus.mask, "not known");
    see_count(f, "set of the cgroup", cpus.cpuset, "none, or not known");
    see_count(f, "quota of the cgroup", cpus.quota, "none");
    unsigned allowed = cpus_allowed();
    finding_add(f, FINDING_FACT, "threads by default", "%u", allowed);
    if (cpus.mask && cpus.cpuset > cpus.mask && cpus.cpuset < cpus.online)
        finding_advise(f,
                       "this task is bound to fewer than the job has; a mount uses the "
                       "%u of the job",
                       cpus.cpuset);
}
