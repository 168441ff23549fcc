/*
 * The host as a device. A stream is a thread with a list of tasks. An event is a pair of
 * numbers: how often it was recorded, and the latest recording that its stream has passed. Like
 * CUDA, this does not promise when queued work is done: only a wait makes sure. So code that
 * forgets to wait may read old bytes, and a thread sanitizer finds it.
 *
 * The whole device has one lock and one condition: it is there to be correct, not fast. Tests
 * compare the kernels of a GPU with its conversion of images, bit by bit.
 */
#include "device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "budget.h"
#include "clock.h"
#include "convert_round.h"
#include "error.h"
#include "thread.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* of the table's functions */

#define THREAD_STACK_BYTES (256u << 10)
#define SIDE_MAX 65536u /* of images */
#define HOST_DEVICES 8u /* it plays as many, for programs that have several */

struct event {
    uint64_t recorded, passed; /* recordings asked for, and the latest that was passed */
    uint64_t passed_ns;
    unsigned tasks; /* how many refer to it */
    bool dropped;   /* freed by its owner, while tasks still refer to it */
};

enum task_kind {
    TASK_COPY,
    TASK_CLEAR,
    TASK_CALL,
    TASK_RECORD,
    TASK_FOLLOW,
    TASK_GATHER,
    TASK_CONVERT
};

struct task {
    struct task *next;
    enum task_kind kind;
    union {
        struct {
            void *to;
            const void *from;
            size_t bytes;
        } copy;
        struct {
            void (*function)(void *ctx);
            void *ctx;
        } call;
        struct {
            struct event *event;
            uint64_t number; /* of the recording */
        } event;
        struct device_gather gather;
        struct {
            struct onepot_conversion images;
            uint64_t count;
            const uint8_t *from;
            void *to;
        } convert;
    };
};

struct stream {
    struct host *host;
    struct stream *next; /* in the list of all streams, until its thread ends */
    pthread_t thread;
    struct task *first, **last;
    bool busy, stop;
};

struct host {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct stream *streams;
    struct stream *fallback; /* the default stream */
    struct stream *all;      /* follows all other streams, see record_all */
};

/* ---- images of bytes become images of floats ---- */

int convert_check(const struct onepot_conversion *images, struct onepot_error *error)
{
    if (images->channels < 1 || images->channels > 4)
        return error_set(error, -EINVAL, "images of %u channels; 1 to 4 are possible",
                         images->channels);
    if (images->height < 1 || images->width < 1 || images->height > SIDE_MAX ||
        images->width > SIDE_MAX)
        return error_set(error, -EINVAL, "images of %u by %u pixels", images->height,
                         images->width);
    if (images->type < ONEPOT_FLOAT || images->type > ONEPOT_BFLOAT16)
        return error_set(error, -EINVAL, "no such type of float: %d", (int)images->type);
    return 0;
}

/* Convert one byte of one channel. */
static void convert_one(const struct onepot_conversion *images, uint32_t channel, uint8_t byte,
                        void *to, uint64_t at)
{
    float x = convert_scale(byte, images->mean[channel], images->scale[channel]);
    if (images->type == ONEPOT_FLOAT)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] =
            images->type == ONEPOT_HALF ? convert_half(x) : convert_bfloat16(x);
}

void convert_host(const struct onepot_conversion *images, uint64_t count, const uint8_t *from,
                  void *to)
{
    uint64_t pixels = (uint64_t)images->height * images->width, at = 0;
    for (uint64_t n = 0; n < count; n++) {
        for (uint32_t c = 0; c < images->channels; c++)
            for (uint64_t p = 0; p < pixels; p++)
                convert_one(images, c, from[p * images->channels + c], to, at++);
        from += pixels * images->channels;
    }
}

/* ---- the thread of a stream ---- */

static void host_gather(const struct device_gather *g)
{
    for (uint64_t i = 0; i < g->count; i++) {
        uint64_t end = g->offsets[i] + g->sizes[i];
        uint64_t next = i + 1 < g->count ? g->offsets[i + 1] : g->bytes;
        memcpy(g->to + g->offsets[i], (const void *)(uintptr_t)g->from[i], g->sizes[i]);
        memset(g->to + end, 0, next - end);
    }
}

/* Without the lock. */
static void host_work(const struct task *task)
{
    switch (task->kind) {
    case TASK_COPY:
        memcpy(task->copy.to, task->copy.from, task->copy.bytes);
        break;
    case TASK_CLEAR:
        memset(task->copy.to, 0, task->copy.bytes);
        break;
    case TASK_CALL:
        task->call.function(task->call.ctx);
        break;
    case TASK_GATHER:
        host_gather(&task->gather);
        break;
    case TASK_CONVERT:
        convert_host(&task->convert.images, task->convert.count, task->convert.from,
                     task->convert.to);
        break;
    default:
        break;
    }
}

static void host_let_go(struct event *event)
{
    if (--event->tasks == 0 && event->dropped)
        free(event);
}

/* Under the lock, which is given up for tasks that take long. */
static void host_run(struct host *host, struct task *task)
{
    struct event *event = task->event.event;
    if (task->kind == TASK_RECORD) {
        if (task->event.number > event->passed)
            event->passed = task->event.number;
        event->passed_ns = now_ns();
        host_let_go(event);
    } else if (task->kind == TASK_FOLLOW) {
        while (event->passed < task->event.number)
            pthread_cond_wait(&host->changed, &host->lock);
        host_let_go(event);
    } else {
        pthread_mutex_unlock(&host->lock);
        host_work(task);
        pthread_mutex_lock(&host->lock);
    }
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    struct host *host = s->host;
    pthread_mutex_lock(&host->lock);
    while (!s->stop || s->first) {
        struct task *task = s->first;
        if (!task) {
            pthread_cond_wait(&host->changed, &host->lock);
            continue;
        }
        s->first = task->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        host_run(host, task);
        s->busy = false;
        free(task);
        pthread_cond_broadcast(&host->changed);
    }
    struct stream **at = &host->streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

static int host_stream_new(void *device, bool is_urgent, struct onepot_error *error,
                           void **ret_stream)
{
    struct stream *s = calloc(1, sizeof(*s));
    int r = -ENOMEM;
    if (s) {
        s->host = device;
        s->last = &s->first;
        r = thread_start(&s->thread, THREAD_STACK_BYTES, stream_main, s);
    }
    if (r < 0) {
        free(s);
        return error_set(error, r, "no thread can be started for a stream");
    }
    pthread_mutex_lock(&s->host->lock);
    s->next = s->host->streams;
    s->host->streams = s;
    pthread_mutex_unlock(&s->host->lock);
    *ret_stream = s;
    return 0;
}

/* Does the stream's tasks first. */
static void host_stream_free(void *device, void *stream)
{
    struct host *host = device;
    struct stream *s = stream;
    pthread_mutex_lock(&host->lock);
    s->stop = true;
    pthread_cond_broadcast(&host->changed);
    pthread_mutex_unlock(&host->lock);
    pthread_join(s->thread, NULL);
    free(s);
}

static int host_stream_check(void *device, void *stream, struct onepot_error *error)
{
    return 0;
}

static struct stream *host_stream_of(struct host *host, void *stream)
{
    return stream ? stream : host->fallback;
}

static int host_stream_wait(void *device, void *stream, struct onepot_error *error)
{
    struct host *host = device;
    const struct stream *s = host_stream_of(host, stream);
    pthread_mutex_lock(&host->lock);
    while (s->first || s->busy)
        pthread_cond_wait(&host->changed, &host->lock);
    pthread_mutex_unlock(&host->lock);
    return 0;
}

/* ---- events ---- */

static int host_event_new(void *device, bool has_time, struct onepot_error *error,
                          void **ret_event)
{
    *ret_event = calloc(1, sizeof(struct event));
    return *ret_event ? 0 : error_set(error, -ENOMEM, "no memory for an event");
}

/* Under the lock. */
static void host_drop(struct event *event)
{
    event->dropped = true;
    event->tasks++;
    host_let_go(event);
}

static void host_event_free(void *device, void *event)
{
    struct host *host = device;
    pthread_mutex_lock(&host->lock);
    host_drop(event);
    pthread_mutex_unlock(&host->lock);
}

/* Under the lock. */
static int host_queue(struct stream *s, const struct task *task, struct onepot_error *error)
{
    struct task *memory = malloc(sizeof(*memory));
    if (!memory)
        return error_set(error, -ENOMEM, "no memory for a task of a stream");
    *memory = *task;
    memory->next = NULL;
    *s->last = memory;
    s->last = &memory->next;
    pthread_cond_broadcast(&s->host->changed);
    return 0;
}

static int host_give(struct host *host, void *stream, const struct task *task,
                     struct onepot_error *error)
{
    pthread_mutex_lock(&host->lock);
    int r = host_queue(host_stream_of(host, stream), task, error);
    pthread_mutex_unlock(&host->lock);
    return r;
}

/* Under the lock. Queues a recording of an event, or the wait for its latest recording. */
static int host_queue_event(struct stream *s, enum task_kind kind, struct event *e,
                            struct onepot_error *error)
{
    uint64_t number = e->recorded + (kind == TASK_RECORD);
    int r = host_queue(s, &(struct task){.kind = kind, .event = {e, number}}, error);
    if (r < 0)
        return r;
    e->tasks++;
    e->recorded = number;
    return 0;
}

static int host_give_event(struct host *host, void *stream, enum task_kind kind,
                           struct event *event, struct onepot_error *error)
{
    pthread_mutex_lock(&host->lock);
    int r = host_queue_event(host_stream_of(host, stream), kind, event, error);
    pthread_mutex_unlock(&host->lock);
    return r;
}

static int host_record(void *device, void *event, void *stream, struct onepot_error *error)
{
    return host_give_event(device, stream, TASK_RECORD, event, error);
}

static int host_follow(void *device, void *stream, void *event, struct onepot_error *error)
{
    return host_give_event(device, stream, TASK_FOLLOW, event, error);
}

/* Under the lock. */
static int host_follow_one(struct host *host, struct stream *s, struct onepot_error *error)
{
    void *end;
    int r = host_event_new(host, false, error, &end);
    if (r < 0)
        return r;
    r = host_queue_event(s, TASK_RECORD, end, error);
    if (r == 0)
        r = host_queue_event(host->all, TASK_FOLLOW, end, error);
    host_drop(end);
    return r;
}

/* In a stream that follows all others. */
static int host_record_all(void *device, void *event, struct onepot_error *error)
{
    struct host *host = device;
    int r = 0;
    pthread_mutex_lock(&host->lock);
    for (struct stream *s = host->streams; s && r == 0; s = s->next)
        r = host_follow_one(host, s, error);
    if (r == 0)
        r = host_queue_event(host->all, TASK_RECORD, event, error);
    pthread_mutex_unlock(&host->lock);
    return r;
}

static int host_is_done(void *device, void *event, struct onepot_error *error)
{
    struct host *host = device;
    const struct event *e = event;
    pthread_mutex_lock(&host->lock);
    int done = e->passed >= e->recorded;
    pthread_mutex_unlock(&host->lock);
    return done;
}

static int host_event_wait(void *device, void *event, struct onepot_error *error)
{
    struct host *host = device;
    const struct event *e = event;
    pthread_mutex_lock(&host->lock);
    for (uint64_t number = e->recorded; e->passed < number;)
        pthread_cond_wait(&host->changed, &host->lock);
    pthread_mutex_unlock(&host->lock);
    return 0;
}

static int host_wait_all(void *device, struct onepot_error *error)
{
    void *event;
    int r = host_event_new(device, false, error, &event);
    if (r < 0)
        return r;
    r = host_record_all(device, event, error);
    if (r == 0)
        r = host_event_wait(device, event, error);
    host_event_free(device, event);
    return r;
}

static int host_elapsed(void *device, void *from, void *to, struct onepot_error *error,
                        uint64_t *ret_ns)
{
    struct host *host = device;
    const struct event *a = from, *b = to;
    pthread_mutex_lock(&host->lock);
    bool done =
        a->recorded && a->passed >= a->recorded && b->recorded && b->passed >= b->recorded;
    if (done)
        *ret_ns = b->passed_ns - a->passed_ns;
    pthread_mutex_unlock(&host->lock);
    return done ? 0 : error_set(error, -EAGAIN, "the events are not done");
}

/* ---- tasks for a stream ---- */

static int host_copy(void *device, void *stream, void *to, const void *from, size_t bytes,
                     struct onepot_error *error)
{
    return host_give(device, stream,
                     &(struct task){.kind = TASK_COPY, .copy = {to, from, bytes}}, error);
}

static int host_clear(void *device, void *stream, void *to, size_t bytes,
                      struct onepot_error *error)
{
    return host_give(device, stream,
                     &(struct task){.kind = TASK_CLEAR, .copy = {to, NULL, bytes}}, error);
}

static int host_call(void *device, void *stream, void (*function)(void *ctx), void *ctx,
                     struct onepot_error *error)
{
    return host_give(device, stream, &(struct task){.kind = TASK_CALL, .call = {function, ctx}},
                     error);
}

static int host_queue_gather(void *device, void *stream, const struct device_gather *g,
                             struct onepot_error *error)
{
    return host_give(device, stream, &(struct task){.kind = TASK_GATHER, .gather = *g}, error);
}

static int host_convert(void *device, void *stream, const struct onepot_conversion *images,
                        uint64_t count, const uint8_t *from, void *to,
                        struct onepot_error *error)
{
    return host_give(
        device, stream,
        &(struct task){.kind = TASK_CONVERT, .convert = {*images, count, from, to}}, error);
}

/* ---- life and memory ---- */

static int host_count(struct onepot_error *error, uint32_t *ret_count)
{
    *ret_count = HOST_DEVICES;
    return 0;
}

static int open_host(uint32_t index, struct onepot_error *error, void **ret_device)
{
    struct host *host = calloc(1, sizeof(*host));
    void *fallback = NULL, *all = NULL;
    if (!host)
        return error_set(error, -ENOMEM, "no memory for a device");
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->changed, NULL);
    int r = host_stream_new(host, false, error, &fallback);
    if (r == 0)
        r = host_stream_new(host, false, error, &all);
    if (r < 0) {
        if (fallback)
            host_stream_free(host, fallback);
        free(host);
        return r;
    }
    host->fallback = fallback;
    host->all = all;
    *ret_device = host;
    return 0;
}

static void close_host(void *device)
{
    struct host *host = device;
    host_stream_free(host, host->fallback);
    host_stream_free(host, host->all);
    pthread_cond_destroy(&host->changed);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

static int host_info(void *device, struct onepot_error *error,
                     struct onepot_device_info *ret_info)
{
    snprintf(ret_info->name, sizeof(ret_info->name), "host");
    ret_info->is_host = 1;
    ret_info->numa_node = -1;
    ret_info->kernels = 1;
    ret_info->free_bytes = budget_free_bytes("");
    ret_info->total_bytes = budget_memory_bytes("");
    return 0;
}

static int host_allocate(void *device, enum device_memory where, size_t bytes,
                         struct onepot_error *error, void **ret_memory)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return error_set(error, -ENOMEM, "no memory for %zu bytes", bytes);
    *ret_memory = p;
    return 0;
}

static void host_release(void *device, enum device_memory where, void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

static int host_lock_pages(void *device, const void *memory, size_t bytes, bool is_stored,
                           struct onepot_error *error)
{
    return 0;
}

static void host_unlock_pages(void *device, const void *memory, size_t bytes) {}

static int host_address(void *device, const void *memory, struct onepot_error *error,
                        uint64_t *ret_address)
{
    *ret_address = (uintptr_t)memory;
    return 0;
}

static void host_range(const char *name) {}

const struct device_type device_host = {
    .kind = "host",
    .count = host_count,
    .open = open_host,
    .close = close_host,
    .info = host_info,
    .allocate = host_allocate,
    .release = host_release,
    .lock = host_lock_pages,
    .unlock = host_unlock_pages,
    .address = host_address,
    .stream_new = host_stream_new,
    .stream_free = host_stream_free,
    .stream_check = host_stream_check,
    .stream_wait = host_stream_wait,
    .event_new = host_event_new,
    .event_free = host_event_free,
    .record = host_record,
    .follow = host_follow,
    .is_done = host_is_done,
    .event_wait = host_event_wait,
    .elapsed = host_elapsed,
    .record_all = host_record_all,
    .wait_all = host_wait_all,
    .copy = host_copy,
    .clear = host_clear,
    .call = host_call,
    .gather = host_queue_gather,
    .convert = host_convert,
    .range = host_range,
};
