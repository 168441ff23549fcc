/*
 * The memory that the job may use of its node, which is seldom the whole node.
 */
#ifndef ONEPOT_BUDGET_H
#define ONEPOT_BUDGET_H

#include <stdint.h>

/*
 * Memory limit in bytes: the smallest of the limits of the cgroup and all its parents
 * (versions 1 and 2) and the memory now available on the node. `root` is prepended to all
 * paths ("" except in tests). UINT64_MAX if nothing could be read.
 */
uint64_t budget_memory_bytes(const char *root);

/* Memory not yet in use: each limit less its usage, with page cache counted as used. */
uint64_t budget_room_bytes(const char *root);

/* As budget_room_bytes, but file pages that the kernel would reclaim count as free. */
uint64_t budget_free_bytes(const char *root);

/*
 * The default of --cache: a quarter of budget_memory_bytes, within reason, and at most a
 * quarter of the process's limit on addresses (ulimit -v) or data (-d).
 */
uint64_t budget_cache_bytes(void);
/* The same, from a budget_memory_bytes that is known. */
uint64_t budget_cache_of(uint64_t memory_bytes);

/*
 * Receives one limit: the file that states it, its bytes (UINT64_MAX: no limit there), and the
 * usage counted against it, page cache included (UINT64_MAX: unknown).
 */
typedef void budget_see(void *ctx, const char *path, uint64_t limit, uint64_t used);

/* Report all limits for people to read, including files that state no limit. */
void budget_explain(const char *root, budget_see *see, void *ctx);

#endif
