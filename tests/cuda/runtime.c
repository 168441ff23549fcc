/*
 * The runtime: streams and events are those of the host device, which does nothing before
 * somebody waits for it. Memory of a device lies where nobody may touch it, and a second time
 * where the streams of the device do.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "device.h"
#include "played.h"

#define SPACE_BYTES ((size_t)256 << 30) /* addresses of the device; none is used twice */
#define PAGE ((size_t)1 << 16)

struct range {
    struct range *next;
    uint8_t *from;
    size_t bytes;
    uint8_t *alias; /* NULL: host memory that is locked */
};

struct event {
    void *event;
    bool recorded;
};

static struct {
    pthread_mutex_t lock;
    struct range *ranges;
    uint8_t *space;
    size_t used;         /* of the space */
    size_t bytes;        /* that are allocated */
    size_t locked_bytes; /* of the host */
    unsigned long events, streams;
    void *host;
    struct played *driver;
} rt = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Held by what moves bytes, which a lost device does no more. */
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local cudaError_t last;
static _Thread_local bool has_own_stream; /* something waits in cudaStreamPerThread */
static _Thread_local bool ends_process;
static atomic_bool unloading;

static void forbid(const char *what, const void *memory)
{
    fprintf(stderr, "CUDA, played: %s (%p)\n", what, memory);
    abort();
}

static void unload(void)
{
    ends_process = true;
    atomic_store(&unloading, true);
}

/* For the driver, which has no streams. */
static int record_all(void *e)
{
    struct event *event = e;
    struct onepot_error error;
    return device_host.record_all(rt.host, event->event, &error);
}

static void begin(void)
{
    struct onepot_error error;
    atexit(unload);
    void *object = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *entry = object ? dlsym(object, PLAYED_ENTRY) : NULL;
    if (!entry)
        forbid("this libcuda.so.1 is not the tests'", NULL);
    played_entry *function;
    memcpy(&function, &entry, sizeof(function));
    rt.driver = function();
    rt.space =
        mmap(NULL, SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (rt.space == MAP_FAILED || device_host.open(0, &error, &rt.host) < 0)
        forbid("no memory to begin", NULL);
    rt.driver->record_all = record_all;
}

/* A test says so while streams are at work. */
static bool is_lost(void)
{
    return __atomic_load_n(&rt.driver->lost, __ATOMIC_ACQUIRE);
}

/* Whoever calls the runtime has to be in a context that was chosen. */
static cudaError_t enter(void)
{
    pthread_once(&once, begin);
    if (ends_process)
        forbid("the runtime is called while it ends", NULL);
    if (atomic_load(&unloading))
        return cudaErrorCudartUnloading; /* a thread that was on its way */
    if (!rt.driver->current())
        forbid("the runtime is called without a context", NULL);
    if (rt.driver->old)
        return cudaErrorInsufficientDriver;
    if (!is_lost())
        return cudaSuccess;
    pthread_mutex_lock(&moving);
    pthread_mutex_unlock(&moving);
    return cudaErrorIllegalAddress;
}

static cudaError_t done(cudaError_t e)
{
    if (e != cudaSuccess)
        last = e;
    return e;
}

#define ENTER                                                                                  \
    do {                                                                                       \
        cudaError_t entered = enter();                                                         \
        if (entered != cudaSuccess)                                                            \
            return done(entered);                                                              \
    } while (0)

/* ---- memory; ranges are under the lock ---- */

static struct range **find(const void *memory)
{
    const uint8_t *p = memory;
    struct range **at = &rt.ranges;
    while (*at && !(p >= (*at)->from && p < (*at)->from + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

static bool is_of_device(const void *memory)
{
    const uint8_t *p = memory;
    return p >= rt.space && p < rt.space + SPACE_BYTES;
}

static void add(uint8_t *from, size_t bytes, uint8_t *alias)
{
    struct range *range = malloc(sizeof(*range));
    if (!range)
        forbid("no memory", NULL);
    *range = (struct range){rt.ranges, from, bytes, alias};
    rt.ranges = range;
}

void *played_at(const void *memory, size_t bytes)
{
    pthread_mutex_lock(&rt.lock);
    const struct range *range = *find(memory);
    if (!range || !range->alias)
        forbid("this is no memory of the device (or no longer)", memory);
    size_t at = (size_t)((const uint8_t *)memory - range->from);
    if (bytes > range->bytes - at)
        forbid("behind the end of memory of the device", memory);
    uint8_t *there = range->alias + at;
    pthread_mutex_unlock(&rt.lock);
    return there;
}

void *played_stream(void)
{
    struct onepot_error error;
    void *stream;
    if (device_host.stream_new(rt.host, &error, &stream) < 0)
        forbid("no thread for a stream", NULL);
    return stream;
}

unsigned long played_context_events(void)
{
    return __atomic_load_n(&rt.driver->context_events, __ATOMIC_ACQUIRE);
}

void played_need_locked(const void *memory, size_t bytes)
{
    pthread_mutex_lock(&rt.lock);
    const struct range *range = *find(memory);
    if (bytes && (!range || range->alias ||
                  bytes > range->bytes - (size_t)((const uint8_t *)memory - range->from)))
        forbid("a kernel reads memory of the host that is not locked", memory);
    pthread_mutex_unlock(&rt.lock);
}

void played_need_aligned(const void *memory, size_t bytes)
{
    if ((uintptr_t)memory % bytes)
        forbid("a kernel reads at a misaligned address", memory);
}

cudaError_t cudaMalloc(void **ret_memory, size_t bytes)
{
    ENTER;
    cudaError_t e = cudaErrorMemoryAllocation;
    size_t room = (bytes + PAGE - 1) & ~(PAGE - 1);
    if (!bytes)
        forbid("cudaMalloc of nothing", NULL);
    pthread_mutex_lock(&rt.lock);
    if (room <= rt.driver->memory_bytes - rt.bytes && room <= SPACE_BYTES - rt.used) {
        int fd = memfd_create("played", MFD_CLOEXEC);
        void *alias = MAP_FAILED;
        if (fd >= 0 && ftruncate(fd, (off_t)room) == 0)
            alias = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0)
            close(fd);
        if (alias != MAP_FAILED) {
            *ret_memory = rt.space + rt.used;
            add(rt.space + rt.used, bytes, alias);
            rt.used += room + PAGE; /* and a gap */
            rt.bytes += room;
            e = cudaSuccess;
        }
    }
    pthread_mutex_unlock(&rt.lock);
    return done(e);
}

cudaError_t cudaFree(void *memory)
{
    ENTER;
    if (!memory)
        return cudaSuccess;
    pthread_mutex_lock(&rt.lock);
    struct range **at = find(memory), *range = *at;
    if (!range || !range->alias || range->from != memory)
        forbid("cudaFree of what was not allocated", memory);
    size_t room = (range->bytes + PAGE - 1) & ~(PAGE - 1);
    *at = range->next;
    rt.bytes -= room;
    munmap(range->alias, room);
    free(range);
    pthread_mutex_unlock(&rt.lock);
    return cudaSuccess;
}

/* May the process write there? It gets the byte that it has. */
static bool is_writable(void *memory)
{
    char byte = *(const volatile char *)memory;
    struct iovec from = {&byte, 1}, to = {memory, 1};
    return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 1 || errno != EFAULT;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    ENTER;
    cudaError_t e = cudaSuccess;
    bool read_only = flags & cudaHostRegisterReadOnly, writable = is_writable(memory);
    if (!bytes || is_of_device(memory))
        return done(cudaErrorInvalidValue);
    pthread_mutex_lock(&rt.lock);
    if (read_only && rt.driver->no_read_only)
        forbid("memory is locked in a way that the device does not have", memory);
    else if (rt.driver->no_locking || bytes > rt.driver->locked_bytes - rt.locked_bytes)
        e = cudaErrorMemoryAllocation;
    else if (!writable && !read_only && !rt.driver->host_tables)
        e = cudaErrorInvalidValue;
    else if (*find(memory))
        e = cudaErrorHostMemoryAlreadyRegistered;
    else {
        add(memory, bytes, NULL);
        rt.locked_bytes += bytes;
        rt.driver->read_only_locks += !writable;
    }
    pthread_mutex_unlock(&rt.lock);
    return done(e);
}

cudaError_t cudaHostUnregister(void *memory)
{
    ENTER;
    pthread_mutex_lock(&rt.lock);
    struct range **at = find(memory), *range = *at;
    if (!range || range->alias || range->from != memory)
        forbid("memory is unlocked that was not locked", memory);
    *at = range->next;
    rt.locked_bytes -= range->bytes;
    free(range);
    pthread_mutex_unlock(&rt.lock);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **ret_there, void *memory, unsigned flags)
{
    ENTER;
    pthread_mutex_lock(&rt.lock);
    const struct range *range = *find(memory);
    bool locked = range && !range->alias && flags == 0;
    pthread_mutex_unlock(&rt.lock);
    if (locked)
        *ret_there = memory;
    return done(locked ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    ENTER;
    pthread_mutex_lock(&rt.lock);
    *ret_total = rt.driver->memory_bytes;
    *ret_free = rt.driver->memory_bytes - rt.bytes;
    pthread_mutex_unlock(&rt.lock);
    return cudaSuccess;
}

/* ---- streams ---- */

/* The handles of both default streams: there is one here. */
static void *own(cudaStream_t stream)
{
    return stream == cudaStreamLegacy || stream == cudaStreamPerThread ? NULL : (void *)stream;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret_stream, unsigned flags)
{
    ENTER;
    struct onepot_error error;
    void *stream;
    if (flags != cudaStreamNonBlocking)
        forbid("a stream that waits for the default stream", NULL);
    if (device_host.stream_new(rt.host, &error, &stream) < 0)
        return done(cudaErrorMemoryAllocation);
    __atomic_fetch_add(&rt.streams, 1, __ATOMIC_RELAXED);
    *ret_stream = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    enter(); /* also of a device that is lost */
    if (!own(stream))
        forbid("a default stream is destroyed", stream);
    __atomic_fetch_sub(&rt.streams, 1, __ATOMIC_RELAXED);
    device_host.stream_free(rt.host, stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ENTER;
    struct onepot_error error;
    return device_host.stream_wait(rt.host, own(stream), &error) < 0 ? done(cudaErrorUnknown)
                                                                     : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER;
    struct onepot_error error;
    __atomic_fetch_add(&rt.driver->context_waits, 1, __ATOMIC_RELAXED);
    return device_host.wait_all(rt.host, &error) < 0 ? done(cudaErrorUnknown) : cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags)
{
    ENTER;
    struct onepot_error error;
    struct event *event = calloc(1, sizeof(*event));
    if (!event || device_host.event_new(rt.host, &error, &event->event) < 0) {
        free(event);
        return done(cudaErrorMemoryAllocation);
    }
    if (flags & cudaEventDisableTiming)
        forbid("an event that has no time", NULL);
    __atomic_fetch_add(&rt.events, 1, __ATOMIC_RELAXED);
    *ret_event = (cudaEvent_t)(void *)event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    struct event *event = (struct event *)(void *)e;
    enter();
    __atomic_fetch_sub(&rt.events, 1, __ATOMIC_RELAXED);
    device_host.event_free(rt.host, event->event);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    struct event *event = (struct event *)(void *)e;
    struct onepot_error error;
    ENTER;
    if (stream == cudaStreamPerThread && !has_own_stream)
        forbid("the stream of another thread is meant, this is not it", stream);
    __atomic_store_n(&event->recorded, true, __ATOMIC_RELEASE);
    return device_host.record(rt.host, event->event, own(stream), &error) < 0
               ? done(cudaErrorMemoryAllocation)
               : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    struct event *event = (struct event *)(void *)e;
    struct onepot_error error;
    ENTER;
    if (flags)
        return done(cudaErrorInvalidValue);
    if (stream == cudaStreamPerThread)
        has_own_stream = true;
    return device_host.follow(rt.host, own(stream), event->event, &error) < 0
               ? done(cudaErrorMemoryAllocation)
               : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    struct event *event = (struct event *)(void *)e;
    struct onepot_error error;
    ENTER;
    return done(device_host.is_done(rt.host, event->event, &error) ? cudaSuccess
                                                                   : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    struct event *event = (struct event *)(void *)e;
    struct onepot_error error;
    ENTER;
    device_host.event_wait(rt.host, event->event, &error);
    return done(is_lost() ? cudaErrorIllegalAddress : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    struct event *a = (struct event *)(void *)from, *b = (struct event *)(void *)to;
    struct onepot_error error;
    uint64_t ns;
    ENTER;
    if (!__atomic_load_n(&a->recorded, __ATOMIC_ACQUIRE) ||
        !__atomic_load_n(&b->recorded, __ATOMIC_ACQUIRE))
        return done(cudaErrorInvalidResourceHandle);
    if (device_host.elapsed(rt.host, a->event, b->event, &error, &ns) < 0)
        return done(cudaErrorNotReady);
    *ret_ms = (float)((double)ns / 1e6);
    return cudaSuccess;
}

/* ---- what is queued ---- */

struct task {
    void (*function)(void *ctx); /* NULL: a copy */
    void *ctx;
    void *to;
    const void *from;
    size_t bytes;
};

static void copy(const struct task *t)
{
    memcpy(is_of_device(t->to) ? played_at(t->to, t->bytes) : t->to,
           is_of_device(t->from) ? played_at(t->from, t->bytes) : t->from, t->bytes);
}

static void run(void *ctx)
{
    struct task *t = ctx;
    pthread_mutex_lock(&moving);
    if (!is_lost()) {
        if (t->function)
            t->function(t->ctx);
        else
            copy(t);
    }
    pthread_mutex_unlock(&moving);
    free(t);
}

static cudaError_t queue(cudaStream_t stream, const struct task *task)
{
    struct onepot_error error;
    struct task *t = malloc(sizeof(*t));
    if (!t)
        return done(cudaErrorMemoryAllocation);
    *t = *task;
    return device_host.call(rt.host, own(stream), run, t, &error) < 0
               ? done(cudaErrorMemoryAllocation)
               : cudaSuccess;
}

cudaError_t played_launch(cudaStream_t stream, void (*function)(void *ctx), void *ctx)
{
    ENTER;
    __atomic_fetch_add(&rt.driver->kernels, 1, __ATOMIC_RELAXED);
    return queue(stream, &(struct task){.function = function, .ctx = ctx});
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    ENTER;
    if (kind != cudaMemcpyDefault)
        forbid("a copy of a kind", to);
    return queue(stream, &(struct task){.to = to, .from = from, .bytes = bytes});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *ctx)
{
    ENTER;
    struct onepot_error error;
    return device_host.call(rt.host, own(stream), function, ctx, &error) < 0
               ? done(cudaErrorMemoryAllocation)
               : cudaSuccess;
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = rt.driver && is_lost() ? cudaErrorIllegalAddress : cudaSuccess;
    return e;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorIllegalAddress     ? "an illegal memory access was encountered"
           : error == cudaErrorMemoryAllocation ? "out of memory"
                                                : "an error of the played runtime";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorIllegalAddress     ? "cudaErrorIllegalAddress"
           : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                                : "cudaErrorOther";
}

/* What was not given back is a fault of a process that ends as it should. */
__attribute__((destructor)) static void end(void)
{
    unsigned long ranges = 0;
    if (!rt.host)
        return;
    for (const struct range *range = rt.ranges; range; range = range->next)
        ranges++;
    if (!is_lost() && (ranges || rt.events || rt.streams || rt.driver->contexts)) {
        fprintf(stderr,
                "CUDA, played: left: %lu pieces of memory, %lu events, %lu streams, %lu "
                "contexts\n",
                ranges, rt.events, rt.streams, rt.driver->contexts);
        _exit(99);
    }
}
