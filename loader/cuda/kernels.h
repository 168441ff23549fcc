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

/* Is there code for the present device? cudaErrorNoKernelImageForDevice. */
cudaError_t kernels_find(void);

cudaError_t kernels_gather(cudaStream_t stream, const struct device_gather *gather);
cudaError_t kernels_convert(cudaStream_t stream, const struct onepot_conversion *images,
                            uint64_t count, const uint8_t *from, void *to);
cudaError_t kernels_resample(cudaStream_t stream, const struct device_images *images,
                             const struct kernels_picture *pictures, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
