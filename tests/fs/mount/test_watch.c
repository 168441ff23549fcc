/*
 * What the watch of a mount's archive makes of an archive that is written to. The session is
 * played.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"
#include "suite.h"

static char path[64];
static struct source *source;
static uint64_t fingerprint; /* of the archive as it was */

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
    ck_assert_int_eq(source_fingerprint(source, &fingerprint), 0);
}

static void teardown(void)
{
    source_close(source);
    unlink(path);
}

/* ---- an archive that is mounted ---- */

extern const struct feature archive_watch_feature;
static struct counters counters;
static struct session session;
static struct fileset fileset;
static void *state;
static char told[2048];
static bool is_full; /* where its index would be saved */

static void tell(const char *format, va_list args)
{
    size_t len = strlen(told);
    vsnprintf(told + len, sizeof(told) - len, format, args);
}

void session_trouble(struct session *s, enum counter_trouble kind, const char *format, ...)
{
    va_list args;
    (void)s;
    ck_assert(kind == TROUBLE_CHANGED || kind == TROUBLE_KINDS);
    va_start(args, format);
    tell(format, args);
    va_end(args);
}

void session_distrust(struct session *s)
{
    atomic_store(&s->distrusted, true);
}

int fileset_save(struct fileset *of, struct fault *fault)
{
    ck_assert_ptr_eq(of, &fileset);
    if (is_full)
        *fault = (struct fault){.err = ENOSPC, .what = "no space", .advice = "it stays here"};
    return is_full ? -ENOSPC : 0;
}

static void begin(void)
{
    fileset = (struct fileset){
        .path = path, .source = source, .fingerprint = fingerprint, .has_fingerprint = true};
    source_identity(source, &fileset.identity);
    session = (struct session){.config = {.fileset = &fileset, .counters = &counters}};
    told[0] = '\0';
}

static void end(void)
{
    const struct timespec until = clock_in_ms(CLOCK_MONOTONIC, 60000); /* leave() waits less */
    archive_watch_feature.serve(state);
    archive_watch_feature.end(state);
    ck_assert_int_eq(archive_watch_feature.join(state, &until), 0);
    archive_watch_feature.free(state);
}

/* What is told of an archive that was written to, or not, while it was mounted. */
static void start(void)
{
    begin();
    ck_assert_int_eq(archive_watch_feature.start(&session, &state), 0);
}

static void assert_same(void)
{
    end();
    ck_assert_str_eq(told, "");
    ck_assert(!atomic_load(&session.distrusted));
}

static void assert_changed(void)
{
    end();
    ck_assert_ptr_nonnull(strstr(told, "reads fail from now on"));
    ck_assert(atomic_load(&session.distrusted));
}

START_TEST(an_archive_that_is_left_alone_or_renamed_is_the_same)
{
    char other[sizeof(path) + 2];
    start();
    assert_same();
    start();
    snprintf(other, sizeof(other), "%s-2", path);
    ck_assert_int_eq(rename(path, other), 0);
    assert_same();
    ck_assert_int_eq(rename(other, path), 0);
}
END_TEST

START_TEST(a_time_alone_proves_nothing)
{
    start();
    touch(2000);
    end();
    ck_assert_ptr_nonnull(strstr(told, "its time was changed"));
    ck_assert(!atomic_load(&session.distrusted));
    touch(1000); /* as it was, but for the time of this change */
    start();
    assert_same();
}
END_TEST

START_TEST(other_bytes_are_seen)
{
    start();
    put("another archive ", 0);
    touch(2000);
    assert_changed();
}
END_TEST

START_TEST(a_file_that_is_cut_short_is_changed)
{
    start();
    ck_assert_int_eq(truncate(path, (1 << 20) - 1), 0);
    assert_changed();
}
END_TEST

static void change(bool has_other_bytes)
{
    if (has_other_bytes)
        put("another archive ", 0);
    touch(2000);
}

/* _i 0, 1: before it is served; 2, 3: it is seen by the last look. */
START_TEST(an_archive_that_changed_is_not_trusted_any_more)
{
    begin();
    if (_i < 2)
        change(_i % 2 == 0);
    ck_assert_int_eq(archive_watch_feature.start(&session, &state), 0);
    if (_i >= 2)
        change(_i % 2 == 0);
    end();
    ck_assert_int_eq(atomic_load(&session.distrusted), _i % 2 == 0);
    ck_assert_ptr_nonnull(
        strstr(told, _i % 2 == 0 ? "reads fail from now on" : "its time was changed"));
}
END_TEST

START_TEST(an_index_that_could_not_be_saved_is_one_line)
{
    begin();
    is_full = true;
    ck_assert_int_eq(archive_watch_feature.start(&session, &state), 0);
    end();
    ck_assert_str_eq(strstr(told, ": "), ": no space; it stays here");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("watch");
    TCase *c = tcase_create("archive");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, an_archive_that_is_left_alone_or_renamed_is_the_same);
    tcase_add_test(c, a_time_alone_proves_nothing);
    tcase_add_test(c, other_bytes_are_seen);
    tcase_add_test(c, a_file_that_is_cut_short_is_changed);
    tcase_add_loop_test(c, an_archive_that_changed_is_not_trusted_any_more, 0, 4);
    tcase_add_test(c, an_index_that_could_not_be_saved_is_one_line);
    suite_add_tcase(s, c);
    return run_suite(s);
}
