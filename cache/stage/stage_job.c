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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "clock.h"
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
    atomic_fetch_add(&stage->state->stream_bytes, stage_chunk_len(stage->state, chunk));
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

struct filling {
    struct stage_job *job;
    uint64_t first;
    unsigned count; /* chunks of the run that the archive has */
    void *block;
    _Atomic unsigned next;
    _Atomic uint32_t has;
};

/* Fill chunks of a run, from the stage if they are here. The rest of each is zeros. */
static void *job_fill(void *arg)
{
    struct filling *f = arg;
    struct stage_job *job = f->job;
    unsigned i;
    while ((i = atomic_fetch_add(&f->next, 1)) < job->mine.run) {
        uint64_t chunk = f->first + i;
        uint8_t *to = block_chunk(f->block, i);
        bool has =
            i < f->count && (job_claim(job, chunk) ? job_fetch(job, chunk, to)
                                                   : job_read_here(job->stage, chunk, to) ||
                                                         job_read_other(job, chunk, to));
        size_t len = has ? stage_chunk_len(job->stage->state, chunk) : 0;
        job->mine.sum[i] = has ? XXH3_64bits(to, len) : 0;
        memset(to + len, 0, STAGE_CHUNK_BYTES - len);
        atomic_fetch_or(&f->has, (uint32_t)has << i);
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
    struct filling f = {
        .job = job, .first = job_first_chunk(job, group, head->rank), .block = block};
    job_beat(job);
    job_look(job);
    f.count = head->status == JOB_GOES_ON ? job_chunks(job, f.first) : 0;
    thread_team(f.count, STACK_BYTES, job_fill, &f);
    head->chunk = f.first;
    head->has = atomic_load(&f.has);
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
