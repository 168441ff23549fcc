/*
 * What is chosen from a directory: by patterns, by a list of names, by shards.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "selection.h"
#include "suite.h"

/* ---- patterns ---- */

static bool excludes(const char *pattern, const char *path, bool is_folder)
{
    struct selection s = {.excludes = &pattern, .exclude_count = 1};
    return selection_excludes(&s, path, is_folder);
}

START_TEST(a_pattern_without_a_slash_is_matched_with_names)
{
    ck_assert(excludes("*.tmp", "a.tmp", false));
    ck_assert(excludes("*.tmp", "a/b/c.tmp", false));
    ck_assert(excludes(".git", "x/.git", true));
    ck_assert(excludes("[ab]?", "z/b1", false));
    ck_assert(!excludes("*.tmp", "a.tmp/b", false));
    ck_assert(!excludes("tmp", "a.tmp", false));
    ck_assert(excludes("*", "\xff\xfe", false));
    ck_assert(excludes("[a-]]b", "x/a]b", false) && excludes("a[b", "a[b", false));
    ck_assert(excludes("\\a\\*b", "a*b", false) && !excludes("a\\*b", "acb", false));
    ck_assert(!excludes("abc", "bc", false) && !excludes("?bc", "bc", false));
}
END_TEST

START_TEST(a_pattern_with_a_slash_is_matched_with_paths)
{
    ck_assert(excludes("val/x", "val/x", false));
    ck_assert(excludes("/val", "val", true));
    ck_assert(excludes("val/*.jpg", "val/a/b.jpg", false));
    ck_assert(excludes("*/cache/*", "a/cache/b", false));
    ck_assert(!excludes("/val", "train/val", true));
    ck_assert(!excludes("val/x", "train/val/x", false));
}
END_TEST

START_TEST(a_slash_at_the_end_means_directories)
{
    ck_assert(excludes("cache/", "a/cache", true));
    ck_assert(!excludes("cache/", "a/cache", false));
    ck_assert(excludes("/a/cache/", "a/cache", true));
    ck_assert(!excludes("/cache/", "a/cache", true));
}
END_TEST

/* ---- lists ---- */

static unsigned refused;

static int count_refused(void *ctx, const struct fault *what)
{
    ck_assert(what->member[0] && what->what[0]);
    refused++;
    return ctx ? -EPERM : 0;
}

static int read_list(const char *text, size_t len, bool nul, const char *root,
                     struct name_list **ret_list)
{
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(text, 1, len, file), len);
    rewind(file);
    refused = 0;
    int r = name_list_read(fileno(file), nul, root, count_refused, NULL, ret_list);
    fclose(file);
    return r;
}

/* All that the list selects: a slash behind a folder, a star for all of one. */
static void describe(const struct name_list *list, uint32_t number, const char *path,
                     char *text)
{
    struct listing listing;
    int r = name_list_children(list, number, strlen(path), &listing);
    ck_assert_int_ge(r, 0);
    if (r == 1) {
        strcat(text, "* ");
        return;
    }
    for (size_t i = 0; i < listing.count; i++) {
        const struct folder_name *n = &listing.at[i];
        char below[256];
        snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", n->name);
        sprintf(text + strlen(text), "%s%s ", below, n->type == DT_DIR ? "/" : "");
        if (n->type == DT_DIR)
            describe(list, n->number, below, text);
    }
    listing_free(&listing);
}

static void check_list(const char *names, size_t len, const char *expected)
{
    struct name_list *list;
    char text[1024] = "";
    ck_assert_int_eq(read_list(names, len, false, "/data/set", &list), 0);
    describe(list, 0, "", text);
    ck_assert_str_eq(text, expected);
    name_list_free(list);
}

#define LIST(text) text, sizeof(text) - 1

START_TEST(names_are_sorted_and_bring_their_directories)
{
    check_list(LIST("b\na/y\na/x\n"), "a/ a/x a/y b ");
    check_list(LIST("a.b\na/b\na\x01"
                    "b\na/b\na"),
               "a/ a/b a\x01"
               "b a.b ");
    check_list(LIST("z/deep/er/file\nz/deep\n"), "z/ z/deep/ z/deep/er/ z/deep/er/file ");
    check_list(LIST(""), "");
    check_list(LIST("\n\n.\n./\n\n"), "* ");
    check_list(LIST(".\n"), "");
}
END_TEST

START_TEST(nul_separated_names_are_known_by_the_nul)
{
    check_list(LIST("new\nline\0other\0"), "new\nline other ");
    struct name_list *list;
    ck_assert_int_eq(read_list(LIST("one\nname"), true, NULL, &list), 0);
    ck_assert_uint_eq(name_list_count(list), 1);
    name_list_free(list);
}
END_TEST

START_TEST(a_slash_at_the_end_of_a_name_takes_all)
{
    check_list(LIST("a/\nb\na/x\na.c\n"), "a/ * a.c b ");
    check_list(LIST("a/b/\na\n"), "a/ a/b/ * ");
    check_list(LIST("a\na/\na/b"), "a/ * ");
}
END_TEST

START_TEST(names_in_other_forms_are_the_same)
{
    check_list(LIST("./a//b\n.//a/./b\n/data/set/a/b\n"), "a/ a/b ");
    ck_assert_uint_eq(refused, 0);
    check_list(LIST("/data/set\n/data/set/\n"), "* ");
}
END_TEST

START_TEST(names_that_lead_out_are_refused_by_name)
{
    check_list(LIST("../x\na/../b\n/etc/passwd\n/data/settle\n..\nok\n"), "ok ");
    ck_assert_uint_eq(refused, 5);
    check_list(LIST("..a\na../b\n...\n"), "... ..a a../ a../b ");
    ck_assert_uint_eq(refused, 0);
}
END_TEST

START_TEST(the_reports_error_ends_the_reading)
{
    struct name_list *list = NULL;
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    fputs("../x\n", file);
    rewind(file);
    ck_assert_int_eq(name_list_read(fileno(file), false, NULL, count_refused, &refused, &list),
                     -EPERM);
    fclose(file);
    ck_assert_ptr_null(list);
}
END_TEST

/* ---- shards ---- */

static void check_names(const char *output, uint32_t count, uint32_t number,
                        const char *expected)
{
    struct shard_names names;
    auto_free char *path = NULL;
    ck_assert_int_eq(shard_names_parse(output, count, &names), 0);
    ck_assert_int_eq(shard_name(&names, number, &path), 0);
    ck_assert_str_eq(path, expected);
    const char *slash = strrchr(path, '/');
    ck_assert(shard_names_match(&names, slash ? slash + 1 : path));
    shard_names_free(&names);
}

START_TEST(a_pattern_or_the_ending_gets_the_number)
{
    check_names("x.onepot.tar", 256, 7, "x-00007-of-00256.onepot.tar");
    check_names("d/x.onepot.tar.zst", 2, 1, "d/x-00001-of-00002.onepot.tar.zst");
    check_names("x.tar", 1, 0, "x-00000-of-00001.tar");
    check_names("x", 100000, 99999, "x-99999-of-100000");
    check_names(".tar", 2, 0, ".tar-00000-of-00002");
    check_names("x-%d.tar", 11, 10, "x-10.tar");
    check_names("d%5/x-%05d", 11, 10, "d%5/x-00010");
    check_names("100%x.tar", 2, 1, "100%x-00001-of-00002.tar");
    struct shard_names names;
    ck_assert_int_eq(shard_names_parse("x%d/y.tar", 2, &names), -EINVAL);
}
END_TEST

START_TEST(shards_are_known_by_their_names)
{
    struct shard_names names;
    ck_assert_int_eq(shard_names_parse("out/x.tar", 12, &names), 0);
    ck_assert(shard_names_match(&names, "x-00011-of-00012.tar"));
    ck_assert(shard_names_match(&names, "x-00000-of-00012.tar.abc234.partial"));
    ck_assert(!shard_names_match(&names, "x-00012-of-00012.tar"));
    ck_assert(!shard_names_match(&names, "x-0001-of-00012.tar"));
    ck_assert(!shard_names_match(&names, "x-0000a-of-00012.tar"));
    ck_assert(!shard_names_match(&names, "x-00000-of-00012.tar.partial"));
    ck_assert(!shard_names_match(&names, "x.tar"));
    ck_assert(!shard_names_match(&names, ""));
    shard_names_free(&names);
}
END_TEST

/* The hash is part of the format of a set of shards: others compute it as well. */
START_TEST(the_shard_of_a_path_never_changes)
{
    struct selection s = {.shards = 256};
    ck_assert_uint_eq(selection_shard(&s, "train/n01440764/n01440764_10026.JPEG", 36), 205);
    ck_assert_uint_eq(selection_shard(&s, "", 0), 194);
    s.shards = 1;
    ck_assert_uint_eq(selection_shard(&s, "a", 1), 0);
}
END_TEST

/* Of a directory with so many entries, of which each tenth is a directory. */
static void fill_listing(struct listing *listing, size_t count)
{
    char dir[] = "/tmp/onepot-selection-XXXXXX", name[24];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = count; i-- > 0;) {
        snprintf(name, sizeof(name), "f%03zu", i);
        ck_assert_int_eq(mknodat(fd, name, S_IFREG | 0600, 0), 0);
        if (i % 10 == 0)
            ck_assert(unlinkat(fd, name, 0) == 0 && mkdirat(fd, name, 0700) == 0);
    }
    ck_assert_int_eq(listing_read(fd, count - 1, listing), -E2BIG);
    listing_free(listing);
    ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
    ck_assert_int_eq(listing_read(fd, count, listing), 0);
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "f%03zu", i);
        ck_assert_int_eq(unlinkat(fd, name, i % 10 ? 0 : AT_REMOVEDIR), 0);
    }
    ck_assert_int_eq(rmdir(dir), 0);
}

START_TEST(ranks_share_files_and_all_see_directories)
{
    unsigned files = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct selection s = {.shards = 7, .rank = rank, .world = 4};
        struct selection_folder folder = {.path = "dir", .path_len = 3, .fd = -1};
        struct listing listing;
        unsigned directories = 0;
        fill_listing(&listing, 200);
        ck_assert_int_eq(selection_apply(&s, &folder, &listing), 0);
        for (size_t i = 0; i < listing.count; i++) {
            char path[32];
            int len = snprintf(path, sizeof(path), "dir/%s", listing.at[i].name);
            bool is_folder = listing.at[i].type == DT_DIR;
            directories += is_folder;
            files += !is_folder;
            ck_assert(is_folder || selection_shard(&s, path, (size_t)len) % s.world == rank);
            ck_assert(i == 0 || strcmp(listing.at[i - 1].name, listing.at[i].name) < 0);
        }
        ck_assert_uint_eq(directories, 20);
        listing_free(&listing);
    }
    ck_assert_uint_eq(files, 180);
}
END_TEST

START_TEST(the_name_of_a_source_is_no_part_of_what_patterns_see)
{
    const char *patterns[] = {"/f001", "src/f002"};
    struct selection s = {.excludes = patterns, .exclude_count = 2};
    struct selection_folder folder = {.path = "src", .path_len = 3, .root_len = 3, .fd = -1};
    struct listing listing;
    fill_listing(&listing, 3);
    ck_assert_int_eq(selection_apply(&s, &folder, &listing), 0);
    ck_assert_uint_eq(listing.count, 2);
    ck_assert_str_eq(listing.at[1].name, "f002");
    listing_free(&listing);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("selection");
    TCase *tcase = tcase_create("selection");
    tcase_add_test(tcase, a_pattern_without_a_slash_is_matched_with_names);
    tcase_add_test(tcase, a_pattern_with_a_slash_is_matched_with_paths);
    tcase_add_test(tcase, a_slash_at_the_end_means_directories);
    tcase_add_test(tcase, names_are_sorted_and_bring_their_directories);
    tcase_add_test(tcase, nul_separated_names_are_known_by_the_nul);
    tcase_add_test(tcase, a_slash_at_the_end_of_a_name_takes_all);
    tcase_add_test(tcase, names_in_other_forms_are_the_same);
    tcase_add_test(tcase, names_that_lead_out_are_refused_by_name);
    tcase_add_test(tcase, the_reports_error_ends_the_reading);
    tcase_add_test(tcase, a_pattern_or_the_ending_gets_the_number);
    tcase_add_test(tcase, shards_are_known_by_their_names);
    tcase_add_test(tcase, the_shard_of_a_path_never_changes);
    tcase_add_test(tcase, ranks_share_files_and_all_see_directories);
    tcase_add_test(tcase, the_name_of_a_source_is_no_part_of_what_patterns_see);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
