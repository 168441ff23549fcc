/* What the watchdog takes for stalled, by given times. */
#include <check.h>

#include "suite.h"
#include "watchdog.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* Ticks of 100 ms from one time to another. Has the request stalled at the last one? */
static bool stalls(struct watch_clock *clock, struct watched_wait *wait, uint64_t turn,
                   uint64_t since, uint64_t progress, uint64_t until)
{
    bool stalled = false;

    for (uint64_t now = clock->looked_ns; now <= until; now += 100 * MS) {
        watch_clock_tick(clock, now);
        stalled = watchdog_has_stalled(wait, turn, since, progress, clock, 5 * SECOND);
    }
    return stalled;
}

START_TEST(a_request_stalls_after_the_timeout)
{
    struct watch_clock clock = {.looked_ns = 100 * SECOND};
    struct watched_wait wait = {0};

    ck_assert(!stalls(&clock, &wait, 1, 100 * SECOND, 0, 105 * SECOND));
    ck_assert(stalls(&clock, &wait, 1, 100 * SECOND, 0, 105 * SECOND + 100 * MS));
    ck_assert(!stalls(&clock, &wait, 3, 105 * SECOND, 0, 110 * SECOND)); /* the next one */
    ck_assert(!stalls(&clock, &wait, 5, 111 * SECOND, 0, 110 * SECOND)); /* just received */
}
END_TEST

START_TEST(time_for_which_the_process_is_stopped_does_not_count)
{
    struct watch_clock clock = {.looked_ns = 100 * SECOND};
    struct watched_wait wait = {0}, late = {0};

    ck_assert(!stalls(&clock, &wait, 1, 100 * SECOND, 0, 103 * SECOND));
    clock.looked_ns = 103 * SECOND;
    for (uint64_t hour = 1; hour < 4; hour++) { /* stopped after each tick */
        uint64_t now = (103 + hour * 3600) * SECOND;
        watch_clock_tick(&clock, now);
        ck_assert(!watchdog_has_stalled(&wait, 1, 100 * SECOND, 0, &clock, 5 * SECOND));
        ck_assert(!watchdog_has_stalled(&late, 1, now - SECOND, 0, &clock, 5 * SECOND));
    }
    uint64_t resumed = clock.looked_ns;
    ck_assert(!stalls(&clock, &wait, 1, 100 * SECOND, 0, resumed + SECOND));
    ck_assert(stalls(&clock, &wait, 1, 100 * SECOND, 0, resumed + 3 * SECOND));
}
END_TEST

START_TEST(without_a_timeout_nothing_stalls)
{
    const struct watch_clock clock = {1000 * SECOND, 1000 * SECOND};
    struct watched_wait wait = {1, 1, 1};

    ck_assert(!watchdog_has_stalled(&wait, 1, 1, 0, &clock, 0));
    ck_assert(watchdog_has_stalled(&wait, 1, 1, 0, &clock, 1));
}
END_TEST

START_TEST(while_unpacking_makes_progress_nothing_stalls)
{
    struct watch_clock clock = {.looked_ns = 100 * SECOND};
    struct watched_wait wait = {0};

    ck_assert(!stalls(&clock, &wait, 1, 100 * SECOND, 0, 104 * SECOND));
    ck_assert(!stalls(&clock, &wait, 1, 100 * SECOND, 104 * SECOND, 108 * SECOND));
    ck_assert(stalls(&clock, &wait, 1, 100 * SECOND, 104 * SECOND, 110 * SECOND));
    ck_assert(!stalls(&clock, &wait, 1, 100 * SECOND, UINT64_MAX, 199 * SECOND));
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
    tcase_add_test(tc, time_for_which_the_process_is_stopped_does_not_count);
    tcase_add_test(tc, without_a_timeout_nothing_stalls);
    tcase_add_test(tc, while_unpacking_makes_progress_nothing_stalls);
    tcase_add_test(tc, a_read_that_stalled_is_refused_once_more);
    tcase_add_test(tc, two_readers_that_stalled_are_refused_both);
    tcase_add_test(tc, a_stall_is_soon_forgotten);
    tcase_add_test(tc, a_stall_taken_back_is_none_and_old_ones_give_way);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
