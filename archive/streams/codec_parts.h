/*
 * Decompresses parts of streams, each alone: whole streams are made of them, for libraries that
 * know nothing else. These are `unpack` and `unpack_start` of struct stream.
 *
 * Threads: as of a codec context, whose memory they share.
 */
#ifndef ONEPOT_CODEC_PARTS_H
#define ONEPOT_CODEC_PARTS_H

#include <stddef.h>

#include "stream.h"

int codec_parts_deflate(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t size);
int codec_parts_deflate_start(struct stream_memory **memory, const struct block_point *point,
                              const void *packed, size_t packed_len, void *block, size_t len);
int codec_parts_bzip2(struct stream_memory **memory, const struct block_point *point,
                      const void *packed, size_t packed_len, void *block, size_t size);

#endif
