/*
 * Shuffles are recognised from their first reads, whoever reads how; reads in any other order
 * are not taken for one.
 */
#include "index_helper.h"
#include "recognise.h"
#include "training.h"
#include "suite.h"

#define CLASSES 20u
#define FILES 10000u

static struct index *tree;
static struct folder_files *train;

static void make_tree(void)
{
    struct builder *b = new_builder();
    char path[64];

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "data/train/class%02u/%05u.jpg", i % CLASSES, i);
        add_file(b, path, 512 + 1024 * (uint64_t)i, 100);
    }
    for (unsigned i = 0; i < CLASSES; i++) {
        snprintf(path, sizeof(path), "data/train/class%02u/about.txt", i);
        add_file(b, path, (UINT64_C(1) << 30) + 1024 * (uint64_t)i, 100);
    }
    for (unsigned i = 0; i < 600; i++) {
        snprintf(path, sizeof(path), "data/flat/%05u.bin", i);
        add_file(b, path, (UINT64_C(2) << 30) + 1024 * (uint64_t)i, 100);
    }
    tree = build(b, &tar_header);
    ck_assert_int_eq(folder_files_new(tree, position_of(tree, "data/train"), FOLDER_CLASSES,
                                      true, FILES, &train),
                     0);
    ck_assert_uint_eq(folder_files_count(train), FILES);
}

static void free_tree(void)
{
    folder_files_free(train);
    index_close(tree);
}

static int try_until(const _Atomic bool *stop, const uint32_t *positions, unsigned count,
                     uint64_t seed, struct recognised *found)
{
    const struct ahead_options options = {
        .index = tree, .root = INDEX_ROOT, .seed = seed, .most_bytes = 1u << 20};
    struct recogniser *r;

    ck_assert_int_eq(recogniser_new(&options, stop, &r), 0);
    int result = recogniser_try(r, positions, count, found);
    recogniser_free(r);
    return result;
}

static int try(const uint32_t *positions, unsigned count, uint64_t seed,
               struct recognised *found)
{
    return try_until(NULL, positions, count, seed, found);
}

static void drop(struct recognised *found)
{
    folder_files_free(found->files);
    known_reads_free(found->order);
}

/* The first `count` reads of all readers together. */
static void first_reads(struct training *t, uint64_t epoch, uint32_t *positions, unsigned count)
{
    struct training_read read;

    training_epoch(t, epoch);
    for (unsigned i = 0; i < count; i++) {
        ck_assert(training_next(t, &read));
        positions[i] = folder_files_at(train, read.number);
    }
    permutation_free(t->permutation);
    t->permutation = NULL;
}

static void expect_epoch(struct training t, uint64_t epoch, unsigned count)
{
    uint32_t positions[RECOGNISE_READS_MAX];
    struct recognised found;

    t.n = FILES;
    first_reads(&t, epoch, positions, count);
    int r = try(positions, count, t.seed, &found);
    ck_assert_msg(r == 0, "epoch %u with %u reads: %d", (unsigned)epoch, count, r);
    ck_assert_uint_eq(found.epoch, epoch);
    ck_assert_uint_eq(folder_files_count(found.files), FILES);
    ck_assert_uint_eq(found.directory, position_of(tree, "data/train"));
    ck_assert(found.kind == FOLDER_CLASSES && found.images_only);
    ck_assert_uint_eq(known_reads_count(found.order), FILES);
    drop(&found);
}

START_TEST(one_reader_is_recognised_by_sixteen_reads)
{
    expect_epoch((struct training){.world = 1, .ranks = 1, .workers = 1, .batch = 32}, 0, 16);
    expect_epoch((struct training){.world = 1, .ranks = 1, .workers = 1, .batch = 32}, 7, 16);
    expect_epoch(
        (struct training){.world = 1, .ranks = 1, .workers = 1, .batch = 32, .seed = 42}, 2000,
        16);
}
END_TEST

START_TEST(workers_and_ranks_are_recognised_within_64_reads_of_each_rank)
{
    expect_epoch((struct training){.world = 1, .ranks = 1, .workers = 8, .batch = 64}, 3, 64);
    expect_epoch((struct training){.world = 4, .ranks = 4, .workers = 4, .batch = 32}, 1, 64);
    expect_epoch((struct training){.world = 4, .ranks = 4, .workers = 4, .batch = 32}, 1, 256);
    expect_epoch(
        (struct training){.world = 16, .ranks = 1, .workers = 4, .batch = 16, .first_rank = 5},
        90, 64);
    expect_epoch(
        (struct training){.world = 16, .ranks = 4, .workers = 2, .batch = 16, .first_rank = 8},
        2, 256);
}
END_TEST

/* As subsets of ImageNet are made: of links to files, or to whole classes. */
START_TEST(folders_of_links_are_recognised)
{
    struct training t = {.n = FILES / 2, .world = 1, .ranks = 1, .workers = 2, .batch = 32};
    uint32_t positions[128];
    struct recognised found;
    struct builder *b = new_builder();
    char path[64], target[80];
    bool by_class = _i;

    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof(path), "full/class%02u/%05u.jpg", i % CLASSES, i);
        add_file(b, path, 512 + 1024 * (uint64_t)i, 100);
        snprintf(target, sizeof(target), "../../%s", path);
        snprintf(path, sizeof(path), "half/k%02u/%05u.jpg", i % CLASSES, i);
        if (!by_class && i % CLASSES < CLASSES / 2)
            add_symlink(b, path, target);
    }
    for (unsigned i = 0; by_class && i < CLASSES / 2; i++) {
        snprintf(path, sizeof(path), "half/k%02u", i);
        snprintf(target, sizeof(target), "../full/class%02u", i);
        add_symlink(b, path, target);
    }
    struct index *whole = tree;
    struct folder_files *all = train;
    tree = build(b, &tar_header);
    ck_assert_int_eq(
        folder_files_new(tree, position_of(tree, "half"), FOLDER_CLASSES, true, FILES, &train),
        0);
    ck_assert_uint_eq(folder_files_count(train), FILES / 2);
    first_reads(&t, 3, positions, 128);
    ck_assert_int_eq(try(positions, 128, 0, &found), 0);
    ck_assert_uint_eq(found.epoch, 3);
    ck_assert_uint_eq(found.directory, position_of(tree, "half"));
    drop(&found);
    folder_files_free(train);
    index_close(tree);
    tree = whole;
    train = all;
}
END_TEST

START_TEST(a_search_ends_when_it_is_told_to)
{
    static const _Atomic bool stop = true;
    struct training t = {.n = FILES, .world = 1, .ranks = 1, .workers = 1, .batch = 32};
    uint32_t positions[64];
    struct recognised found;

    first_reads(&t, 0, positions, 64);
    ck_assert_int_eq(try_until(&stop, positions, 64, 0, &found), -ECANCELED);
}
END_TEST

START_TEST(other_files_between_do_not_hurt)
{
    struct training t = {.n = FILES, .world = 1, .ranks = 1, .workers = 2, .batch = 16};
    uint32_t positions[64];
    struct recognised found;

    first_reads(&t, 5, positions, 64);
    for (unsigned i = 0; i < 64; i += 8)
        positions[i] = position_of(tree, "data/train/class03/about.txt");
    for (unsigned i = 1; i < 64; i += 16)
        positions[i] = position_of(tree, "data/flat/00007.bin");
    ck_assert_int_eq(try(positions, 64, 0, &found), 0);
    ck_assert_uint_eq(found.epoch, 5);
    drop(&found);
}
END_TEST

START_TEST(all_files_of_a_flat_directory)
{
    struct permutation *p;
    uint32_t positions[64];
    struct recognised found;

    ck_assert_int_eq(permutation_new(600, 9, NULL, &p), 0);
    for (unsigned i = 0; i < 64; i++) {
        char path[64];
        snprintf(path, sizeof(path), "data/flat/%05u.bin", (unsigned)permutation_at(p, i));
        positions[i] = position_of(tree, path);
    }
    ck_assert_int_eq(try(positions, 64, 0, &found), 0);
    ck_assert(found.kind == FOLDER_FLAT && !found.images_only);
    ck_assert_uint_eq(found.epoch, 9);
    ck_assert_uint_eq(folder_files_count(found.files), 600);
    drop(&found);
    permutation_free(p);
}
END_TEST

START_TEST(another_seed_is_not_recognised)
{
    struct training t = {
        .n = FILES, .world = 1, .ranks = 1, .workers = 1, .batch = 8, .seed = 1000003};
    uint32_t positions[64];
    struct recognised found;

    first_reads(&t, 0, positions, 64);
    ck_assert_int_eq(try(positions, 64, 0, &found), -ENOENT);
    ck_assert_int_eq(try(positions, 15, 1000003, &found), -EINVAL);
    ck_assert_int_eq(try(positions, 64, 1000003, &found), 0);
    drop(&found);
}
END_TEST

/* Thousands of permutations are looked at in each attempt; none of them is taken by chance. */
START_TEST(random_reads_are_never_recognised)
{
    unsigned seed = 1;

    for (unsigned round = 0; round < 4; round++) {
        uint32_t positions[512];
        struct recognised found;
        unsigned count = 16u << 2 * round % 6;
        for (unsigned i = 0; i < count; i++)
            positions[i] = folder_files_at(train, (unsigned)rand_r(&seed) % FILES);
        ck_assert_int_eq(try(positions, count, round, &found), -ENOENT);
    }
}
END_TEST

START_TEST(a_scan_is_no_shuffle)
{
    uint32_t positions[256];
    struct recognised found;

    for (unsigned i = 0; i < 256; i++)
        positions[i] = folder_files_at(train, 40 + i);
    ck_assert_int_eq(try(positions, 256, 0, &found), -ENOENT);
}
END_TEST

START_TEST(too_many_files_for_the_memory_are_said)
{
    const struct ahead_options options = {
        .index = tree, .root = INDEX_ROOT, .most_bytes = 8 * FILES - 8};
    struct training t = {.n = FILES, .world = 1, .ranks = 1, .workers = 1, .batch = 8};
    uint32_t positions[64];
    struct recognised found;
    struct recogniser *r;

    first_reads(&t, 0, positions, 64);
    ck_assert_int_eq(recogniser_new(&options, NULL, &r), 0);
    ck_assert_int_eq(recogniser_try(r, positions, 64, &found), -E2BIG);
    recogniser_free(r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recognise");
    TCase *c = tcase_create("recognise");
    tcase_set_timeout(c, 120);
    tcase_add_unchecked_fixture(c, make_tree, free_tree);
    tcase_add_test(c, one_reader_is_recognised_by_sixteen_reads);
    tcase_add_test(c, workers_and_ranks_are_recognised_within_64_reads_of_each_rank);
    tcase_add_loop_test(c, folders_of_links_are_recognised, 0, 2);
    tcase_add_test(c, a_search_ends_when_it_is_told_to);
    tcase_add_test(c, other_files_between_do_not_hurt);
    tcase_add_test(c, all_files_of_a_flat_directory);
    tcase_add_test(c, another_seed_is_not_recognised);
    tcase_add_test(c, random_reads_are_never_recognised);
    tcase_add_test(c, a_scan_is_no_shuffle);
    tcase_add_test(c, too_many_files_for_the_memory_are_said);
    suite_add_tcase(s, c);
    return run_suite(s);
}
