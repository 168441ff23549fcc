/*
 * The kernels and their launches: the part of the CUDA device that nvcc compiles. Each function
 * returns the result of the launch.
 */
#ifndef ONEPOT_CUDA_KERNELS_H
#define ONEPOT_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#include "device_type.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An axis of a picture, and its weights, which a kernel makes. */
struct kernels_taps {
    struct axis axis;
    uint32_t most;
    struct taps_span *spans; /* [axis.count] */
    int16_t *weights;        /* [axis.count][most] */
};

/* A decoded picture, red, green and blue of a pixel side by side, and where its image goes. */
struct kernels_picture {
    const uint8_t *pixels;
    uint64_t pitch; /* bytes from row to row */
    void *to;
    struct kernels_taps x, y;
    bool many; /* pixels make one: sums have 32 bits, see resample.c */
};

/* So many a launch takes as its argument. */
#define KERNELS_PICTURES 16u

struct kernels_pictures {
    struct device_images images;
    uint32_t count;
    struct kernels_picture at[KERNELS_PICTURES];
};

/* Decompressed frames, one after another in a piece of memory. The tables are on the device. */
struct kernels_frames {
    const uint8_t *content; /* frames begin at multiples of 8 */
    uint64_t content_bytes;
    uint64_t count;
    const uint64_t *from, *bytes; /* [count]: where each begins, and its size */
    unsigned long long *sums;     /* [count]: each frame's is added to it (frame_sum.h) */
};

/* Parts of them that are copied to their places in a batch. */
struct kernels_pieces {
    const uint8_t *content;
    uint64_t content_bytes;
    uint8_t *to;
    uint64_t to_bytes;
    uint64_t count;
    const uint64_t *from, *at, *bytes; /* [count] */
};

/* Is there code for the present device? cudaErrorNoKernelImageForDevice. */
cudaError_t kernels_find(void);

cudaError_t kernels_gather(cudaStream_t stream, const struct device_gather *gather);
cudaError_t kernels_convert(cudaStream_t stream, const struct onepot_conversion *images,
                            uint64_t count, const uint8_t *from, void *to);
cudaError_t kernels_resample(cudaStream_t stream, const struct device_images *images,
                             const struct kernels_picture *pictures, uint32_t count);
cudaError_t kernels_sum(cudaStream_t stream, const struct kernels_frames *frames);
cudaError_t kernels_place(cudaStream_t stream, const struct kernels_pieces *pieces);

#ifdef __cplusplus
}
#endif

#endif
