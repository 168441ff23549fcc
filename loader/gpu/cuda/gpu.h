/*
 * Shared by the files of the CUDA part: the driver, errors, and being on a device during a
 * call. Nothing of this is visible outside of the shared object.
 */
#ifndef ONEPOT_CUDA_GPU_H
#define ONEPOT_CUDA_GPU_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "device_type.h"

#define GPU_NODES_MAX 1024

#ifndef GPU_MODULE_VERSION /* the tests have another one */
#define GPU_MODULE_VERSION "/sys/module/nvidia/version"
#endif

/* How a device locks memory that may not be written to. */
enum gpu_read_only {
    GPU_READ_ONLY_NOT,
    GPU_READ_ONLY_BY_FLAG,
    GPU_READ_ONLY_AS_ANY, /* the device uses the host's page tables */
};

struct gpu {
    CUdevice device;
    CUcontext context;
    int node; /* -1: not known */
    enum gpu_read_only read_only;
    bool has_kernels; /* that run on it */
    bool locks_files; /* without marking their pages as changed */
};

/* Functions of libcuda.so.1. Call gpu_need_driver first. */
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
    CUresult (*stream_context)(CUstream stream, CUcontext *ret_context);
    /* NULL before CUDA 12.5. A green context's stream has the primary context, and that one. */
    CUresult (*stream_contexts)(CUstream stream, CUcontext *ret_context, void **ret_green);
    /* NULL before CUDA 12.5 */
    CUresult (*record_context)(CUcontext context, CUevent event);
};
extern struct gpu_driver gpu_driver;

/* Fills *error (NULL is fine) and returns err. */
__attribute__((format(printf, 3, 4))) int gpu_say(struct onepot_error *error, int err,
                                                  const char *format, ...);

/*
 * 0, or the runtime's error at `what`, which is also cleared as the thread's last error.
 * -EAGAIN: an event that was asked for is not done.
 */
int gpu_checked(cudaError_t e, const char *what, struct onepot_error *error);

/*
 * Be on the device until gpu_left, which restores the thread's own context and returns its
 * argument:
 *
 *     int r = gpu_enter(g, error);
 *     return r < 0 ? r : gpu_left(gpu_checked(cudaEventRecord(event, stream), "...", error));
 */
int gpu_enter(const struct gpu *g, struct onepot_error *error);
int gpu_left(int result);

/* All of that for one call of the runtime, whose result is checked (gpu_checked). */
#define gpu_call(g, call, what, error)                                                         \
    ({                                                                                         \
        int entered = gpu_enter(g, error);                                                     \
        entered < 0 ? entered : gpu_left(gpu_checked(call, what, error));                      \
    })

#endif
