/*
 * Control groups, by which a batch system limits a job. Limits often exist at several levels
 * (job, step, task), and the smallest counts. There are two versions; a node may have both.
 */
#ifndef ONEPOT_CGROUP_H
#define ONEPOT_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Visits one level: a folder with the files of a group. Return false to end the walk. */
typedef bool cgroup_visit(void *ctx, const char *folder);

/*
 * Walk from this process's own group up to the top of the mounted hierarchy. `controller` is
 * one of version 1 ("memory", "cpu", "cpuset"), or NULL for version 2. `root` is prepended to
 * all paths ("" except in tests). -ENOENT if there is no such hierarchy.
 */
int cgroup_walk(const char *root, const char *controller, cgroup_visit *visit, void *ctx);

/* The number in a group's file; UINT64_MAX for "max" and anything else that is not a number. */
uint64_t cgroup_number(const char *folder, const char *file);

/* The first line of a group's file, without its newline. false if there is none. */
bool cgroup_line(const char *folder, const char *file, char *line, size_t size);

#endif
