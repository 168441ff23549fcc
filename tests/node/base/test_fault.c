/* Faults: what is recorded, and what a person gets to read. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "suite.h"

static const char *describe(const struct fault *f, int err, const char *file)
{
    static char line[2048];
    int n = fault_describe(f, err, file, line, sizeof(line));
    ck_assert_int_eq(n, (int)strlen(line));
    return line;
}

START_TEST(a_fault_names_file_member_reason_offset_and_advice)
{
    struct fault f = {0};
    ck_assert_int_eq(fault_set(&f, -EUCLEAN, "a/b", 512, "size %d is wrong", 99), -EUCLEAN);
    fault_advise(&f, "copy it %s", "anew");
    ck_assert_int_eq(f.err, EUCLEAN);
    ck_assert_str_eq(describe(&f, 0, "x.tar"),
                     "x.tar: a/b: size 99 is wrong (offset 512); copy it anew");
    f = (struct fault){0};
    ck_assert_int_eq(fault_set_advised(&f, -EIO, NULL, 1, "wait", "is %s", "late"), -EIO);
    ck_assert_str_eq(describe(&f, 0, "x"), "x: is late (offset 1); wait");
}
END_TEST

START_TEST(the_first_fault_stands)
{
    struct fault f = {0};
    fault_set(&f, -EIO, "first", FAULT_NO_OFFSET, "one");
    ck_assert_int_eq(fault_set(&f, -ENOMEM, "second", 1, "two"), -ENOMEM);
    ck_assert_int_eq(fault_set_advised(&f, -EIO, NULL, 1, "do it", "three"), -EIO);
    ck_assert_str_eq(describe(&f, 0, "x"), "x: first: one");
}
END_TEST

START_TEST(without_a_fault_the_errno_is_described)
{
    struct fault f = {0};
    fault_advise(&f, "not to be seen");
    ck_assert_str_eq(describe(&f, -ENOENT, "x"), "x: No such file or directory");
    ck_assert_str_eq(describe(NULL, ENOENT, NULL), "No such file or directory");
    ck_assert_str_eq(describe(NULL, -EMFILE, "x"),
                     "x: Too many open files; raise the limit of open files ('ulimit -n')");
    ck_assert_int_eq(fault_set(NULL, -EIO, "m", 0, "w"), -EIO);
}
END_TEST

START_TEST(names_are_fit_for_a_terminal)
{
    struct fault f = {0};
    fault_set(&f, -EIO, "esc\033[31m\nnew\xff gr\xc3\xbc\xc3\x9f\x7f", FAULT_NO_OFFSET, "bad");
    ck_assert_str_eq(describe(&f, 0, "x"),
                     "x: esc\\x1b[31m\\x0anew\\xff gr\xc3\xbc\xc3\x9f\\x7f: bad");
}
END_TEST

START_TEST(only_sound_utf8_is_shown_as_it_is)
{
    struct fault f = {0};
    /* Overlong, surrogate, past the last character, C1 control, right-to-left override. */
    fault_set(&f, -EIO, "\xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xc2\x9b \xe2\x80\xae \xe2\x82",
              FAULT_NO_OFFSET, "bad");
    ck_assert_str_eq(
        describe(&f, 0, NULL),
        "\\xc0\\xaf \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\xc2\\x9b \\xe2\\x80\\xae "
        "\\xe2\\x82: bad");
}
END_TEST

START_TEST(a_line_that_does_not_fit_is_cut_and_its_length_told)
{
    struct fault f = {0};
    char small[8];
    memset(small, 'X', sizeof(small));
    fault_set(&f, -EIO, NULL, FAULT_NO_OFFSET, "0123456789");
    ck_assert_int_eq(fault_describe(&f, 0, NULL, small, 5), 10);
    ck_assert_mem_eq(small, "0123\0XXX", 8);
    ck_assert_int_eq(fault_describe(&f, 0, NULL, small, 0), 10);
}
END_TEST

START_TEST(a_fault_without_terminators_is_read_within_bounds)
{
    struct fault *f = malloc(sizeof(*f));
    memset(f, 'A', sizeof(*f));
    f->err = EIO;
    f->offset = FAULT_NO_OFFSET;
    const char *line = describe(f, 0, "x");
    ck_assert_int_eq((int)strlen(line), 512 + 2 + 512 + 2 + 256 + 2 + 192);
    free(f);
}
END_TEST

START_TEST(long_members_and_reasons_are_cut)
{
    struct fault f = {0};
    char name[2000];
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    fault_set(&f, -EIO, name, FAULT_NO_OFFSET, "%s", name);
    fault_advise(&f, "%s", name);
    ck_assert_uint_eq(strlen(f.member), sizeof(f.member) - 1);
    ck_assert_uint_eq(strlen(f.what), sizeof(f.what) - 1);
    ck_assert_uint_eq(strlen(f.advice), sizeof(f.advice) - 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fault");
    TCase *tc = tcase_create("fault");
    tcase_add_test(tc, a_fault_names_file_member_reason_offset_and_advice);
    tcase_add_test(tc, the_first_fault_stands);
    tcase_add_test(tc, without_a_fault_the_errno_is_described);
    tcase_add_test(tc, names_are_fit_for_a_terminal);
    tcase_add_test(tc, only_sound_utf8_is_shown_as_it_is);
    tcase_add_test(tc, a_line_that_does_not_fit_is_cut_and_its_length_told);
    tcase_add_test(tc, a_fault_without_terminators_is_read_within_bounds);
    tcase_add_test(tc, long_members_and_reasons_are_cut);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
