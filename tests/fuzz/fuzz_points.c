/*
 * Parts of deflate streams. The first byte of an input says which way: a stream is cut into
 * parts, each of which must be decompressed to what the scan saw, or be refused; or a part with
 * a point that anybody could have written is decompressed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec.h"
#include "deflate_scan.h"
#include "fuzz.h"

#ifdef HAVE_ZLIB
#include <zlib.h>

#define PARTS_MAX 200u
#define OUT_BYTES (1u << 20)

static void unpack_seen(struct codec_context *context, const uint8_t *data,
                        const struct deflate_part *part, const uint8_t *seen)
{
    uint32_t bytes = part->block.block_bytes;
    uint8_t *out = malloc(bytes + 1u);
    if (!out)
        abort();
    if (codec_unpack_part(context, part->block.codec, &part->point,
                          data + part->block.source_offset, part->block.packed_bytes, out,
                          bytes) == 0)
        require(memcmp(out, seen, bytes) == 0);
    free(out);
}

static void scan(struct codec_context *context, const uint8_t *data, size_t size)
{
    struct source *source = fuzz_source(data, size);
    struct deflate_scan *scan;
    struct deflate_buffer buffer = {0};
    struct deflate_part part = {0};
    struct fault fault = {0};
    if (deflate_scan_new(source, "gzip", &scan) < 0)
        abort();
    deflate_scan_cut_often(scan);
    int r = deflate_scan_begin(scan, 0, size);
    for (unsigned i = 0; r == 0 && !part.is_last && i < PARTS_MAX; i++) {
        r = deflate_scan_next(scan, &buffer, &fault, &part);
        require(r == 0 || r == -ENOTSUP || r == -ENOMEM || (r == -EUCLEAN && fault.err));
        require(deflate_scan_offset(scan) <= size);
        if (r == 0 && part.block.block_bytes > 0)
            unpack_seen(context, data, &part, buffer.at);
    }
    free(buffer.at);
    deflate_scan_free(scan);
    source_close(source);
}

/* Eight bytes of a point, then a byte with the window's length, the window, the part. */
static void unpack_any(struct codec_context *context, const uint8_t *data, size_t size)
{
    static uint8_t out[OUT_BYTES];
    if (size < 9)
        return;
    size_t window = data[8] < size - 9 ? data[8] : size - 9;
    const struct block_point point = {
        .first_bit = data[0] % 8,
        .last_bits = 1 + data[1] % 8u,
        .window_bytes =
            window ? (data[2] | (uint32_t)data[3] << 8) % (POINT_WINDOW_MAX + 1) : 0,
        .window_packed = (uint32_t)window,
        .window = data + 9,
    };
    size_t room = (data[4] | (size_t)data[5] << 8 | (size_t)data[6] << 16) % OUT_BYTES;
    codec_unpack_part(context, CODEC_DEFLATE_POINT, &point, data + 9 + window,
                      size - 9 - window, out, room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct codec_context *context;
    if (size == 0 || codec_context_new(&context) < 0)
        return 0;
    if (data[0] & 1) {
        codec_context_skip_sums(context);
        unpack_any(context, data + 1, size - 1);
    } else {
        scan(context, data + 1, size - 1);
    }
    codec_context_free(context);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static uint8_t text[60000];
    static const int strategies[] = {Z_DEFAULT_STRATEGY, Z_FIXED, Z_HUFFMAN_ONLY};
    if (number >= 4)
        return NULL;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * i >> 9);
    uint8_t *seed = calloc(1, 2 * sizeof(text));
    z_stream z = {0};
    if (!seed || deflateInit2(&z, number == 3 ? 0 : 6, Z_DEFLATED, -15, 8,
                              strategies[number % 3]) != Z_OK)
        abort();
    size_t head = number == 1 ? 10 : 1; /* the second seed is a part without a window */
    seed[0] = number == 1;
    seed[2] = 7;
    seed[5] = 1;
    z.next_out = seed + head;
    z.avail_out = (uInt)(2 * sizeof(text) - head);
    for (size_t at = 0; at < sizeof(text); at += 10000) {
        z.next_in = text + at;
        z.avail_in = 10000;
        deflate(&z, at == 50000 ? Z_FINISH : Z_BLOCK);
    }
    *ret_size = head + z.total_out;
    deflateEnd(&z);
    return seed;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)data, (void)size;
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    (void)number, (void)ret_size;
    return NULL;
}
#endif
