/* What all of the loader stands on: words of errors, option structs of other versions,
 * portions. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert_round.h"
#include "error.h"
#include "rank_share.h"
#include "suite.h"

/* As this version has it, and as a later one may. */
struct given {
    size_t size;
    uint32_t first, second;
};

struct longer {
    size_t size;
    uint32_t first, second;
    uint64_t later;
};

START_TEST(options_of_an_older_program_leave_the_new_ones_unset)
{
    struct given into = {0}, given = {offsetof(struct given, second), 7, 8};
    ck_assert_int_eq(options_read(&into, sizeof(into), &given, NULL), 0);
    ck_assert_uint_eq(into.first, 7);
    ck_assert_uint_eq(into.second, 0);
    ck_assert_int_eq(options_read(&into, sizeof(into), NULL, NULL), 0);
}
END_TEST

START_TEST(options_of_a_newer_program_may_not_set_what_is_not_known)
{
    struct onepot_error error = {0};
    struct given into = {0};
    struct longer given = {sizeof(given), 7, 8, 0};
    ck_assert_int_eq(options_read(&into, sizeof(into), &given, &error), 0);
    ck_assert_uint_eq(into.second, 8);
    given.later = UINT64_C(1) << 63; /* its last byte */
    into = (struct given){0};
    ck_assert_int_eq(options_read(&into, sizeof(into), &given, &error), -E2BIG);
    ck_assert_int_eq(error.code, -E2BIG);
    ck_assert_ptr_nonnull(strstr(error.text, ONEPOT_VERSION));
    ck_assert_uint_eq(into.first, 0);
}
END_TEST

START_TEST(options_without_a_size_are_refused)
{
    static const size_t sizes[] = {0, sizeof(size_t) - 1, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct onepot_error error = {0};
        struct given into = {0}, given = {sizes[i], 7, 8};
        ck_assert_int_eq(options_read(&into, sizeof(into), &given, &error), -EINVAL);
        ck_assert_ptr_nonnull(strstr(error.text, "size"));
    }
}
END_TEST

START_TEST(a_result_fills_what_the_caller_has_room_for)
{
    struct longer to = {offsetof(struct given, second), 1, 2, 3};
    const struct given from = {sizeof(from), 7, 8};
    ck_assert_int_eq(result_write(&to, &from, sizeof(from), NULL), 0);
    ck_assert_uint_eq(to.size, offsetof(struct given, second));
    ck_assert_uint_eq(to.first, 7);
    ck_assert_uint_eq(to.second, 2);
    to.size = sizeof(to);
    ck_assert_int_eq(result_write(&to, &from, sizeof(from), NULL), 0);
    ck_assert_uint_eq(to.size, sizeof(to));
    ck_assert_uint_eq(to.second, 8);
    ck_assert_uint_eq(to.later, 3);
}
END_TEST

START_TEST(a_result_without_its_size_is_an_error)
{
    static const size_t sizes[] = {0, sizeof(size_t), 5000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct onepot_error error = {0};
        struct longer to = {sizes[i], 1, 2, 3};
        const struct given from = {sizeof(from), 7, 8};
        ck_assert_int_eq(result_write(&to, &from, sizeof(from), &error), -EINVAL);
        ck_assert_ptr_nonnull(strstr(error.text, "size"));
        ck_assert_uint_eq(to.first, 1);
    }
}
END_TEST

START_TEST(errors_have_words_and_need_no_room_for_them)
{
    struct onepot_error error = {0};
    const struct fault fault = {.err = EUCLEAN, .member = "m", .what = "is bad", .offset = 7};
    ck_assert_int_eq(error_set(NULL, -EIO, "%s", "x"), -EIO);
    ck_assert_int_eq(error_from_fault(NULL, -EIO, &fault, "a.tar"), -EIO);
    ck_assert_int_eq(error_errno(&error, -ENOENT, "a.tar"), -ENOENT);
    ck_assert_int_eq(error.code, -ENOENT);
    ck_assert_str_eq(error.text, "a.tar: No such file or directory");
    ck_assert_int_eq(error_from_fault(&error, -EUCLEAN, &fault, "a.tar"), -EUCLEAN);
    ck_assert_int_eq(error.code, -EUCLEAN);
    ck_assert_ptr_nonnull(strstr(error.text, "a.tar: m: is bad"));
    char much[2 * sizeof(error.text)];
    memset(much, 'x', sizeof(much));
    much[sizeof(much) - 1] = '\0';
    error_set(&error, -EIO, "%s", much);
    ck_assert_uint_eq(strlen(error.text), sizeof(error.text) - 1);
}
END_TEST

static const char *const rank_variables[] = {
    "LOCAL_WORLD_SIZE",          "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",           "SLURM_STEP_TASKS_PER_NODE"};
#define VARIABLES (sizeof(rank_variables) / sizeof(rank_variables[0]))

START_TEST(ranks_of_the_node_share_its_memory_and_cpus)
{
    for (size_t i = 0; i < VARIABLES; i++)
        unsetenv(rank_variables[i]);
    ck_assert_uint_eq(rank_share_ranks(), 1);
    uint64_t bytes = rank_share_bytes();
    uint32_t cpus = rank_share_cpus();
    ck_assert_uint_gt(bytes, 0);
    ck_assert_uint_gt(cpus, 0);
    for (size_t i = 0; i < VARIABLES; i++) {
        setenv(rank_variables[i], "8(x2)", 1);
        ck_assert_uint_eq(rank_share_ranks(), 8);
        /* Others use memory meanwhile, but not that much. */
        ck_assert_uint_lt(rank_share_bytes(), bytes / 2);
        ck_assert_uint_ge(rank_share_cpus(), 1);
        ck_assert_uint_le(rank_share_cpus(), cpus);
        unsetenv(rank_variables[i]);
    }
    setenv(rank_variables[0], "100000", 1);
    ck_assert_uint_eq(rank_share_ranks(), 1);
    setenv(rank_variables[1], "2", 1); /* the first one that is a number of ranks counts */
    ck_assert_uint_eq(rank_share_ranks(), 2);
    setenv(rank_variables[0], "none", 1);
    ck_assert_uint_eq(rank_share_ranks(), 2);
}
END_TEST

START_TEST(halves_are_rounded_once_to_nearest_ties_to_even)
{
    static const struct {
        float x;
        uint16_t half, bfloat16;
    } cases[] = {
        {0, 0, 0},
        {-0.0f, 0x8000, 0x8000},
        {1, 0x3c00, 0x3f80},
        {-2, 0xc000, 0xc000},
        {1.00048828125f, 0x3c00, 0x3f80}, /* half of a step above 1: to the even one */
        {1.00146484375f, 0x3c02, 0x3f80}, /* one and a half: up, to the even one */
        {1.0004884f, 0x3c01, 0x3f80},     /* a little more than half */
        {65504, 0x7bff, 0x4780},          /* the largest */
        {65519, 0x7bff, 0x4780},          /* rounds to it */
        {65520, 0x7c00, 0x4780},          /* and this to infinity */
        {6.1035156e-05f, 0x0400, 0x3880}, /* the least normal one, 2^-14 */
        {6.0975552e-05f, 0x03ff, 0x3880}, /* the largest that is not */
        {5.9604645e-08f, 0x0001, 0x3380}, /* 2^-24 */
        {2.9802322e-08f, 0x0000, 0x3300}, /* half of that: to 0, which is even */
        {2.9802326e-08f, 0x0001, 0x3300},
        {1.00390625f, 0x3c04, 0x3f80}, /* half of a step of bfloat16 */
        {1.01171875f, 0x3c0c, 0x3f82},
        {3.4028235e38f, 0x7c00, 0x7f80},
        {INFINITY, 0x7c00, 0x7f80},
        {-INFINITY, 0xfc00, 0xff80},
        {NAN, 0x7fff, 0x7fff},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_msg(convert_half(cases[i].x) == cases[i].half, "half of %.9g: %#x, not %#x",
                      (double)cases[i].x, convert_half(cases[i].x), cases[i].half);
        ck_assert_msg(convert_bfloat16(cases[i].x) == cases[i].bfloat16,
                      "bfloat16 of %.9g: %#x, not %#x", (double)cases[i].x,
                      convert_bfloat16(cases[i].x), cases[i].bfloat16);
    }
    ck_assert(convert_scale(200, 100, 0.5f) == 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loader_base");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, options_of_an_older_program_leave_the_new_ones_unset);
    tcase_add_test(tests, options_of_a_newer_program_may_not_set_what_is_not_known);
    tcase_add_test(tests, options_without_a_size_are_refused);
    tcase_add_test(tests, a_result_fills_what_the_caller_has_room_for);
    tcase_add_test(tests, a_result_without_its_size_is_an_error);
    tcase_add_test(tests, errors_have_words_and_need_no_room_for_them);
    tcase_add_test(tests, ranks_of_the_node_share_its_memory_and_cpus);
    tcase_add_test(tests, halves_are_rounded_once_to_nearest_ties_to_even);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
