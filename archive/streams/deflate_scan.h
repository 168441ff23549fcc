/*
 * Cuts a stream of deflate ("deflate" of stream.h) into parts that can be decompressed alone
 * (codec CODEC_DEFLATE_POINT): it is decompressed once, from its start, and cut between two of
 * its blocks where a point pays. Each part needs up to 32 KB of what came before it, its
 * window, and that is what an index of the parts costs: about one byte for each hundred of the
 * stream. So a part decompresses to DEFLATE_PART_LEAST bytes or more, whatever keeps the
 * windows within that. -ENOTSUP: the stream can't be cut often enough.
 *
 * Of a part, only the bytes of the window that it refers to are kept; the others are zeros, and
 * take no room when they are compressed.
 */
#ifndef ONEPOT_DEFLATE_SCAN_H
#define ONEPOT_DEFLATE_SCAN_H

#include "stream.h"

#define DEFLATE_PART_LEAST (512u << 10)
#define DEFLATE_PART_LARGE (8u << 20) /* a part that is longer ends where it can */
#define DEFLATE_PART_MAX (64u << 20)  /* if its stream can't be cut before, it can't be used */

/*
 * From now on cuts the stream wherever that is possible, whatever the windows take: for tests,
 * whose streams are short.
 */
void deflate_scan_cut_often(struct stream_scan *scan);

/* Leaves ISA-L out: for tests, which compare. Before the first stream. */
void deflate_scan_with_zlib(struct stream_scan *scan);

#endif
