/*
 * Loaders beside others of their job on the node: what they may have, what they do not lose,
 * what they give back; and what they keep of an archive that is read from storage.
 */
#include "loader_helper.h"

#include <signal.h>
#include <sys/wait.h>

#include "budget.h"
#include "share.h"
#include "cpus.h"
#include "suite.h"

#define BATCH 32u
#define BATCH_BYTES ((uint64_t)BATCH * LARGE)
#define LARGE (32u << 10)
#define SMALL 8192u
#define WAIT_MS 60000u

static struct tree tree;
static size_t sample_bytes;
static unsigned files;

static size_t same(unsigned i)
{
    (void)i;
    return sample_bytes;
}

static void setup_tree(unsigned count, size_t size)
{
    files = count;
    sample_bytes = size;
    tree_begin(&tree);
    setenv("ONEPOT_RUNTIME_DIR", tree.path, 1);
    setenv("SLURM_JOB_ID", "77", 1);
    unsetenv("LOCAL_WORLD_SIZE");
    tree_numbered(&tree, files, 4, same);
    tree_pack(&tree, PACKING_ONEPOT);
}

static void setup(void)
{
    setup_tree(200, LARGE);
}

static size_t first_is_large(unsigned i)
{
    return i ? SMALL : 8u << 20;
}

static void setup_uneven(void)
{
    tree_begin(&tree);
    setenv("ONEPOT_RUNTIME_DIR", tree.path, 1);
    setenv("SLURM_JOB_ID", "77", 1);
    unsetenv("LOCAL_WORLD_SIZE");
    tree_numbered(&tree, 6, 1, first_is_large);
    tree_pack(&tree, PACKING_ONEPOT);
}

static void setup_remote(void)
{
    setup_tree(80, SMALL);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
}

static void teardown(void)
{
    unsetenv("ONEPOT_ASSUME_REMOTE");
    tree_end(&tree);
}

static void setup_large(void)
{
    setup_tree(800, LARGE);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
}

static struct onepot_loader *make_rank(const struct onepot_archive *archive, uint32_t threads,
                                       uint64_t world_size)
{
    struct onepot_loader_options o = {
        .size = sizeof(o), .batch_size = BATCH, .world_size = world_size, .threads = threads};
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_new(archive, &o, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    return loader;
}

static struct onepot_loader *make(const struct onepot_archive *archive, uint32_t threads)
{
    return make_rank(archive, threads, 1);
}

static struct onepot_stats stats_of(struct onepot_loader *loader)
{
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(loader, &stats);
    return stats;
}

/* One that is no loader, and has what is left, or a user's word. */
static uint64_t take_all(void *ctx, uint64_t bytes, uint64_t most_bytes, unsigned processes)
{
    (void)most_bytes, (void)processes;
    uint64_t *has = ctx;
    return *has = bytes;
}

static struct claim *claim_of_another(uint64_t total_bytes, uint64_t fixed_bytes,
                                      uint64_t *ret_bytes)
{
    struct claim_options o = {
        .job = "77", .total_bytes = total_bytes, .fixed_bytes = fixed_bytes};
    struct claim *claim = NULL;
    ck_assert_int_eq(claim_new(&o, &claim), 0);
    claim_update(claim, 0, take_all, ret_bytes);
    return claim;
}

/* One that leaves nothing to others. */
static struct claim *claim_of_all(uint64_t *ret_bytes)
{
    uint64_t total = budget_cache_bytes();
    return claim_of_another(total, 2 * total, ret_bytes);
}

static void nap(void)
{
    usleep(10000);
}

/* All batches that can be had, which are kept. */
static unsigned take_many(struct onepot_loader *loader, const struct onepot_batch **kept,
                          unsigned room, int *ret_last)
{
    unsigned count = 0;
    while (count < room &&
           (*ret_last = onepot_loader_next(loader, (int)WAIT_MS, NULL, &kept[count])) >= 0)
        count += *ret_last == 1;
    return count;
}

static void check_bytes(const struct onepot_batch *b)
{
    unsigned wrong = 0;
    for (uint64_t i = 0; i < b->samples; i++)
        for (uint64_t j = 0; j < sample_bytes; j += 4) {
            uint32_t number;
            memcpy(&number, b->data + b->offsets[i] + j, 4);
            wrong += number != b->indices[i];
        }
    ck_assert_uint_eq(wrong, 0); /* once: each assertion costs a message to the runner */
}

START_TEST(what_others_have_is_not_to_be_had)
{
    struct onepot_archive *a = tree_open(&tree, NULL);
    const struct onepot_batch *kept[64];
    uint64_t others = 0;
    struct claim *claim = claim_of_all(&others);
    struct onepot_loader *loader = make(a, 2);
    int r;
    unsigned count = take_many(loader, kept, 64, &r);
    ck_assert_int_eq(r, -ENOBUFS);
    ck_assert_uint_ge(count, 2);
    ck_assert_uint_le(count, 8); /* four, and what fits in the least that a claim has */
    /* Once it is gone, there is room. */
    claim_free(claim);
    for (unsigned waited = 0; waited < WAIT_MS && r == -ENOBUFS; waited += 10) {
        r = onepot_loader_next(loader, (int)WAIT_MS, NULL, &kept[count]);
        nap();
    }
    ck_assert_int_eq(r, 1);
    for (unsigned i = 0; i <= count; i++) {
        check_bytes(kept[i]);
        onepot_batch_release(kept[i]);
    }
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

START_TEST(what_is_kept_is_not_taken_away_and_what_comes_back_is_given_up)
{
    struct onepot_archive *a = tree_open(&tree, NULL);
    const struct onepot_batch *kept[12];
    uint64_t others = 0;
    struct onepot_loader *loader = make(a, 2);
    int r;
    ck_assert_uint_eq(take_many(loader, kept, 12, &r), 12);
    struct claim *claim = claim_of_all(&others);
    for (unsigned waited = 0; stats_of(loader).part_bytes > CLAIM_LEAST_BYTES; waited += 10) {
        ck_assert_uint_lt(waited, WAIT_MS);
        nap();
    }
    ck_assert_uint_ge(stats_of(loader).slab_bytes, 12 * BATCH_BYTES);
    ck_assert_uint_ge(claims_of_job("77").using_bytes - others, 12 * BATCH_BYTES);
    for (unsigned i = 0; i < 12; i++) {
        check_bytes(kept[i]);
        onepot_batch_release(kept[i]);
    }
    /* It still moves: with what it can't do without. */
    for (unsigned i = 0; i < 20; i++) {
        r = onepot_loader_next(loader, (int)WAIT_MS, NULL, &kept[0]);
        ck_assert_int_ge(r, 0);
        if (r == 1)
            onepot_batch_release(kept[0]);
    }
    ck_assert_uint_le(stats_of(loader).slab_bytes, 7 * BATCH_BYTES);
    for (unsigned waited = 0; claims_of_job("77").using_bytes - others > 7 * BATCH_BYTES;
         waited += 10) {
        ck_assert_uint_lt(waited, WAIT_MS);
        nap();
    }
    claim_free(claim);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    ck_assert_uint_eq(claims_of_job("77").count, 0);
}
END_TEST

/* A large batch that is kept is one, and not as many as there would be of the next one's size.
 */
START_TEST(a_large_batch_leaves_room_for_small_ones)
{
    struct onepot_archive *a = tree_open(&tree, NULL);
    const struct onepot_batch *kept[3];
    uint64_t others = 0;
    struct claim *claim = claim_of_all(&others);
    struct onepot_loader_options o = {
        .size = sizeof(o), .batch_size = 1, .world_size = 1, .threads = 1, .no_shuffle = true};
    struct onepot_loader *loader = NULL;
    int r;
    ck_assert_int_eq(onepot_loader_new(a, &o, NULL, &loader), 0);
    ck_assert_uint_eq(take_many(loader, kept, 3, &r), 3);
    for (unsigned i = 0; i < 3; i++)
        onepot_batch_release(kept[i]);
    onepot_loader_free(loader);
    claim_free(claim);
    onepot_archive_close(a);
}
END_TEST

/* Batches whose memory is the user's own word leave less to others. */
START_TEST(a_users_word_counts_for_others)
{
    struct onepot_archive *a = tree_open(&tree, NULL);
    struct onepot_loader_options o = {.size = sizeof(o),
                                      .batch_size = BATCH,
                                      .world_size = 1,
                                      .memory_bytes = budget_cache_bytes() / 2};
    struct onepot_loader *loader = NULL;
    uint64_t others = 0, total = budget_cache_bytes(); /* another one the next time */
    ck_assert_int_eq(onepot_loader_new(a, &o, NULL, &loader), 0);
    struct claim *claim = claim_of_another(total, 0, &others);
    ck_assert_uint_le(others, total - o.memory_bytes + CLAIM_LEAST_BYTES);
    claim_free(claim);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

/* Another rank. It is forked before this process has threads, which a sanitizer asks for. */
struct rank {
    pid_t pid;
    int go, ready;
};

static struct rank rank_fork(void)
{
    int go[2], ready[2];
    char byte;
    ck_assert_int_eq(pipe(go), 0);
    ck_assert_int_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(go[1]);
        close(ready[0]);
        if (read(go[0], &byte, 1) == 1) {
            make(tree_open(&tree, NULL), 0);
            if (write(ready[1], "x", 1) == 1)
                pause();
        }
        _exit(1);
    }
    close(go[0]);
    close(ready[1]);
    return (struct rank){.pid = pid, .go = go[1], .ready = ready[0]};
}

/* Returns when it has a loader. */
static void rank_start(const struct rank *rank)
{
    char byte;
    ck_assert_int_eq(write(rank->go, "x", 1), 1);
    ck_assert_int_eq(read(rank->ready, &byte, 1), 1);
}

static void rank_kill(const struct rank *rank)
{
    kill(rank->pid, SIGKILL);
    waitpid(rank->pid, NULL, 0);
    close(rank->go);
    close(rank->ready);
}

static void wait_for_threads(struct onepot_loader *loader, uint32_t threads)
{
    for (unsigned waited = 0; stats_of(loader).threads != threads; waited += 10) {
        ck_assert_msg(waited < WAIT_MS, "%u threads, not %u", stats_of(loader).threads,
                      threads);
        nap();
    }
}

START_TEST(ranks_of_a_node_share_its_cpus_also_where_nobody_counts_them)
{
    struct onepot_archive *a = tree_open(&tree, NULL);
    uint32_t cpus = cpus_allowed();
    struct rank ranks[3];
    for (unsigned i = 0; i < 3; i++)
        ranks[i] = rank_fork();
    for (unsigned i = 0; i < 3; i++)
        rank_start(&ranks[i]);
    struct onepot_loader *loader = make(a, 0), *second = make(a, 0);
    uint32_t fair = cpus / 4 ? cpus / 4 : 1;
    wait_for_threads(loader, fair); /* two loaders of one process are one rank */
    wait_for_threads(second, fair);
    const struct onepot_batch *b;
    unsigned batches = 0;
    while (onepot_loader_next(loader, (int)WAIT_MS, NULL, &b) == 1) {
        batches++;
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(batches, (files + BATCH - 1) / BATCH);
    for (unsigned i = 0; i < 3; i++)
        rank_kill(&ranks[i]);
    wait_for_threads(loader, cpus); /* what the killed ones had is ours */
    onepot_loader_free(second);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

START_TEST(a_number_of_threads_that_was_asked_for_is_kept)
{
    struct rank rank = rank_fork();
    struct onepot_archive *a = tree_open(&tree, NULL);
    struct onepot_loader *loader = make(a, 5);
    const struct onepot_batch *kept[12];
    uint64_t others = 0;
    int r;
    ck_assert_uint_eq(stats_of(loader).threads, 5);
    ck_assert_uint_eq(take_many(loader, kept, 12, &r), 12);
    rank_start(&rank);
    for (unsigned waited = 0; claims_of_job("77").count < 2; waited += 10) {
        ck_assert_uint_lt(waited, WAIT_MS);
        nap();
    }
    /* The look that tells the loader of this claim tells it of the rank, too. */
    struct claim *claim = claim_of_all(&others);
    for (unsigned waited = 0; stats_of(loader).part_bytes > CLAIM_LEAST_BYTES; waited += 10) {
        ck_assert_uint_lt(waited, WAIT_MS);
        nap();
    }
    ck_assert_uint_eq(stats_of(loader).threads, 5);
    for (unsigned i = 0; i < 12; i++)
        onepot_batch_release(kept[i]);
    rank_kill(&rank);
    claim_free(claim);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

START_TEST(a_forked_child_has_a_claim_of_its_own)
{
    if (!FORKS_WITH_THREADS) {
        puts("skipped: under a sanitizer a process with threads can't fork");
        return;
    }
    struct onepot_archive *a = tree_open(&tree, NULL);
    struct onepot_loader *loader = make(a, 1);
    const struct onepot_batch *b;
    int status;
    ck_assert_int_eq(onepot_loader_next(loader, (int)WAIT_MS, NULL, &b), 1);
    pid_t child = fork();
    if (child == 0) {
        const struct onepot_batch *own;
        bool good = onepot_loader_next(loader, (int)WAIT_MS, NULL, &own) == 1;
        good = good && claims_of_job("77").count == 2;
        onepot_batch_release(own);
        onepot_loader_free(loader);
        good = good && claims_of_job("77").count == 1;
        onepot_archive_close(a);
        _exit(good ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    onepot_batch_release(b);
    onepot_loader_free(loader);
    onepot_archive_close(a);
    ck_assert_uint_eq(claims_of_job("77").count, 0);
}
END_TEST

/* ---- what is read from storage ---- */

static void read_epoch(struct onepot_loader *loader)
{
    const struct onepot_batch *b;
    struct onepot_error error = {0};
    int r;
    while ((r = onepot_loader_next(loader, (int)WAIT_MS, &error, &b)) == 1) {
        check_bytes(b);
        onepot_batch_release(b);
    }
    ck_assert_msg(r == 0, "%s", error.text);
}

/* The ring reads ahead into the next epoch: what is looked at is the state after all of them.
 */
START_TEST(a_second_epoch_of_a_remote_archive_is_read_from_memory)
{
    struct onepot_archive *a = tree_open(&tree, NULL);
    struct onepot_loader *loader = make(a, 0);
    for (unsigned epoch = 0; epoch < 3; epoch++)
        read_epoch(loader);
    struct onepot_stats stats = stats_of(loader);
    ck_assert_uint_eq(stats.read_bytes, (uint64_t)files * SMALL);
    ck_assert_uint_ge(stats.cache_hits, 2 * files);
    ck_assert_uint_ge(stats.cache_bytes, (uint64_t)files * SMALL);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

/*
 * A half of all in each epoch but the first, less what it takes to keep them; of few samples
 * that would be most of it, and what threads have in flight the rest.
 */
START_TEST(a_cache_that_is_too_small_keeps_its_share)
{
    struct onepot_archive_options o = {.size = sizeof(o),
                                       .cache_bytes = (uint64_t)files * LARGE / 2};
    struct onepot_archive *a = tree_open(&tree, &o);
    struct onepot_loader *loader = make(a, 0);
    for (unsigned epoch = 0; epoch < 6; epoch++)
        read_epoch(loader);
    struct onepot_stats stats = stats_of(loader);
    ck_assert_uint_eq(stats.cache_part_bytes, o.cache_bytes);
    ck_assert_uint_le(stats.cache_bytes, o.cache_bytes);
    ck_assert_uint_ge(stats.cache_hits, 5 * files * 3 / 10);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

/*
 * Of what a rank has read the next epoch asks it for a half. To keep anything, as one does who
 * does not know the order, finds a quarter in a cache for a quarter, or less.
 */
START_TEST(a_rank_keeps_what_its_next_epoch_asks_for)
{
    struct onepot_archive_options o = {.size = sizeof(o),
                                       .cache_bytes = (uint64_t)files * LARGE / 4};
    struct onepot_archive *a = tree_open(&tree, &o);
    struct onepot_loader *loader = make_rank(a, 1, 2);
    for (unsigned epoch = 0; epoch < 6; epoch++)
        read_epoch(loader);
    struct onepot_stats stats = stats_of(loader);
    ck_assert_uint_le(stats.cache_bytes, o.cache_bytes);
    ck_assert_uint_ge(stats.cache_hits, 5 * files / 2 * 3 / 10);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

/* Then each sample is read to its place, without a copy of it. */
START_TEST(a_cache_that_is_hopelessly_small_is_left_alone)
{
    struct onepot_archive_options o = {.size = sizeof(o), .cache_bytes = SMALL};
    struct onepot_archive *a = tree_open(&tree, &o);
    struct onepot_loader *loader = make(a, 0);
    for (unsigned epoch = 0; epoch < 2; epoch++)
        read_epoch(loader);
    struct onepot_stats stats = stats_of(loader);
    ck_assert_uint_eq(stats.cache_hits + stats.cache_misses, 0);
    ck_assert_uint_ge(stats.reads, 2 * files);
    onepot_loader_free(loader);
    onepot_archive_close(a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sharing");
    TCase *t = tcase_create("sharing");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, what_others_have_is_not_to_be_had);
    tcase_add_test(t, what_is_kept_is_not_taken_away_and_what_comes_back_is_given_up);
    tcase_add_test(t, a_users_word_counts_for_others);
    tcase_add_test(t, ranks_of_a_node_share_its_cpus_also_where_nobody_counts_them);
    tcase_add_test(t, a_number_of_threads_that_was_asked_for_is_kept);
    tcase_add_test(t, a_forked_child_has_a_claim_of_its_own);
    suite_add_tcase(s, t);

    t = tcase_create("uneven");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup_uneven, teardown);
    tcase_add_test(t, a_large_batch_leaves_room_for_small_ones);
    suite_add_tcase(s, t);

    t = tcase_create("remote");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup_remote, teardown);
    tcase_add_test(t, a_second_epoch_of_a_remote_archive_is_read_from_memory);
    tcase_add_test(t, a_cache_that_is_hopelessly_small_is_left_alone);
    suite_add_tcase(s, t);

    t = tcase_create("remote, large");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup_large, teardown);
    tcase_add_test(t, a_cache_that_is_too_small_keeps_its_share);
    tcase_add_test(t, a_rank_keeps_what_its_next_epoch_asks_for);
    suite_add_tcase(s, t);
    return run_suite(s);
}
