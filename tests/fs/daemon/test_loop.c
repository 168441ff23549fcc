/* Which worker takes requests: decisions of the loop, by given times. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "core.h"
#include "suite.h"

#define US UINT64_C(1000)

START_TEST(a_request_received_at_once_after_a_long_one_has_waited)
{
    uint64_t done = 1000000 * US;

    ck_assert(loop_has_waited(60 * US, done, done + 4 * US));
    ck_assert(!loop_has_waited(60 * US, done, done + 6 * US)); /* its reader began later */
    ck_assert(!loop_has_waited(40 * US, done, done + 1 * US)); /* too short to wait behind */
    ck_assert(!loop_has_waited(0, 0, done));                   /* the first one */
}
END_TEST

START_TEST(a_worker_steps_back_when_another_waits_and_it_is_calm)
{
    ck_assert(!loop_steps_back(2, true, 63));
    ck_assert(loop_steps_back(2, true, 64));
    ck_assert(!loop_steps_back(1, true, 1000)); /* somebody must wait for requests */
}
END_TEST

START_TEST(an_extra_worker_steps_back_at_once)
{
    ck_assert(loop_steps_back(2, false, 0));
    ck_assert(!loop_steps_back(1, false, 0));
}
END_TEST

START_TEST(stuck_workers_are_replaced)
{
    ck_assert_uint_eq(loop_workers_limit(4, 0, false), 4 + 64);
    ck_assert_uint_eq(loop_workers_limit(4, 10, false), 4 + 64 + 10);
}
END_TEST

START_TEST(readers_of_a_stream_may_all_wait_but_for_the_last_resort)
{
    ck_assert_uint_eq(loop_workers_limit(4, 0, true), SESSION_WORKERS_MAX - 1);
    ck_assert_uint_eq(loop_workers_limit(4, 500, true), 4 + 64 + 500);
}
END_TEST

START_TEST(the_readers_cpu_is_field_39_whatever_its_name)
{
    ck_assert_int_eq(loop_parse_cpu("7 (a b) ) R 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 "
                                    "21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 11 "
                                    "40 41\n"),
                     11);
    ck_assert_int_eq(loop_parse_cpu("7 (short) R 4 5"), -1);
    ck_assert_int_eq(loop_parse_cpu(""), -1);
}
END_TEST

/* In place of the library's, for all of this program: a job may have no more threads. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                   void *arg)
{
    (void)thread, (void)attr, (void)run, (void)arg;
    return EAGAIN;
}

START_TEST(a_worker_that_gets_no_thread_is_equipped_once)
{
    static struct counters counters;
    static struct session s;
    int fds[2];

    ck_assert_int_eq(pipe(fds), 0);
    s.fd = fds[0];
    s.config.counters = &counters;
    ck_assert_int_eq(loop_wake_another_locked(&s), -EAGAIN);
    const struct worker first = *s.loop.workers[0];
    ck_assert_int_eq(loop_wake_another_locked(&s), -EAGAIN);
    ck_assert_uint_eq(s.loop.worker_count, 1);
    ck_assert_ptr_eq(s.loop.workers[0]->buffer, first.buffer);
    ck_assert_ptr_eq(s.loop.workers[0]->reply_buffer, first.reply_buffer);
    ck_assert_ptr_eq(s.loop.workers[0]->scratch, first.scratch);
    ck_assert_int_eq(s.loop.workers[0]->fd, first.fd);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

START_TEST(where_no_more_threads_are_to_be_had_a_worker_that_has_one_is_woken)
{
    static struct counters counters;
    static struct session s;

    s.config.counters = &counters;
    ck_assert_int_eq(loop_wake_another_locked(&s), -EAGAIN);
    atomic_store(&s.loop.workers[0]->parked, 0); /* so that there is a second one */
    ck_assert_int_eq(loop_wake_another_locked(&s), -EAGAIN);
    atomic_store(&s.loop.workers[0]->parked, 1);
    s.loop.workers[1]->started = true;
    ck_assert_int_eq(loop_wake_another_locked(&s), 0);
    ck_assert_uint_eq(atomic_load(&s.loop.workers[0]->parked), 1);
    ck_assert_uint_eq(atomic_load(&s.loop.workers[1]->parked), 0);
    ck_assert_uint_eq(s.loop.active, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loop");
    TCase *tc = tcase_create("loop");
    tcase_add_test(tc, a_request_received_at_once_after_a_long_one_has_waited);
    tcase_add_test(tc, a_worker_steps_back_when_another_waits_and_it_is_calm);
    tcase_add_test(tc, an_extra_worker_steps_back_at_once);
    tcase_add_test(tc, stuck_workers_are_replaced);
    tcase_add_test(tc, readers_of_a_stream_may_all_wait_but_for_the_last_resort);
    tcase_add_test(tc, the_readers_cpu_is_field_39_whatever_its_name);
    tcase_add_test(tc, a_worker_that_gets_no_thread_is_equipped_once);
    tcase_add_test(tc, where_no_more_threads_are_to_be_had_a_worker_that_has_one_is_woken);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
