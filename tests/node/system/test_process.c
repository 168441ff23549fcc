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
    struct process_facts me;
    ck_assert_int_eq(process_look(getpid(), &me), 0);
    ck_assert(!me.is_dead && !me.is_stopped);
    ck_assert_int_eq(me.parent, getppid());
    ck_assert_int_eq(me.session, getsid(0));
    ck_assert(process_lives(getpid(), me.start_ticks));
    ck_assert(!process_lives(getpid(), me.start_ticks + 1));
    ck_assert_int_eq(process_look(0, &me), -ESRCH);
    ck_assert_int_eq(process_look(-5, &me), -ESRCH);
}
END_TEST

START_TEST(a_name_full_of_parentheses_does_not_confuse)
{
    struct process_facts before, after;
    char name[PROCESS_NAME_MAX];
    ck_assert_int_eq(process_look(getpid(), &before), 0);
    prctl(PR_SET_NAME, ") Z 1 (\x1b[2J");
    ck_assert_int_eq(process_look(getpid(), &after), 0);
    ck_assert_uint_eq(after.start_ticks, before.start_ticks);
    ck_assert(!after.is_dead);
    ck_assert_str_eq(process_name(getpid(), name), ") Z 1 (?[2J");
}
END_TEST

START_TEST(a_zombie_does_not_live)
{
    struct process_facts facts;
    pid_t pid = sleeper();
    ck_assert_int_eq(process_look(pid, &facts), 0);
    ck_assert(process_lives(pid, facts.start_ticks));
    kill_and_leave(pid);
    ck_assert(!process_lives(pid, facts.start_ticks));
    waitpid(pid, NULL, 0);
}
END_TEST

START_TEST(a_killed_process_is_known_at_once)
{
    struct process_facts facts;
    for (int i = 0; i < 100; i++) {
        pid_t pid = sleeper();
        ck_assert_int_eq(process_look(pid, &facts), 0);
        ck_assert(!process_is_killed(pid, facts.start_ticks));
        kill(pid, SIGKILL);
        ck_assert(process_is_killed(pid, facts.start_ticks));
        waitpid(pid, NULL, 0);
        ck_assert(process_is_killed(pid, facts.start_ticks));
    }
}
END_TEST

START_TEST(a_program_is_above_what_it_forks)
{
    struct process_facts me, program, above, other;
    ck_assert_int_eq(process_program(getpid(), false, &program), 0);
    ck_assert_int_eq(process_program(getpid(), true, &above), 0);
    ck_assert(!program.is_fork && !above.is_fork);
    ck_assert_int_ne(program.pid, above.pid);
    pid_t pid = fork();
    if (pid == 0)
        _exit(process_look(getpid(), &me) < 0 || !me.is_fork ||
              process_program(getpid(), false, &other) < 0 || other.pid != program.pid ||
              process_program(getpid(), true, &other) < 0 || other.pid != above.pid);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(a_stopped_process_lives)
{
    struct process_facts facts;
    siginfo_t info;
    pid_t pid = sleeper();
    ck_assert_int_eq(process_look(pid, &facts), 0);
    ck_assert(!process_is_stopped(pid, facts.start_ticks));
    kill(pid, SIGSTOP);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
    ck_assert(process_is_stopped(pid, facts.start_ticks));
    ck_assert(!process_is_stopped(pid, facts.start_ticks + 1));
    ck_assert(process_lives(pid, facts.start_ticks));
    kill_and_leave(pid);
    waitpid(pid, NULL, 0);
}
END_TEST

static int give(void *ctx)
{
    return *(int *)ctx;
}

static int hang(void *ctx)
{
    for (;;)
        pause();
    return *(int *)ctx;
}

START_TEST(a_try_gives_what_was_returned_and_does_not_wait_for_ever)
{
    int numbers[] = {0, -ENOENT, -ENOTCONN};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(process_try(give, &numbers[i], -1), numbers[i]);
        ck_assert_int_eq(process_try(give, &numbers[i], 60000), numbers[i]);
    }
    ck_assert_int_eq(process_try(hang, numbers, 1), -ETIMEDOUT);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* no zombie is left */
    ck_assert_int_eq(errno, ECHILD);
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
    tcase_add_test(c, a_killed_process_is_known_at_once);
    tcase_add_test(c, a_program_is_above_what_it_forks);
    tcase_add_test(c, a_stopped_process_lives);
    tcase_add_test(c, a_try_gives_what_was_returned_and_does_not_wait_for_ever);
    tcase_add_test(c, a_watch_sees_the_end);
    tcase_add_test(c, a_watch_of_nobody_is_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
