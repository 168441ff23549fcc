/* The pixels that one result of a resampled row or column is made of, and their weights. */
#ifndef ONEPOT_RESAMPLE_FILTER_H
#define ONEPOT_RESAMPLE_FILTER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "onepot.h"

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

#endif
