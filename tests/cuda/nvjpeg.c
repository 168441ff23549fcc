/*
 * nvJPEG played by the host: the calls that nvjpeg.h names, with the declarations of its
 * documentation, over libjpeg-turbo. A file is read and decoded when its stream comes to it, at
 * the place in the device's memory where the picture is to be.
 */
#include "nvjpeg.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "played.h"

#define SHOWN __attribute__((visibility("default")))

static struct played *gpu;

struct handle {
    int backend;
};

struct state {
    int count, format;
};

struct parser {
    unsigned width, height;
    bool is_parsed;
};

static void forbid(const char *what)
{
    fprintf(stderr, "nvJPEG, played: %s\n", what);
    abort();
}

static void *make(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        abort();
    return p;
}

/* ---- a file ---- */

struct reading {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
};

static void on_error(j_common_ptr jpeg)
{
    longjmp(((struct reading *)jpeg->client_data)->failed, 1);
}

static void on_message(j_common_ptr jpeg, int level)
{
    (void)jpeg, (void)level;
}

/* The picture goes to the device; NULL: its size is all that is asked. False: it is no JPEG.
 */
static bool read_file(const unsigned char *bytes, size_t len, unsigned *ret_width,
                      unsigned *ret_height, const struct nvjpeg_image *to)
{
    struct reading r = {.errors = {0}};
    r.jpeg.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = on_error;
    r.errors.emit_message = on_message;
    r.jpeg.client_data = &r;
    volatile bool good = false;
    if (setjmp(r.failed) == 0) {
        jpeg_create_decompress(&r.jpeg);
        jpeg_mem_src(&r.jpeg, bytes, len);
        jpeg_read_header(&r.jpeg, TRUE);
        *ret_width = r.jpeg.image_width;
        *ret_height = r.jpeg.image_height;
        r.jpeg.out_color_space = JCS_RGB;
        if (to)
            jpeg_start_decompress(&r.jpeg);
        while (to && r.jpeg.output_scanline < r.jpeg.output_height) {
            unsigned char *row = to->channel[0] + r.jpeg.output_scanline * to->pitch[0];
            row = gpu->at(row, (size_t)r.jpeg.output_width * 3);
            jpeg_read_scanlines(&r.jpeg, &row, 1);
        }
        good = true;
    }
    jpeg_destroy_decompress(&r.jpeg);
    return good;
}

/* ---- handles ---- */

SHOWN int nvjpegGetProperty(int which, int *ret_value);
SHOWN int nvjpegCreateEx(int backend, void *device_allocator, void *host_allocator,
                         unsigned flags, void **ret_handle);
SHOWN int nvjpegDestroy(void *handle);
SHOWN int nvjpegJpegStateCreate(void *handle, void **ret_state);
SHOWN int nvjpegJpegStateDestroy(void *state);
SHOWN int nvjpegJpegStreamCreate(void *handle, void **ret_parser);
SHOWN int nvjpegJpegStreamDestroy(void *parser);
SHOWN int nvjpegJpegStreamParseHeader(void *handle, const unsigned char *bytes, size_t len,
                                      void *parser);
SHOWN int nvjpegJpegStreamGetFrameDimensions(void *parser, unsigned *ret_width,
                                             unsigned *ret_height);
SHOWN int nvjpegDecodeBatchedSupported(void *handle, void *parser, int *ret_not);
SHOWN int nvjpegDecodeBatchedInitialize(void *handle, void *state, int count, int threads,
                                        int format);
SHOWN int nvjpegDecodeBatched(void *handle, void *state, const unsigned char *const *files,
                              const size_t *lengths, struct nvjpeg_image *to,
                              cudaStream_t stream);

int nvjpegGetProperty(int which, int *ret_value)
{
    gpu = played_find();
    if (!gpu)
        forbid("without the tests' driver");
    *ret_value = which == NVJPEG_MAJOR ? gpu->nvjpeg_major ? gpu->nvjpeg_major : 12 : 4;
    return NVJPEG_SUCCESS;
}

int nvjpegCreateEx(int backend, void *device_allocator, void *host_allocator, unsigned flags,
                   void **ret_handle)
{
    if (device_allocator || host_allocator || flags & ~NVJPEG_SMOOTH)
        forbid("arguments that nobody passes");
    if (!gpu->current())
        forbid("without a context");
    if ((backend == NVJPEG_HARDWARE && gpu->nvjpeg_no_engines) || gpu->nvjpeg_no_start)
        return NVJPEG_ARCH_MISMATCH;
    struct handle *h = make(sizeof(*h));
    h->backend = backend;
    __atomic_fetch_add(&gpu->nvjpeg_handles, 1, __ATOMIC_RELAXED);
    *ret_handle = h;
    return NVJPEG_SUCCESS;
}

static int destroy(void *p)
{
    __atomic_fetch_sub(&gpu->nvjpeg_handles, 1, __ATOMIC_RELAXED);
    free(p);
    return NVJPEG_SUCCESS;
}

int nvjpegDestroy(void *handle)
{
    return destroy(handle);
}

int nvjpegJpegStateCreate(void *handle, void **ret_state)
{
    (void)handle;
    __atomic_fetch_add(&gpu->nvjpeg_handles, 1, __ATOMIC_RELAXED);
    *ret_state = make(sizeof(struct state));
    return NVJPEG_SUCCESS;
}

int nvjpegJpegStateDestroy(void *state)
{
    return destroy(state);
}

int nvjpegJpegStreamCreate(void *handle, void **ret_parser)
{
    (void)handle;
    __atomic_fetch_add(&gpu->nvjpeg_handles, 1, __ATOMIC_RELAXED);
    *ret_parser = make(sizeof(struct parser));
    return NVJPEG_SUCCESS;
}

int nvjpegJpegStreamDestroy(void *parser)
{
    return destroy(parser);
}

/* ---- files ---- */

int nvjpegJpegStreamParseHeader(void *handle, const unsigned char *bytes, size_t len,
                                void *parser)
{
    struct parser *p = parser;
    (void)handle;
    p->is_parsed = read_file(bytes, len, &p->width, &p->height, NULL);
    return p->is_parsed ? NVJPEG_SUCCESS : NVJPEG_BAD_JPEG;
}

int nvjpegJpegStreamGetFrameDimensions(void *parser, unsigned *ret_width, unsigned *ret_height)
{
    const struct parser *p = parser;
    *ret_width = p->width + (p->width == gpu->nvjpeg_misreads);
    *ret_height = p->height;
    return NVJPEG_SUCCESS;
}

int nvjpegDecodeBatchedSupported(void *handle, void *parser, int *ret_not)
{
    const struct parser *p = parser;
    (void)handle;
    if (!p->is_parsed)
        forbid("a file that was not parsed");
    *ret_not = p->width == gpu->nvjpeg_refuses;
    return NVJPEG_SUCCESS;
}

int nvjpegDecodeBatchedInitialize(void *handle, void *state, int count, int threads, int format)
{
    (void)handle;
    if (count < 1 || threads < 1 || format != NVJPEG_RGB_ROWS)
        forbid("a batch of a strange kind");
    *(struct state *)state = (struct state){.count = count, .format = format};
    return NVJPEG_SUCCESS;
}

struct work {
    int count;
    struct one {
        const unsigned char *bytes;
        size_t len;
        struct nvjpeg_image to;
    } files[];
};

static void decode_all(void *ctx)
{
    struct work *w = ctx;
    unsigned width = 0, height;
    for (int i = 0; i < w->count; i++) {
        read_file(w->files[i].bytes, w->files[i].len, &width, &height, &w->files[i].to);
        if (width == gpu->nvjpeg_refuses || width == gpu->nvjpeg_misreads)
            forbid("a file that is not supported");
    }
    free(w);
}

int nvjpegDecodeBatched(void *handle, void *state, const unsigned char *const *files,
                        const size_t *lengths, struct nvjpeg_image *to, cudaStream_t stream)
{
    struct state *s = state;
    (void)handle;
    __atomic_fetch_add(&gpu->nvjpeg_calls, 1, __ATOMIC_RELAXED);
    if (s->count == 0)
        forbid("a state that failed, or was not begun");
    if (gpu->nvjpeg_fails) {
        s->count = 0;
        return gpu->nvjpeg_fails;
    }
    struct work *w = make(sizeof(*w) + (size_t)s->count * sizeof(w->files[0]));
    w->count = s->count;
    for (int i = 0; i < w->count; i++)
        w->files[i] = (struct one){files[i], lengths[i], to[i]};
    __atomic_fetch_add(&gpu->nvjpeg_files, (unsigned long)w->count, __ATOMIC_RELAXED);
    if (gpu->launch(stream, decode_all, w) == 0)
        return NVJPEG_SUCCESS;
    s->count = 0;
    free(w);
    return NVJPEG_EXECUTION_FAILED;
}
