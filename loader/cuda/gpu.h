/*
 * What the files of the part for CUDA share: the driver, errors, and being on a device for the
 * length of a call. Nothing of this is seen outside of the shared object.
 */
#ifndef ONEPOT_CUDA_GPU_H
#define ONEPOT_CUDA_GPU_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "device_type.h"

#define GPU_NODES_MAX 1024

/* How a device locks memory that nobody may write to. */
enum gpu_read_only {
    GPU_READ_ONLY_NOT,
    GPU_READ_ONLY_BY_FLAG,
    GPU_READ_ONLY_AS_ANY, /* it goes by the host's page tables */
};

struct gpu {
    CUdevice device;
    CUcontext context;
    int node; /* -1: not known */
    enum gpu_read_only read_only;
};

/* Functions of libcuda.so.1, after gpu_need_driver. */
struct gpu_driver {
    CUresult (*init)(unsigned flags);
    CUresult (*version)(int *ret_version);
    CUresult (*error_string)(CUresult error, const char **ret_text);
    CUresult (*get_count)(int *ret_count);
    CUresult (*get)(CUdevice *ret_device, int index);
    CUresult (*get_name)(char *name, int len, CUdevice device);
    CUresult (*get_bus)(char *bus, int len, CUdevice device);
    CUresult (*get_attribute)(int *ret_value, CUdevice_attribute which, CUdevice device);
    CUresult (*retain)(CUcontext *ret_context, CUdevice device);
    CUresult (*release)(CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *ret_context);
    CUresult (*exchange_capture_mode)(CUstreamCaptureMode *mode);
    /* NULL before CUDA 12.5 */
    CUresult (*record_context)(CUcontext context, CUevent event);
};
extern struct gpu_driver gpu_driver;

/* Fills *error, returns err. */
__attribute__((format(printf, 3, 4))) int gpu_say(struct onepot_error *error, int err,
                                                  const char *format, ...);

/* 0, or what the runtime said of `what`, which is taken from the thread's last error too. */
int gpu_checked(cudaError_t e, const char *what, struct onepot_error *error);
/* 0, or what the driver said. */
int gpu_driver_checked(CUresult e, const char *what, struct onepot_error *error);

/* Loads and begins the driver; -ENODEV with a word why it can't be. */
int gpu_need_driver(struct onepot_error *error);

/* On the device until gpu_leave; the thread's own context comes back then. */
int gpu_enter(const struct gpu *g, struct onepot_error *error);
void gpu_leave(void);

/* From now on: nothing may be called any more once the process has begun to end. Called when
 * the runtime has begun, so that this is known before the runtime itself ends. */
void gpu_watch_exit(void);

/* memory.c: as in struct device_type. */
int gpu_allocate(void *device, enum device_memory where, size_t bytes,
                 struct onepot_error *error, void **ret_memory);
void gpu_release(void *device, enum device_memory where, void *memory, size_t bytes);
int gpu_lock(void *device, const void *memory, size_t bytes, struct onepot_error *error);
void gpu_unlock(void *device, const void *memory, size_t bytes);
int gpu_address(void *device, const void *memory, struct onepot_error *error,
                uint64_t *ret_address);

#endif
