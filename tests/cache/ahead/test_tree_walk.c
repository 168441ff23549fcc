/* What counts as a walk through the tree, and which directories are listed ahead of it. */
#include "index_helper.h"
#include "suite.h"
#include "chooser.h"

#define MS UINT64_C(1000000)

static struct index *index_of_tree;
static struct ahead_options options;
static void *walk;
static uint64_t now_ns;

static uint32_t at(const char *path)
{
    return position_of(index_of_tree, path);
}

/* What was listed, in order, and in how many batches. */
static struct {
    struct {
        uint32_t directory;
        uint64_t from, count;
    } listed[256];
    unsigned count, batches;
} mount;

/* Names of a directory from its entry `skip` on. */
static void see(uint32_t directory, uint32_t skip, bool names_only, bool own)
{
    uint32_t first, count;

    ck_assert_int_eq(index_children(index_of_tree, directory, &first, &count), 0);
    const struct observation o = {.time_ns = now_ns,
                                  .kind = OBSERVED_LISTING,
                                  .position = directory,
                                  .offset = first + skip,
                                  .len = count - skip,
                                  .names_only = names_only,
                                  .own = own};
    ck_assert(!tree_walk_chooser.observe(walk, &o, false));
}

static void saw(uint32_t directory)
{
    see(directory, 0, false, false);
}

static bool runs(void)
{
    return !tree_walk_chooser.is_lost(walk, now_ns);
}

/* One batch. False: nothing is wanted for now. */
static bool list_some(void)
{
    struct reader_want wants[64];
    size_t n = runs() ? tree_walk_chooser.take(walk, wants, 64) : 0;

    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_lt(mount.count, 256);
        mount.listed[mount.count].directory = wants[i].position;
        mount.listed[mount.count].from = wants[i].offset;
        mount.listed[mount.count++].count = wants[i].len;
    }
    mount.batches += n > 0;
    if (n > 0)
        tree_walk_chooser.finished(walk, wants, n, 0);
    return n > 0;
}

static void list_all(void)
{
    while (list_some())
        ;
}

static void check_last(const char *path)
{
    ck_assert_uint_gt(mount.count, 0);
    ck_assert_uint_eq(mount.listed[mount.count - 1].directory, at(path));
}

static void end(void)
{
    tree_walk_chooser.free(walk);
    walk = NULL;
}

static void begin(const char *root)
{
    end();
    memset(&mount, 0, sizeof(mount));
    now_ns = 1000 * MS;
    options = (struct ahead_options){.index = index_of_tree, .root = at(root)};
    ck_assert_int_eq(tree_walk_chooser.make(&options, &walk), 0);
}

static void use(struct builder *b)
{
    index_close(index_of_tree);
    index_of_tree = build(b, &tar_header);
    begin("");
}

/* With a file in each of its directories, as empty ones are not listed. */
static void make_tree(const char *const *folders)
{
    struct builder *b = new_builder();
    char path[32];

    for (; *folders; folders++) {
        add_dir(b, *folders, 0755);
        snprintf(path, sizeof(path), "%s/file", *folders);
        add_file(b, path, 1024, 10);
    }
    add_file(b, "ahead", 4096, 10);
    use(b);
}

static void setup(void)
{
    make_tree((const char *const[]){"A0", "A1", "A2", "A3", "a", "a/x", "a/x/deep", "a/y", "b",
                                    "c", "c/last", "z0", "z1", "z2", NULL});
}

static void teardown(void)
{
    end();
    index_close(index_of_tree);
    index_of_tree = NULL;
}

/* Directories d000, d001 and so on beside one another, and three behind them. */
static void make_row(unsigned count, unsigned files)
{
    struct builder *b = new_builder();
    char path[32];

    for (unsigned i = 0; i < count + 3; i++) {
        snprintf(path, sizeof(path), i < count ? "d%03u" : "z%u", i < count ? i : i - count);
        add_dir(b, path, 0755);
        for (unsigned k = 0; k < files; k++) {
            snprintf(path, sizeof(path), i < count ? "d%03u/%05u" : "z%u/%05u",
                     i < count ? i : i - count, k);
            add_file(b, path, 512, 1);
        }
    }
    use(b);
}

/* The reader has listed d000 to d003. */
static void walk_row(void)
{
    saw(INDEX_ROOT);
    for (uint32_t i = 0; i < 4; i++)
        saw(at("d000") + i);
    ck_assert(runs());
}

/* Does the step count? Then it is a walk with three that do. */
static bool follows(const char *from, const char *to)
{
    begin("");
    saw(at(from));
    saw(at(from));
    saw(at(to));
    saw(at("z0"));
    saw(at("z1"));
    ck_assert(!runs());
    saw(at("z2"));
    return runs();
}

/* Exactly these were listed. */
static void check_listed(const char *const *paths)
{
    for (unsigned i = 0; i < mount.count; i++, paths++)
        ck_assert_msg(*paths && mount.listed[i].directory == at(*paths), "place %u", i);
    ck_assert_ptr_null(*paths);
}

START_TEST(each_directory_comes_before_what_is_in_it)
{
    saw(INDEX_ROOT);
    for (uint32_t i = 0; i < 4; i++)
        saw(at("A0") + i);
    list_all();
    /* The reader is about to list "a"; "a/y" and "z1" are left for it. */
    check_listed(
        (const char *const[]){"a/x", "a/x/deep", "b", "c", "c/last", "z1", "z2", NULL});
    ck_assert(!runs());
}
END_TEST

START_TEST(a_walk_ends_with_its_root)
{
    make_tree((const char *const[]){"r", "r/0", "r/1", "r/2", "r/3", "r/4", "r/5", "s", NULL});
    begin("r");
    saw(at("r"));
    for (uint32_t i = 0; i < 4; i++)
        saw(at("r/0") + i);
    list_all();
    check_listed((const char *const[]){"r/5", NULL});
}
END_TEST

START_TEST(the_next_directories_are_on_the_way)
{
    ck_assert(follows("", "a"));
    ck_assert(follows("a", "a/x"));
    ck_assert(follows("a/x/deep", "a/y"));
    ck_assert(follows("a/x/deep", "b")); /* a/y was in the kernel's cache */
    ck_assert(follows("a", "c"));
}
END_TEST

START_TEST(back_or_into_the_depth_is_not)
{
    ck_assert(!follows("b", "a"));
    ck_assert(!follows("a/x", "a"));
    ck_assert(!follows("", "a/x"));
    ck_assert(!follows("a", "c/last"));
    ck_assert(!follows("a", "a"));
}
END_TEST

START_TEST(a_far_one_of_the_same_directory_is_not)
{
    make_row(100, 0);
    for (uint32_t distance = 64; distance <= 65; distance++) {
        begin("");
        saw(at("d000"));
        saw(at("d000"));
        for (uint32_t i = 0; i < 4; i++)
            saw(at("d000") + distance + i);
        ck_assert(runs() == (distance == 64));
    }
}
END_TEST

START_TEST(four_directories_in_order_are_a_walk)
{
    make_row(20, 1);
    saw(at("d010"));
    saw(at("d010"));
    for (uint32_t i = 1; i <= 3; i++) {
        saw(at("d010") + i);
        ck_assert(!runs());
    }
    saw(at("d014"));
    ck_assert(runs());
    saw(at("d003"));
    ck_assert(!runs());
}
END_TEST

START_TEST(after_a_false_one_it_takes_twice_as_many)
{
    make_row(20, 1);
    walk_row();
    saw(at("d000"));
    for (uint32_t i = 1; i <= 8; i++) {
        ck_assert(!runs());
        saw(at("d000") + i);
    }
    ck_assert(runs());
}
END_TEST

START_TEST(after_a_whole_one_it_takes_as_many)
{
    make_row(8, 1);
    walk_row();
    list_all();
    ck_assert(!runs());
    saw(at("d000"));
    walk_row();
}
END_TEST

START_TEST(names_alone_are_no_walk)
{
    make_row(20, 1);
    for (uint32_t i = 0; i < 20; i++) {
        see(at("d000") + i, 0, i == 0, false);
        ck_assert(!runs());
    }
}
END_TEST

START_TEST(listings_of_our_own_and_their_rests_are_no_steps)
{
    make_row(20, 5);
    for (uint32_t i = 0; i < 20; i++) {
        see(at("d000") + i, 0, false, true);
        see(at("d000") + i, 2, false, false);
        ck_assert(!runs());
    }
}
END_TEST

START_TEST(it_waits_in_front_of_a_reader_that_rests)
{
    make_row(100, 1);
    walk_row();
    list_all();
    /* Places 1 to 30 of the way: all but the first and one in four. */
    ck_assert_uint_eq(mount.count, 30 - 1 - 7);
    check_last("d033");
    now_ns += 299 * MS;
    ck_assert(runs());
    now_ns += 2 * MS;
    ck_assert(!runs());
}
END_TEST

START_TEST(it_goes_on_as_the_reader_does)
{
    make_row(100, 1);
    walk_row();
    list_all();
    for (uint32_t i = 1; i <= 7; i++) { /* it lists what was left for it */
        saw(at("d003") + 4 * i);
        list_all();
    }
    check_last("d061");
}
END_TEST

START_TEST(a_reader_that_overtakes_is_followed_and_gets_more)
{
    make_row(100, 1);
    walk_row();
    list_all();
    saw(at("d060"));
    list_all();
    ck_assert_uint_eq(mount.listed[22].directory, at("d062"));
    ck_assert_uint_eq(mount.listed[23].directory, at("d064"));
    /* Places 1 to 30 of the way: all but the first and one in three. */
    ck_assert_uint_eq(mount.count, 22 + 30 - 1 - 10);
}
END_TEST

START_TEST(full_directories_count_by_their_entries)
{
    make_row(20, 5000);
    walk_row();
    list_all();
    check_last("d009"); /* d005, d006, d008, d009: 20,000 entries */
    uint64_t next = 0, sum = 0;
    for (unsigned i = 0; i < mount.count; i++) {
        if (next == 5000)
            next = 0;
        ck_assert_uint_eq(mount.listed[i].from, next);
        ck_assert_uint_le(mount.listed[i].count, 1024);
        next += mount.listed[i].count;
        sum += mount.listed[i].count;
    }
    ck_assert_uint_eq(sum, 20000);
}
END_TEST

START_TEST(a_listing_ends_when_readers_rest)
{
    make_row(20, 5000);
    walk_row();
    ck_assert(list_some());
    now_ns += 301 * MS;
    ck_assert(!list_some());
}
END_TEST

START_TEST(one_batch_is_listed_at_a_time)
{
    struct reader_want wants[64];

    make_row(100, 1);
    walk_row();
    size_t n = tree_walk_chooser.take(walk, wants, 64);
    ck_assert_uint_gt(n, 0);
    ck_assert_uint_eq(tree_walk_chooser.take(walk, wants, 64), 0);
    tree_walk_chooser.finished(walk, wants, n, 0);
    ck_assert_uint_gt(tree_walk_chooser.take(walk, wants, 64), 0);
}
END_TEST

START_TEST(it_ends_when_listings_carry_no_more_attributes)
{
    make_row(100, 1);
    walk_row();
    ck_assert(list_some());
    see(at("d005"), 0, true, true);
    see(at("d004"), 0, true, false);
    ck_assert(!list_some());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tree_walk");
    TCase *tc = tcase_create("tree_walk");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_directory_comes_before_what_is_in_it);
    tcase_add_test(tc, a_walk_ends_with_its_root);
    tcase_add_test(tc, the_next_directories_are_on_the_way);
    tcase_add_test(tc, back_or_into_the_depth_is_not);
    tcase_add_test(tc, a_far_one_of_the_same_directory_is_not);
    tcase_add_test(tc, four_directories_in_order_are_a_walk);
    tcase_add_test(tc, after_a_false_one_it_takes_twice_as_many);
    tcase_add_test(tc, after_a_whole_one_it_takes_as_many);
    tcase_add_test(tc, names_alone_are_no_walk);
    tcase_add_test(tc, listings_of_our_own_and_their_rests_are_no_steps);
    tcase_add_test(tc, it_waits_in_front_of_a_reader_that_rests);
    tcase_add_test(tc, it_goes_on_as_the_reader_does);
    tcase_add_test(tc, a_reader_that_overtakes_is_followed_and_gets_more);
    tcase_add_test(tc, full_directories_count_by_their_entries);
    tcase_add_test(tc, a_listing_ends_when_readers_rest);
    tcase_add_test(tc, one_batch_is_listed_at_a_time);
    tcase_add_test(tc, it_ends_when_listings_carry_no_more_attributes);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
