/*
 * Deflate, one block at a time, with ISA-L: in about half of zlib's time. ISA-L itself does not
 * stop between blocks, but it stops behind the last one. So it is told that each block is the
 * last: the first bit of a block says so, and we hand it over.
 *
 *     block_inflate_new(&b);
 *     block_inflate_begin(b);
 *     while (block_inflate_step(b, &next_in, &avail_in, out, room, &len) == BLOCK_INFLATE_MORE)
 *         ... input or room ...
 *
 * ISA-L takes incomplete codes, which zlib refuses, so headers of blocks have to be checked
 * before a step into a block; and its errors have no words. Whoever sees BLOCK_INFLATE_UNSURE
 * begins the block anew with zlib.
 *
 * Threads: none. For bytes of unknown origin: in a sandbox only.
 */
#ifndef ONEPOT_BLOCK_INFLATE_H
#define ONEPOT_BLOCK_INFLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block_inflate;

enum block_inflate_result {
    BLOCK_INFLATE_MORE,   /* it needs more input, or more room */
    BLOCK_INFLATE_END,    /* of a block */
    BLOCK_INFLATE_LAST,   /* of the stream's last block */
    BLOCK_INFLATE_UNSURE, /* damaged, or not for ISA-L; before the next step, begin anew */
};

/* -ENOMEM; -ENOTSUP: no ISA-L here. */
int block_inflate_new(struct block_inflate **ret_inflate);
void block_inflate_free(struct block_inflate *inflate); /* NULL is fine */

/* A stream begins with the next byte of input. */
void block_inflate_begin(struct block_inflate *inflate);

/* Goes on in a block, or into the next one, at most to its end. Both may be missing. */
enum block_inflate_result block_inflate_step(struct block_inflate *inflate,
                                             const uint8_t **next_in, uint32_t *avail_in,
                                             uint8_t *out, size_t room, size_t *ret_len);

/* Bits of the input behind a block's end that were taken already. */
unsigned block_inflate_ahead(const struct block_inflate *inflate);

/*
 * Decompresses the first `len` bytes behind a point, whose first byte has `first_bit` bits of
 * something else. False: there are no so many, or they are damaged.
 */
bool block_inflate_probe(struct block_inflate *inflate, const uint8_t *packed,
                         size_t packed_len, unsigned first_bit, const uint8_t *window,
                         size_t window_len, uint8_t *out, size_t len);

#endif
