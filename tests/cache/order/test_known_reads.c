/*
 * Orders of reads: the files of a folder as training code numbers them, their shuffles, and
 * lists that somebody wrote.
 */
#include <stdarg.h>

#include "index_helper.h"
#include "known_reads.h"
#include "permutation.h"
#include "suite.h"

static struct index *make_index(const char *first, ...)
{
    struct builder *b = new_builder();
    uint64_t offset = 512;
    va_list ap;

    va_start(ap, first);
    for (const char *path = first; path; path = va_arg(ap, const char *), offset += 1024)
        add_file(b, path, offset, 100);
    va_end(ap);
    return build(b, &tar_header);
}

static void expect_files(const struct index *index, const char *directory,
                         enum folder_kind kind, bool images, const char *expected)
{
    struct folder_files *folder;
    char text[1024] = "", path[256];
    size_t len;

    ck_assert_int_eq(
        folder_files_new(index, position_of(index, directory), kind, images, 1000, &folder), 0);
    for (uint32_t i = 0; i < folder_files_count(folder); i++) {
        uint32_t number, position = folder_files_at(folder, i);
        ck_assert_int_eq(index_path(index, position, path, sizeof(path), &len), 0);
        strcat(strcat(text, i ? " " : ""), path);
        ck_assert_int_eq(folder_files_number(folder, position, 0, &number), 0);
        ck_assert_uint_eq(number, i);
    }
    ck_assert_str_eq(text, expected);
    uint32_t number;
    ck_assert_int_eq(folder_files_number(folder, INDEX_ROOT, 0, &number), -ENOENT);
    folder_files_free(folder);
}

START_TEST(classes_come_sorted_and_their_files_within)
{
    struct index *index = make_index("t/b/2.jpg", "t/b/10.JPEG", "t/a/9.png", "t/a/labels.txt",
                                     "t/readme", "t/c/x.webp", "v/a/1.jpg", NULL);
    expect_files(index, "t", FOLDER_CLASSES, true,
                 "t/a/9.png t/b/10.JPEG t/b/2.jpg t/c/x.webp");
    expect_files(index, "t", FOLDER_CLASSES, false,
                 "t/a/9.png t/a/labels.txt t/b/10.JPEG t/b/2.jpg t/c/x.webp");
    expect_files(index, "t/b", FOLDER_FLAT, true, "t/b/10.JPEG t/b/2.jpg");
    expect_files(index, "t", FOLDER_FLAT, false, "t/readme");
    expect_files(index, "t", FOLDER_FLAT, true, "");
    index_close(index);
}
END_TEST

/* sorted(os.walk(class)): by the paths of directories, in which '/' counts as a character. */
START_TEST(directories_in_a_class_come_by_their_paths)
{
    struct index *index =
        make_index("c/x/1", "c/x/a/2", "c/x/a/b/3", "c/x/a-b/4", "c/x/z/5", "c/w/0", NULL);
    expect_files(index, "c", FOLDER_CLASSES, false,
                 "c/w/0 c/x/1 c/x/a/2 c/x/a-b/4 c/x/a/b/3 c/x/z/5");
    index_close(index);
}
END_TEST

START_TEST(links_have_numbers)
{
    struct builder *b = new_builder();
    struct folder_files *folder;
    uint32_t number;

    add_file(b, "d/2.jpg", 512, 10);
    add_link(b, "d/1.jpg", "d/2.jpg");
    add_symlink(b, "d/3.jpg", "2.jpg");
    add_symlink(b, "d/4.jpg", "../nowhere");
    add_symlink(b, "d/5.jpg", "../d");
    struct index *index = build(b, &tar_header);
    ck_assert_int_eq(
        folder_files_new(index, position_of(index, "d"), FOLDER_FLAT, true, 10, &folder), 0);
    ck_assert_uint_eq(folder_files_count(folder), 4);
    ck_assert_uint_eq(folder_files_at(folder, 0), folder_files_at(folder, 1));
    ck_assert_uint_eq(folder_files_at(folder, 0), folder_files_at(folder, 2));
    ck_assert_uint_eq(folder_files_at(folder, 3), FOLDER_NO_FILE);
    for (uint32_t from = 0; from < 3; from++) {
        ck_assert_int_eq(folder_files_number(folder, folder_files_at(folder, 0), from, &number),
                         0);
        ck_assert_uint_eq(number, from);
    }
    ck_assert_int_eq(folder_files_number(folder, folder_files_at(folder, 0), 3, &number),
                     -ENOENT);
    folder_files_free(folder);
    ck_assert_int_eq(
        folder_files_new(index, position_of(index, "d"), FOLDER_FLAT, true, 2, &folder),
        -E2BIG);
    ck_assert_int_eq(
        folder_files_new(index, position_of(index, "d/2.jpg"), FOLDER_FLAT, true, 2, &folder),
        -ENOTDIR);
    index_close(index);
}
END_TEST

/* As torchvision: classes by is_dir(), and os.walk(followlinks=True) in each. */
START_TEST(links_to_directories_are_walked)
{
    static const char expected[] = "c/0 - c/sub/1 b/x c/0 - c/sub/1 c/0 - c/sub/1";
    struct builder *b = new_builder();
    struct folder_files *folder;
    char text[256] = "", path[64];
    size_t len;

    add_file(b, "c/0", 512, 10);
    add_file(b, "c/sub/1", 1536, 10);
    add_file(b, "b/x", 2560, 10);
    add_symlink(b, "a", "c");
    add_symlink(b, "b/y", "../a/");
    add_symlink(b, "none", "/c");
    add_symlink(b, "self", "self");
    add_symlink(b, "c/up", "../../c");
    struct index *index = build(b, &tar_header);
    ck_assert_int_eq(folder_files_new(index, INDEX_ROOT, FOLDER_CLASSES, false, 10, &folder),
                     0);
    for (uint32_t i = 0; i < folder_files_count(folder); i++) {
        uint32_t position = folder_files_at(folder, i);
        strcpy(path, "-"); /* "up" leads out of the archive: it has a number and no file */
        if (position != FOLDER_NO_FILE)
            ck_assert_int_eq(index_path(index, position, path, sizeof(path), &len), 0);
        strcat(strcat(text, *text ? " " : ""), path);
    }
    ck_assert_str_eq(text, expected);
    folder_files_free(folder);
    index_close(index);
}
END_TEST

START_TEST(directories_that_contain_themselves_end)
{
    struct builder *b = new_builder();
    struct folder_files *folder;

    add_file(b, "one/c/0", 512, 10);
    add_symlink(b, "one/c/self", ".");
    add_file(b, "two/c/0", 1536, 10);
    add_symlink(b, "two/c/a", ".");
    add_symlink(b, "two/c/b", "../c");
    struct index *index = build(b, &tar_header);
    /* The 41st link is a name that is no directory any more. */
    ck_assert_int_eq(folder_files_new(index, position_of(index, "one"), FOLDER_CLASSES, false,
                                      1000, &folder),
                     0);
    ck_assert_uint_eq(folder_files_count(folder), 41 + 1);
    ck_assert_uint_eq(folder_files_at(folder, 41), FOLDER_NO_FILE);
    folder_files_free(folder);
    ck_assert_int_eq(folder_files_new(index, position_of(index, "two"), FOLDER_CLASSES, false,
                                      UINT64_MAX, &folder),
                     -E2BIG);
    index_close(index);
}
END_TEST

START_TEST(a_shuffle_knows_all_numbers_of_a_file)
{
    struct builder *b = new_builder();
    struct folder_files *folder;
    struct known_reads *order;

    for (unsigned i = 0; i < 10; i++) {
        char name[] = "c/0";
        name[2] = (char)('0' + i);
        add_file(b, name, 512 + 1024 * (uint64_t)i, 100);
    }
    add_symlink(b, "a", "c");
    struct index *index = build(b, &tar_header);
    ck_assert_int_eq(folder_files_new(index, INDEX_ROOT, FOLDER_CLASSES, false, 100, &folder),
                     0);
    ck_assert_int_eq(known_reads_shuffled(folder, 3, 1000, &order), 0);
    folder_files_free(folder);
    ck_assert_uint_eq(known_reads_count(order), 20);
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t place;
        ck_assert_int_eq(known_reads_place(order, known_reads_at(order, i), i, &place), 0);
        ck_assert_uint_eq(place, i);
    }
    known_reads_free(order);
    index_close(index);
}
END_TEST

START_TEST(a_shuffle_is_torchs)
{
    static const char golden[] = "4175390862"; /* torch.randperm(10), seed 0 */
    struct builder *b = new_builder();
    struct folder_files *folder;
    struct known_reads *order;
    uint64_t place;

    for (unsigned i = 0; i < 10; i++) {
        char name[] = "d/0.jpg";
        name[2] = (char)('0' + i);
        add_file(b, name, 512 + 1024 * (uint64_t)i, 100);
    }
    struct index *index = build(b, &tar_header);
    ck_assert_int_eq(
        folder_files_new(index, position_of(index, "d"), FOLDER_FLAT, true, 10, &folder), 0);
    ck_assert_int_eq(known_reads_shuffled(folder, 0, 79, &order), -E2BIG);
    ck_assert_int_eq(known_reads_shuffled(folder, 0, 80, &order), 0);
    folder_files_free(folder);
    ck_assert_uint_eq(known_reads_count(order), 10);
    for (unsigned i = 0; i < 10; i++) {
        char name[] = "d/0.jpg";
        name[2] = golden[i];
        ck_assert_uint_eq(known_reads_at(order, i), position_of(index, name));
        ck_assert_int_eq(known_reads_place(order, known_reads_at(order, i), 0, &place), 0);
        ck_assert_uint_eq(place, i);
        ck_assert_int_eq(known_reads_place(order, known_reads_at(order, i), i + 1, &place),
                         -ENOENT);
    }
    known_reads_free(order);
    index_close(index);
}
END_TEST

static struct index *tree;
static uint64_t left_out;

static int parse(const char *text, size_t len, struct fault *fault,
                 struct known_reads **ret_order)
{
    *fault = (struct fault){0};
    left_out = 0;
    return read_list_parse(tree, INDEX_ROOT, text, len, 100, fault, &left_out, ret_order);
}

static void expect_order(const char *text, size_t len, const char *expected)
{
    struct known_reads *order;
    struct fault fault;
    char found[1024] = "", path[256];
    size_t path_len;

    int r = parse(text, len, &fault, &order);
    ck_assert_msg(r == 0, "%s: %s", text, fault.what);
    for (uint64_t i = 0; i < known_reads_count(order); i++) {
        ck_assert_int_eq(
            index_path(tree, known_reads_at(order, i), path, sizeof(path), &path_len), 0);
        strcat(strcat(found, i ? " " : ""), path);
    }
    ck_assert_str_eq(found, expected);
    known_reads_free(order);
}

static void expect_fault(const char *text, const char *expected)
{
    struct known_reads *order;
    struct fault fault;

    ck_assert_int_lt(parse(text, strlen(text), &fault, &order), 0);
    ck_assert_msg(strstr(fault.what, expected) != NULL, "'%s' and not '%s'", fault.what,
                  expected);
}

static void make_tree(void)
{
    tree = make_index("b/1.jpg", "b/2.jpg", "a/1.jpg", "a/note", "a/odd\nname.jpg", "17", NULL);
}

static void free_tree(void)
{
    index_close(tree);
}

START_TEST(paths_one_a_line)
{
    expect_order("b/2.jpg\na/1.jpg\n", 16, "b/2.jpg a/1.jpg");
    expect_order("b/2.jpg\na/1.jpg", 15, "b/2.jpg a/1.jpg");
    expect_order("\n./b//2.jpg\n\n/a/note\n", 21, "b/2.jpg a/note");
    expect_order("a/odd\nname.jpg\0b/1.jpg\0", 23, "a/odd\nname.jpg b/1.jpg");
    expect_order("17\nb/1.jpg\n", 11, "17 b/1.jpg");
}
END_TEST

START_TEST(numbers_one_a_line)
{
    /* Classes a and b; of images: a/1.jpg, a/odd, b/1.jpg, b/2.jpg */
    expect_order("3\n0\n2\n", 6, "b/2.jpg a/1.jpg b/1.jpg");
    expect_order("0\n00\n", 5, "a/1.jpg a/1.jpg");
}
END_TEST

/* Three files, and a line that names none. */
static void expect_left_out(const char *text, const char *expected)
{
    struct known_reads *order;
    struct fault fault;

    ck_assert_msg(parse(text, strlen(text), &fault, &order) == 0, "%s: %s", text, fault.what);
    ck_assert_uint_eq(left_out, 1);
    ck_assert_msg(strstr(fault.what, expected) != NULL, "'%s' and not '%s'", fault.what,
                  expected);
    ck_assert_uint_eq(known_reads_count(order), 3);
    known_reads_free(order);
}

START_TEST(a_line_that_names_no_file_is_left_out_and_told)
{
    expect_left_out("b/1.jpg\n\nb/3.jpg\na/1.jpg\na/note\n",
                    "line 3: 'b/3.jpg' is not in the archive");
    expect_left_out("b/1.jpg\nb\na/1.jpg\na/note\n", "line 2: 'b' is a directory");
    expect_left_out("b/1.jpg/x\nb/1.jpg\na/1.jpg\na/note\n", "line 1");
    expect_left_out("b/1.jpg\nb/../b/1.jpg\na/1.jpg\na/note\n", "line 2");
    expect_left_out("0\n1\n4\n2", "line 3: '4' is more than there are files");
    expect_left_out("0\nb/1.jpg\n1\n2", "line 2: 'b/1.jpg' is not a number");
    expect_left_out("0\n99999999999999999999\n1\n2", "line 2");
    expect_left_out("b/1.jpg\n\x1b[31m\na/note\na/1.jpg", "'?[31m'");
}
END_TEST

START_TEST(a_text_that_is_mostly_something_else_is_refused)
{
    expect_fault("b/1.jpg\nb/3.jpg\nb/4.jpg\n",
                 "line 2: 'b/3.jpg' is not in the archive; 2 of 3 lines name no file");
    expect_fault("7\n8\n", "line 1: '7' is more than there are files; 2 of 2");
    expect_fault("99999999999999999999\n", "line 1");
    expect_fault("b\n", "line 1: 'b' is a directory");
    expect_fault("", "names no file");
    expect_fault("\n\n", "names no file");
    expect_fault("\r\n", "names no file");
}
END_TEST

START_TEST(a_line_longer_than_any_path_is_left_out)
{
    static char text[32768];
    struct known_reads *order;
    struct fault fault;
    size_t len = (size_t)sprintf(text, "b/1.jpg\n");

    while (len < 16384)
        len += (size_t)sprintf(text + len, "./");
    len += (size_t)sprintf(text + len, "b/1.jpg\n");
    ck_assert_int_eq(parse(text, len, &fault, &order), 0);
    ck_assert_uint_eq(left_out, 1);
    ck_assert_uint_eq(known_reads_count(order), 1);
    known_reads_free(order);
}
END_TEST

#define TEXT(text) text, sizeof(text) - 1

START_TEST(paths_may_begin_where_the_data_lay)
{
    expect_order(TEXT("/data/x/b/2.jpg\n/data/x/a/1.jpg\n"), "b/2.jpg a/1.jpg");
    expect_order(TEXT("../b/2.jpg\n../a/1.jpg"), "b/2.jpg a/1.jpg");
    expect_order(TEXT("x/b/2.jpg\nx/a/1.jpg"), "b/2.jpg a/1.jpg");
    expect_order(TEXT("./x/b/9.jpg\n./x/b/2.jpg\n./x/a/1.jpg"), "b/2.jpg a/1.jpg");
    expect_order(TEXT("note\n1.jpg\n"), "a/note a/1.jpg");
    expect_order(TEXT("/m/17\n/m/a/1.jpg\n17\n"), "17 a/1.jpg 17");
    expect_order(TEXT("\"/data/b/2.jpg\"\n\"/data/a/odd\\nname.jpg\"\n"),
                 "b/2.jpg a/odd\nname.jpg");
}
END_TEST

START_TEST(lines_may_end_as_those_of_windows)
{
    expect_order(TEXT("\xef\xbb\xbf"
                      "b/2.jpg\r\n\r\na/1.jpg\r\n"),
                 "b/2.jpg a/1.jpg");
    expect_order(TEXT("3\r\n0\r\n2\r\n"), "b/2.jpg a/1.jpg b/1.jpg");
}
END_TEST

START_TEST(odd_names_are_quoted)
{
    expect_order(TEXT("\"a/odd\\nname.jpg\"\nb/1.jpg\n"), "a/odd\nname.jpg b/1.jpg");
    expect_fault("\"a/odd\\xname.jpg\"", "not in the archive");
    expect_fault("\"a/odd\\\"", "not in the archive");
    expect_fault("\"", "not in the archive");
}
END_TEST

START_TEST(more_lines_than_allowed_are_refused)
{
    char text[101 * 8 + 1] = "";
    struct known_reads *order;
    struct fault fault;

    for (unsigned i = 0; i < 101; i++)
        strcat(text, "b/1.jpg\n");
    ck_assert_int_eq(parse(text, strlen(text), &fault, &order), -E2BIG);
    ck_assert_int_eq(parse(text, strlen(text) - 8, &fault, &order), 0);
    known_reads_free(order);
}
END_TEST

START_TEST(a_file_may_come_twice)
{
    struct known_reads *order;
    struct fault fault;
    uint64_t place;
    const char *text = "b/1.jpg\na/1.jpg\nb/1.jpg\nb/2.jpg\nb/1.jpg\n";
    uint32_t file = position_of(tree, "b/1.jpg");

    ck_assert_int_eq(parse(text, strlen(text), &fault, &order), 0);
    const uint64_t expected[] = {0, 2, 2, 4, 4};
    for (uint64_t from = 0; from < 5; from++) {
        ck_assert_int_eq(known_reads_place(order, file, from, &place), 0);
        ck_assert_uint_eq(place, expected[from]);
    }
    ck_assert_int_eq(known_reads_place(order, file, 5, &place), -ENOENT);
    ck_assert_int_eq(known_reads_place(order, position_of(tree, "a/note"), 0, &place), -ENOENT);
    known_reads_free(order);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("known_reads");
    TCase *c = tcase_create("known_reads");
    tcase_add_checked_fixture(c, make_tree, free_tree);
    tcase_add_test(c, classes_come_sorted_and_their_files_within);
    tcase_add_test(c, directories_in_a_class_come_by_their_paths);
    tcase_add_test(c, links_have_numbers);
    tcase_add_test(c, links_to_directories_are_walked);
    tcase_add_test(c, directories_that_contain_themselves_end);
    tcase_add_test(c, a_shuffle_knows_all_numbers_of_a_file);
    tcase_add_test(c, a_shuffle_is_torchs);
    tcase_add_test(c, paths_one_a_line);
    tcase_add_test(c, numbers_one_a_line);
    tcase_add_test(c, a_line_that_names_no_file_is_left_out_and_told);
    tcase_add_test(c, a_text_that_is_mostly_something_else_is_refused);
    tcase_add_test(c, a_line_longer_than_any_path_is_left_out);
    tcase_add_test(c, paths_may_begin_where_the_data_lay);
    tcase_add_test(c, lines_may_end_as_those_of_windows);
    tcase_add_test(c, odd_names_are_quoted);
    tcase_add_test(c, more_lines_than_allowed_are_refused);
    tcase_add_test(c, a_file_may_come_twice);
    suite_add_tcase(s, c);
    return run_suite(s);
}
