#include "streams.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CONTEXTS_MAX 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all of it */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream *streams;
static struct event *events;
static uint64_t numbers;       /* of tasks, given so far */
static uint64_t released;      /* kernels that spin end up to this number */
static bool held;              /* no kernel begins */
static unsigned waiting;       /* threads of the host, for an event, */
static unsigned frees_waiting; /* and for a whole context */
static struct context {
    void *context;
    struct stream *legacy, *all;
} contexts[CONTEXTS_MAX];

static _Thread_local struct stream *of_thread[CONTEXTS_MAX];
static _Thread_local void *does_task_of;

static void *make(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        abort();
    return p;
}

/* ---- what may begin; under the lock ---- */

static uint64_t oldest(const struct stream *s)
{
    return s->busy ? s->busy_number : s->first ? s->first->number : UINT64_MAX;
}

/* Does s have to be past what the other was given before? */
static bool is_behind(const struct stream *s, const struct stream *other)
{
    if (s == other || s->context != other->context || other->is_all)
        return false;
    return s->is_all || (s->is_legacy && other->is_blocking) ||
           (s->is_blocking && other->is_legacy);
}

static bool can_run(const struct stream *s, const struct task *t)
{
    if (t->kind == TASK_SPIN && t->number > released)
        return false;
    if (t->kind == TASK_KERNEL && held)
        return false;
    if (t->kind == TASK_FOLLOW && t->event->passed < t->recording)
        return false;
    for (const struct stream *other = streams; other; other = other->next)
        if (is_behind(s, other) && oldest(other) < t->number)
            return false;
    return true;
}

static bool moves(const struct stream *s)
{
    return s->busy || (s->first && can_run(s, s->first));
}

/* ---- the thread of a stream ---- */

static void do_task(struct stream *s, struct task *t)
{
    if (t->kind == TASK_RECORD) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (t->recording > t->event->passed)
            t->event->passed = t->recording;
        t->event->passed_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    } else if (t->function) {
        s->busy = true;
        s->busy_number = t->number;
        pthread_mutex_unlock(&lock);
        does_task_of = s->context;
        t->function(t->ctx);
        does_task_of = NULL;
        pthread_mutex_lock(&lock);
        s->busy = false;
    }
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&lock);
    while (!s->dead || s->first) {
        struct task *t = s->first;
        if (!t || !can_run(s, t)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        s->first = t->next;
        if (!s->first)
            s->last = &s->first;
        do_task(s, t);
        free(t);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Under the lock. */
static struct stream *stream_start(void *context, const struct stream *as)
{
    struct stream *s = make(sizeof(*s));
    pthread_t thread;
    *s = *as;
    s->context = context;
    s->last = &s->first;
    s->next = streams;
    streams = s;
    if (pthread_create(&thread, NULL, stream_main, s) != 0)
        abort();
    pthread_detach(thread);
    return s;
}

struct stream *stream_make(void *context, bool is_blocking)
{
    pthread_mutex_lock(&lock);
    struct stream *s = stream_start(context, &(struct stream){.is_blocking = is_blocking});
    pthread_mutex_unlock(&lock);
    return s;
}

struct event *event_make(void *context, bool has_time)
{
    struct event *e = make(sizeof(*e));
    e->context = context;
    e->has_time = has_time;
    pthread_mutex_lock(&lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&lock);
    return e;
}

struct stream *stream_known(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct stream *s = streams;
    while (s && (s != handle || s->dead))
        s = s->next;
    pthread_mutex_unlock(&lock);
    return s;
}

struct event *event_known(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct event *e = events;
    while (e && (e != handle || e->dead))
        e = e->next;
    pthread_mutex_unlock(&lock);
    return e;
}

void stream_drop(struct stream *stream)
{
    pthread_mutex_lock(&lock);
    stream->dead = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void event_drop(struct event *event)
{
    pthread_mutex_lock(&lock);
    event->dead = true;
    pthread_mutex_unlock(&lock);
}

/* ---- default streams ---- */

/* Under the lock. */
static unsigned context_number(void *context)
{
    unsigned i = 0;
    while (i < CONTEXTS_MAX - 1 && contexts[i].context && contexts[i].context != context)
        i++;
    contexts[i].context = context;
    return i;
}

struct stream *stream_legacy(void *context)
{
    pthread_mutex_lock(&lock);
    struct context *c = &contexts[context_number(context)];
    if (!c->legacy)
        c->legacy = stream_start(context, &(struct stream){.is_legacy = true});
    pthread_mutex_unlock(&lock);
    return c->legacy;
}

struct stream *stream_all(void *context)
{
    pthread_mutex_lock(&lock);
    struct context *c = &contexts[context_number(context)];
    if (!c->all)
        c->all = stream_start(context, &(struct stream){.is_all = true});
    pthread_mutex_unlock(&lock);
    return c->all;
}

struct stream *stream_of_thread(void *context)
{
    pthread_mutex_lock(&lock);
    struct stream **s = &of_thread[context_number(context)];
    if (!*s)
        *s = stream_start(context, &(struct stream){.is_blocking = true});
    pthread_mutex_unlock(&lock);
    return *s;
}

/* ---- tasks ---- */

uint64_t stream_queue(struct stream *stream, const struct task *task)
{
    struct task *t = make(sizeof(*t));
    *t = *task;
    t->next = NULL;
    pthread_mutex_lock(&lock);
    uint64_t number = t->number = ++numbers;
    if (t->kind == TASK_RECORD)
        t->event->recorded++;
    if (t->event)
        t->recording = t->event->recorded;
    *stream->last = t;
    stream->last = &t->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return number;
}

bool event_is_done(struct event *event)
{
    pthread_mutex_lock(&lock);
    bool done = event->passed >= event->recorded;
    pthread_mutex_unlock(&lock);
    return done;
}

void event_wait(struct event *event)
{
    pthread_mutex_lock(&lock);
    waiting++;
    for (uint64_t recording = event->recorded; event->passed < recording;)
        pthread_cond_wait(&changed, &lock);
    waiting--;
    pthread_mutex_unlock(&lock);
}

bool event_elapsed(struct event *from, struct event *to, uint64_t *ret_ns)
{
    pthread_mutex_lock(&lock);
    bool done = from->passed >= from->recorded && to->passed >= to->recorded;
    *ret_ns = done ? to->passed_ns - from->passed_ns : 0;
    pthread_mutex_unlock(&lock);
    return done;
}

void stream_wait_for(struct stream *stream, uint64_t number)
{
    pthread_mutex_lock(&lock);
    while (oldest(stream) <= number)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

void context_wait(void *context)
{
    pthread_mutex_lock(&lock);
    uint64_t number = numbers;
    frees_waiting++;
    for (struct stream *s = streams; s; s = s->next)
        while (s->context == context && oldest(s) <= number)
            pthread_cond_wait(&changed, &lock);
    frees_waiting--;
    pthread_mutex_unlock(&lock);
}

void *streams_task_context(void)
{
    return does_task_of;
}

/* ---- capture ---- */

static bool captures_of(const struct stream *s, const void *context, bool only_blocking)
{
    return s->capture == CAPTURE_ON && (!context || s->context == context) &&
           (!only_blocking || s->is_blocking);
}

bool streams_capture(void *context, bool only_blocking)
{
    bool any = false;
    pthread_mutex_lock(&lock);
    for (const struct stream *s = streams; s; s = s->next)
        any = any || captures_of(s, context, only_blocking);
    pthread_mutex_unlock(&lock);
    return any;
}

void streams_break_captures(void *context, bool only_blocking)
{
    pthread_mutex_lock(&lock);
    for (struct stream *s = streams; s; s = s->next)
        if (captures_of(s, context, only_blocking))
            s->capture = CAPTURE_BROKEN;
    pthread_mutex_unlock(&lock);
}

/* ---- for tests ---- */

void streams_spin(struct stream *stream)
{
    stream_queue(stream, &(struct task){.kind = TASK_SPIN});
}

void streams_release(void)
{
    pthread_mutex_lock(&lock);
    released = numbers;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void streams_hold(bool kernels)
{
    pthread_mutex_lock(&lock);
    held = kernels;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void streams_quiet(void)
{
    pthread_mutex_lock(&lock);
    for (struct stream *s = streams; s;) {
        bool wait = moves(s);
        if (wait)
            pthread_cond_wait(&changed, &lock);
        s = wait ? streams : s->next;
    }
    pthread_mutex_unlock(&lock);
}

unsigned streams_frees_waiting(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = frees_waiting;
    pthread_mutex_unlock(&lock);
    return n;
}

unsigned streams_waiting(void)
{
    pthread_mutex_lock(&lock);
    unsigned n = waiting;
    pthread_mutex_unlock(&lock);
    return n;
}
