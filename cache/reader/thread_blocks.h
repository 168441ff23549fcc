/*
 * Decompressed blocks for one thread that goes through an archive in its order: a few buffers
 * that are reused, so that they stay in the CPU's cache and cost no page faults. Nothing is
 * shared or locked. For many readers at once there is the block cache.
 *
 *     thread_blocks_init(&blocks, reader, scratch);
 *     thread_blocks_get(&blocks, &extent, &bytes);   bytes[0 .. extent.length)
 */
#ifndef ONEPOT_THREAD_BLOCKS_H
#define ONEPOT_THREAD_BLOCKS_H

#include <stdint.h>

#include "reader.h"

/*
 * A block of a single file is used once. Two blocks that files share are kept: in a SquashFS,
 * the block that holds the ends of files lies apart from their other blocks.
 */
#define THREAD_BLOCKS 3u

struct thread_block {
    uint64_t source_offset;
    uint8_t *bytes; /* room for the largest block; NULL: not yet used */
    size_t len;     /* 0: holds nothing */
    uint64_t used;  /* when it was used last */
};

struct thread_blocks {
    struct reader *reader;
    struct reader_scratch *scratch;
    struct thread_block slots[THREAD_BLOCKS];
    uint64_t now;
};

/* Reader and scratch must outlive it. */
void thread_blocks_init(struct thread_blocks *blocks, struct reader *reader,
                        struct reader_scratch *scratch);
void thread_blocks_free(struct thread_blocks *blocks);

/*
 * The bytes of an extent of kind BLOCK, valid until the next call. Errors: as from reader_get.
 */
int thread_blocks_get(struct thread_blocks *blocks, const struct extent *extent,
                      const uint8_t **ret_bytes);

#endif
