/*
 * Which part of a picture becomes the image.
 */
#ifndef ONEPOT_LOADER_CROP_H
#define ONEPOT_LOADER_CROP_H

#include "images.h"
#include "resample.h"

struct crop {
    struct axis x, y; /* x is reversed if the picture is flipped */
    unsigned spare;   /* pixels that a decoder leaves for each of the result, at least */
};

/* For a picture of at least 1 by 1 pixel. */
void crop_plan(const struct onepot_images *o, const struct images_place *place, uint32_t width,
               uint32_t height, struct crop *ret_crop);

/*
 * How far a decoder may shrink the picture, 1, 2, 4 or 8 times, so that the crop stays `spare`
 * times the result's size, or more. A decoder averages blocks of pixels, whose borders show in
 * a result that is only a little smaller. A random crop varies anyway: 1. Where the image is to
 * equal an exact decoder's it is 3, for a mean difference below 2 of 255 (bench/RESULTS.md,
 * Pictures).
 */
unsigned crop_shrinks(const struct crop *crop);

/* The same crop of a picture that is so many times smaller, `width` by `height` now. */
void crop_shrink(struct crop *crop, unsigned times, uint32_t width, uint32_t height);

#endif
