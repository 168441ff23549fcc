/*
 * Setting a mask of all CPUs is safe within a cgroup's set: the kernel reduces the mask to
 * that set. Without a set the mask would be the whole node, which is seldom ours.
 */
#include "cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cgroup.h"

#define CPUS_MAX 8192 /* the most that Linux can have */

typedef cpu_set_t cpus_mask[CPUS_MAX / CPU_SETSIZE];

static unsigned cpus_mask_count(void)
{
    cpus_mask set;
    int n = sched_getaffinity(0, sizeof(set), set) == 0 ? CPU_COUNT_S(sizeof(set), set) : 0;
    return n > 0 ? (unsigned)n : 0;
}

static void cpus_lower(unsigned *least, uint64_t time, uint64_t period)
{
    if (period == 0 || time == 0 || time / period >= CPUS_MAX)
        return;
    unsigned n = (unsigned)((time + period - 1) / period);
    if (*least == 0 || n < *least)
        *least = n;
}

/* cgroup_visit, version 2: "TIME PERIOD", or "max PERIOD". */
static bool cpus_see_max(void *ctx, const char *folder)
{
    char line[64];
    unsigned long long time, period;
    if (cgroup_line(folder, "cpu.max", line, sizeof(line)) &&
        sscanf(line, "%llu %llu", &time, &period) == 2)
        cpus_lower(ctx, time, period);
    return true;
}

/* cgroup_visit, version 1: two files; -1 means no limit. */
static bool cpus_see_cfs(void *ctx, const char *folder)
{
    char line[64];
    long long time;
    if (cgroup_line(folder, "cpu.cfs_quota_us", line, sizeof(line)) &&
        sscanf(line, "%lld", &time) == 1 && time > 0)
        cpus_lower(ctx, (uint64_t)time, cgroup_number(folder, "cpu.cfs_period_us"));
    return true;
}

/* Count the CPUs in a list such as "0-3,8". */
static unsigned cpus_list_count(const char *list)
{
    unsigned total = 0, first, last;
    int n;
    while (sscanf(list, "%u%n", &first, &n) == 1) {
        list += n;
        last = first;
        if (sscanf(list, "-%u%n", &last, &n) == 1)
            list += n;
        if (last < first || last >= CPUS_MAX)
            return 0;
        total += last - first + 1;
        if (*list++ != ',')
            break;
    }
    return total;
}

/*
 * cgroup_visit: the nearest group with a set counts; groups without the controller have none.
 */
static bool cpus_see_cpuset(void *ctx, const char *folder)
{
    static const char *const files[] = {"cpuset.cpus.effective", "cpuset.effective_cpus",
                                        "cpuset.cpus"};
    char line[4096];
    unsigned *count = ctx;
    for (unsigned i = 0; i < 3 && *count == 0; i++)
        if (cgroup_line(folder, files[i], line, sizeof(line)))
            *count = cpus_list_count(line);
    return *count == 0;
}

void cpus_look(const char *root, struct cpus *ret_cpus)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *ret_cpus =
        (struct cpus){.mask = cpus_mask_count(), .online = online > 0 ? (unsigned)online : 0};
    struct cgroups cgroups;
    cgroups_find(root, &cgroups);
    cgroup_walk(&cgroups, CGROUP_V2, cpus_see_max, &ret_cpus->quota);
    cgroup_walk(&cgroups, CGROUP_V1_CPU, cpus_see_cfs, &ret_cpus->quota);
    cgroup_walk(&cgroups, CGROUP_V1_CPUSET, cpus_see_cpuset, &ret_cpus->cpuset);
    if (ret_cpus->cpuset == 0)
        cgroup_walk(&cgroups, CGROUP_V2, cpus_see_cpuset, &ret_cpus->cpuset);
    cgroups_free(&cgroups);
}

unsigned cpus_allowed(void)
{
    struct cpus cpus;
    cpus_look("", &cpus);
    unsigned n = cpus.mask ? cpus.mask : cpus.online;
    if (cpus.quota > 0 && cpus.quota < n)
        n = cpus.quota;
    return n > 0 ? n : 1;
}

uint64_t cpus_key(void)
{
    cpus_mask set = {0};
    const unsigned char *bytes = (const void *)set;
    uint64_t key = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    sched_getaffinity(0, sizeof(set), set);
    for (size_t i = 0; i < sizeof(set); i++)
        key = (key ^ bytes[i]) * UINT64_C(0x100000001b3);
    return key | 1;
}

bool cpus_may_widen(const struct cpus *cpus, bool all_ours)
{
    if (cpus->mask == 0 || cpus->online == 0)
        return false;
    if (cpus->cpuset > 0 && cpus->cpuset < cpus->online)
        return cpus->mask < cpus->cpuset;
    return all_ours && cpus->mask < cpus->online;
}

/* Does the batch system say that the job has all CPUs of the node? */
static bool cpus_job_has_node(unsigned online)
{
    const char *text = getenv("SLURM_CPUS_ON_NODE");
    unsigned long n = text ? strtoul(text, NULL, 10) : 0;
    return online > 0 && n >= online;
}

bool cpus_widen(void)
{
    struct cpus cpus;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0 && cpus_mask_count() >= (unsigned)online)
        return false; /* as mostly: nothing has to be read */
    cpus_look("", &cpus);
    if (!cpus_may_widen(&cpus, cpus_job_has_node(cpus.online)))
        return false;
    cpus_mask set;
    memset(set, 0xff, sizeof(set));
    return sched_setaffinity(0, sizeof(set), set) == 0 && cpus_mask_count() > cpus.mask;
}
