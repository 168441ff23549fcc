/*
 * CUDA as a device, through the runtime, in a separate shared object. It uses the primary
 * context of a device, like every runtime in the process, torch's included.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device_type.h"
#ifdef ONEPOT_CUDA_KERNELS
#include "kernels.h"
#endif

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif

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
static struct gpu_driver gpu_driver;

/* Fills *error (NULL is fine) and returns err. */
__attribute__((format(printf, 3, 4))) static int gpu_say(struct onepot_error *error, int err,
                                                         const char *format, ...);

/*
 * 0, or the runtime's error at `what`, which is also cleared as the thread's last error.
 * -EAGAIN: an event that was asked for is not done.
 */
static int gpu_checked(cudaError_t e, const char *what, struct onepot_error *error);

/*
 * Be on the device until gpu_left, which restores the thread's own context and returns its
 * argument:
 *
 *     int r = gpu_enter(g, error);
 *     return r < 0 ? r : gpu_left(gpu_checked(cudaEventRecord(event, stream), "...", error));
 */
static int gpu_enter(const struct gpu *g, struct onepot_error *error);
static int gpu_left(int result);

/* All of that for one call of the runtime, whose result is checked (gpu_checked). */
#define gpu_call(g, call, what, error)                                                         \
    ({                                                                                         \
        int entered = gpu_enter(g, error);                                                     \
        entered < 0 ? entered : gpu_left(gpu_checked(call, what, error));                      \
    })

static int gpu_address(void *device, const void *memory, struct onepot_error *error,
                       uint64_t *ret_address);

/*
 * Direct calls of NVIDIA's driver. They put a thread on a device for the length of a call and
 * leave it as it was, without starting a context on a device that nobody asked for; the runtime
 * can't do that. The driver is loaded by its name. So where there is none, this object can
 * still be loaded, and reports its absence.
 */

#define FORKED                                                                                 \
    "CUDA: it can't be used in a forked child of a process that used it; start "               \
    "the process anew (multiprocessing: spawn)"

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static struct onepot_error driver_error; /* of loading the driver */
static pid_t driver_pid;                 /* of the process that started it */

/* ---- errors ---- */

static int gpu_say(struct onepot_error *error, int err, const char *format, ...)
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

/* It says that a stream captures a graph, which this call is not possible with. */
static bool gpu_is_captured(cudaError_t e)
{
    return e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorCapturedEvent;
}

static int gpu_checked(cudaError_t e, const char *what, struct onepot_error *error)
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

/* 0, or the driver's error at `what`. */
static int gpu_driver_checked(CUresult e, const char *what, struct onepot_error *error)
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

/* Loads and starts the driver. -ENODEV with the reason in *error. */
static int gpu_need_driver(struct onepot_error *error)
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

/* Watches for the end of the process, since nothing may be called once that has begun. Call it
 * when the runtime has started, so that the end is noticed before the runtime itself ends. */
static void gpu_watch_exit(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, driver_watch);
}

/* Give a context back that was retained, unless the process ends. */
static void gpu_give_back(CUdevice device)
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

static int gpu_enter(const struct gpu *g, struct onepot_error *error)
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

static int gpu_left(int result)
{
    CUcontext ours;
    gpu_driver.exchange_capture_mode(&kept_mode);
    gpu_driver.pop(&ours);
    return result;
}

/*
 * Memory of the device, and memory of the host that it reads.
 *
 * Page-locked memory is mapped first, bound to the node next to the device, and then
 * registered. Memory that CUDA allocates itself could lie on any node.
 *
 * A process can lock an archive's mapping only once, for all devices. So several loaders of one
 * archive, on one device or several, share the lock. The lock holds the context in which it was
 * made, since it would end with that context.
 */

#define HUGE_BYTES (2u << 20)
#ifndef LOCK_BYTES /* the tests lock less at once */
#define LOCK_BYTES ((size_t)64 << 20)
#endif
#define LOCK_PAUSE_NS 1000000
#define BITS (8 * (int)sizeof(unsigned long))

/* ---- locking existing memory ---- */

struct lock {
    struct lock *next;
    const void *from;
    size_t bytes;
    unsigned users;
    struct gpu in; /* a device and its context */
};

static pthread_mutex_t locks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct lock *locks;

/* Registers whole pages: the mapping has them, even where a file ends within a page. */
static int register_pages(const struct gpu *g, const void *memory, size_t bytes, unsigned more,
                          struct onepot_error *error)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) & ~(page - 1);
    more |= cudaHostRegisterPortable | cudaHostRegisterMapped;
    return gpu_call(g, cudaHostRegister((void *)(uintptr_t)memory, bytes, more),
                    "memory can't be page-locked", error);
}

/* False: the device does not answer any more, and its tasks may still read the pages. */
static bool unregister_pages(const struct gpu *g, const void *memory)
{
    if (gpu_enter(g, NULL) < 0)
        return false;
    gpu_left(gpu_checked(cudaHostUnregister((void *)(uintptr_t)memory), "unlock", NULL));
    return true;
}

/*
 * Existing memory is locked in parts, as one call for all fails from 512 GiB on, and from 512
 * MiB the kernel's module may stop other processes. Launches of other threads wait for the
 * driver's lock, which whoever asks for it again at once keeps from them: on an H200 a launch
 * waited 190 ms while 4 GiB were locked, whatever the size of a part, hence the pauses. Kernels
 * have to see the parts as one piece; no copy reaches over two of them.
 */
static int register_parts(const struct gpu *g, const void *memory, size_t bytes, unsigned more,
                          struct onepot_error *error)
{
    const uint8_t *from = memory;
    uint64_t first = 0, there = 0;
    size_t at = 0;
    int r = 0;
    while (r == 0 && at < bytes) {
        size_t left = bytes - at;
        if (at > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        r = register_pages(g, from + at, left < LOCK_BYTES ? left : LOCK_BYTES, more, error);
        if (r < 0)
            break;
        r = gpu_address((void *)(uintptr_t)g, from + at, error, &there);
        first = at ? first : there;
        if (r == 0 && there - first != at)
            r = gpu_say(error, -ENOTSUP, "CUDA: the device sees parts of locked memory apart");
        at += LOCK_BYTES;
    }
    while (r < 0 && at > 0)
        unregister_pages(g, from + (at -= LOCK_BYTES));
    return r;
}

/* Where the lock is in the list, or would be. */
static struct lock **find_lock(const void *memory, size_t bytes)
{
    struct lock **at = &locks;
    while (*at && ((*at)->from != memory || (*at)->bytes != bytes))
        at = &(*at)->next;
    return at;
}

static int new_lock(const struct gpu *g, const void *memory, size_t bytes,
                    struct onepot_error *error)
{
    struct lock *l = calloc(1, sizeof(*l));
    if (!l)
        return gpu_say(error, -ENOMEM, "no memory for a lock");
    *l = (struct lock){.next = locks, .from = memory, .bytes = bytes, .users = 1, .in = *g};
    int r = gpu_driver_checked(gpu_driver.retain(&l->in.context, g->device),
                               "the device can't be opened", error);
    if (r == 0) {
        r = register_parts(&l->in, memory, bytes,
                           g->read_only == GPU_READ_ONLY_BY_FLAG ? cudaHostRegisterReadOnly : 0,
                           error);
        if (r < 0)
            gpu_give_back(g->device);
    }
    if (r < 0)
        free(l);
    else
        locks = l;
    return r;
}

static int gpu_lock(void *device, const void *memory, size_t bytes, bool is_stored,
                    struct onepot_error *error)
{
    const struct gpu *g = device;
    int r = 0;
    if (g->read_only == GPU_READ_ONLY_NOT)
        return gpu_say(error, -ENOTSUP,
                       "CUDA: the device can't lock memory that is there and that nobody may "
                       "write to");
    if (is_stored && !g->locks_files)
        return gpu_say(error, -ENOTSUP,
                       "CUDA: drivers before 570 mark all pages of a file that they lock as "
                       "changed");
    pthread_mutex_lock(&locks_lock);
    struct lock *l = *find_lock(memory, bytes);
    if (l)
        l->users++;
    else
        r = new_lock(g, memory, bytes, error);
    pthread_mutex_unlock(&locks_lock);
    return r;
}

static void gpu_unlock(void *device, const void *memory, size_t bytes)
{
    (void)device;
    pthread_mutex_lock(&locks_lock);
    struct lock **at = find_lock(memory, bytes), *l = *at;
    if (l && --l->users == 0) {
        *at = l->next;
        for (size_t part = 0; part < bytes; part += LOCK_BYTES)
            unregister_pages(&l->in, (const uint8_t *)memory + part);
        gpu_give_back(l->in.device);
        free(l);
    }
    pthread_mutex_unlock(&locks_lock);
}

static int gpu_address(void *device, const void *memory, struct onepot_error *error,
                       uint64_t *ret_address)
{
    void *there = NULL;
    int r = gpu_call(device, cudaHostGetDevicePointer(&there, (void *)(uintptr_t)memory, 0),
                     "memory of the host can't be seen by the device", error);
    if (r == 0)
        *ret_address = (uintptr_t)there;
    return r;
}

/* ---- new memory ---- */

/* A preference only, since a full node is no error. */
static void bind_to_node(void *memory, size_t bytes, int node)
{
    enum { MPOL_PREFERRED_NODE = 1 };
    unsigned long mask[GPU_NODES_MAX / BITS + 1] = {0};
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
        return gpu_say(error, -ENOMEM, "no memory for %zu bytes", bytes);
    bind_to_node(p, bytes, g->node);
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    /* A forked child must neither take over pages by its writes nor keep them. */
    madvise(p, bytes, MADV_DONTFORK);
    int r = register_pages(g, p, bytes, 0, error);
    if (r < 0) {
        munmap(p, bytes);
        return r;
    }
    *ret_memory = p;
    return 0;
}

/* In memory.c; as in struct device_type. */
static int gpu_allocate(void *device, enum device_memory where, size_t bytes,
                        struct onepot_error *error, void **ret_memory)
{
    if (where == DEVICE_MEMORY_LOCKED)
        return allocate_locked(device, bytes, error, ret_memory);
    int r = gpu_call(device, cudaMalloc(ret_memory, bytes), "memory of the device", error);
    if (r == -ENOMEM)
        gpu_say(error, r,
                "CUDA: the device has no room for %zu bytes more; smaller batches, or less "
                "memory for the loader, may help",
                bytes);
    return r;
}

static void gpu_release(void *device, enum device_memory where, void *memory, size_t bytes)
{
    if (where == DEVICE_MEMORY_OWN) {
        gpu_call(device, cudaFree(memory), "release", NULL);
    } else if (unregister_pages(device, memory)) {
        munmap(memory, bytes);
    }
}

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
