/*
 * Resamples rows of pixels as PIL does with its antialiased filters: a filter's support grows
 * with the step where the picture shrinks. The vertical pass comes first, row by row as the
 * source's rows come, so that only as many rows are held as one row of the result needs.
 * Values and weights are whole numbers of 16 bits, and results the same on all CPUs.
 */
#ifndef ONEPOT_LOADER_RESAMPLE_H
#define ONEPOT_LOADER_RESAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "resample_filter.h"

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

#endif
