/*
 * Pixels that lie in a file as they are: the array of a .npy file, or all of the file.
 */
#include "picture.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "dataset.h"

static void widen_row(const uint8_t *from, uint32_t count, uint32_t channels, uint8_t *to)
{
    for (uint32_t i = 0; i < count; i++, from += channels, to += 4)
        for (unsigned c = 0; c < 3; c++)
            to[c] = from[channels < 3 ? 0 : c];
}

/* Pixels by rows. */
static int decode_pixels(struct picture *p, const uint8_t *pixels, uint32_t width,
                         uint32_t height, uint32_t channels)
{
    int r = picture_begin(p, width, height, false, 1, 0);
    if (r < 0)
        return r;
    for (uint32_t y = p->y; y < p->y + p->height; y++) {
        const uint8_t *row = pixels + ((uint64_t)y * width + p->x) * channels;
        widen_row(row, p->width, channels, p->room);
        picture_row(p, p->room);
    }
    return 0;
}

/* ---- .npy ---- */

static bool npy_knows(const uint8_t *bytes, size_t len)
{
    return len >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0;
}

static int npy_decode(struct picture *p)
{
    struct onepot_npy npy;
    size_t start;
    if (npy_parse(p->bytes, p->len, &npy, &start) < 0 || p->len - start != npy.bytes)
        return picture_fail(p, -EILSEQ, "its .npy header is damaged, or it is cut short");
    uint64_t channels = npy.dimensions == 3 ? npy.shape[2] : 1;
    if (strcmp(npy.type, "|u1") != 0 || npy.fortran_order || npy.dimensions < 2 ||
        npy.dimensions > 3 || channels < 1 || channels > 4 || channels == 2)
        return picture_fail(p, -EILSEQ,
                            "it is no .npy array of bytes [height][width][1, 3 or 4]");
    if (npy.shape[0] > UINT16_MAX || npy.shape[1] > UINT16_MAX)
        return picture_fail(p, -EILSEQ, "it has %" PRIu64 " by %" PRIu64 " pixels",
                            npy.shape[1], npy.shape[0]);
    return decode_pixels(p, p->bytes + start, (uint32_t)npy.shape[1], (uint32_t)npy.shape[0],
                         (uint32_t)channels);
}

const struct picture_decoder decoder_npy = {.knows = npy_knows, .decode = npy_decode};

/* ---- bytes ---- */

static int raw_decode(struct picture *p)
{
    const struct onepot_images *o = &p->plan->o;
    uint64_t bytes = (uint64_t)o->raw_height * o->raw_width * o->raw_channels;
    if (!bytes)
        return picture_fail(p, -EILSEQ, "it is neither JPEG nor PNG nor .npy");
    if (bytes != p->len)
        return picture_fail(p, -EILSEQ, "it has %zu bytes, and its pixels would have %" PRIu64,
                            p->len, bytes);
    return decode_pixels(p, p->bytes, o->raw_width, o->raw_height, o->raw_channels);
}

const struct picture_decoder decoder_raw = {.decode = raw_decode};
