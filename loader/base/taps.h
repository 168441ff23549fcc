/*
 * Which pixels one result of a resampled row or column is made of, and with what weights. The
 * compilers of the host and of GPUs use the same functions, so that both make the same sums.
 */
#ifndef ONEPOT_TAPS_H
#define ONEPOT_TAPS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "onepot.h"

#ifdef __CUDACC__
#define TAPS_FUNCTION static __host__ __device__ __forceinline__
#else
#define TAPS_FUNCTION static inline
#endif

#define TAPS_BITS 14
#define TAPS_ONE (1 << TAPS_BITS) /* the sum of all weights of a result */
#define TAPS_IN_BITS 7            /* a byte becomes a value by so many bits more, */
#define TAPS_OUT_BITS 5           /* and after two passes has so many */
#define TAPS_FEW 32u              /* with more, sums have 32 bits */

/* A direction: result i is centred at start + (i + 1/2) * step of the source's pixels. */
struct axis {
    double start, step;
    uint32_t low, high; /* pixels of the source that may take part: [low, high) */
    uint32_t count;     /* results */
    bool reversed;      /* the last result comes first */
};

/* The pixels of the source that one result is made of. */
struct taps_span {
    uint32_t first, number;
};

/* A triangle, or Keys' cubic with a = -1/2, as in PIL. */
TAPS_FUNCTION double taps_filter(enum onepot_interpolation interpolation, double x)
{
    x = fabs(x);
    if (interpolation != ONEPOT_BICUBIC)
        return x < 1 ? 1 - x : 0;
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

TAPS_FUNCTION double taps_support(const struct axis *a, enum onepot_interpolation interpolation)
{
    double support = interpolation == ONEPOT_BICUBIC ? 2 : 1;
    return a->step > 1 ? support * a->step : support;
}

/* Weights of one result: an even number, so that they are taken two at a time. */
TAPS_FUNCTION uint64_t taps_most(const struct axis *a, enum onepot_interpolation interpolation)
{
    uint64_t most = 2 * (uint64_t)ceil(taps_support(a, interpolation)) + 1;
    uint64_t there = a->high - a->low;
    return ((most < there ? most : there) + 1) & ~UINT64_C(1);
}

/* The pixels that take part in a result centred there; at least one. */
TAPS_FUNCTION struct taps_span taps_range(const struct axis *a, double centre, double support)
{
    double from = floor(centre - support + 0.5), to = floor(centre + support + 0.5);
    uint32_t low = from > a->low ? (uint32_t)from : a->low;
    low = low < a->high - 1 ? low : a->high - 1;
    uint32_t high = to < a->high ? (uint32_t)(to > 0 ? to : 0) : a->high;
    struct taps_span span = {low, high > low ? high - low : 1};
    return span;
}

/* The most pixels that a result of the axis has, and one more if that is odd. */
TAPS_FUNCTION uint32_t taps_widest(const struct axis *a,
                                   enum onepot_interpolation interpolation)
{
    double support = taps_support(a, interpolation);
    uint32_t widest = 0;
    for (uint32_t i = 0; i < a->count; i++) {
        struct taps_span span = taps_range(a, a->start + (i + 0.5) * a->step, support);
        widest = span.number > widest ? span.number : widest;
    }
    return (widest + 1) & ~1u;
}

TAPS_FUNCTION int32_t taps_rounded(double x)
{
    return (int32_t)(x + 0.5 + 4 * TAPS_ONE) - 4 * TAPS_ONE;
}

/*
 * The pixels of result i, and their weights in `weights`, of which there are `most`: zeros
 * beyond the number of pixels. They are rounded so that their sums from the first one on are:
 * all together are TAPS_ONE, and where each is less than one part some of them stand for all.
 */
TAPS_FUNCTION struct taps_span taps_one(const struct axis *a, uint32_t i,
                                        enum onepot_interpolation interpolation, uint64_t most,
                                        int16_t *weights)
{
    double support = taps_support(a, interpolation), centre = a->start + (i + 0.5) * a->step;
    double narrowed = a->step > 1 ? 1 / a->step : 1, sum = 0, part = 0;
    struct taps_span span = taps_range(a, centre, support);
    int32_t before = 0;
    span.number = span.number < most ? span.number : (uint32_t)most;
    for (uint32_t n = 0; n < span.number; n++)
        sum += taps_filter(interpolation, (span.first + n + 0.5 - centre) * narrowed);
    double scale = sum != 0 ? TAPS_ONE / sum : 0;
    span.number = sum != 0 ? span.number : 1;
    for (uint32_t n = 0; n < span.number; n++) {
        part += taps_filter(interpolation, (span.first + n + 0.5 - centre) * narrowed) * scale;
        int32_t now = n + 1 < span.number ? taps_rounded(part) : TAPS_ONE;
        weights[n] = (int16_t)(now - before);
        before = now;
    }
    for (uint32_t n = span.number; n < most; n++)
        weights[n] = 0;
    return span;
}

#endif
