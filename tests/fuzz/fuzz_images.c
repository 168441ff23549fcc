/*
 * Pictures: JPEG, PNG, .npy and raw pixels, with options that the first byte chooses. What
 * comes out is decoded once more into memory with other content, and must be the same.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "images.h"
#include "pictures.h"

#define SIDE 16u

static int decode(const struct images_plan *plan, const uint8_t *data, size_t size,
                  uint8_t *image)
{
    static const struct images_place place = {1, 2, 3};
    struct images_scratch scratch = {0};
    char why[IMAGES_WHY_MAX] = "";
    int r = images_decode(plan, &scratch, &place, data, size, image, why);
    require(r == 0 || r == -EILSEQ || r == -ENOTSUP || r == -ENOMEM);
    require(r == 0 || *why);
    free(scratch.memory);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t first[SIDE * SIDE * 3 * 4], second[SIDE * SIDE * 3 * 4];
    struct images_plan plan;
    if (size == 0)
        return 0;
    struct onepot_images o = {.size = sizeof(o),
                              .width = SIDE,
                              .height = SIDE,
                              .crop = (enum onepot_crop)(data[0] % 3),
                              .interpolation =
                                  data[0] / 128 ? ONEPOT_NEAREST
                                                : (enum onepot_interpolation)(data[0] / 4 % 2),
                              .exact = data[0] / 8 % 2,
                              .type = (enum onepot_float)(data[0] / 16 % 4),
                              .channels_last = data[0] / 64 % 2,
                              .raw_width = 5,
                              .raw_height = 4,
                              .raw_channels = 3};
    require(images_plan(&o, NULL, &plan) == 0 && plan.bytes <= sizeof(first));
    memset(first, 0, sizeof(first));
    memset(second, 0xff, sizeof(second));
    int r = decode(&plan, data + 1, size - 1, first);
    require(decode(&plan, data + 1, size - 1, second) == r);
    require(r < 0 || memcmp(first, second, plan.bytes) == 0);
    return 0;
}

static struct bytes picture(unsigned number)
{
#ifdef ONEPOT_JPEG
    static const struct jpeg_kind jpeg[] = {{JCS_RGB, 90, 0, 0},
                                            {JCS_RGB, 60, 1, 0},
                                            {JCS_GRAYSCALE, 80, 0, 1},
                                            {JCS_CMYK, 50, 0, 0}};
    if (number < 4)
        return picture_jpeg(70, 50, jpeg[number]);
#endif
#ifdef ONEPOT_PNG
    static const struct png_kind png[] = {{PNG_COLOR_TYPE_RGB, 8, 0},
                                          {PNG_COLOR_TYPE_RGB_ALPHA, 16, 1},
                                          {PNG_COLOR_TYPE_PALETTE, 4, 0},
                                          {PNG_COLOR_TYPE_GRAY, 1, 1}};
    if (number >= 4 && number < 8)
        return picture_png(33, 21, png[number - 4]);
#endif
    return picture_npy(20 + number, 10, 3);
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    if (number > 8)
        return NULL;
    struct bytes file = picture(number);
    uint8_t *seed = malloc(file.len + 1);
    seed[0] = (uint8_t)(number * 37);
    memcpy(seed + 1, file.data, file.len);
    *ret_size = file.len + 1;
    free(file.data);
    return seed;
}
