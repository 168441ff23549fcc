/*
 * Streams and events of the played runtime. A stream is a thread with a list of tasks. Nothing
 * is done sooner than it has to be: a test may hold kernels back, and ask for the moment at
 * which nothing moves any more. What was not ordered has happened by then.
 */
#ifndef ONEPOT_TESTS_CUDA_STREAMS_H
#define ONEPOT_TESTS_CUDA_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

struct event {
    struct event *next; /* of all that ever were, so that a destroyed one is known */
    void *context;
    bool dead, has_time, captured;
    uint64_t recorded, passed; /* recordings asked for, and the latest that was passed */
    uint64_t passed_ns;
};

enum capture { CAPTURE_NOT, CAPTURE_ON, CAPTURE_BROKEN };

struct stream {
    struct stream *next; /* of all that ever were */
    void *context;
    bool dead;
    bool is_blocking; /* it and the legacy stream wait for each other */
    bool is_legacy;
    bool is_green; /* of a green context on the same device */
    bool is_all;   /* its tasks are behind all that was queued before, in any stream */
    enum capture capture;
    unsigned captured; /* tasks */
    struct task *first, **last;
    bool busy;
    uint64_t busy_number;
};

enum task_kind { TASK_WORK, TASK_KERNEL, TASK_SPIN, TASK_RECORD, TASK_FOLLOW };

struct task {
    struct task *next;
    enum task_kind kind;
    uint64_t number; /* grows from task to task, in all streams */
    void (*function)(void *ctx);
    void *ctx;
    struct event *event;
    uint64_t recording;
};

/* They end the process if there is no memory. */
struct stream *stream_make(void *context, bool is_blocking);
struct event *event_make(void *context, bool has_time);

/* NULL: there is none, or it was destroyed. */
struct stream *stream_known(const void *handle);
struct event *event_known(const void *handle);

/* The tasks that it has are still done. */
void stream_drop(struct stream *stream);
void event_drop(struct event *event);

/* The default streams of a context: the legacy one, this thread's, and one behind all others.
 */
struct stream *stream_legacy(void *context);
struct stream *stream_of_thread(void *context);
struct stream *stream_all(void *context);

/* The task's kind, function and ctx, or event, are set. Returns its number. */
uint64_t stream_queue(struct stream *stream, const struct task *task);

bool event_is_done(struct event *event);
void event_wait(struct event *event);
/* False: one of them is not done. */
bool event_elapsed(struct event *from, struct event *to, uint64_t *ret_ns);

/* Until a stream is past that task; until a context has done all that it was given. */
void stream_wait_for(struct stream *stream, uint64_t number);
void context_wait(void *context);

/* Whether some stream of a context captures; NULL: of any. */
bool streams_capture(void *context, bool only_blocking);
void streams_break_captures(void *context, bool only_blocking);

/* The context whose task this thread does; NULL: none. */
void *streams_task_context(void);

/* ---- for tests, see played.h ---- */

void streams_spin(struct stream *stream);
void streams_release(void);
void streams_hold(bool kernels);
void streams_quiet(void);
unsigned streams_waiting(void);
unsigned streams_frees_waiting(void);

#endif
