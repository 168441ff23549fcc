/*
 * What the job may use of its node, which is seldom the whole node.
 */
#ifndef ONEPOT_BUDGET_H
#define ONEPOT_BUDGET_H

#include <stdint.h>

/*
 * Bytes of memory: the least of the limits of the cgroup and of all its parents
 * (version 1 and 2) and of what the node has available now. `root` is put in front of
 * all paths ("" but in tests). UINT64_MAX if nothing could be read.
 */
uint64_t budget_memory_bytes(const char *root);

/* What of that nobody uses yet: limits less what is used of them, page cache included. */
uint64_t budget_room_bytes(const char *root);

/* The same, but files' pages that the kernel would give back count as free. */
uint64_t budget_free_bytes(const char *root);

/*
 * The default of --cache: a quarter of that, within reason; no more than a quarter of what the
 * process may have of addresses (ulimit -v) or data (-d).
 */
uint64_t budget_cache_bytes(void);

/*
 * One limit of those that count: the file that says so, the bytes (UINT64_MAX: no limit
 * there), and what is used of them, page cache included (UINT64_MAX: not known).
 */
typedef void budget_see(void *ctx, const char *path, uint64_t limit, uint64_t used);

/* All of them, also those that say that there is no limit: for people. */
void budget_explain(const char *root, budget_see *see, void *ctx);

#endif
