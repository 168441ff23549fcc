/*
 * What the two watches of a mount make of what they see: of a thread that waits for storage,
 * on made-up times, and of an archive that is written to.
 */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_watch.h"
#include "storage_watch.h"
#include "suite.h"

#define S UINT64_C(1000000000)

/* ---- storage ---- */

static const struct storage_look runs = {.asks_storage = false, .waits = 1};
static const struct storage_look waits = {.asks_storage = true, .waits = 1};
static const struct storage_look waits_anew = {.asks_storage = true, .waits = 2};
static const struct storage_look is_asked = {
    .asks_storage = true, .waits = 1, .signal = SIGTERM};

START_TEST(one_call_may_take_its_time_and_many_may_take_longer)
{
    struct storage_wait w = {.timeout_s = 10, .waits = 1, .since_ns = 100 * S};
    ck_assert_int_eq(storage_judge(&w, &waits, 110 * S), STORAGE_WAIT);
    ck_assert_int_eq(storage_judge(&w, &waits, 110 * S + 1), STORAGE_GIVE_UP);
    ck_assert_int_eq(storage_judge(&w, &waits_anew, 111 * S), STORAGE_WAIT);
    ck_assert_int_eq(storage_judge(&w, &waits_anew, 121 * S), STORAGE_WAIT);
    ck_assert_int_eq(storage_judge(&w, &runs, 1000 * S), STORAGE_WAIT); /* it computes */
    ck_assert_int_eq(storage_judge(&w, &waits, 1010 * S), STORAGE_WAIT);
    ck_assert_int_eq(storage_judge(&w, &waits, 1011 * S), STORAGE_GIVE_UP);
}
END_TEST

START_TEST(without_a_limit_it_waits_for_ever)
{
    struct storage_wait w = {.waits = 1};
    ck_assert_int_eq(storage_judge(&w, &waits, 1000000 * S), STORAGE_WAIT);
}
END_TEST

START_TEST(a_signal_that_its_handler_does_not_get_ends_it_after_a_second)
{
    struct storage_wait w = {.waits = 1, .since_ns = 100 * S};
    ck_assert_int_eq(storage_judge(&w, &waits, 200 * S), STORAGE_WAIT);
    ck_assert_int_eq(storage_judge(&w, &is_asked, 201 * S), STORAGE_WAIT);
    ck_assert_int_eq(storage_judge(&w, &is_asked, 201 * S + 1), STORAGE_DIE);
    /* A thread that goes on will come to its handler. */
    struct storage_look goes_on = is_asked;
    goes_on.waits = 7;
    ck_assert_int_eq(storage_judge(&w, &goes_on, 203 * S), STORAGE_WAIT);
}
END_TEST

/* ---- an archive ---- */

static char path[64];
static struct source *source;
static struct archive_sight sight;

static void put(const char *text, off_t at)
{
    FILE *f = fopen(path, "r+");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, at, SEEK_SET), 0);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

/* A time of its own for each change, which a quick test may not get from the kernel. */
static void touch(time_t when)
{
    struct timespec times[] = {{.tv_sec = when}, {.tv_sec = when}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void setup(void)
{
    struct fault fault = {0};
    snprintf(path, sizeof(path), "%s/watch-XXXXXX", getenv(SUITE_FOLDER));
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    put("an archive, as it was", 0);
    ck_assert_int_eq(truncate(path, 1 << 20), 0);
    touch(1000);
    ck_assert_int_eq(source_open(path, &fault, &source), 0);
    sight = (struct archive_sight){.source = source};
    source_identity(source, &sight.opened);
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_SAME);
}

static void teardown(void)
{
    source_close(source);
    unlink(path);
}

START_TEST(an_archive_that_is_left_alone_or_renamed_is_the_same)
{
    char other[sizeof(path) + 2];
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_SAME);
    snprintf(other, sizeof(other), "%s-2", path);
    ck_assert_int_eq(rename(path, other), 0);
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_SAME);
    ck_assert_int_eq(rename(other, path), 0);
}
END_TEST

START_TEST(a_time_alone_proves_nothing)
{
    touch(2000);
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_TOUCHED);
    touch(1000);
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_SAME);
}
END_TEST

START_TEST(other_bytes_are_seen)
{
    put("another archive ", 0);
    touch(2000);
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_CHANGED);
}
END_TEST

START_TEST(a_file_that_is_cut_short_is_changed)
{
    ck_assert_int_eq(truncate(path, (1 << 20) - 1), 0);
    ck_assert_int_eq(archive_look(&sight), ARCHIVE_CHANGED);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("watch");
    TCase *c = tcase_create("storage");
    tcase_add_test(c, one_call_may_take_its_time_and_many_may_take_longer);
    tcase_add_test(c, without_a_limit_it_waits_for_ever);
    tcase_add_test(c, a_signal_that_its_handler_does_not_get_ends_it_after_a_second);
    suite_add_tcase(s, c);
    c = tcase_create("archive");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, an_archive_that_is_left_alone_or_renamed_is_the_same);
    tcase_add_test(c, a_time_alone_proves_nothing);
    tcase_add_test(c, other_bytes_are_seen);
    tcase_add_test(c, a_file_that_is_cut_short_is_changed);
    suite_add_tcase(s, c);
    return run_suite(s);
}
