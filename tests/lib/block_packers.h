/*
 * One packer for each codec that is built in: a whole block, by the codec's own library. For
 * tests of what unpacks. 0 bytes: it failed.
 */
#ifndef ONEPOT_BLOCK_PACKERS_H
#define ONEPOT_BLOCK_PACKERS_H

#include <stdlib.h>
#include <string.h>

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

#include "codec.h"

#define PACKED_MAX (2u * 131072u) /* room that each of them is given */

static size_t pack_zstd(const void *in, size_t len, void *out)
{
    return ZSTD_compress(out, PACKED_MAX, in, len, 3);
}

#ifdef HAVE_ZLIB
static size_t pack_zlib(const void *in, size_t len, void *out)
{
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_zlib_compress(c, in, len, out, PACKED_MAX);
    libdeflate_free_compressor(c);
    return n;
}

static size_t pack_gzip(const void *in, size_t len, void *out)
{
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_gzip_compress(c, in, len, out, PACKED_MAX);
    libdeflate_free_compressor(c);
    return n;
}

static size_t pack_deflate(const void *in, size_t len, void *out)
{
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_deflate_compress(c, in, len, out, PACKED_MAX);
    libdeflate_free_compressor(c);
    return n;
}
#endif

#ifdef HAVE_LZO
static size_t pack_lzo(const void *in, size_t len, void *out)
{
    void *work = malloc(LZO1X_1_MEM_COMPRESS);
    lzo_uint n = PACKED_MAX;
    if (!work || lzo1x_1_compress(in, len, out, &n, work) != LZO_E_OK)
        n = 0;
    free(work);
    return n;
}
#endif

#ifdef HAVE_LZ4
static size_t pack_lz4(const void *in, size_t len, void *out)
{
    return (size_t)LZ4_compress_default(in, out, (int)len, PACKED_MAX);
}
#endif

#ifdef HAVE_XZ
static size_t pack_xz_with(const void *in, size_t len, void *out, lzma_filter *filters)
{
    size_t n = 0;
    bool done = lzma_stream_buffer_encode(filters, LZMA_CHECK_CRC32, NULL, in, len, out, &n,
                                          PACKED_MAX) == LZMA_OK;
    return done ? n : 0;
}

static size_t pack_xz(const void *in, size_t len, void *out)
{
    lzma_options_lzma options;
    lzma_lzma_preset(&options, 6);
    options.dict_size = 1u << 20;
    lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, NULL}};
    return pack_xz_with(in, len, out, filters);
}

/* As a zip has it, by a filter that marks the stream's end or does not. */
static size_t pack_zip_lzma_with(const void *in, size_t len, uint8_t *out, lzma_vli id)
{
    lzma_options_lzma options;
    lzma_lzma_preset(&options, 6);
#ifdef LZMA_FILTER_LZMA1EXT
    options.ext_flags = 0; /* no mark */
    lzma_set_ext_size(options, len);
#endif
    lzma_filter named = {LZMA_FILTER_LZMA1, &options};
    lzma_filter filters[] = {{id, &options}, {LZMA_VLI_UNKNOWN, NULL}};
    size_t n = 9;
    memcpy(out, "\x13\x00\x05\x00", 4);
    bool done = lzma_properties_encode(&named, out + 4) == LZMA_OK &&
                lzma_raw_buffer_encode(filters, NULL, in, len, out, &n, PACKED_MAX) == LZMA_OK;
    return done ? n : 0;
}

static size_t pack_zip_lzma(const void *in, size_t len, void *out)
{
    return pack_zip_lzma_with(in, len, out, LZMA_FILTER_LZMA1);
}
#endif

#ifdef HAVE_BZ2
static size_t pack_bzip2(const void *in, size_t len, void *out)
{
    unsigned n = PACKED_MAX;
    bool done = BZ2_bzBuffToBuffCompress(out, &n, (char *)(uintptr_t)in, (unsigned)len, 9, 0,
                                         0) == BZ_OK;
    return done ? n : 0;
}
#endif

static const struct {
    enum codec codec;
    size_t (*pack)(const void *in, size_t len, void *out);
} packers[] = {
    {CODEC_ZSTD, pack_zstd},
#ifdef HAVE_ZLIB
    {CODEC_ZLIB, pack_zlib},
    {CODEC_GZIP, pack_gzip},
    {CODEC_DEFLATE, pack_deflate},
#endif
#ifdef HAVE_LZO
    {CODEC_LZO, pack_lzo},
#endif
#ifdef HAVE_LZ4
    {CODEC_LZ4, pack_lz4},
#endif
#ifdef HAVE_XZ
    {CODEC_XZ, pack_xz},
    {CODEC_ZIP_LZMA, pack_zip_lzma},
#endif
#ifdef HAVE_BZ2
    {CODEC_BZIP2_FILE, pack_bzip2},
#endif
};
#define PACKERS ((int)(sizeof(packers) / sizeof(*packers)))

#endif
