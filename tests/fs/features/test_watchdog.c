/* What the watchdog takes for stalled, by given times. */
#include <check.h>

#include "suite.h"
#include "watchdog.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

START_TEST(a_request_stalls_after_the_timeout)
{
    uint64_t since = 100 * SECOND;

    ck_assert(!watchdog_has_stalled(since, 0, since + 5 * SECOND, 5 * SECOND));
    ck_assert(watchdog_has_stalled(since, 0, since + 5 * SECOND + 1, 5 * SECOND));
    ck_assert(!watchdog_has_stalled(since, 0, since - MS, 5 * SECOND)); /* just received */
}
END_TEST

START_TEST(without_a_timeout_nothing_stalls)
{
    ck_assert(!watchdog_has_stalled(1, 0, 1000 * SECOND, 0));
}
END_TEST

START_TEST(while_unpacking_makes_progress_nothing_stalls)
{
    uint64_t since = 100 * SECOND, progress = 150 * SECOND;

    ck_assert(!watchdog_has_stalled(since, progress, 154 * SECOND, 5 * SECOND));
    ck_assert(watchdog_has_stalled(since, progress, 156 * SECOND, 5 * SECOND));
    ck_assert(watchdog_has_stalled(since, 50 * SECOND, 106 * SECOND, 5 * SECOND));
    ck_assert(!watchdog_has_stalled(since, UINT64_MAX, 999 * SECOND, 5 * SECOND));
}
END_TEST

START_TEST(a_read_that_stalled_is_refused_once_more)
{
    struct stalled_reads reads = {0};

    stalled_reads_add(&reads, 7, 100 * SECOND);
    ck_assert(!stalled_reads_take(&reads, 8, 100 * SECOND));
    ck_assert(stalled_reads_take(&reads, 7, 100 * SECOND + 199 * MS));
    ck_assert(!stalled_reads_take(&reads, 7, 100 * SECOND + 199 * MS));
}
END_TEST

START_TEST(two_readers_that_stalled_are_refused_both)
{
    struct stalled_reads reads = {0};

    stalled_reads_add(&reads, 7, 100 * SECOND);
    stalled_reads_add(&reads, 7, 100 * SECOND);
    ck_assert(stalled_reads_take(&reads, 7, 100 * SECOND));
    ck_assert(stalled_reads_take(&reads, 7, 100 * SECOND));
    ck_assert(!stalled_reads_take(&reads, 7, 100 * SECOND));
}
END_TEST

START_TEST(a_stall_is_soon_forgotten)
{
    struct stalled_reads reads = {0};

    stalled_reads_add(&reads, 7, 100 * SECOND);
    ck_assert(!stalled_reads_take(&reads, 7, 100 * SECOND + 200 * MS));
    ck_assert(!stalled_reads_take(&reads, 7, 100 * SECOND));
}
END_TEST

START_TEST(a_stall_taken_back_is_none_and_old_ones_give_way)
{
    struct stalled_reads reads = {0};

    stalled_reads_add(&reads, 7, 100 * SECOND)->at_ns = 0;
    ck_assert(!stalled_reads_take(&reads, 7, 100 * SECOND));
    for (uint32_t i = 0; i < 2 * STALLED_READS_MAX; i++)
        stalled_reads_add(&reads, i, 100 * SECOND);
    ck_assert(!stalled_reads_take(&reads, STALLED_READS_MAX - 1, 100 * SECOND));
    ck_assert(stalled_reads_take(&reads, STALLED_READS_MAX, 100 * SECOND));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watchdog");
    TCase *tc = tcase_create("watchdog");
    tcase_add_test(tc, a_request_stalls_after_the_timeout);
    tcase_add_test(tc, without_a_timeout_nothing_stalls);
    tcase_add_test(tc, while_unpacking_makes_progress_nothing_stalls);
    tcase_add_test(tc, a_read_that_stalled_is_refused_once_more);
    tcase_add_test(tc, two_readers_that_stalled_are_refused_both);
    tcase_add_test(tc, a_stall_is_soon_forgotten);
    tcase_add_test(tc, a_stall_taken_back_is_none_and_old_ones_give_way);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
