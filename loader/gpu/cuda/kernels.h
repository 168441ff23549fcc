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

/* Is there code for the present device? cudaErrorNoKernelImageForDevice. */
cudaError_t kernels_find(void);

cudaError_t kernels_gather(cudaStream_t stream, const struct device_gather *gather);
cudaError_t kernels_convert(cudaStream_t stream, const struct onepot_conversion *images,
                            uint64_t count, const uint8_t *from, void *to);

#ifdef __cplusplus
}
#endif

#endif
