/*
 * Counters added up, and the line that a person sees at the end.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "reader.h"
#include "report.h"
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
    ck_assert_uint_eq(report_wait_ns(&sum, 0.5), 0);
    sum.histogram[2] = 50;
    sum.histogram[5] = 49;
    sum.histogram[COUNTERS_BUCKETS - 1] = 1;
    ck_assert_uint_eq(report_wait_ns(&sum, 0.5), 2000 << 2);
    ck_assert_uint_eq(report_wait_ns(&sum, 0.51), 2000 << 5);
    ck_assert_uint_eq(report_wait_ns(&sum, 0.99), 2000 << 5);
    ck_assert_uint_eq(report_wait_ns(&sum, 1), UINT64_C(2000) << (COUNTERS_BUCKETS - 1));
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

/* A row of 40 columns or more, in memory. */
static char *row_of(const struct summary_style *style, const char *state,
                    const struct summary_rates *rates)
{
    static char row[512];
    FILE *out = fmemopen(row, sizeof(row), "w");
    ck_assert_ptr_nonnull(out);
    summary_row(out, style, NULL, state ? counters : NULL, state, rates);
    ck_assert_int_eq(fclose(out), 0);
    return row;
}

START_TEST(rates_are_the_growth_in_a_second)
{
    struct summary was = {0}, is = {.at_ns = 7000000000u};
    struct summary_rates rates;
    counters->started_ns = 5000000000u;
    is.starts = 5;
    is.read_bytes = 2000;
    is.read_service_ns = 3000000000u;
    is.requests_all = 12;
    summary_rates(counters, &was, &is, &rates);
    ck_assert_double_eq(rates.seconds, 2);
    ck_assert_double_eq(rates.files, 2.5);
    ck_assert_double_eq(rates.bytes, 1000);
    ck_assert_double_eq(rates.requests, 6);
    ck_assert_double_eq(rates.waiting, 1.5);
    ck_assert_double_lt(rates.cached, 0);
    was = is;
    was.at_ns = 6500000000u;
    is.starts = 6;
    is.requests[COUNTERS_READ] = 4;
    is.reads_waited = 1;
    is.errors = 1;
    summary_rates(counters, &was, &is, &rates);
    ck_assert_double_eq(rates.seconds, 0.5);
    ck_assert_double_eq(rates.files, 2);
    ck_assert_double_eq(rates.bytes, 0);
    ck_assert_double_eq(rates.cached, 75);
    ck_assert(rates.has_errors);
    is.reads_waited = 5; /* its count may be ahead */
    summary_rates(counters, &was, &is, &rates);
    ck_assert_double_eq(rates.cached, 0);
}
END_TEST

START_TEST(a_row_fits_its_columns)
{
    struct summary_style style = {.columns = 80};
    struct summary_rates rates = {
        .files = 1234.4, .bytes = 1.5 * (1 << 20), .waiting = 0.25, .cached = 97};
    strcpy(counters->archive, "/scratch/me/train.tar");
    strcpy(counters->job, "4711");
    strcpy(counters->step, "0");
    ck_assert_str_eq(row_of(&style, NULL, NULL),
                     "files/s    MiB/s waiting           cached job          archive");
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "  1,234      1.5 ###          25 %   97 % 4711.0       "
                     "/scratch/me/train.tar");
    rates = (struct summary_rates){.files = 12345678, .waiting = 250, .cached = -1};
    counters->job[0] = counters->step[0] = '\0';
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "  12.3M      0.0 ########## 9999 %      - -            "
                     "/scratch/me/train.tar");
    style.columns = 10; /* 40 is the least */
    rates.waiting = 0;
    ck_assert_str_eq(row_of(&style, NULL, NULL), "files/s    MiB/s waiting     archive");
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "  12.3M      0.0         0 % ...rain.tar");
    ck_assert_str_eq(row_of(&style, "draining", &rates),
                     "  12.3M      0.0 draining    ...rain.tar");
    rates.has_errors = true;
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "  12.3M      0.0 errors      ...rain.tar");
}
END_TEST

START_TEST(a_row_has_blocks_and_colours_where_they_are)
{
    struct summary_style style = {.columns = 40, .has_blocks = true, .has_colours = true};
    struct summary_rates rates = {.waiting = 0.05, .cached = -1};
    strcpy(counters->archive, "\033[2J\xc3\xa9\xff");
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "      0      0.0 \033[32m▎\033[39m       5 % ...[2Jé\\xff");
    rates.waiting = 0.4;
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "      0      0.0 \033[33m█▋\033[39m     40 % ...[2Jé\\xff");
    rates.waiting = 1;
    strcat(counters->archive, "/b");
    ck_assert_str_eq(row_of(&style, "serving", &rates),
                     "      0      0.0 \033[31m████\033[39m  100 % ...Jé\\xff/b");
    ck_assert_str_eq(row_of(&style, "dead", &rates),
                     "      0      0.0 \033[31mdead       \033[39m ...Jé\\xff/b");
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
    tcase_add_test(c, rates_are_the_growth_in_a_second);
    tcase_add_test(c, a_row_fits_its_columns);
    tcase_add_test(c, a_row_has_blocks_and_colours_where_they_are);
    tcase_add_test(c, the_line_tells_what_the_job_got);
    tcase_add_test(c, a_file_that_was_read_ahead_counts_once);
    tcase_add_test(c, the_line_says_why_reads_failed);
    tcase_add_test(c, the_line_names_an_archive_once);
    tcase_add_test(c, a_mount_that_was_never_used_has_a_line_too);
    suite_add_tcase(s, c);
    return run_suite(s);
}
