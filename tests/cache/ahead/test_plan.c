/*
 * What is read ahead, decided from reads alone: each kind is found, nothing is fetched for a
 * reader in random order, and orders are recognised, lost and found again.
 */
#include "index_helper.h"
#include "numbers.h"
#include "plan.h"
#include "training.h"
#include "suite.h"

#define CLASSES 20u
#define FILES 20000u
#define FILE_BYTES 1000u
#define LARGE_BYTES (64u << 20)
#define LARGE_OFFSET ((UINT64_C(2) << 30) + 1536)

static struct index *tree;
static struct folder_files *train;
static uint32_t scattered[FILES]; /* positions, as they lie in the archive */
static char said[4096];

static void make_tree(void)
{
    struct builder *b = new_builder();
    char path[64];
    unsigned seed = 3;

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "train/class%02u/%05u.jpg", i % CLASSES, i);
        add_file(b, path, 512 + 2048 * (uint64_t)i, FILE_BYTES);
    }
    /* In the archive these lie in another order than their names. */
    for (unsigned i = 0; i < 2000; i++) {
        snprintf(path, sizeof(path), "mixed/%08x%05u", (unsigned)rand_r(&seed), i);
        add_file(b, path, (UINT64_C(1) << 30) + 1536 * (uint64_t)i, FILE_BYTES);
    }
    add_file(b, "large", LARGE_OFFSET, LARGE_BYTES);
    tree = build(b, &tar_header);
    ck_assert_int_eq(
        folder_files_new(tree, position_of(tree, "train"), FOLDER_CLASSES, true, FILES, &train),
        0);
    uint32_t first, count;
    ck_assert_int_eq(index_children(tree, position_of(tree, "mixed"), &first, &count), 0);
    for (uint32_t i = first; i < first + count; i++) {
        struct extent e;
        ck_assert_int_eq(index_extent(tree, i, 0, &e), 0);
        scattered[(e.source_offset - (1u << 30)) / 1536] = i;
    }
}

static void free_tree(void)
{
    folder_files_free(train);
    index_close(tree);
}

static void note_line(void *ctx, const char *line)
{
    (void)ctx;
    strncat(strncat(said, line, 400), "\n", 2);
}

/* A plan, a clock, and what was fetched. */
struct fixture {
    struct plan *plan;
    uint64_t now_ns;
    uint64_t fetched, fetched_bytes;
    uint64_t fetched_to; /* the end of the last want in its file */
    unsigned uneven;     /* wants that do not end at a megabyte of the archive */
    bool works;          /* jobs are done at once */
};

static uint64_t the_start(void)
{
    return 1;
}

static void begin(struct fixture *f, uint64_t window_bytes, struct known_reads *given)
{
    const struct ahead_options options = {.index = tree,
                                          .root = INDEX_ROOT,
                                          .window_bytes = window_bytes,
                                          .most_bytes = 64u << 20,
                                          .given = given,
                                          .now_ns = the_start,
                                          .log = note_line};

    said[0] = '\0';
    *f = (struct fixture){.now_ns = 1, .works = true};
    ck_assert_int_eq(plan_new(&options, NULL, &f->plan), 0);
}

static void work(struct fixture *f)
{
    struct plan_batch batch;
    struct plan_job *job;

    while (f->works && plan_job(f->plan, &job)) {
        plan_work(job);
        plan_job_done(f->plan, job);
    }
    while (plan_take(f->plan, WAY_CACHE, &batch)) {
        f->fetched += batch.count;
        for (size_t i = 0; i < batch.count; i++) {
            f->fetched_bytes += batch.wants[i].len;
            f->fetched_to = batch.wants[i].offset + batch.wants[i].len;
            f->uneven +=
                (LARGE_OFFSET + batch.wants[i].offset + batch.wants[i].len) % (1u << 20) != 0;
        }
        plan_finished(f->plan, &batch, 0);
    }
}

static void read_part(struct fixture *f, uint32_t position, uint64_t offset, uint32_t len,
                      uint32_t task)
{
    const struct observation o = {.time_ns = f->now_ns += 1000,
                                  .offset = offset,
                                  .position = position,
                                  .len = len,
                                  .task = task};

    bool is_new_order;
    plan_observe(f->plan, &o, 1, &is_new_order);
    work(f);
}

static void read_file(struct fixture *f, uint32_t position, uint32_t task)
{
    read_part(f, position, 0, 4096, task);
}

static struct ahead_stats stats(const struct fixture *f)
{
    return *plan_stats(f->plan);
}

static void train_epoch(struct fixture *f, struct training *t, uint64_t epoch)
{
    struct training_read read;

    training_epoch(t, epoch);
    while (training_next(t, &read))
        read_file(f, folder_files_at(train, read.number), read.task);
}

START_TEST(names_in_order_are_read_ahead)
{
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned i = 0; i < 5000; i++) /* over the ends of directories */
        read_file(&f, folder_files_at(train, i), 1);
    ck_assert_int_eq(stats(&f).kind, AHEAD_DIRECTORY);
    ck_assert_uint_ge(stats(&f).used, 4980);
    ck_assert_uint_le(f.fetched, 5600);
    plan_free(f.plan);
}
END_TEST

START_TEST(every_eighth_name_is_every_eighth_name)
{
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned i = 3; i < 8000; i += 8)
        read_file(&f, folder_files_at(train, i), 1);
    ck_assert_uint_ge(stats(&f).used, 900);
    ck_assert_uint_le(f.fetched, 1600);
    plan_free(f.plan);
}
END_TEST

START_TEST(several_readers_each_in_order)
{
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned i = 0; i < 900; i++)
        for (unsigned reader = 0; reader < 4; reader++)
            read_file(&f, folder_files_at(train, 4000 * reader + i), reader);
    ck_assert_uint_ge(stats(&f).used, 4 * 890);
    plan_free(f.plan);
}
END_TEST

/* Readers that leave what was brought for them do not stop what comes for later ones. */
START_TEST(what_nobody_came_for_is_given_up)
{
    struct fixture f;

    begin(&f, 100 * FILE_BYTES, NULL);
    for (unsigned i = 0; i < 160; i++) /* sixteen readers that end after ten files each */
        read_file(&f, folder_files_at(train, i / 10 * 300 + i % 10), 1);
    ck_assert_uint_ge(f.fetched - stats(&f).used, 50);
    for (unsigned i = 5000; i < 8000; i++)
        read_file(&f, folder_files_at(train, i), 1);
    ck_assert_uint_ge(stats(&f).used, 2500);
    ck_assert_uint_le(stats(&f).unused, 100);
    plan_free(f.plan);
}
END_TEST

START_TEST(the_order_of_the_archive_is_found)
{
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned i = 0; i < 2000; i++)
        read_file(&f, scattered[i], 1);
    ck_assert_int_eq(stats(&f).kind, AHEAD_ARCHIVE);
    ck_assert_uint_ge(stats(&f).used, 1800);
    ck_assert_uint_le(stats(&f).unused, 60);
    plan_free(f.plan);
}
END_TEST

START_TEST(a_large_file_is_read_ahead_in_growing_windows)
{
    struct fixture f;
    uint32_t large = position_of(tree, "large");

    begin(&f, 64u << 20, NULL);
    for (uint64_t offset = 0; offset < LARGE_BYTES; offset += 131072) {
        read_part(&f, large, offset, 131072, 1);
        if (offset < 262144)
            ck_assert_uint_eq(f.fetched_bytes, 0);
        else
            ck_assert_uint_ge(f.fetched_bytes, offset - 262144);
    }
    ck_assert_uint_le(f.fetched_bytes, LARGE_BYTES);
    ck_assert_uint_le(f.fetched, (LARGE_BYTES >> 20) + f.uneven + 1);
    ck_assert_uint_le(f.uneven, 5); /* small windows at first, and the last one */
    ck_assert_int_eq(stats(&f).kind, AHEAD_FILE);
    plan_free(f.plan);
}
END_TEST

/* Each piece's first read has the next megabytes fetched, from the second piece on. */
START_TEST(pieces_of_a_large_file_are_read_ahead_in_any_order)
{
    static const uint64_t pieces[] = {40, 8, 24, 0, 56, 32};
    struct fixture f;
    uint32_t large = position_of(tree, "large");

    begin(&f, 64u << 20, NULL);
    for (unsigned i = 0; i < 6; i++)
        for (uint64_t at = 0; at < 8u << 20; at += 131072) {
            uint64_t before = f.fetched_bytes;
            read_part(&f, large, (pieces[i] << 20) + at, 131072, 1);
            if (i > 0 && at == 0)
                ck_assert_uint_ge(f.fetched_bytes - before, 2u << 20);
        }
    plan_free(f.plan);
}
END_TEST

/* Each in its own part; the other's reads lie far away. */
START_TEST(several_readers_of_a_large_file_are_read_ahead_of)
{
    struct fixture f;
    uint32_t large = position_of(tree, "large");

    begin(&f, 64u << 20, NULL);
    for (uint64_t at = 0; at < 8u << 20; at += 131072)
        for (uint32_t task = 0; task < 4; task++)
            read_part(&f, large, (task * UINT64_C(16) << 20) + at, 131072, task);
    ck_assert_uint_ge(f.fetched_bytes, 4 * (7u << 20));
    plan_free(f.plan);
}
END_TEST

/* Each reads a part of the file, `len` bytes at a time. Returns how far ahead one is fetched.
 */
static uint64_t read_side_by_side(uint32_t readers, uint32_t len, uint64_t window_bytes)
{
    struct fixture f;
    uint32_t large = position_of(tree, "large");
    uint64_t most = 0;

    begin(&f, window_bytes, NULL);
    for (uint64_t at = 0; at < LARGE_BYTES / readers; at += len)
        for (uint32_t task = 0; task < readers; task++) {
            uint64_t offset = task * (LARGE_BYTES / readers) + at;
            f.fetched_to = 0;
            read_part(&f, large, offset, len, task);
            most = max_u64(most, f.fetched_to - min_u64(f.fetched_to, offset + len));
        }
    plan_free(f.plan);
    return most;
}

/* The block cache keeps twice as much, so that nothing is dropped before it is read. */
START_TEST(readers_of_large_files_share_the_room)
{
    uint64_t alone = read_side_by_side(1, 1u << 20, 8u << 20);
    uint64_t one_of_four = read_side_by_side(4, 131072, 8u << 20);

    ck_assert_uint_le(alone, 4u << 20);
    ck_assert_uint_gt(alone, 3u << 20);
    ck_assert_uint_le(one_of_four, 1u << 20);
    ck_assert_uint_ge(one_of_four, 1u << 19);
    /* Also where the reader waits for all that was asked for. */
    ck_assert_uint_gt(read_side_by_side(1, 131072, 64u << 20), 14u << 20);
}
END_TEST

START_TEST(a_large_file_that_is_read_at_random_is_left_alone)
{
    struct fixture f;
    uint32_t large = position_of(tree, "large");
    unsigned seed = 1;

    begin(&f, 64u << 20, NULL);
    for (unsigned i = 0; i < 1000; i++)
        read_part(&f, large, (uint64_t)(rand_r(&seed) % 16384) * 4096, 4096, 1);
    ck_assert_uint_le(f.fetched_bytes, 20u << 20);
    plan_free(f.plan);
}
END_TEST

/* A seed that nobody told. Each file once, in each of three epochs. */
START_TEST(random_readers_cause_next_to_no_fetches)
{
    struct training t = {
        .n = FILES, .world = 1, .ranks = 1, .workers = 4, .batch = 32, .seed = 987654};
    struct fixture f;

    begin(&f, 4u << 20, NULL);
    f.works = false;
    for (unsigned epoch = 0; epoch < 3; epoch++)
        train_epoch(&f, &t, epoch);
    ck_assert_uint_lt(f.fetched, 3 * FILES / 100);
    permutation_free(t.permutation);
    plan_free(f.plan);
}
END_TEST

START_TEST(a_shuffle_is_recognised_and_followed_from_epoch_to_epoch)
{
    struct training t = {.n = FILES, .world = 2, .ranks = 2, .workers = 4, .batch = 16};
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned epoch = 3; epoch < 6; epoch++)
        train_epoch(&f, &t, epoch);
    ck_assert_int_eq(stats(&f).kind, AHEAD_RECOGNISED);
    ck_assert_uint_eq(stats(&f).orders_recognised, 1);
    ck_assert_uint_le(stats(&f).order_reads, 128);
    ck_assert_uint_eq(stats(&f).order_files, FILES);
    ck_assert_uint_eq(stats(&f).orders_lost, 0);
    ck_assert_uint_ge(stats(&f).order_epoch, 5);
    ck_assert_uint_ge(stats(&f).found, 3 * FILES - 600);
    ck_assert_uint_le(f.fetched, 3 * FILES + 1200);
    ck_assert_msg(strstr(said, "recognised after") && strstr(said, "images of train, epoch 3"),
                  "%s", said);
    permutation_free(t.permutation);
    plan_free(f.plan);
}
END_TEST

/* What ranks elsewhere read of this epoch looks unread, while the next one begins. */
START_TEST(ranks_elsewhere_stay_there)
{
    struct training t = {
        .n = FILES, .world = 4, .ranks = 2, .first_rank = 1, .workers = 2, .batch = 16};
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned epoch = 0; epoch < 4; epoch++)
        train_epoch(&f, &t, epoch);
    ck_assert_uint_eq(stats(&f).orders_recognised, 1);
    ck_assert_uint_eq(stats(&f).world, 4);
    ck_assert_uint_eq(stats(&f).local, 2);
    ck_assert_uint_ge(stats(&f).found, 2 * FILES - 500);
    ck_assert_uint_le(f.fetched, 2 * FILES + 1200);
    permutation_free(t.permutation);
    plan_free(f.plan);
}
END_TEST

/* set_epoch is never called: noticed at the second epoch, foreseen from the third on. */
START_TEST(the_same_epoch_again_and_again)
{
    struct training t = {.n = FILES, .world = 1, .ranks = 1, .workers = 2, .batch = 16};
    struct fixture f;

    begin(&f, 1u << 20, NULL);
    for (unsigned epoch = 0; epoch < 4; epoch++)
        train_epoch(&f, &t, 0);
    ck_assert_msg(stats(&f).orders_recognised == 2, "%s", said);
    ck_assert_uint_eq(stats(&f).orders_lost, 1);
    ck_assert_uint_ge(stats(&f).found, 4 * FILES - 1500);
    ck_assert_msg(strstr(said, "set_epoch") != NULL, "%s", said);
    permutation_free(t.permutation);
    plan_free(f.plan);
}
END_TEST

/* Not even that of all files in the root, which is the first of all folders. */
START_TEST(the_first_epoch_repeats_none)
{
    struct training t = {.n = 1000, .world = 1, .ranks = 1, .workers = 1, .batch = 16};
    struct builder *b = new_builder();
    struct index *kept = tree;
    struct training_read read;
    struct folder_files *all;
    struct fixture f;
    char path[16];

    for (unsigned i = 0; i < t.n; i++) {
        snprintf(path, sizeof(path), "%05u.bin", i);
        add_file(b, path, 512 + 2048 * (uint64_t)i, FILE_BYTES);
    }
    tree = build(b, &tar_header);
    ck_assert_int_eq(folder_files_new(tree, INDEX_ROOT, FOLDER_FLAT, false, t.n, &all), 0);
    begin(&f, 1u << 20, NULL);
    training_epoch(&t, 0);
    for (unsigned i = 0; i < 100 && training_next(&t, &read); i++)
        read_file(&f, folder_files_at(all, read.number), 1);
    ck_assert_uint_eq(stats(&f).orders_recognised, 1);
    ck_assert_msg(strstr(said, "epoch 0") && !strstr(said, "again"), "%s", said);
    permutation_free(t.permutation);
    folder_files_free(all);
    plan_free(f.plan);
    index_close(tree);
    tree = kept;
}
END_TEST

START_TEST(an_order_that_ends_is_lost_and_costs_nothing_more)
{
    struct training t = {.n = FILES, .world = 1, .ranks = 1, .workers = 1, .batch = 16};
    struct training_read read;
    struct fixture f;
    unsigned seed = 9;

    begin(&f, 1u << 20, NULL);
    training_epoch(&t, 0);
    for (unsigned i = 0; i < 1000 && training_next(&t, &read); i++)
        read_file(&f, folder_files_at(train, read.number), 1);
    ck_assert_uint_eq(stats(&f).orders_recognised, 1);
    uint64_t before = f.fetched;
    f.works = false;
    for (unsigned i = 0; i < 3000; i++)
        read_file(&f, folder_files_at(train, (unsigned)rand_r(&seed) % FILES), 1);
    ck_assert_uint_eq(stats(&f).orders_lost, 1);
    ck_assert_uint_eq(stats(&f).order_files, 0);
    ck_assert_uint_lt(f.fetched - before, 200);
    ck_assert_msg(strstr(said, "is lost") != NULL, "%s", said);
    permutation_free(t.permutation);
    plan_free(f.plan);
}
END_TEST

START_TEST(a_given_order_is_followed_before_the_first_read)
{
    uint32_t *list = malloc(2000 * sizeof(*list));
    struct known_reads *order;
    struct fixture f;

    memcpy(list, scattered, 2000 * sizeof(*list));
    for (unsigned i = 0; i < 2000; i += 7) { /* whatever */
        uint32_t kept = list[i];
        list[i] = list[1999 - i];
        list[1999 - i] = kept;
    }
    ck_assert_int_eq(known_reads_listed(list, 2000, &order), 0);
    begin(&f, 100 * FILE_BYTES, order);
    work(&f);
    ck_assert_uint_eq(f.fetched, 100);
    for (unsigned epoch = 0; epoch < 3; epoch++)
        for (unsigned i = 0; i < 2000; i++)
            read_file(&f, known_reads_at(order, i), 1);
    ck_assert_int_eq(stats(&f).kind, AHEAD_GIVEN);
    ck_assert_uint_eq(stats(&f).found, 6000);
    known_reads_free(order);
    plan_free(f.plan);
}
END_TEST

START_TEST(readers_that_do_not_keep_to_the_given_order_pause_it)
{
    uint32_t *list = malloc(FILES * sizeof(*list));
    struct known_reads *order;
    struct fixture f;
    unsigned seed = 7;

    for (unsigned i = 0; i < FILES; i++)
        list[i] = folder_files_at(train, i * 7919u % FILES);
    ck_assert_int_eq(known_reads_listed(list, FILES, &order), 0);
    begin(&f, 100 * FILE_BYTES, order);
    f.works = false;
    for (unsigned i = 0; i < 1000; i++)
        read_file(&f, folder_files_at(train, (unsigned)rand_r(&seed) % FILES), 1);
    ck_assert_uint_lt(f.fetched, 600);
    ck_assert_msg(strstr(said, "another order") != NULL, "%s", said);
    known_reads_free(order);
    plan_free(f.plan);
}
END_TEST

START_TEST(without_a_window_nothing_is_fetched)
{
    struct fixture f;

    begin(&f, 0, NULL);
    for (unsigned i = 0; i < 500; i++)
        read_file(&f, folder_files_at(train, i), 1);
    ck_assert_uint_eq(f.fetched, 0);
    plan_free(f.plan);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("plan");
    TCase *c = tcase_create("plan");
    tcase_set_timeout(c, 120);
    tcase_add_unchecked_fixture(c, make_tree, free_tree);
    tcase_add_test(c, names_in_order_are_read_ahead);
    tcase_add_test(c, every_eighth_name_is_every_eighth_name);
    tcase_add_test(c, several_readers_each_in_order);
    tcase_add_test(c, what_nobody_came_for_is_given_up);
    tcase_add_test(c, the_order_of_the_archive_is_found);
    tcase_add_test(c, a_large_file_is_read_ahead_in_growing_windows);
    tcase_add_test(c, a_large_file_that_is_read_at_random_is_left_alone);
    tcase_add_test(c, pieces_of_a_large_file_are_read_ahead_in_any_order);
    tcase_add_test(c, several_readers_of_a_large_file_are_read_ahead_of);
    tcase_add_test(c, readers_of_large_files_share_the_room);
    tcase_add_test(c, random_readers_cause_next_to_no_fetches);
    tcase_add_test(c, a_shuffle_is_recognised_and_followed_from_epoch_to_epoch);
    tcase_add_test(c, the_same_epoch_again_and_again);
    tcase_add_test(c, ranks_elsewhere_stay_there);
    tcase_add_test(c, the_first_epoch_repeats_none);
    tcase_add_test(c, an_order_that_ends_is_lost_and_costs_nothing_more);
    tcase_add_test(c, a_given_order_is_followed_before_the_first_read);
    tcase_add_test(c, readers_that_do_not_keep_to_the_given_order_pause_it);
    tcase_add_test(c, without_a_window_nothing_is_fetched);
    suite_add_tcase(s, c);
    return run_suite(s);
}
