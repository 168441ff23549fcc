/*
 * A picture while it is decoded: what a decoder asks and tells.
 *
 *     picture_begin     tells the picture's size; learns which pixels are needed
 *     picture_row       gives the rows that are needed, one after another
 */
#ifndef ONEPOT_LOADER_PICTURE_H
#define ONEPOT_LOADER_PICTURE_H

#include "crop.h"
#include "images.h"

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
};

/* The pixels that are needed, of the picture as it is after shrinking. */
struct picture_part {
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
                  uint64_t rooms, uint64_t own_bytes, struct picture_part *ret_part);

#define PICTURE_SIDE_MAX 65535u /* JPEG's limit, too */

/* The next row of the part: pixels of four bytes (red, green, blue, any), from part.x on. */
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

extern const struct picture_decoder picture_jpeg, picture_png, picture_npy, picture_raw;

#endif
