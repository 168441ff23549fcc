/*
 * Caches of several processes of one job on one node (mounts, loaders), which share what the
 * job was given. Each has a claim: a small file in the private folder of the user, locked as
 * long as the process lives, so that a killed one is known by the lock that nobody holds.
 *
 *     claim_new("1234", budget_cache_bytes(), 0, &claim);
 *     when claim_watch_fd(claim) is readable: claim_update(claim, set_budget, cache);
 *     claim_free(claim);
 *
 * The sum of what the claims of a job say is never above their total, but that each may have
 * CLAIM_LEAST_BYTES, and that a user's own word (`fixed_bytes`) is taken as it is. A newcomer
 * begins with what is left, and gets its part when the others have looked again.
 *
 * Threads: a claim belongs to one thread at a time.
 */
#ifndef ONEPOT_CLAIMS_H
#define ONEPOT_CLAIMS_H

#include <stdint.h>

struct claim;

#define CLAIM_LEAST_BYTES (UINT64_C(4) << 20)

/*
 * `job`: what tells jobs of one user apart ("" outside of one), fit for a file name.
 * `total_bytes`: for all of the job. `fixed_bytes`: as many, whatever the others have; 0: a
 * fair part of what is left. -errno where there is no folder for it: then nothing is shared.
 */
int claim_new(const char *job, uint64_t total_bytes, uint64_t fixed_bytes,
              struct claim **ret_claim);
void claim_free(struct claim *claim); /* NULL is fine */

/*
 * Look at the others, and have `set(ctx, bytes)` called if this one may use another number of
 * bytes than before: when it returns, no more is used. Returns what may be used now; it is
 * nothing before the first call.
 */
uint64_t claim_update(struct claim *claim, void (*set)(void *ctx, uint64_t bytes), void *ctx);

/*
 * Readable (poll) when it may be time for claim_update, which makes it quiet again; -1 if the
 * system has no such thing to give: then now and then. Owned by the claim.
 */
int claim_watch_fd(const struct claim *claim);

/* What others of the job use, and how many they are. */
struct claim_others {
    unsigned count, sharing;           /* all; those without fixed bytes */
    uint64_t using_bytes, fixed_bytes; /* all; those with fixed bytes */
};
int claims_of_job(const char *job, struct claim_others *ret_others);

#endif
