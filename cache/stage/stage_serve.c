/*
 * The part of a job (stage_job.h) of a process that has its engine at the other end of two
 * pipes, and shares a ring with it, in which blocks are made and taken where they lie: copies
 * through pipes would add half to the time of the CPU. The process first writes a line,
 *
 *     onepot-job 1 BLOCK_BYTES GROUPS
 *
 * The engine then writes words of eight bytes: SERVE_OWN with an offset asks for the own block
 * of the next group, which is answered by a byte 1; another offset is where the next block
 * lies, in the order of groups and ranks, which is answered by a byte 3 when it was taken. A
 * byte 0 instead says that the job is over. An engine whose process ends before that, or writes
 * a byte 2, lets the others know by blocks of zeros that begin with its node's name.
 *
 * A block is made while the group before it is still being taken, so that an engine can gather
 * it meanwhile. Therefore a job that ends early ends one group later: its blocks are dropped.
 * An engine hands round zeros for all further groups. If it lost a node, it writes
 * SERVE_HOLD before it looks for the nodes that are left, and SERVE_REPLACED once another
 * process, which it started for them, has begun. The own block of a group is asked for when the
 * one before was made, and the group two before was taken.
 *
 * One thread reads the next group from storage while others take this one: as many as there are
 * CPUs, since a block's sum, and the memory that a copy in memory needs, take a CPU half a
 * second per GB. They take turns at waiting for the next block, and answer in its order. An
 * engine that hangs or is gone is not waited for; a read of storage that hangs is, while the
 * copier goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "numbers.h"
#include "stage_job.h"
#include "stage_private.h"
#include "thread.h"

#define SERVE_MEMORY_BYTES (UINT64_C(64) << 20)
#define SERVE_OWN (UINT64_C(1) << 63)
#define SERVE_REPLACED UINT64_MAX
#define SERVE_HOLD (UINT64_MAX - 1)
#define LOOK_MS 200
#define SILENT_NS (STAGE_JOB_SILENT_S * UINT64_C(1000000000))
#define STACK_BYTES (128u << 10)
#define TAKERS_MAX 8u

struct serving {
    struct stage *stage;
    struct stage_job *job;
    int in_fd, out_fd;
    unsigned size;
    size_t block_bytes;
    uint64_t groups;
    void *owed; /* in the ring */
    sem_t turn; /* it may be made */
    int ring_fd;
    uint8_t *ring; /* mapped when the engine first refers to it */
    uint64_t ring_bytes;
    uint64_t asked, limit; /* groups of which the own block was asked for; will be made */
    /* Blocks are numbered in the order of groups and ranks. */
    pthread_mutex_t next_lock; /* of the thread that waits for block `next`, and of all above */
    int result; /* why no more are taken: -errno; 1: the job is over; 2: another process goes
                   on; or 0 */
    pthread_mutex_t taken_lock; /* after next_lock, and of: */
    unsigned takers;
    uint64_t taking[TAKERS_MAX]; /* a thread's block; UINT64_MAX: none */
    _Atomic uint64_t next, answered;
    _Atomic bool ended;
    const _Atomic int *stop;
};

static bool serving_goes_on(const struct serving *s)
{
    return !atomic_load(&s->ended) && !(s->stop && atomic_load(s->stop));
}

/* ---- the pipes ---- */

static int serve_write(const struct serving *s, const void *bytes, size_t len)
{
    const uint8_t *from = bytes;
    while (len > 0) {
        struct pollfd p = {.fd = s->out_fd, .events = POLLOUT};
        if (!serving_goes_on(s))
            return -ECANCELED;
        if (poll(&p, 1, LOOK_MS) <= 0)
            continue;
        ssize_t n = write(s->out_fd, from, len);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        from += n < 0 ? 0 : n;
        len -= n < 0 ? 0 : (size_t)n;
    }
    return 0;
}

/* -ETIMEDOUT: nothing came for long; -ENODATA: the engine has closed the pipe. */
static int serve_read(const struct serving *s, uint64_t group, void *bytes, size_t len)
{
    uint8_t *to = bytes;
    uint64_t since_ns = now_ns();
    while (len > 0) {
        struct pollfd p = {.fd = s->in_fd, .events = POLLIN};
        if (!serving_goes_on(s))
            return -ECANCELED;
        if (poll(&p, 1, LOOK_MS) <= 0) {
            /* Nodes that start late are waited for while there is something to copy. */
            bool may_end = group > 0 || stage_is_complete(s->stage->state);
            if (atomic_load(&s->answered) < atomic_load(&s->next))
                since_ns = now_ns(); /* the engine waits for this node's threads */
            if (may_end && now_ns() - since_ns > SILENT_NS)
                return -ETIMEDOUT;
            continue;
        }
        ssize_t n = read(s->in_fd, to, len);
        if (n == 0)
            return -ENODATA;
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        if (n > 0)
            since_ns = now_ns();
        to += n < 0 ? 0 : n;
        len -= n < 0 ? 0 : (size_t)n;
    }
    return 0;
}

/*
 * Tell the engine, and let go of its pipe; the descriptor's number stays taken. Another process
 * may have it open, so that its end alone would tell nothing. The other one takes the figures.
 */
static void serve_close(const struct serving *s, bool is_over)
{
    auto_close int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ssize_t told = write(s->out_fd, is_over ? "" : "\2", 1); /* else it is gone, or hangs */
    (void)told;
    if (fd >= 0)
        dup2(fd, s->in_fd);
}

/* ---- the two threads ---- */

static int serve_own_block(struct serving *s, uint64_t group)
{
    while (sem_wait(&s->turn) < 0)
        ;
    if (!serving_goes_on(s))
        return -ECANCELED;
    stage_job_read(s->job, group, s->owed);
    return serve_write(s, "\1", 1);
}

static void *serve_owed(void *arg)
{
    struct serving *s = arg;
    uint64_t group = 0; /* if it fails, the other thread finds out why */
    while (group < s->groups && serve_own_block(s, group) == 0)
        group++;
    return NULL;
}

static int serve_map(struct serving *s)
{
    struct stat st;
    if (fstat(s->ring_fd, &st) < 0 || (uint64_t)st.st_size < s->block_bytes)
        return -EPROTO;
    void *ring =
        mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, s->ring_fd, 0);
    if (ring == MAP_FAILED)
        return -errno;
    s->ring = ring;
    s->ring_bytes = (uint64_t)st.st_size;
    return 0;
}

/* Where the next block lies in the ring. 2: another process goes on with the copy. */
static int serve_find(struct serving *s, uint64_t group, const void **ret_block)
{
    for (;;) {
        uint64_t word = 0;
        int r = serve_read(s, group, &word, sizeof(word));
        if (r == 0 && word == SERVE_REPLACED)
            return 2;
        if (r == 0 && word == SERVE_HOLD) { /* the copier waits as well */
            atomic_store(&s->stage->state->job_ns, pause_now_ns(&s->stage->pause));
            continue;
        }
        if (r == 0 && !s->ring)
            r = serve_map(s);
        uint64_t offset = word & ~SERVE_OWN;
        if (r == 0 && offset > s->ring_bytes - s->block_bytes)
            r = -EPROTO;
        if (r < 0)
            return r;
        if (offset == word) {
            *ret_block = s->ring + offset;
            return 0;
        }
        if (s->asked++ >= s->limit)
            continue;
        s->owed = s->ring + offset; /* the block before was made */
        sem_post(&s->turn);
    }
}

/* Wait for the next block, and judge it. 0, or why there is none. */
static int serve_next(struct serving *s, unsigned taker, const void **ret_block)
{
    pthread_mutex_lock(&s->next_lock);
    uint64_t next = atomic_load(&s->next), group = next / s->size;
    int r = s->result ? s->result : serve_find(s, group, ret_block);
    if (r == 0) {
        pthread_mutex_lock(&s->taken_lock);
        s->taking[taker] = next;
        atomic_store(&s->next, next + 1);
        pthread_mutex_unlock(&s->taken_lock);
        s->result = stage_job_take(s->job, group, (unsigned)(next % s->size), *ret_block);
        if (s->result)
            s->limit = group + 2; /* before the engine asks for more */
    } else {
        s->result = r;
    }
    pthread_mutex_unlock(&s->next_lock);
    return r;
}

/* A byte for each block that was taken, and all blocks before it. */
static void serve_answer(struct serving *s, unsigned taker)
{
    int r = 0; /* an engine that is gone is missed at the next wait for a block */
    pthread_mutex_lock(&s->taken_lock);
    s->taking[taker] = UINT64_MAX;
    uint64_t until = atomic_load(&s->next);
    for (unsigned i = 0; i < s->takers; i++)
        until = min_u64(until, s->taking[i]);
    for (; r == 0 && atomic_load(&s->answered) < until; atomic_fetch_add(&s->answered, 1))
        r = serve_write(s, "\3", 1);
    pthread_mutex_unlock(&s->taken_lock);
}

static void *serve_take(void *arg)
{
    struct serving *s = arg;
    const void *block;
    pthread_mutex_lock(&s->taken_lock);
    unsigned taker = s->takers++;
    s->taking[taker] = UINT64_MAX;
    pthread_mutex_unlock(&s->taken_lock);
    while (serve_next(s, taker, &block) == 0) {
        uint64_t number = s->taking[taker];
        stage_job_keep(s->job, number / s->size, (unsigned)(number % s->size), block);
        serve_answer(s, taker);
    }
    return NULL;
}

/* Drop the exchange after the group in which a node left; the others began it unaware. */
static void serve_drop(struct serving *s, uint64_t group)
{
    const void *block;
    for (unsigned rank = 0; group < s->groups && rank < s->size; rank++)
        if (serve_find(s, group, &block) < 0)
            return;
}

static int serve_groups(struct serving *s)
{
    thread_team(min_u64(cpus_allowed(), TAKERS_MAX), STACK_BYTES, serve_take, s);
    if (s->result == 1)
        serve_drop(s, atomic_load(&s->next) / s->size);
    return s->result < 0 ? s->result : 0;
}

static int serve_run(struct serving *s, struct fault *fault)
{
    pthread_t thread;
    int r = thread_start(&thread, STACK_BYTES, serve_owed, s);
    if (r < 0) {
        stage_job_end(s->job, NULL);
        return r;
    }
    r = serve_groups(s);
    if (r < 0 && r != -ECANCELED)
        stage_say(s->stage, "the other nodes are gone (%s): the rest is read from storage",
                  r == -ENODATA ? "the engine has ended" : fault_errno(r));
    atomic_store(&s->ended, true);
    sem_post(&s->turn);
    atomic_store(&s->stage->state->job_ns, STAGE_JOB_LOST); /* for now: the thread may hang */
    pthread_join(thread, NULL);
    return stage_job_end(s->job, fault);
}

static int serve_hello(const struct serving *s)
{
    char line[96];
    int n = snprintf(line, sizeof(line), "onepot-job 1 %zu %" PRIu64 "\n", s->block_bytes,
                     s->groups);
    return serve_write(s, line, (size_t)n);
}

static int serve_begin(struct serving *s, uint64_t first, unsigned rank)
{
    unsigned run = stage_job_run(s->size, SERVE_MEMORY_BYTES);
    run = run ? run : 1;
    s->block_bytes = stage_job_block_bytes(run);
    s->groups = stage_job_groups(
        s->stage->bytes - min_u64(first * STAGE_CHUNK_BYTES, s->stage->bytes), s->size, run);
    s->result = s->groups == 0;
    return stage_job_begin(s->stage, first, rank, s->size, run, &s->job);
}

int stage_job_serve(struct stage *stage, uint64_t first, unsigned rank, unsigned size,
                    int in_fd, int out_fd, int ring_fd, const _Atomic int *stop,
                    struct fault *fault)
{
    struct serving s = {.stage = stage,
                        .in_fd = in_fd,
                        .out_fd = out_fd,
                        .ring_fd = ring_fd,
                        .size = size,
                        .limit = UINT64_MAX,
                        .stop = stop};
    sem_init(&s.turn, 0, 0);
    pthread_mutex_init(&s.next_lock, NULL);
    pthread_mutex_init(&s.taken_lock, NULL);
    cpus_widen(); /* a batch system may have bound the task to one */
    fcntl(in_fd, F_SETFL, fcntl(in_fd, F_GETFL) | O_NONBLOCK);
    fcntl(out_fd, F_SETFL, fcntl(out_fd, F_GETFL) | O_NONBLOCK);
    int r = size ? serve_begin(&s, first, rank) : -EINVAL;
    if (r == 0)
        r = stage_start(stage); /* it waits as long as the job makes progress */
    if (r == 0 && serve_hello(&s) == 0)
        r = serve_run(&s, fault);
    else if (s.job)
        stage_job_end(s.job, NULL);
    serve_close(&s, s.result > 0);
    pthread_mutex_destroy(&s.next_lock);
    pthread_mutex_destroy(&s.taken_lock);
    if (s.ring)
        munmap(s.ring, s.ring_bytes);
    return r;
}
