/*
 * The part of nvJPEG that is used, as its documentation describes versions 12 and 13. It is
 * loaded by its name, so nothing of it is needed to build this.
 */
#ifndef ONEPOT_CUDA_NVJPEG_H
#define ONEPOT_CUDA_NVJPEG_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#define NVJPEG_OLDEST 12
#define NVJPEG_NEWEST 13

enum {
    NVJPEG_SUCCESS = 0,
    NVJPEG_BAD_JPEG = 3,
    NVJPEG_NOT_SUPPORTED = 4,
    NVJPEG_ALLOCATOR_FAILURE = 5,
    NVJPEG_EXECUTION_FAILED = 6,
    NVJPEG_ARCH_MISMATCH = 7,
};

enum { NVJPEG_MAJOR = 0, NVJPEG_MINOR = 1 }; /* of nvjpegGetProperty */

enum {
    NVJPEG_GPU_HYBRID = 2, /* the GPU's processors do it all but reading the headers, */
    NVJPEG_HARDWARE = 3,   /* or engines of their own, which some GPUs have */
};

/* Colours between two samples are interpolated, as libjpeg-turbo does. */
#define NVJPEG_SMOOTH 32u

#define NVJPEG_RGB_ROWS 5 /* red, green and blue of a pixel side by side */
#define NVJPEG_CHANNELS 4

struct nvjpeg_image {
    unsigned char *channel[NVJPEG_CHANNELS];
    size_t pitch[NVJPEG_CHANNELS];
};

/* Its functions; handles are pointers, results one of the numbers above. */
struct nvjpeg {
    int (*get_property)(int which, int *ret_value);
    int (*create)(int backend, void *device_allocator, void *host_allocator, unsigned flags,
                  void **ret_handle);
    int (*destroy)(void *handle);
    int (*state_create)(void *handle, void **ret_state);
    int (*state_destroy)(void *state);
    int (*parser_create)(void *handle, void **ret_parser);
    int (*parser_destroy)(void *parser);
    int (*parse_header)(void *handle, const unsigned char *bytes, size_t len, void *parser);
    int (*get_size)(void *parser, unsigned *ret_width, unsigned *ret_height);
    int (*is_supported)(void *handle, void *parser, int *ret_not); /* 0: it is */
    int (*begin)(void *handle, void *state, int count, int threads, int format);
    /* The files lie in the host's memory, and are read until the stream is past it. */
    int (*decode)(void *handle, void *state, const unsigned char *const *files,
                  const size_t *lengths, struct nvjpeg_image *to, cudaStream_t stream);
};

#endif
