/*
 * Nodes of a job that copy together: storage gives each byte once, and whatever becomes of a
 * node, of a block on its way or of a chunk that readers fetch, every node has the right bytes.
 *
 * A node is a stage in a folder of its own. Most tests play all nodes in one thread; where
 * nodes are killed, each is a process, and memory that they share hands the blocks round.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "source_ops.h"
#include "stage_job.h"
#include "stage_private.h"
#include "suite.h"
#include "thread.h"

#define MIB (1u << 20)
#define BYTES (13u * MIB + 777u)
#define NODES 4u
#define LIMIT_MS 100000u
#define SECOND UINT64_C(1000000000)

struct peer {
    struct source *source;
    struct stage *stage;
    struct stage_job *job;
    uint8_t *block;
};

static char folder[64], archive[128];
static uint8_t *bytes;
static char notes[1024];
static struct fault fault;
static struct peer node[NODES];
static _Atomic uint64_t *storage_bytes; /* that all nodes have read, also in other processes */
static int failing_node = -1;           /* its storage returns EIO */
static uint64_t first_chunk;            /* of the job */
static unsigned company;                /* of a read: others that wait in storage with it */

struct counted {
    struct source source;
    int number; /* of the node */
};

/* Until so many reads are here at once. */
static void await_company(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t changed;
    static unsigned here;
    const struct timespec until = clock_in_ms(CLOCK_MONOTONIC, LIMIT_MS / 10);
    pthread_mutex_lock(&lock);
    if (here++ == 0)
        thread_cond_init(&changed);
    pthread_cond_broadcast(&changed);
    while (here < company && pthread_cond_timedwait(&changed, &lock, &until) == 0)
        ;
    ck_assert_uint_ge(here, company);
    pthread_mutex_unlock(&lock);
}

static int counted_read(const struct source *s, struct source_cursor *cursor)
{
    if (company)
        await_company();
    if (((const struct counted *)s)->number == failing_node)
        return -EIO;
    for (int i = 0; i < cursor->count; i++)
        atomic_fetch_add(storage_bytes, cursor->iov[i].iov_len);
    return source_read_on(s->wrapped, cursor);
}

static bool counted_close(struct source *s)
{
    (void)s;
    return true;
}

static const struct source_ops counted_ops = {.read = counted_read, .close = counted_close};

static void keep_note(void *ctx, const char *line)
{
    (void)ctx;
    size_t n = strlen(notes);
    snprintf(notes + n, sizeof(notes) - n, "%s\n", line);
}

static void write_archive(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, BYTES, f), BYTES);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void setup(void)
{
    suite_make_folder("job", folder, sizeof(folder));
    snprintf(archive, sizeof(archive), "%s/a.tar", folder);
    bytes = malloc(BYTES);
    ck_assert_ptr_nonnull(bytes);
    suite_fill_noise(bytes, BYTES);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    write_archive(archive, 1000);
    storage_bytes = mmap(NULL, sizeof(*storage_bytes), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(storage_bytes != MAP_FAILED);
    memset(node, 0, sizeof(node));
    first_chunk = 0;
}

static void teardown(void)
{
    char line[128];
    free(bytes);
    snprintf(line, sizeof(line), "rm -rf '%s'", folder);
    ck_assert_int_eq(system(line), 0);
}

static void open_node(unsigned i, const char *path)
{
    struct peer *n = &node[i];
    char place[128];
    snprintf(place, sizeof(place), "%s/node%u", folder, i);
    mkdir(place, 0755);
    const struct stage_options options = {.place = place, .note = keep_note, .threads = 2};
    ck_assert_int_eq(source_open(path, NULL, &n->source), 0);
    struct counted *counted = calloc(1, sizeof(*counted));
    ck_assert_ptr_nonnull(counted);
    counted->number = (int)i;
    source_wrap(&counted->source, &counted_ops, &n->source);
    ck_assert_int_eq(stage_open(n->source, &options, &fault, &n->stage), 0);
    ck_assert_int_eq(stage_attach(n->stage, &n->source, false), 0);
}

static void begin_node(unsigned i, unsigned run)
{
    ck_assert_int_eq(stage_job_begin(node[i].stage, first_chunk, i, NODES, run, &node[i].job),
                     0);
    node[i].block = malloc(stage_job_block_bytes(run));
    ck_assert_ptr_nonnull(node[i].block);
}

static void open_all(unsigned run)
{
    for (unsigned i = 0; i < NODES; i++) {
        open_node(i, archive);
        begin_node(i, run);
    }
}

static bool take(struct stage_job *job, uint64_t group, unsigned rank, const void *block)
{
    bool over = stage_job_take(job, group, rank, block);
    stage_job_keep(job, group, rank, block);
    return over;
}

/* One group in all nodes: does each say that the job is over? All have to agree. */
static bool play_group(uint64_t group)
{
    bool over[NODES] = {false};
    for (unsigned i = 0; i < NODES; i++)
        stage_job_read(node[i].job, group, node[i].block);
    for (unsigned i = 0; i < NODES; i++)
        for (unsigned from = 0; from < NODES; from++) {
            ck_assert(!over[i]);
            over[i] = take(node[i].job, group, from, node[from].block);
        }
    for (unsigned i = 1; i < NODES; i++)
        ck_assert_int_eq(over[i], over[0]);
    return over[0];
}

static uint64_t play_all(void)
{
    uint64_t group = 0;
    while (!play_group(group))
        group++;
    return group + 1;
}

static int end_node(unsigned i)
{
    fault = (struct fault){0};
    free(node[i].block);
    return stage_job_end(node[i].job, &fault);
}

static void end_all(void)
{
    for (unsigned i = 0; i < NODES; i++)
        ck_assert_int_eq(end_node(i), 0);
}

static struct stage_report report(unsigned i)
{
    struct stage_report r;
    stage_get_report(node[i].stage, &r);
    return r;
}

static void close_node(unsigned i)
{
    ck_assert_int_eq(stage_stop(node[i].stage), 0);
    source_close(node[i].source);
    stage_close(node[i].stage);
}

static void close_all(void)
{
    for (unsigned i = 0; i < NODES; i++)
        close_node(i);
}

static void check_copy(unsigned i)
{
    uint8_t *got = malloc(BYTES);
    ck_assert_ptr_nonnull(got);
    for (uint64_t chunk = 0; chunk < node[i].stage->state->chunks; chunk++) {
        size_t len = stage_chunk_len(node[i].stage->state, chunk);
        if (!stage_chunk_here(node[i].stage->state, chunk))
            continue;
        ck_assert_int_eq(pread(node[i].stage->copy_fd, got, len, (off_t)chunk * MIB), len);
        ck_assert_mem_eq(got, bytes + chunk * MIB, len);
    }
    free(got);
}

/* The copier gets what the job did not bring. */
static void complete(unsigned i)
{
    ck_assert_int_eq(stage_start(node[i].stage), 0);
    ck_assert(stage_wait_whole(node[i].stage, LIMIT_MS));
    check_copy(i);
}

START_TEST(storage_gives_each_byte_once)
{
    unsigned run = (unsigned)_i;
    open_all(run);
    ck_assert_uint_eq(play_all(), stage_job_groups(BYTES, NODES, run));
    end_all();
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES);
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert(report(i).whole);
        ck_assert_uint_eq(report(i).copied_bytes + report(i).job_bytes, BYTES);
        check_copy(i);
    }
    ck_assert_str_eq(notes, "");
    close_all();
}
END_TEST

START_TEST(chunks_of_a_run_are_read_at_once)
{
    open_node(0, archive);
    begin_node(0, 4);
    company = 4;
    stage_job_read(node[0].job, 0, node[0].block);
    company = 0;
    ck_assert_uint_eq(atomic_load(storage_bytes), 4 * MIB);
    end_node(0);
    close_node(0);
}
END_TEST

START_TEST(node_of_its_own_reads_all)
{
    open_node(0, archive);
    ck_assert_int_eq(stage_job_begin(node[0].stage, 0, 0, 1, 3, &node[0].job), 0);
    node[0].block = malloc(stage_job_block_bytes(3));
    for (uint64_t group = 0, over = 0; !over; group++) {
        stage_job_read(node[0].job, group, node[0].block);
        over = take(node[0].job, group, 0, node[0].block);
    }
    ck_assert_int_eq(end_node(0), 0);
    ck_assert(report(0).whole);
    check_copy(0);
    close_node(0);
}
END_TEST

START_TEST(chunks_that_are_here_are_not_read_again)
{
    uint8_t byte;
    open_all(2);
    ck_assert_int_eq(source_read(node[0].source, &byte, 1, 0), 0);           /* its own share */
    ck_assert_int_eq(source_read(node[0].source, &byte, 1, 3 * MIB + 5), 0); /* node 1's */
    uint64_t by_readers = atomic_load(storage_bytes);
    play_all();
    end_all();
    ck_assert_uint_eq(by_readers, 2 * MIB);
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES + MIB);
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert(report(i).whole);
        check_copy(i);
    }
    close_all();
}
END_TEST

START_TEST(chunk_that_a_reader_is_fetching_is_left_to_it)
{
    open_all(1);
    ck_assert(stage_claim_demand(node[2].stage->state, 0));
    play_all();
    ck_assert(!stage_chunk_here(node[2].stage->state, 0));
    stage_settle(node[2].stage->state, 0, CHUNK_ABSENT); /* its read has failed */
    end_all();
    ck_assert(!report(2).whole);
    complete(2);
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES + MIB);
    close_all();
}
END_TEST

START_TEST(damaged_chunk_is_read_from_storage_and_its_node_is_named)
{
    open_all(2);
    for (unsigned i = 0; i < NODES; i++)
        stage_job_read(node[i].job, 0, node[i].block);
    node[1].block[stage_job_block_bytes(2) / 2] ^= 4;
    for (unsigned i = 0; i < NODES; i++)
        for (unsigned from = 0; from < NODES; from++)
            take(node[i].job, 0, from, node[from].block);
    char host[64] = "";
    gethostname(host, sizeof(host) - 1);
    ck_assert_ptr_nonnull(strstr(notes, "arrived damaged"));
    ck_assert_ptr_nonnull(strstr(notes, host));
    ck_assert_ptr_nonnull(strstr(notes, "rank 1"));
    for (uint64_t group = 1; !play_group(group); group++)
        ;
    end_all();
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert_int_eq(report(i).whole, i == 1);
        complete(i);
    }
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES + 3 * MIB);
    close_all();
}
END_TEST

/* Wherever a bit is changed, a node's bytes are right, and all nodes stop at the same group. */
START_TEST(any_changed_bit_is_noticed)
{
    size_t size = stage_job_block_bytes(1);
    const size_t places[] = {0,   8,   20,  24,       32,         56,       120,
                             247, 255, 256, size / 2, size - 256, size - 8, size - 1};
    open_all(1);
    for (uint64_t group = 0, over = 0; !over; group++) {
        for (unsigned i = 0; i < NODES; i++)
            stage_job_read(node[i].job, group, node[i].block);
        size_t at = places[((size_t)_i + group) % (sizeof(places) / sizeof(places[0]))];
        node[group % NODES].block[at] ^= (uint8_t)(1 << _i % 8);
        for (unsigned i = 0; i < NODES; i++)
            for (unsigned from = 0; from < NODES; from++)
                over = take(node[i].job, group, from, node[from].block);
    }
    end_all();
    for (unsigned i = 0; i < NODES; i++) {
        check_copy(i);
        complete(i);
    }
    close_all();
}
END_TEST

/* Zeros after a name are no damage. The others go on, and lack its share alone. */
START_TEST(nodes_go_on_together_when_the_onepot_of_one_has_ended)
{
    open_all(1);
    ck_assert(!play_group(0));
    for (uint64_t group = 1, over = 0; !over; group++) {
        for (unsigned i = 0; i < NODES; i++)
            stage_job_read(node[i].job, group, node[i].block);
        memset(node[2].block, 0, stage_job_block_bytes(1));
        snprintf((char *)node[2].block, 64, "node-two");
        for (unsigned i = 0; i < NODES; i++)
            for (unsigned from = 0; from < NODES; from++)
                over = take(node[i].job, group, from, node[from].block);
        ck_assert_int_eq(over, group == 3);
    }
    end_all();
    const char *line = strstr(notes, "onepot has ended or hangs on node node-two (rank 2)");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(notes, "damaged"));
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert_int_eq(report(i).whole, i == 2);
        ck_assert_uint_eq(report(i).bytes_here, BYTES - (i == 2 ? 0 : 2 * MIB)); /* 6 and 10 */
        ck_assert_uint_eq(atomic_load(&node[i].stage->state->job_ns), STAGE_JOB_LOST);
        complete(i);
    }
    close_all();
}
END_TEST

/* What lies before its first chunk is the copier's. */
START_TEST(another_job_begins_with_the_first_chunk_that_a_node_lacks)
{
    const bool lacks = _i == 1; /* each node lacks a group before it, too */
    open_all(1);
    ck_assert(!play_group(0));
    end_all();
    first_chunk = lacks ? 2 * NODES : NODES;
    for (unsigned i = 0; i < NODES; i++)
        begin_node(i, 2);
    ck_assert_uint_eq(play_all(), lacks ? 1 : 2);
    end_all();
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES - (lacks ? NODES * MIB : 0));
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert_int_eq(report(i).whole, !lacks);
        ck_assert_uint_eq(atomic_load(&node[i].stage->state->job_ns),
                          lacks ? STAGE_JOB_LOST : STAGE_JOB_OVER);
        complete(i);
    }
    ck_assert_str_eq(notes, "");
    close_all();
}
END_TEST

/* Or its chunks would lie at other places than theirs. */
START_TEST(node_that_begins_with_another_chunk_is_not_believed)
{
    for (unsigned i = 0; i < NODES; i++) {
        open_node(i, archive);
        first_chunk = i == 2;
        begin_node(i, 1);
    }
    for (unsigned i = 0; i < NODES; i++)
        stage_job_read(node[i].job, 0, node[i].block);
    for (unsigned i = 0; i < NODES; i++)
        for (unsigned from = 0; from < NODES; from++)
            ck_assert_int_eq(take(node[i].job, 0, from, node[from].block), from == NODES - 1);
    end_all();
    for (unsigned i = 0; i < NODES; i++)
        complete(i);
    close_all();
}
END_TEST

START_TEST(other_archive_on_a_node_ends_the_job_with_its_name)
{
    char other[128];
    snprintf(other, sizeof(other), "%s/b.tar", folder);
    bytes[5] ^= 1;
    write_archive(other, 1001);
    bytes[5] ^= 1;
    for (unsigned i = 0; i < NODES; i++) {
        open_node(i, i == 2 ? other : archive);
        begin_node(i, 1);
    }
    ck_assert(play_group(0));
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert_int_eq(end_node(i), -ESTALE);
        ck_assert_ptr_nonnull(strstr(fault.what, "is another archive"));
        ck_assert_int_eq(strstr(fault.what, "than on 3 of the 4 nodes") != NULL, i == 2);
        if (i != 2)
            check_copy(i);
        ck_assert_uint_eq(report(i).job_bytes, i == 2 ? 0 : 2 * MIB);
    }
    close_all();
}
END_TEST

START_TEST(node_whose_storage_fails_gets_all_but_its_share)
{
    open_all(1);
    failing_node = 1;
    play_all();
    end_all();
    ck_assert_ptr_nonnull(strstr(notes, "no longer reads"));
    for (unsigned i = 0; i < NODES; i++) {
        ck_assert(!report(i).whole);
        ck_assert_uint_eq(report(i).bytes_here, 10 * MIB); /* without chunks 1, 5, 9, 13 */
        check_copy(i);
    }
    failing_node = -1;
    for (unsigned i = 0; i < NODES; i++)
        complete(i);
    close_all();
}
END_TEST

START_TEST(node_without_room_still_reads_for_the_others)
{
    open_all(1);
    atomic_store(&node[3].stage->state->failure, ENOSPC);
    play_all();
    end_all();
    for (unsigned i = 0; i < NODES - 1; i++)
        ck_assert(report(i).whole);
    ck_assert_uint_eq(report(3).bytes_here, 0);
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES);
    close_all();
}
END_TEST

START_TEST(archive_that_changes_ends_the_job_on_all_nodes)
{
    open_all(1);
    ck_assert(!play_group(0));
    stage_fail(node[1].stage, ESTALE); /* as its look at the archive does */
    ck_assert(play_group(1));
    end_all();
    close_all();
}
END_TEST

START_TEST(copier_waits_as_long_as_the_job_makes_progress)
{
    static _Atomic uint64_t clock_ns;
    open_node(0, archive);
    atomic_store(&clock_ns, 1000 * SECOND);
    node[0].stage->pause.test_ns = &clock_ns;
    begin_node(0, 1);
    stage_copy(node[0].stage); /* its clock is moved by its pauses alone */
    ck_assert_uint_ge(atomic_load(&clock_ns), (1000 + STAGE_JOB_SILENT_S) * SECOND);
    ck_assert_uint_lt(atomic_load(&clock_ns), (1003 + STAGE_JOB_SILENT_S) * SECOND);
    ck_assert(report(0).whole);
    ck_assert_int_eq(end_node(0), 0);
    close_node(0);
}
END_TEST

/* A reader of a job starts no copier before its nodes begin to copy, within a minute. */
START_TEST(reader_of_a_job_awaits_its_nodes)
{
    static _Atomic uint64_t clock_ns;
    const bool begins = _i == 1;
    uint8_t byte;
    open_node(0, archive);
    node[0].stage->options.in_job = true;
    ck_assert_int_eq(source_read(node[0].source, &byte, 1, 0), 0);
    ck_assert_uint_eq(atomic_load(storage_bytes), MIB);
    atomic_store(&clock_ns, 1000 * SECOND);
    node[0].stage->pause.test_ns = &clock_ns;
    if (begins)
        begin_node(0, 1);
    ck_assert_int_eq(stage_start(node[0].stage), 0);
    ck_assert(stage_wait_whole(node[0].stage, LIMIT_MS));
    uint64_t waited_s = atomic_load(&clock_ns) / SECOND - 1000;
    ck_assert_uint_ge(waited_s, begins ? STAGE_JOB_SILENT_S : 60);
    ck_assert_uint_le(waited_s, begins ? STAGE_JOB_SILENT_S + 3 : 61);
    ck_assert_int_eq(!strstr(notes, "have not begun"), begins);
    if (begins)
        ck_assert_int_eq(end_node(0), 0);
    close_node(0);
}
END_TEST

START_TEST(node_that_is_left_alone_leaves)
{
    open_all(1);
    ck_assert(!play_group(0));
    for (unsigned i = 1; i < NODES; i++)
        memset(node[i].block, 0, stage_job_block_bytes(1));
    stage_job_read(node[0].job, 1, node[0].block);
    for (unsigned from = 0; from < NODES; from++)
        ck_assert_int_eq(take(node[0].job, 1, from, node[from].block), from == NODES - 1);
    end_all();
    complete(0);
    close_all();
}
END_TEST

/* After a job that broke, few threads at a time, however many there are else. */
static _Atomic int in_flight, most_in_flight;

static int slow_read(const struct source *s, struct source_cursor *cursor)
{
    int now = atomic_fetch_add(&in_flight, 1) + 1, most = atomic_load(&most_in_flight);
    while (now > most && !atomic_compare_exchange_weak(&most_in_flight, &most, now))
        ;
    usleep(20000);
    int r = source_read_on(s->wrapped, cursor);
    atomic_fetch_sub(&in_flight, 1);
    return r;
}

static const struct source_ops slow_ops = {.read = slow_read, .close = counted_close};

START_TEST(copier_is_gentle_after_a_job_that_broke)
{
    const bool broke = _i == 1;
    atomic_store(&most_in_flight, 0);
    open_node(0, archive);
    struct source slow = *node[0].stage->source;
    slow.wrapped = (struct source *)(uintptr_t)node[0].stage->source->wrapped;
    slow.ops = &slow_ops;
    node[0].stage->source = &slow;
    node[0].stage->options.threads = 12;
    atomic_store(&node[0].stage->state->job_ns, broke ? STAGE_JOB_LOST : STAGE_JOB_OVER);
    complete(0);
    if (broke)
        ck_assert_int_le(atomic_load(&most_in_flight), 4);
    else
        ck_assert_int_gt(atomic_load(&most_in_flight), 4);
    close_node(0);
}
END_TEST

START_TEST(memory_bounds_the_run)
{
    for (unsigned size = 1; size < 5000; size++) {
        unsigned run = stage_job_run(size, 64 * MIB);
        ck_assert_uint_le(run, STAGE_JOB_RUN_MAX);
        ck_assert_uint_le(2 * (size + UINT64_C(1)) * stage_job_block_bytes(run ? run : 0) *
                              (run != 0),
                          64 * MIB);
    }
    ck_assert_uint_eq(stage_job_run(2, 64 * MIB), 10);
    ck_assert_uint_eq(stage_job_run(30, 64 * MIB), 1);
    ck_assert_uint_eq(stage_job_run(32, 64 * MIB), 0);
    ck_assert_uint_eq(stage_job_run(UINT32_MAX, UINT64_MAX), STAGE_JOB_RUN_MAX);
}
END_TEST

START_TEST(wrong_shapes_are_refused)
{
    open_node(0, archive);
    ck_assert_int_eq(stage_job_begin(node[0].stage, 0, 0, 0, 1, &node[0].job), -EINVAL);
    ck_assert_int_eq(stage_job_begin(node[0].stage, 0, 4, 4, 1, &node[0].job), -EINVAL);
    ck_assert_int_eq(stage_job_begin(node[0].stage, 0, 0, 4, 0, &node[0].job), -EINVAL);
    ck_assert_int_eq(
        stage_job_begin(node[0].stage, 0, 0, 4, STAGE_JOB_RUN_MAX + 1, &node[0].job), -EINVAL);
    node[0].stage->unpacked = true;
    ck_assert_int_eq(stage_job_begin(node[0].stage, 0, 0, 4, 1, &node[0].job), -ENOTSUP);
    node[0].stage->unpacked = false;
    close_node(0);
}
END_TEST

/* ---- an engine at the other end of pipes ---- */

/* Of a job of one node. Its ring has two blocks; it ends after so many groups. */
static void *play_engine(void *arg)
{
    const int *fds = arg; /* from the program, to it, the ring, and groups */
    FILE *from = fdopen(fds[0], "r");
    size_t block_bytes = 0;
    unsigned long groups = 0;
    ck_assert_int_eq(fscanf(from, "onepot-job 1 %zu %lu", &block_bytes, &groups), 2);
    ck_assert_int_eq(fgetc(from), '\n');
    ck_assert_uint_eq(groups, stage_job_groups(BYTES, 1, stage_job_run(1, 64u << 20)));
    ck_assert_int_eq(ftruncate(fds[2], (off_t)(2 * block_bytes)), 0);
    for (unsigned long group = 0; group < groups && group < (unsigned long)fds[3]; group++) {
        uint64_t place = group % 2 * block_bytes, own = place | UINT64_C(1) << 63;
        ck_assert_int_eq(write(fds[1], &own, sizeof(own)), sizeof(own));
        ck_assert_int_eq(fgetc(from), 1);
        ck_assert_int_eq(write(fds[1], &place, sizeof(place)), sizeof(place));
        ck_assert_int_eq(fgetc(from), 3);
    }
    int last = fds[3] ? fgetc(from) : 0;
    fclose(from);
    close(fds[1]);
    return (void *)(intptr_t)last;
}

/* Refers to a place outside of the ring. */
static void *play_wrong_engine(void *arg)
{
    const int *fds = arg;
    uint64_t place = (UINT64_C(64) << 20) - 1;
    ck_assert_int_eq(ftruncate(fds[2], 64 << 20), 0);
    ck_assert_int_eq(write(fds[1], &place, sizeof(place)), sizeof(place));
    FILE *from = fdopen(fds[0], "r");
    for (int c; (c = fgetc(from)) != '\n';)
        ck_assert_int_ne(c, EOF);
    int last = fgetc(from);
    fclose(from);
    close(fds[1]);
    return (void *)(intptr_t)last;
}

/* Says that another process goes on, or waits to be told that there is nothing to do. */
static void *play_replaced_engine(void *arg)
{
    const int *fds = arg;
    const uint64_t replaced = UINT64_MAX;
    FILE *from = fdopen(fds[0], "r");
    for (int c; (c = fgetc(from)) != '\n';)
        ck_assert_int_ne(c, EOF);
    for (int i = 0; i < fds[3]; i++)
        ck_assert_int_eq(write(fds[1], &replaced, sizeof(replaced)), sizeof(replaced));
    int last = fgetc(from);
    fclose(from);
    close(fds[1]);
    return (void *)(intptr_t)last;
}

/* Asks it to wait before that, so that its copier waits too. */
static void *play_regrouping_engine(void *arg)
{
    const int *fds = arg;
    const uint64_t hold = UINT64_MAX - 1, end_ns = now_ns() + 20 * SECOND;
    _Atomic uint64_t *job_ns = &node[0].stage->state->job_ns;
    while (!atomic_load(job_ns)) /* it begins */
        usleep(1000);
    atomic_store(job_ns, STAGE_JOB_LOST);
    ck_assert_int_eq(write(fds[1], &hold, sizeof(hold)), sizeof(hold));
    while (atomic_load(job_ns) == STAGE_JOB_LOST && now_ns() < end_ns)
        usleep(1000);
    ck_assert_uint_gt(atomic_load(job_ns), STAGE_JOB_LOST);
    return play_replaced_engine(arg);
}

static intptr_t serve(unsigned size, void *(*engine)(void *), int groups)
{
    int from[2], to[2], ring = memfd_create("ring", MFD_CLOEXEC);
    pthread_t thread;
    void *last;
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(pipe(from), 0);
    ck_assert_int_eq(pipe(to), 0);
    const int fds[] = {from[0], to[1], ring, groups};
    ck_assert_int_eq(pthread_create(&thread, NULL, engine, (void *)(uintptr_t)fds), 0);
    ck_assert_int_eq(stage_job_serve(node[0].stage, first_chunk, 0, size, to[0], from[1], ring,
                                     NULL, &fault),
                     0);
    close(to[0]);
    close(from[1]);
    ck_assert_int_eq(pthread_join(thread, &last), 0);
    close(ring);
    return (intptr_t)last;
}

/* The other nodes of a job, whose blocks come all at once. */
static void *play_others(void *arg)
{
    const int *fds = arg;
    FILE *from = fdopen(fds[0], "r");
    size_t block_bytes = 0;
    unsigned long groups = 0;
    uint64_t own = UINT64_C(1) << 63, places[NODES] = {0};
    ck_assert_int_eq(fscanf(from, "onepot-job 1 %zu %lu", &block_bytes, &groups), 2);
    ck_assert_int_eq(fgetc(from), '\n');
    ck_assert_int_eq(ftruncate(fds[2], (off_t)(NODES * block_bytes)), 0);
    uint8_t *ring =
        mmap(NULL, NODES * block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0);
    ck_assert(ring != MAP_FAILED);
    for (unsigned long group = 0; group < groups; group++) {
        ck_assert_int_eq(write(fds[1], &own, sizeof(own)), sizeof(own));
        ck_assert_int_eq(fgetc(from), 1);
        for (unsigned i = 1; i < NODES; i++) {
            places[i] = i * block_bytes;
            stage_job_read(node[i].job, group, ring + places[i]);
        }
        ck_assert_int_eq(write(fds[1], places, sizeof(places)), sizeof(places));
        for (unsigned i = 0; i < NODES; i++)
            ck_assert_int_eq(fgetc(from), 3);
        memset(ring, 0, NODES * block_bytes); /* an answered block is never looked at again */
    }
    int last = fgetc(from);
    fclose(from);
    close(fds[1]);
    munmap(ring, NODES * block_bytes);
    return (void *)(intptr_t)last;
}

START_TEST(blocks_that_come_at_once_are_kept_before_their_answers)
{
    for (unsigned i = 0; i < NODES; i++)
        open_node(i, archive);
    for (unsigned i = 1; i < NODES; i++)
        begin_node(i, stage_job_run(NODES, 64u << 20));
    ck_assert_int_eq(serve(NODES, play_others, 0), 0);
    ck_assert_str_eq(notes, "");
    ck_assert(report(0).whole);
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES);
    check_copy(0);
    for (unsigned i = 1; i < NODES; i++)
        ck_assert_int_eq(end_node(i), 0);
    close_all();
}
END_TEST

START_TEST(engine_hands_blocks_round_and_is_told_the_end)
{
    open_node(0, archive);
    ck_assert_int_eq(serve(1, play_engine, 1000), 0);
    ck_assert(report(0).whole);
    ck_assert_uint_eq(atomic_load(storage_bytes), BYTES);
    check_copy(0);
    close_node(0);
}
END_TEST

START_TEST(engine_that_ends_leaves_the_rest_to_storage)
{
    open_node(0, archive);
    ck_assert_int_eq(serve(1, play_engine, 0), 0);
    ck_assert_ptr_nonnull(strstr(notes, "the engine has ended"));
    complete(0);
    close_node(0);
}
END_TEST

START_TEST(process_whose_engine_lost_a_node_leaves_the_rest_to_another)
{
    open_node(0, archive);
    ck_assert_int_eq(serve(3, _i ? play_regrouping_engine : play_replaced_engine, 1), 0);
    ck_assert_str_eq(notes, "");
    ck_assert_uint_eq(atomic_load(&node[0].stage->state->job_ns), STAGE_JOB_LOST);
    complete(0);
    close_node(0);
}
END_TEST

START_TEST(job_that_begins_behind_the_last_chunk_is_over)
{
    open_node(0, archive);
    first_chunk = 14;
    ck_assert_int_eq(serve(3, play_replaced_engine, 0), 0);
    ck_assert_str_eq(notes, "");
    complete(0);
    close_node(0);
}
END_TEST

START_TEST(place_outside_of_the_ring_ends_the_job)
{
    open_node(0, archive);
    ck_assert_int_eq(serve(1, play_wrong_engine, 0), 2);
    complete(0);
    close_node(0);
}
END_TEST

/* ---- nodes as processes ---- */

static struct exchange {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned arrived, round;
    bool broken; /* a node is gone: the collective fails in the others */
    uint8_t blocks[];
} * exchange;

static void exchange_new(unsigned run)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    exchange = mmap(NULL, sizeof(*exchange) + 2 * NODES * stage_job_block_bytes(run),
                    PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(exchange != MAP_FAILED);
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&exchange->lock, &mutex);
    pthread_condattr_init(&cond);
    pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&exchange->changed, &cond);
}

/* False: a node is gone. */
static bool exchange_wait(void)
{
    pthread_mutex_lock(&exchange->lock);
    unsigned round = exchange->round;
    if (++exchange->arrived == NODES) {
        exchange->arrived = 0;
        exchange->round++;
        pthread_cond_broadcast(&exchange->changed);
    }
    while (exchange->round == round && !exchange->broken)
        pthread_cond_wait(&exchange->changed, &exchange->lock);
    bool is_whole = exchange->round != round;
    pthread_mutex_unlock(&exchange->lock);
    return is_whole;
}

static void exchange_break(void)
{
    pthread_mutex_lock(&exchange->lock);
    exchange->broken = true;
    pthread_cond_broadcast(&exchange->changed);
    pthread_mutex_unlock(&exchange->lock);
}

/* A reader beside the job, which sees the archive's bytes whatever happens. */
static void *read_beside(void *arg)
{
    const struct peer *n = arg;
    uint32_t x = (uint32_t)(n - node) + 7;
    uint8_t got[5000];
    for (int i = 0; i < 300; i++) {
        uint64_t at = (x = x * 1664525u + 1013904223u) % (BYTES - sizeof(got));
        if (source_read(n->source, got, sizeof(got), at) < 0 ||
            memcmp(got, bytes + at, sizeof(got)) != 0)
            _exit(3);
    }
    return NULL;
}

static void run_node(unsigned i, unsigned run, unsigned killed, uint64_t at_group, int at_step)
{
    size_t size = stage_job_block_bytes(run);
    pthread_t reader;
    open_node(i, archive);
    begin_node(i, run);
    ck_assert_int_eq(stage_start(node[i].stage), 0);
    ck_assert_int_eq(pthread_create(&reader, NULL, read_beside, &node[i]), 0);
    bool over = false;
    for (uint64_t group = 0; !over; group++) {
        uint8_t *blocks = exchange->blocks + (group % 2) * NODES * size;
        bool dies = i == killed && group == at_group;
        if (dies && at_step == 0)
            raise(SIGKILL);
        stage_job_read(node[i].job, group, blocks + i * size);
        if (dies && at_step == 1)
            raise(SIGKILL);
        if (!exchange_wait())
            break;
        for (unsigned from = 0; from < NODES; from++) {
            if (dies && at_step == 2 && from == 2)
                raise(SIGKILL);
            over = take(node[i].job, group, from, blocks + from * size);
        }
    }
    end_node(i);
    pthread_join(reader, NULL);
    if (!stage_wait_whole(node[i].stage, LIMIT_MS))
        _exit(4);
    check_copy(i);
    close_node(i);
    _exit(0);
}

START_TEST(nodes_go_on_when_one_is_killed)
{
    unsigned run = 1 + (unsigned)_i % 2, killed = (unsigned)_i % NODES;
    pid_t pids[NODES];
    exchange_new(run);
    for (unsigned i = 0; i < NODES; i++) {
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0)
            run_node(i, run, killed, (unsigned)_i / 3 % 2, _i % 3);
    }
    for (unsigned left = NODES; left > 0; left--) {
        int status;
        pid_t pid = wait(&status);
        if (pid == pids[killed]) {
            ck_assert(WIFSIGNALED(status));
            exchange_break();
        } else {
            ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
        }
    }
    for (unsigned i = 0; i < NODES; i++) { /* what is left of a killed one goes */
        char place[128], path[192];
        snprintf(place, sizeof(place), "%s/node%u", folder, i);
        snprintf(path, sizeof(path), "%s/onepot-stage-%u", place, (unsigned)geteuid());
        ck_assert_int_eq(stage_sweep(place), 0);
        ck_assert_int_ne(access(path, F_OK), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stage_job");
    TCase *tc = tcase_create("stage_job");
    tcase_set_timeout(tc, 240);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, storage_gives_each_byte_once, 1, 6);
    tcase_add_test(tc, chunks_of_a_run_are_read_at_once);
    tcase_add_test(tc, node_of_its_own_reads_all);
    tcase_add_test(tc, chunks_that_are_here_are_not_read_again);
    tcase_add_test(tc, chunk_that_a_reader_is_fetching_is_left_to_it);
    tcase_add_test(tc, damaged_chunk_is_read_from_storage_and_its_node_is_named);
    tcase_add_loop_test(tc, any_changed_bit_is_noticed, 0, 14);
    tcase_add_test(tc, nodes_go_on_together_when_the_onepot_of_one_has_ended);
    tcase_add_loop_test(tc, another_job_begins_with_the_first_chunk_that_a_node_lacks, 0, 2);
    tcase_add_test(tc, node_that_begins_with_another_chunk_is_not_believed);
    tcase_add_test(tc, other_archive_on_a_node_ends_the_job_with_its_name);
    tcase_add_test(tc, node_whose_storage_fails_gets_all_but_its_share);
    tcase_add_test(tc, node_without_room_still_reads_for_the_others);
    tcase_add_test(tc, archive_that_changes_ends_the_job_on_all_nodes);
    tcase_add_test(tc, copier_waits_as_long_as_the_job_makes_progress);
    tcase_add_loop_test(tc, reader_of_a_job_awaits_its_nodes, 0, 2);
    tcase_add_test(tc, node_that_is_left_alone_leaves);
    tcase_add_loop_test(tc, copier_is_gentle_after_a_job_that_broke, 0, 2);
    tcase_add_test(tc, memory_bounds_the_run);
    tcase_add_test(tc, wrong_shapes_are_refused);
    tcase_add_test(tc, blocks_that_come_at_once_are_kept_before_their_answers);
    tcase_add_test(tc, engine_hands_blocks_round_and_is_told_the_end);
    tcase_add_test(tc, engine_that_ends_leaves_the_rest_to_storage);
    tcase_add_loop_test(tc, process_whose_engine_lost_a_node_leaves_the_rest_to_another, 0, 2);
    tcase_add_test(tc, job_that_begins_behind_the_last_chunk_is_over);
    tcase_add_test(tc, place_outside_of_the_ring_ends_the_job);
    tcase_add_loop_test(tc, nodes_go_on_when_one_is_killed, 0, 12);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
