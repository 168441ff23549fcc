/*
 * Shared by the files of the played runtime: runtime.c has its calls, ranges.c memory,
 * streams.c the order of tasks, kernels.cpp the kernels.
 */
#ifndef ONEPOT_TESTS_CUDA_RUNTIME_H
#define ONEPOT_TESTS_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct played;

/* The driver's, once the runtime has begun. */
extern struct played *played_driver;

/* End the process: a GPU would not forgive that. */
void played_forbid(const char *what, const void *memory);

/* ---- memory ---- */

/* Where these bytes of the device lie for the host; it ends the process if they are no memory
 * of the device, or if the calling stream's device can't reach them. */
__attribute__((visibility("default"))) void *played_at(const void *memory, size_t bytes);

/* Where these bytes lie for the host, at an address that kernels read: of locked memory. */
const void *played_locked_at(const void *address, size_t bytes);

/* The bytes of a copy: the device's or the host's. */
void *played_either(const void *memory, size_t bytes);
/* They are the host's, and not locked, or not for this context. */
bool played_is_pageable(const void *context, const void *memory, size_t bytes);

cudaError_t ranges_allocate(void *context, size_t bytes, void **ret_memory);
cudaError_t ranges_free(const void *context, void *memory);
cudaError_t ranges_lock(void *context, void *memory, size_t bytes, unsigned flags);
cudaError_t ranges_unlock(void *memory);
cudaError_t ranges_address(const void *context, const void *memory, void **ret_there);
size_t ranges_used(const void *context);  /* bytes of a device's own */
void *ranges_context(const void *memory); /* of memory of a device; else NULL */
unsigned long ranges_count(void);
void ranges_begin(void);

/* ---- for others in the process ---- */

/* A stream that somebody else has. */
__attribute__((visibility("default"))) void *played_stream(void);
__attribute__((visibility("default"))) void *played_stream_on(int device);
__attribute__((visibility("default"))) void played_stream_free(void *stream);
__attribute__((visibility("default"))) void played_call(void *stream,
                                                        void (*function)(void *ctx));
/* Whose memory that is; -1: no device's. */
__attribute__((visibility("default"))) int played_device_of(const void *memory);

/* For tests in Python, what struct played has. end_capture: -1 if it was broken. */
__attribute__((visibility("default"))) void played_quiet(void);
__attribute__((visibility("default"))) void played_begin_capture(void *stream);
__attribute__((visibility("default"))) int played_end_capture(void *stream);

/* How often all that the device was given was followed, until now. */
__attribute__((visibility("default"))) unsigned long played_context_events(void);

/* ---- kernels ---- */

/* A GPU reads a number of so many bytes at multiples of them alone. */
void played_need_aligned(const void *memory, size_t bytes);

/* `function` is called when the stream comes to it. */
cudaError_t played_launch(cudaStream_t stream, dim3 grid, unsigned threads,
                          void (*function)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif

#endif
