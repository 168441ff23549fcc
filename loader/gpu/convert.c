/*
 * Converts images of bytes to images of floats on the host. Tests compare the kernels of a GPU
 * with it, bit by bit.
 */
#include <errno.h>

#include "device.h"
#include "error.h"
#include "convert_round.h"

#define SIDE_MAX 65536u

int convert_check(const struct onepot_conversion *images, struct onepot_error *error)
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

uint64_t convert_bytes_of_one(const struct onepot_conversion *images)
{
    return (uint64_t)images->height * images->width * images->channels;
}

uint64_t convert_bytes_of_floats(const struct onepot_conversion *images)
{
    return convert_bytes_of_one(images) * (images->type == ONEPOT_FLOAT ? 4 : 2);
}

/* Convert one byte of one channel. */
static void convert_one(const struct onepot_conversion *images, uint32_t channel, uint8_t byte,
                        void *to, uint64_t at)
{
    float x = convert_scale(byte, images->mean[channel], images->scale[channel]);
    if (images->type == ONEPOT_FLOAT)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] =
            images->type == ONEPOT_HALF ? convert_half(x) : convert_bfloat16(x);
}

void convert_host(const struct onepot_conversion *images, uint64_t count, const uint8_t *from,
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
