/*
 * Frames are compressed by several threads, and come back in the order in which they were
 * put in. The same input gives the same bytes whatever the number of threads.
 *
 *     compress_pool_new(threads, level, &pool);
 *     struct compressor c = {.pool = pool};          one for each archive that is written
 *     compressor_put(&c, &job->compress) ...
 *     while ((job = compressor_take(&c, compressor_is_full(&c, block_bytes)))
 *         ...                                        in order, each when it is done
 *     compressor_end(&c);
 *     compress_pool_free(pool);
 *
 * With one thread the work is done in compressor_put, by its caller. With more, a caller
 * that has to wait works on what nobody has begun.
 *
 * Threads: a compressor belongs to one thread at a time; those of a pool may be used by
 * several.
 */
#ifndef ONEPOT_COMPRESS_H
#define ONEPOT_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compress_pool;

struct compress_job {
    const uint8_t *in; /* NULL: nothing is to be done, it only keeps its place */
    size_t in_len;

    /* When it was taken: */
    int error;    /* 0 or -errno; -ENOMEM */
    uint8_t *out; /* a whole zstd frame, from malloc, the caller's; NULL: not worth it */
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

/* Is a frame of this size worth its decompression? Else `out` is NULL. */
static inline bool compress_is_worth(size_t in_len, size_t out_len)
{
    return out_len + in_len / 32 < in_len;
}

/* `threads` (0: as many as there are CPUs for this process) and a level of zstd. -ENOMEM. */
int compress_pool_new(unsigned threads, int level, struct compress_pool **ret_pool);
void compress_pool_free(struct compress_pool *pool); /* NULL is fine */

void compressor_put(struct compressor *compressor, struct compress_job *job);

/* Is so much in flight that some should be taken before more is put? */
bool compressor_is_full(const struct compressor *compressor, size_t block_bytes);

/* The oldest job if it is done; with `wait`, when it is. NULL: not done, or there is none. */
struct compress_job *compressor_take(struct compressor *compressor, bool wait);

/* Jobs that were not taken are given up; none is worked on any more. */
void compressor_end(struct compressor *compressor);

#endif
