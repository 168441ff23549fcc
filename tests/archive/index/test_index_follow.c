/*
 * Paths through symbolic links: links are followed within the archive and never out of it, and
 * loops end.
 */
#include "index_helper.h"

#include "suite.h"

static struct index *index_of_links(void)
{
    struct builder *b = new_builder();
    add_file(b, "dir/sub/file", 512, 5);
    add_file(b, "top", 1536, 3);
    add_symlink(b, "to_dir", "dir");
    add_symlink(b, "to_sub", "./to_dir//sub/");
    add_symlink(b, "dir/up", "../top");
    add_symlink(b, "dir/sub/two_up", "../../to_sub/file");
    add_symlink(b, "absolute", "/top");
    add_symlink(b, "out", "../elsewhere");
    add_symlink(b, "dir/out_and_in", "../../x/top");
    add_symlink(b, "dangling", "nowhere");
    add_symlink(b, "loop_a", "loop_b");
    add_symlink(b, "loop_b", "loop_a");
    add_symlink(b, "self", "self/self/self");
    return build(b, &tar_header);
}

static int resolve(const char *path, uint32_t *ret_position)
{
    struct index *index = index_of_links();
    int r = index_follow(index, INDEX_ROOT, path, NULL, ret_position);
    index_close(index);
    return r;
}

static void leads(const char *path, const char *to)
{
    struct index *index = index_of_links();
    uint32_t position = UINT32_MAX;
    int r = index_follow(index, INDEX_ROOT, path, NULL, &position);
    ck_assert_msg(r == 0, "%s: %d", path, r);
    ck_assert_msg(position == position_of(index, to), "%s does not lead to %s", path, to);
    index_close(index);
}

START_TEST(paths_lead_through_links)
{
    leads("", "");
    leads("/", "");
    leads("top", "top");
    leads("//dir/./sub//file", "dir/sub/file");
    leads("to_dir", "dir");
    leads("to_dir/", "dir");
    leads("to_dir/sub/file", "dir/sub/file");
    leads("to_sub/file", "dir/sub/file");
    leads("dir/up", "top");
    leads("to_sub/two_up", "dir/sub/file");
}
END_TEST

START_TEST(dot_dot_is_the_parent_of_where_the_walk_is)
{
    leads("dir/sub/..", "dir");
    leads("to_sub/..", "dir");
    leads("to_sub/../..", "");
    leads("dir/../top", "top");
}
END_TEST

START_TEST(no_path_leads_out_of_the_archive)
{
    static const char *const paths[] = {"..",  "../top",         "dir/../../top",  "absolute",
                                        "out", "dir/out_and_in", "to_sub/../../.."};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        uint32_t position = 77;
        ck_assert_msg(resolve(paths[i], &position) == -EXDEV, "%s", paths[i]);
        ck_assert_uint_eq(position, 77);
    }
}
END_TEST

START_TEST(paths_that_lead_nowhere_say_why)
{
    uint32_t position;
    ck_assert_int_eq(resolve("absent", &position), -ENOENT);
    ck_assert_int_eq(resolve("dangling", &position), -ENOENT);
    ck_assert_int_eq(resolve("top/", &position), -ENOTDIR);
    ck_assert_int_eq(resolve("top/x", &position), -ENOTDIR);
    ck_assert_int_eq(resolve("top/..", &position), -ENOTDIR);
    ck_assert_int_eq(resolve("loop_a", &position), -ELOOP);
    ck_assert_int_eq(resolve("self", &position), -ELOOP);
}
END_TEST

/* As many as the kernel follows, and one more. */
START_TEST(forty_links_are_followed)
{
    struct builder *b = new_builder();
    char name[16], target[16] = "file";
    uint32_t position;
    add_file(b, "file", 512, 5);
    for (unsigned i = 1; i <= 41; i++) {
        snprintf(name, sizeof(name), "link%u", i);
        add_symlink(b, name, target);
        strcpy(target, name);
    }
    struct index *index = build(b, &tar_header);
    ck_assert_int_eq(index_follow(index, INDEX_ROOT, "link40", NULL, &position), 0);
    ck_assert_uint_eq(position, position_of(index, "file"));
    ck_assert_int_eq(index_follow(index, INDEX_ROOT, "link41", NULL, &position), -ELOOP);
    index_close(index);
}
END_TEST

/* A walk follows one link after another, and its way counts them all. */
START_TEST(a_way_goes_on_from_an_entry)
{
    struct index *index = index_of_links();
    struct index_way way = {0};
    uint32_t position = position_of(index, "to_sub");
    ck_assert_int_eq(index_follow(index, position, "", &way, &position), 0);
    ck_assert_uint_eq(position, position_of(index, "dir/sub"));
    ck_assert_uint_eq(way.links, 2);
    ck_assert_int_eq(index_follow(index, position, "two_up", &way, &position), 0);
    ck_assert_uint_eq(position, position_of(index, "dir/sub/file"));
    ck_assert_uint_eq(way.links, 5);
    ck_assert_int_eq(index_follow(index, position, "x", &way, &position), -ENOTDIR);
    way.links = 39;
    position = position_of(index, "to_sub");
    ck_assert_int_eq(index_follow(index, position, "file", &way, &position), -ELOOP);
    way.links = 38;
    ck_assert_int_eq(index_follow(index, position, "file", &way, &position), 0);
    ck_assert_int_eq(index_follow(index, UINT32_MAX, "", NULL, &position), -EINVAL);
    index_close(index);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("index_follow");
    TCase *c = tcase_create("index_follow");
    tcase_add_test(c, paths_lead_through_links);
    tcase_add_test(c, dot_dot_is_the_parent_of_where_the_walk_is);
    tcase_add_test(c, no_path_leads_out_of_the_archive);
    tcase_add_test(c, paths_that_lead_nowhere_say_why);
    tcase_add_test(c, forty_links_are_followed);
    tcase_add_test(c, a_way_goes_on_from_an_entry);
    suite_add_tcase(s, c);
    return run_suite(s);
}
