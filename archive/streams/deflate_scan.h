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

/* ---- its blocks, one by one, with ISA-L: for tests, which give it small pieces ---- */

/*
 *     block_inflate_new(&b);
 *     block_inflate_begin(b);
 *     while (block_inflate_step(b, &next_in, &avail_in, out, room, &len) == BLOCK_INFLATE_MORE)
 *         ... input or room ...
 *     free(b);
 *
 * This takes about half of zlib's time. ISA-L takes incomplete codes, which zlib refuses, so
 * headers of blocks have to be checked before a step into a block; and its errors have no
 * words. Whoever sees BLOCK_INFLATE_UNSURE begins the block anew with zlib.
 */
struct block_inflate;

enum block_inflate_result {
    BLOCK_INFLATE_MORE,   /* it needs more input, or more room */
    BLOCK_INFLATE_END,    /* of a block */
    BLOCK_INFLATE_LAST,   /* of the stream's last block */
    BLOCK_INFLATE_UNSURE, /* damaged, or not for ISA-L; before the next step, begin anew */
};

/* -ENOMEM; -ENOTSUP: no ISA-L here. */
int block_inflate_new(struct block_inflate **ret_inflate);

/* A stream begins with the next byte of input. */
void block_inflate_begin(struct block_inflate *inflate);

/* Goes on in a block, or into the next one, at most to its end. Both may be missing. */
enum block_inflate_result block_inflate_step(struct block_inflate *inflate,
                                             const uint8_t **next_in, uint32_t *avail_in,
                                             uint8_t *out, size_t room, size_t *ret_len);

/* Bits of the input behind a block's end that were taken already. */
unsigned block_inflate_ahead(const struct block_inflate *inflate);

#endif
