/*
 * Control groups, by which a batch system limits a job: often at several levels (job, step,
 * task), of which the smallest counts, and in two versions, of which a node may have both.
 */
#ifndef ONEPOT_CGROUP_H
#define ONEPOT_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One level: a folder with the files of a group. false ends the walk. */
typedef bool cgroup_visit(void *ctx, const char *folder);

/*
 * From this process's own group up to the top of what is mounted. `controller` is one of
 * version 1 ("memory", "cpu", "cpuset"), or NULL for version 2. `root` is put in front of all
 * paths ("" but in tests). -ENOENT if there is no such hierarchy.
 */
int cgroup_walk(const char *root, const char *controller, cgroup_visit *visit, void *ctx);

/* A number in a file of a group; UINT64_MAX for "max" and for whatever else is no number. */
uint64_t cgroup_number(const char *folder, const char *file);

/* The first line of a file of a group, without its end. false if there is none. */
bool cgroup_line(const char *folder, const char *file, char *line, size_t size);

#endif
