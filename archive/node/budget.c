/*
 * Memory limits. A batch system limits a job's memory by a cgroup, often at several levels
 * (job, step, task); the smallest limit counts.
 */
#include "budget.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "cgroup.h"
#include "cleanup.h"
#include "numbers.h"

#define CACHE_LEAST_BYTES (UINT64_C(16) << 20)
#define CACHE_MOST_BYTES (UINT64_C(1) << 40)
#define V1_NO_LIMIT (UINT64_C(1) << 62) /* version 1 states "none" as a huge number */

/* A walk over the groups of one hierarchy. */
struct budget_walk {
    budget_see *see;
    void *ctx;
    const char *limit, *used; /* file names */
};

/* cgroup_visit */
static bool budget_see_level(void *ctx, const char *folder)
{
    const struct budget_walk *walk = ctx;
    char path[4 * PATH_MAX], line[64];
    if (!cgroup_line(folder, walk->limit, line, sizeof(line)))
        return true; /* the top has no such file, nor do groups without the controller */
    uint64_t limit = cgroup_value(line);
    snprintf(path, sizeof(path), "%s/%s", folder, walk->limit);
    walk->see(walk->ctx, path, limit >= V1_NO_LIMIT ? UINT64_MAX : limit,
              cgroup_number(folder, walk->used));
    return true;
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
    struct budget_walk walks[] = {
        {see, ctx, "memory.max", "memory.current"},
        {see, ctx, "memory.high", "memory.current"},
        {see, ctx, "memory.limit_in_bytes", "memory.usage_in_bytes"},
    };
    struct cgroups cgroups;
    budget_see_available(root, see, ctx);
    cgroups_find(root, &cgroups);
    cgroup_walk(&cgroups, CGROUP_V2, budget_see_level, &walks[0]);
    cgroup_walk(&cgroups, CGROUP_V2, budget_see_level, &walks[1]);
    cgroup_walk(&cgroups, CGROUP_V1_MEMORY, budget_see_level, &walks[2]);
    cgroups_free(&cgroups);
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
