/*
 * Decompressed blocks of one thread that goes through an archive in its order: a few
 * buffers that are used again and again, so that they stay in the CPU's cache and cost no
 * page faults. Nothing is shared and nothing is locked: for many readers at once there is
 * the block cache.
 *
 *     own_blocks_init(&blocks, reader, scratch);
 *     own_blocks_get(&blocks, &extent, &bytes);   bytes[0 .. extent.length)
 */
#ifndef ONEPOT_OWN_BLOCKS_H
#define ONEPOT_OWN_BLOCKS_H

#include <stdint.h>

#include "reader.h"

/* A block of one file's alone is used once; of those that files share, two are kept: in a
 * SquashFS, the one that holds the ends of the files lies apart from their blocks. */
#define OWN_BLOCKS 3u

struct own_block {
    uint64_t source_offset;
    uint8_t *bytes; /* room for the largest block; NULL: not yet used */
    size_t len;     /* 0: holds nothing */
    uint64_t used;  /* when */
};

struct own_blocks {
    struct reader *reader;
    struct reader_scratch *scratch;
    struct own_block slots[OWN_BLOCKS];
    uint64_t now;
};

/* Reader and scratch must outlive it. */
void own_blocks_init(struct own_blocks *blocks, struct reader *reader,
                     struct reader_scratch *scratch);
void own_blocks_free(struct own_blocks *blocks);

/*
 * The bytes of an extent of kind BLOCK, valid until the next call. Errors as reader_get has
 * them.
 */
int own_blocks_get(struct own_blocks *blocks, const struct extent *extent,
                   const uint8_t **ret_bytes);

#endif
