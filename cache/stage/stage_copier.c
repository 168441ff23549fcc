/*
 * The copier: threads that go through the archive in order and fetch chunks that are not there.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "stage_private.h"
#include "thread.h"

#define LOOK_MS 100u         /* between two looks for a copier that died */
#define PASSES 4u            /* over chunks that could not be read */
#define FAILURES_IN_A_ROW 64 /* of chunks: then the source is gone */
#define PAUSE_MS 250u        /* before failed chunks are tried again */
#define STACK_BYTES (128u << 10)
#define EXPAND_STACK_BYTES (1u << 20) /* of the thread whose child unpacks, on a copy of it */
#define STOP_LIMIT_S 2

struct copier {
    struct stage *stage;
    pthread_t watcher, threads[STAGE_STREAMS_MAX];
    pid_t process;
    uint32_t generation;
    _Atomic uint64_t next; /* chunk */
    _Atomic int failures;  /* in a row */
    _Atomic int last_error;
    _Atomic uint64_t missed; /* in this pass */
    _Atomic bool stop;
    sem_t begun; /* the child that unpacks was forked, or will not be for now */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* for stop */
};

static void rest(struct copier *c, unsigned ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->stop))
        pthread_cond_timedwait(&c->wake, &c->lock, &until);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the stream ---- */

static bool goes_on(const struct copier *c)
{
    return !atomic_load(&c->stop) && !atomic_load(&c->stage->state->failure);
}

static void note_failure(struct copier *c, int err)
{
    atomic_store(&c->last_error, -err);
    atomic_fetch_add(&c->missed, 1);
    if (atomic_fetch_add(&c->failures, 1) + 1 >= FAILURES_IN_A_ROW)
        stage_fail(c->stage, -err);
}

static void copy_chunk(struct copier *c, uint64_t chunk, void *buf)
{
    struct stage_state *state = c->stage->state;
    if (stage_chunk_here(state, chunk))
        return;
    /* A reader that takes this claim for an old one must be right: see stage_fetch. */
    atomic_store_explicit(&state->progress_ns, now_ns(), memory_order_relaxed);
    if (!stage_claim_stream(state, chunk, c->generation)) {
        atomic_fetch_add(&c->missed, 1); /* a reader makes it */
        return;
    }
    int r = stage_fetch(c->stage, chunk, buf);
    if (r < 0) {
        note_failure(c, r);
        return;
    }
    atomic_store_explicit(&c->failures, 0, memory_order_relaxed);
    atomic_store_explicit(&state->progress_ns, now_ns(), memory_order_relaxed);
    atomic_fetch_add(&state->stream_bytes, stage_chunk_len(state, chunk));
}

static void *stream(void *arg)
{
    struct copier *c = arg;
    auto_free void *buf = malloc(STAGE_CHUNK_BYTES);
    while (buf && goes_on(c)) {
        uint64_t chunk = atomic_fetch_add(&c->next, 1);
        if (chunk >= c->stage->state->chunks)
            break;
        copy_chunk(c, chunk, buf);
    }
    return NULL;
}

static int start_thread(pthread_t *thread, void *(*fn)(void *arg), struct copier *c)
{
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    if (r != 0)
        return -r;
    pthread_attr_setstacksize(&attr, c->stage->expands ? EXPAND_STACK_BYTES : STACK_BYTES);
    r = pthread_create(thread, &attr, fn, c);
    pthread_attr_destroy(&attr);
    return -r;
}

/* One pass over all missing chunks, with as many threads as can be started. */
static void pass(struct copier *c)
{
    struct stage_state *state = c->stage->state;
    uint64_t start_ns = now_ns();
    unsigned count = 0;
    atomic_store(&state->stream_since_ns, start_ns);
    atomic_store(&state->progress_ns, start_ns);
    atomic_store(&c->next, 0);
    atomic_store(&c->missed, 0);
    while (count + 1 < c->stage->streams && count < STAGE_STREAMS_MAX &&
           start_thread(&c->threads[count], stream, c) == 0)
        count++;
    stream(c);
    for (unsigned i = 0; i < count; i++)
        pthread_join(c->threads[i], NULL);
    atomic_store(&state->stream_since_ns, 0);
    atomic_fetch_add(&state->stream_ns, now_ns() - start_ns);
}

static bool is_complete(const struct stage_state *state)
{
    for (uint64_t i = 0; i < state->chunks; i++)
        if (!stage_chunk_here(state, i))
            return false;
    return true;
}

bool stage_was_changed(const struct stage *stage)
{
    const struct source_identity *id = &stage->state->identity;
    struct stat st;
    if (fstat(source_fd(stage->source), &st) < 0)
        return false; /* the source is gone, and nobody changes it any more */
    return (S_ISREG(st.st_mode) && (uint64_t)st.st_size != id->size_bytes) ||
           st.st_mtim.tv_sec != id->mtime_sec || st.st_mtim.tv_nsec != (long)id->mtime_nsec;
}

/* Leave to readers, which may have more luck, the chunks that still can't be read. */
static void give_up(struct copier *c)
{
    int err = atomic_load(&c->last_error);
    stage_fail(c->stage, err ? err : EIO);
}

static void copy_all(struct copier *c)
{
    struct stage *stage = c->stage;
    unsigned fruitless = 0;
    while (goes_on(c)) {
        atomic_store(&c->last_error, 0);
        pass(c);
        if (is_complete(stage->state))
            break;
        if (atomic_load(&c->last_error) && ++fruitless >= PASSES && goes_on(c))
            give_up(c);
        if (goes_on(c))
            rest(c, atomic_load(&c->last_error) ? PAUSE_MS : LOOK_MS / 10);
    }
    if (!is_complete(stage->state))
        return;
    if (stage_was_changed(stage))
        stage_fail(stage, ESTALE);
    else
        atomic_store_explicit(&stage->state->whole, 1, memory_order_release);
}

/* ---- whose turn it is ---- */

static bool is_settled(const struct stage_state *state)
{
    return atomic_load(&state->whole) || atomic_load(&state->failure);
}

/* The lock belongs to an open file, so it needs one of its own. */
static int open_copy_again(const struct stage *stage)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", stage->copy_fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void *watch(void *arg)
{
    struct copier *c = arg;
    struct stage_state *state = c->stage->state;
    auto_close int fd = open_copy_again(c->stage);
    while (fd >= 0 && !atomic_load(&c->stop) && !is_settled(state)) {
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            sem_post(&c->begun);
            rest(c, LOOK_MS);
            continue;
        }
        c->generation = (atomic_fetch_add(&state->generation, 1) + 1) & 0x7fffffff;
        atomic_store(&state->copier_pid, (int32_t)getpid());
        if (!is_settled(state) && c->stage->expands)
            stage_expand(c->stage, &c->stop, &c->begun);
        else if (!is_settled(state))
            copy_all(c);
        atomic_store(&state->copier_pid, 0);
        break; /* done, failed, or asked to end */
    }
    sem_post(&c->begun);
    return NULL;
}

/* ---- start and end ---- */

static void free_copier(struct copier *c)
{
    sem_destroy(&c->begun);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int stage_copier_start(struct stage *stage)
{
    if (is_settled(stage->state))
        return 0;
    struct copier *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;
    if (!c)
        return -ENOMEM;
    c->stage = stage;
    c->process = getpid();
    sem_init(&c->begun, 0, 0);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wake, &attr);
    pthread_condattr_destroy(&attr);
    int r = start_thread(&c->watcher, watch, c);
    if (r < 0) {
        free_copier(c);
        return r;
    }
    stage->copier = c;
    /* The child is a fork, and could inherit locks that threads started meanwhile hold. */
    while (stage->expands && sem_wait(&c->begun) < 0)
        ; /* a signal came */
    return 0;
}

int stage_copier_stop(struct stage *stage)
{
    struct copier *c = stage->copier;
    struct timespec until;
    if (!c || c->process != getpid()) { /* a child has none of its parent's threads */
        stage->copier = NULL;
        return 0;
    }
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, true);
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += STOP_LIMIT_S;
    if (thread_join_until(c->watcher, &until) != 0)
        return -EBUSY;
    stage->copier = NULL;
    free_copier(c);
    return 0;
}
