/*
 * The copier: threads that go through the archive in order, or on from where a reader fetched
 * two chunks in a row, and fetch chunks that are not there.
 * There are as many as a parallel filesystem needs to be fast, but few enough to leave room for
 * readers. One process at a time copies. It holds a lock on the copy, which is free again
 * however the process ends; other processes look for that now and then.
 *
 * Chunks that can't be read are tried again in later passes. If some still can't, or so many in
 * a row that the source must be gone, the copy stays as it is: its chunks are served, and the
 * rest is read from the source.
 */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "numbers.h"
#include "stage_job.h"
#include "stage_private.h"
#include "thread.h"

#define SECOND_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(100000000)   /* between two looks for a copier that died */
#define PASSES 4u                     /* over chunks that could not be read */
#define FAILURES_IN_A_ROW 64          /* of chunks: then the source is gone */
#define FAILED_NS UINT64_C(250000000) /* before failed chunks are tried again */
#define MISSED_NS UINT64_C(10000000)  /* before chunks are looked at that readers make */
#define STACK_BYTES (128u << 10)
#define EXPAND_STACK_BYTES (1u << 20) /* of the thread whose child unpacks, on a copy of it */
#define STOP_LIMIT_S 2
#define AWAIT_JOB_S 60u
#define GENTLE_STREAMS 4u
#define SCATTER_NS (10 * SECOND_NS) /* at most; for little that is missing less: */
#define SCATTER_CHUNK_NS UINT64_C(100000000)

/* ---- copying ---- */

struct copying {
    struct stage *stage;
    uint32_t generation;
    _Atomic uint64_t next; /* chunk of this pass */
    _Atomic int failures;  /* in a row */
    _Atomic int last_error;
};

/* Other nodes bring missing chunks, and did so a moment ago. */
static bool copying_yields(const struct stage *stage)
{
    uint64_t since_ns = atomic_load(&stage->state->job_ns);
    return since_ns > STAGE_JOB_LOST &&
           pause_now_ns(&stage->pause) - since_ns < STAGE_JOB_SILENT_S * SECOND_NS;
}

/* A job has broken, perhaps on all its nodes at once: storage must not feel it. */
static bool copying_is_gentle(const struct stage *stage)
{
    return atomic_load(&stage->state->job_ns) >= STAGE_JOB_LOST;
}

static bool copying_goes_on(const struct copying *c)
{
    return !pause_ended(&c->stage->pause) && !atomic_load(&c->stage->state->failure);
}

static void copying_failed(struct copying *c, int err)
{
    atomic_store(&c->last_error, err);
    if (err == EREMCHG) /* of one file (source_folder.h): the others are there */
        return;
    if (atomic_fetch_add(&c->failures, 1) + 1 >= FAILURES_IN_A_ROW)
        stage_fail(c->stage, err);
}

static void copying_chunk(struct copying *c, uint64_t chunk, void *buf)
{
    struct stage_state *state = c->stage->state;
    if (stage_chunk_here(state, chunk))
        return;
    /* A reader that takes this claim for an old one must be right: see stage_fetch. */
    atomic_store_explicit(&state->progress_ns, now_ns(), memory_order_relaxed);
    if (!stage_claim_stream(state, chunk, c->generation))
        return; /* a reader makes it */
    int r = stage_fetch(c->stage, chunk, buf);
    if (r < 0) {
        copying_failed(c, -r);
        return;
    }
    atomic_store_explicit(&c->failures, 0, memory_order_relaxed);
    atomic_store_explicit(&state->progress_ns, now_ns(), memory_order_relaxed);
    atomic_fetch_add(&state->stream_bytes, stage_chunk_len(state, chunk));
}

static void *copying_stream(void *arg)
{
    struct copying *c = arg;
    auto_free void *buf = malloc(STAGE_CHUNK_BYTES);
    uint64_t demands = atomic_load(&c->stage->state->demands);
    while (buf && copying_goes_on(c) && !copying_yields(c->stage)) {
        uint64_t now = atomic_load(&c->stage->state->demands);
        if (now != demands && copying_is_gentle(c->stage)) /* readers first */
            pause_for(&c->stage->pause, MISSED_NS);
        demands = now;
        uint64_t wanted = atomic_exchange(&c->stage->wanted, 0);
        if (wanted)
            atomic_store(&c->next, wanted);
        uint64_t chunk = atomic_fetch_add(&c->next, 1);
        if (chunk >= c->stage->state->chunks)
            break;
        copying_chunk(c, chunk, buf);
    }
    return NULL;
}

/* One pass over all missing chunks, with as many threads as can be started. */
static void copying_pass(struct copying *c)
{
    struct stage_state *state = c->stage->state;
    uint64_t start_ns = now_ns();
    atomic_store(&state->stream_since_ns, start_ns);
    atomic_store(&state->progress_ns, start_ns);
    atomic_store(&c->next, 0);
    atomic_store(&c->last_error, 0);
    unsigned streams = c->stage->options.streams;
    if (copying_is_gentle(c->stage) && streams > GENTLE_STREAMS)
        streams = GENTLE_STREAMS;
    thread_team(streams, STACK_BYTES, copying_stream, c);
    atomic_store(&state->stream_since_ns, 0);
    atomic_fetch_add(&state->stream_ns, now_ns() - start_ns);
}

void stage_finish(struct stage *stage)
{
    if (!stage_is_complete(stage->state))
        return;
    if (source_was_changed(stage->source) > 0)
        stage_fail(stage, ESTALE);
    else
        atomic_store_explicit(&stage->state->whole, 1, memory_order_release);
}

/* The nodes of a job that has broken begin one after another. */
static void copying_scatter(struct stage *stage)
{
    uint64_t chance = 0;
    if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) < 0)
        chance = now_ns() / 1000 * (uint64_t)getpid();
    uint64_t missing = stage->bytes - min_u64(stage->bytes, stage_bytes_here(stage->state));
    uint64_t window_ns =
        min_u64(SCATTER_NS, (missing / STAGE_CHUNK_BYTES + 1) * SCATTER_CHUNK_NS);
    uint64_t until_ns = pause_now_ns(&stage->pause) + chance % window_ns;
    while (copying_is_gentle(stage) && !copying_yields(stage) &&
           pause_now_ns(&stage->pause) < until_ns && !stage_is_complete(stage->state) &&
           pause_for(&stage->pause, LOOK_NS))
        ;
}

/* Chunks that still can't be read are left to readers, which may have more luck. */
void stage_copy(struct stage *stage)
{
    struct stage_state *state = stage->state;
    struct copying c = {.stage = stage,
                        .generation =
                            (atomic_fetch_add(&state->generation, 1) + 1) & 0x7fffffff};
    unsigned fruitless = 0;
    bool waited = false;
    while (copying_goes_on(&c)) {
        if (copying_yields(stage) && !stage_is_complete(state)) {
            pause_for(&stage->pause, LOOK_NS);
            waited = false; /* the job may break once more */
            continue;
        }
        if (!waited) {
            copying_scatter(stage);
            waited = true;
        }
        copying_pass(&c);
        int err = atomic_load(&c.last_error);
        if (stage_is_complete(state))
            break;
        if (err && ++fruitless >= PASSES && copying_goes_on(&c))
            stage_fail(stage, err);
        if (copying_goes_on(&c))
            pause_for(&stage->pause, err ? FAILED_NS : MISSED_NS);
    }
    stage_finish(stage);
}

/* ---- whose turn it is ---- */

static bool copier_is_needed(const struct stage *stage)
{
    return !atomic_load(&stage->state->whole) && !atomic_load(&stage->state->failure);
}

/* The lock belongs to an open file, so it needs another one. */
static int copier_open_copy(const struct stage *stage)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", stage->copy_fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void copier_work(struct stage *stage)
{
    if (!copier_is_needed(stage) || pause_ended(&stage->pause)) /* another one has ended */
        return;
    atomic_store(&stage->state->copier_pid, (int32_t)getpid());
    if (stage->expands)
        stage_expand(stage, &stage->begun);
    else
        stage_copy(stage);
    atomic_store(&stage->state->copier_pid, 0);
}

/* A reader comes before the nodes of its job begin to copy, but must not wait for them long. */
static void copier_await_job(struct stage *stage)
{
    uint64_t since_ns = pause_now_ns(&stage->pause);
    while (copier_is_needed(stage) && !atomic_load(&stage->state->job_ns) &&
           !pause_ended(&stage->pause)) {
        if (pause_now_ns(&stage->pause) - since_ns > AWAIT_JOB_S * SECOND_NS) {
            stage_say(stage,
                      "the nodes of the job have not begun to copy it together within %u s: "
                      "this one reads all of it",
                      AWAIT_JOB_S);
            break;
        }
        pause_for(&stage->pause, LOOK_NS);
    }
}

static void *copier_run(void *arg)
{
    struct stage *stage = arg;
    if (stage->options.in_job && !stage->expands)
        copier_await_job(stage);
    auto_close int fd = copier_open_copy(stage);
    bool is_mine = fd >= 0 && registry_take(fd);
    while (fd >= 0 && !is_mine && copier_is_needed(stage)) {
        sem_post(&stage->begun);
        if (!pause_for(&stage->pause, LOOK_NS))
            break;
        is_mine = registry_take(fd);
    }
    if (is_mine)
        copier_work(stage);
    sem_post(&stage->begun);
    return NULL;
}

int stage_start(struct stage *stage)
{
    if (stage->copier_process == getpid() || !copier_is_needed(stage))
        return 0;
    sem_init(&stage->begun, 0, 0);
    atomic_store(&stage->pause.ended, false);
    int r = thread_start(&stage->copier, stage->expands ? EXPAND_STACK_BYTES : STACK_BYTES,
                         copier_run, stage);
    if (r < 0)
        return r;
    stage->copier_process = getpid();
    /* The child is a fork, and could inherit locks that threads started meanwhile hold. */
    while (stage->expands && sem_wait(&stage->begun) < 0)
        ; /* a signal came */
    return 0;
}

int stage_stop(struct stage *stage)
{
    if (stage->copier_process != getpid()) { /* a child has none of its parent's threads */
        stage->copier_process = 0;
        atomic_store(&stage->pause.ended, true);
        return 0;
    }
    pause_end(&stage->pause);
    const struct timespec until = clock_in_ms(CLOCK_MONOTONIC, STOP_LIMIT_S * 1000L);
    if (thread_join_until(stage->copier, &until) != 0)
        return -EBUSY;
    stage->copier_process = 0;
    sem_destroy(&stage->begun);
    return 0;
}
