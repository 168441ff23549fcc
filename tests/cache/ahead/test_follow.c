/*
 * Along a known order ahead of readers that are out of step with each other: nearly all is
 * there in time, nothing of other nodes is fetched, wrong orders are given up.
 */
#include "chooser.h"
#include "index_helper.h"
#include "training.h"
#include "suite.h"

#define FILES 20000u
#define FILE_BYTES 1000u

static struct index *tree;
static struct folder_files *folder;

static void make_tree(void)
{
    struct builder *b = new_builder();
    char path[64];

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "d/%05u.jpg", i);
        add_file(b, path, 512 + 2048 * (uint64_t)i, FILE_BYTES);
    }
    add_file(b, "other", UINT64_C(1) << 30, FILE_BYTES);
    tree = build(b, &tar_header);
    ck_assert_int_eq(
        folder_files_new(tree, position_of(tree, "d"), FOLDER_FLAT, true, FILES, &folder), 0);
}

static void free_tree(void)
{
    folder_files_free(folder);
    index_close(tree);
}

static struct known_reads *shuffled(uint64_t seed)
{
    struct known_reads *order;

    ck_assert_int_eq(known_reads_shuffled(folder, seed, 1u << 30, &order), 0);
    return order;
}

static struct ahead_options options;
static struct ahead_stats stats;

static struct follow *follow(struct known_reads *order, uint64_t window_bytes, bool shared)
{
    struct follow *f;

    options = (struct ahead_options){.index = tree, .window_bytes = window_bytes};
    stats = (struct ahead_stats){0};
    ck_assert_int_eq(follow_new(&options, &stats, order, shared, &f), 0);
    known_reads_free(order);
    return f;
}

/* Fetch all that may be fetched, at once. How many. */
static unsigned fetch(struct follow *f)
{
    struct reader_want want;
    unsigned count = 0;

    for (; follow_next(f, &want); count++) {
        ck_assert_uint_eq(want.len, FILE_BYTES);
        follow_done(f, want.due);
    }
    return count;
}

/* Epochs of training; fetching keeps up. How much is fetched. */
static unsigned train(struct training t, struct follow *f, unsigned epochs)
{
    struct training_read read;
    unsigned fetched = 0;

    for (unsigned epoch = 0; epoch < epochs; epoch++) {
        training_epoch(&t, epoch);
        while (training_next(&t, &read)) {
            follow_read(f, folder_files_at(folder, read.number), read.task);
            ck_assert(!follow_is_lost(f));
            fetched += fetch(f);
            if (follow_wants_next(f)) {
                struct known_reads *next = shuffled(epoch + 1);
                ck_assert_int_eq(follow_set_next(f, next), 0);
                known_reads_free(next);
            }
        }
    }
    permutation_free(t.permutation);
    return fetched;
}

START_TEST(one_rank_with_workers_finds_all_but_the_first)
{
    struct follow *f = follow(shuffled(0), 2000 * FILE_BYTES, true);
    unsigned fetched = train(
        (struct training){.n = FILES, .world = 1, .ranks = 1, .workers = 8, .batch = 64}, f, 1);
    ck_assert_uint_eq(stats.in_order, FILES);
    ck_assert_uint_ge(stats.found, FILES - 128);
    ck_assert_uint_le(fetched, FILES + 2000);
    ck_assert_uint_eq(stats.world, 1);
    follow_free(f);
}
END_TEST

START_TEST(ranks_of_other_nodes_are_left_alone)
{
    struct follow *f = follow(shuffled(0), 500 * FILE_BYTES, true);
    unsigned fetched = train(
        (struct training){
            .n = FILES, .world = 16, .ranks = 4, .workers = 4, .batch = 16, .first_rank = 8},
        f, 1);
    ck_assert_uint_eq(stats.world, 16);
    ck_assert_uint_eq(stats.local, 4);
    ck_assert_uint_eq(stats.in_order, FILES / 4);
    ck_assert_uint_ge(stats.found, FILES / 4 - 256);
    ck_assert_uint_le(fetched, FILES / 4 + 500);
    ck_assert_uint_lt(stats.unused, 100);
    follow_free(f);
}
END_TEST

START_TEST(it_goes_on_across_epochs)
{
    struct follow *f = follow(shuffled(0), 2000 * FILE_BYTES, true);
    unsigned fetched = train(
        (struct training){.n = FILES, .world = 2, .ranks = 2, .workers = 4, .batch = 32}, f, 4);
    ck_assert_uint_ge(stats.in_order, 4 * FILES - 100);
    ck_assert_uint_ge(stats.found, 4 * FILES - 300);
    ck_assert_uint_le(fetched, 4 * FILES + 2100);
    ck_assert(follow_has_turned(f));
    ck_assert(!follow_has_turned(f));
    follow_free(f);
}
END_TEST

START_TEST(ranks_of_other_nodes_are_left_alone_in_each_epoch)
{
    struct follow *f = follow(shuffled(0), 500 * FILE_BYTES, true);
    /* 20000 is no multiple of 24: in one sequence the ranks of the next epoch are others. */
    unsigned fetched =
        train((struct training){.n = FILES, .world = 24, .ranks = 8, .workers = 4, .batch = 16},
              f, 4);
    ck_assert_uint_eq(stats.world, 24);
    ck_assert_uint_eq(stats.local, 8);
    ck_assert_uint_ge(stats.found, 4 * FILES / 3 - 600);
    ck_assert_uint_le(fetched, 4 * FILES / 3 + 600);
    follow_free(f);
}
END_TEST

START_TEST(a_short_order_turns)
{
    uint32_t list[40];
    struct known_reads *order, *again;

    for (unsigned i = 0; i < 40; i++)
        list[i] = folder_files_at(folder, i * 7);
    uint32_t *own = malloc(sizeof(list));
    memcpy(own, list, sizeof(list));
    ck_assert_int_eq(known_reads_listed(own, 40, &order), 0);
    again = known_reads_share(order);
    struct follow *f = follow(order, 10 * FILE_BYTES, false);
    for (unsigned i = 0; i < 10 * 40; i++) {
        fetch(f);
        follow_read(f, list[i % 40], 1);
        if (follow_wants_next(f))
            ck_assert_int_eq(follow_set_next(f, again), 0);
    }
    ck_assert_uint_eq(stats.found, 10 * 40);
    known_reads_free(again);
    follow_free(f);
}
END_TEST

START_TEST(no_more_waits_than_the_window_holds)
{
    struct follow *f = follow(shuffled(0), 100 * FILE_BYTES, false);

    struct known_reads *order = shuffled(0);
    ck_assert_uint_eq(fetch(f), 100);
    ck_assert_uint_eq(fetch(f), 0);
    for (unsigned i = 0; i < 50; i++)
        ck_assert_int_eq(follow_read(f, known_reads_at(order, i), 1), FOLLOW_FOUND);
    ck_assert_uint_eq(fetch(f), 50);
    ck_assert_uint_eq(stats.waiting_bytes, 100 * FILE_BYTES);
    known_reads_free(order);
    follow_free(f);
}
END_TEST

START_TEST(what_all_readers_left_behind_does_not_count)
{
    struct follow *f = follow(shuffled(0), 100 * FILE_BYTES, false);
    struct known_reads *order = shuffled(0);

    follow_read(f, known_reads_at(order, 0), 1);
    ck_assert_uint_eq(fetch(f), 100);
    /* Every other file is in the kernel's cache and never asked for. */
    for (unsigned i = 2; i < 2000; i += 2) {
        follow_read(f, known_reads_at(order, i), 1);
        fetch(f);
    }
    ck_assert_uint_gt(stats.unused, 600);
    ck_assert_uint_gt(stats.found, 900);
    ck_assert_uint_le(stats.waiting_bytes, 100 * FILE_BYTES);
    known_reads_free(order);
    follow_free(f);
}
END_TEST

START_TEST(what_is_read_late_counts_once)
{
    struct follow *f = follow(shuffled(0), 200 * FILE_BYTES, false);
    struct known_reads *order = shuffled(0);

    ck_assert_uint_eq(fetch(f), 200);
    for (unsigned i = 100; i < 200; i++)
        follow_read(f, known_reads_at(order, i), 1);
    fetch(f);
    uint64_t before = stats.waiting_bytes;
    ck_assert_uint_gt(stats.unused, 10);
    for (unsigned i = 0; i < 10; i++)
        ck_assert_int_eq(follow_read(f, known_reads_at(order, i), 1), FOLLOW_FOUND);
    ck_assert_uint_eq(stats.waiting_bytes, before);
    known_reads_free(order);
    follow_free(f);
}
END_TEST

START_TEST(another_order_is_given_up)
{
    struct follow *f = follow(shuffled(0), 100 * FILE_BYTES, false);
    struct known_reads *other = shuffled(77);
    unsigned fetched = 0, i;

    for (i = 0; i < 500 && !follow_is_lost(f); i++) {
        ck_assert_int_ne(follow_read(f, known_reads_at(other, i), 1), FOLLOW_FOREIGN);
        fetched += fetch(f);
    }
    ck_assert_uint_lt(i, 200);
    ck_assert_uint_le(fetched, 400);
    known_reads_free(other);
    follow_free(f);
}
END_TEST

START_TEST(readers_that_begin_in_the_middle_are_found)
{
    struct follow *f = follow(shuffled(0), 100 * FILE_BYTES, false);
    struct known_reads *order = shuffled(0);

    for (unsigned i = 12000; i < 13000; i++) {
        follow_read(f, known_reads_at(order, i), 1);
        ck_assert(!follow_is_lost(f));
        fetch(f);
    }
    ck_assert_uint_gt(stats.found, 950);
    known_reads_free(order);
    follow_free(f);
}
END_TEST

START_TEST(other_files_are_foreign)
{
    struct follow *f = follow(shuffled(0), 100 * FILE_BYTES, false);

    for (unsigned i = 0; i < 1000; i++)
        ck_assert_int_eq(follow_read(f, position_of(tree, "other"), 1), FOLLOW_FOREIGN);
    ck_assert(!follow_is_lost(f));
    follow_free(f);
}
END_TEST

START_TEST(what_was_refused_comes_again_after_a_read)
{
    struct follow *f = follow(shuffled(0), 100 * FILE_BYTES, false);
    struct known_reads *order = shuffled(0);
    struct reader_want want;

    follow_read(f, known_reads_at(order, 0), 1);
    for (unsigned i = 1; i <= 10; i++)
        ck_assert(follow_next(f, &want));
    ck_assert_uint_eq(want.due, 10);
    follow_refused(f, want.due);
    ck_assert(!follow_next(f, &want));
    follow_read(f, known_reads_at(order, 1), 1);
    ck_assert(follow_next(f, &want));
    ck_assert_uint_eq(want.due, 10);
    ck_assert(follow_next(f, &want));
    ck_assert_uint_eq(want.due, 11);
    ck_assert_int_eq(follow_read(f, known_reads_at(order, 2), 1), FOLLOW_LATE);
    ck_assert_uint_eq(stats.waiting_bytes, 9 * FILE_BYTES);
    known_reads_free(order);
    follow_free(f);
}
END_TEST

START_TEST(a_list_with_files_that_come_again)
{
    uint32_t *list = malloc(3000 * sizeof(*list));
    struct known_reads *order;

    for (unsigned i = 0; i < 3000; i++)
        list[i] = folder_files_at(folder, i % 1000 * 7 % 1000);
    uint32_t *copy = malloc(3000 * sizeof(*copy));
    memcpy(copy, list, 3000 * sizeof(*copy));
    ck_assert_int_eq(known_reads_listed(list, 3000, &order), 0);
    struct follow *f = follow(order, 50 * FILE_BYTES, false);
    for (unsigned i = 0; i < 3000; i++) {
        follow_read(f, copy[i], 1);
        fetch(f);
    }
    ck_assert_uint_eq(stats.found, 2999);
    free(copy);
    follow_free(f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("follow");
    TCase *c = tcase_create("follow");
    tcase_set_timeout(c, 120);
    tcase_add_unchecked_fixture(c, make_tree, free_tree);
    tcase_add_test(c, one_rank_with_workers_finds_all_but_the_first);
    tcase_add_test(c, ranks_of_other_nodes_are_left_alone);
    tcase_add_test(c, it_goes_on_across_epochs);
    tcase_add_test(c, ranks_of_other_nodes_are_left_alone_in_each_epoch);
    tcase_add_test(c, a_short_order_turns);
    tcase_add_test(c, no_more_waits_than_the_window_holds);
    tcase_add_test(c, what_all_readers_left_behind_does_not_count);
    tcase_add_test(c, what_is_read_late_counts_once);
    tcase_add_test(c, another_order_is_given_up);
    tcase_add_test(c, readers_that_begin_in_the_middle_are_found);
    tcase_add_test(c, other_files_are_foreign);
    tcase_add_test(c, what_was_refused_comes_again_after_a_read);
    tcase_add_test(c, a_list_with_files_that_come_again);
    suite_add_tcase(s, c);
    return run_suite(s);
}
