/* Reads that fail are tried again, as often as was said; a stale handle leads to its file
 * again. Time passes by pauses alone, so that none of them takes any. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source_ops.h"
#include "source_retry.h"
#include "suite.h"

#define AT 4096u

/* A file whose reads fail. */
static struct failing {
    struct source source;
    int err; /* of each read; 0: none */
    unsigned reads;
    void (*during)(void); /* called by the next read */
} * file;

static char folder[64], path[128];
static struct source *source;
static unsigned told[3]; /* by enum source_error */
static _Atomic uint64_t clock_ns;

static int failing_read(const struct source *s, struct source_cursor *cursor)
{
    void (*during)(void) = file->during;
    ck_assert_ptr_eq(s, &file->source);
    file->reads++;
    file->during = NULL;
    if (during)
        during();
    if (file->err == 0)
        source_cursor_step(cursor, 1);
    return file->err;
}

static bool failing_close(struct source *s)
{
    close(s->fd);
    return true;
}

static void distant_state(const struct source *s, struct source_state *ret_state)
{
    (void)s;
    *ret_state = (struct source_state){.is_local = false};
}

static const struct source_ops failing_ops = {
    .read = failing_read, .state = distant_state, .close = failing_close};

static void on_error(void *ctx, const char *name, enum source_error what, int err,
                     uint64_t offset)
{
    ck_assert_ptr_eq(ctx, told);
    ck_assert_str_eq(name, "file");
    ck_assert_int_lt(err, 0);
    ck_assert_uint_eq(offset, AT);
    told[what]++;
}

static void write_file(const char *name, const char *text)
{
    int out = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(out, 0);
    ck_assert_int_eq(write(out, text, strlen(text)), (ssize_t)strlen(text));
    close(out);
}

static void setup(void)
{
    struct stat st;

    suite_make_folder("retry", folder, sizeof(folder));
    snprintf(path, sizeof(path), "%s/file", folder);
    write_file(path, "bytes");
    file = calloc(1, sizeof(*file));
    ck_assert_ptr_nonnull(file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(fstat(fd, &st), 0);
    file->source = (struct source){.ops = &failing_ops,
                                   .name = strdup("file"),
                                   .size_bytes = 2 * AT,
                                   .fd = fd,
                                   .identity = {.dev = st.st_dev,
                                                .ino = st.st_ino,
                                                .size_bytes = (uint64_t)st.st_size,
                                                .mtime_sec = st.st_mtim.tv_sec,
                                                .mtime_nsec = (uint32_t)st.st_mtim.tv_nsec}};
    source = &file->source;
    ck_assert_int_eq(source_retry(&source), 0);
    source_retry_test_clock(source, &clock_ns);
    memset(told, 0, sizeof(told));
    source_on_error(source, on_error, told);
}

static void teardown(void)
{
    source_close(source);
    unlink(path);
    rmdir(folder);
}

/* A read that fails with `err` each time: how often it was made. */
static unsigned tries(int err)
{
    char byte;
    file->err = err;
    file->reads = 0;
    ck_assert_int_eq(source_read(source, &byte, 1, AT), err);
    return file->reads;
}

static struct source_error_counts counts(void)
{
    return source_error_counts(source);
}

START_TEST(is_tried_as_often_as_was_said)
{
    source_set_retries(source, 2);
    ck_assert_uint_eq(tries(-EIO), 3);
    ck_assert_uint_eq(counts().retried, 2);
    ck_assert_uint_eq(counts().failed, 1);
    ck_assert_uint_eq(told[SOURCE_RETRIED], 1);
    source_set_retries(source, 0);
    ck_assert_uint_eq(tries(-ETIMEDOUT), 1);
    ck_assert_uint_eq(counts().failed, 2);
}
END_TEST

START_TEST(what_does_not_pass_is_not_tried)
{
    static const int final[] = {-ENODATA, -EINVAL, -EFAULT, -EBADF, -EACCES, -ENOMEM};
    for (size_t i = 0; i < sizeof(final) / sizeof(final[0]); i++) {
        ck_assert(!source_error_may_pass(final[i]));
        ck_assert_uint_eq(tries(final[i]), 1);
    }
    ck_assert_uint_eq(counts().failed, 0);
}
END_TEST

START_TEST(storage_that_is_gone_is_tried_once_more_until_it_is_back)
{
    source_set_retries(source, 2);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(tries(-EIO), 3);
    ck_assert_uint_eq(tries(-EIO), 2);
    ck_assert_uint_eq(tries(-EIO), 2);
    ck_assert_uint_eq(tries(0), 1);
    ck_assert_uint_eq(tries(-EIO), 3);
}
END_TEST

static void cancel(void)
{
    source_cancel_retries(source);
}

START_TEST(cancelling_ends_tries)
{
    file->during = cancel;
    source_set_retries(source, 100);
    ck_assert_uint_eq(tries(-EIO), 1);
    ck_assert_uint_eq(tries(-EIO), 1);
    ck_assert_uint_eq(counts().failed, 2);
}
END_TEST

START_TEST(tries_end_after_half_a_minute)
{
    source_set_retries(source, 1000);
    uint64_t begun_ns = atomic_load(&clock_ns);
    ck_assert_uint_eq(tries(-EIO), 19); /* after 20 ms, 100 ms, 500 ms, and then each 2 s */
    ck_assert_uint_le(atomic_load(&clock_ns) - begun_ns, UINT64_C(33000000000));
}
END_TEST

static unsigned heard;

static void hear(void *ctx, const char *name, enum source_error what, int err, uint64_t offset)
{
    (void)name, (void)what, (void)err, (void)offset;
    ck_assert_ptr_eq(ctx, &heard);
    heard++;
}

static void begin_to_hear(void)
{
    source_on_error(source, hear, &heard);
}

/* As copiers of an archive do before its mount is there. */
START_TEST(who_is_told_may_come_while_reads_fail)
{
    source_on_error(source, NULL, NULL);
    source_set_retries(source, 1);
    ck_assert_uint_eq(tries(-EIO), 2);
    ck_assert_uint_eq(told[SOURCE_RETRIED], 0);
    file->during = begin_to_hear;
    ck_assert_uint_eq(tries(-EIO), 2);
    ck_assert_uint_eq(heard, 1);
    source_on_error(source, NULL, NULL);
    ck_assert_uint_eq(tries(-EIO), 2);
    ck_assert_uint_eq(heard, 1);
}
END_TEST

/* As if the server had forgotten the file. */
static void lose_handle(void)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(dup3(null, source_fd(source), O_CLOEXEC), source_fd(source));
    close(null);
}

/* Another read goes through all of it while this one is made. */
static void meanwhile(void)
{
    char byte;
    file->during = lose_handle;
    source_set_retries(source, 1);
    ck_assert_int_eq(source_read(source, &byte, 1, AT), -ESTALE);
    ck_assert_uint_eq(counts().reopened, 1);
}

START_TEST(stale_handle_is_opened_again)
{
    char byte;
    source_set_retries(source, 1);
    file->during = meanwhile;
    ck_assert_uint_eq(tries(-ESTALE), 4);
    ck_assert_int_eq(pread(source_fd(source), &byte, 1, 0), 1);
    ck_assert_int_eq(byte, 'b');
    ck_assert_uint_eq(told[SOURCE_REOPENED], 1);
    ck_assert_int_eq(fcntl(source_fd(source), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    /* A read that began before needs no second opening. */
    ck_assert_uint_eq(counts().reopened, 1);
}
END_TEST

START_TEST(another_file_is_not_taken_for_it)
{
    char copy[160], byte;
    snprintf(copy, sizeof(copy), "%s/copy", folder);
    write_file(copy, "other");
    ck_assert_int_eq(rename(copy, path), 0);
    source_set_retries(source, 1);
    ck_assert_uint_eq(tries(-ESTALE), 2);
    ck_assert_uint_eq(tries(-ESTALE), 2);
    ck_assert_uint_eq(counts().reopened, 0);
    ck_assert_uint_eq(told[SOURCE_REPLACED], 1);
    ck_assert_int_eq(pread(source_fd(source), &byte, 1, 0), 1);
    ck_assert_int_eq(byte, 'b');
}
END_TEST

START_TEST(a_file_that_is_gone_ends_with_the_error)
{
    ck_assert_int_eq(unlink(path), 0);
    source_set_retries(source, 1);
    ck_assert_uint_eq(tries(-ENOTCONN), 2);
    ck_assert_uint_eq(counts().reopened, 0);
    ck_assert_uint_eq(counts().failed, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("source_retry");
    TCase *tcase = tcase_create("source_retry");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, is_tried_as_often_as_was_said);
    tcase_add_test(tcase, what_does_not_pass_is_not_tried);
    tcase_add_test(tcase, storage_that_is_gone_is_tried_once_more_until_it_is_back);
    tcase_add_test(tcase, cancelling_ends_tries);
    tcase_add_test(tcase, tries_end_after_half_a_minute);
    tcase_add_test(tcase, who_is_told_may_come_while_reads_fail);
    tcase_add_test(tcase, stale_handle_is_opened_again);
    tcase_add_test(tcase, another_file_is_not_taken_for_it);
    tcase_add_test(tcase, a_file_that_is_gone_ends_with_the_error);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
