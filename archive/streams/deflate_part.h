/*
 * Decompresses parts of deflate streams, each alone: `unpack` and `unpack_start` of struct
 * stream.
 *
 * Threads: as of a codec context, whose memory they share.
 */
#ifndef ONEPOT_DEFLATE_PART_H
#define ONEPOT_DEFLATE_PART_H

#include <stddef.h>

#include "stream.h"

int deflate_part_unpack(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t size);
int deflate_part_unpack_start(struct stream_memory **memory, const struct block_point *point,
                              const void *packed, size_t packed_len, void *block, size_t len);

#endif
