/*
 * A tar in frames: finding zstd frames, members of gzip, and blocks of bzip2 and xz, and
 * leading to them. The first byte of an input says which.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#ifdef HAVE_BZ2
#include <bzlib.h>
#endif
#ifdef HAVE_XZ
#include <lzma.h>
#endif

#include "backend.h"
#include "format_numbers.h"
#include "fuzz.h"

#define FRAMES 3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    static const char *const compressions[] = {"zstd", "gzip", "bzip2", "xz"};
    const char *compression = compressions[data[0] % 4];
    struct source *source = fuzz_source(data + 1, size - 1);
    struct builder_header header = {
        .format = FORMAT_TAR, .archive_bytes = size - 1, .ignores_zeros = size & 1};
    struct progress progress = {0};
    struct fault fault = {0};
    struct builder *builder;

    if (builder_new(&builder) < 0)
        abort();
    builder_set_archive_size(builder, size - 1);
    int r = backend_tar.stream->index_packed(source, compression, NULL, NULL, builder, &header,
                                             &progress, &fault);
    if (r == 0)
        fuzz_walk_built(builder, &header);
    else
        require(fault.err || r == -ENOTSUP || r == -ENOMEM);
    builder_free(builder);
    source_close(source);
    return 0;
}

/* Frames of a tar, with one that is skipped between them; without sums, which catch all. */
static uint8_t *zstd_seed(const uint8_t *tar, size_t tar_len, size_t *ret_size)
{
    static const uint8_t skipped[] = {0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3};
    size_t room = FRAMES * ZSTD_compressBound(tar_len) + sizeof(skipped) + 1, at = 1;
    uint8_t *seed = malloc(room);
    if (!seed)
        abort();
    seed[0] = 0;
    for (unsigned i = 0; i < FRAMES; i++) {
        size_t from = tar_len * i / FRAMES, to = tar_len * (i + 1) / FRAMES;
        at += ZSTD_compress(seed + at, room - at, tar + from, to - from, 3);
        if (i == 0) {
            memcpy(seed + at, skipped, sizeof(skipped));
            at += sizeof(skipped);
        }
    }
    *ret_size = at;
    return seed;
}

/* Two members of gzip, each a stored block of zeros: a tar of nothing. */
static uint8_t *gzip_seed(size_t *ret_size)
{
    enum { BYTES = 1024, MEMBER = 10 + 5 + BYTES + 8 };
    static const uint8_t head[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1, 0, 4, 0xff, 0xfb};
    static const uint8_t tail[] = {0xc6, 0x9e, 0xb5, 0xef, 0, 4, 0, 0}; /* sum, length */
    uint8_t *seed = calloc(1, 1 + 2 * MEMBER);
    if (!seed)
        abort();
    seed[0] = 1;
    for (unsigned i = 0; i < 2; i++) {
        uint8_t *member = seed + 1 + i * (size_t)MEMBER;
        memcpy(member, head, sizeof(head));
        memcpy(member + MEMBER - sizeof(tail), tail, sizeof(tail));
    }
    *ret_size = 1 + 2 * (size_t)MEMBER;
    return seed;
}

/* Two streams of bzip2 or xz. Without the library, one byte. */
static uint8_t *bzip2_seed(uint8_t *tar, size_t tar_len, size_t *ret_size)
{
    uint8_t *seed = malloc(2 * tar_len + 1000);
    size_t at = 1;
    if (!seed)
        abort();
    seed[0] = 2;
#ifdef HAVE_BZ2
    for (unsigned i = 0; i < 2; i++) {
        size_t from = tar_len * i / 2, to = tar_len * (i + 1) / 2;
        unsigned room = (unsigned)(2 * tar_len + 1000 - at);
        require(BZ2_bzBuffToBuffCompress((char *)seed + at, &room, (char *)tar + from,
                                         (unsigned)(to - from), 1, 0, 0) == BZ_OK);
        at += room;
    }
#else
    (void)tar;
#endif
    *ret_size = at;
    return seed;
}

static uint8_t *xz_seed(const uint8_t *tar, size_t tar_len, size_t *ret_size)
{
    uint8_t *seed = malloc(2 * tar_len + 1000);
    size_t at = 1;
    if (!seed)
        abort();
    seed[0] = 3;
#ifdef HAVE_XZ
    for (unsigned i = 0; i < 2; i++) {
        size_t from = tar_len * i / 2, to = tar_len * (i + 1) / 2;
        require(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, NULL, tar + from, to - from, seed,
                                        &at, 2 * tar_len + 1000) == LZMA_OK);
    }
#else
    (void)tar;
#endif
    *ret_size = at;
    return seed;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static const char *const formats[] = {"pax", "gnutar"};
    size_t tar_len;
    if (number == 2)
        return gzip_seed(ret_size);
    if (number > 4)
        return NULL;
    uint8_t *tar = fuzz_make_tar(formats[number % 2], &tar_len);
    uint8_t *seed = number < 2    ? zstd_seed(tar, tar_len, ret_size)
                    : number == 3 ? bzip2_seed(tar, tar_len, ret_size)
                                  : xz_seed(tar, tar_len, ret_size);
    free(tar);
    return seed;
}
