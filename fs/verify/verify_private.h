/*
 * Shared by the files of the verification.
 *
 *   verify.c      the tree, members, windows, threads
 *   verify_end.c  trailers that are damaged or lost, and tars that may have been cut off
 */
#ifndef ONEPOT_VERIFY_PRIVATE_H
#define ONEPOT_VERIFY_PRIVATE_H

#include <pthread.h>

#include "backend.h"
#include "verify.h"
#include "worklist.h"

/* Positions of work items that are no members. */
#define VERIFY_A_WINDOW UINT32_MAX /* `piece` is a window */
#define VERIFY_A_PART                                                                          \
    (UINT32_MAX - 1) /* a part that the back end knows, `piece` its number                     \
                      */

/* Marks of a window. */
#define VERIFY_DIFFERS 1u    /* its sum does */
#define VERIFY_UNREADABLE 2u /* it can't be read */
#define VERIFY_TOLD 4u       /* a member in it was reported */

struct verification {
    const struct verify_options *options;
    struct pot *pot;
    const struct index *index;
    struct reader *reader;
    struct worklist *list;
    uint64_t data_end;      /* end of the last stored data, or block */
    struct archive_end end; /* set by verify_lost_end */
    uint64_t windows;       /* of the archive, that have a sum; 0: none has */
    _Atomic uint8_t *marks; /* [windows]: VERIFY_DIFFERS and the like */

    pthread_mutex_t lock; /* for reports, and the workers' */
    struct progress progress;
    _Atomic uint64_t files, file_bytes, problems;
};

static inline bool verify_stopped(const struct verification *v)
{
    return v->options->stop && atomic_load_explicit(v->options->stop, memory_order_relaxed);
}

/*
 * Ask the back ends what shows losses at the archive's end, and what parts they want to check.
 * They report to `report`, whose ctx is `v`, in any thread until the end. -errno: it can't be
 * read.
 */
int verify_lost_end(struct verification *v,
                    void (*report)(void *ctx, const struct fault *fault));

/* Check a part that verify_lost_end put into the list. `buf` is as for check_part. Any thread.
 */
void verify_part(struct verification *v, uint64_t offset, uint32_t number, uint8_t *buf);

#endif
