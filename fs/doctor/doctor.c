/*
 * Findings in general, and those about memory and CPUs, from /proc and cgroups.
 */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "claims.h"
#include "cli.h"
#include "cpus.h"
#include "job.h"

void findings_free(struct findings *f)
{
    free(f->items);
    *f = (struct findings){0};
}

struct finding *finding_add(struct findings *f, enum finding_kind kind, const char *section,
                            const char *subject, const char *format, ...)
{
    struct finding *items = realloc(f->items, (f->count + 1) * sizeof(*items));
    if (!items) {
        f->failed = true;
        return NULL;
    }
    f->items = items;
    struct finding *finding = &items[f->count++];
    *finding = (struct finding){.kind = kind, .section = section};
    snprintf(finding->subject, sizeof(finding->subject), "%s", subject);
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text, sizeof(finding->text), format, args);
    va_end(args);
    return finding;
}

void finding_advise(struct finding *finding, const char *format, ...)
{
    if (!finding)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(finding->advice, sizeof(finding->advice), format, args);
    va_end(args);
}

/* ---- memory ---- */

/* budget_see */
static void see_limit(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    struct findings *f = ctx;
    char text[CLI_TEXT_LEN], used_text[CLI_TEXT_LEN];
    if (limit == UINT64_MAX)
        finding_add(f, FINDING_FACT, "memory", path, "no limit");
    else if (used == UINT64_MAX)
        finding_add(f, FINDING_FACT, "memory", path, "%s%s", cli_format_bytes(limit, text),
                    strstr(path, "meminfo") ? " available on the node now" : "");
    else
        finding_add(f, FINDING_FACT, "memory", path,
                    "%s, of which %s are used, page cache included",
                    cli_format_bytes(limit, text), cli_format_bytes(used, used_text));
}

static void see_claims(struct findings *f)
{
    struct job job;
    struct claim_others others;
    char text[CLI_TEXT_LEN];
    job_detect(&job);
    if (job.id[0])
        finding_add(f, FINDING_FACT, "memory", "job", "%s", job.id);
    else
        finding_add(f, FINDING_FACT, "memory", "job", "none: no batch system has said so");
    if (claims_of_job(job.id, &others) < 0)
        return;
    if (others.count == 0)
        finding_add(f, FINDING_FACT, "memory", "others of it",
                    "no mount and no loader shares it");
    else
        finding_add(f, FINDING_FACT, "memory", "others of it", "%u mount%s, which may take %s",
                    others.count, others.count == 1 ? " or loader" : "s and loaders",
                    cli_format_bytes(others.using_bytes, text));
}

void doctor_memory(struct findings *f)
{
    char text[CLI_TEXT_LEN], cache[CLI_TEXT_LEN];
    uint64_t least = budget_memory_bytes("");
    budget_explain("", see_limit, f);
    if (least == UINT64_MAX)
        finding_add(f, FINDING_WARNING, "memory", "the job's share",
                    "not known: neither cgroups nor /proc/meminfo could be read");
    else
        finding_add(f, FINDING_FACT, "memory", "the job's share", "%s, the least of these",
                    cli_format_bytes(least, text));
    finding_add(f, FINDING_FACT, "memory", "cache of mounts",
                "%s, a quarter of that, unless --cache says otherwise",
                cli_format_bytes(budget_cache_bytes(), cache));
    see_claims(f);
}

/* ---- CPUs ---- */

static void see_count(struct findings *f, const char *subject, unsigned count, const char *none)
{
    if (count)
        finding_add(f, FINDING_FACT, "CPUs", subject, "%u", count);
    else
        finding_add(f, FINDING_FACT, "CPUs", subject, "%s", none);
}

void doctor_cpus(struct findings *f)
{
    struct cpus cpus;
    cpus_look("", &cpus);
    see_count(f, "of the node", cpus.online, "not known");
    see_count(f, "affinity mask", cpus.mask, "not known");
    see_count(f, "set of the cgroup", cpus.cpuset, "none, or not known");
    see_count(f, "quota of the cgroup", cpus.quota, "none");
    unsigned allowed = cpus_allowed();
    struct finding *finding =
        finding_add(f, FINDING_FACT, "CPUs", "threads by default", "%u", allowed);
    if (cpus.mask && cpus.cpuset > cpus.mask && cpus.cpuset < cpus.online)
        finding_advise(finding,
                       "this task is bound to fewer than the job has; a mount uses the "
                       "%u of the job",
                       cpus.cpuset);
}
