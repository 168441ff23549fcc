/*
 * Memory limits. A batch system limits a job's memory by a cgroup, often at several
 * levels (job, step, task), of which the smallest counts.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "cleanup.h"
#include "mountinfo.h"

#define CACHE_LEAST_BYTES (UINT64_C(16) << 20)
#define CACHE_MOST_BYTES (UINT64_C(1) << 40)

/* A number in a file; "max", and whatever else is no number, is no limit. */
static uint64_t read_limit(const char *folder, const char *file)
{
    char path[4 * PATH_MAX];
    uint64_t value;

    snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(f);
    return value;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/*
 * The cgroup that /proc/self/cgroup names for the controller ("" for version 2:
 * "0::/path"; else "4:cpu,memory:/path").
 */
static bool own_cgroup(const char *root, const char *controller, char ret_path[PATH_MAX])
{
    char file[PATH_MAX];
    auto_free char *line = NULL;
    size_t size = 0;
    bool found = false;

    snprintf(file, sizeof(file), "%s/proc/self/cgroup", root);
    FILE *f = fopen(file, "re");
    while (f && !found && getline(&line, &size, f) > 0) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        char *save = NULL, *name = names[1] ? strtok_r(names + 1, ",", &save) : names + 1;
        for (; name && !found; name = save ? strtok_r(NULL, ",", &save) : NULL)
            found = strcmp(name, controller) == 0;
        if (found)
            snprintf(ret_path, PATH_MAX, "%s", path);
    }
    if (f)
        fclose(f);
    return found;
}

/*
 * The least limit from the process's own group up to the top of what is mounted; where
 * `usage` names a file, less what is used of it.
 */
static uint64_t hierarchy_room(const char *root, const char *controller, const char *file,
                               const char *usage)
{
    char mountinfo[PATH_MAX], mounted[PATH_MAX], seen[PATH_MAX], own[PATH_MAX];
    char path[3 * PATH_MAX];
    uint64_t limit = UINT64_MAX;

    snprintf(mountinfo, sizeof(mountinfo), "%s/proc/self/mountinfo", root);
    if (!own_cgroup(root, controller ? controller : "", own) ||
        mountinfo_cgroup(mountinfo, controller, mounted, seen) < 0)
        return UINT64_MAX;
    size_t n = strcmp(seen, "/") == 0 ? 0 : strlen(seen);
    const char *below = strncmp(own, seen, n) == 0 ? own + n : "";
    snprintf(path, sizeof(path), "%s%s%s", root, mounted, below);
    size_t top = strlen(root) + strlen(mounted);
    for (;;) {
        uint64_t here = read_limit(path, file), used = usage ? read_limit(path, usage) : 0;
        if (used && used != UINT64_MAX && here != UINT64_MAX)
            here = used < here ? here - used : 0;
        limit = least(limit, here);
        char *slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < top)
            return limit;
        *slash = '\0';
    }
}

static uint64_t hierarchy_limit(const char *root, const char *controller, const char *file)
{
    return hierarchy_room(root, controller, file, NULL);
}

static uint64_t available_bytes(const char *root)
{
    char path[PATH_MAX], line[256];
    uint64_t kb, bytes = UINT64_MAX;

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    while (f && bytes == UINT64_MAX && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kb) == 1)
            bytes = kb << 10;
    if (f)
        fclose(f);
    return bytes;
}

uint64_t budget_room_bytes(const char *root)
{
    uint64_t bytes = available_bytes(root);
    bytes = least(bytes, hierarchy_room(root, NULL, "memory.max", "memory.current"));
    bytes = least(bytes, hierarchy_room(root, NULL, "memory.high", "memory.current"));
    return least(bytes, hierarchy_room(root, "memory", "memory.limit_in_bytes",
                                       "memory.usage_in_bytes"));
}

uint64_t budget_memory_bytes(const char *root)
{
    uint64_t bytes = available_bytes(root);
    bytes = least(bytes, hierarchy_limit(root, NULL, "memory.max"));
    bytes = least(bytes, hierarchy_limit(root, NULL, "memory.high"));
    return least(bytes, hierarchy_limit(root, "memory", "memory.limit_in_bytes"));
}

uint64_t budget_cache_bytes(void)
{
    uint64_t bytes = budget_memory_bytes("") / 4;
    return bytes < CACHE_LEAST_BYTES ? CACHE_LEAST_BYTES : least(bytes, CACHE_MOST_BYTES);
}
