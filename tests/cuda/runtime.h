/* What the played runtime has for kernels that the host runs (kernels.cpp). */
#ifndef ONEPOT_TESTS_CUDA_RUNTIME_H
#define ONEPOT_TESTS_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where these bytes of the device lie for the host; it ends the process if they are no memory
 * of the device. */
__attribute__((visibility("default"))) void *played_at(const void *memory, size_t bytes);

/* A stream that somebody else has in this process. */
__attribute__((visibility("default"))) void *played_stream(void);

/* How often all that the device was given was followed, until now. */
__attribute__((visibility("default"))) unsigned long played_context_events(void);

/* A kernel reads these bytes of the host: they have to be locked. */
void played_need_locked(const void *memory, size_t bytes);

/* A GPU reads a number of so many bytes at multiples of them alone. */
void played_need_aligned(const void *memory, size_t bytes);

/* `function` is called when the stream comes to it. */
cudaError_t played_launch(cudaStream_t stream, void (*function)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif

#endif
