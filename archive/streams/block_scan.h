/*
 * Reads files of blocks that were compressed one by one, and tells where each lies: bzip2, xz
 * as `xz -T` writes it, gzip. Each block is a part that can be decompressed alone (codecs
 * CODEC_BZIP2, CODEC_XZ_BLOCK; CODEC_GZIP of a whole member, CODEC_DEFLATE_POINT of a part of a
 * longer one). A file may be several streams, one behind the other.
 *
 *     block_scan_new(source, "bzip2", helpers, &scan);
 *     block_scan_begin(scan, offset, end, &fault);
 *     do block_scan_next(scan, &buffer, &fault, &part); while (!part.is_last);
 *     behind = block_scan_offset(scan);
 *     block_scan_free(scan);
 *
 * Blocks are decompressed ahead by the helpers; all their sums are compared.
 *
 * Threads: one at a time. It calls libraries with bytes of unknown origin: in a sandbox only.
 */
#ifndef ONEPOT_BLOCK_SCAN_H
#define ONEPOT_BLOCK_SCAN_H

#include <stdint.h>

#include "helpers.h"
#include "fault.h"
#include "source.h"
#include "stream_part.h"

#define BLOCK_SCAN_MAX (64u << 20) /* a block that is longer can't be used */

struct block_scan;

/* `helpers` may be NULL. -ENOTSUP: this compression has no blocks, or its library is not here.
 */
int block_scan_new(struct source *source, const char *compression, struct helpers *helpers,
                   struct block_scan **ret_scan);
void block_scan_free(struct block_scan *scan); /* NULL is fine */

/*
 * The first stream begins at `offset`; all is read up to `end`. -ENOTSUP: its blocks are too
 * long, or can't be found; -EUCLEAN; errors of reading. The fault names no member.
 */
int block_scan_begin(struct block_scan *scan, uint64_t offset, uint64_t end,
                     struct fault *fault);

/* How many blocks there are; 0: none, or only the scan finds out (bzip2, gzip). */
size_t block_scan_count(const struct block_scan *scan);

/*
 * Decompresses the next block into the buffer, whose memory may be exchanged. -ENOTSUP:
 * it is too long, or its end can't be found; -EUCLEAN; errors of reading.
 */
int block_scan_next(struct block_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                    struct stream_part *ret_part);

/*
 * How far the source was used. After the last part: where the last stream ends, or what follows
 * is no stream.
 */
uint64_t block_scan_offset(const struct block_scan *scan);

#endif
