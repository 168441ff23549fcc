/*
 * Decompresses parts of streams, each alone: whole streams are made of them, for libraries that
 * know nothing else. For codec.c, which compares the sums.
 *
 * Threads: as of a codec context.
 */
#ifndef ONEPOT_CODEC_PARTS_H
#define ONEPOT_CODEC_PARTS_H

#include <stddef.h>

#include "index.h"

struct codec_parts;
int codec_parts_new(struct codec_parts **ret_parts);
void codec_parts_free(struct codec_parts *parts); /* NULL is fine */

/* See codec_unpack_part. */
int codec_parts_unpack(struct codec_parts *parts, enum codec codec,
                       const struct block_point *point, const void *packed, size_t packed_len,
                       void *block, size_t size);

/*
 * The first `len` bytes of a part that has more, of CODEC_DEFLATE_POINT. They are to be
 * compared with sums: damage need not be noticed here.
 */
int codec_parts_unpack_start(struct codec_parts *parts, const struct block_point *point,
                             const void *packed, size_t packed_len, void *block, size_t len);

#endif
