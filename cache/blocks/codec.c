/*
 * A table with one decompressor for each codec, each a thin layer over its library. Lengths are
 * checked here, and every kind of bad block becomes -EUCLEAN. A context keeps memory that its
 * library would otherwise allocate for each block.
 */
#include "codec.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/*
 * A block of at most 1 MiB needs a dictionary of no more than that; the filters and the decoder
 * itself take little. A stream that claims to need more is not honest.
 */
#define XZ_MEMORY_LIMIT (16u << 20)

typedef int unpack_fn(struct codec_context *context, const void *packed, size_t packed_len,
                      void *block, size_t size, size_t *ret_len);

struct codec_context {
    unpack_fn *unpack;
    enum codec codec;
    union {
        ZSTD_DCtx *zstd;
#ifdef HAVE_ZLIB
        struct libdeflate_decompressor *deflate;
#endif
#ifdef HAVE_XZ
        lzma_stream xz;
#endif
    } state;
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
    size_t n = ZSTD_decompressDCtx(context->state.zstd, block, size, packed, packed_len);
    if (ZSTD_isError(n))
        return -EUCLEAN;
    *ret_len = n;
    return 0;
}

#ifdef HAVE_ZLIB
static int unpack_zlib(struct codec_context *context, const void *packed, size_t packed_len,
                       void *block, size_t size, size_t *ret_len)
{
    enum libdeflate_result r = libdeflate_zlib_decompress(context->state.deflate, packed,
                                                          packed_len, block, size, ret_len);
    return r == LIBDEFLATE_SUCCESS ? 0 : -EUCLEAN;
}

static int unpack_gzip(struct codec_context *context, const void *packed, size_t packed_len,
                       void *block, size_t size, size_t *ret_len)
{
    enum libdeflate_result r = libdeflate_gzip_decompress(context->state.deflate, packed,
                                                          packed_len, block, size, ret_len);
    return r == LIBDEFLATE_SUCCESS ? 0 : -EUCLEAN;
}
#else
#define unpack_zlib NULL
#define unpack_gzip NULL
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

#ifdef HAVE_XZ
/* Restarting a decoder on a used lzma_stream keeps its memory. */
static int unpack_xz(struct codec_context *context, const void *packed, size_t packed_len,
                     void *block, size_t size, size_t *ret_len)
{
    lzma_stream *xz = &context->state.xz;
    lzma_ret r = lzma_stream_decoder(xz, XZ_MEMORY_LIMIT, 0);
    if (r != LZMA_OK)
        return -ENOMEM;
    xz->next_in = packed;
    xz->avail_in = packed_len;
    xz->next_out = block;
    xz->avail_out = size;
    r = lzma_code(xz, LZMA_FINISH);
    if (r != LZMA_STREAM_END)
        return r == LZMA_MEM_ERROR ? -ENOMEM : -EUCLEAN;
    *ret_len = size - xz->avail_out;
    return 0;
}
#else
#define unpack_xz NULL
#endif

static const struct {
    const char *name;
    unpack_fn *unpack; /* NULL: not built in */
} codecs[] = {
    [CODEC_NONE] = {"none", unpack_none}, [CODEC_ZLIB] = {"gzip", unpack_zlib},
    [CODEC_LZMA] = {"lzma", NULL},        [CODEC_LZO] = {"lzo", unpack_lzo},
    [CODEC_XZ] = {"xz", unpack_xz},       [CODEC_LZ4] = {"lz4", unpack_lz4},
    [CODEC_ZSTD] = {"zstd", unpack_zstd}, [CODEC_GZIP] = {"gzip members", unpack_gzip},
};

static bool known(enum codec codec)
{
    return (unsigned)codec < sizeof(codecs) / sizeof(*codecs);
}

bool codec_available(enum codec codec)
{
    return known(codec) && codecs[codec].unpack;
}

const char *codec_name(enum codec codec)
{
    return known(codec) ? codecs[codec].name : "unknown";
}

int codec_context_new(enum codec codec, struct codec_context **ret_context)
{
    if (!codec_available(codec))
        return -ENOTSUP;
    struct codec_context *context = calloc(1, sizeof(*context));
    if (!context)
        return -ENOMEM;
    context->codec = codec;
    context->unpack = codecs[codec].unpack;
    bool ready = true;
    if (codec == CODEC_ZSTD)
        ready = (context->state.zstd = ZSTD_createDCtx()) != NULL;
#ifdef HAVE_ZLIB
    if (codec == CODEC_ZLIB || codec == CODEC_GZIP)
        ready = (context->state.deflate = libdeflate_alloc_decompressor()) != NULL;
#endif
#ifdef HAVE_XZ
    if (codec == CODEC_XZ)
        context->state.xz = (lzma_stream)LZMA_STREAM_INIT;
#endif
    if (!ready) {
        free(context);
        return -ENOMEM;
    }
    *ret_context = context;
    return 0;
}

void codec_context_free(struct codec_context *context)
{
    if (!context)
        return;
    if (context->codec == CODEC_ZSTD)
        ZSTD_freeDCtx(context->state.zstd);
#ifdef HAVE_ZLIB
    if (context->codec == CODEC_ZLIB || context->codec == CODEC_GZIP)
        libdeflate_free_decompressor(context->state.deflate);
#endif
#ifdef HAVE_XZ
    if (context->codec == CODEC_XZ)
        lzma_end(&context->state.xz);
#endif
    free(context);
}

void codec_context_skip_sums(struct codec_context *context)
{
    if (context->codec == CODEC_ZSTD) /* a library without this parameter compares the sums */
        ZSTD_DCtx_setParameter(context->state.zstd, ZSTD_d_forceIgnoreChecksum,
                               ZSTD_d_ignoreChecksum);
}

int codec_unpack(struct codec_context *context, const void *packed, size_t packed_len,
                 void *block, size_t size, size_t *ret_len)
{
    return context->unpack(context, packed, packed_len, block, size, ret_len);
}
