/* The order in which a walk reaches directories. */
#include "index_helper.h"
#include "suite.h"
#include "walk.h"

static struct index *index_of_tree;

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
    index_of_tree = build(b, &tar_header);
}

static void teardown(void)
{
    index_close(index_of_tree);
}

static uint32_t at(const char *path)
{
    return position_of(index_of_tree, path);
}

static void check_walk(const char *root, const char *const *paths)
{
    uint32_t directory = at(root), next;

    for (; *paths; paths++, directory = next) {
        ck_assert(walk_next(index_of_tree, at(root), directory, &next));
        ck_assert_msg(next == at(*paths), "not %s", *paths);
    }
    ck_assert(!walk_next(index_of_tree, at(root), directory, &next));
}

static bool follows(const char *from, const char *to)
{
    return walk_is_on_the_way(index_of_tree, INDEX_ROOT, at(from), at(to));
}

START_TEST(each_directory_comes_before_what_is_in_it)
{
    check_walk("",
               (const char *const[]){"a", "a/x", "a/x/deep", "a/y", "b", "c", "c/last", NULL});
}
END_TEST

START_TEST(a_walk_ends_with_its_root)
{
    check_walk("a", (const char *const[]){"a/x", "a/x/deep", "a/y", NULL});
    check_walk("b", (const char *const[]){NULL});
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
    struct builder *b = new_builder();
    char path[16];

    for (unsigned i = 0; i < 100; i++) {
        snprintf(path, sizeof(path), "d%02u", i);
        add_dir(b, path, 0755);
    }
    index_close(index_of_tree);
    index_of_tree = build(b, &tar_header);
    ck_assert(follows("d00", "d01"));
    ck_assert(follows("d00", "d64"));
    ck_assert(!follows("d00", "d65"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("walk");
    TCase *tc = tcase_create("walk");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_directory_comes_before_what_is_in_it);
    tcase_add_test(tc, a_walk_ends_with_its_root);
    tcase_add_test(tc, the_next_directories_are_on_the_way);
    tcase_add_test(tc, back_or_into_the_depth_is_not);
    tcase_add_test(tc, a_far_one_of_the_same_directory_is_not);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
