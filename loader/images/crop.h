/*
 * Which part of a picture becomes the image, and how its pixels become others.
 */
#ifndef ONEPOT_LOADER_CROP_H
#define ONEPOT_LOADER_CROP_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "images.h"
#include "onepot.h"

/* ---- filters ---- */

/* The pixels that one result of a resampled row or column is made of, and their weights. */

#define FILTER_BITS 14
#define FILTER_ONE (1 << FILTER_BITS) /* the sum of all weights of a result */
#define FILTER_IN_BITS 7              /* a byte becomes a value by so many bits more, */
#define FILTER_OUT_BITS 5             /* and after two passes has so many */
#define FILTER_FEW 32u                /* with more, sums have 32 bits */

/* A direction: result i is centred at start + (i + 1/2) * step of the source's pixels. */
struct axis {
    double start, step;
    uint32_t low, high; /* pixels of the source that may take part: [low, high) */
    uint32_t count;     /* results */
    bool reversed;      /* the last result comes first */
};

/* The pixels of the source that one result is made of. */
struct filter_span {
    uint32_t first, number;
};

/* A triangle, or Keys' cubic with a = -1/2, as in PIL. */
static inline double filter_at(enum onepot_interpolation interpolation, double x)
{
    x = fabs(x);
    if (interpolation == ONEPOT_NEAREST)
        return 1;
    if (interpolation != ONEPOT_BICUBIC)
        return x < 1 ? 1 - x : 0;
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static inline double filter_support(const struct axis *a,
                                    enum onepot_interpolation interpolation)
{
    double support = interpolation == ONEPOT_BICUBIC ? 2 : 1;
    if (interpolation == ONEPOT_NEAREST)
        return support;
    return a->step > 1 ? support * a->step : support;
}

/* Weights of one result: an even number, so that they are taken two at a time. */
static inline uint64_t filter_most(const struct axis *a,
                                   enum onepot_interpolation interpolation)
{
    uint64_t most = 2 * (uint64_t)ceil(filter_support(a, interpolation)) + 1;
    uint64_t there = a->high - a->low;
    return ((most < there ? most : there) + 1) & ~UINT64_C(1);
}

/* The pixels that take part in a result centred there; at least one. */
static inline struct filter_span filter_range(const struct axis *a, double centre,
                                              double support)
{
    double from = floor(centre - support + 0.5), to = floor(centre + support + 0.5);
    uint32_t low = from > a->low ? (uint32_t)from : a->low;
    low = low < a->high - 1 ? low : a->high - 1;
    uint32_t high = to < a->high ? (uint32_t)(to > 0 ? to : 0) : a->high;
    struct filter_span span = {low, high > low ? high - low : 1};
    return span;
}

static inline int32_t filter_rounded(double x)
{
    return (int32_t)(x + 0.5 + 4 * FILTER_ONE) - 4 * FILTER_ONE;
}

/*
 * The pixels of result i, and their weights in `weights`, of which there are `most`: zeros
 * beyond the number of pixels. They are rounded so that their sums from the first one on are:
 * all together are FILTER_ONE, and where each is less than one part some of them stand for all.
 */
static inline struct filter_span filter_one(const struct axis *a, uint32_t i,
                                            enum onepot_interpolation interpolation,
                                            uint64_t most, int16_t *weights)
{
    double support = filter_support(a, interpolation), centre = a->start + (i + 0.5) * a->step;
    double narrowed = a->step > 1 ? 1 / a->step : 1, sum = 0, part = 0;
    struct filter_span span = filter_range(a, centre, support);
    int32_t before = 0;
    if (interpolation == ONEPOT_NEAREST) { /* as PIL: the pixel in which the centre lies */
        span = filter_range(a, floor(centre) + 0.5, 0.5);
        span.number = 1;
    }
    span.number = span.number < most ? span.number : (uint32_t)most;
    for (uint32_t n = 0; n < span.number; n++)
        sum += filter_at(interpolation, (span.first + n + 0.5 - centre) * narrowed);
    double scale = sum != 0 ? FILTER_ONE / sum : 0;
    span.number = sum != 0 ? span.number : 1;
    for (uint32_t n = 0; n < span.number; n++) {
        part += filter_at(interpolation, (span.first + n + 0.5 - centre) * narrowed) * scale;
        int32_t now = n + 1 < span.number ? filter_rounded(part) : FILTER_ONE;
        weights[n] = (int16_t)(now - before);
        before = now;
    }
    for (uint32_t n = span.number; n < most; n++)
        weights[n] = 0;
    return span;
}

/* ---- resampling ---- */

/*
 * Resamples rows of pixels as PIL does with its antialiased filters: a filter's support grows
 * with the step where the picture shrinks. The vertical pass comes first, row by row as the
 * source's rows come, so that only as many rows are held as one row of the result needs.
 * Values and weights are whole numbers of 16 bits, and results the same on all CPUs.
 */

/* The weights of each result of an axis, parts of 2^14, which is their sum. */
struct filter {
    uint32_t count;
    uint32_t most;       /* places for the weights of each; beyond `number` they are 0 */
    uint32_t widest;     /* the largest `number`, and one more if that is odd */
    uint32_t begin, end; /* pixels of the source that take part: [begin, end) */
    const struct filter_span *spans; /* [count]; of x four at a time */
    /* [count][most]; x has two results at a time, [count / 2][most / 2][2][2][4]: two
     * weights of one result, for four channels, and two of the other. */
    const int16_t *weights;
};

struct resample {
    struct filter x, y;
    const struct resample_loops *loops;
    /* [y.most] rows of the source, four channels: x.end - x.begin pixels each. */
    int16_t *rows;
    int16_t *line; /* a row after the vertical pass */
    size_t line_values;
    uint8_t *row;   /* [x.count][4]: a row of the result */
    uint32_t given; /* rows of the source so far, from y.begin on */
    uint32_t made;  /* rows of the result so far */
};

/* Bytes that resample_begin needs, or 0: more than is allowed for one picture. */
size_t resample_bytes(const struct axis *x, const struct axis *y,
                      enum onepot_interpolation interpolation);
void resample_begin(struct resample *r, const struct axis *x, const struct axis *y,
                    enum onepot_interpolation interpolation, void *memory);

/* The next row of the source: pixels of four bytes, from pixel x.begin on. */
void resample_give(struct resample *r, const uint8_t *pixels);

/* The next row of the result in r->row. False: rows of the source have to be given first. */
bool resample_take(struct resample *r);

/* ---- cropping ---- */

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
