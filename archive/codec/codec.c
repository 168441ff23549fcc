/*
 * A table with one decompressor for each codec, each a thin layer over its library, and the
 * registry of streams. Lengths are checked here, and every kind of bad block becomes -EUCLEAN.
 * A context keeps memory that the libraries would otherwise allocate for each block.
 */
#include "codec.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "protobuf.h"

#define ZSTD_STATIC_LINKING_ONLY /* for ZSTD_d_forceIgnoreChecksum */
#include <zstd.h>
#ifdef HAVE_ZLIB
#include <libdeflate.h>
#endif
#ifdef HAVE_LZO
#include <lzo/lzo1x.h>
#endif
#ifdef HAVE_LZ4
#include <lz4.h>
#endif
#ifdef HAVE_XZ
#include <lzma.h>
#endif
#ifdef HAVE_BZ2
#include <bzlib.h>
#endif

#include "bytes.h"
#include "numbers.h"
#include "stream.h"

/*
 * The largest dictionary that xz makes, and room for filters. Only addresses that content fills
 * are ever touched; a claim of 4 GiB is refused.
 */
#define XZ_MEMORY_LIMIT ((1536u + 16) << 20)
#define XZ_KEPT_BYTES (8u << 20)
/* In front of the stream of lzma in a zip: two bytes of version, the length of what follows. */
#define ZIP_LZMA_HEAD_BYTES 4u
#define LZMA_PROPERTIES_BYTES 5u

typedef int unpack_fn(struct codec_context *context, const void *packed, size_t packed_len,
                      void *block, size_t size, size_t *ret_len);

struct codec_context {
    ZSTD_DCtx *zstd;
    bool skip_sums;
    struct stream_memory *memory; /* NULL before the first part of a stream */
#ifdef HAVE_ZLIB
    struct libdeflate_decompressor *deflate;
#endif
#ifdef HAVE_XZ
    lzma_stream xz;
#endif
};

static int unpack_none(struct codec_context *context, const void *packed, size_t packed_len,
                       void *block, size_t size, size_t *ret_len)
{
    (void)context;
    if (packed_len > size)
        return -EUCLEAN;
    memcpy(block, packed, packed_len);
    *ret_len = packed_len;
    return 0;
}

static int unpack_zstd(struct codec_context *context, const void *packed, size_t packed_len,
                       void *block, size_t size, size_t *ret_len)
{
    if (!context->zstd) {
        context->zstd = ZSTD_createDCtx();
        if (!context->zstd)
            return -ENOMEM;
        if (context->skip_sums) /* a library without this parameter compares the sums */
            ZSTD_DCtx_setParameter(context->zstd, ZSTD_d_forceIgnoreChecksum,
                                   ZSTD_d_ignoreChecksum);
    }
    size_t n = ZSTD_decompressDCtx(context->zstd, block, size, packed, packed_len);
    if (ZSTD_isError(n))
        return -EUCLEAN;
    *ret_len = n;
    return 0;
}

#ifdef HAVE_ZLIB
typedef enum libdeflate_result deflate_fn(struct libdeflate_decompressor *, const void *,
                                          size_t, void *, size_t, size_t *);

static int unpack_with(deflate_fn *decompress, struct codec_context *context,
                       const void *packed, size_t packed_len, void *block, size_t size,
                       size_t *ret_len)
{
    if (!context->deflate)
        context->deflate = libdeflate_alloc_decompressor();
    if (!context->deflate)
        return -ENOMEM;
    enum libdeflate_result r =
        decompress(context->deflate, packed, packed_len, block, size, ret_len);
    return r == LIBDEFLATE_SUCCESS ? 0 : -EUCLEAN;
}

static int unpack_zlib(struct codec_context *context, const void *packed, size_t packed_len,
                       void *block, size_t size, size_t *ret_len)
{
    return unpack_with(libdeflate_zlib_decompress, context, packed, packed_len, block, size,
                       ret_len);
}

static int unpack_gzip(struct codec_context *context, const void *packed, size_t packed_len,
                       void *block, size_t size, size_t *ret_len)
{
    return unpack_with(libdeflate_gzip_decompress, context, packed, packed_len, block, size,
                       ret_len);
}

static int unpack_deflate(struct codec_context *context, const void *packed, size_t packed_len,
                          void *block, size_t size, size_t *ret_len)
{
    return unpack_with(libdeflate_deflate_decompress, context, packed, packed_len, block, size,
                       ret_len);
}
#else
#define unpack_zlib NULL
#define unpack_gzip NULL
#define unpack_deflate NULL
#endif

#ifdef HAVE_LZO
static int unpack_lzo(struct codec_context *context, const void *packed, size_t packed_len,
                      void *block, size_t size, size_t *ret_len)
{
    (void)context;
    lzo_uint len = size;
    if (lzo1x_decompress_safe(packed, packed_len, block, &len, NULL) != LZO_E_OK)
        return -EUCLEAN;
    *ret_len = len;
    return 0;
}
#else
#define unpack_lzo NULL
#endif

#ifdef HAVE_LZ4
static int unpack_lz4(struct codec_context *context, const void *packed, size_t packed_len,
                      void *block, size_t size, size_t *ret_len)
{
    (void)context;
    if (packed_len > INT_MAX || size > INT_MAX)
        return -EUCLEAN;
    int n = LZ4_decompress_safe(packed, block, (int)packed_len, (int)size);
    if (n < 0)
        return -EUCLEAN;
    *ret_len = (size_t)n;
    return 0;
}
#else
#define unpack_lz4 NULL
#endif

static int unpack_int64(struct codec_context *context, const void *packed, size_t packed_len,
                        void *block, size_t size, size_t *ret_len)
{
    uint64_t numbers;
    (void)context;
    return protobuf_int64_text(packed, packed_len, block, size, ret_len, &numbers);
}

#ifdef HAVE_XZ
static int unpack_xz_error(lzma_ret r)
{
    switch (r) {
    case LZMA_MEM_ERROR:
        return -ENOMEM;
    case LZMA_MEMLIMIT_ERROR:
    case LZMA_OPTIONS_ERROR: /* a filter that this liblzma lacks */
        return -ENOTSUP;
    default:
        return -EUCLEAN;
    }
}

/* Runs a decoder to the end of the input. */
static lzma_ret unpack_xz_all(lzma_stream *xz, const uint8_t *packed, size_t packed_len,
                              void *block, size_t size)
{
    xz->next_in = packed;
    xz->avail_in = packed_len;
    xz->next_out = block;
    xz->avail_out = size;
    return lzma_code(xz, LZMA_FINISH);
}

/* Restarting a decoder on a used lzma_stream keeps its memory. */
static int unpack_xz(struct codec_context *context, const void *packed, size_t packed_len,
                     void *block, size_t size, size_t *ret_len)
{
    if (lzma_stream_decoder(&context->xz, XZ_MEMORY_LIMIT, 0) != LZMA_OK)
        return -ENOMEM;
    lzma_ret r = unpack_xz_all(&context->xz, packed, packed_len, block, size);
    if (r != LZMA_STREAM_END)
        return unpack_xz_error(r);
    *ret_len = size - context->xz.avail_out;
    return 0;
}

/* Says how much came, whether or not a mark tells the end: zips have both kinds. */
static int unpack_zip_lzma(struct codec_context *context, const void *packed, size_t packed_len,
                           void *block, size_t size, size_t *ret_len)
{
    const uint8_t *head = packed, *properties = head + ZIP_LZMA_HEAD_BYTES;
    lzma_filter filters[] = {{.id = LZMA_FILTER_LZMA1}, {.id = LZMA_VLI_UNKNOWN}};
    if (packed_len < ZIP_LZMA_HEAD_BYTES + LZMA_PROPERTIES_BYTES ||
        bytes_le16(head + 2) != LZMA_PROPERTIES_BYTES ||
        lzma_properties_decode(filters, NULL, properties, LZMA_PROPERTIES_BYTES) != LZMA_OK)
        return -EUCLEAN;
    lzma_options_lzma *options = filters[0].options;
    if (options->dict_size > size) /* more is of no use, whatever was claimed */
        options->dict_size = size > LZMA_DICT_SIZE_MIN ? (uint32_t)size : LZMA_DICT_SIZE_MIN;
    lzma_ret r = lzma_raw_decoder(&context->xz, filters);
    free(options);
    if (r != LZMA_OK)
        return r == LZMA_MEM_ERROR ? -ENOMEM : -EUCLEAN;
    r = unpack_xz_all(&context->xz, properties + LZMA_PROPERTIES_BYTES,
                      packed_len - ZIP_LZMA_HEAD_BYTES - LZMA_PROPERTIES_BYTES, block, size);
    if (r != LZMA_STREAM_END && r != LZMA_OK && r != LZMA_BUF_ERROR)
        return r == LZMA_MEM_ERROR ? -ENOMEM : -EUCLEAN;
    *ret_len = size - context->xz.avail_out;
    return 0;
}
#else
#define unpack_xz NULL
#define unpack_zip_lzma NULL
#endif

#ifdef HAVE_BZ2
int bzip2_file_unpack(const uint8_t *packed, size_t packed_len, uint8_t *out, size_t room,
                      size_t *ret_len)
{
    unsigned len = room < UINT_MAX ? (unsigned)room : UINT_MAX;
    if (packed_len > UINT_MAX)
        return -EUCLEAN;
    switch (BZ2_bzBuffToBuffDecompress((char *)out, &len, (char *)(uintptr_t)packed,
                                       (unsigned)packed_len, 0, 0)) {
    case BZ_OK:
        *ret_len = len;
        return 0;
    case BZ_MEM_ERROR:
        return -ENOMEM;
    case BZ_OUTBUFF_FULL:
        return -ENOSPC;
    default:
        return -EUCLEAN;
    }
}

static int unpack_bzip2_file(struct codec_context *context, const void *packed,
                             size_t packed_len, void *block, size_t size, size_t *ret_len)
{
    (void)context;
    int r = bzip2_file_unpack(packed, packed_len, block, size, ret_len);
    return r == -ENOSPC ? -EUCLEAN : r;
}
#else
#define unpack_bzip2_file NULL
#endif

/*
 * Larger blocks are refused: each thread that decompresses one needs room and time for it. All
 * decoders take time in proportion to their input and output. The slowest rates found: zstd 130
 * MB/s (empty frames) and gzip 120 MB/s (empty blocks), which pack and tars have in large
 * frames; lzo 360 MB/s and xz 16 MB/s, which SquashFS has in blocks of 1 MiB. Tars and zips may
 * have xz, lzma and bzip2 in 64 MiB: four seconds. A block of bzip2 has 3 MB of input at most.
 */
#define LARGE CODEC_BLOCK_MAX
#define SMALL (1u << 20)

static const struct {
    const char *name;
    unpack_fn *unpack; /* NULL: not built in, or it has points: stream.h */
    uint32_t block_max;
} codecs[CODEC_COUNT] = {
    [CODEC_NONE] = {"none", unpack_none, LARGE},
    [CODEC_ZLIB] = {"gzip", unpack_zlib, SMALL},
    [CODEC_LZMA] = {"lzma", NULL, SMALL},
    [CODEC_LZO] = {"lzo", unpack_lzo, SMALL},
    [CODEC_XZ] = {"xz", unpack_xz, LARGE},
    [CODEC_LZ4] = {"lz4", unpack_lz4, SMALL},
    [CODEC_ZSTD] = {"zstd", unpack_zstd, LARGE},
    [CODEC_GZIP] = {"gzip members", unpack_gzip, LARGE},
    [CODEC_DEFLATE] = {"deflate", unpack_deflate, LARGE},
    [CODEC_INT64] = {"integers", unpack_int64, LARGE},
    [CODEC_DEFLATE_POINT] = {"deflate from points", NULL, LARGE},
    [CODEC_BZIP2] = {"bzip2 blocks", NULL, LARGE},
    [CODEC_XZ_BLOCK] = {"xz blocks", NULL, LARGE},
    [CODEC_BZIP2_FILE] = {"bzip2", unpack_bzip2_file, LARGE},
    [CODEC_ZIP_LZMA] = {"zip's lzma", unpack_zip_lzma, LARGE},
};

/* ---- streams ---- */

/*
 * Their registry. ONEPOT_STREAMS comes from archive/meson.build: STREAM(gzip) and so on, or
 * nothing.
 */
#define STREAM(name) extern const struct stream stream_##name;
ONEPOT_STREAMS
#undef STREAM

#define STREAM(name) &stream_##name,
static const struct stream *const stream_registry[] = {ONEPOT_STREAMS NULL};

static const struct stream *stream_of_codec(enum codec codec)
{
    for (size_t i = 0; stream_registry[i]; i++)
        if (stream_registry[i]->codec == codec)
            return stream_registry[i];
    return NULL;
}

static const struct stream *stream_of_name(const char *compression)
{
    for (size_t i = 0; stream_registry[i]; i++)
        if (strcmp(stream_registry[i]->name, compression) == 0)
            return stream_registry[i];
    return NULL;
}

int stream_scan_new(struct source *source, const char *compression, struct helpers *helpers,
                    struct stream_scan **ret_scan)
{
    const struct stream *stream = stream_of_name(compression);
    if (!stream)
        return -ENOTSUP;
    struct stream_scan *scan = calloc(1, stream->scan_bytes);
    if (!scan)
        return -ENOMEM;
    *scan = (struct stream_scan){
        .stream = stream, .name = stream->name, .source = source, .helpers = helpers};
    *ret_scan = scan;
    return 0;
}

int stream_scan_begin(struct stream_scan *scan, uint64_t offset, uint64_t end,
                      struct fault *fault)
{
    scan->start = scan->offset = offset;
    scan->end = min_u64(end, source_size(scan->source));
    return offset <= scan->end ? scan->stream->begin(scan, fault) : -EUCLEAN;
}

int stream_scan_next(struct stream_scan *scan, struct stream_buffer *buffer,
                     struct fault *fault, struct stream_part *ret_part)
{
    *ret_part = (struct stream_part){0};
    return scan->stream->next(scan, buffer, fault, ret_part);
}

void stream_scan_free(struct stream_scan *scan)
{
    if (!scan)
        return;
    scan->stream->end(scan);
    free(scan);
}

/* ---- blocks ---- */

bool codec_available(enum codec codec)
{
    return (unsigned)codec < CODEC_COUNT &&
           (codecs[codec].unpack || (codec_has_point(codec) && stream_of_codec(codec)));
}

const char *codec_name(enum codec codec)
{
    return (unsigned)codec < CODEC_COUNT ? codecs[codec].name : "unknown";
}

uint32_t codec_block_max(enum codec codec)
{
    return (unsigned)codec < CODEC_COUNT ? codecs[codec].block_max : 0;
}

int codec_context_new(bool skip_sums, struct codec_context **ret_context)
{
    struct codec_context *context = calloc(1, sizeof(*context));
    if (!context)
        return -ENOMEM;
    context->skip_sums = skip_sums;
#ifdef HAVE_XZ
    context->xz = (lzma_stream)LZMA_STREAM_INIT;
#endif
    *ret_context = context;
    return 0;
}

void codec_context_free(struct codec_context *context)
{
    if (!context)
        return;
    ZSTD_freeDCtx(context->zstd);
    if (context->memory)
        context->memory->free(context->memory);
#ifdef HAVE_ZLIB
    if (context->deflate)
        libdeflate_free_decompressor(context->deflate);
#endif
#ifdef HAVE_XZ
    lzma_end(&context->xz);
#endif
    free(context);
}

int codec_unpack(struct codec_context *context, enum codec codec, const void *packed,
                 size_t packed_len, void *block, size_t size, size_t *ret_len)
{
    if (!codec_available(codec))
        return -ENOTSUP;
    if (!codecs[codec].unpack) /* a part without its point: a damaged index */
        return -EUCLEAN;
    int r = codecs[codec].unpack(context, packed, packed_len, block, size, ret_len);
#ifdef HAVE_XZ
    /* A thread does not keep a large dictionary, outside of any budget. */
    if (size > SMALL || lzma_memusage(&context->xz) > XZ_KEPT_BYTES)
        lzma_end(&context->xz);
#endif
    return r;
}

int codec_unpack_part(struct codec_context *context, enum codec codec,
                      const struct block_point *point, const void *packed, size_t packed_len,
                      void *block, size_t size)
{
    const struct stream *stream = codec_has_point(codec) ? stream_of_codec(codec) : NULL;
    if (size == 0) /* no part is */
        return -EUCLEAN;
    int r = stream ? stream->unpack(&context->memory, point, packed, packed_len, block, size)
                   : -ENOTSUP;
    if (r == 0 && !context->skip_sums && XXH3_64bits(block, size) != point->sum)
        r = -EUCLEAN;
    return r;
}

/* Do the first `len` bytes of a block of `size` have its sums of pieces? */
static bool start_is_sound(const struct block_point *point, const uint8_t *start, size_t len,
                           size_t size)
{
    const size_t piece = point_piece_bytes((uint32_t)size);
    const uint8_t *sum = point->pieces;
    bool is_sound = len % piece == 0 && len <= size;
    for (size_t at = 0; is_sound && at < len; at += piece, sum += 4)
        is_sound = (uint32_t)XXH3_64bits(start + at, piece) == bytes_le32(sum);
    return is_sound;
}

int codec_unpack_start(struct codec_context *context, enum codec codec,
                       const struct block_point *point, const void *packed, size_t packed_len,
                       void *block, size_t len, size_t size)
{
    const struct stream *stream = codec_has_point(codec) ? stream_of_codec(codec) : NULL;
    if (!stream || !stream->unpack_start || !point->pieces || !size)
        return -ENOTSUP;
    int r = stream->unpack_start(&context->memory, point, packed, packed_len, block, len);
    return r == 0 && !start_is_sound(point, block, len, size) ? -EUCLEAN : r;
}
