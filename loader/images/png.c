/*
 * PNG by libpng, which makes red, green and blue of eight bits of every kind. Rows above the
 * crop are unpacked and left out, those below it not even read. The passes of an interlaced
 * file need the whole picture in memory.
 *
 * Chunks that change no pixel (texts, profiles, scales) are passed over unread, since libpng
 * allocates as many bytes as such a chunk claims to have, before it finds that they are not
 * there. What is left needs a row at a time, and allocations have a bound.
 */
#include "picture.h"

#include <errno.h>
#include <string.h>

static bool png_knows(const uint8_t *bytes, size_t len)
{
    static const uint8_t begin[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    return len >= sizeof(begin) && memcmp(bytes, begin, sizeof(begin)) == 0;
}

#ifdef ONEPOT_PNG

#include <png.h>
#include <setjmp.h>
#include <stdlib.h>

/* Of libpng: a row of 65,535 pixels has 8 bytes each, of which it keeps two, and zlib. */
#define ALLOCATION_MAX (1u << 20)
#define OWN_BYTES (128u << 10)

struct decoder {
    struct picture *picture;
    size_t at;
    png_structp png;
    png_infop info;
    jmp_buf failed;
};

static void on_error(png_structp png, png_const_charp text)
{
    struct decoder *d = png_get_error_ptr(png);
    picture_fail(d->picture, -EILSEQ, "it can't be decoded as PNG: %s", text);
    longjmp(d->failed, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t len)
{
    struct decoder *d = png_get_io_ptr(png);
    if (len > d->picture->len - d->at)
        png_error(png, "the file is cut short");
    memcpy(to, d->picture->bytes + d->at, len);
    d->at += len;
}

static png_voidp on_allocate(png_structp png, png_alloc_size_t bytes)
{
    (void)png;
    return bytes <= ALLOCATION_MAX ? malloc(bytes) : NULL;
}

static void on_free(png_structp png, png_voidp memory)
{
    (void)png;
    free(memory);
}

/*
 * Keep the file's values, which libpng would make colours of: a palette's colours become their
 * numbers, and what was widened to 8 bits is narrowed again.
 */
static void keep_values(struct decoder *d)
{
    uint8_t depth = png_get_bit_depth(d->png, d->info);
    png_color numbers[256];
    for (unsigned i = 0; i < 256; i++)
        numbers[i] = (png_color){(uint8_t)i, (uint8_t)i, (uint8_t)i};
    if (png_get_color_type(d->png, d->info) == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(d->png, d->info, numbers, 1 << depth);
    else if (depth < 8)
        png_set_shift(d->png, &(png_color_8){depth, depth, depth, depth, depth});
}

/* Ask for four bytes a pixel, the last one of no use. Returns the number of passes. */
static int choose_pixels(struct decoder *d)
{
    if (d->picture->plan->o.interpolation == ONEPOT_NEAREST)
        keep_values(d);
    png_set_strip_16(d->png);
    png_set_palette_to_rgb(d->png);
    png_set_expand_gray_1_2_4_to_8(d->png);
    png_set_gray_to_rgb(d->png);
    png_set_strip_alpha(d->png);
    png_set_filler(d->png, 0xff, PNG_FILLER_AFTER);
    int passes = png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    return passes;
}

static int decode_picture(struct decoder *d)
{
    struct picture *p = d->picture;
    png_set_user_limits(d->png, 65535, 65535);
    png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_read_fn(d->png, d, on_read);
    png_read_info(d->png, d->info);
    uint32_t width = png_get_image_width(d->png, d->info);
    uint32_t height = png_get_image_height(d->png, d->info);
    if (p->plan->o.interpolation == ONEPOT_NEAREST && png_get_bit_depth(d->png, d->info) > 8)
        return picture_fail(p, -EILSEQ,
                            "its values have 16 bits, and 'nearest' keeps all of "
                            "8 bits, but not of more");
    int passes = choose_pixels(d);
    bool whole = passes > 1;
    int r = picture_begin(p, width, height, false, whole ? height : 1,
                          OWN_BYTES + UINT64_C(24) * width);
    if (r < 0)
        return r;
    size_t stride = (size_t)width * 4;
    if (png_get_rowbytes(d->png, d->info) != stride)
        return picture_fail(p, -EILSEQ, "no such PNG is known");
    if (whole)
        memset(p->room, 0, stride * height);
    for (int pass = 0; pass < passes - 1; pass++)
        for (uint32_t y = 0; y < height; y++)
            png_read_row(d->png, p->room + stride * y, NULL);
    for (uint32_t y = 0; y < p->y + p->height; y++) {
        uint8_t *row = p->room + (whole ? stride * y : 0);
        png_read_row(d->png, row, NULL);
        if (y >= p->y)
            picture_row(p, row + (size_t)p->x * 4);
    }
    return 0;
}

static int png_decode(struct picture *p)
{
    struct decoder d = {.picture = p};
    int r;
    d.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &d, on_error, on_warning, NULL,
                                     on_allocate, on_free);
    d.info = d.png ? png_create_info_struct(d.png) : NULL;
    if (!d.info)
        r = picture_fail(p, -ENOMEM, "no memory to decode it");
    else if (setjmp(d.failed) == 0)
        r = decode_picture(&d);
    else
        r = -EILSEQ;
    png_destroy_read_struct(&d.png, &d.info, NULL);
    return r;
}

#else

static int png_decode(struct picture *p)
{
    return picture_fail(p, -ENOTSUP, "this onepot was built without libpng");
}

#endif

const struct picture_decoder decoder_png = {.knows = png_knows, .decode = png_decode};
