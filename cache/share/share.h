/*
 * A process's part of what its job may use (claims.h), and a thread that looks after it. The
 * thread sleeps until others of the job come or go, so that an idle process gives back what
 * others need.
 *
 *     struct share_options options = {.claim.total_bytes = budget_cache_bytes(), .told = told};
 *     share_new(&options, &share);       told() is called, and again at each change
 *     share_free(share);
 *
 * Threads: any thread may call share_want and share_look at any time; they don't wait. After a
 * fork a share is the parent's; the child leaves it alone.
 */
#ifndef ONEPOT_SHARE_H
#define ONEPOT_SHARE_H

#include <stdint.h>

#include "claims.h"

struct share;

/* The part that a process may use. */
struct share_part {
    uint64_t bytes;
    uint64_t most_bytes; /* the wanted bytes when the part was computed */
    unsigned processes;  /* other processes of the job that work on the same CPUs */
};

struct share_options {
    struct claim_options claim; /* unwatched: the thread looks twice a second */
    /*
     * Returns the most bytes that are used when it returns: see claim_set. share_new calls it,
     * and then the thread after each look, even if nothing has changed. It must not call
     * share_free.
     */
    uint64_t (*told)(void *ctx, const struct share_part *part);
    void *ctx;
};

/*
 * -errno if nothing can be shared: no folder, no thread. A part that `told` was given is void
 * then.
 */
int share_new(const struct share_options *options, struct share **ret_share);
void share_free(struct share *share); /* NULL is fine */

/* Changes how much is wanted. `told` is called soon, even if the part does not change. */
void share_want(struct share *share, uint64_t most_bytes);

/* Call when the used bytes have changed: `told` is called soon. */
void share_look(struct share *share);

#endif
