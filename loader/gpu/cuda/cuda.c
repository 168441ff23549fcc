/*
 * CUDA as a device, through the runtime, in a separate shared object. It uses the primary
 * context of a device, like every runtime in the process, torch's included.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif

#ifdef ONEPOT_CUDA_KERNELS
#include "kernels.h"
#endif

/* ---- devices ---- */

static int cuda_count(struct onepot_error *error, uint32_t *ret_count)
{
    int n = 0, r = gpu_need_driver(error);
    if (r < 0)
        return r;
    CUresult e = gpu_driver.get_count(&n);
    if (e == CUDA_ERROR_NO_DEVICE || e == CUDA_ERROR_NOT_INITIALIZED)
        n = 0; /* there is a driver, but no device */
    else if (e != CUDA_SUCCESS)
        return gpu_driver_checked(e, "devices can't be counted", error);
    *ret_count = (uint32_t)n;
    return 0;
}

static int find_node(CUdevice device)
{
    char bus[64] = "", path[128];
    int node = -1;
    if (gpu_driver.get_bus(bus, sizeof(bus), device) != CUDA_SUCCESS)
        return -1;
    for (char *c = bus; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    if (fscanf(f, "%d", &node) != 1 || node >= GPU_NODES_MAX)
        node = -1;
    fclose(f);
    return node;
}

/* Kernel modules from 570 on do. cuDriverGetVersion is no help: a library for forward
 * compatibility has a later version than the module. */
static bool locks_files(void)
{
    unsigned major = 0;
    FILE *f = fopen(GPU_MODULE_VERSION, "re");
    if (!f)
        return false;
    if (fscanf(f, "%u", &major) != 1)
        major = 0;
    fclose(f);
    return major >= 570;
}

static enum gpu_read_only find_read_only(CUdevice device)
{
    int any = 0, by_flag = 0, by_host = 0;
    gpu_driver.get_attribute(&any, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, device);
    gpu_driver.get_attribute(&by_flag, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                             device);
    gpu_driver.get_attribute(
        &by_host, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device);
    return !any      ? GPU_READ_ONLY_NOT
           : by_flag ? GPU_READ_ONLY_BY_FLAG
           : by_host ? GPU_READ_ONLY_AS_ANY
                     : GPU_READ_ONLY_NOT;
}

static void close_gpu(void *device)
{
    struct gpu *g = device;
    gpu_give_back(g->device);
    free(g);
}

static int say_versions(struct onepot_error *error)
{
    int driver = 0;
    gpu_driver.version(&driver);
    return gpu_say(
        error, -ENODEV,
        "CUDA: the driver has CUDA %d.%d, this libonepot-cuda.so was built with %d.%d; "
        "a newer driver is needed, or onepot built with an older CUDA",
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

/* Report a driver that is too old for this runtime now, not at the first batch. */
static int begin_runtime(struct gpu *g, struct onepot_error *error)
{
    int r = gpu_enter(g, error);
    if (r < 0)
        return r;
    cudaError_t e = cudaFree(NULL);
    r = gpu_checked(e, "the runtime can't be started", error);
#ifdef ONEPOT_CUDA_KERNELS
    g->has_kernels = r == 0 && gpu_checked(kernels_find(), "kernels", NULL) == 0;
#endif
    gpu_left(0);
    if (e == cudaErrorInsufficientDriver)
        return say_versions(error);
    gpu_watch_exit();
    return r;
}

static int open_gpu(uint32_t index, struct onepot_error *error, void **ret_device)
{
    int r = gpu_need_driver(error);
    if (r < 0)
        return r;
    struct gpu *g = calloc(1, sizeof(*g));
    if (!g)
        return gpu_say(error, -ENOMEM, "no memory for a device");
    r = gpu_driver_checked(gpu_driver.get(&g->device, (int)index), "no such device", error);
    if (r == 0)
        r = gpu_driver_checked(gpu_driver.retain(&g->context, g->device),
                               "the device can't be opened", error);
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
    g->read_only = find_read_only(g->device);
    g->locks_files = locks_files();
    *ret_device = g;
    return 0;
}

static int cuda_info(void *device, struct onepot_error *error,
                     struct onepot_device_info *ret_info)
{
    struct gpu *g = device;
    size_t free_bytes = 0, total_bytes = 0;
    int r = gpu_driver_checked(
        gpu_driver.get_name(ret_info->name, (int)sizeof(ret_info->name), g->device),
        "the device's name", error);
    if (r == 0)
        r = gpu_call(g, cudaMemGetInfo(&free_bytes, &total_bytes), "the device's memory",
                     error);
    ret_info->numa_node = g->node;
    ret_info->free_bytes = free_bytes;
    ret_info->total_bytes = total_bytes;
    ret_info->kernels = g->has_kernels;
    return r;
}

/* ---- streams ---- */

/* The greatest priority is the least number. */
static int stream_new(void *device, bool is_urgent, struct onepot_error *error,
                      void **ret_stream)
{
    cudaStream_t stream = NULL;
    int least = 0, greatest = 0;
    int r = gpu_call(device, cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream",
                     error);
    if (r == 0)
        r = gpu_call(device,
                     cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                  is_urgent ? greatest : least),
                     "a stream", error);
    if (r == 0)
        *ret_stream = stream;
    return r;
}

static void stream_free(void *device, void *stream)
{
    gpu_call(device, cudaStreamDestroy(stream), "a stream", NULL);
}

static int say_captured(struct onepot_error *error)
{
    return gpu_say(
        error, -EBUSY,
        "CUDA: a stream captures a graph, and a batch can't become a part of it: name "
        "streams before the capture, and copy batches into memory that the graph reads "
        "(copy_into)");
}

/*
 * A green context's stream belongs to the device's primary context, and has another one
 * besides. An older driver tells the latter only.
 */
static CUresult find_context(cudaStream_t stream, CUcontext *ret_context)
{
    void *green;
    return gpu_driver.stream_contexts ? gpu_driver.stream_contexts(stream, ret_context, &green)
                                      : gpu_driver.stream_context(stream, ret_context);
}

/* On the device; gpu_enter was called. */
static int check_stream(const struct gpu *g, cudaStream_t stream, struct onepot_error *error)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUcontext context = g->context;
    cudaError_t e = cudaStreamIsCapturing(stream, &status);
    if (gpu_is_captured(e))
        cudaGetLastError();
    if (gpu_is_captured(e) || (e == cudaSuccess && status != cudaStreamCaptureStatusNone))
        return say_captured(error);
    int r = gpu_checked(e, "the stream can't be used", error);
    if (r == 0)
        r = gpu_driver_checked(find_context(stream, &context), "the stream can't be used",
                               error);
    if (r == 0 && context != g->context)
        r = gpu_say(error, -EINVAL,
                    "CUDA: the stream belongs to another GPU (or context) than the batch");
    return r;
}

static int stream_check(void *device, void *stream, struct onepot_error *error)
{
    int r = gpu_enter(device, error);
    return r < 0 ? r : gpu_left(check_stream(device, stream, error));
}

/* ---- events ---- */

/* A thread that waits for an event sleeps; it does not spin. Times cost more than the rest. */
static int event_new(void *device, bool has_time, struct onepot_error *error, void **ret_event)
{
    unsigned flags = cudaEventBlockingSync | (has_time ? 0 : cudaEventDisableTiming);
    cudaEvent_t event = NULL;
    int r = gpu_call(device, cudaEventCreateWithFlags(&event, flags), "an event", error);
    if (r == 0)
        *ret_event = event;
    return r;
}

static void event_free(void *device, void *event)
{
    gpu_call(device, cudaEventDestroy(event), "an event", NULL);
}

/*
 * Each thread has its own cudaStreamPerThread, and the thread that releases a batch may not be
 * the one whose stream used it. Only the legacy stream waits for all of these streams.
 */
static int cuda_record(void *device, void *event, void *stream, struct onepot_error *error)
{
    int r = gpu_enter(device, error);
    if (r < 0)
        return r;
    if (stream == cudaStreamPerThread)
        stream = cudaStreamLegacy;
    r = check_stream(device, stream, error);
    if (r == 0)
        r = gpu_checked(cudaEventRecord(event, stream), "an event can't be recorded", error);
    return gpu_left(r);
}

static int cuda_follow(void *device, void *stream, void *event, struct onepot_error *error)
{
    return gpu_call(device, cudaStreamWaitEvent(stream, event, 0), "a stream can't wait",
                    error);
}

static int is_done(void *device, void *event, struct onepot_error *error)
{
    int r = gpu_call(device, cudaEventQuery(event), "work on the device", error);
    return r == -EAGAIN ? 0 : r < 0 ? r : 1;
}

static int event_wait(void *device, void *event, struct onepot_error *error)
{
    return gpu_call(device, cudaEventSynchronize(event), "work on the device", error);
}

/* A wait for a stream spins, so wait for an event. cudaStreamPerThread means this thread's. */
static int stream_wait(void *device, void *stream, struct onepot_error *error)
{
    void *event = NULL;
    int r = event_new(device, false, error, &event);
    if (r < 0)
        return r;
    r = gpu_call(device, cudaEventRecord(event, stream), "work on the device", error);
    if (r == 0)
        r = event_wait(device, event, error);
    event_free(device, event);
    return r;
}

static int cuda_elapsed(void *device, void *from, void *to, struct onepot_error *error,
                        uint64_t *ret_ns)
{
    float ms = 0;
    int r = gpu_call(device, cudaEventElapsedTime(&ms, from, to), "a copy's time", error);
    if (r == 0)
        *ret_ns = (uint64_t)((double)ms * 1e6);
    return r;
}

static int record_all(void *device, void *event, struct onepot_error *error)
{
    const struct gpu *g = device;
    if (!gpu_driver.record_context)
        return gpu_say(error, -ENOTSUP, "CUDA: the driver has no events of a whole context");
    int r = gpu_enter(g, error);
    return r < 0 ? r
                 : gpu_left(gpu_driver_checked(gpu_driver.record_context(g->context, event),
                                               "an event of the context can't be recorded",
                                               error));
}

static int wait_all(void *device, struct onepot_error *error)
{
    return gpu_call(device, cudaDeviceSynchronize(), "work on the device", error);
}

/* ---- queued work ---- */

static int cuda_copy(void *device, void *stream, void *to, const void *from, size_t bytes,
                     struct onepot_error *error)
{
    return gpu_call(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
                    "a copy", error);
}

static int cuda_clear(void *device, void *stream, void *to, size_t bytes,
                      struct onepot_error *error)
{
    return gpu_call(device, cudaMemsetAsync(to, 0, bytes, stream), "zeros", error);
}

static int cuda_call(void *device, void *stream, void (*function)(void *ctx), void *ctx,
                     struct onepot_error *error)
{
    return gpu_call(device, cudaLaunchHostFunc(stream, function, ctx), "a call", error);
}

#ifdef ONEPOT_CUDA_KERNELS

static int cuda_gather(void *device, void *stream, const struct device_gather *g,
                       struct onepot_error *error)
{
    return gpu_call(device, kernels_gather(stream, g), "gathering", error);
}

static int cuda_convert(void *device, void *stream, const struct onepot_conversion *images,
                        uint64_t n, const uint8_t *from, void *to, struct onepot_error *error)
{
    return gpu_call(device, kernels_convert(stream, images, n, from, to), "images", error);
}

#endif

#ifdef HAVE_NVTX
/* The first call would start it, too, but other threads could see it half started. */
static void begin_ranges(void)
{
    nvtxInitialize(NULL);
}
#endif

static void cuda_range(const char *name)
{
#ifdef HAVE_NVTX
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_ranges);
    if (name)
        nvtxRangePushA(name);
    else
        nvtxRangePop();
#else
    (void)name;
#endif
}

static const struct device_type cuda = {
    .kind = "cuda",
    .count = cuda_count,
    .open = open_gpu,
    .close = close_gpu,
    .info = cuda_info,
    .allocate = gpu_allocate,
    .release = gpu_release,
    .lock = gpu_lock,
    .unlock = gpu_unlock,
    .address = gpu_address,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_check = stream_check,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = event_free,
    .record = cuda_record,
    .follow = cuda_follow,
    .is_done = is_done,
    .event_wait = event_wait,
    .elapsed = cuda_elapsed,
    .record_all = record_all,
    .wait_all = wait_all,
    .copy = cuda_copy,
    .clear = cuda_clear,
    .call = cuda_call,
#ifdef ONEPOT_CUDA_KERNELS
    .gather = cuda_gather,
    .convert = cuda_convert,
#endif
    .range = cuda_range,
};

__attribute__((visibility("default"))) device_entry onepot_device_type;

const struct device_type *onepot_device_type(uint32_t version)
{
    return version == DEVICE_VERSION ? &cuda : NULL;
}
