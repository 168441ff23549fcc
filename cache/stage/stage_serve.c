/*
 * The part of a job (stage_job.h) of a process that has its engine at the other end of two
 * pipes. It first writes a line,
 *
 *     onepot-job 1 BLOCK_BYTES GROUPS
 *
 * and then, for each group, a byte 1 and its own block, and reads the blocks of all nodes in
 * the order of their ranks. When the job is over it writes a byte 0. An engine whose process
 * ends before that, or writes a byte 2, lets the others know by a block of zeros.
 *
 * One thread reads the next group from storage while another takes this one. An engine that
 * hangs or is gone is not waited for; a read of storage that hangs is, while the copier goes
 * on.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "stage_job.h"
#include "stage_private.h"
#include "thread.h"

#define SERVE_MEMORY_BYTES (UINT64_C(64) << 20)
#define LOOK_MS 200
#define SILENT_NS (STAGE_JOB_SILENT_S * UINT64_C(1000000000))
#define STACK_BYTES (128u << 10)

struct serving {
    struct stage *stage;
    struct stage_job *job;
    int in_fd, out_fd;
    unsigned size;
    size_t block_bytes;
    uint64_t groups;
    bool is_over;
    void *owed, *taken; /* blocks */
    sem_t turn;         /* the next block may be written */
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
 * Tell the engine, and let go of the pipes; the descriptors' numbers stay taken. Another
 * process may have them open, so that their end alone would tell nothing.
 */
static void serve_close(const struct serving *s, bool is_over)
{
    auto_close int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    ssize_t told = write(s->out_fd, is_over ? "" : "\2", 1); /* else it is gone, or hangs */
    (void)told;
    if (fd >= 0) {
        dup2(fd, s->in_fd);
        dup2(fd, s->out_fd);
    }
}

/* ---- the two threads ---- */

static void *serve_owed(void *arg)
{
    struct serving *s = arg;
    for (uint64_t group = 0; group < s->groups && serving_goes_on(s); group++) {
        stage_job_read(s->job, group, s->owed);
        while (sem_wait(&s->turn) < 0)
            ;
        if (serve_write(s, "\1", 1) < 0 || serve_write(s, s->owed, s->block_bytes) < 0)
            atomic_store(&s->ended, true);
    }
    return NULL;
}

/* 1: the job is over. */
static int serve_take(struct serving *s, uint64_t group)
{
    bool over = false;
    for (unsigned rank = 0; rank < s->size; rank++) {
        int r = serve_read(s, group, s->taken, s->block_bytes);
        if (r < 0)
            return r;
        over = stage_job_take(s->job, group, rank, s->taken);
    }
    return over;
}

static int serve_groups(struct serving *s)
{
    int r = 0;
    for (uint64_t group = 0; r == 0; group++) {
        sem_post(&s->turn);
        r = serve_take(s, group);
    }
    s->is_over = r > 0;
    return r < 0 ? r : 0;
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
    atomic_store(&s->stage->state->job_ns, 0); /* the copier need not wait for this thread */
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

static void serving_free(struct serving *s)
{
    free(s->owed);
    free(s->taken);
    free(s);
}

static int serve_begin(struct serving *s, unsigned rank)
{
    unsigned run = stage_job_run(s->size, SERVE_MEMORY_BYTES);
    run = run ? run : 1;
    s->block_bytes = stage_job_block_bytes(run);
    s->groups = stage_job_groups(s->stage->bytes, s->size, run);
    s->owed = malloc(s->block_bytes);
    s->taken = malloc(s->block_bytes);
    return s->owed && s->taken ? stage_job_begin(s->stage, rank, s->size, run, &s->job)
                               : -ENOMEM;
}

int stage_job_serve(struct stage *stage, unsigned rank, unsigned size, int in_fd, int out_fd,
                    const _Atomic int *stop, struct fault *fault)
{
    struct serving *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    *s = (struct serving){
        .stage = stage, .in_fd = in_fd, .out_fd = out_fd, .size = size, .stop = stop};
    sem_init(&s->turn, 0, 0);
    fcntl(in_fd, F_SETFL, fcntl(in_fd, F_GETFL) | O_NONBLOCK);
    fcntl(out_fd, F_SETFL, fcntl(out_fd, F_GETFL) | O_NONBLOCK);
    int r = size ? serve_begin(s, rank) : -EINVAL;
    if (r == 0)
        r = stage_start(stage); /* it waits as long as the job makes progress */
    if (r == 0 && serve_hello(s) == 0)
        r = serve_run(s, fault);
    else if (s->job)
        stage_job_end(s->job, NULL);
    serve_close(s, s->is_over);
    serving_free(s);
    return r;
}
