/*
 * /proc/self/cgroup names the group of a process; its mountinfo gives the place of the group's
 * files. A container may mount only a part of the hierarchy, which is then the top.
 */
#include "cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "mountinfo.h"
#include "process.h"

uint64_t cgroup_value(const char *line)
{
    uint64_t value;
    return sscanf(line, "%" SCNu64, &value) == 1 ? value : UINT64_MAX;
}

uint64_t cgroup_number(const char *folder, const char *file)
{
    char line[64];
    return cgroup_line(folder, file, line, sizeof(line)) ? cgroup_value(line) : UINT64_MAX;
}

bool cgroup_line(const char *folder, const char *file, char *line, size_t size)
{
    char path[4 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (proc_text(path, line, size) < 0 || !*line)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* The controllers of version 1, as the kernel writes them; version 2 has no names. */
static const char *const cgroup_names[CGROUP_KINDS] = {
    [CGROUP_V2] = "",
    [CGROUP_V1_MEMORY] = "memory",
    [CGROUP_V1_CPU] = "cpu",
    [CGROUP_V1_CPUSET] = "cpuset",
};

static void cgroup_take_own(char *own[CGROUP_KINDS], const char *name, const char *path)
{
    for (int kind = 0; kind < CGROUP_KINDS; kind++)
        if (!own[kind] && strcmp(cgroup_names[kind], name) == 0)
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

/* The folder of a group, below the visible part of its hierarchy. */
static char *cgroup_folder(const char *root, const struct mount_cgroup *mounted,
                           const char *own)
{
    size_t n = strcmp(mounted->root, "/") == 0 ? 0 : strlen(mounted->root);
    const char *below = strncmp(own, mounted->root, n) == 0 ? own + n : "";
    char *folder;
    return asprintf(&folder, "%s%s%s", root, mounted->path, below) < 0 ? NULL : folder;
}

void cgroups_find(const char *root, struct cgroups *ret_cgroups)
{
    auto_free struct mount_cgroup *mounted = calloc(CGROUP_KINDS, sizeof(*mounted));
    char *own[CGROUP_KINDS] = {NULL}, mountinfo[PATH_MAX];

    *ret_cgroups = (struct cgroups){0};
    cgroup_read_own(root, own);
    for (int kind = 0; mounted && kind < CGROUP_KINDS; kind++)
        mounted[kind].controller = kind == CGROUP_V2 ? NULL : cgroup_names[kind];
    snprintf(mountinfo, sizeof(mountinfo), "%s/proc/self/mountinfo", root);
    if (mounted)
        mountinfo_cgroups(mountinfo, mounted, CGROUP_KINDS);
    for (int kind = 0; kind < CGROUP_KINDS; kind++) {
        if (mounted && mounted[kind].found && own[kind]) {
            ret_cgroups->folder[kind] = cgroup_folder(root, &mounted[kind], own[kind]);
            ret_cgroups->top[kind] = strlen(root) + strlen(mounted[kind].path);
        }
        free(own[kind]);
    }
}

void cgroups_free(struct cgroups *cgroups)
{
    for (int kind = 0; kind < CGROUP_KINDS; kind++)
        free(cgroups->folder[kind]);
    *cgroups = (struct cgroups){0};
}

void cgroup_walk(const struct cgroups *cgroups, enum cgroup_kind kind, cgroup_visit *visit,
                 void *ctx)
{
    auto_free char *path = cgroups->folder[kind] ? strdup(cgroups->folder[kind]) : NULL;
    while (path && visit(ctx, path)) {
        char *slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < cgroups->top[kind])
            break;
        *slash = '\0';
    }
}
