#include "bzip2_block.h"

#include <errno.h>
#include <string.h>

#include "codec.h"

uint64_t bzip2_bits(const uint8_t *bytes, size_t bit, unsigned count)
{
    const uint8_t *at = bytes + bit / 8;
    unsigned skip = bit % 8, have = 0;
    uint64_t value = 0;
    for (; have < skip + count; have += 8)
        value = value << 8 | *at++;
    return value >> (have - skip - count) & ((UINT64_C(1) << count) - 1);
}

#define HEAD_BYTES 4u
#define LEAST_BITS (BZIP2_MARK_BITS + 32) /* the mark and the sum */

static void bits_put(uint8_t *bytes, size_t bit, uint64_t value, unsigned count)
{
    for (unsigned i = count; i-- > 0; bit++) {
        unsigned mask = 0x80u >> bit % 8;
        unsigned rest = bytes[bit / 8] & ~mask;
        bytes[bit / 8] = (uint8_t)(value >> i & 1 ? rest | mask : rest);
    }
}

/* Makes a stream of the block's `bits`, and returns its length. Its sum is the block's.
 */
static size_t make_stream(const uint8_t *packed, size_t packed_len, unsigned first_bit,
                          size_t bits, uint8_t *stream)
{
    uint8_t *to = stream + HEAD_BYTES;
    memcpy(stream, "BZh9", HEAD_BYTES);
    if (first_bit == 0) {
        memcpy(to, packed, packed_len);
    } else {
        for (size_t i = 0; i + 1 < packed_len; i++)
            to[i] = (uint8_t)(packed[i] << first_bit | packed[i + 1] >> (8 - first_bit));
        to[packed_len - 1] = (uint8_t)(packed[packed_len - 1] << first_bit);
    }
    memset(to + packed_len, 0, BZIP2_STREAM_EXTRA - HEAD_BYTES);
    bits_put(to, bits, BZIP2_END_MARK, BZIP2_MARK_BITS);
    bits_put(to, bits + BZIP2_MARK_BITS, bzip2_bits(to, BZIP2_MARK_BITS, 32), 32);
    return HEAD_BYTES + (bits + BZIP2_MARK_BITS + 32 + 7) / 8;
}

int bzip2_block_unpack(const uint8_t *packed, size_t packed_len, unsigned first_bit,
                       unsigned last_bits, uint8_t *stream, uint8_t *out, size_t room,
                       size_t *ret_len)
{
    size_t bits = packed_len * 8 - first_bit - (8 - last_bits);
    if (packed_len < LEAST_BITS / 8 || packed_len > BZIP2_PACKED_MAX || bits < LEAST_BITS)
        return -EUCLEAN;
    size_t stream_len = make_stream(packed, packed_len, first_bit, bits, stream);
    if (room > BZIP2_BLOCK_BYTES_MAX)
        room = BZIP2_BLOCK_BYTES_MAX;
    return bzip2_file_unpack(stream, stream_len, out, room, ret_len);
}
