/*
 * The part of nvCOMP that is used, as the documentation of versions 5 and 6 describes it. It is
 * loaded by its name, so nothing of it is needed to build this.
 */
#ifndef ONEPOT_CUDA_NVCOMP_H
#define ONEPOT_CUDA_NVCOMP_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#define NVCOMP_OLDEST 5
#define NVCOMP_NEWEST 6

#define NVCOMP_SUCCESS 0

struct nvcomp_version {
    uint32_t number; /* thousands are the major version, hundreds the minor one */
    uint32_t cuda;
};
#define NVCOMP_MAJOR(number) ((number) / 1000)
#define NVCOMP_MINOR(number) ((number) % 1000 / 100)

/* Zeros are the defaults. */
struct nvcomp_options {
    int backend;
    char reserved[60];
};

/* Its functions. Results are 0, or the number of an error. Sizes of chunks are in bytes. */
struct nvcomp {
    int (*get_version)(struct nvcomp_version *ret_version);
    /* How much memory of the device it takes to decompress so many chunks at once. */
    int (*temp_bytes_5)(size_t chunks, size_t chunk_bytes, struct nvcomp_options options,
                        size_t *ret_bytes, size_t all_bytes);
    int (*temp_bytes_6)(size_t chunks, size_t chunk_bytes, struct nvcomp_options options,
                        size_t *ret_bytes, size_t all_bytes, cudaStream_t stream);
    /* All arrays are in memory of the device. */
    int (*decompress)(const void *const *packed, const size_t *packed_bytes,
                      const size_t *room_bytes, size_t *ret_bytes, size_t chunks, void *temp,
                      size_t temp_bytes, void *const *to, struct nvcomp_options options,
                      int *ret_statuses, cudaStream_t stream);
};

#endif
