/*
 * The memory and the CPUs that a job may use of its node. A batch system limits a job by
 * control groups, often at several levels (job, step, task); the smallest limit counts. There
 * are two versions of them; a node may have both.
 *
 * /proc/self/cgroup names the group of a process; its mountinfo gives the place of the group's
 * files. A container may mount only a part of the hierarchy, which is then the top.
 */
#include "budget.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"
#include "cpus.h"
#include "mountinfo.h"
#include "numbers.h"
#include "process.h"

#define CACHE_LEAST_BYTES (UINT64_C(16) << 20)
#define CACHE_MOST_BYTES (UINT64_C(1) << 40)
#define V1_NO_LIMIT (UINT64_C(1) << 62) /* version 1 states "none" as a huge number */
#define CPUS_MAX 8192                   /* the most that Linux can have */

/* ---- control groups ---- */

enum cgroup_kind { CGROUP_V2, CGROUP_V1_MEMORY, CGROUP_V1_CPU, CGROUP_V1_CPUSET, CGROUP_KINDS };

/* The groups of this process, one of each hierarchy. */
struct cgroups {
    char *folder[CGROUP_KINDS]; /* NULL: no such hierarchy */
    size_t top[CGROUP_KINDS];   /* length of the name of the mounted hierarchy's top */
};

/* The first line of a group's file, without its newline. False if there is none. */
static bool cgroup_line(const char *folder, const char *file, char *line, size_t size)
{
    char path[4 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (proc_text(path, line, size) < 0 || !*line)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* The number in a line; UINT64_MAX for "max" and anything else that is not a number. */
static uint64_t cgroup_value(const char *line)
{
    uint64_t value;
    return sscanf(line, "%" SCNu64, &value) == 1 ? value : UINT64_MAX;
}

/* The same, of a group's file. */
static uint64_t cgroup_number(const char *folder, const char *file)
{
    char line[64];
    return cgroup_line(folder, file, line, sizeof(line)) ? cgroup_value(line) : UINT64_MAX;
}

/* The controllers of version 1, as the kernel writes them; version 2 has none. */
static const char *const cgroup_names[CGROUP_KINDS] = {
    [CGROUP_V2] = NULL,
    [CGROUP_V1_MEMORY] = "memory",
    [CGROUP_V1_CPU] = "cpu",
    [CGROUP_V1_CPUSET] = "cpuset",
};

/* `name` is empty for version 2. */
static void cgroup_take_own(char *own[CGROUP_KINDS], const char *name, const char *path)
{
    for (int kind = 0; kind < CGROUP_KINDS; kind++)
        if (!own[kind] && strcmp(cgroup_names[kind] ? cgroup_names[kind] : "", name) == 0)
            own[kind] = strdup(path);
}

/*
 * The groups that /proc/self/cgroup names: "4:cpu,memory:/path" for controllers of version 1,
 * "0::/path" for version 2.
 */
static void cgroup_read_own(const char *root, char *own[CGROUP_KINDS])
{
    char file[PATH_MAX];
    auto_free char *line = NULL;
    size_t size = 0;

    snprintf(file, sizeof(file), "%s/proc/self/cgroup", root);
    auto_fclose FILE *f = fopen(file, "re");
    while (f && getline(&line, &size, f) > 0) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        char *save = NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!names[1])
            cgroup_take_own(own, "", path);
        for (char *name = strtok_r(names + 1, ",", &save); name;
             name = strtok_r(NULL, ",", &save))
            cgroup_take_own(own, name, path);
    }
}

/* The folder of a group, below the visible part `top` of its hierarchy, mounted at `path`. */
static char *cgroup_folder(const char *root, const char *path, const char *top, const char *own)
{
    size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const char *below = strncmp(own, top, n) == 0 ? own + n : "";
    char *folder;
    return asprintf(&folder, "%s%s%s", root, path, below) < 0 ? NULL : folder;
}

static void cgroups_find(const char *root, struct cgroups *ret_cgroups)
{
    auto_free char(*paths)[PATH_MAX] = calloc(CGROUP_KINDS, sizeof(*paths));
    auto_free char(*tops)[PATH_MAX] = calloc(CGROUP_KINDS, sizeof(*tops));
    char *own[CGROUP_KINDS] = {NULL}, mountinfo[PATH_MAX];

    *ret_cgroups = (struct cgroups){0};
    cgroup_read_own(root, own);
    snprintf(mountinfo, sizeof(mountinfo), "%s/proc/self/mountinfo", root);
    if (paths && tops)
        mountinfo_cgroups(mountinfo, cgroup_names, CGROUP_KINDS, paths, tops);
    for (int kind = 0; kind < CGROUP_KINDS; kind++) {
        if (paths && tops && paths[kind][0] && own[kind]) {
            ret_cgroups->folder[kind] = cgroup_folder(root, paths[kind], tops[kind], own[kind]);
            ret_cgroups->top[kind] = strlen(root) + strlen(paths[kind]);
        }
        free(own[kind]);
    }
}

static struct cgroups own_cgroups;

static void cgroups_find_own(void)
{
    cgroups_find("", &own_cgroups);
}

/*
 * Find the groups. `root` is prepended to all paths ("" except in tests). The kernel makes the
 * lists that tell of them anew for each reader, and a process stays in its groups, so they are
 * read once; the limits of a group may change, and are read each time.
 */
static const struct cgroups *cgroups_of(const char *root, struct cgroups *ret_of_test)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *ret_of_test = (struct cgroups){0};
    if (*root)
        cgroups_find(root, ret_of_test);
    else
        pthread_once(&once, cgroups_find_own);
    return *root ? ret_of_test : &own_cgroups;
}

static void cgroups_free(struct cgroups *cgroups)
{
    for (int kind = 0; kind < CGROUP_KINDS; kind++)
        free(cgroups->folder[kind]);
}

/* The process's own group, to be freed; NULL without such a hierarchy. */
static char *cgroup_own(const struct cgroups *cgroups, enum cgroup_kind kind)
{
    return cgroups->folder[kind] ? strdup(cgroups->folder[kind]) : NULL;
}

/* From a group to the one above; false at the top. */
static bool cgroup_up(const struct cgroups *cgroups, enum cgroup_kind kind, char *folder)
{
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < cgroups->top[kind])
        return false;
    *slash = '\0';
    return true;
}

/* ---- memory ---- */

/* Report a limit of memory at each level; the files that state limit and usage. */
static void budget_see_levels(const struct cgroups *cgroups, enum cgroup_kind kind,
                              const char *limit_file, const char *used_file, budget_see *see,
                              void *ctx)
{
    char path[4 * PATH_MAX], line[64];
    auto_free char *folder = cgroup_own(cgroups, kind);
    for (bool more = folder; more; more = cgroup_up(cgroups, kind, folder)) {
        if (!cgroup_line(folder, limit_file, line, sizeof(line)))
            continue; /* the top has no such file, nor do groups without the controller */
        uint64_t limit = cgroup_value(line);
        snprintf(path, sizeof(path), "%s/%s", folder, limit_file);
        see(ctx, path, limit >= V1_NO_LIMIT ? UINT64_MAX : limit,
            cgroup_number(folder, used_file));
    }
}

static void budget_see_available(const char *root, budget_see *see, void *ctx)
{
    char path[PATH_MAX], line[256];
    uint64_t kb;

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    auto_fclose FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kb) == 1)
            see(ctx, path, kb << 10, UINT64_MAX);
}

void budget_explain(const char *root, budget_see *see, void *ctx)
{
    struct cgroups of_test;
    const struct cgroups *cgroups = cgroups_of(root, &of_test);
    budget_see_available(root, see, ctx);
    budget_see_levels(cgroups, CGROUP_V2, "memory.max", "memory.current", see, ctx);
    budget_see_levels(cgroups, CGROUP_V2, "memory.high", "memory.current", see, ctx);
    budget_see_levels(cgroups, CGROUP_V1_MEMORY, "memory.limit_in_bytes",
                      "memory.usage_in_bytes", see, ctx);
    cgroups_free(&of_test);
}

/* budget_see */
static void budget_take_limit(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    uint64_t *bytes = ctx;
    (void)path;
    (void)used;
    *bytes = min_u64(*bytes, limit);
}

/* budget_see */
static void budget_take_room(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    uint64_t *bytes = ctx;
    (void)path;
    if (limit != UINT64_MAX && used != UINT64_MAX)
        limit = used < limit ? limit - used : 0;
    *bytes = min_u64(*bytes, limit);
}

/*
 * Memory of a group that is file pages. The kernel's count "file" includes tmpfs pages, so the
 * active and inactive lists are added instead. `limit` is a file of the group.
 */
static uint64_t budget_file_pages(const char *limit)
{
    static const char *const names[] = {"inactive_file %" SCNu64, "active_file %" SCNu64,
                                        "total_inactive_file %" SCNu64,
                                        "total_active_file %" SCNu64};
    char path[4 * PATH_MAX], line[256];
    uint64_t values[4] = {0};
    const char *slash = strrchr(limit, '/');

    snprintf(path, sizeof(path), "%.*s/memory.stat", slash ? (int)(slash - limit) : 0, limit);
    auto_fclose FILE *f = slash ? fopen(path, "re") : NULL;
    while (f && fgets(line, sizeof(line), f))
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            sscanf(line, names[i], &values[i]);
    /* Version 1 has both counts: of the group alone, and of the group and all below it. */
    return values[2] + values[3] ? values[2] + values[3] : values[0] + values[1];
}

/* budget_see */
static void budget_take_free(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    uint64_t pages = limit != UINT64_MAX && used != UINT64_MAX ? budget_file_pages(path) : 0;
    budget_take_room(ctx, path, limit, pages < used ? used - pages : 0);
}

static uint64_t budget_least(const char *root, budget_see *take)
{
    uint64_t bytes = UINT64_MAX;
    budget_explain(root, take, &bytes);
    return bytes;
}

uint64_t budget_room_bytes(const char *root)
{
    return budget_least(root, budget_take_room);
}

uint64_t budget_free_bytes(const char *root)
{
    return budget_least(root, budget_take_free);
}

uint64_t budget_memory_bytes(const char *root)
{
    return budget_least(root, budget_take_limit);
}

/* The process's limit on addresses or data (ulimit -v, -d), which some batch systems set. */
static uint64_t budget_own_limit(void)
{
    static const int kinds[] = {RLIMIT_AS, RLIMIT_DATA};
    uint64_t bytes = UINT64_MAX;
    struct rlimit limit;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (getrlimit(kinds[i], &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
            bytes = min_u64(bytes, limit.rlim_cur);
    return bytes;
}

uint64_t budget_cache_of(uint64_t memory_bytes)
{
    uint64_t bytes = memory_bytes / 4;
    bytes = min_u64(max_u64(bytes, CACHE_LEAST_BYTES), CACHE_MOST_BYTES);
    return min_u64(bytes, budget_own_limit() / 4);
}

uint64_t budget_cache_bytes(void)
{
    return budget_cache_of(budget_memory_bytes(""));
}

/* ---- CPUs ---- */

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

/*
 * The quota of one level. Version 2: "TIME PERIOD", or "max PERIOD". Version 1: two files; -1
 * means no limit.
 */
static void cpus_see_quota(const char *folder, enum cgroup_kind kind, unsigned *least)
{
    char line[64];
    unsigned long long time, period;
    long long signed_time;
    if (kind == CGROUP_V2 && cgroup_line(folder, "cpu.max", line, sizeof(line)) &&
        sscanf(line, "%llu %llu", &time, &period) == 2)
        cpus_lower(least, time, period);
    if (kind == CGROUP_V1_CPU && cgroup_line(folder, "cpu.cfs_quota_us", line, sizeof(line)) &&
        sscanf(line, "%lld", &signed_time) == 1 && signed_time > 0)
        cpus_lower(least, (uint64_t)signed_time, cgroup_number(folder, "cpu.cfs_period_us"));
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

/* The CPUs of the nearest group with a set; groups without the controller have none. */
static unsigned cpus_see_set(const struct cgroups *cgroups, enum cgroup_kind kind)
{
    static const char *const files[] = {"cpuset.cpus.effective", "cpuset.effective_cpus",
                                        "cpuset.cpus"};
    char line[4096];
    unsigned count = 0;
    auto_free char *folder = cgroup_own(cgroups, kind);
    for (bool more = folder; more && count == 0; more = cgroup_up(cgroups, kind, folder))
        for (unsigned i = 0; i < 3 && count == 0; i++)
            if (cgroup_line(folder, files[i], line, sizeof(line)))
                count = cpus_list_count(line);
    return count;
}

void cpus_look(const char *root, struct cpus *ret_cpus)
{
    static const enum cgroup_kind quotas[] = {CGROUP_V2, CGROUP_V1_CPU};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *ret_cpus =
        (struct cpus){.mask = cpus_mask_count(), .online = online > 0 ? (unsigned)online : 0};
    struct cgroups of_test;
    const struct cgroups *cgroups = cgroups_of(root, &of_test);
    for (unsigned i = 0; i < 2; i++) {
        auto_free char *folder = cgroup_own(cgroups, quotas[i]);
        for (bool more = folder; more; more = cgroup_up(cgroups, quotas[i], folder))
            cpus_see_quota(folder, quotas[i], &ret_cpus->quota);
    }
    ret_cpus->cpuset = cpus_see_set(cgroups, CGROUP_V1_CPUSET);
    if (ret_cpus->cpuset == 0)
        ret_cpus->cpuset = cpus_see_set(cgroups, CGROUP_V2);
    cgroups_free(&of_test);
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

/*
 * Setting a mask of all CPUs is safe within a cgroup's set: the kernel reduces the mask to
 * that set. Without a set the mask would be the whole node, which is seldom ours.
 */
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
