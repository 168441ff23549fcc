/*
 * JPEG decoded by nvJPEG, which is loaded when a decoder is asked for. Files go to it in
 * chunks, since the whole pictures need memory before kernels make images of them: a chunk's
 * pictures lie where those of the one before lay, as one stream decodes and resamples them in
 * turn.
 *
 * nvJPEG takes or refuses a chunk as a whole. A chunk with a damaged file among others is then
 * the host's, which finds out which one it is.
 */
#include "nvjpeg.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#ifdef ONEPOT_CUDA_KERNELS

#include "kernels.h"

#define CHUNK_FILES 256u
#define CHUNK_BYTES ((size_t)128 << 20) /* of pictures and weights, unless one needs more, */
#define FILE_BYTES ((size_t)512 << 20)  /* which is not more than this */

struct decoder {
    void *handle, *state, *parser;
    struct device_images images;
    uint8_t *memory; /* of the device, for a chunk */
    size_t bytes;
    int begun; /* files that the state is ready for; 0: none */

    /* The chunk: */
    struct device_picture *pictures[CHUNK_FILES];
    struct kernels_picture places[CHUNK_FILES]; /* relative to `memory` until that is there */
    size_t used;
    int count;
    const unsigned char *files[CHUNK_FILES];
    size_t lengths[CHUNK_FILES];
    struct nvjpeg_image to[CHUNK_FILES];
};

/* ---- the library ---- */

static struct nvjpeg nvjpeg;
static struct onepot_error library_error;
static int library_major, library_minor;

static void *open_library(void)
{
    const char *named = secure_getenv("ONEPOT_NVJPEG");
    char name[32];
    void *object = NULL;
    if (named && *named)
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    /* That of our CUDA first; a driver serves all that are not newer than itself. */
    for (int i = -1; i <= NVJPEG_NEWEST - NVJPEG_OLDEST && !object; i++) {
        int major = i < 0 ? CUDART_VERSION / 1000 : NVJPEG_OLDEST + i;
        snprintf(name, sizeof(name), "libnvjpeg.so.%d", major);
        if (major >= NVJPEG_OLDEST && major <= NVJPEG_NEWEST)
            object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    return object;
}

static const char *find_functions(void *object)
{
    const struct {
        const char *name;
        void *function;
    } names[] = {{"nvjpegGetProperty", &nvjpeg.get_property},
                 {"nvjpegCreateEx", &nvjpeg.create},
                 {"nvjpegDestroy", &nvjpeg.destroy},
                 {"nvjpegJpegStateCreate", &nvjpeg.state_create},
                 {"nvjpegJpegStateDestroy", &nvjpeg.state_destroy},
                 {"nvjpegJpegStreamCreate", &nvjpeg.parser_create},
                 {"nvjpegJpegStreamDestroy", &nvjpeg.parser_destroy},
                 {"nvjpegJpegStreamParseHeader", &nvjpeg.parse_header},
                 {"nvjpegJpegStreamGetFrameDimensions", &nvjpeg.get_size},
                 {"nvjpegDecodeBatchedSupported", &nvjpeg.is_supported},
                 {"nvjpegDecodeBatchedInitialize", &nvjpeg.begin},
                 {"nvjpegDecodeBatched", &nvjpeg.decode}};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *function = dlsym(object, names[i].name);
        if (!function)
            return names[i].name;
        memcpy(names[i].function, &function, sizeof(function));
    }
    return NULL;
}

/* It stays loaded, like the driver, whose threads may run in it. */
static void load_library(void)
{
    void *object = open_library();
    if (!object) {
        const char *why = dlerror();
        gpu_say(&library_error, -ENODEV, "nvJPEG is not there: %s (ONEPOT_NVJPEG may name it)",
                why ? why : "no libnvjpeg.so");
        return;
    }
    const char *missing = find_functions(object);
    if (missing)
        gpu_say(&library_error, -ENODEV, "nvJPEG: it has no %s", missing);
    else if (nvjpeg.get_property(NVJPEG_MAJOR, &library_major) != NVJPEG_SUCCESS ||
             nvjpeg.get_property(NVJPEG_MINOR, &library_minor) != NVJPEG_SUCCESS)
        gpu_say(&library_error, -ENODEV, "nvJPEG: it does not tell its version");
    else if (library_major < NVJPEG_OLDEST || library_major > NVJPEG_NEWEST)
        gpu_say(&library_error, -ENODEV, "nvJPEG: version %d is not known; %d to %d are",
                library_major, NVJPEG_OLDEST, NVJPEG_NEWEST);
}

static int need_library(struct onepot_error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_library);
    return library_error.code < 0 ? gpu_say(error, library_error.code, "%s", library_error.text)
                                  : 0;
}

/* ---- a chunk ---- */

/* Room of the chunk. Returns where it begins. */
static size_t chunk_take(struct decoder *d, size_t bytes)
{
    size_t at = d->used;
    d->used += gpu_rounded(bytes);
    return at;
}

static struct kernels_taps chunk_taps(struct decoder *d, const struct axis *axis)
{
    uint64_t most = taps_most(axis, d->images.interpolation);
    struct kernels_taps taps = {.axis = *axis, .most = (uint32_t)most};
    taps.spans = (void *)chunk_take(d, axis->count * sizeof(*taps.spans));
    taps.weights = (void *)chunk_take(d, axis->count * most * sizeof(*taps.weights));
    return taps;
}

static bool has_many(const struct decoder *d, const struct kernels_taps *taps)
{
    return taps->most > TAPS_FEW &&
           taps_widest(&taps->axis, d->images.interpolation) > TAPS_FEW;
}

static void chunk_add(struct decoder *d, struct device_picture *p)
{
    struct kernels_picture *place = &d->places[d->count];
    size_t pitch = (size_t)p->width * 3;
    d->pictures[d->count++] = p;
    *place = (struct kernels_picture){.pitch = pitch, .to = p->to};
    place->pixels = (void *)chunk_take(d, pitch * p->height);
    place->x = chunk_taps(d, &p->x);
    place->y = chunk_taps(d, &p->y);
    place->many = has_many(d, &place->x) || has_many(d, &place->y);
}

static void chunk_drop_last(struct decoder *d, size_t used)
{
    d->count--;
    d->used = used;
}

static void chunk_refuse(struct decoder *d)
{
    for (int i = 0; i < d->count; i++)
        d->pictures[i]->refused = true;
}

/* False: the device has no room for it. */
static bool chunk_has_memory(struct decoder *d)
{
    void *memory = NULL;
    if (d->used <= d->bytes)
        return true;
    if (d->memory)
        cudaFree(d->memory);
    d->memory = NULL;
    d->bytes = 0;
    size_t bytes = d->used < CHUNK_BYTES / 2 ? 2 * d->used : d->used;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    d->memory = memory;
    d->bytes = bytes;
    return true;
}

static void *chunk_at(const struct decoder *d, const void *offset)
{
    return d->memory + (uintptr_t)offset;
}

static void place_taps(const struct decoder *d, struct kernels_taps *taps)
{
    taps->spans = chunk_at(d, taps->spans);
    taps->weights = chunk_at(d, taps->weights);
}

static void chunk_place(struct decoder *d)
{
    for (int i = 0; i < d->count; i++) {
        struct kernels_picture *place = &d->places[i];
        place->pixels = chunk_at(d, place->pixels);
        place_taps(d, &place->x);
        place_taps(d, &place->y);
        d->files[i] = d->pictures[i]->bytes;
        d->lengths[i] = d->pictures[i]->len;
        d->to[i] = (struct nvjpeg_image){.channel = {(uint8_t *)(uintptr_t)place->pixels},
                                         .pitch = {place->pitch}};
    }
}

/* A state is made ready for each number of files, and again after a failure. */
static bool chunk_decode(struct decoder *d, cudaStream_t stream)
{
    if (d->begun != d->count &&
        nvjpeg.begin(d->handle, d->state, d->count, 1, NVJPEG_RGB_ROWS) != NVJPEG_SUCCESS) {
        d->begun = 0;
        return false;
    }
    int r = nvjpeg.decode(d->handle, d->state, d->files, d->lengths, d->to, stream);
    d->begun = r == NVJPEG_SUCCESS ? d->count : 0;
    return r == NVJPEG_SUCCESS;
}

/* Queue all of the chunk, or refuse it. What nvJPEG left as CUDA's last error is not ours. */
static int chunk_end(struct decoder *d, cudaStream_t stream, struct onepot_error *error)
{
    int r = 0;
    if (d->count == 0)
        return 0;
    bool there = chunk_has_memory(d);
    if (there) {
        chunk_place(d);
        there = chunk_decode(d, stream);
        cudaGetLastError();
    }
    if (there)
        r = gpu_checked(kernels_resample(stream, &d->images, d->places, (uint32_t)d->count),
                        "images", error);
    else
        chunk_refuse(d);
    d->count = 0;
    d->used = 0;
    return r;
}

/* ---- pictures ---- */

/* Also: does it see the size that there will be memory for? */
static bool is_supported(const struct decoder *d, const struct device_picture *p)
{
    unsigned width = 0, height = 0;
    int other = 1;
    return nvjpeg.parse_header(d->handle, p->bytes, p->len, d->parser) == NVJPEG_SUCCESS &&
           nvjpeg.get_size(d->parser, &width, &height) == NVJPEG_SUCCESS && width == p->width &&
           height == p->height &&
           nvjpeg.is_supported(d->handle, d->parser, &other) == NVJPEG_SUCCESS && other == 0;
}

/* To the chunk, or to the next one if it is too much for this. */
static int take_picture(struct decoder *d, struct device_picture *p, cudaStream_t stream,
                        struct onepot_error *error)
{
    size_t before = d->used;
    chunk_add(d, p);
    if (d->used - before > FILE_BYTES) {
        chunk_drop_last(d, before);
        p->refused = true;
        return 0;
    }
    if (d->used > CHUNK_BYTES && d->count > 1) {
        chunk_drop_last(d, before);
        int r = chunk_end(d, stream, error);
        if (r < 0)
            return r;
        chunk_add(d, p);
    }
    return d->count == CHUNK_FILES ? chunk_end(d, stream, error) : 0;
}

int gpu_decode(void *device, void *decoder, void *stream, struct device_picture *pictures,
               uint64_t count, struct onepot_error *error)
{
    struct decoder *d = decoder;
    int r = gpu_enter(device, error);
    if (r < 0)
        return r;
    for (uint64_t i = 0; i < count && r == 0; i++) {
        struct device_picture *p = &pictures[i];
        p->refused = p->len > 0 && !is_supported(d, p);
        if (p->len > 0 && !p->refused)
            r = take_picture(d, p, stream, error);
    }
    if (r == 0)
        r = chunk_end(d, stream, error);
    d->count = 0;
    d->used = 0;
    return gpu_left(r);
}

/* ---- life ---- */

static void end_decoder(struct decoder *d)
{
    if (d->parser)
        nvjpeg.parser_destroy(d->parser);
    if (d->state)
        nvjpeg.state_destroy(d->state);
    if (d->handle)
        nvjpeg.destroy(d->handle);
    if (d->memory)
        cudaFree(d->memory);
    free(d);
}

/* Engines of their own if the GPU has any; versions that know no smoothing do without. */
static int begin_decoder(struct decoder *d, const char **ret_how)
{
    static const struct {
        int backend;
        unsigned flags;
        const char *how;
    } ways[] = {{NVJPEG_HARDWARE, NVJPEG_SMOOTH, "hardware"},
                {NVJPEG_HARDWARE, 0, "hardware"},
                {NVJPEG_GPU_HYBRID, NVJPEG_SMOOTH, "kernels"},
                {NVJPEG_GPU_HYBRID, 0, "kernels"}};
    int r = NVJPEG_SUCCESS + 1;
    for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]) && r != NVJPEG_SUCCESS; i++) {
        r = nvjpeg.create(ways[i].backend, NULL, NULL, ways[i].flags, &d->handle);
        if (r != NVJPEG_SUCCESS)
            d->handle = NULL;
        *ret_how = ways[i].how;
    }
    if (r == NVJPEG_SUCCESS)
        r = nvjpeg.state_create(d->handle, &d->state);
    if (r == NVJPEG_SUCCESS)
        r = nvjpeg.parser_create(d->handle, &d->parser);
    cudaGetLastError();
    return r;
}

int gpu_decoder_new(void *device, const struct device_images *images,
                    struct onepot_error *error, char *name, void **ret_decoder)
{
    const struct gpu *g = device;
    const char *how = "";
    if (!g->has_kernels)
        return gpu_say(error, -ENOTSUP,
                       "CUDA: there are no kernels for this GPU, which make "
                       "images of what nvJPEG decodes");
    int r = need_library(error);
    struct decoder *d = r == 0 ? calloc(1, sizeof(*d)) : NULL;
    if (!d)
        return r < 0 ? r : gpu_say(error, -ENOMEM, "no memory for a decoder");
    d->images = *images;
    r = gpu_enter(g, error);
    if (r < 0) {
        free(d);
        return r;
    }
    int status = begin_decoder(d, &how);
    if (status != NVJPEG_SUCCESS) {
        end_decoder(d);
        return gpu_left(gpu_say(error, -ENODEV,
                                "nvJPEG %d.%d can't be started on this GPU (its status %d)",
                                library_major, library_minor, status));
    }
    snprintf(name, DEVICE_DECODER_NAME, "nvJPEG %d.%d (%s)", library_major, library_minor, how);
    *ret_decoder = d;
    return gpu_left(0);
}

void gpu_decoder_free(void *device, void *decoder)
{
    if (gpu_enter(device, NULL) < 0)
        return; /* the process ends, or the device is lost: nothing may be called */
    end_decoder(decoder);
    gpu_left(0);
}

#else

int gpu_decoder_new(void *device, const struct device_images *images,
                    struct onepot_error *error, char *name, void **ret_decoder)
{
    (void)device, (void)images, (void)name, (void)ret_decoder;
    return gpu_say(error, -ENOTSUP,
                   "CUDA: this libonepot-cuda.so was built without nvcc: it has no kernels, "
                   "which make images of what nvJPEG decodes");
}

void gpu_decoder_free(void *device, void *decoder)
{
    (void)device, (void)decoder;
}

int gpu_decode(void *device, void *decoder, void *stream, struct device_picture *pictures,
               uint64_t count, struct onepot_error *error)
{
    (void)device, (void)decoder, (void)stream, (void)pictures, (void)count;
    return gpu_say(error, -ENOTSUP, "CUDA: there is no decoder");
}

#endif
