/*
 * Caches of several processes of one job on one node (mounts, loaders), which share what the
 * job was given. Each has a claim: a small file in the private folder of the user, locked as
 * long as the process lives, so that a killed one is known by the lock that nobody holds.
 *
 *     claim_new(&options, &claim);
 *     when claim_watch_fd(claim) is readable: claim_update(claim, set_budget, cache);
 *     claim_free(claim);
 *
 * The sum of what the claims of a job say is never above their total, but that each may have
 * CLAIM_LEAST_BYTES, that a user's own word (`fixed_bytes`) is taken as it is, and that what
 * has been lent to somebody can't be taken back (`set` says how much is used all the same). A
 * newcomer begins with what is left, and gets its part when the others have looked again. Who
 * wants less than a fair part leaves the rest of it to the others.
 *
 * Threads: a claim belongs to one thread at a time. After a fork it is the parent's: a child
 * makes one of its own. (What it inherits keeps nothing alive: the file says whose it is.)
 */
#ifndef ONEPOT_CLAIMS_H
#define ONEPOT_CLAIMS_H

#include <stdbool.h>
#include <stdint.h>

struct claim;

#define CLAIM_LEAST_BYTES (UINT64_C(4) << 20)

struct claim_options {
    const char *job; /* tells jobs of one user apart: fit for a file name, "" outside of one */
    uint64_t total_bytes; /* for all of the job */
    uint64_t
        fixed_bytes;     /* as many, whatever the others have; 0: a fair part of what is left */
    uint64_t most_bytes; /* no more than that is wanted; 0: as many as there are */
    /* Its process has threads that work on these CPUs (cpus_key); 0: none worth counting. */
    uint64_t cpus_key;
    bool unwatched; /* there is no claim_watch_fd: the kernel takes its time to close one */
};

/* -errno where there is no folder for it: then nothing is shared. */
int claim_new(const struct claim_options *options, struct claim **ret_claim);
void claim_free(struct claim *claim); /* NULL is fine */

/* From the next claim_update on, no more than that is wanted. */
void claim_want(struct claim *claim, uint64_t most_bytes);

/*
 * Use no more than `bytes` from now on. Returns how many are used at most when it returns:
 * `bytes`, but for what can't be taken back yet.
 */
typedef uint64_t claim_set(void *ctx, uint64_t bytes);

/*
 * Look at the others, and have `set(ctx, bytes)` called with what this one may use now, also if
 * that is as before. Returns what set did; it is nothing before the first call.
 */
uint64_t claim_update(struct claim *claim, claim_set *set, void *ctx);

/* At the last claim_update: how many other processes of the job work on the same CPUs. */
unsigned claim_processes(const struct claim *claim);

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
