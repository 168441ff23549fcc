/*
 * Parts of streams: of deflate, bzip2 and xz. The first byte of an input says which, and which
 * way: a stream is cut into parts, each of which must be decompressed to what the scan saw, or
 * be refused; or a part with a point that anybody could have written is decompressed.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "codec.h"
#include "deflate_scan.h"
#include "fuzz.h"
#include "stream.h"

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef HAVE_BZ2
#include <bzlib.h>
#endif
#ifdef HAVE_XZ
#include <lzma.h>
#endif

#define PARTS_MAX 200u
#define OUT_BYTES (1u << 20)

static void unpack_seen(struct codec_context *context, const uint8_t *data,
                        const struct stream_part *part, const uint8_t *seen)
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

#ifdef HAVE_ZLIB
/* A stream that is cut into parts, by ISA-L or zlib. */
struct scanned {
    struct stream_scan *scan;
    struct stream_buffer buffer;
    struct stream_part part;
    struct fault fault;
};

static void begin_scan(struct scanned *s, struct source *source, size_t size, bool with_zlib)
{
    if (stream_scan_new(source, "deflate", NULL, &s->scan) < 0)
        abort();
    deflate_scan_cut_often(s->scan);
    if (with_zlib)
        deflate_scan_with_zlib(s->scan);
    if (stream_scan_begin(s->scan, 0, size, &s->fault) < 0)
        abort();
}

static void compare(int r, const struct scanned *ours, int zlibs_r, const struct scanned *zlibs)
{
    const struct builder_block *a = &ours->part.block, *b = &zlibs->part.block;
    const struct block_point *p = &ours->part.point, *q = &zlibs->part.point;
    require(r == zlibs_r);
    require(r == 0 || (ours->fault.offset == zlibs->fault.offset &&
                       strcmp(ours->fault.what, zlibs->fault.what) == 0));
    require(r < 0 ||
            (a->source_offset == b->source_offset && a->packed_bytes == b->packed_bytes &&
             a->block_bytes == b->block_bytes && ours->part.is_last == zlibs->part.is_last &&
             p->sum == q->sum && p->first_bit == q->first_bit && p->last_bits == q->last_bits &&
             p->window_bytes == q->window_bytes && p->window_packed == q->window_packed));
}

static void scan(struct codec_context *context, const uint8_t *data, size_t size)
{
    struct source *source = fuzz_source(data, size);
    struct scanned ours = {0}, zlibs = {0};
    int r = 0;
    begin_scan(&ours, source, size, false);
    begin_scan(&zlibs, source, size, true);
    for (unsigned i = 0; r == 0 && !ours.part.is_last && i < PARTS_MAX; i++) {
        r = stream_scan_next(ours.scan, &ours.buffer, &ours.fault, &ours.part);
        require(r == 0 || r == -ENOTSUP || r == -ENOMEM || (r == -EUCLEAN && ours.fault.err));
        require(ours.scan->offset <= size);
        compare(r, &ours,
                stream_scan_next(zlibs.scan, &zlibs.buffer, &zlibs.fault, &zlibs.part), &zlibs);
        if (r == 0 && ours.part.block.block_bytes > 0)
            unpack_seen(context, data, &ours.part, ours.buffer.at);
    }
    free(ours.buffer.at);
    free(zlibs.buffer.at);
    stream_scan_free(ours.scan);
    stream_scan_free(zlibs.scan);
    source_close(source);
}

#else
#define scan(context, data, size) ((void)(context), (void)(data), (void)(size))
#endif

static void scan_blocks(struct codec_context *context, const char *compression,
                        const uint8_t *data, size_t size)
{
    struct source *source = fuzz_source(data, size);
    struct stream_scan *scan = NULL;
    struct stream_buffer buffer = {0};
    struct stream_part part = {0};
    struct fault fault = {0};
    int r = stream_scan_new(source, compression, NULL, &scan);
    if (r == 0)
        r = stream_scan_begin(scan, 0, size, &fault);
    for (unsigned i = 0; r == 0 && !part.is_last && i < PARTS_MAX; i++) {
        r = stream_scan_next(scan, &buffer, &fault, &part);
        require(r == 0 || r == -ENOTSUP || (r == -EUCLEAN && fault.err));
        require(scan->offset <= size);
        if (r == 0 && part.block.block_bytes > 0)
            unpack_seen(context, data, &part, buffer.at);
    }
    free(buffer.at);
    stream_scan_free(scan);
    source_close(source);
}

/* Eight bytes of a point, then a byte with the window's length, the window, the part. */
static void unpack_any(struct codec_context *context, enum codec codec, const uint8_t *data,
                       size_t size)
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
    codec_unpack_part(context, codec, &point, data + 9 + window, size - 9 - window, out, room);
    static const uint8_t pieces[POINT_PIECES_BYTES];
    struct block_point with_pieces = point;
    with_pieces.pieces = pieces;
    codec_unpack_start(context, codec, &with_pieces, data + 9 + window, size - 9 - window, out,
                       room / 2, room);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct codec_context *context;
    if (size == 0 || codec_context_new(data[0] & 1, &context) < 0)
        return 0;
    static const enum codec codecs[] = {CODEC_DEFLATE_POINT, CODEC_BZIP2, CODEC_XZ_BLOCK};
    unsigned kind = data[0] / 2 % 3;
    if (data[0] & 1) {
        unpack_any(context, codecs[kind], data + 1, size - 1);
    } else if (kind == 0) {
        scan(context, data + 1, size - 1);
    } else {
        scan_blocks(context, kind == 1 ? "bzip2" : "xz", data + 1, size - 1);
    }
    codec_context_free(context);
    return 0;
}

#define TEXT_BYTES 60000u
#define SEED_BYTES (2 * TEXT_BYTES)

/* The length of the text, packed into room for SEED_BYTES. 0: not in this build. */
static size_t pack_deflate(unsigned number, uint8_t *text, uint8_t *to)
{
#ifdef HAVE_ZLIB
    static const int strategies[] = {Z_DEFAULT_STRATEGY, Z_FIXED, Z_HUFFMAN_ONLY};
    z_stream z = {.next_out = to, .avail_out = SEED_BYTES};
    if (deflateInit2(&z, number == 3 ? 0 : 6, Z_DEFLATED, -15, 8, strategies[number % 3]) !=
        Z_OK)
        abort();
    for (size_t at = 0; at < TEXT_BYTES; at += 10000) {
        z.next_in = text + at;
        z.avail_in = 10000;
        deflate(&z, at == 50000 ? Z_FINISH : Z_BLOCK);
    }
    deflateEnd(&z);
    return z.total_out;
#else
    (void)number, (void)text, (void)to;
    return 0;
#endif
}

static size_t pack_bzip2(uint8_t *text, uint8_t *to)
{
#ifdef HAVE_BZ2
    size_t len = 0;
    for (size_t at = 0; at < TEXT_BYTES; at += TEXT_BYTES / 3) {
        unsigned room = (unsigned)(SEED_BYTES - len);
        if (BZ2_bzBuffToBuffCompress((char *)to + len, &room, (char *)text + at, TEXT_BYTES / 3,
                                     1, 0, 0) != BZ_OK)
            abort();
        len += room;
    }
    return len;
#else
    (void)text, (void)to;
    return 0;
#endif
}

static size_t pack_xz(uint8_t *text, uint8_t *to)
{
#ifdef HAVE_XZ
    size_t len = 0;
    for (size_t at = 0; at < TEXT_BYTES; at += TEXT_BYTES / 3)
        if (lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, NULL, text + at, TEXT_BYTES / 3, to,
                                    &len, SEED_BYTES) != LZMA_OK)
            abort();
    return len;
#else
    (void)text, (void)to;
    return 0;
#endif
}

/*
 * Streams of each kind, to be cut into parts; and, as numbers 1, 5 and 7, parts without a
 * window: what follows the stream's header.
 */
uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static uint8_t text[TEXT_BYTES], packed[SEED_BYTES];
    if (number >= 8)
        return NULL;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * i >> 9);
    bool is_part = number == 1 || number == 5 || number == 7;
    unsigned kind = number < 4 ? 0 : number < 6 ? 1 : 2;
    size_t len = kind == 0   ? pack_deflate(number, text, packed)
                 : kind == 1 ? pack_bzip2(text, packed)
                             : pack_xz(text, packed);
    size_t head = is_part ? 10 : 1,
           skip = !is_part || len == 0 ? 0 : (const size_t[]){0, 4, 12}[kind];
    uint8_t *seed = calloc(1, head + len - skip);
    if (!seed)
        abort();
    seed[0] = (uint8_t)(2 * kind + is_part);
    if (is_part) {
        seed[2] = 7;
        seed[5] = 1;
    }
    memcpy(seed + head, packed + skip, len - skip);
    *ret_size = head + len - skip;
    return seed;
}
