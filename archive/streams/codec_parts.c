/*
 * Deflate. libdeflate decompresses whole streams only, but twice as fast as zlib. So the part
 * becomes a whole stream:
 *
 *     the window, as a stored block | filler | the part | an empty last block
 *
 * The part keeps its place within bytes, because stored blocks in it are aligned to bytes. The
 * filler brings the stream to the bit in which the part begins. It is made of blocks without
 * content: of fixed codes with 10 bits each, and, for an odd number of bits, of codes of its
 * own with 99. The window comes out again before the part, and is dropped.
 */
#include "codec_parts.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#ifdef HAVE_ZLIB
#include <libdeflate.h>
#endif

#include "bzip2_block.h"

#define STORED_HEAD_BYTES 5u
#define FILLER_BYTES 20u /* 99 bits, three times 10, and the part's first byte */
#define LAST_BYTES 3u
/* Parts are mostly of 1 MiB. Room for longer ones is given back: each thread would keep it. */
#define KEPT_BYTES (8u << 20)

struct codec_parts {
    struct stream_memory memory;
    ZSTD_DCtx *zstd; /* for windows */
    struct stream_buffer in, out;
#ifdef HAVE_ZLIB
    struct libdeflate_decompressor *deflate;
#endif
};

static void parts_free(struct stream_memory *memory)
{
    struct codec_parts *parts = (struct codec_parts *)memory;
    ZSTD_freeDCtx(parts->zstd);
#ifdef HAVE_ZLIB
    if (parts->deflate)
        libdeflate_free_decompressor(parts->deflate);
#endif
    free(parts->in.at);
    free(parts->out.at);
    free(parts);
}

/* The parts that the memory belongs to, which are made at first. NULL: -ENOMEM. */
static struct codec_parts *parts_of(struct stream_memory **memory)
{
    if (*memory)
        return (struct codec_parts *)*memory;
    struct codec_parts *parts = calloc(1, sizeof(*parts));
    if (!parts)
        return NULL;
    parts->memory.free = parts_free;
    parts->zstd = ZSTD_createDCtx();
    bool is_made = parts->zstd != NULL;
#ifdef HAVE_ZLIB
    parts->deflate = libdeflate_alloc_decompressor();
    is_made = is_made && parts->deflate;
#endif
    if (!is_made) {
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

static int parts_end(struct codec_parts *parts, int result)
{
    parts_give_back(&parts->in);
    parts_give_back(&parts->out);
    return result;
}

#ifdef HAVE_ZLIB
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

static size_t put_window(struct codec_parts *parts, const struct block_point *point,
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
static int make_deflate_stream(struct codec_parts *parts, const struct block_point *point,
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

static int unpack_deflate_part(struct codec_parts *parts, const struct block_point *point,
                               const void *packed, size_t packed_len, void *block, size_t size)
{
    size_t len, whole = point->window_bytes + size;
    int r = make_deflate_stream(parts, point, packed, packed_len, &len);
    if (r == 0)
        r = stream_buffer_room(&parts->out, whole);
    if (r < 0)
        return r;
    if (libdeflate_deflate_decompress(parts->deflate, parts->in.at, len, parts->out.at, whole,
                                      NULL) != LIBDEFLATE_SUCCESS)
        return -EUCLEAN;
    memcpy(block, parts->out.at + point->window_bytes, size);
    return 0;
}

/*
 * libdeflate stops where the buffer is full, and then has written all but a last match. It does
 * not promise that, hence the sums.
 */
static int unpack_deflate_start(struct codec_parts *parts, const struct block_point *point,
                                const void *packed, size_t packed_len, void *block, size_t len)
{
    enum { MATCH_MAX = 258 };
    size_t stream_len, room = point->window_bytes + len + MATCH_MAX, out_len;
    int r = make_deflate_stream(parts, point, packed, packed_len, &stream_len);
    if (r == 0)
        r = stream_buffer_room(&parts->out, room);
    if (r < 0)
        return r;
    enum libdeflate_result result = libdeflate_deflate_decompress(
        parts->deflate, parts->in.at, stream_len, parts->out.at, room, &out_len);
    if (result != LIBDEFLATE_INSUFFICIENT_SPACE &&
        (result != LIBDEFLATE_SUCCESS || out_len < point->window_bytes + len))
        return -EUCLEAN;
    memcpy(block, parts->out.at + point->window_bytes, len);
    return 0;
}

int codec_parts_deflate(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t size)
{
    struct codec_parts *parts = parts_of(memory);
    return parts ? parts_end(parts,
                             unpack_deflate_part(parts, point, packed, packed_len, block, size))
                 : -ENOMEM;
}

int codec_parts_deflate_start(struct stream_memory **memory, const struct block_point *point,
                              const void *packed, size_t packed_len, void *block, size_t len)
{
    struct codec_parts *parts = parts_of(memory);
    return parts ? parts_end(parts,
                             unpack_deflate_start(parts, point, packed, packed_len, block, len))
                 : -ENOMEM;
}
#endif

#ifdef HAVE_BZ2
int codec_parts_bzip2(struct stream_memory **memory, const struct block_point *point,
                      const void *packed, size_t packed_len, void *block, size_t size)
{
    struct codec_parts *parts = parts_of(memory);
    size_t len;
    int r = !parts ? -ENOMEM : packed_len <= BZIP2_PACKED_MAX ? 0 : -EUCLEAN;
    if (r == 0)
        r = stream_buffer_room(&parts->in, packed_len + BZIP2_STREAM_EXTRA);
    if (r == 0)
        r = bzip2_block_unpack(packed, packed_len, point->first_bit, point->last_bits,
                               parts->in.at, block, size, &len);
    return r == -ENOSPC || (r == 0 && len != size) ? -EUCLEAN : r;
}
#endif
