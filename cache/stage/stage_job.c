/*
 * A node's part in a job that copies together (stage_job.h). A block is
 *
 *     head   archive and first chunk, and the sum of each chunk
 *     run    chunks of STAGE_CHUNK_BYTES
 *     head   once more, since a node that could read neither might leave at another group
 *            than the others
 */
#include "stage_job.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "numbers.h"
#include "path.h"
#include "stage_private.h"
#include "thread.h"
#include "write_at.h"

#define MAGIC "onepotJ2"
#define LOOK_NS UINT64_C(10000000000) /* between looks at whether the archive was changed */
#define WAIT_MS 200u
#define WAITS 10 /* for another process that makes a chunk */
#define STACK_BYTES (128u << 10)

enum { JOB_GOES_ON, JOB_LEAVES };

/* Nodes of a job are machines of one kind: it is sent as it lies in memory. */
struct job_head {
    char magic[8];
    uint32_t rank, size, run, status;
    uint64_t chunk; /* the first of the run */
    uint64_t bytes; /* of the archive, and its time: */
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    uint32_t has;                    /* bit i: chunk i of the run is there */
    char node[64];                   /* its name, for messages */
    uint64_t sum[STAGE_JOB_RUN_MAX]; /* XXH3 of chunks that are there */
    uint64_t head_sum;               /* of all of the above */
};

_Static_assert(sizeof(struct job_head) == 256,
               "it has no gaps, whose bytes would be in its sum");

struct stage_job {
    struct stage *stage;
    struct job_head mine;
    uint64_t first;     /* chunk of the first group */
    unsigned left;      /* nodes that have left, of this group */
    unsigned taken;     /* blocks of this group; this and the next are the taking thread's */
    bool leaves;        /* this node, or one whose head was read */
    _Atomic bool lacks; /* a node's share */
    bool is_over;       /* the last group was taken */
    unsigned told_left; /* the rank after the last node of which it was said */
    _Atomic bool storage_fails; /* no further time is lost with it while others wait */
    _Atomic bool told_damage;
    uint64_t looked_ns;
    /* The block that is being filled: */
    void *block;
    unsigned count; /* chunks of the run that the archive has */
    _Atomic unsigned next;
    _Atomic uint32_t has;
    char others[160];         /* nodes with another archive */
    unsigned same, different; /* nodes that have this one's archive, or another */
};

/* ---- the shape of a group ---- */

size_t stage_job_block_bytes(unsigned run)
{
    return 2 * sizeof(struct job_head) + (size_t)run * STAGE_CHUNK_BYTES;
}

unsigned stage_job_run(unsigned size, uint64_t memory_bytes)
{
    unsigned run = STAGE_JOB_RUN_MAX;
    while (run > 0 && 2 * (size + UINT64_C(1)) * stage_job_block_bytes(run) > memory_bytes)
        run--;
    return run;
}

uint64_t stage_job_groups(uint64_t bytes, unsigned size, unsigned run)
{
    uint64_t group_bytes = (uint64_t)size * run * STAGE_CHUNK_BYTES;
    return bytes / group_bytes + (bytes % group_bytes != 0);
}

static uint64_t job_first_chunk(const struct stage_job *job, uint64_t group, unsigned rank)
{
    return job->first + (group * job->mine.size + rank) * job->mine.run;
}

/* Chunks of a run, of which the last ones of an archive may have fewer. */
static unsigned job_chunks(const struct stage_job *job, uint64_t first)
{
    uint64_t all = job->stage->state->chunks;
    return first < all ? (unsigned)min_u64(job->mine.run, all - first) : 0;
}

static uint8_t *block_chunk(void *block, unsigned i)
{
    return (uint8_t *)block + sizeof(struct job_head) + (size_t)i * STAGE_CHUNK_BYTES;
}

static const uint8_t *block_chunk_in(const void *block, unsigned i)
{
    return (const uint8_t *)block + sizeof(struct job_head) + (size_t)i * STAGE_CHUNK_BYTES;
}

/* The stage's copier goes on when this is long ago. */
static void job_beat(const struct stage_job *job)
{
    atomic_store(&job->stage->state->job_ns, pause_now_ns(&job->stage->pause));
}

/* ---- what this node owes ---- */

/* Read a chunk that this thread has claimed, and keep it. */
static bool job_fetch(struct stage_job *job, uint64_t chunk, uint8_t *to)
{
    struct stage *stage = job->stage;
    uint64_t begun_ms = now_ms();
    int r = stage_read_chunk(stage, chunk, to);
    if (r < 0) {
        stage_settle(stage->state, chunk, CHUNK_ABSENT);
        if (!atomic_exchange(&job->storage_fails, true))
            stage_say(stage,
                      "its storage fails (%s): this node no longer reads for the job's others",
                      fault_errno(r));
        return false;
    }
    stage_keep_chunk(stage, chunk, to, begun_ms);
    atomic_fetch_add(&stage->state->copied_bytes, stage_chunk_len(stage->state, chunk));
    return true;
}

static bool job_read_here(const struct stage *stage, uint64_t chunk, uint8_t *to)
{
    return stage_chunk_here(stage->state, chunk) &&
           read_at(stage->copy_fd, to, stage_chunk_len(stage->state, chunk),
                   chunk * STAGE_CHUNK_BYTES) == 0;
}

/* A chunk that another process is making, or that no copy has room for. */
static bool job_read_other(struct stage_job *job, uint64_t chunk, uint8_t *to)
{
    struct stage *stage = job->stage;
    for (int tries = 0; tries < WAITS && atomic_load(&stage->state->chunk[chunk]) > CHUNK_HERE;
         tries++)
        stage_wait(stage->state, chunk, WAIT_MS);
    if (job_read_here(stage, chunk, to))
        return true;
    if (job->storage_fails || stage_read_chunk(stage, chunk, to) < 0)
        return false;
    atomic_fetch_add(&stage->state->past_bytes, stage_chunk_len(stage->state, chunk));
    return true;
}

static bool job_claim(const struct stage_job *job, uint64_t chunk)
{
    return !job->storage_fails && stage_may_keep(job->stage) &&
           stage_claim_demand(job->stage->state, chunk);
}

/* Fill chunks of a run, from the stage if they are here. The rest of each is zeros. */
static void *job_fill(void *arg)
{
    struct stage_job *job = arg;
    unsigned i;
    while ((i = atomic_fetch_add(&job->next, 1)) < job->mine.run) {
        uint64_t chunk = job->mine.chunk + i;
        uint8_t *to = block_chunk(job->block, i);
        bool has =
            i < job->count && (job_claim(job, chunk) ? job_fetch(job, chunk, to)
                                                     : job_read_here(job->stage, chunk, to) ||
                                                           job_read_other(job, chunk, to));
        size_t len = has ? stage_chunk_len(job->stage->state, chunk) : 0;
        job->mine.sum[i] = has ? XXH3_64bits(to, len) : 0;
        memset(to + len, 0, STAGE_CHUNK_BYTES - len);
        atomic_fetch_or(&job->has, (uint32_t)has << i);
    }
    return NULL;
}

/* Bytes of two states of the archive must not come together. */
static void job_look(struct stage_job *job)
{
    struct stage *stage = job->stage;
    uint64_t now = pause_now_ns(&stage->pause);
    if (now - job->looked_ns > LOOK_NS) {
        job->looked_ns = now;
        if (source_was_changed(stage->source) > 0)
            stage_fail(stage, ESTALE);
    }
    if (atomic_load(&stage->state->failure) == ESTALE)
        job->mine.status = JOB_LEAVES;
}

static uint64_t head_sum(const struct job_head *head)
{
    return XXH3_64bits(head, offsetof(struct job_head, head_sum));
}

/* All chunks of the run are read at once: one read at a time is slow on a parallel filesystem.
 */
void stage_job_read(struct stage_job *job, uint64_t group, void *block)
{
    struct job_head *head = &job->mine;
    job_beat(job);
    job_look(job);
    head->chunk = job_first_chunk(job, group, head->rank);
    job->block = block;
    job->count = head->status == JOB_GOES_ON ? job_chunks(job, head->chunk) : 0;
    atomic_store(&job->next, 0);
    atomic_store(&job->has, 0);
    thread_team(job->count, STACK_BYTES, job_fill, job);
    head->has = atomic_load(&job->has);
    head->head_sum = head_sum(head);
    memcpy(block, head, sizeof(*head));
    memcpy(block_chunk(block, head->run), head, sizeof(*head));
    job_beat(job);
}

/* ---- what the others read ---- */

/* A copy of the head that is whole. */
static bool head_read(const struct stage_job *job, const void *block, struct job_head *ret_head)
{
    for (unsigned i = 0; i < 2; i++) {
        memcpy(ret_head, i == 0 ? block : block_chunk_in(block, job->mine.run),
               sizeof(*ret_head));
        if (memcmp(ret_head->magic, MAGIC, sizeof(ret_head->magic)) == 0 &&
            ret_head->head_sum == head_sum(ret_head) &&
            memchr(ret_head->node, 0, sizeof(ret_head->node)))
            return true;
    }
    return false;
}

/*
 * The block of a node whose onepot has ended: the engine gives zeros in its place, after the
 * node's name.
 */
static bool block_has_left(const struct stage_job *job, const void *block, char ret_node[64])
{
    static const struct job_head zeros;
    const size_t size = sizeof(zeros.node);
    memcpy(ret_node, block, size);
    for (size_t i = 0; i < size; i++)
        if (ret_node[i] && (ret_node[i] < '!' || ret_node[i] > '~'))
            return false;
    return !ret_node[size - 1] &&
           memcmp((const uint8_t *)block + size, &zeros, sizeof(zeros) - size) == 0 &&
           memcmp(block_chunk_in(block, job->mine.run), &zeros, sizeof(zeros)) == 0;
}

/* The others go on together. Each node that has left is said once, in the order of ranks. */
static void job_say_left(struct stage_job *job, unsigned rank, const char *node)
{
    job->lacks = true;
    if (rank < job->told_left)
        return;
    stage_say(job->stage,
              "onepot has ended or hangs on node %s (rank %u): the others go on together, and "
              "read its "
              "share from storage",
              node, rank);
    job->told_left = rank + 1;
}

static void job_say_damage(struct stage_job *job, unsigned rank, const char *node)
{
    if (!atomic_exchange(&job->told_damage, true))
        stage_say(job->stage,
                  "bytes from node %s (rank %u) arrived damaged; they are read from storage",
                  node, rank);
}

static bool is_same_archive(const struct job_head *a, const struct job_head *b)
{
    return a->bytes == b->bytes && a->mtime_sec == b->mtime_sec &&
           a->mtime_nsec == b->mtime_nsec;
}

static void job_add_other(struct stage_job *job, const char *node)
{
    size_t n = strlen(job->others);
    snprintf(job->others + n, sizeof(job->others) - n, "%s%s", n ? ", " : "", node);
    job->leaves = true;
    job->different++;
}

/* Does the head belong where the engine says that the block is of? */
static bool head_fits(const struct stage_job *job, const struct job_head *head, uint64_t group,
                      unsigned rank)
{
    return head->chunk == job_first_chunk(job, group, rank) && head->rank == rank &&
           head->size == job->mine.size && head->run == job->mine.run;
}

bool stage_job_take(struct stage_job *job, uint64_t group, unsigned rank, const void *block)
{
    struct job_head head;
    char node[64];
    job_beat(job);
    job->taken++;
    if (block_has_left(job, block, node)) {
        job_say_left(job, rank, node[0] ? node : "?");
        job->leaves |= ++job->left + 1 == job->mine.size; /* this node is alone */
    } else if (!head_read(job, block, &head)) {
        job_say_damage(job, rank, "?");
        job->lacks = true;
    } else if (!is_same_archive(&head, &job->mine)) {
        job_add_other(job, head.node);
    } else if (!head_fits(job, &head, group, rank)) {
        job_say_damage(job, rank, head.node);
        job->leaves = true;
    } else {
        job->leaves |= head.status != JOB_GOES_ON;
        job->same += group == 0;
    }
    if (job->taken < job->mine.size)
        return false;
    job->taken = job->left = 0;
    job->is_over = job_first_chunk(job, group + 1, 0) >= job->stage->state->chunks;
    return job->leaves || job->is_over;
}

void stage_job_keep(struct stage_job *job, uint64_t group, unsigned rank, const void *block)
{
    struct stage *stage = job->stage;
    struct stage_state *state = stage->state;
    struct job_head head;
    if (rank == job->mine.rank || !head_read(job, block, &head) ||
        !is_same_archive(&head, &job->mine) || !head_fits(job, &head, group, rank))
        return;
    uint64_t first = job_first_chunk(job, group, rank);
    unsigned count = job_chunks(job, first);
    for (unsigned i = 0; i < count; i++) {
        size_t len = stage_chunk_len(state, first + i);
        if (!(head.has >> i & 1))
            atomic_store(&job->lacks, true);
        else if (stage_chunk_here(state, first + i))
            continue;
        else if (XXH3_64bits(block_chunk_in(block, i), len) != head.sum[i])
            job_say_damage(job, rank, head.node);
        else if (stage_may_keep(stage) && stage_claim_demand(state, first + i) &&
                 stage_keep_chunk(stage, first + i, block_chunk_in(block, i), now_ms()) == 0)
            atomic_fetch_add(&state->job_bytes, len);
    }
    job_beat(job);
}

/* ---- beginning and end ---- */

/*
 * Of several files, all nodes must have the same ones in the same order, as their names tell.
 * Inodes, devices and the folder above may differ between nodes.
 */
static void job_identify(const struct source *source, struct source_identity *id)
{
    const char *above = source_name(source);
    const size_t len = strlen(above);
    const struct source *file;
    for (size_t at[2] = {0}; (file = source_file_next(source, at)) && file != source;) {
        const char *name = source_name(file);
        struct source_identity one;
        source_identity(file, &one);
        name = strncmp(name, above, len) == 0 && name[len] == '/' ? name + len + 1
                                                                  : path_base(name);
        const uint64_t parts[] = {id->mtime_nsec, one.size_bytes, (uint64_t)one.mtime_sec,
                                  one.mtime_nsec, XXH3_64bits(name, strlen(name))};
        id->mtime_nsec = (uint32_t)XXH3_64bits(parts, sizeof(parts));
    }
}

int stage_job_begin(struct stage *stage, uint64_t first, unsigned rank, unsigned size,
                    unsigned run, struct stage_job **ret_job)
{
    if (size == 0 || rank >= size || run == 0 || run > STAGE_JOB_RUN_MAX)
        return -EINVAL;
    if (stage->unpacked || stage->expands)
        return -ENOTSUP;
    struct stage_job *job = calloc(1, sizeof(*job));
    if (!job)
        return -ENOMEM;
    struct source_identity id;
    source_identity(stage->source, &id);
    job_identify(stage->source, &id);
    job->stage = stage;
    job->first = first;
    job->lacks = stage_bytes_in_order(stage->state) <
                 min_u64(first * STAGE_CHUNK_BYTES, stage->bytes); /* as the others do */
    job->looked_ns = pause_now_ns(&stage->pause);
    job->mine = (struct job_head){.rank = rank,
                                  .size = size,
                                  .run = run,
                                  .bytes = stage->bytes,
                                  .mtime_sec = id.mtime_sec,
                                  .mtime_nsec = id.mtime_nsec};
    memcpy(job->mine.magic, MAGIC, sizeof(job->mine.magic));
    if (gethostname(job->mine.node, sizeof(job->mine.node) - 1) < 0)
        snprintf(job->mine.node, sizeof(job->mine.node), "?");
    job_beat(job);
    *ret_job = job;
    return 0;
}

int stage_job_end(struct stage_job *job, struct fault *fault)
{
    int r = 0;
    if (!job)
        return 0;
    stage_finish(job->stage);
    atomic_store(&job->stage->state->job_ns,
                 job->is_over && !job->lacks ? STAGE_JOB_OVER : STAGE_JOB_LOST);
    if (job->different > job->same)
        r = fault_set(fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                      "is another archive (in size or time) on %s than on %u of the %u nodes",
                      job->mine.node, job->different, job->mine.size);
    else if (job->others[0])
        r = fault_set(fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                      "is another archive (in size or time) on %s", job->others);
    free(job);
    return r;
}

/* ---- for an engine in another process ---- */

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

#define SERVE_MEMORY_BYTES (UINT64_C(64) << 20)
#define SERVE_OWN (UINT64_C(1) << 63)
#define SERVE_REPLACED UINT64_MAX
#define SERVE_HOLD (UINT64_MAX - 1)
#define LOOK_MS 200
#define SILENT_NS (STAGE_JOB_SILENT_S * UINT64_C(1000000000))
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
