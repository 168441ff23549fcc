/*
 * Shared by the files of the verification.
 *
 *   verify.c      the tree, members, windows, threads
 *   verify_end.c  trailers that are damaged or lost, and tars that may have been cut off
 */
#ifndef ONEPOT_VERIFY_PRIVATE_H
#define ONEPOT_VERIFY_PRIVATE_H

#include <pthread.h>

#include "coverage.h"
#include "verify.h"
#include "worklist.h"

struct verification {
    const struct verify_options *options;
    struct pot *pot;
    const struct index *index;
    struct reader *reader;
    bool has_sums;
    struct worklist *list;
    uint64_t data_end;         /* end of the last stored data, or block */
    struct coverage *coverage; /* NULL: the archive has no sums of the bytes outside of files */

    pthread_mutex_t lock; /* for reports, and the crew's */
    struct progress progress;
    _Atomic uint64_t files, problems;
};

static inline bool verify_stopped(const struct verification *v)
{
    return v->options->stop && atomic_load_explicit(v->options->stop, memory_order_relaxed);
}

/* Report and count a problem. */
void verify_report(struct verification *v, const struct fault *fault);

/* Ask the back ends what shows losses at the archive's end. -errno: it can't be read. */
int verify_lost_end(struct verification *v);

#endif
