/*
 * Several threads compress frames, which come back in the order in which they were put in. The
 * same input gives the same bytes, whatever the number of threads.
 *
 *     compress_pool_new(threads, level, &pool);
 *     struct compressor c = {.pool = pool};          one for each archive that is written
 *     compressor_put(&c, &job->compress) ...
 *     while ((job = compressor_take(&c, block_bytes)))
 *         ...                                        in order, each when it is done
 *     while ((job = compressor_cancel(&c)))          what was not taken, to free it
 *     compress_pool_free(pool);
 *
 * With one thread, the work is done where jobs are taken. With more, a caller that has to wait
 * works on jobs that no thread has begun.
 *
 * Threads: as helpers.h has it, one at a time uses the compressors of a pool.
 */
#ifndef ONEPOT_COMPRESS_H
#define ONEPOT_COMPRESS_H

#include <stddef.h>
#include <stdint.h>

#include "helpers.h"

struct compress_pool;

struct compress_job {
    struct helper_task task; /* private; must be first */
    const uint8_t *in;       /* NULL: no work, the job only keeps its place */
    size_t in_len;

    /* Set when compressor_take returns the job: */
    int error; /* 0 or -ENOMEM */
    uint8_t
        *out; /* a whole zstd frame from malloc, which the caller frees; NULL: not worth it */
    size_t out_len;

    /* private */
    struct compress_pool *pool;
    struct compress_job *next;
};

struct compressor {
    struct compress_pool *pool;

    /* private */
    struct compress_job *first, *last;
    size_t flight_bytes;
};

/*
 * `threads` 0: as many as this process has CPUs. `level` is zstd's. Returns when all threads
 * run, as helpers_new does. -ENOMEM.
 */
int compress_pool_new(unsigned threads, int level, struct compress_pool **ret_pool);
void compress_pool_free(struct compress_pool *pool); /* NULL is fine */

#endif
