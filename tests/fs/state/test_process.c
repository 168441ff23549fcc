/*
 * Other processes: who lives, who is a zombie, whose PID it was, and the wait for an end.
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"
#include "suite.h"

/* A child that sleeps until it is killed. */
static pid_t sleeper(void)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    return pid;
}

/* End it, but leave the zombie. */
static void kill_and_leave(pid_t pid)
{
    siginfo_t info;
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

START_TEST(a_process_is_known_by_pid_and_start_time)
{
    uint64_t ticks;
    char state;
    ck_assert_int_eq(process_stat(getpid(), &ticks, &state), 0);
    ck_assert_int_eq(state, 'R');
    ck_assert(process_lives(getpid(), ticks));
    ck_assert(!process_lives(getpid(), ticks + 1));
    ck_assert_int_eq(process_stat(0, &ticks, &state), -ESRCH);
    ck_assert_int_eq(process_stat(-5, &ticks, &state), -ESRCH);
}
END_TEST

START_TEST(a_name_full_of_parentheses_does_not_confuse)
{
    uint64_t ticks, same;
    char state, name[PROCESS_NAME_MAX];
    ck_assert_int_eq(process_stat(getpid(), &ticks, &state), 0);
    prctl(PR_SET_NAME, ") Z 1 (\x1b[2J");
    ck_assert_int_eq(process_stat(getpid(), &same, &state), 0);
    ck_assert_uint_eq(same, ticks);
    ck_assert_int_eq(state, 'R');
    ck_assert_str_eq(process_name(getpid(), name), ") Z 1 (?[2J");
}
END_TEST

START_TEST(a_zombie_does_not_live)
{
    uint64_t ticks;
    char state;
    pid_t pid = sleeper();
    ck_assert_int_eq(process_stat(pid, &ticks, &state), 0);
    ck_assert(process_lives(pid, ticks));
    ck_assert_int_eq(process_wait_end(pid, ticks, 0), -ETIMEDOUT);
    kill_and_leave(pid);
    ck_assert(!process_lives(pid, ticks));
    ck_assert_int_eq(process_wait_end(pid, ticks, 0), 0);
    waitpid(pid, NULL, 0);
}
END_TEST

/* With a pidfd, and as on a kernel that has none. */
START_TEST(a_watch_sees_the_end)
{
    struct process_watch watch, blind;
    pid_t pid = sleeper();
    ck_assert_int_eq(process_watch_open(pid, &watch), 0);
    blind = watch;
    blind.fd = -1;
    ck_assert(!process_watch_ended(&watch));
    ck_assert(!process_watch_ended(&blind));
    kill_and_leave(pid);
    ck_assert(process_watch_ended(&watch));
    ck_assert(process_watch_ended(&blind));
    waitpid(pid, NULL, 0);
    ck_assert(process_watch_ended(&watch));
    ck_assert(process_watch_ended(&blind));
    process_watch_close(&watch);
    ck_assert(!process_watch_ended(&watch)); /* of nobody */
}
END_TEST

START_TEST(a_watch_of_nobody_is_refused)
{
    struct process_watch watch;
    pid_t pid = sleeper();
    kill_and_leave(pid);
    ck_assert_int_eq(process_watch_open(pid, &watch), -ESRCH);
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(process_watch_open(pid, &watch), -ESRCH);
    char name[PROCESS_NAME_MAX];
    ck_assert_str_eq(process_name(pid, name), "?");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("process");
    TCase *c = tcase_create("process");
    tcase_add_test(c, a_process_is_known_by_pid_and_start_time);
    tcase_add_test(c, a_name_full_of_parentheses_does_not_confuse);
    tcase_add_test(c, a_zombie_does_not_live);
    tcase_add_test(c, a_watch_sees_the_end);
    tcase_add_test(c, a_watch_of_nobody_is_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
