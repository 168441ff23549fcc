/* The driver: devices, and which context a thread is in. */
#include "played.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define DEPTH 8

static struct played state;
static pid_t begun;
static bool ends;                                      /* the process, and the driver with it */
static int contexts[DEVICES_MAX], greens[DEVICES_MAX]; /* a context is such an address */

static _Thread_local void *stack[DEPTH];
static _Thread_local unsigned depth;
static _Thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static void *current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static void *primary(int device)
{
    return &contexts[device];
}

static bool is_relaxed(void)
{
    return mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

static bool is_lost(const void *context)
{
    unsigned lost = __atomic_load_n(&state.lost_devices, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&state.lost, __ATOMIC_ACQUIRE) ||
           (context && lost >> ((const int *)context - contexts) & 1);
}

static int devices_wanted(void)
{
    const char *number = getenv("PLAYED_DEVICES");
    return number ? atoi(number) : 1;
}

__attribute__((visibility("default"))) played_entry played_cuda;

struct played *played_cuda(void)
{
    if (!state.devices)
        state = (struct played){.devices = devices_wanted(),
                                .memory_bytes = (size_t)1 << 30,
                                .locked_bytes = (size_t)1 << 30,
                                .current = current,
                                .primary = primary,
                                .is_relaxed = is_relaxed,
                                .is_lost = is_lost};
    return &state;
}

static void forbid(const char *what)
{
    fprintf(stderr, "CUDA, played: %s\n", what);
    abort();
}

/* In a process that began it, and not in a child of that. */
static bool is_begun(void)
{
    return begun == getpid();
}

static void end(void)
{
    ends = true;
}

CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!begun)
        atexit(end);
    if (begun && !is_begun())
        return CUDA_ERROR_NOT_INITIALIZED; /* a child of who began it */
    begun = getpid();
    return played_cuda()->devices < 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **ret_text)
{
    *ret_text = error == CUDA_SUCCESS ? "no error" : "an error of the played driver";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *ret_count)
{
    if (!is_begun())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (state.devices < 0)
        return CUDA_ERROR_NO_DEVICE;
    *ret_count = state.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ret_device, int index)
{
    if (!is_begun())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (index < 0 || index >= state.devices || index >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    *ret_device = index;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *ret_version)
{
    *ret_version = state.old ? 11040 : 99090;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *ret_value, CUdevice_attribute which, CUdevice device)
{
    (void)device;
    if (which == CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)
        *ret_value = !state.no_registering;
    else if (which == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
        *ret_value = !state.no_read_only;
    else if (which == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
        *ret_value = state.host_tables;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    snprintf(name, (size_t)len, "played GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus, int len, CUdevice device)
{
    snprintf(bus, (size_t)len, "FFFF:%02X:00.0", device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
    if (!is_begun())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (is_lost(primary(device)))
        return CUDA_ERROR_UNKNOWN;
    __atomic_fetch_add(&state.contexts, 1, __ATOMIC_RELAXED);
    *ret_context = (CUcontext)(void *)&contexts[device];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    if (ends)
        forbid("a context is released while the process ends");
    if (__atomic_fetch_sub(&state.contexts, 1, __ATOMIC_RELAXED) == 0)
        forbid("a context is released once more than it was retained");
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (!is_begun())
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((int *)(void *)context < contexts || (int *)(void *)context >= contexts + DEVICES_MAX)
        forbid("a context that is none");
    if (depth == DEPTH)
        forbid("contexts are pushed and not popped");
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *ret_context)
{
    if (!depth)
        forbid("a context is popped that was not pushed");
    *ret_context = stack[--depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
    if (!context || context != current())
        forbid("an event of another context");
    if (state.no_context_events)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (is_lost(context))
        return CUDA_ERROR_UNKNOWN;
    __atomic_fetch_add(&state.context_events, 1, __ATOMIC_RELAXED);
    return state.record_all(context, event) < 0 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                : CUDA_SUCCESS;
}

typedef struct CUgreenCtx_st *CUgreenCtx; /* older headers have none */

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *ret_context, CUgreenCtx *ret_green)
{
    bool is_green;
    *ret_context = state.context_of(stream, &is_green);
    *ret_green = is_green ? (void *)&greens[(int *)(void *)*ret_context - contexts] : NULL;
    return CUDA_SUCCESS;
}

/* Of a green context: what it was converted to, which is not the primary one's handle. */
CUresult cuStreamGetCtx(CUstream stream, CUcontext *ret_context)
{
    CUgreenCtx green;
    cuStreamGetCtx_v2(stream, ret_context, &green);
    if (green)
        *ret_context = (void *)green;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode kept = mode;
    mode = *other;
    *other = kept;
    return CUDA_SUCCESS;
}
