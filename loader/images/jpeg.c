/*
 * JPEG by libjpeg-turbo. It shrinks in the inverse transform, and decodes only the blocks that
 * the crop touches: jpeg_crop_scanline leaves out columns, jpeg_skip_scanlines rows.
 *
 * A file that ends too early is damaged, as for PIL; one whose end marker alone is missing is
 * not. Rows below the crop are not decoded, so damage there goes unnoticed.
 */
#include "picture.h"

#include <errno.h>

static bool jpeg_knows(const uint8_t *bytes, size_t len)
{
    return len > 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff;
}

#ifdef ONEPOT_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

#include "numbers.h"

#define MEMORY_MAX (1L << 30)
#define OWN_BYTES (128u << 10) /* of libjpeg, whatever the picture's size */
#define SCANS_MAX 500 /* of a progressive file: each costs a pass over the whole picture */
#define ROWS 4u       /* decoded at a time */
#define MARGIN 2u     /* columns beside the crop that smooth its outermost colours */

struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    struct picture *picture;
    bool has_ended; /* more bytes were asked for than there are */
};

/* ---- errors ---- */

static struct decoder *decoder_of(j_common_ptr jpeg)
{
    return jpeg->client_data;
}

static void on_error(j_common_ptr jpeg)
{
    struct decoder *d = decoder_of(jpeg);
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    picture_fail(d->picture, -EILSEQ, "it can't be decoded as JPEG: %s", text);
    longjmp(d->failed, 1);
}

static void fail_early_end(struct decoder *d)
{
    picture_fail(d->picture, -EILSEQ, "the JPEG file is cut short");
    longjmp(d->failed, 1);
}

/* Warnings are of no account, as for PIL, but for the one that data is missing. */
static void on_message(j_common_ptr jpeg, int level)
{
    struct decoder *d = decoder_of(jpeg);
    if (level < 0 && d->has_ended && jpeg->err->msg_code == JWRN_HIT_MARKER)
        fail_early_end(d);
}

static void on_progress(j_common_ptr jpeg)
{
    struct decoder *d = decoder_of(jpeg);
    if (d->jpeg.input_scan_number > SCANS_MAX) {
        picture_fail(d->picture, -EILSEQ, "the JPEG file has more than %d scans", SCANS_MAX);
        longjmp(d->failed, 1);
    }
}

/* ---- bytes ---- */

/* After the last byte comes an end marker, so that the bytes before it can be decoded. */
static boolean source_fill(j_decompress_ptr jpeg)
{
    static const JOCTET end[] = {0xff, JPEG_EOI};
    decoder_of((j_common_ptr)jpeg)->has_ended = true;
    jpeg->src->next_input_byte = end;
    jpeg->src->bytes_in_buffer = sizeof(end);
    return TRUE;
}

static void source_skip(j_decompress_ptr jpeg, long bytes)
{
    struct jpeg_source_mgr *src = jpeg->src;
    if (bytes <= 0)
        return;
    if ((size_t)bytes > src->bytes_in_buffer) {
        source_fill(jpeg);
        return;
    }
    src->next_input_byte += bytes;
    src->bytes_in_buffer -= (size_t)bytes;
}

static void decoder_begin(struct decoder *d)
{
    const struct picture *p = d->picture;
    jpeg_create_decompress(&d->jpeg);
    d->jpeg.mem->max_memory_to_use = MEMORY_MAX;
    d->progress.progress_monitor = on_progress;
    d->jpeg.progress = &d->progress;
    jpeg_mem_src(&d->jpeg, p->bytes, p->len);
    d->jpeg.src->fill_input_buffer = source_fill;
    d->jpeg.src->skip_input_data = source_skip;
}

/* ---- pixels ---- */

/* Adobe's programs store CMYK upside down, and PIL takes all others to do so, too. */
static void cmyk_to_rgb(uint8_t *pixels, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (unsigned c = 0; c < 3; c++)
            pixels[4 * i + c] = (uint8_t)((pixels[4 * i + c] * pixels[4 * i + 3] + 127) / 255);
}

/* Which is not shrunk: averages of its parts are no averages of colours. */
static bool is_cmyk(const struct jpeg_decompress_struct *jpeg)
{
    return jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
}

/*
 * Decode the rows that are needed, from `left` pixels before these on. Rows are not aligned:
 * libjpeg-turbo would write aligned ones past the caches, and all of them are read at once
 * (bench/loader, row images: 1.15 times as fast).
 */
static void decode_rows(struct decoder *d, uint32_t left)
{
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    struct picture *p = d->picture;
    size_t stride = ((size_t)jpeg->output_width * 4 + PICTURE_SLACK - 1) & ~(PICTURE_SLACK - 1);
    JSAMPROW rows[ROWS];
    for (unsigned i = 0; i < ROWS; i++)
        rows[i] = p->room + 4 + i * stride;
    for (uint32_t done = 0; done < p->height;) {
        uint32_t wanted = min_u32(ROWS, p->height - done);
        uint32_t got = jpeg_read_scanlines(jpeg, rows, wanted);
        if (got == 0)
            fail_early_end(d);
        for (uint32_t i = 0; i < got; i++) {
            if (jpeg->out_color_space == JCS_CMYK)
                cmyk_to_rgb(rows[i], jpeg->output_width);
            picture_row(p, rows[i] + (size_t)left * 4);
        }
        done += got;
    }
}

static uint64_t rounded_up(uint64_t n, int to)
{
    return (n + (uint64_t)to - 1) / (uint64_t)to * (uint64_t)to;
}

/*
 * The most that libjpeg allocates, by the header: the coefficients of all blocks if there are
 * several scans; and for each component rows of blocks with their neighbours above and below,
 * and rows of the picture's width for smooth colours.
 */
static uint64_t decoder_bytes(struct jpeg_decompress_struct *jpeg)
{
    uint64_t bytes = OWN_BYTES;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *c = &jpeg->comp_info[i];
        uint64_t wide = rounded_up(c->width_in_blocks, c->h_samp_factor) + 8;
        uint64_t high = rounded_up(c->height_in_blocks, c->v_samp_factor);
        if (jpeg_has_multiple_scans(jpeg))
            bytes += wide * high * sizeof(JBLOCK);
        bytes += wide * DCTSIZE * (uint64_t)c->v_samp_factor * (DCTSIZE + 4);
        bytes += rounded_up(jpeg->image_width, 64) * (uint64_t)jpeg->max_v_samp_factor * 2;
    }
    return bytes;
}

static int decode_picture(struct decoder *d)
{
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    struct picture *p = d->picture;
    jpeg_read_header(jpeg, TRUE);
    int r = picture_begin(p, jpeg->image_width, jpeg->image_height, !is_cmyk(jpeg), ROWS,
                          decoder_bytes(jpeg));
    if (r < 0)
        return r;
    jpeg->out_color_space = is_cmyk(jpeg) ? JCS_CMYK : JCS_EXT_RGBX;
    jpeg->scale_num = 8 / p->shrinks;
    jpeg->scale_denom = 8;
    jpeg_start_decompress(jpeg);
    if (d->has_ended && jpeg_has_multiple_scans(jpeg))
        fail_early_end(d);
    JDIMENSION x = p->x > MARGIN ? p->x - MARGIN : 0;
    JDIMENSION end = min_u32(p->x + p->width + MARGIN, jpeg->output_width), width = end - x;
    jpeg_crop_scanline(jpeg, &x, &width);
    if (p->y && jpeg_skip_scanlines(jpeg, p->y) != p->y)
        return picture_fail(p, -EILSEQ, "rows of the JPEG file can't be left out");
    decode_rows(d, p->x - x);
    return 0;
}

static int jpeg_decode(struct picture *p)
{
    struct decoder d = {.picture = p};
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.errors.error_exit = on_error;
    d.errors.emit_message = on_message;
    d.jpeg.client_data = &d;
    int r = -EILSEQ;
    if (setjmp(d.failed) == 0) {
        decoder_begin(&d);
        r = decode_picture(&d);
    } else {
        r = -EILSEQ;
    }
    jpeg_destroy_decompress(&d.jpeg);
    return r;
}

#else

static int jpeg_decode(struct picture *p)
{
    return picture_fail(p, -ENOTSUP, "this onepot was built without libjpeg-turbo");
}

#endif

const struct picture_decoder decoder_jpeg = {.knows = jpeg_knows, .decode = jpeg_decode};
