/*
 * The runtime's calls, with what a GPU's runtime refuses: handles that are destroyed or of
 * another context, streams that capture and calls that a capture forbids, kernels that there is
 * no image of or that are too large. A copy that pageable memory takes part in is waited for.
 */
#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "module.h"
#include "played.h"
#include "streams.h"

#define GRID_MAX 2147483647u
#define THREADS_MAX 1024u

struct played *played_driver;

static _Atomic unsigned long events, streams; /* that were not given back */

/* Held by what moves bytes, which a lost device does no more. */
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local cudaError_t last;
static _Thread_local bool has_own_stream; /* something waits in cudaStreamPerThread */
static _Thread_local bool ends_process;
static atomic_bool unloading;

void played_forbid(const char *what, const void *memory)
{
    fprintf(stderr, "CUDA, played: %s (%p)\n", what, memory);
    abort();
}

/* The one fault that the GPU is to have (PLAYED_FAULT), so that a check can be seen to fail. */
static bool has_fault(const char *name)
{
    const char *fault = getenv("PLAYED_FAULT");
    return fault && strcmp(fault, name) == 0;
}

/* ---- for the driver, and for tests ---- */

static int record_all(void *context, void *handle)
{
    struct event *event = event_known(handle);
    if (!event || event->context != context)
        played_forbid("an event of another context", handle);
    if (streams_capture(context, false)) {
        streams_break_captures(context, false);
        return -1;
    }
    stream_queue(stream_all(context), &(struct task){.kind = TASK_RECORD, .event = event});
    return 0;
}

static struct stream *stream_of(cudaStream_t handle);

static void *context_of(void *handle, bool *ret_green)
{
    *ret_green = stream_of(handle)->is_green;
    return stream_of(handle)->context;
}

static void *green_stream(void)
{
    struct stream *s = stream_make(played_driver->primary(0), false);
    s->is_green = true;
    return s;
}

static void spin(void *stream)
{
    streams_spin(stream ? stream_of(stream) : stream_legacy(played_driver->primary(0)));
}

static void *stream_on(int device, bool is_blocking)
{
    return stream_make(played_driver->primary(device), is_blocking);
}

static void *stream_for_test(bool is_blocking)
{
    return stream_on(0, is_blocking);
}

static int device_of(const void *memory)
{
    const void *context = ranges_context(memory);
    int device = 0;
    while (context && context != played_driver->primary(device))
        device++;
    return context ? device : -1;
}

static void begin_capture(void *stream)
{
    stream_of(stream)->capture = CAPTURE_ON;
}

static unsigned end_capture(void *stream, bool *ret_broken)
{
    struct stream *s = stream_of(stream);
    *ret_broken = s->capture == CAPTURE_BROKEN;
    s->capture = CAPTURE_NOT;
    return s->captured;
}

void played_quiet(void)
{
    streams_quiet();
}

void played_begin_capture(void *stream)
{
    begin_capture(stream);
}

int played_end_capture(void *stream)
{
    bool broken;
    unsigned captured = end_capture(stream, &broken);
    return broken ? -1 : (int)captured;
}

void *played_stream(void)
{
    return stream_for_test(false);
}

void played_stream_free(void *stream)
{
    stream_of(stream);
    stream_drop(stream);
}

void played_call(void *stream, void (*function)(void *ctx))
{
    stream_queue(stream_of(stream), &(struct task){.kind = TASK_WORK, .function = function});
}

void *played_stream_on(int device)
{
    return stream_on(device, false);
}

int played_device_of(const void *memory)
{
    return device_of(memory);
}

unsigned long played_context_events(void)
{
    return __atomic_load_n(&played_driver->context_events, __ATOMIC_ACQUIRE);
}

const char *played_module(void)
{
    return played_find()->module ? played_find()->module : PLAYED_MODULE;
}

static void unload(void)
{
    ends_process = true;
    atomic_store(&unloading, true);
}

static void begin(void)
{
    atexit(unload);
    played_driver = played_find();
    if (!played_driver)
        played_forbid("this libcuda.so.1 is not the tests'", NULL);
    ranges_begin();
    played_driver->record_all = record_all;
    played_driver->context_of = context_of;
    played_driver->stream = stream_for_test;
    played_driver->stream_on = stream_on;
    played_driver->green_stream = green_stream;
    played_driver->device_of = device_of;
    played_driver->spin = spin;
    played_driver->release = streams_release;
    played_driver->hold_kernels = streams_hold;
    played_driver->quiet = streams_quiet;
    played_driver->waiting = streams_waiting;
    played_driver->frees_waiting = streams_frees_waiting;
    played_driver->begin_capture = begin_capture;
    played_driver->end_capture = end_capture;
}

/* ---- on the way in ---- */

/* Where this thread calls. A test says so while streams are at work. */
static bool is_lost(void)
{
    return played_driver->is_lost(played_driver->current());
}

/* Whoever calls the runtime has to be in a context that was chosen. */
static cudaError_t enter(void)
{
    pthread_once(&once, begin);
    if (ends_process)
        played_forbid("the runtime is called while it ends", NULL);
    if (atomic_load(&unloading))
        return cudaErrorCudartUnloading; /* a thread that was on its way */
    if (!played_driver->current())
        played_forbid("the runtime is called without a context", NULL);
    if (played_driver->old)
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

#define TRY(result)                                                                            \
    do {                                                                                       \
        cudaError_t tried = (result);                                                          \
        if (tried != cudaSuccess)                                                              \
            return done(tried);                                                                \
    } while (0)

/* Calls that may break a capture, in any thread that has not said that it knows. */
static cudaError_t be_safe(void)
{
    if (!streams_capture(NULL, false) || played_driver->is_relaxed())
        return cudaSuccess;
    streams_break_captures(NULL, false);
    return cudaErrorStreamCaptureUnsupported;
}

/* What a call does with a stream that was destroyed is undefined. */
static struct stream *stream_of(cudaStream_t handle)
{
    void *context = played_driver->current();
    if (!handle || handle == cudaStreamLegacy)
        return stream_legacy(context);
    if (handle == cudaStreamPerThread)
        return stream_of_thread(context);
    struct stream *s = stream_known(handle);
    if (!s)
        played_forbid("a stream that was destroyed, or never was", handle);
    return s;
}

/* The stream of a call that queues something. */
static cudaError_t take_stream(cudaStream_t handle, struct stream **ret_stream)
{
    struct stream *s = *ret_stream = stream_of(handle);
    if (s->capture == CAPTURE_BROKEN)
        return cudaErrorStreamCaptureInvalidated;
    if (s->capture == CAPTURE_ON)
        s->captured++;
    if (!s->is_legacy || !streams_capture(s->context, true))
        return cudaSuccess;
    streams_break_captures(s->context, true);
    return cudaErrorStreamCaptureImplicit;
}

static cudaError_t take_event(cudaEvent_t handle, struct event **ret_event)
{
    *ret_event = event_known(handle);
    if (!*ret_event)
        played_forbid("an event that was destroyed, or never was", handle);
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **ret_memory, size_t bytes)
{
    TRY(enter());
    TRY(be_safe());
    if (!bytes)
        played_forbid("cudaMalloc of nothing", NULL);
    return done(ranges_allocate(played_driver->current(), bytes, ret_memory));
}

/* As the real one, it returns when the device has done all that it was given. */
cudaError_t cudaFree(void *memory)
{
    TRY(enter());
    if (!memory)
        return cudaSuccess;
    TRY(be_safe());
    context_wait(played_driver->current());
    return ranges_free(played_driver->current(), memory);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    TRY(enter());
    TRY(be_safe());
    return done(ranges_lock(played_driver->current(), memory, bytes, flags));
}

cudaError_t cudaHostUnregister(void *memory)
{
    TRY(enter());
    TRY(be_safe());
    context_wait(played_driver->current());
    return ranges_unlock(memory);
}

cudaError_t cudaHostGetDevicePointer(void **ret_there, void *memory, unsigned flags)
{
    TRY(enter());
    return done(flags ? cudaErrorInvalidValue
                      : ranges_address(played_driver->current(), memory, ret_there));
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    TRY(enter());
    *ret_total = played_driver->memory_bytes;
    *ret_free = played_driver->memory_bytes - ranges_used(played_driver->current());
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    TRY(enter());
    *ret_least = 0;
    *ret_greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret_stream, unsigned flags, int priority)
{
    TRY(enter());
    if (priority < -5 || priority > 0)
        return done(cudaErrorInvalidValue);
    if (flags != cudaStreamNonBlocking)
        played_forbid("a stream that waits for the default stream", NULL);
    __atomic_fetch_add(&played_driver->urgent_streams, priority < 0, __ATOMIC_RELAXED);
    *ret_stream = (cudaStream_t)(void *)stream_make(played_driver->current(), false);
    atomic_fetch_add(&streams, 1);
    return cudaSuccess;
}

/* What it was given is still done. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    enter(); /* also of a device that is lost */
    struct stream *s = stream_known(handle);
    if (!s || s->context != played_driver->current())
        played_forbid("a stream is destroyed that is not there, or by another device", handle);
    stream_drop(s);
    atomic_fetch_sub(&streams, 1);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *ret_status)
{
    TRY(enter());
    const struct stream *s = stream_of(handle);
    if (s->is_legacy && streams_capture(s->context, true))
        return done(cudaErrorStreamCaptureImplicit);
    *ret_status = s->capture == CAPTURE_ON       ? cudaStreamCaptureStatusActive
                  : s->capture == CAPTURE_BROKEN ? cudaStreamCaptureStatusInvalidated
                                                 : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    TRY(enter());
    __atomic_fetch_add(&played_driver->context_waits, 1, __ATOMIC_RELAXED);
    if (streams_capture(played_driver->current(), false)) {
        streams_break_captures(played_driver->current(), false);
        return done(cudaErrorStreamCaptureUnsupported);
    }
    context_wait(played_driver->current());
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret_event, unsigned flags)
{
    TRY(enter());
    struct event *event =
        event_make(played_driver->current(), !(flags & cudaEventDisableTiming));
    atomic_fetch_add(&events, 1);
    *ret_event = (cudaEvent_t)(void *)event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    struct event *event;
    enter();
    take_event(e, &event);
    event_drop(event);
    atomic_fetch_sub(&events, 1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    struct event *event;
    struct stream *s;
    TRY(enter());
    TRY(take_event(e, &event));
    if (stream == cudaStreamPerThread && !has_own_stream)
        played_forbid("the stream of another thread is meant, this is not it", stream);
    TRY(take_stream(stream, &s));
    if (event->context != s->context || s->is_green)
        return done(cudaErrorInvalidResourceHandle);
    event->captured = s->capture == CAPTURE_ON;
    if (!event->captured)
        stream_queue(s, &(struct task){.kind = TASK_RECORD, .event = event});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    struct event *event;
    struct stream *s;
    TRY(enter());
    if (flags)
        return done(cudaErrorInvalidValue);
    TRY(take_event(e, &event));
    TRY(take_stream(stream, &s));
    if (stream == cudaStreamPerThread)
        has_own_stream = true;
    if (event->context != s->context) /* which CUDA allows, and nobody here is to need */
        played_forbid("a stream waits for another device", stream);
    if (event->captured && s->capture == CAPTURE_NOT)
        played_forbid("a stream is drawn into the capture of another", stream);
    if (s->capture == CAPTURE_ON && !event->captured) {
        s->capture = CAPTURE_BROKEN;
        return done(cudaErrorStreamCaptureIsolation);
    }
    if (s->capture == CAPTURE_NOT && !has_fault("follows nothing"))
        stream_queue(s, &(struct task){.kind = TASK_FOLLOW, .event = event});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    struct event *event;
    TRY(enter());
    TRY(take_event(e, &event));
    TRY(be_safe());
    if (event->captured)
        return done(cudaErrorCapturedEvent);
    return done(event_is_done(event) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    struct event *event;
    TRY(enter());
    TRY(take_event(e, &event));
    TRY(be_safe());
    if (event->captured)
        return done(cudaErrorCapturedEvent);
    event_wait(event);
    return done(is_lost() ? cudaErrorIllegalAddress : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    struct event *a, *b;
    uint64_t ns;
    TRY(enter());
    TRY(take_event(from, &a));
    TRY(take_event(to, &b));
    if (a->context != b->context || !a->has_time || !b->has_time || !a->recorded ||
        !b->recorded)
        return done(cudaErrorInvalidResourceHandle);
    if (!event_elapsed(a, b, &ns))
        return done(cudaErrorNotReady);
    *ret_ms = (float)((double)ns / 1e6);
    return cudaSuccess;
}

/* ---- what is queued ---- */

struct work {
    struct work *next; /* of those that a lost device never did, whose ctx is theirs */
    void (*function)(void *ctx); /* NULL: a copy */
    void *ctx;
    void *to;
    const void *from;
    size_t bytes;
};

static void work_run(void *ctx)
{
    static struct work *undone;
    struct work *w = ctx;
    pthread_mutex_lock(&moving);
    if (played_driver->is_lost(streams_task_context())) {
        w->next = undone;
        undone = w;
        w = NULL;
    } else {
        size_t bytes = w->bytes - (w->bytes > 0 && has_fault("copies too little"));
        if (w->function)
            w->function(w->ctx);
        else
            memcpy(played_either(w->to, bytes), played_either(w->from, bytes), bytes);
    }
    pthread_mutex_unlock(&moving);
    free(w);
}

/* In a capture the task becomes a part of the graph, and nothing is done. */
static uint64_t work_queue(struct stream *s, enum task_kind kind, const struct work *work)
{
    if (s->capture == CAPTURE_ON)
        return 0;
    struct work *w = malloc(sizeof(*w));
    if (!w)
        abort();
    *w = *work;
    return stream_queue(s, &(struct task){.kind = kind, .function = work_run, .ctx = w});
}

cudaError_t played_launch(cudaStream_t stream, dim3 grid, unsigned threads,
                          void (*function)(void *ctx), void *ctx)
{
    struct stream *s;
    TRY(enter());
    TRY(take_stream(stream, &s));
    if (played_driver->no_image)
        return done(cudaErrorNoKernelImageForDevice);
    if (s->context != played_driver->current())
        return done(cudaErrorInvalidResourceHandle);
    if (grid.x < 1 || grid.x > GRID_MAX || grid.y != 1 || grid.z != 1 || threads < 1 ||
        threads > THREADS_MAX)
        return done(cudaErrorInvalidConfiguration);
    __atomic_fetch_add(&played_driver->kernels, 1, __ATOMIC_RELAXED);
    work_queue(s, TASK_KERNEL, &(struct work){.function = function, .ctx = ctx});
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    TRY(enter());
    memset(attributes, 0, sizeof(*attributes));
    if (!function)
        return done(cudaErrorInvalidDeviceFunction);
    return done(played_driver->no_image ? cudaErrorNoKernelImageForDevice : cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    struct stream *s;
    TRY(enter());
    if (kind != cudaMemcpyDefault)
        played_forbid("a copy of a kind", to);
    TRY(take_stream(stream, &s));
    uint64_t number =
        work_queue(s, TASK_WORK, &(struct work){.to = to, .from = from, .bytes = bytes});
    if (number && (played_is_pageable(s->context, to, bytes) ||
                   played_is_pageable(s->context, from, bytes)))
        stream_wait_for(s, number);
    return cudaSuccess;
}

static void clear(void *ctx)
{
    const struct work *w = ctx;
    memset(played_either(w->to, w->bytes), 0, w->bytes);
    free(ctx);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    struct stream *s;
    TRY(enter());
    TRY(take_stream(stream, &s));
    struct work *w = malloc(sizeof(*w));
    if (value || !w)
        played_forbid("a memory set to something", to);
    *w = (struct work){.to = to, .bytes = bytes};
    work_queue(s, TASK_WORK, &(struct work){.function = clear, .ctx = w});
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *ctx)
{
    struct stream *s;
    TRY(enter());
    TRY(take_stream(stream, &s));
    if (s->capture == CAPTURE_NOT)
        stream_queue(s, &(struct task){.kind = TASK_WORK, .function = function, .ctx = ctx});
    return cudaSuccess;
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = played_driver && is_lost() ? cudaErrorIllegalAddress : cudaSuccess;
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
    if (!played_driver || played_driver->lost || played_driver->lost_devices)
        return;
    unsigned long ranges = ranges_count();
    if (ranges || events || streams || played_driver->contexts) {
        fprintf(stderr,
                "CUDA, played: left: %lu pieces of memory, %lu events, %lu streams, %lu "
                "contexts\n",
                ranges, events, streams, played_driver->contexts);
        _exit(99);
    }
}
