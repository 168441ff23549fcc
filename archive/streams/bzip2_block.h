/*
 * One block of a bzip2 stream, decompressed alone. Blocks do not refer to
 * each other; each has its own sum, and begins and ends at any bit. libbz2 knows only streams.
 * So the block's bits are moved to where a stream with one block has them.
 *
 * Threads: none is needed, any may call.
 */
#ifndef ONEPOT_BZIP2_BLOCK_H
#define ONEPOT_BZIP2_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#define BZIP2_MARK_BITS 48u
#define BZIP2_BLOCK_MARK UINT64_C(0x314159265359)
#define BZIP2_END_MARK UINT64_C(0x177245385090)
#define BZIP2_LEVEL_BYTES 100000u
/* A run of 259 bytes takes 5 of the 900,000 bytes of a block. */
#define BZIP2_BLOCK_BYTES_MAX (9 * BZIP2_LEVEL_BYTES / 5 * 259)
/* 20 bits for each of them; tables; and 3 bits for each table's choice of six. */
#define BZIP2_PACKED_MAX (3u << 20)
#define BZIP2_STREAM_EXTRA 24u

/* `count` bits of the bytes, at most 57, from a bit on; the highest bit of a byte is first. */
uint64_t bzip2_bits(const uint8_t *bytes, size_t bit, unsigned count);

/*
 * Decompresses the block that begins with bit `first_bit` of `packed` and ends with the first
 * `last_bits` bits of its last byte. `stream` is room for packed_len + BZIP2_STREAM_EXTRA
 * bytes. -ENOSPC: the block is longer than `room`. -EUCLEAN: these bits are no block, or it has
 * another sum.
 */
int bzip2_block_unpack(const uint8_t *packed, size_t packed_len, unsigned first_bit,
                       unsigned last_bits, uint8_t *stream, uint8_t *out, size_t room,
                       size_t *ret_len);

#endif
