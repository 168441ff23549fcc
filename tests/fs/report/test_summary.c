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

START_TEST(a_share_of_the_reads_waited_no_longer)
{
    struct summary sum = {0};
    ck_assert_uint_eq(summary_wait_ns(&sum, 0.5), 0);
    sum.histogram[2] = 50;
    sum.histogram[5] = 49;
    sum.histogram[COUNTERS_BUCKETS - 1] = 1;
    ck_assert_uint_eq(summary_wait_ns(&sum, 0.5), 2000 << 2);
    ck_assert_uint_eq(summary_wait_ns(&sum, 0.51), 2000 << 5);
    ck_assert_uint_eq(summary_wait_ns(&sum, 0.99), 2000 << 5);
    ck_assert_uint_eq(summary_wait_ns(&sum, 1), UINT64_C(2000) << (COUNTERS_BUCKETS - 1));
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
    counters->slots[0].read_starts = 5678;
    counters->slots[1].read_bytes = UINT64_C(10) << 30;
    counters->slots[2].read_service_ns = 2500000000u;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "1,234 files, 10.0 GiB read in 10.0 s (1.0 GiB/s); readers waited 2.5 s");
    /* All else is in `onepot stat`. */
    counters->slots[2].histogram[10] = 100;
    counters->slots[2].origins[READER_FROM_CACHE] = 70;
    counters->slots[2].ahead_requests = counters->direct_reads = 1u << 10;
    counters->foreseen_bytes = counters->source_bytes = counters->source_retries = 1u << 20;
    strcpy(counters->stage_folder, "/dev/shm/x");
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "1,234 files, 10.0 GiB read in 10.0 s (1.0 GiB/s); readers waited 2.5 s");
    counters->storage_requests = 4321;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "1,234 files, 10.0 GiB read in 10.0 s (1.0 GiB/s); readers waited 2.5 s; "
                     "4,321 requests to storage");
}
END_TEST

/* Of 100 files, 60 were read ahead, and 30 of these were then asked for all the same. */
START_TEST(a_file_that_was_read_ahead_counts_once)
{
    struct summary sum;
    counters->slots[0].read_files = 70;
    counters->slots[0].read_bytes = 700;
    counters->slots[1].ahead_files = 60;
    counters->slots[1].ahead_bytes = 600;
    counters->slots[2].foreseen_files = 30;
    summary_read(counters, &sum);
    ck_assert_uint_eq(sum.read_files, 100);
    ck_assert_uint_eq(sum.read_bytes, 1300);
    /* Where processes count what they read, nothing else is. */
    counters->slots[0].read_files = 1;
    counters->slots[0].read_bytes = 10;
    counters->direct_files = 99;
    counters->direct_bytes = 990;
    counters->direct_foreseen = 20;
    summary_read(counters, &sum);
    ck_assert_uint_eq(sum.read_files, 100);
    ck_assert_uint_eq(sum.read_bytes, 1000);
    ck_assert_uint_eq(sum.direct_files, 99);
    ck_assert_uint_eq(sum.sent_bytes, 610);
}
END_TEST

START_TEST(the_line_says_why_reads_failed)
{
    char line[SUMMARY_MAX];
    ck_assert_ptr_null(summary_trouble(counters));
    counters->started_ns = 5;
    counters->slots[3].requests[COUNTERS_LOOKUP] = 1;
    strcpy(counters->trouble[TROUBLE_READ], "a.tar: x: can't be read; copy it again");
    counters->has_trouble[TROUBLE_READ] = true;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "nothing was read; reads failed: a.tar: x: can't be read; copy it again");
    strcpy(counters->trouble[TROUBLE_CHANGED], "a.tar: it was changed; mount it anew");
    counters->has_trouble[TROUBLE_CHANGED] = true; /* explains the one before */
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "nothing was read; reads failed: a.tar: it was changed; mount it anew");
}
END_TEST

/* The line begins with the archive's name already. Of several, it says which one failed. */
START_TEST(the_line_names_an_archive_once)
{
    char line[SUMMARY_MAX];
    strcpy(counters->archive, "/data/a.tar");
    strcpy(counters->trouble[TROUBLE_READ], "data/a.tar: x: can't be read; copy it again");
    counters->has_trouble[TROUBLE_READ] = true;
    counters->archives = 1;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "nothing was read; reads failed: x: can't be read; copy it again");
    counters->archives = 2;
    ck_assert_str_eq(
        summary_line(counters, line, sizeof(line)),
        "nothing was read; reads failed: data/a.tar: x: can't be read; copy it again");
    strcpy(counters->archive, "/data/other.tar");
    counters->archives = 1;
    ck_assert_ptr_nonnull(
        strstr(summary_line(counters, line, sizeof(line)), ": data/a.tar: x"));
}
END_TEST

START_TEST(a_mount_that_was_never_used_has_a_line_too)
{
    char line[256], cut[20];
    counters->started_ns = 5;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)), "nothing was read");
    counters->slots[3].requests[COUNTERS_LOOKUP] = 1;
    ck_assert_str_eq(summary_line(counters, line, sizeof(line)),
                     "nothing was read, only listed");
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
    tcase_add_test(c, a_share_of_the_reads_waited_no_longer);
    tcase_add_test(c, a_command_that_shares_counts_as_use);
    tcase_add_test(c, the_line_tells_what_the_job_got);
    tcase_add_test(c, a_file_that_was_read_ahead_counts_once);
    tcase_add_test(c, the_line_says_why_reads_failed);
    tcase_add_test(c, the_line_names_an_archive_once);
    tcase_add_test(c, a_mount_that_was_never_used_has_a_line_too);
    suite_add_tcase(s, c);
    return run_suite(s);
}
