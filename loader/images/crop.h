/*
 * Which part of a picture becomes the image.
 */
#ifndef ONEPOT_LOADER_CROP_H
#define ONEPOT_LOADER_CROP_H

#include "images.h"
#include "resample.h"

struct crop {
    struct axis x, y; /* x is reversed if the picture is flipped */
};

/* For a picture of at least 1 by 1 pixel. */
void crop_plan(const struct onepot_images *o, const struct images_place *place, uint32_t width,
               uint32_t height, struct crop *ret_crop);

/*
 * How far a decoder may shrink the picture, 1, 2, 4 or 8 times, so that what is left of the
 * crop is not smaller than the result.
 */
unsigned crop_shrinks(const struct crop *crop);

/* The same crop of a picture that is so many times smaller, `width` by `height` now. */
void crop_shrink(struct crop *crop, unsigned times, uint32_t width, uint32_t height);

#endif
