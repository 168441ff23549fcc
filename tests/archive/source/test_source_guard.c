/* Reads that fail are tried again, as often as was said; a stale handle leads to its file
 * again. */
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

#include "source_guard.h"
#include "suite.h"

static char folder[64], path[128];
static struct source_guard *guard;
static int fd;
static unsigned told[3]; /* by enum source_trouble */

static void on_trouble(void *ctx, enum source_trouble what, int err, uint64_t offset)
{
    ck_assert_ptr_eq(ctx, told);
    ck_assert_int_lt(err, 0);
    ck_assert_uint_eq(offset, 4096);
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

    strcpy(folder, "/tmp/onepot-test-guard-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/file", folder);
    write_file(path, "bytes");
    fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(fstat(fd, &st), 0);
    struct source_identity identity = {
        .dev = st.st_dev,
        .ino = st.st_ino,
        .size_bytes = (uint64_t)st.st_size,
        .mtime_sec = st.st_mtim.tv_sec,
        .mtime_nsec = (uint32_t)st.st_mtim.tv_nsec,
    };
    ck_assert_int_eq(source_guard_new(fd, &identity, &guard), 0);
    memset(told, 0, sizeof(told));
    source_guard_on_trouble(guard, on_trouble, told);
}

static void teardown(void)
{
    source_guard_free(guard);
    close(fd);
    unlink(path);
    rmdir(folder);
}

/* A read that fails with `err` each time: how often it was made. */
static unsigned tries(int err)
{
    struct source_attempt attempt = source_guard_begin(guard);
    unsigned n = 1;
    while (source_guard_again(guard, &attempt, err, 4096))
        n++;
    return n;
}

static struct source_troubles troubles(void)
{
    struct source_troubles t;
    source_guard_troubles(guard, &t);
    return t;
}

START_TEST(is_tried_as_often_as_was_said)
{
    source_guard_set_retries(guard, 2);
    ck_assert_uint_eq(tries(-EIO), 3);
    ck_assert_uint_eq(troubles().retried, 2);
    ck_assert_uint_eq(troubles().failed, 1);
    ck_assert_uint_eq(told[SOURCE_RETRIED], 1);
    source_guard_set_retries(guard, 0);
    ck_assert_uint_eq(tries(-ETIMEDOUT), 1);
    ck_assert_uint_eq(troubles().failed, 2);
}
END_TEST

START_TEST(what_does_not_pass_is_not_tried)
{
    static const int final[] = {-ENODATA, -EINVAL, -EFAULT, -EBADF, -EACCES, -ENOMEM};
    for (size_t i = 0; i < sizeof(final) / sizeof(final[0]); i++) {
        ck_assert(!source_error_may_pass(final[i]));
        ck_assert_uint_eq(tries(final[i]), 1);
    }
    ck_assert_uint_eq(troubles().failed, 0);
}
END_TEST

START_TEST(storage_that_is_gone_is_tried_once_more_until_it_is_back)
{
    source_guard_set_retries(guard, 2);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(tries(-EIO), 3);
    ck_assert_uint_eq(tries(-EIO), 2);
    ck_assert_uint_eq(tries(-EIO), 2);
    source_guard_succeeded(guard);
    ck_assert_uint_eq(tries(-EIO), 3);
}
END_TEST

static void *try_long(void *arg)
{
    *(unsigned *)arg = tries(-EIO);
    return NULL;
}

START_TEST(cancelling_wakes_who_waits)
{
    unsigned made = 0;
    pthread_t thread;

    source_guard_set_retries(guard, 100); /* half a minute of pauses */
    ck_assert_int_eq(pthread_create(&thread, NULL, try_long, &made), 0);
    while (troubles().retried < 2)
        usleep(1000);
    source_guard_cancel(guard);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_lt(made, 10);
    ck_assert_uint_eq(tries(-EIO), 1);
}
END_TEST

static _Atomic unsigned heard, astray;
static _Atomic bool enough;

static void hear(void *ctx, enum source_trouble what, int err, uint64_t offset)
{
    (void)what, (void)err, (void)offset;
    atomic_fetch_add(ctx == &heard ? &heard : &astray, 1);
}

static void *fail_reads(void *arg)
{
    (void)arg;
    while (!atomic_load(&enough))
        tries(-EIO);
    return NULL;
}

/* As copiers of an archive do before its mount is there. */
START_TEST(who_is_told_may_come_while_reads_fail)
{
    pthread_t thread;

    source_guard_on_trouble(guard, NULL, NULL);
    source_guard_set_retries(guard, 1);
    ck_assert_int_eq(pthread_create(&thread, NULL, fail_reads, NULL), 0);
    while (troubles().failed < 3)
        usleep(1000);
    ck_assert_uint_eq(told[SOURCE_RETRIED], 0);
    source_guard_on_trouble(guard, hear, &heard);
    while (atomic_load(&heard) == 0)
        usleep(1000);
    source_guard_on_trouble(guard, NULL, NULL);
    atomic_store(&enough, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(atomic_load(&astray), 0);
}
END_TEST

START_TEST(stale_handle_is_opened_again)
{
    struct source_attempt attempt = source_guard_begin(guard), other = attempt;
    char byte;

    /* As if the server had forgotten it. */
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(dup3(null, fd, O_CLOEXEC), fd);
    close(null);
    ck_assert(source_guard_again(guard, &attempt, -ESTALE, 4096));
    ck_assert_int_eq(pread(fd, &byte, 1, 0), 1);
    ck_assert_int_eq(byte, 'b');
    ck_assert_uint_eq(troubles().reopened, 1);
    ck_assert_uint_eq(told[SOURCE_REOPENED], 1);
    ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    /* A read that began before needs no second opening. */
    ck_assert(source_guard_again(guard, &other, -ESTALE, 4096));
    ck_assert_uint_eq(troubles().reopened, 1);
}
END_TEST

START_TEST(another_file_is_not_taken_for_it)
{
    char copy[160], byte;
    snprintf(copy, sizeof(copy), "%s/copy", folder);
    write_file(copy, "other");
    ck_assert_int_eq(rename(copy, path), 0);
    source_guard_set_retries(guard, 1);
    ck_assert_uint_eq(tries(-ESTALE), 2);
    ck_assert_uint_eq(tries(-ESTALE), 2);
    ck_assert_uint_eq(troubles().reopened, 0);
    ck_assert_uint_eq(told[SOURCE_REPLACED], 1);
    ck_assert_int_eq(pread(fd, &byte, 1, 0), 1);
    ck_assert_int_eq(byte, 'b');
}
END_TEST

START_TEST(a_file_that_is_gone_ends_with_the_error)
{
    ck_assert_int_eq(unlink(path), 0);
    source_guard_set_retries(guard, 1);
    ck_assert_uint_eq(tries(-ENOTCONN), 2);
    ck_assert_uint_eq(troubles().reopened, 0);
    ck_assert_uint_eq(troubles().failed, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("source_guard");
    TCase *tcase = tcase_create("source_guard");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, is_tried_as_often_as_was_said);
    tcase_add_test(tcase, what_does_not_pass_is_not_tried);
    tcase_add_test(tcase, storage_that_is_gone_is_tried_once_more_until_it_is_back);
    tcase_add_test(tcase, cancelling_wakes_who_waits);
    tcase_add_test(tcase, who_is_told_may_come_while_reads_fail);
    tcase_add_test(tcase, stale_handle_is_opened_again);
    tcase_add_test(tcase, another_file_is_not_taken_for_it);
    tcase_add_test(tcase, a_file_that_is_gone_ends_with_the_error);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
