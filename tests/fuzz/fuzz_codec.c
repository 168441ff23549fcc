/*
 * Decompression of one block: the first byte names the codec, the second the room.
 */
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "codec.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t rooms[] = {0, 1, 100, 4096, 65536, 131072};
    struct codec_context *context;
    size_t len = 0;

    if (size < 2)
        return 0;
    enum codec codec = (enum codec)(data[0] % 8);
    size_t room = rooms[data[1] % 6];
    if (codec_context_new(codec, &context) < 0)
        return 0;
    uint8_t *block = malloc(room ? room : 1);
    if (!block)
        abort();
    for (int i = 0; i < 2; i++) /* the second time with what the first one left */
        if (codec_unpack(context, data + 2, size - 2, block, room, &len) == 0 && len > room)
            abort();
    free(block);
    codec_context_free(context);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    /* "hello hello hello hello" and a newline, by the programs of these formats. */
    static const uint8_t zlib[] = {0x78, 0x9c, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x57, 0xc8,
                                   0x40, 0x27, 0xb8, 0x00, 0x7b, 0x09, 0x08, 0x9b};
    static const uint8_t lz4[] = {0x6f, 'h', 'e', 'l', 'l', 'o', ' ', 6, 0, 0, 0x10, '\n'};
    static const char text[5000] = "hello";
    static const uint8_t codecs[] = {CODEC_ZSTD, CODEC_ZLIB, CODEC_LZ4,
                                     CODEC_LZO,  CODEC_XZ,   CODEC_NONE};
    if (number >= sizeof(codecs))
        return NULL;
    uint8_t *seed = malloc(2 + ZSTD_compressBound(sizeof(text)));
    if (!seed)
        abort();
    seed[0] = codecs[number];
    seed[1] = 4;
    if (codecs[number] == CODEC_ZSTD) {
        *ret_size = 2 + ZSTD_compress(seed + 2, ZSTD_compressBound(sizeof(text)), text,
                                      sizeof(text), 3);
        return seed;
    }
    const uint8_t *bytes = codecs[number] == CODEC_ZLIB ? zlib : lz4;
    size_t len = codecs[number] == CODEC_ZLIB ? sizeof(zlib) : sizeof(lz4);
    memcpy(seed + 2, bytes, len);
    *ret_size = 2 + len;
    return seed;
}
