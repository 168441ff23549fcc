/*
 * A record of what was read is an order that a later job can follow.
 */
#include "known_reads.h"

#include <fcntl.h>

#include "index_helper.h"
#include "suite.h"

static char *read_text(const char *path)
{
    static char text[4096];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (n < 0)
        return NULL;
    close(fd);
    text[n] = '\0';
    return text;
}

START_TEST(a_record_is_an_order)
{
    char directory[64], path[72], part[80];
    struct recorder *recorder;
    struct known_reads *order;
    uint64_t left_out;
    struct fault fault = {0};
    struct builder *b = new_builder();

    add_file(b, "train/class00/00000.jpg", 512, 100);
    add_file(b, "train/class01/00001.jpg", 1536, 100);
    add_file(b, "large", 2560, 100);
    struct index *tree = build(b, &tar_header);
    uint32_t root = position_of(tree, "train");
    uint32_t first = position_of(tree, "train/class00/00000.jpg");
    uint32_t second = position_of(tree, "train/class01/00001.jpg");

    suite_make_folder("record", directory, sizeof(directory));
    snprintf(path, sizeof(path), "%s/record", directory);
    snprintf(part, sizeof(part), "%s.part", path);
    ck_assert_int_eq(recorder_new(path, tree, root, &recorder), 0);
    recorder_note(recorder, second);
    recorder_note(recorder, position_of(tree, "large")); /* outside of what is shown */
    recorder_note(recorder, first);
    recorder_flush(recorder);
    ck_assert_ptr_null(read_text(path));
    ck_assert_str_eq(read_text(part), "class01/00001.jpg\nclass00/00000.jpg\n");
    for (unsigned i = 0; i < 20; i++)
        recorder_note(recorder, first);
    ck_assert_int_eq(recorder_finish(recorder), 0);
    ck_assert_ptr_null(read_text(part));
    const char *text = read_text(path);
    ck_assert_int_eq(
        read_list_parse(tree, root, text, strlen(text), 100, &fault, &left_out, &order), 0);
    ck_assert_uint_eq(known_reads_count(order), 1 + RECORDER_TIMES);
    ck_assert_uint_eq(known_reads_at(order, 0), second);
    known_reads_free(order);

    ck_assert_int_eq(recorder_new(path, tree, root, &recorder), 0);
    recorder_abandon(recorder);
    ck_assert_ptr_null(read_text(part));
    ck_assert_ptr_nonnull(read_text(path));

    /* A job that read nothing does not replace the record of one that did. */
    ck_assert_int_eq(recorder_new(path, tree, root, &recorder), 0);
    ck_assert_int_eq(recorder_finish(recorder), 0);
    ck_assert_ptr_null(read_text(part));
    ck_assert_str_eq(read_text(path), text);
    ck_assert_int_eq(recorder_new("/nowhere/at/all", tree, root, &recorder), -ENOENT);
    unlink(path);
    rmdir(directory);
    index_close(tree);
}
END_TEST

/* Of one file: the text of its record, which is an order of that file. */
static void expect_record(const char *name, const char *expected)
{
    char directory[64], path[72];
    struct recorder *recorder;
    struct known_reads *order;
    uint64_t left_out = 0;
    struct fault fault = {0};
    struct builder *b = new_builder();

    add_file(b, name, 512, 100);
    struct index *tree = build(b, &tar_header);
    suite_make_folder("record", directory, sizeof(directory));
    snprintf(path, sizeof(path), "%s/record", directory);
    ck_assert_int_eq(recorder_new(path, tree, INDEX_ROOT, &recorder), 0);
    recorder_note(recorder, position_of(tree, name));
    ck_assert_int_eq(recorder_finish(recorder), 0);
    const char *text = read_text(path);
    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(
        read_list_parse(tree, INDEX_ROOT, text, strlen(text), 100, &fault, &left_out, &order),
        0);
    ck_assert_uint_eq(left_out, 0);
    ck_assert_uint_eq(known_reads_count(order), 1);
    ck_assert_uint_eq(known_reads_at(order, 0), position_of(tree, name));
    known_reads_free(order);
    unlink(path);
    rmdir(directory);
    index_close(tree);
}

START_TEST(odd_names_are_quoted)
{
    expect_record("a b\\c\"/\rd", "a b\\c\"/\rd\n"); /* not this one */
    expect_record("a\nb", "\"a\\nb\"\n");
    expect_record("\"x\"", "\"\\\"x\\\"\"\n");
    expect_record("a\r", "\"a\\r\"\n");
    expect_record("\n\\\"\r\n", "\"\\n\\\\\\\"\\r\\n\"\n");
}
END_TEST

/* A line that does not fit into the 64 KiB of memory goes behind what is written then. */
START_TEST(lines_are_written_before_the_next_does_not_fit)
{
    enum { LINES = 257, LINE = 255 }; /* one byte less than fits */
    char directory[64], path[72], part[80], name[LINE];
    struct recorder *recorder;
    struct stat st;
    struct builder *b = new_builder();

    for (int i = 0; i <= LINES / (int)RECORDER_TIMES; i++) {
        snprintf(name, sizeof(name), "%0*d", LINE - 1, i);
        add_file(b, name, 512, 100);
    }
    add_file(b, "a", 512, 100);
    struct index *tree = build(b, &tar_header);
    suite_make_folder("record", directory, sizeof(directory));
    snprintf(path, sizeof(path), "%s/record", directory);
    snprintf(part, sizeof(part), "%s.part", path);
    ck_assert_int_eq(recorder_new(path, tree, INDEX_ROOT, &recorder), 0);
    for (int i = 0; i < LINES; i++) {
        snprintf(name, sizeof(name), "%0*d", LINE - 1, i / (int)RECORDER_TIMES);
        recorder_note(recorder, position_of(tree, name));
    }
    ck_assert_int_eq(stat(part, &st), 0);
    ck_assert_int_eq(st.st_size, 0);
    recorder_note(recorder, position_of(tree, "a"));
    ck_assert_int_eq(stat(part, &st), 0);
    ck_assert_int_eq(st.st_size, LINES * LINE);
    ck_assert_int_eq(recorder_finish(recorder), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, LINES * LINE + 2);
    index_close(tree);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("recorder");
    TCase *c = tcase_create("recorder");
    tcase_add_test(c, a_record_is_an_order);
    tcase_add_test(c, odd_names_are_quoted);
    tcase_add_test(c, lines_are_written_before_the_next_does_not_fit);
    suite_add_tcase(s, c);
    return run_suite(s);
}
