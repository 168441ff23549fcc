/*
 * /proc/self/cgroup names the group of a process; its mountinfo gives the place of the group's
 * files. A container may mount only a part of the hierarchy, which is then the top.
 */
#include "cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "mountinfo.h"

uint64_t cgroup_number(const char *folder, const char *file)
{
    char line[64];
    uint64_t value;
    return cgroup_line(folder, file, line, sizeof(line)) &&
                   sscanf(line, "%" SCNu64, &value) == 1
               ? value
               : UINT64_MAX;
}

bool cgroup_line(const char *folder, const char *file, char *line, size_t size)
{
    char path[4 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool got = fgets(line, (int)size, f) != NULL;
    fclose(f);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

/*
 * The group that /proc/self/cgroup names for the controller: "4:cpu,memory:/path", or
 * "0::/path" for version 2, whose controller is "".
 */
static bool cgroup_own(const char *root, const char *controller, char ret_path[PATH_MAX])
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

int cgroup_walk(const char *root, const char *controller, cgroup_visit *visit, void *ctx)
{
    char mountinfo[PATH_MAX], mounted[PATH_MAX], seen[PATH_MAX], own[PATH_MAX];
    char path[3 * PATH_MAX];

    snprintf(mountinfo, sizeof(mountinfo), "%s/proc/self/mountinfo", root);
    if (!cgroup_own(root, controller ? controller : "", own) ||
        mountinfo_cgroup(mountinfo, controller, mounted, seen) < 0)
        return -ENOENT;
    size_t n = strcmp(seen, "/") == 0 ? 0 : strlen(seen);
    const char *below = strncmp(own, seen, n) == 0 ? own + n : "";
    snprintf(path, sizeof(path), "%s%s%s", root, mounted, below);
    size_t top = strlen(root) + strlen(mounted);
    while (visit(ctx, path)) {
        char *slash = strrchr(path, '/');
        if (!slash || (size_t)(slash - path) < top)
            break;
        *slash = '\0';
    }
    return 0;
}
