/*
 * Bytes to floats on the host: what the kernels of a GPU are compared with, bit by bit. So
 * every step is one rounding in single precision; the half types are made from that by
 * integers, since not every compiler has them.
 */
#include <errno.h>
#include <string.h>

#include "device.h"
#include "error.h"

#define SIDE_MAX 65536u

int images_check(const struct onepot_images *images, struct onepot_error *error)
{
    if (images->channels < 1 || images->channels > 4)
        return error_set(error, -EINVAL, "images of %u channels; 1 to 4 are possible",
                         images->channels);
    if (images->height < 1 || images->width < 1 || images->height > SIDE_MAX ||
        images->width > SIDE_MAX)
        return error_set(error, -EINVAL, "images of %u by %u pixels", images->height,
                         images->width);
    if (images->type < ONEPOT_FLOAT || images->type > ONEPOT_BFLOAT16)
        return error_set(error, -EINVAL, "no such type of float: %d", (int)images->type);
    return 0;
}

uint64_t images_bytes_of_one(const struct onepot_images *images)
{
    return (uint64_t)images->height * images->width * images->channels;
}

uint64_t images_bytes_of_floats(const struct onepot_images *images)
{
    return images_bytes_of_one(images) * (images->type == ONEPOT_FLOAT ? 4 : 2);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* x / 2^n, to nearest, ties to even. */
static uint32_t shift_round(uint32_t x, unsigned n)
{
    uint32_t half = UINT32_C(1) << (n - 1), rest = x & ((half << 1) - 1);
    x >>= n;
    return x + (rest > half || (rest == half && x & 1));
}

static uint16_t to_half(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) /* no number */
        return 0x7fff;
    if (rest >= 0x477ff000) /* 65520 and more, which rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (rest >= 0x38800000) /* 2^-14: a carry goes into the exponent, as it should */
        return (uint16_t)(sign | (shift_round(rest, 13) - (112u << 10)));
    if (rest < 0x33000000) /* below half of the least, 2^-24 */
        return (uint16_t)sign;
    uint32_t mantissa = (rest & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | shift_round(mantissa, 126 - (rest >> 23)));
}

static uint16_t to_bfloat16(float x)
{
    uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (uint16_t)shift_round(bits, 16);
}

/* Of one byte in one channel. */
static void convert_one(const struct onepot_images *images, uint32_t channel, uint8_t byte,
                        void *to, uint64_t at)
{
    float x = ((float)byte - images->mean[channel]) * images->scale[channel];
    if (images->type == ONEPOT_FLOAT)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = images->type == ONEPOT_HALF ? to_half(x) : to_bfloat16(x);
}

void images_convert(const struct onepot_images *images, uint64_t count, const uint8_t *from,
                    void *to)
{
    uint64_t pixels = (uint64_t)images->height * images->width, at = 0;
    for (uint64_t n = 0; n < count; n++) {
        for (uint32_t c = 0; c < images->channels; c++)
            for (uint64_t p = 0; p < pixels; p++)
                convert_one(images, c, from[p * images->channels + c], to, at++);
        from += pixels * images->channels;
    }
}
