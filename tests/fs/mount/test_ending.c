/*
 * When a mount ends, decided on made-up times: asked to, unused, interrupted.
 */
#include <check.h>

#include "control.h"
#include "suite.h"

#define S SECOND_NS

START_TEST(a_mount_that_serves_stays_however_long_nobody_uses_it)
{
    struct ending e = {0};
    ck_assert_int_eq(ending_next(&e, 1000000 * S, 0), ENDING_WAIT);
    ck_assert_int_eq(ending_patience_ms(&e, 1000000 * S, 0, false), -1);
    ck_assert_int_eq(ending_patience_ms(&e, 1000000 * S, 0, true), 1000);
}
END_TEST

START_TEST(one_that_is_asked_waits_for_two_quiet_seconds_and_tries_each_second)
{
    struct ending e = {0};
    ck_assert(ending_begin(&e, 100 * S, 0));
    ck_assert_int_eq(ending_next(&e, 100 * S, 99 * S), ENDING_WAIT);
    ck_assert_int_eq(ending_next(&e, 101 * S, 99 * S), ENDING_TRY);
    ending_tried(&e, 101 * S);
    ck_assert_int_eq(ending_next(&e, 101 * S + S / 2, 99 * S), ENDING_WAIT);
    ck_assert_int_eq(ending_next(&e, 102 * S, 99 * S), ENDING_TRY);
    ck_assert_int_eq(ending_next(&e, 102 * S, 102 * S), ENDING_WAIT); /* it is used again */
    ck_assert_int_eq(ending_next(&e, 102 * S, 103 * S), ENDING_WAIT); /* after we looked */
    ck_assert_int_eq(ending_patience_ms(&e, 102 * S, 99 * S, false), 200);
}
END_TEST

START_TEST(the_first_of_several_limits_counts)
{
    struct ending e = {0};
    ck_assert(ending_begin(&e, 100 * S, 60 * S));
    ck_assert(!ending_begin(&e, 110 * S, 10 * S));
    ck_assert(!ending_begin(&e, 111 * S, 0));
    ck_assert(!ending_begin(&e, 112 * S, 3600 * S));
    ck_assert_int_eq(ending_next(&e, 120 * S - 1, 120 * S - 1), ENDING_WAIT);
    ck_assert_int_eq(ending_next(&e, 120 * S, 120 * S), ENDING_DETACH);
}
END_TEST

START_TEST(what_is_detached_is_only_waited_for)
{
    struct ending e = {.idle_ns = 5 * S, .phase = ENDING_UNMOUNTED};
    ck_assert(!ending_begin(&e, 100 * S, S));
    ck_assert_int_eq(ending_next(&e, 1000 * S, 0), ENDING_WAIT);
    ck_assert_int_eq(ending_patience_ms(&e, 1000 * S, 0, false), -1);
}
END_TEST

START_TEST(an_unused_mount_is_tried_after_its_time_and_every_ten_seconds)
{
    struct ending e = {.idle_ns = 60 * S};
    ck_assert_int_eq(ending_next(&e, 159 * S, 100 * S), ENDING_WAIT);
    ck_assert_int_eq(ending_patience_ms(&e, 159 * S, 100 * S, false), 1001);
    ck_assert_int_eq(ending_patience_ms(&e, 130 * S, 100 * S, false), 30001);
    ck_assert_int_eq(ending_patience_ms(&e, 130 * S, 100 * S, true), 1000);
    ck_assert_int_eq(ending_next(&e, 160 * S, 100 * S), ENDING_TRY);
    ending_tried(&e, 160 * S);
    ck_assert_int_eq(ending_next(&e, 169 * S, 100 * S), ENDING_WAIT);
    ck_assert_int_eq(ending_patience_ms(&e, 169 * S, 100 * S, false), 1001);
    ck_assert_int_eq(ending_next(&e, 170 * S, 100 * S), ENDING_TRY);
}
END_TEST

START_TEST(a_reader_of_cached_files_is_no_disuse)
{
    struct ending e = {.idle_ns = S}; /* it asks once a second */
    ck_assert_int_eq(ending_next(&e, 101 * S + S / 2, 100 * S), ENDING_WAIT);
    ck_assert_int_eq(ending_next(&e, 102 * S, 100 * S), ENDING_TRY);
}
END_TEST

START_TEST(a_person_who_asks_again_is_impatient)
{
    struct ending e = {0};
    uint64_t limit;
    ck_assert(ending_interrupt(&e, 0, &limit));
    ck_assert_uint_eq(limit, 0);
    ck_assert(ending_begin(&e, 100 * S, limit));
    ck_assert_int_eq(ending_next(&e, 1000 * S, 1000 * S), ENDING_WAIT);
    ck_assert(ending_interrupt(&e, 0, &limit));
    ck_assert(!ending_begin(&e, 1000 * S, limit));
    ck_assert_int_eq(ending_next(&e, 1003 * S, 1003 * S), ENDING_DETACH);
    ck_assert(!ending_interrupt(&e, 0, &limit));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ending");
    TCase *c = tcase_create("ending");
    tcase_add_test(c, a_mount_that_serves_stays_however_long_nobody_uses_it);
    tcase_add_test(c, one_that_is_asked_waits_for_two_quiet_seconds_and_tries_each_second);
    tcase_add_test(c, the_first_of_several_limits_counts);
    tcase_add_test(c, what_is_detached_is_only_waited_for);
    tcase_add_test(c, an_unused_mount_is_tried_after_its_time_and_every_ten_seconds);
    tcase_add_test(c, a_reader_of_cached_files_is_no_disuse);
    tcase_add_test(c, a_person_who_asks_again_is_impatient);
    suite_add_tcase(s, c);
    return run_suite(s);
}
