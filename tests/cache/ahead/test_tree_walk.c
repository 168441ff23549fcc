/* What counts as a walk through the tree, and which directories are listed ahead of it. */
#include "index_helper.h"
#include "suite.h"
#include "tree_walk.h"

static struct index *index_of_tree;
static struct tree_walk walk;
static struct tree_walk_trail trail;

static uint32_t at(const char *path)
{
    return position_of(index_of_tree, path);
}

/* A mount that only notes what is listed, and a reader that comes when it is waited for. */
static struct {
    struct mount_readers readers;
    uint32_t listed[256];
    unsigned count;
    const uint32_t *reader; /* what it lists next, one a wait; 0: it rests */
    unsigned waits;
    bool names_only; /* from the first listing on */
    unsigned pieces; /* that a directory's listing comes in */
    unsigned left;   /* of the open one */
} mount;

static bool mount_open(void *ctx, uint32_t directory, uint32_t skip)
{
    (void)ctx;
    ck_assert_uint_eq(skip, 0);
    ck_assert_uint_lt(mount.count, 256);
    mount.listed[mount.count++] = directory;
    mount.left = mount.pieces;
    return true;
}

static uint32_t mount_list(void *ctx, size_t buffer_bytes)
{
    (void)ctx;
    ck_assert_uint_le(buffer_bytes, MOUNT_FETCHER_LIST_BYTES);
    if (mount.names_only)
        tree_walk_saw_names_only(&walk);
    mount.readers.now_ns += 100000000; /* without a request of a reader */
    return mount.left ? mount.left-- : 0;
}

static void mount_close(void *ctx)
{
    (void)ctx;
}

static struct mount_readers mount_look(void *ctx)
{
    (void)ctx;
    return mount.readers;
}

static void mount_wait(void *ctx, _Atomic uint32_t *word, uint32_t value, uint64_t most_ns)
{
    (void)ctx;
    mount.waits++;
    ck_assert_ptr_eq(word, &trail.steps);
    ck_assert_uint_eq(*word, value);
    ck_assert_uint_gt(most_ns, 0);
    if (mount.reader && *mount.reader) {
        tree_walk_saw_listing(&walk, *mount.reader++);
        mount.readers.last_request_ns = mount.readers.now_ns;
    }
}

static const struct mount_fetcher fetcher = {
    .open = mount_open,
    .list = mount_list,
    .close = mount_close,
    .readers = mount_look,
    .wait = mount_wait,
};

static enum mount_fetch run(void)
{
    mount.readers.last_request_ns = mount.readers.now_ns;
    return tree_walk_run(&walk, &fetcher, NULL);
}

static void begin(const char *root)
{
    memset(&mount, 0, sizeof(mount));
    memset(&trail, 0, sizeof(trail));
    tree_walk_init(&walk, index_of_tree, at(root), &trail);
    trail.at = at(root);
}

static void use(struct builder *b)
{
    index_close(index_of_tree);
    index_of_tree = build(b, &tar_header);
    begin("");
}

static void setup(void)
{
    struct builder *b = new_builder();

    for (const char *const *path =
             (const char *const[]){"a", "a/x", "a/x/deep", "a/y", "b", "c", "c/last", NULL};
         *path; path++)
        add_dir(b, *path, 0755);
    add_file(b, "a/x/deep/file", 1024, 10);
    add_file(b, "b/file", 2048, 10);
    add_file(b, "ahead", 4096, 10);
    use(b);
}

static void teardown(void)
{
    index_close(index_of_tree);
    index_of_tree = NULL;
}

/* Directories d000, d001 and so on beside one another. */
static void make_row(unsigned count, unsigned files)
{
    struct builder *b = new_builder();
    char path[32];

    for (unsigned i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "d%03u", i);
        add_dir(b, path, 0755);
        for (unsigned k = 0; k < files; k++) {
            snprintf(path, sizeof(path), "d%03u/%05u", i, k);
            add_file(b, path, 512, 1);
        }
    }
    use(b);
}

static bool follows(const char *from, const char *to)
{
    tree_walk_saw_listing(&walk, at(from));
    walk.in_order = 0;
    tree_walk_saw_listing(&walk, at(to));
    return walk.in_order == 1;
}

/* What it lists ahead of a reader that begins at `root`. */
static void check_listed(const char *root, const char *const *paths)
{
    begin(root);
    ck_assert_int_eq(run(), MOUNT_FETCH_DONE);
    for (unsigned i = 0; i < mount.count; i++, paths++)
        ck_assert_msg(*paths && mount.listed[i] == at(*paths), "place %u", i);
    ck_assert_ptr_null(*paths);
}

START_TEST(each_directory_comes_before_what_is_in_it)
{
    /* The reader is about to list "a"; "a/y" is left for it. */
    check_listed("", (const char *const[]){"a/x", "a/x/deep", "b", "c", "c/last", NULL});
}
END_TEST

START_TEST(a_walk_ends_with_its_root)
{
    check_listed("a", (const char *const[]){"a/x/deep", "a/y", NULL});
    check_listed("b", (const char *const[]){NULL});
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
    ck_assert(follows("d000", "d001"));
    ck_assert(follows("d000", "d064"));
    ck_assert(!follows("d000", "d065"));
}
END_TEST

START_TEST(four_directories_in_order_are_a_walk)
{
    make_row(20, 0);
    tree_walk_saw_listing(&walk, at("d010"));
    walk.in_order = 0;
    for (uint32_t i = 1; i <= 3; i++)
        ck_assert(!tree_walk_saw_listing(&walk, at("d010") + i));
    ck_assert(tree_walk_saw_listing(&walk, at("d014")));
    ck_assert(!tree_walk_saw_listing(&walk, at("d003")));
    ck_assert(!tree_walk_saw_listing(&walk, at("d004")));
}
END_TEST

START_TEST(after_a_false_one_it_takes_twice_as_many)
{
    make_row(20, 0);
    tree_walk_ended(&walk, MOUNT_FETCH_PAUSED);
    tree_walk_saw_listing(&walk, at("d000"));
    walk.in_order = 0;
    for (uint32_t i = 1; i <= 7; i++)
        ck_assert(!tree_walk_saw_listing(&walk, at("d000") + i));
    ck_assert(tree_walk_saw_listing(&walk, at("d008")));
    tree_walk_ended(&walk, MOUNT_FETCH_DONE);
    ck_assert_uint_eq(walk.wanted, 8);
    for (unsigned i = 0; i < 20; i++)
        tree_walk_ended(&walk, MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(walk.wanted, 1024);
}
END_TEST

START_TEST(without_attributes_there_is_no_walk)
{
    make_row(20, 0);
    tree_walk_saw_names_only(&walk);
    for (uint32_t i = 0; i < 20; i++)
        ck_assert(!tree_walk_saw_listing(&walk, at("d000") + i));
    ck_assert_int_eq(run(), MOUNT_FETCH_FULL);
    ck_assert_uint_eq(mount.count, 0);
}
END_TEST

START_TEST(it_waits_in_front_of_a_reader_that_rests)
{
    make_row(100, 0);
    ck_assert_int_eq(run(), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.waits, 1);
    /* Places 1 to 30 of the way: all but the first and one in four. */
    ck_assert_uint_eq(mount.count, 30 - 1 - 7);
    ck_assert_uint_eq(mount.listed[mount.count - 1], at("d029"));
}
END_TEST

START_TEST(it_goes_on_as_the_reader_does)
{
    uint32_t reader[8];

    make_row(100, 0);
    for (uint32_t i = 0; i < 7; i++) /* it lists what was left for it */
        reader[i] = at("d000") + 3 + 4 * i;
    reader[7] = 0;
    mount.reader = reader;
    ck_assert_int_eq(run(), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.waits, 8);
    ck_assert_uint_eq(mount.listed[mount.count - 1], at("d057"));
}
END_TEST

START_TEST(a_reader_that_overtakes_is_followed)
{
    uint32_t jump[2] = {0};

    make_row(100, 0);
    jump[0] = at("d060");
    mount.reader = jump;
    ck_assert_int_eq(run(), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.waits, 2);
    ck_assert_uint_eq(mount.listed[22], at("d062"));
}
END_TEST

START_TEST(it_ends_when_the_reader_leaves_the_path)
{
    uint32_t jump[2] = {0};

    make_row(100, 0);
    begin("");
    trail.at = at("d050");
    jump[0] = at("d001");
    mount.reader = jump;
    ck_assert_int_eq(run(), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.waits, 1);
}
END_TEST

START_TEST(full_directories_count_by_their_entries)
{
    make_row(20, 5000);
    ck_assert_int_eq(run(), MOUNT_FETCH_PAUSED);
    ck_assert_uint_eq(mount.count, 4); /* d001, d002, d004, d005: 20,000 entries */
    ck_assert_uint_eq(mount.listed[3], at("d005"));
}
END_TEST

START_TEST(a_listing_ends_when_readers_rest)
{
    make_row(10, 0);
    mount.pieces = 1000;
    ck_assert_int_eq(run(), MOUNT_FETCH_DONE);
    ck_assert_uint_eq(mount.left, 1000); /* of the last one not even the first piece */
    ck_assert_uint_eq(mount.readers.now_ns, 300000000);
}
END_TEST

START_TEST(it_ends_when_listings_carry_no_more_attributes)
{
    make_row(100, 0);
    mount.names_only = true;
    ck_assert_int_eq(run(), MOUNT_FETCH_FULL);
    ck_assert_uint_eq(mount.count, 1);
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
    tcase_add_test(tc, without_attributes_there_is_no_walk);
    tcase_add_test(tc, it_waits_in_front_of_a_reader_that_rests);
    tcase_add_test(tc, it_goes_on_as_the_reader_does);
    tcase_add_test(tc, a_reader_that_overtakes_is_followed);
    tcase_add_test(tc, it_ends_when_the_reader_leaves_the_path);
    tcase_add_test(tc, full_directories_count_by_their_entries);
    tcase_add_test(tc, a_listing_ends_when_readers_rest);
    tcase_add_test(tc, it_ends_when_listings_carry_no_more_attributes);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
