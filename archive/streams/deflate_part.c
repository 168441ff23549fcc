/*
 * libdeflate decompresses whole streams only, but twice as fast as zlib. So the part
 * becomes a whole stream:
 *
 *     the window, as a stored block | filler | the part | an empty last block
 *
 * The part keeps its place within bytes, because stored blocks in it are aligned to bytes. The
 * filler brings the stream to the bit in which the part begins. It is made of blocks without
 * content: of fixed codes with 10 bits each, and, for an odd number of bits, of codes of its
 * own with 99. The window comes out again before the part, and is dropped.
 */
#include "deflate_part.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <libdeflate.h>
#include <zstd.h>

#define STORED_HEAD_BYTES 5u
#define FILLER_BYTES 20u /* 99 bits, three times 10, and the part's first byte */
#define LAST_BYTES 3u
/* Parts are mostly of 1 MiB. Room for longer ones is given back: each thread would keep it. */
#define KEPT_BYTES (8u << 20)
#define MATCH_MAX 258u

struct deflate_parts {
    struct stream_memory memory;
    ZSTD_DCtx *zstd; /* for windows */
    struct stream_buffer in, out;
    struct libdeflate_decompressor *deflate;
};

static void parts_free(struct stream_memory *memory)
{
    struct deflate_parts *parts = (struct deflate_parts *)memory;
    ZSTD_freeDCtx(parts->zstd);
    if (parts->deflate)
        libdeflate_free_decompressor(parts->deflate);
    free(parts->in.at);
    free(parts->out.at);
    free(parts);
}

/* The parts that the memory belongs to, which are made at first. NULL: -ENOMEM. */
static struct deflate_parts *parts_of(struct stream_memory **memory)
{
    if (*memory)
        return (struct deflate_parts *)*memory;
    struct deflate_parts *parts = calloc(1, sizeof(*parts));
    if (!parts)
        return NULL;
    parts->memory.free = parts_free;
    parts->zstd = ZSTD_createDCtx();
    parts->deflate = libdeflate_alloc_decompressor();
    if (!parts->zstd || !parts->deflate) {
        parts_free(&parts->memory);
        return NULL;
    }
    *memory = &parts->memory;
    return parts;
}

static void parts_give_back(struct stream_buffer *buffer)
{
    if (buffer->room <= KEPT_BYTES)
        return;
    free(buffer->at);
    *buffer = (struct stream_buffer){0};
}

/* How many bits of `packed_len` bytes belong to the part and what comes before it; 0: none. */
static size_t parts_bits(const struct block_point *point, size_t packed_len)
{
    size_t end = packed_len * 8 - (8 - point->last_bits);
    return packed_len > 0 && end > point->first_bit ? end : 0;
}

/* Writes bits as deflate does: from the lowest bit of each byte on. The bytes are zero. */
struct bits_out {
    uint8_t *bytes;
    size_t bit;
};

static void bits_put(struct bits_out *out, uint32_t value, unsigned count)
{
    for (unsigned i = 0; i < count; i++, out->bit++)
        out->bytes[out->bit / 8] |= (uint8_t)((value >> i & 1) << out->bit % 8);
}

/*
 * A block without content of 99 bits. The lengths of its codes, 116 + 138 zeros and then 1, 2,
 * 2, 0, are themselves in a code with four symbols (0, 1, 2 and "11 to 138 zeros") of two bits.
 */
static void bits_put_odd_block(struct bits_out *out)
{
    static const uint8_t lengths[18] = {[2] = 2, [3] = 2, [15] = 2, [17] = 2};
    enum { ZERO = 0, ONE = 2, TWO = 1, MANY_ZEROS = 3 }; /* codes begin with the highest bit */
    bits_put(out, 2u << 1, 3);                           /* not the last block; own codes */
    bits_put(out, 0, 5);                                 /* 257 codes for literals, */
    bits_put(out, 0, 5);                                 /* 1 for distances, */
    bits_put(out, sizeof(lengths) - 4, 4);
    for (size_t i = 0; i < sizeof(lengths); i++)
        bits_put(out, lengths[i], 3);
    bits_put(out, MANY_ZEROS, 2);
    bits_put(out, 138 - 11, 7);
    bits_put(out, MANY_ZEROS, 2);
    bits_put(out, 116 - 11, 7);
    bits_put(out, ONE, 2);
    bits_put(out, TWO, 2);
    bits_put(out, TWO, 2); /* of the end of the block, whose code is then 11 */
    bits_put(out, ZERO, 2);
    bits_put(out, 3, 2);
}

/* The filler up to the part's first bit. */
static void bits_put_filler(struct bits_out *out, unsigned first_bit)
{
    if (first_bit % 2)
        bits_put_odd_block(out);
    while (out->bit % 8 != first_bit)
        bits_put(out, 1u << 1, 10); /* not the last block, fixed codes: and at its end */
}

static size_t put_window(struct deflate_parts *parts, const struct block_point *point,
                         uint8_t *to)
{
    uint32_t n = point->window_bytes;
    if (n == 0)
        return 0;
    const uint8_t head[STORED_HEAD_BYTES] = {0, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n,
                                             (uint8_t)(~n >> 8)};
    memcpy(to, head, sizeof(head));
    size_t len = ZSTD_decompressDCtx(parts->zstd, to + sizeof(head), n, point->window,
                                     point->window_packed);
    return ZSTD_isError(len) || len != n ? 0 : sizeof(head) + n;
}

/* Makes a whole stream of the part, in `in`. -EUCLEAN: it can't be one. */
static int make_deflate_stream(struct deflate_parts *parts, const struct block_point *point,
                               const uint8_t *packed, size_t packed_len, size_t *ret_len)
{
    size_t bits = parts_bits(point, packed_len);
    if (bits == 0)
        return -EUCLEAN;
    int r = stream_buffer_room(&parts->in, STORED_HEAD_BYTES + point->window_bytes +
                                               FILLER_BYTES + packed_len + LAST_BYTES);
    if (r < 0)
        return r;
    size_t len = put_window(parts, point, parts->in.at);
    if (len == 0 && point->window_bytes > 0)
        return -EUCLEAN;

    struct bits_out out = {.bytes = parts->in.at + len};
    memset(out.bytes, 0, FILLER_BYTES);
    bits_put_filler(&out, point->first_bit);
    uint8_t *part = out.bytes + out.bit / 8, before = point->first_bit ? *part : 0;
    memcpy(part, packed, packed_len);
    part[0] = (uint8_t)((part[0] & (0xff << point->first_bit)) | before);

    out = (struct bits_out){.bytes = part, .bit = bits};
    if (bits % 8)
        part[bits / 8] &= (uint8_t)(0xff >> (8 - bits % 8));
    memset(part + (bits + 7) / 8, 0, LAST_BYTES);
    bits_put(&out, 1 | 1u << 1, 10);
    *ret_len = (size_t)(part - parts->in.at) + (out.bit + 7) / 8;
    return 0;
}

/*
 * Decompresses the first `len` bytes: all of the part, if there is no room for `more`.
 *
 * libdeflate stops where the buffer is full, and then has written all but a last match. It does
 * not promise that, hence the sums.
 */
static int parts_unpack(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t len,
                        size_t more)
{
    struct deflate_parts *parts = parts_of(memory);
    size_t stream_len, out_len, whole = point->window_bytes + len;
    if (!parts)
        return -ENOMEM;
    int r = make_deflate_stream(parts, point, packed, packed_len, &stream_len);
    if (r == 0)
        r = stream_buffer_room(&parts->out, whole + more);
    if (r == 0) {
        enum libdeflate_result result = libdeflate_deflate_decompress(
            parts->deflate, parts->in.at, stream_len, parts->out.at, whole + more, &out_len);
        bool is_full = more > 0 && result == LIBDEFLATE_INSUFFICIENT_SPACE;
        if (is_full || (result == LIBDEFLATE_SUCCESS && out_len >= whole))
            memcpy(block, parts->out.at + point->window_bytes, len);
        else
            r = -EUCLEAN;
    }
    parts_give_back(&parts->in);
    parts_give_back(&parts->out);
    return r;
}

int deflate_part_unpack(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t size)
{
    return parts_unpack(memory, point, packed, packed_len, block, size, 0);
}

int deflate_part_unpack_start(struct stream_memory **memory, const struct block_point *point,
                              const void *packed, size_t packed_len, void *block, size_t len)
{
    return parts_unpack(memory, point, packed, packed_len, block, len, MATCH_MAX);
}
