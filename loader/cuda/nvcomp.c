/*
 * Frames of zstd decompressed by nvCOMP, which is loaded when a decompressor is asked for. What
 * frames hold needs memory before its parts go to their places in the batch. So frames come in
 * chunks, as many as the memory is for: a chunk's lie where those of the one before lay, as one
 * stream does one after another.
 *
 * A kernel adds up each frame, whatever nvCOMP says of it. Statuses, lengths and sums go back
 * to the host, which compares them.
 */
#include "nvcomp.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#ifdef ONEPOT_CUDA_KERNELS

#include "kernels.h"

#define CHUNK_FRAMES 1024u /* at most */

struct decompressor {
    uint8_t *memory; /* of the device: room for what a chunk's frames hold, then nvCOMP's */
    uint64_t frames, bytes, temp_bytes; /* of a chunk, at most */
};

/* ---- the library ---- */

static struct nvcomp nvcomp;
static struct onepot_error library_error;
static struct nvcomp_version library_version;

/* The newest first. */
static void *open_library(void)
{
    const char *named = secure_getenv("ONEPOT_NVCOMP");
    char name[32];
    void *object = NULL;
    if (named && *named)
        return dlopen(named, RTLD_NOW | RTLD_LOCAL);
    for (int major = NVCOMP_NEWEST; major >= NVCOMP_OLDEST && !object; major--) {
        snprintf(name, sizeof(name), "libnvcomp.so.%d", major);
        object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    return object;
}

static const char *find_function(void *object, const char *name, void *ret_function)
{
    void *function = dlsym(object, name);
    memcpy(ret_function, &function, sizeof(function));
    return function ? NULL : name;
}

/* Versions differ in how they tell their need of memory. */
static const char *find_functions(void *object, uint32_t major)
{
    const char *missing =
        find_function(object, "nvcompBatchedZstdDecompressAsync", &nvcomp.decompress);
    if (missing)
        return missing;
    return major >= 6 ? find_function(object, "nvcompBatchedZstdDecompressGetTempSize",
                                      &nvcomp.temp_bytes_6)
                      : find_function(object, "nvcompBatchedZstdDecompressGetTempSizeAsync",
                                      &nvcomp.temp_bytes_5);
}

/* It stays loaded, like the driver, whose threads may run in it. */
static void load_library(void)
{
    void *object = open_library();
    if (!object) {
        const char *why = dlerror();
        gpu_say(&library_error, -ENODEV, "nvCOMP is not there: %s (ONEPOT_NVCOMP may name it)",
                why ? why : "no libnvcomp.so");
        return;
    }
    const char *missing = find_function(object, "nvcompGetProperties", &nvcomp.get_version);
    if (!missing && nvcomp.get_version(&library_version) != NVCOMP_SUCCESS) {
        gpu_say(&library_error, -ENODEV, "nvCOMP: it does not tell its version");
        return;
    }
    uint32_t major = NVCOMP_MAJOR(library_version.number);
    if (!missing && (major < NVCOMP_OLDEST || major > NVCOMP_NEWEST)) {
        gpu_say(&library_error, -ENODEV, "nvCOMP: version %u is not known; %d to %d are", major,
                NVCOMP_OLDEST, NVCOMP_NEWEST);
        return;
    }
    if (!missing)
        missing = find_functions(object, major);
    if (missing)
        gpu_say(&library_error, -ENODEV, "nvCOMP: it has no %s", missing);
}

static int need_library(struct onepot_error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_library);
    return library_error.code < 0 ? gpu_say(error, library_error.code, "%s", library_error.text)
                                  : 0;
}

static int temp_bytes(size_t frames, size_t frame_bytes, size_t *ret_bytes)
{
    const struct nvcomp_options options = {0};
    return nvcomp.temp_bytes_6 ? nvcomp.temp_bytes_6(frames, frame_bytes, options, ret_bytes,
                                                     frames * frame_bytes, NULL)
                               : nvcomp.temp_bytes_5(frames, frame_bytes, options, ret_bytes,
                                                     frames * frame_bytes);
}

/* ---- tables ---- */

/* Those of a work, for the host or for the device. What comes back is at their beginning. */
struct tables {
    uint64_t *sums, *got, *statuses; /* [frames]; a status takes half of its place */
    uint64_t *packed, *packed_bytes, *to, *from, *bytes;
    uint64_t *piece_end;                           /* the first piece of a later frame */
    uint64_t *piece_from, *piece_at, *piece_bytes; /* [pieces] */
};

static struct tables tables_at(uint8_t *memory, const struct device_work *w)
{
    uint64_t *at = (uint64_t *)(void *)memory, f = w->frame_count, p = w->piece_count;
    uint64_t *pieces = at + 9 * f;
    return (struct tables){
        .sums = at,
        .got = at + f,
        .statuses = at + 2 * f,
        .packed = at + 3 * f,
        .packed_bytes = at + 4 * f,
        .to = at + 5 * f,
        .from = at + 6 * f,
        .bytes = at + 7 * f,
        .piece_end = at + 8 * f,
        .piece_from = pieces,
        .piece_at = pieces + p,
        .piece_bytes = pieces + 2 * p,
    };
}

static void add_frame(const struct decompressor *d, const struct device_work *w,
                      const struct device_frame *f, const struct tables *t, uint64_t n,
                      uint64_t from)
{
    t->sums[n] = 0;
    t->packed[n] = (uintptr_t)(w->there + f->at);
    t->packed_bytes[n] = f->packed;
    t->to[n] = (uintptr_t)(d->memory + from);
    t->from[n] = from;
    t->bytes[n] = f->bytes;
}

/* Those that the caller has not refused, one after another, and their pieces. Returns how many.
 * A chunk begins at the beginning of the memory. */
static uint64_t fill_tables(const struct decompressor *d, const struct device_work *w,
                            const struct tables *t)
{
    uint64_t n = 0, first = 0, used = 0, pieces = 0;
    const struct device_piece *p = w->pieces, *end = w->pieces + w->piece_count;
    for (uint64_t i = 0; i < w->frame_count; i++) {
        const struct device_frame *f = &w->frames[i];
        if (n - first == d->frames || used + gpu_rounded(f->bytes) > d->bytes) {
            first = n;
            used = 0;
        }
        for (; p < end && p->frame == i; p++) {
            t->piece_from[pieces] = used + p->from;
            t->piece_at[pieces] = p->to;
            t->piece_bytes[pieces] = p->bytes;
            pieces += !f->refused;
        }
        if (f->refused)
            continue;
        add_frame(d, w, f, t, n, used);
        t->piece_end[n++] = pieces;
        used += gpu_rounded(f->bytes);
    }
    return n;
}

/* ---- work ---- */

struct chunk {
    uint64_t first, end;             /* frames that were given, */
    uint64_t first_piece, end_piece; /* and their pieces */
};

static bool chunk_next(const struct tables *t, uint64_t given, struct chunk *c)
{
    if (c->end == given)
        return false;
    c->first = c->end++;
    while (c->end < given && t->from[c->end] > 0)
        c->end++;
    c->first_piece = c->end_piece;
    c->end_piece = t->piece_end[c->end - 1];
    return true;
}

static int queue_chunk(const struct decompressor *d, const struct device_work *w,
                       const struct tables *t, const struct chunk *c, cudaStream_t stream,
                       struct onepot_error *error)
{
    const struct nvcomp_options options = {0};
    const uint64_t i = c->first, p = c->first_piece;
    const struct kernels_frames frames = {.content = d->memory,
                                          .content_bytes = d->bytes,
                                          .count = c->end - i,
                                          .from = t->from + i,
                                          .bytes = t->bytes + i,
                                          .sums = (unsigned long long *)(void *)(t->sums + i)};
    const struct kernels_pieces pieces = {.content = d->memory,
                                          .content_bytes = d->bytes,
                                          .to = w->to,
                                          .to_bytes = w->to_bytes,
                                          .count = c->end_piece - p,
                                          .from = t->piece_from + p,
                                          .at = t->piece_at + p,
                                          .bytes = t->piece_bytes + p};
    int status = nvcomp.decompress(
        (const void *const *)(const void *)(t->packed + i),
        (const size_t *)(const void *)(t->packed_bytes + i),
        (const size_t *)(const void *)(t->bytes + i), (size_t *)(void *)(t->got + i),
        c->end - i, d->memory + d->bytes, d->temp_bytes, (void *const *)(void *)(t->to + i),
        options, (int *)(void *)(t->statuses) + i, stream);
    if (status != NVCOMP_SUCCESS) { /* their sums stay 0, their lengths nothing */
        cudaGetLastError();
        return 0;
    }
    int r = gpu_checked(kernels_sum(stream, &frames), "sums of blocks", error);
    if (r == 0 && pieces.count)
        r = gpu_checked(kernels_place(stream, &pieces), "parts of blocks", error);
    return r;
}

int gpu_decompress(void *device, void *decompressor, void *stream, struct device_work *w,
                   struct onepot_error *error)
{
    const struct decompressor *d = decompressor;
    const struct tables here = tables_at(w->memory, w), there = tables_at(w->there, w);
    const size_t back = 3 * w->frame_count * sizeof(uint64_t);
    struct chunk c = {0};
    int r = gpu_enter(device, error);
    if (r < 0)
        return r;
    memset(w->memory, 0xff, back);
    uint64_t given = fill_tables(d, w, &here);
    r = gpu_checked(cudaMemcpyAsync(w->there, w->memory, w->bytes, cudaMemcpyDefault, stream),
                    "a copy", error);
    while (r == 0 && chunk_next(&here, given, &c))
        r = queue_chunk(d, w, &there, &c, stream, error);
    if (r == 0)
        r = gpu_checked(cudaMemcpyAsync(w->memory, w->there, back, cudaMemcpyDefault, stream),
                        "a copy", error);
    return gpu_left(r);
}

void gpu_decompress_end(struct device_work *w)
{
    const struct tables t = tables_at(w->memory, w);
    uint64_t n = 0;
    for (uint64_t i = 0; i < w->frame_count; i++) {
        struct device_frame *f = &w->frames[i];
        if (f->refused)
            continue;
        int status = ((const int *)(const void *)t.statuses)[n];
        f->refused = status != NVCOMP_SUCCESS || t.got[n] != f->bytes || t.sums[n] != f->sum;
        n++;
    }
}

/* ---- life ---- */

/* As many frames at once as the room is enough for. False: not even one. */
static bool plan_chunk(struct decompressor *d, uint64_t frame_bytes, uint64_t room)
{
    uint64_t each = gpu_rounded(frame_bytes);
    for (uint64_t n = CHUNK_FRAMES; n > 0; n /= 2) {
        size_t temp = 0;
        if (n > room / each || temp_bytes(n, each, &temp) != NVCOMP_SUCCESS ||
            gpu_rounded(temp) > room - n * each)
            continue;
        *d = (struct decompressor){.frames = n, .bytes = n * each, .temp_bytes = temp};
        return true;
    }
    return false;
}

static int start_decompressor(struct decompressor *d, uint64_t frame_bytes, uint64_t room,
                              struct onepot_error *error)
{
    void *memory = NULL;
    if (!plan_chunk(d, frame_bytes, room))
        return gpu_say(error, -ENOMEM,
                       "nvCOMP: there is no room for a block of %llu bytes (memory_bytes)",
                       (unsigned long long)frame_bytes);
    int r = gpu_checked(cudaMalloc(&memory, d->bytes + gpu_rounded(d->temp_bytes + 1)),
                        "nvCOMP: memory for blocks", error);
    d->memory = memory;
    return r;
}

int gpu_decompressor_new(void *device, uint64_t frame_bytes, uint64_t room,
                         struct onepot_error *error, char *name, void **ret_decompressor)
{
    const struct gpu *g = device;
    if (!g->has_kernels)
        return gpu_say(error, -ENOTSUP,
                       "CUDA: there are no kernels for this GPU, which compare what nvCOMP "
                       "makes");
    int r = need_library(error);
    struct decompressor *d = r == 0 ? calloc(1, sizeof(*d)) : NULL;
    if (!d)
        return r < 0 ? r : gpu_say(error, -ENOMEM, "no memory for a decompressor");
    r = gpu_enter(g, error);
    if (r == 0)
        r = gpu_left(start_decompressor(d, frame_bytes, room, error));
    if (r < 0) {
        free(d);
        return r;
    }
    snprintf(name, DEVICE_DECODER_NAME, "nvCOMP %u.%u", NVCOMP_MAJOR(library_version.number),
             NVCOMP_MINOR(library_version.number));
    *ret_decompressor = d;
    return 0;
}

void gpu_decompressor_free(void *device, void *decompressor)
{
    struct decompressor *d = decompressor;
    if (gpu_enter(device, NULL) < 0)
        return; /* the process ends, or the device is lost: nothing may be called */
    cudaFree(d->memory);
    free(d);
    gpu_left(0);
}

#else

int gpu_decompressor_new(void *device, uint64_t frame_bytes, uint64_t room,
                         struct onepot_error *error, char *name, void **ret_decompressor)
{
    (void)device, (void)frame_bytes, (void)room, (void)name, (void)ret_decompressor;
    return gpu_say(error, -ENOTSUP,
                   "CUDA: this libonepot-cuda.so was built without nvcc: it has no kernels, "
                   "which compare what nvCOMP makes");
}

void gpu_decompressor_free(void *device, void *decompressor)
{
    (void)device, (void)decompressor;
}

int gpu_decompress(void *device, void *decompressor, void *stream, struct device_work *work,
                   struct onepot_error *error)
{
    (void)device, (void)decompressor, (void)stream, (void)work;
    return gpu_say(error, -ENOTSUP, "CUDA: there is no decompressor");
}

void gpu_decompress_end(struct device_work *work)
{
    (void)work;
}

#endif
