/*
 * Lets the caches of several processes of one job on one node (mounts, loaders) share the job's
 * memory. Each cache has a claim: a small file in the user's private folder, locked as long as
 * the process lives. So a file that nobody locks belongs to a killed process.
 *
 *     claim_new(&options, &claim);
 *     now and then: claim_update(claim, 0, set_budget, cache);
 *     claim_free(claim);
 *
 * The claims of a job never add up to more than their total, with three exceptions. Each claim
 * may have CLAIM_LEAST_BYTES. A size that the user set (`fixed_bytes`) is taken as it is.
 * Memory that is lent out can't be taken back (`set` returns how much is still used). A
 * newcomer begins with the rest, and gets its part when the others have looked again. A claim
 * that wants less than a fair part leaves the rest of that part to the others.
 *
 * Threads: a claim belongs to one thread at a time. After a fork it is the parent's; a child
 * makes another. (A file that a child inherits does not keep the claim alive, because it names
 * its process.)
 */
#ifndef ONEPOT_SHARE_H
#define ONEPOT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct claim;

#define CLAIM_LEAST_BYTES (UINT64_C(4) << 20)

struct claim_options {
    /* Distinguishes jobs of one user: fit for a file name, "" outside of a job. NULL: from the
     * environment. */
    const char *job;
    uint64_t total_bytes; /* for the whole job */
    uint64_t fixed_bytes; /* the size to take, whatever the others have; 0: a fair part of what
                             is left */
    uint64_t most_bytes;  /* never wants more than this; 0: as much as there is */
    /* The CPUs that the process's threads work on (cpus_key); 0: too few threads to count. */
    uint64_t cpus_key;
    /* No watch on the others, as the kernel takes 20 ms to close one: for processes that come
     * and go often. */
    bool unwatched;
};

/* -errno if there is no folder for the claim: then nothing is shared. */
int claim_new(const struct claim_options *options, struct claim **ret_claim);
void claim_free(struct claim *claim); /* NULL is fine */

/*
 * Must use no more than `bytes` from now on. Returns the most bytes that are used when it
 * returns: `bytes`, or more if some can't be taken back yet. `most_bytes`: what was wanted when
 * they were computed. `processes`: other processes of the job that work on the same CPUs.
 */
typedef uint64_t claim_set(void *ctx, uint64_t bytes, uint64_t most_bytes, unsigned processes);

/*
 * Looks at the other claims and calls `set` with what this one may use now, even if that has
 * not changed. Returns what `set` returned. Before the first call a claim is zero. From now on
 * the claim wants no more than `most_bytes`; 0: what it wanted before.
 */
uint64_t claim_update(struct claim *claim, uint64_t most_bytes, claim_set *set, void *ctx);

/* The other claims of the job: how many there are and what they use. */
struct claim_others {
    unsigned count, sharing;           /* all; those without fixed bytes */
    uint64_t using_bytes, fixed_bytes; /* all; those with fixed bytes */
};
struct claim_others claims_of_job(const char *job);

/* ---- a claim with a thread ---- */

/*
 * A process's part of what its job may use (a claim), and a thread that looks after it. The
 * thread sleeps until others of the job come or go, so that an idle process gives back what
 * others need.
 *
 *     struct claim_options claim = {.total_bytes = budget_cache_bytes()};
 *     share_new(&claim, told, ctx, &share);   told() is called, and again at each change
 *     share_free(share);
 *
 * Threads: any thread may call share_want at any time; it doesn't wait. After a
 * fork a share is the parent's; the child leaves it alone.
 */

struct share;

/*
 * If the claim is unwatched, the thread looks twice a second. share_new calls `told`, and then
 * the thread does after each look, even if nothing has changed. It must not call share_free.
 * -errno if nothing can be shared: no folder, no thread. A part that `told` was given is void
 * then.
 */
int share_new(const struct claim_options *claim, claim_set *told, void *ctx,
              struct share **ret_share);
void share_free(struct share *share); /* NULL is fine */

/*
 * Changes how much is wanted; 0: nothing, but the used bytes have changed. `told` is called
 * soon, even if the part does not change.
 */
void share_want(struct share *share, uint64_t most_bytes);

#endif
