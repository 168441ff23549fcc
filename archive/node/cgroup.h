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

enum cgroup_kind { CGROUP_V2, CGROUP_V1_MEMORY, CGROUP_V1_CPU, CGROUP_V1_CPUSET, CGROUP_KINDS };

/*
 * The groups of this process, one of each hierarchy. The kernel makes the lists that tell of
 * them anew for each reader, so they are read once for all walks.
 */
struct cgroups {
    char *folder[CGROUP_KINDS]; /* NULL: no such hierarchy */
    size_t top[CGROUP_KINDS];   /* length of the name of the mounted hierarchy's top */
};

/* Find them. `root` is prepended to all paths ("" except in tests). */
void cgroups_find(const char *root, struct cgroups *ret_cgroups);
void cgroups_free(struct cgroups *cgroups);

/* Walk from the process's own group up to the top. Visits nothing without such a hierarchy. */
void cgroup_walk(const struct cgroups *cgroups, enum cgroup_kind kind, cgroup_visit *visit,
                 void *ctx);

/* The number in a line; UINT64_MAX for "max" and anything else that is not a number. */
uint64_t cgroup_value(const char *line);

/* The same, of a group's file. */
uint64_t cgroup_number(const char *folder, const char *file);

/* The first line of a group's file, without its newline. false if there is none. */
bool cgroup_line(const char *folder, const char *file, char *line, size_t size);

#endif
