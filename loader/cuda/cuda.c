/*
 * CUDA as a device, by the runtime; a shared object of its own. The driver's interface is used
 * for one thing that the runtime can't do: to be on a device for the length of a call and to
 * leave the thread as it was, without beginning a context on a device that nobody asked for.
 * The device's primary context is what every runtime in the process uses, torch's included.
 *
 * Page-locked memory is mapped first, bound to the node next to the device, and then
 * registered, since memory that CUDA allocates lies where it likes.
 */
#include "device_type.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif

#ifdef ONEPOT_CUDA_KERNELS
#include "kernels.h"
#endif

#define HUGE_BYTES (2u << 20)
#define NODES_MAX 1024
#define BITS (8 * (int)sizeof(unsigned long))

struct gpu {
    CUdevice device;
    CUcontext context;
    int node; /* -1: not known */
};

/* ---- errors ---- */

__attribute__((format(printf, 3, 4))) static int say(struct onepot_error *error, int err,
                                                     const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    error->code = err;
    return err;
}

/* 0, or what the runtime said of `what`, which is taken from the thread's last error too. */
static int checked(cudaError_t e, const char *what, struct onepot_error *error)
{
    if (e == cudaSuccess)
        return 0;
    cudaGetLastError();
    int err = e == cudaErrorMemoryAllocation     ? -ENOMEM
              : e == cudaErrorInsufficientDriver ? -ENODEV
                                                 : -EIO;
    return say(error, err, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e),
               cudaGetErrorName(e));
}

/* ---- the driver ---- */

static struct {
    CUresult (*init)(unsigned flags);
    CUresult (*error_string)(CUresult error, const char **ret_text);
    CUresult (*get_count)(int *ret_count);
    CUresult (*get)(CUdevice *ret_device, int index);
    CUresult (*get_name)(char *name, int len, CUdevice device);
    CUresult (*get_bus)(char *bus, int len, CUdevice device);
    CUresult (*retain)(CUcontext *ret_context, CUdevice device);
    CUresult (*release)(CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *ret_context);
    CUresult (*exchange_capture_mode)(CUstreamCaptureMode *mode);
} driver;

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static struct onepot_error driver_error; /* of loading it */
static pid_t driver_pid;                 /* that began it */

static int driver_checked(CUresult e, const char *what, struct onepot_error *error)
{
    const char *text = NULL;
    if (e == CUDA_SUCCESS)
        return 0;
    if (driver.error_string(e, &text) != CUDA_SUCCESS || !text)
        text = "an error without a name";
    int err = e == CUDA_ERROR_OUT_OF_MEMORY                                 ? -ENOMEM
              : e == CUDA_ERROR_NO_DEVICE || e == CUDA_ERROR_INVALID_DEVICE ? -ENODEV
                                                                            : -EIO;
    return say(error, err, "CUDA: %s: %s (driver's error %d)", what, text, (int)e);
}

static void load_driver(void)
{
    const struct {
        const char *name;
        void *function;
    } names[] = {{"cuInit", &driver.init},
                 {"cuGetErrorString", &driver.error_string},
                 {"cuDeviceGetCount", &driver.get_count},
                 {"cuDeviceGet", &driver.get},
                 {"cuDeviceGetName", &driver.get_name},
                 {"cuDeviceGetPCIBusId", &driver.get_bus},
                 {"cuDevicePrimaryCtxRetain", &driver.retain},
                 {"cuDevicePrimaryCtxRelease_v2", &driver.release},
                 {"cuCtxPushCurrent_v2", &driver.push},
                 {"cuCtxPopCurrent_v2", &driver.pop},
                 {"cuThreadExchangeStreamCaptureMode", &driver.exchange_capture_mode}};
    void *object = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        say(&driver_error, -ENODEV, "CUDA: NVIDIA's driver is not installed (%s)", dlerror());
        return;
    }
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *function = dlsym(object, names[i].name);
        if (!function) {
            say(&driver_error, -ENODEV, "CUDA: NVIDIA's driver is too old: it has no %s",
                names[i].name);
            return;
        }
        memcpy(names[i].function, &function, sizeof(function));
    }
    CUresult e = driver.init(0);
    if (e != CUDA_SUCCESS && e != CUDA_ERROR_NO_DEVICE)
        driver_checked(e, "the driver can't be begun", &driver_error);
    driver_pid = getpid();
}

static int need_driver(struct onepot_error *error)
{
    pthread_once(&driver_once, load_driver);
    if (driver_error.code < 0) {
        *error = driver_error;
        return error->code;
    }
    if (driver_pid != getpid())
        return say(error, -ENODEV,
                   "CUDA: it can't be used in a forked child of a process that used it; start "
                   "the process anew (multiprocessing: spawn)");
    return 0;
}

/*
 * On the device until `leave`; the thread's own context comes back then. Some of what is called
 * meanwhile is forbidden while any thread captures a graph: it would fail, and so would the
 * graph. None of it is about the captured streams, so the thread asks to be allowed.
 */
static _Thread_local CUstreamCaptureMode kept_mode;

static int enter(const struct gpu *g, struct onepot_error *error)
{
    int r = driver_checked(driver.push(g->context), "the device can't be used", error);
    if (r < 0)
        return r;
    kept_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver.exchange_capture_mode(&kept_mode);
    return 0;
}

static void leave(void)
{
    CUcontext ours;
    driver.exchange_capture_mode(&kept_mode);
    driver.pop(&ours);
}

/* ---- devices ---- */

static int count(struct onepot_error *error, uint32_t *ret_count)
{
    int n = 0, r = need_driver(error);
    if (r < 0)
        return r;
    CUresult e = driver.get_count(&n);
    if (e == CUDA_ERROR_NO_DEVICE || e == CUDA_ERROR_NOT_INITIALIZED)
        n = 0; /* the driver is there, but no device */
    else if (e != CUDA_SUCCESS)
        return driver_checked(e, "devices can't be counted", error);
    *ret_count = (uint32_t)n;
    return 0;
}

static int find_node(CUdevice device)
{
    char bus[64] = "", path[128];
    int node = -1;
    if (driver.get_bus(bus, sizeof(bus), device) != CUDA_SUCCESS)
        return -1;
    for (char *c = bus; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    if (fscanf(f, "%d", &node) != 1 || node >= NODES_MAX)
        node = -1;
    fclose(f);
    return node;
}

static void close_gpu(void *device)
{
    struct gpu *g = device;
    driver.release(g->device);
    free(g);
}

/* A driver that is too old for the runtime is found here, not at the first batch. */
static int begin_runtime(const struct gpu *g, struct onepot_error *error)
{
    int r = enter(g, error);
    if (r < 0)
        return r;
    r = checked(cudaFree(NULL), "the runtime can't be begun", error);
    leave();
    return r;
}

static int open_gpu(uint32_t index, struct onepot_error *error, void **ret_device)
{
    int r = need_driver(error);
    if (r < 0)
        return r;
    struct gpu *g = calloc(1, sizeof(*g));
    if (!g)
        return say(error, -ENOMEM, "no memory for a device");
    r = driver_checked(driver.get(&g->device, (int)index), "no such device", error);
    if (r == 0)
        r = driver_checked(driver.retain(&g->context, g->device), "the device can't be opened",
                           error);
    if (r < 0) {
        free(g);
        return r;
    }
    r = begin_runtime(g, error);
    if (r < 0) {
        close_gpu(g);
        return r;
    }
    g->node = find_node(g->device);
    *ret_device = g;
    return 0;
}

static int info(void *device, struct onepot_error *error, struct onepot_device_info *ret_info)
{
    struct gpu *g = device;
    size_t free_bytes = 0, total_bytes = 0;
    int r =
        driver_checked(driver.get_name(ret_info->name, (int)sizeof(ret_info->name), g->device),
                       "the device's name", error);
    if (r == 0)
        r = enter(g, error);
    if (r < 0)
        return r;
    r = checked(cudaMemGetInfo(&free_bytes, &total_bytes), "the device's memory", error);
    leave();
    ret_info->numa_node = g->node;
    ret_info->free_bytes = free_bytes;
    ret_info->total_bytes = total_bytes;
#ifdef ONEPOT_CUDA_KERNELS
    ret_info->kernels = 1;
#endif
    return r;
}

/* ---- memory ---- */

static int lock_for(void *device, const void *memory, size_t bytes, unsigned more,
                    struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    cudaError_t e = cudaHostRegister((void *)(uintptr_t)memory, bytes,
                                     cudaHostRegisterPortable | cudaHostRegisterMapped | more);
    r = checked(e, "memory can't be page-locked (ulimit -l?)", error);
    leave();
    return r;
}

static int lock_pages(void *device, const void *memory, size_t bytes,
                      struct onepot_error *error)
{
    return lock_for(device, memory, bytes, cudaHostRegisterReadOnly, error);
}

static void unlock_pages(void *device, const void *memory, size_t bytes)
{
    struct onepot_error unseen;
    (void)bytes;
    if (enter(device, &unseen) < 0)
        return;
    checked(cudaHostUnregister((void *)(uintptr_t)memory), "unlock", &unseen);
    leave();
}

static int address(void *device, const void *memory, struct onepot_error *error,
                   uint64_t *ret_address)
{
    void *there = NULL;
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaHostGetDevicePointer(&there, (void *)(uintptr_t)memory, 0),
                "memory of the host can't be seen by the device", error);
    leave();
    if (r == 0)
        *ret_address = (uintptr_t)there;
    return r;
}

/* Preferred, not asked for: a node that is full is no error. */
static void bind_to_node(void *memory, size_t bytes, int node)
{
    enum { MPOL_PREFERRED_NODE = 1 };
    unsigned long mask[NODES_MAX / BITS + 1] = {0};
    if (node < 0)
        return;
    mask[node / BITS] |= 1ul << (node % BITS);
    syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED_NODE, mask,
            (unsigned long)sizeof(mask) * 8, 0u);
}

static int allocate_locked(struct gpu *g, size_t bytes, struct onepot_error *error,
                           void **ret_memory)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return say(error, -ENOMEM, "no memory for %zu bytes", bytes);
    bind_to_node(p, bytes, g->node);
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    /* A forked child must not take the pages over by its writes, nor hold them. */
    madvise(p, bytes, MADV_DONTFORK);
    int r = lock_for(g, p, bytes, 0, error);
    if (r < 0) {
        munmap(p, bytes);
        return r;
    }
    *ret_memory = p;
    return 0;
}

static int allocate(void *device, enum device_memory where, size_t bytes,
                    struct onepot_error *error, void **ret_memory)
{
    if (where == DEVICE_MEMORY_LOCKED)
        return allocate_locked(device, bytes, error, ret_memory);
    int r = enter(device, error);
    if (r < 0)
        return r;
    cudaError_t e = cudaMalloc(ret_memory, bytes);
    leave();
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return say(error, -ENOMEM,
                   "CUDA: the device has no room for %zu bytes more; smaller batches, or less "
                   "memory for the loader, may help",
                   bytes);
    }
    return checked(e, "memory of the device", error);
}

static void release(void *device, enum device_memory where, void *memory, size_t bytes)
{
    struct onepot_error unseen;
    if (where == DEVICE_MEMORY_LOCKED) {
        unlock_pages(device, memory, bytes);
        munmap(memory, bytes);
        return;
    }
    if (enter(device, &unseen) < 0)
        return;
    checked(cudaFree(memory), "release", &unseen);
    leave();
}

/* ---- streams ---- */

static int stream_new(void *device, struct onepot_error *error, void **ret_stream)
{
    cudaStream_t stream = NULL;
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream", error);
    leave();
    if (r == 0)
        *ret_stream = stream;
    return r;
}

static void stream_free(void *device, void *stream)
{
    struct onepot_error unseen;
    if (enter(device, &unseen) < 0)
        return;
    checked(cudaStreamDestroy(stream), "a stream", &unseen);
    leave();
}

static int stream_wait(void *device, void *stream, struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaStreamSynchronize(stream), "work on the device", error);
    leave();
    return r;
}

/* ---- events ---- */

/* Who waits for one sleeps, and does not spin. */
static int event_new(void *device, struct onepot_error *error, void **ret_event)
{
    cudaEvent_t event = NULL;
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "an event", error);
    leave();
    if (r == 0)
        *ret_event = event;
    return r;
}

static void event_free(void *device, void *event)
{
    struct onepot_error unseen;
    if (enter(device, &unseen) < 0)
        return;
    checked(cudaEventDestroy(event), "an event", &unseen);
    leave();
}

/* A stream that can't be recorded on was destroyed, and what it was given may still run. */
static int record(void *device, void *event, void *stream, struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaEventRecord(event, stream), "an event can't be recorded", error);
    if (r < 0) {
        cudaDeviceSynchronize();
        cudaGetLastError();
    }
    leave();
    return r;
}

static int follow(void *device, void *stream, void *event, struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaStreamWaitEvent(stream, event, 0), "a stream can't wait", error);
    leave();
    return r;
}

static int is_done(void *device, void *event, struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    cudaError_t e = cudaEventQuery(event);
    if (e == cudaErrorNotReady)
        cudaGetLastError();
    else
        r = checked(e, "work on the device", error);
    leave();
    return r < 0 ? r : e == cudaSuccess;
}

static int event_wait(void *device, void *event, struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaEventSynchronize(event), "work on the device", error);
    leave();
    return r;
}

static int elapsed(void *device, void *from, void *to, struct onepot_error *error,
                   uint64_t *ret_ns)
{
    float ms = 0;
    int r = enter(device, error);
    if (r < 0)
        return r;
    cudaError_t e = cudaEventElapsedTime(&ms, from, to);
    if (e == cudaErrorNotReady) {
        cudaGetLastError();
        r = say(error, -EAGAIN, "the events are not done");
    } else {
        r = checked(e, "a copy's time", error);
    }
    leave();
    if (r == 0)
        *ret_ns = (uint64_t)((double)ms * 1e6);
    return r;
}

/* ---- what is queued ---- */

static int copy(void *device, void *stream, void *to, const void *from, size_t bytes,
                struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "a copy", error);
    leave();
    return r;
}

static int call(void *device, void *stream, void (*function)(void *ctx), void *ctx,
                struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(cudaLaunchHostFunc(stream, function, ctx), "a call", error);
    leave();
    return r;
}

#ifdef ONEPOT_CUDA_KERNELS

static int gather(void *device, void *stream, const struct device_gather *g,
                  struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(kernels_gather(stream, g), "gathering", error);
    leave();
    return r;
}

static int convert(void *device, void *stream, const struct onepot_images *images, uint64_t n,
                   const uint8_t *from, void *to, struct onepot_error *error)
{
    int r = enter(device, error);
    if (r < 0)
        return r;
    r = checked(kernels_convert(stream, images, n, from, to), "images", error);
    leave();
    return r;
}

#else

static int no_kernels(struct onepot_error *error)
{
    return say(error, -ENOTSUP,
               "CUDA: this libonepot-cuda.so was built without nvcc: it has no "
               "kernels");
}

static int gather(void *device, void *stream, const struct device_gather *g,
                  struct onepot_error *error)
{
    (void)device, (void)stream, (void)g;
    return no_kernels(error);
}

static int convert(void *device, void *stream, const struct onepot_images *images, uint64_t n,
                   const uint8_t *from, void *to, struct onepot_error *error)
{
    (void)device, (void)stream, (void)images, (void)n, (void)from, (void)to;
    return no_kernels(error);
}

#endif

static void range(const char *name)
{
#ifdef HAVE_NVTX
    if (name)
        nvtxRangePushA(name);
    else
        nvtxRangePop();
#else
    (void)name;
#endif
}

static const struct device_type cuda = {
    .version = DEVICE_VERSION,
    .kind = "cuda",
    .count = count,
    .open = open_gpu,
    .close = close_gpu,
    .info = info,
    .allocate = allocate,
    .release = release,
    .lock = lock_pages,
    .unlock = unlock_pages,
    .address = address,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = event_free,
    .record = record,
    .follow = follow,
    .is_done = is_done,
    .event_wait = event_wait,
    .elapsed = elapsed,
    .copy = copy,
    .call = call,
    .gather = gather,
    .convert = convert,
    .range = range,
};

__attribute__((visibility("default"))) device_entry onepot_device_type;

const struct device_type *onepot_device_type(uint32_t version)
{
    return version == DEVICE_VERSION ? &cuda : NULL;
}
