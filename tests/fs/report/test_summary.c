/*
 * Counters added up, and the line that a person sees at the end.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "reader.h"
#include "summary.h"
#include "suite.h"

static struct counters *counters;

static void setup(void)
{
    counters = aligned_alloc(64, sizeof(*counters) + 64 - sizeof(*counters) % 64);
    ck_assert_ptr_nonnull(counters);
    memset(counters, 0, sizeof(*counters));
}

static void teardown(void)
{
    free(counters);
}

START_TEST(slots_are_added_up)
{
    struct summary sum;
    for (int i = 0; i < COUNTERS_SLOTS; i++) {
        counters->slots[i].requests[15] = 2;
        counters->slots[i].requests[COUNTERS_OPCODES - 1] = 1;
        counters->slots[i].read_bytes = 100;
        counters->slots[i].errors = 1;
        counters->slots[i].histogram[3] = 5;
        counters->slots[i].last_request_ns = (uint64_t)i;
    }
    summary_read(counters, &sum);
    ck_assert_uint_eq(sum.requests[15], 2 * COUNTERS_SLOTS);
    ck_assert_uint_eq(sum.requests_all, 3 * COUNTERS_SLOTS);
    ck_assert_uint_eq(sum.read_bytes, 100 * COUNTERS_SLOTS);
    ck_assert_uint_eq(sum.errors, COUNTERS_SLOTS);
    ck_assert_uint_eq(sum.histogram[3], 5 * COUNTERS_SLOTS);
    ck_assert_uint_eq(sum.last_request_ns, COUNTERS_SLOTS - 1);
}
END_TEST

START_TEST(a_command_that_shares_counts_as_use)
{
    ck_assert_uint_eq(summary_last_use_ns(counters), 0);
    counters->slots[5].last_request_ns = 50;
    ck_assert_uint_eq(summary_last_use_ns(counters), 50);
    counters->shared_ns = 70;
    ck_assert_uint_eq(summary_last_use_ns(counters), 70);
}
END_TEST

START_TEST(the_line_tells_what_the_job_got)
{
    char line[SUMMARY_MAX];
    counters->started_ns = 5000000000u;
    counters->slots[0].last_request_ns = 15000000000u;
    counters->slots[0].read_files = 1234;
    counters->slots[1].read_bytes = UINT64_C(10) << 30;
    counters->slots[2].read_service_ns = 2500000000u;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "1,234 files, 10.0 GiB read in 10.0 s (1.0 GiB/s); readers waited 2.5 s");
    counters->slots[2].histogram[0] = 98;
    counters->slots[3].histogram[10] = 2;
    counters->slots[2].origins[READER_FROM_CACHE] = 70;
    counters->slots[3].origins[READER_FROM_CACHE] = 5;
    counters->slots[3].origins[READER_FROM_STORAGE] = 25;
    counters->slots[3].origins[READER_FROM_NOTHING] = 50;
    summary_line(counters, line, sizeof(line));
    ck_assert_ptr_nonnull(strstr(line, "; readers waited 2.5 s, 99% of reads within 2.0 ms;"));
    ck_assert_ptr_nonnull(strstr(line, "; reads from the block cache 75%, storage 25%"));
    counters->foreseen_bytes = 1u << 20;
    counters->foreseen_used = 3;
    counters->foreseen_unused = 1;
    summary_line(counters, line, sizeof(line));
    ck_assert_ptr_nonnull(strstr(line, "; 1.0 MiB read ahead, 75% of its files used"));
    counters->source_bytes = UINT64_C(15) << 30;
    counters->source_retries = 3;
    summary_line(counters, line, sizeof(line));
    ck_assert_ptr_nonnull(strstr(line, "; 1.50 bytes fetched for each one read"));
    ck_assert_ptr_nonnull(strstr(line, "failed: 3 tried again, 0 given up"));
    strcpy(counters->stage_folder, "/dev/shm/x");
    counters->stage_bytes = 200;
    counters->stage_here_bytes = 100;
    counters->stage_demand_bytes = 1024;
    summary_line(counters, line, sizeof(line));
    ck_assert_ptr_nonnull(strstr(line, "; 50% staged, 1.0 KiB of it at once for readers"));
}
END_TEST

START_TEST(a_mount_that_was_never_used_has_a_line_too)
{
    char line[256], cut[20];
    counters->started_ns = 5;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)), "nothing was read");
    counters->slots[0].read_files = 1;
    ck_assert_ptr_nonnull(strstr(summary_line(counters, line, sizeof(line)), "1 file,"));
    summary_line(counters, cut, sizeof(cut));
    ck_assert_uint_eq(strlen(cut), sizeof(cut) - 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("summary");
    TCase *c = tcase_create("summary");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, slots_are_added_up);
    tcase_add_test(c, a_command_that_shares_counts_as_use);
    tcase_add_test(c, the_line_tells_what_the_job_got);
    tcase_add_test(c, a_mount_that_was_never_used_has_a_line_too);
    suite_add_tcase(s, c);
    return run_suite(s);
}
