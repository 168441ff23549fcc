/*
 * Decompression of one block: the first byte names the codec, the second the room.
 */
#include <stdlib.h>
#include <string.h>

#include "block_packers.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t rooms[] = {0, 1, 100, 4096, 65536, 131072};
    struct codec_context *context;
    size_t len = 0;

    if (size < 2)
        return 0;
    enum codec codec = (enum codec)(data[0] % CODEC_COUNT);
    size_t room = rooms[data[1] % 6];
    if (codec_context_new(false, &context) < 0)
        return 0;
    uint8_t *block = malloc(room ? room : 1);
    if (!block)
        abort();
    for (int i = 0; i < 2; i++) /* the second time with what the first one left */
        if (codec_unpack(context, codec, data + 2, size - 2, block, room, &len) == 0 &&
            len > room)
            abort();
    free(block);
    codec_context_free(context);
    return 0;
}

/* Varints of one byte, of several, of ten and of too many; the second time they end in one. */
static uint8_t *int64_seed(unsigned number, size_t *ret_size)
{
    static const uint8_t list[] = {0,    1,    127,  0x80, 1,    0xff, 0xff, 3,    0xff, 0xff,
                                   0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,    0x80, 0x80,
                                   0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1};
    static const size_t lengths[] = {18, sizeof(list), 13};
    uint8_t *seed = malloc(2 + sizeof(list));
    if (!seed)
        abort();
    seed[0] = CODEC_INT64;
    seed[1] = 3;
    memcpy(seed + 2, list, lengths[number]);
    *ret_size = 2 + lengths[number];
    return seed;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static char text[5000];
    if (number >= (unsigned)PACKERS)
        return number < PACKERS + 3u ? int64_seed(number - PACKERS, ret_size) : NULL;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i >> 5);
    uint8_t *seed = malloc(2 + PACKED_MAX);
    if (!seed)
        abort();
    seed[0] = (uint8_t)packers[number].codec;
    seed[1] = 4;
    *ret_size = 2 + packers[number].pack(text, sizeof(text), seed + 2);
    return seed;
}
