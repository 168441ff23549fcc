/*
 * Direct calls of NVIDIA's driver. They put a thread on a device for the length of a call and
 * leave it as it was, without starting a context on a device that nobody asked for; the runtime
 * can't do that. The driver is loaded by its name. So where there is none, this object can
 * still be loaded, and reports its absence.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

#define FORKED                                                                                 \
    "CUDA: it can't be used in a forked child of a process that used it; start "               \
    "the process anew (multiprocessing: spawn)"

struct gpu_driver gpu_driver;

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static struct onepot_error driver_error; /* of loading the driver */
static pid_t driver_pid;                 /* of the process that started it */

/* ---- errors ---- */

int gpu_say(struct onepot_error *error, int err, const char *format, ...)
{
    va_list args;
    if (!error)
        return err;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    error->code = err;
    return err;
}

bool gpu_is_captured(cudaError_t e)
{
    return e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorCapturedEvent;
}

int gpu_checked(cudaError_t e, const char *what, struct onepot_error *error)
{
    if (e == cudaSuccess)
        return 0;
    cudaGetLastError();
    int err = e == cudaErrorMemoryAllocation        ? -ENOMEM
              : e == cudaErrorNotReady              ? -EAGAIN
              : e == cudaErrorInsufficientDriver    ? -ENODEV
              : gpu_is_captured(e)                  ? -EBUSY
              : e == cudaErrorInvalidResourceHandle ? -EINVAL
                                                    : -EIO;
    return gpu_say(error, err, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e),
                   cudaGetErrorName(e));
}

int gpu_driver_checked(CUresult e, const char *what, struct onepot_error *error)
{
    const char *text = NULL;
    if (e == CUDA_SUCCESS)
        return 0;
    if (gpu_driver.error_string(e, &text) != CUDA_SUCCESS || !text)
        text = "an error without a name";
    int err = e == CUDA_ERROR_OUT_OF_MEMORY                                 ? -ENOMEM
              : e == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED                  ? -EBUSY
              : e == CUDA_ERROR_NO_DEVICE || e == CUDA_ERROR_INVALID_DEVICE ? -ENODEV
                                                                            : -EIO;
    return gpu_say(error, err, "CUDA: %s: %s (driver's error %d)", what, text, (int)e);
}

/* ---- loading the driver ---- */

static bool find_functions(void *object)
{
    const struct {
        const char *name;
        void *function;
    } names[] = {{"cuInit", &gpu_driver.init},
                 {"cuDriverGetVersion", &gpu_driver.version},
                 {"cuGetErrorString", &gpu_driver.error_string},
                 {"cuDeviceGetCount", &gpu_driver.get_count},
                 {"cuDeviceGet", &gpu_driver.get},
                 {"cuDeviceGetName", &gpu_driver.get_name},
                 {"cuDeviceGetPCIBusId", &gpu_driver.get_bus},
                 {"cuDeviceGetAttribute", &gpu_driver.get_attribute},
                 {"cuDevicePrimaryCtxRetain", &gpu_driver.retain},
                 {"cuDevicePrimaryCtxRelease_v2", &gpu_driver.release},
                 {"cuCtxPushCurrent_v2", &gpu_driver.push},
                 {"cuCtxPopCurrent_v2", &gpu_driver.pop},
                 {"cuStreamGetCtx", &gpu_driver.stream_context},
                 {"cuThreadExchangeStreamCaptureMode", &gpu_driver.exchange_capture_mode}};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *function = dlsym(object, names[i].name);
        if (!function) {
            gpu_say(&driver_error, -ENODEV, "CUDA: NVIDIA's driver is too old: it has no %s",
                    names[i].name);
            return false;
        }
        memcpy(names[i].function, &function, sizeof(function));
    }
    void *function = dlsym(object, "cuCtxRecordEvent");
    memcpy(&gpu_driver.record_context, &function, sizeof(function));
    function = dlsym(object, "cuStreamGetCtx_v2");
    memcpy(&gpu_driver.stream_contexts, &function, sizeof(function));
    return true;
}

/* A driver that anybody started before a fork reports in the child that it is not started. */
static void load_driver(void)
{
    void *object = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        gpu_say(&driver_error, -ENODEV, "CUDA: NVIDIA's driver is not installed (%s)",
                dlerror());
        return;
    }
    if (!find_functions(object))
        return;
    CUresult e = gpu_driver.init(0);
    if (e == CUDA_ERROR_NOT_INITIALIZED)
        gpu_say(&driver_error, -ENODEV, FORKED);
    else if (e != CUDA_SUCCESS && e != CUDA_ERROR_NO_DEVICE)
        gpu_driver_checked(e, "the driver can't be started", &driver_error);
    driver_pid = getpid();
}

int gpu_need_driver(struct onepot_error *error)
{
    pthread_once(&driver_once, load_driver);
    if (driver_error.code < 0)
        return gpu_say(error, driver_error.code, "%s", driver_error.text);
    return driver_pid == getpid() ? 0 : gpu_say(error, -ENODEV, FORKED);
}

/* ---- the end of the process ---- */

/*
 * When the process ends, by exit or at the end of main, the runtime and the driver end, too,
 * and not in our order. Meanwhile threads may still call us, and the last resources are
 * released.
 */
static atomic_bool ending;

static void note_the_end(void)
{
    atomic_store(&ending, true);
}

static void driver_watch(void)
{
    atexit(note_the_end); /* runs before earlier handlers, such as the runtime's */
}

void gpu_watch_exit(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, driver_watch);
}

void gpu_give_back(CUdevice device)
{
    if (!atomic_load(&ending))
        gpu_driver.release(device);
}

/* ---- being on a device ---- */

/*
 * Some calls on a device are forbidden while any thread captures a graph: they would fail, and
 * so would the graph. None of our calls concern captured streams, so the thread asks for
 * permission.
 */
static _Thread_local CUstreamCaptureMode kept_mode;

int gpu_enter(const struct gpu *g, struct onepot_error *error)
{
    if (atomic_load(&ending))
        return gpu_say(error, -ENODEV, "CUDA: the process ends");
    int r = gpu_driver_checked(gpu_driver.push(g->context), "the device can't be used", error);
    if (r < 0)
        return r;
    kept_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    gpu_driver.exchange_capture_mode(&kept_mode);
    return 0;
}

int gpu_left(int result)
{
    CUcontext ours;
    gpu_driver.exchange_capture_mode(&kept_mode);
    gpu_driver.pop(&ours);
    return result;
}
