/*
 * The owners of a mount: it stays as long as one of them, or the rest of its session, lives.
 */
#include <check.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "owner.h"
#include "suite.h"

static struct counters counters;
static pid_t leader, member;

static void setup(void)
{
    counters = (struct counters){.pid_namespace = process_namespace()};
}

static _Noreturn void sleep_on(void)
{
    for (;;)
        pause();
}

/* A leader of a session of its own, with one more process in it. */
static void start_session_of_two(void)
{
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    leader = fork();
    if (leader == 0) {
        setsid();
        pid_t pid = fork();
        if (pid == 0)
            sleep_on();
        if (write(fds[1], &pid, sizeof(pid)) < 0)
            _exit(1);
        sleep_on();
    }
    ck_assert_int_eq(read(fds[0], &member, sizeof(member)), sizeof(member));
    close(fds[0]);
    close(fds[1]);
}

/* The member is nobody's child here. */
static void end(pid_t pid)
{
    struct process_watch watch;
    ck_assert_int_eq(process_watch_open(pid, &watch), 0);
    kill(pid, SIGKILL);
    while (!process_watch_ended(&watch))
        sched_yield();
    process_watch_close(&watch);
    if (pid == leader)
        waitpid(pid, NULL, 0);
}

/* The watched process, 0 for nobody, or -1: all have ended. */
static pid_t watched(void)
{
    struct process_watch watch;
    if (!owner_watch(&counters, &watch))
        return -1;
    pid_t pid = watch.pid;
    process_watch_close(&watch);
    return pid;
}

START_TEST(an_owner_is_noted_once_and_watched)
{
    owner_add(&counters, getppid());
    owner_add(&counters, getppid());
    ck_assert_uint_eq(counters.owners, 1);
    ck_assert_int_eq(watched(), getppid());
}
END_TEST

START_TEST(the_rest_of_a_session_takes_the_place_of_its_leader)
{
    start_session_of_two();
    owner_add(&counters, leader);
    ck_assert_int_eq(watched(), leader);
    end(leader);
    ck_assert_int_eq(watched(), member);
    end(member);
    ck_assert_int_eq(watched(), -1);
}
END_TEST

START_TEST(the_last_of_several_owners_counts)
{
    start_session_of_two();
    owner_add(&counters, leader);
    owner_add(&counters, getppid());
    end(member);
    end(leader);
    ck_assert_int_eq(watched(), getppid());
}
END_TEST

START_TEST(an_owner_that_can_not_be_known_never_ends)
{
    owner_add(&counters, 0);
    ck_assert_uint_gt(counters.owners, COUNTERS_OWNERS);
    ck_assert_int_eq(watched(), 0);
    owner_add(&counters, getppid());
    ck_assert_int_eq(watched(), 0);
}
END_TEST

START_TEST(a_process_of_another_namespace_can_not_be_known)
{
    owner_add(&counters, getppid());
    counters.pid_namespace++;
    ck_assert_int_eq(watched(), 0);
    owner_add(&counters, getpid());
    ck_assert_uint_gt(counters.owners, COUNTERS_OWNERS);
}
END_TEST

START_TEST(a_pid_that_another_process_has_now_is_no_owner)
{
    owner_add(&counters, getppid());
    counters.owner[0].start_ticks += 1000000;
    counters.owner[0].pid = getpid();
    ck_assert_int_ne(watched(), getpid());
}
END_TEST

int main(void)
{
    Suite *s = suite_create("owner");
    TCase *c = tcase_create("owner");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, an_owner_is_noted_once_and_watched);
    tcase_add_test(c, the_rest_of_a_session_takes_the_place_of_its_leader);
    tcase_add_test(c, the_last_of_several_owners_counts);
    tcase_add_test(c, an_owner_that_can_not_be_known_never_ends);
    tcase_add_test(c, a_process_of_another_namespace_can_not_be_known);
    tcase_add_test(c, a_pid_that_another_process_has_now_is_no_owner);
    suite_add_tcase(s, c);
    return run_suite(s);
}
