/*
 * Archives opened by several threads: their reports to the user, and how they are ended.
 */
#include <check.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "fileset_private.h"
#include "suite.h"

enum { THREADS = 4, ROUNDS = 1000 };

/* What the user's functions saw; `inside` finds two at a time. */
static struct {
    _Atomic int inside;
    uint64_t bytes, members, notes;
    _Atomic bool cancelled;
    bool cancels;
} user;

static _Atomic unsigned begun;

static void forget(void)
{
    memset(&user, 0, sizeof(user));
    begun = 0;
}

static void on_progress(void *ctx, const char *doing, const struct progress *progress)
{
    ck_assert_ptr_eq(ctx, &user);
    ck_assert_str_eq(doing, "indexing");
    ck_assert_int_eq(user.inside++, 0);
    ck_assert_uint_ge(progress->bytes_done, user.bytes);
    ck_assert_uint_le(progress->bytes_done, progress->bytes_total);
    user.bytes = progress->bytes_done;
    user.members = progress->members;
    user.cancelled = user.cancels;
    user.inside--;
}

static void on_note(void *ctx, const char *line)
{
    ck_assert_ptr_eq(ctx, &user);
    ck_assert_str_eq(line, "a remark");
    ck_assert_int_eq(user.inside++, 0);
    user.notes++;
    user.inside--;
}

static const struct fileset_options options = {
    .note = on_note, .progress = on_progress, .cancelled = &user.cancelled, .ctx = &user};

static int team_of(uint64_t bytes_total, void (*run)(void *, const struct fileset_options *))
{
    return opening_team_run(&(struct opening_team){
        .options = &options, .bytes_total = bytes_total, .threads = THREADS, .run = run});
}

/* Archives of 30 bytes and 2 members each. */
static void open_many(void *arg, const struct fileset_options *own)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        struct progress progress = {.bytes_done = 10, .members = 1, .bytes_total = 30};
        own->progress(own->ctx, "indexing", &progress);
        progress.bytes_done = 30;
        progress.members = 2;
        own->progress(own->ctx, "indexing", &progress);
        own->note(own->ctx, "a remark");
    }
}

START_TEST(reports_come_one_at_a_time_and_add_up)
{
    ck_assert_int_eq(team_of(UINT64_C(30) * THREADS * ROUNDS, open_many), 0);
    ck_assert_uint_eq(user.bytes, UINT64_C(30) * THREADS * ROUNDS);
    ck_assert_uint_eq(user.members, UINT64_C(2) * THREADS * ROUNDS);
    ck_assert_uint_eq(user.notes, UINT64_C(1) * THREADS * ROUNDS);
}
END_TEST

START_TEST(progress_does_not_exceed_the_total)
{
    ck_assert_int_eq(team_of(100, open_many), 0);
    ck_assert_uint_eq(user.bytes, 100);
}
END_TEST

/* One that does not end of itself. */
static void open_forever(void *arg, const struct fileset_options *own)
{
    (void)arg;
    struct progress progress = {0};
    while (!*own->cancelled)
        own->progress(own->ctx, "indexing", &progress);
}

START_TEST(user_who_cancels_ends_all)
{
    user.cancels = true;
    ck_assert_int_eq(team_of(0, open_forever), 0);
}
END_TEST

static void on_signal(int number)
{
    (void)number;
}

static void open_until_signal(void *arg, const struct fileset_options *own)
{
    if (++begun == THREADS)
        ck_assert_int_eq(kill(getpid(), SIGTERM), 0);
    open_forever(arg, own);
}

START_TEST(signal_ends_all)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    ck_assert_int_eq(sigaction(SIGTERM, &action, &before), 0);
    ck_assert_int_eq(team_of(0, open_until_signal), -EINTR);
    ck_assert_int_eq(sigaction(SIGTERM, &before, NULL), 0);
}
END_TEST

/* A program's own signals, as a profiler's timer, wait until the work is done. */
static void open_through_signal(void *arg, const struct fileset_options *own)
{
    (void)arg;
    ck_assert(!*own->cancelled);
    ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
}

START_TEST(other_signals_end_nothing)
{
    struct sigaction action = {.sa_handler = on_signal}, before;
    ck_assert_int_eq(sigaction(SIGUSR1, &action, &before), 0);
    ck_assert_int_eq(team_of(0, open_through_signal), 0);
    ck_assert_int_eq(sigaction(SIGUSR1, &before, NULL), 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("opening_team");
    tcase_add_checked_fixture(tests, forget, NULL);
    tcase_add_test(tests, reports_come_one_at_a_time_and_add_up);
    tcase_add_test(tests, progress_does_not_exceed_the_total);
    tcase_add_test(tests, user_who_cancels_ends_all);
    tcase_add_test(tests, signal_ends_all);
    tcase_add_test(tests, other_signals_end_nothing);

    Suite *suite = suite_create("opening_team");
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
