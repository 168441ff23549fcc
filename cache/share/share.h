/*
 * A process's part of what its job may use (claims.h), with a thread that looks after it: it
 * sleeps until others of the job come or go, so that who is idle gives back what others need.
 *
 *     struct share_options options = {.total_bytes = budget_cache_bytes(), .told = told};
 *     share_new(&options, &share);       told() is called, and again at each change
 *     share_free(share);
 *
 * Threads: share_want and share_look may be called by any thread, at any time, and don't wait.
 * After a fork a share is the parent's; the child leaves it alone.
 */
#ifndef ONEPOT_SHARE_H
#define ONEPOT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct share;

/* What a process may use. */
struct share_part {
    uint64_t bytes;
    uint64_t most_bytes; /* what was wanted when that was found */
    unsigned processes;  /* others of the job that work on the same CPUs */
};

struct share_options {
    const char *job;      /* NULL: as the environment says */
    uint64_t total_bytes; /* for all of the job */
    uint64_t fixed_bytes; /* the user's own word; 0: a fair part */
    uint64_t most_bytes;  /* no more is wanted, for now; 0: as much as there is */
    bool works;           /* with threads that keep CPUs busy, as many as there are */
    /*
     * For what comes and goes often: the thread looks twice a second, where it would else sleep
     * until somebody comes or goes. To be told of that has to be paid at the end, with 20 ms.
     */
    bool is_brief;
    /*
     * Returns how many bytes are used at most when it returns: see claim_set. Called by
     * share_new, and then by the thread after each look, also if nothing has changed. It may
     * not call share_free.
     */
    uint64_t (*told)(void *ctx, const struct share_part *part);
    void *ctx;
};

/* -errno where nothing can be shared: no folder, no thread. What was told then is void. */
int share_new(const struct share_options *options, struct share **ret_share);
void share_free(struct share *share); /* NULL is fine */

/* More (or less) is wanted: `told` is called soon, even if the answer is as before. */
void share_want(struct share *share, uint64_t most_bytes);

/* What is used has changed: `told` is called soon. */
void share_look(struct share *share);

#endif
