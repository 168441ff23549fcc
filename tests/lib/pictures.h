/*
 * Pictures for tests: pixels that are known, and files of them.
 */
#ifndef ONEPOT_TEST_PICTURES_H
#define ONEPOT_TEST_PICTURES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t *data;
    size_t len;
};

/* Smooth colours: pixel (x, y) of channel c. */
static inline uint8_t picture_value(unsigned x, unsigned y, unsigned c)
{
    return (uint8_t)(c == 0 ? 2 * x : c == 1 ? 255 - 2 * y : x + y);
}

static inline uint8_t *picture_pixels(unsigned width, unsigned height, unsigned channels)
{
    uint8_t *pixels = malloc((size_t)width * height * channels), *to = pixels;
    for (unsigned y = 0; y < height; y++)
        for (unsigned x = 0; x < width; x++)
            for (unsigned c = 0; c < channels; c++)
                *to++ = picture_value(x, y, c);
    return pixels;
}

static inline struct bytes picture_npy(unsigned width, unsigned height, unsigned channels)
{
    char header[128] = "\x93NUMPY\x01";
    size_t pixels = (size_t)width * height * channels;
    snprintf(header + 10, sizeof(header) - 10,
             "{'descr': '|u1', 'fortran_order': False, 'shape': (%u, %u, %u), }", height, width,
             channels);
    size_t used = 10 + strlen(header + 10);
    memset(header + used, ' ', sizeof(header) - used);
    header[127] = '\n';
    header[8] = 118;
    struct bytes file = {malloc(sizeof(header) + pixels), sizeof(header) + pixels};
    uint8_t *from = picture_pixels(width, height, channels);
    memcpy(file.data, header, sizeof(header));
    memcpy(file.data + sizeof(header), from, pixels);
    free(from);
    return file;
}

#ifdef ONEPOT_JPEG

#include <jpeglib.h>

struct jpeg_kind {
    J_COLOR_SPACE space; /* of the pixels: JCS_RGB, JCS_GRAYSCALE or JCS_CMYK */
    int quality;
    int progressive;
    int restart; /* rows of blocks between restart markers, or 0 */
};

static inline struct bytes picture_jpeg_of(uint8_t *pixels, unsigned width, unsigned height,
                                           struct jpeg_kind kind)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    unsigned long len = 0;
    int channels = kind.space == JCS_GRAYSCALE ? 1 : kind.space == JCS_CMYK ? 4 : 3;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &out, &len);
    jpeg.image_width = width;
    jpeg.image_height = height;
    jpeg.input_components = channels;
    jpeg.in_color_space = kind.space;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, kind.quality, TRUE);
    jpeg.restart_in_rows = kind.restart;
    if (kind.progressive)
        jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (unsigned y = 0; y < height; y++) {
        JSAMPROW row = pixels + (size_t)y * width * (unsigned)channels;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return (struct bytes){out, len};
}

static inline struct bytes picture_jpeg(unsigned width, unsigned height, struct jpeg_kind kind)
{
    unsigned channels = kind.space == JCS_GRAYSCALE ? 1 : kind.space == JCS_CMYK ? 4 : 3;
    uint8_t *pixels = picture_pixels(width, height, channels);
    struct bytes file = picture_jpeg_of(pixels, width, height, kind);
    free(pixels);
    return file;
}

/* All pixels of a file, as libjpeg makes them: three channels. */
static inline uint8_t *picture_decoded(struct bytes file)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, file.data, file.len);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    size_t stride = (size_t)jpeg.output_width * 3;
    uint8_t *pixels = malloc(stride * jpeg.output_height);
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW row = pixels + stride * jpeg.output_scanline;
        jpeg_read_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    return pixels;
}

#endif

#ifdef ONEPOT_PNG

#include <png.h>

struct png_kind {
    int colour; /* PNG_COLOR_TYPE_... */
    int bits;
    int interlaced;
};

static inline void picture_png_write(png_structp png, png_bytep data, size_t len)
{
    struct bytes *file = png_get_io_ptr(png);
    file->data = realloc(file->data, file->len + len);
    memcpy(file->data + file->len, data, len);
    file->len += len;
}

static inline void picture_png_flush(png_structp png)
{
    (void)png;
}

/*
 * Rows are bytes of the samples that are packed; of 16 bits the lower byte is the inverse of
 * the upper one. A palette has 64 colours: i, 255 - i, 2i.
 */
static inline struct bytes picture_png(unsigned width, unsigned height, struct png_kind kind)
{
    struct bytes file = {0};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    int channels = kind.colour == PNG_COLOR_TYPE_RGB          ? 3
                   : kind.colour == PNG_COLOR_TYPE_RGB_ALPHA  ? 4
                   : kind.colour == PNG_COLOR_TYPE_GRAY_ALPHA ? 2
                                                              : 1;
    png_set_write_fn(png, &file, picture_png_write, picture_png_flush);
    png_set_IHDR(png, info, width, height, kind.bits, kind.colour,
                 kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, 0, 0);
    png_color palette[64];
    for (unsigned i = 0; i < 64; i++)
        palette[i] = (png_color){(png_byte)i, (png_byte)(255 - i), (png_byte)(2 * i)};
    png_byte clear[64] = {0};
    if (kind.colour == PNG_COLOR_TYPE_PALETTE) {
        png_set_PLTE(png, info, palette, kind.bits == 8 ? 64 : 1 << kind.bits);
        png_set_tRNS(png, info, clear, kind.bits == 8 ? 64 : 1 << kind.bits, NULL);
    }
    png_write_info(png, info);
    size_t stride = ((size_t)width * (unsigned)(channels * kind.bits) + 7) / 8;
    uint8_t *rows = calloc(height, stride);
    png_bytep *starts = calloc(height, sizeof(*starts));
    for (unsigned y = 0; y < height; y++) {
        starts[y] = rows + y * stride;
        for (unsigned i = 0; i < width * (unsigned)channels; i++) {
            unsigned value = picture_value(i / (unsigned)channels, y, i % (unsigned)channels);
            if (kind.colour == PNG_COLOR_TYPE_PALETTE)
                value = (value & 63) << (8 - kind.bits) >> (8 - kind.bits);
            if (kind.bits == 16) {
                starts[y][2 * i] = (uint8_t)value;
                starts[y][2 * i + 1] = (uint8_t)~value;
            } else if (kind.bits == 8) {
                starts[y][i] = (uint8_t)value;
            } else {
                unsigned each = 8 / (unsigned)kind.bits;
                value = kind.colour == PNG_COLOR_TYPE_PALETTE ? value & ((1u << kind.bits) - 1)
                                                              : value >> (8 - kind.bits);
                starts[y][i / each] |=
                    (uint8_t)(value << (8 - kind.bits - (int)(i % each) * kind.bits));
            }
        }
    }
    png_write_image(png, starts);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    free(rows);
    free(starts);
    return file;
}

#endif

#endif
