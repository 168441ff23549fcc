/*
 * A picture while it is decoded: what a decoder asks and tells, and the steps behind that.
 *
 *     picture_begin     tells the picture's size; learns which pixels are needed
 *     picture_row       gives the rows that are needed, one after another
 */
#ifndef ONEPOT_LOADER_PICTURE_H
#define ONEPOT_LOADER_PICTURE_H

#include "images.h"

/* ---- cropping: which part of a picture becomes the image ---- */

/* A direction: result i is centred at start + (i + 1/2) * step of the source's pixels. */
struct axis {
    double start, step;
    uint32_t low, high; /* pixels of the source that may take part: [low, high) */
    uint32_t count;     /* results */
    bool reversed;      /* the last result comes first */
};

/*
 * For a picture of at least 1 by 1 pixel. Returns how many times a decoder that can is to
 * shrink it first, 1, 2, 4 or 8 times, so that the crop stays three times the result's size, or
 * more; the axes are of the picture as it is then. 1 where the options ask for an exact image,
 * or for the nearest pixel. A decoder averages blocks of pixels, whose borders show in a result
 * that is only a little smaller. A random crop varies anyway: as large as the result is enough
 * there. Three times make a mean difference below 2 of 255 (bench/RESULTS.md, Pictures).
 */
unsigned crop_plan(const struct onepot_images *o, const struct images_place *place,
                   uint32_t width, uint32_t height, bool can_shrink, struct axis *ret_x,
                   struct axis *ret_y);

/* ---- resampling ---- */

/*
 * Resamples rows of pixels as PIL does with its antialiased filters: a filter's support grows
 * with the step where the picture shrinks. The vertical pass comes first, row by row as the
 * source's rows come, so that only as many rows are held as one row of the result needs.
 * Values and weights are whole numbers of 16 bits, and results the same on all CPUs.
 */

/* The pixels of the source that one result is made of. */
struct filter_span {
    uint32_t first, number;
};

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

/* ---- decoding ---- */

/* Bytes of a value in the result. */
static inline uint64_t picture_item_bytes(const struct onepot_images *o)
{
    return o->type == ONEPOT_FLOAT ? 4 : o->type ? 2 : 1;
}

struct picture {
    const struct images_plan *plan;
    const struct images_place *place;
    const uint8_t *bytes; /* the file */
    size_t len;
    char *why; /* IMAGES_WHY_MAX bytes */
    uint8_t *to;
    struct images_scratch *scratch;
    uint8_t *room; /* as the decoder asked in picture_begin */
    bool is_large; /* it has its turn, see struct images_budget */
    struct resample resample;
    /* By picture_begin: the pixels that are needed, of the picture as it is after shrinking. */
    unsigned shrinks; /* the decoder is to make it 1, 2, 4 or 8 times smaller */
    uint32_t x, y, width, height;
};

/*
 * The picture has this size. A decoder that can shrink, to sizes that are rounded up, gets to
 * know by how much. It also gets room for `rooms` rows in p->room, of as many pixels as the
 * picture has after shrinking, each rounded up to PICTURE_SLACK bytes, and as many bytes more.
 * The decoder itself is about to allocate `own_bytes` at most. -EILSEQ: no such size, or more
 * than the budget. -ENOMEM.
 */
#define PICTURE_SLACK UINT64_C(64)
int picture_begin(struct picture *p, uint32_t width, uint32_t height, bool can_shrink,
                  uint64_t rooms, uint64_t own_bytes);

#define PICTURE_SIDE_MAX 65535u /* JPEG's limit, too */

/* The next row that is needed: pixels of four bytes (red, green, blue, any), from p->x on. */
void picture_row(struct picture *p, const uint8_t *pixels);

/* Says why in p->why. Returns err. */
int picture_fail(struct picture *p, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- decoders ---- */

struct picture_decoder {
    /* Is it a file of this format, by its first bytes? NULL: it takes all that no other does.
     */
    bool (*knows)(const uint8_t *bytes, size_t len);
    /* 0, or -EILSEQ, -ENOTSUP, -ENOMEM by picture_fail. */
    int (*decode)(struct picture *p);
};

extern const struct picture_decoder decoder_jpeg, decoder_png, decoder_npy, decoder_raw;

#endif
