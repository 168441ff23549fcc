/*
 * Several threads compress frames, which come back in the order in which they were put in. The
 * same input gives the same bytes, whatever the number of threads.
 *
 *     compress_pool_new(threads, level, &pool);
 *     struct compressor c = {.pool = pool};          one for each archive that is written
 *     compressor_put(&c, &job->compress) ...
 *     while ((job = compressor_take(&c, compressor_is_full(&c, block_bytes)))
 *         ...                                        in order, each when it is done
 *     compressor_end(&c);                            and take what is left, to free it
 *     compress_pool_free(pool);
 *
 * With one thread, compressor_put does the work in its caller's thread. With more, a caller
 * that has to wait works on jobs that no thread has begun.
 *
 * Threads: a compressor belongs to one thread at a time; several threads may use compressors of
 * the same pool.
 */
#ifndef ONEPOT_COMPRESS_H
#define ONEPOT_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compress_pool;

struct compress_job {
    const uint8_t *in; /* NULL: no work, the job only keeps its place */
    size_t in_len;

    /* Set when compressor_take returns the job: */
    int error; /* 0 or -ENOMEM */
    uint8_t
        *out; /* a whole zstd frame from malloc, which the caller frees; NULL: not worth it */
    size_t out_len;

    /* private */
    int state;
    struct compress_job *next, *next_todo;
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

void compressor_put(struct compressor *compressor, struct compress_job *job);

/* Is so much in flight that jobs should be taken before more are put in? */
bool compressor_is_full(const struct compressor *compressor, size_t block_bytes);

/* The oldest job, if it is done. With `wait`, waits until it is. NULL: not done, or no job. */
struct compress_job *compressor_take(struct compressor *compressor, bool wait);

/*
 * Ends the work on jobs that were not taken; no thread works on any of them afterwards. They
 * can be taken at once then, done or not.
 */
void compressor_end(struct compressor *compressor);

#endif
