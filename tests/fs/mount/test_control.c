/*
 * The daemon's life once it serves: who ends it, what it waits for, and that its slot goes. The
 * session and the mount are played; signals, processes and locks are real. What ends the daemon
 * comes before it looks, so nothing waits.
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/eventfd.h>

#include "control.h"
#include "slot_helper.h"
#include "suite.h"
#include "unmounter.h"

/* ---- what is played ---- */

struct session {
    int ended_fd;
    bool is_stopped, was_connected, is_stuck;
    bool can_unmount; /* else the mount is busy */
    unsigned tries;
    unsigned rounds; /* of the daemon's loop until its connection ends; 0: others end it */
};

static struct session session;
static struct slot *slot;
static int log_fds[2];
static char lines[8192]; /* the log */

int session_ended_fd(const struct session *s)
{
    if (session.rounds > 0 && --session.rounds == 0)
        eventfd_write(session.ended_fd, 1);
    return s->ended_fd;
}

bool session_is_connected(const struct session *s)
{
    struct pollfd p = {.fd = s->ended_fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

void session_update_counters(struct session *s)
{
    (void)s;
}

void session_serve(struct session *s)
{
    (void)s;
}

void session_give_back(struct session *s)
{
    (void)s;
}

void session_trouble(struct session *s, enum counter_trouble kind, const char *format, ...)
{
    va_list args;
    (void)s;
    (void)kind;
    va_start(args, format);
    vdprintf(log_fds[1], format, args);
    va_end(args);
}

int session_stop(struct session *s, bool connected)
{
    s->is_stopped = true;
    s->was_connected = connected;
    return s->is_stuck ? -EBUSY : 0;
}

int unmounter_try(const struct slot *of, bool lazy)
{
    (void)of;
    session.tries++;
    if (!session.can_unmount && !lazy)
        return -EBUSY;
    eventfd_write(session.ended_fd, 1); /* as the kernel does */
    return 0;
}

bool unmounter_is_dead(const struct slot *of)
{
    (void)of;
    return false;
}

bool unmounter_forget(const struct slot *of)
{
    slot_remove(of);
    return true;
}

/* ---- a daemon ---- */

static struct control_log control_lines = {.fd = -1};
static struct mount_options options;
static struct control control;

static void setup(void)
{
    slots_setup();
    slot = create("a");
    slot_unlock(slot);
    session = (struct session){.ended_fd = eventfd(0, EFD_CLOEXEC), .can_unmount = true};
    ck_assert_int_eq(pipe2(log_fds, O_CLOEXEC | O_NONBLOCK), 0);
    control_lines.fd = log_fds[1];
    options = (struct mount_options){.archive = "the archive"};
    control = (struct control){.options = &options,
                               .slot = slot,
                               .log = &control_lines,
                               .can_unmount = true,
                               .owner = PROCESS_WATCH_NONE,
                               .wrapper = PROCESS_WATCH_NONE,
                               .starter_fd = -1};
}

static void teardown(void)
{
    slot_close(slot);
    close(session.ended_fd);
    close(log_fds[0]);
    close(log_fds[1]);
}

static void read_log(void)
{
    ssize_t n = read(log_fds[0], lines, sizeof(lines) - 1);
    lines[n > 0 ? n : 0] = '\0';
}

/* Serve, until what the test has prepared ends it. */
static void serve(void)
{
    control_prepare(options.foreground);
    ck_assert_int_eq(control_serve(&control, &session), 0);
    ck_assert(session.is_stopped);
    ck_assert_uint_eq(atomic_load(&slot->counters->state), MOUNT_ENDED);
    ck_assert(!exists("a") && !exists("a.stat") && !exists("a.lock"));
    read_log();
}

/* Blocked, so that it waits until the daemon reads it. */
static void send_signal(int number)
{
    control_prepare(options.foreground);
    ck_assert_int_eq(kill(getpid(), number), 0);
}

static void assert_logged(const char *text)
{
    ck_assert_msg(strstr(lines, text) != NULL, "not in the log: %s\n%s", text, lines);
}

static void assert_not_logged(const char *text)
{
    ck_assert_msg(strstr(lines, text) == NULL, "in the log: %s\n%s", text, lines);
}

/* What it reads from its starter, which has ended by then. */
static void start_from(const char *word)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(write(fds[1], word, strlen(word)), (ssize_t)strlen(word));
    close(fds[1]);
    control.starter_fd = fds[0];
}

/* The loop has gone round once, with a word of the starter or another event, before its end. */
static void serve_a_round(void)
{
    session.rounds = 2;
    serve();
    ck_assert_uint_eq(session.tries, 0);
    assert_not_logged("ending when nobody uses the mount");
}

/* ---- tests ---- */

START_TEST(the_end_of_the_connection_ends_it_and_its_slot)
{
    eventfd_write(session.ended_fd, 1);
    serve();
    ck_assert(!session.was_connected);
    ck_assert_uint_eq(session.tries, 0);
    assert_not_logged("ending when nobody uses the mount");
}
END_TEST

START_TEST(a_signal_ends_it_when_nobody_uses_it)
{
    send_signal(SIGTERM);
    serve();
    ck_assert_uint_eq(session.tries, 1);
    ck_assert(!session.was_connected);
    assert_logged("the archive: asked to end: ending when nobody uses the mount any more\n");
}
END_TEST

/* _i 0: in the foreground; 1: there, by nohup(1); 2: in the background. */
START_TEST(a_hangup_ends_it_in_the_foreground_alone)
{
    signal(SIGHUP, _i == 1 ? SIG_IGN : SIG_DFL);
    options.foreground = _i < 2;
    send_signal(SIGHUP);
    if (_i == 0) {
        serve();
        assert_logged("hangup: ending");
    } else {
        start_from("k");
        serve_a_round();
    }
}
END_TEST

START_TEST(a_mount_of_a_parent_is_left)
{
    control.can_unmount = false;
    control.can_leave = true;
    send_signal(SIGTERM);
    serve();
    ck_assert_uint_eq(session.tries, 0);
    ck_assert(session.was_connected);
    assert_logged("asked to end: ending when nobody uses the mount any more, in 5 s at most");
}
END_TEST

/* A person who presses Ctrl-C three times, each when the daemon has taken note of the last. */
static void *interrupt(void *arg)
{
    sigset_t pending;
    for (unsigned i = 0; i < 3; i++) {
        kill(getpid(), SIGINT);
        while (sigpending(&pending) == 0 && sigismember(&pending, SIGINT))
            sched_yield();
    }
    return arg;
}

/* _i 0: its files are open; 1: a `run` uses it, so unmounting is not even tried. */
START_TEST(the_third_interrupt_ends_it_whoever_uses_it)
{
    pthread_t person;
    session.can_unmount = false;
    options.foreground = true;
    pid_t pid = _i == 1 ? child(be_run, slot) : 0;
    control_prepare(true);
    ck_assert_int_eq(pthread_create(&person, NULL, interrupt, NULL), 0);
    ck_assert_int_eq(control_serve(&control, &session), 0);
    ck_assert_int_eq(pthread_join(person, NULL), 0);
    read_log();
    assert_logged("interrupted (again: within 3 s)");
    ck_assert(session.was_connected);
    if (_i == 0)
        ck_assert_uint_ge(session.tries, 1);
    else
        ck_assert_uint_eq(session.tries, 0);
    if (pid)
        kill_child(pid);
}
END_TEST

START_TEST(the_end_of_its_owner_ends_it)
{
    pid_t pid = child(be_run, slot);
    ck_assert_int_eq(process_watch_open(pid, &control.owner), 0);
    kill_child(pid);
    serve();
    ck_assert_uint_eq(session.tries, 1);
    assert_logged("its owner has ended: ending when nobody uses the mount any more, in 10 s");
}
END_TEST

/* `run` has been killed. */
START_TEST(the_end_of_the_command_that_it_was_for_ends_it)
{
    pid_t pid = child(be_run, slot);
    ck_assert_int_eq(process_watch_open(pid, &control.wrapper), 0);
    kill_child(pid);
    serve();
    ck_assert_uint_eq(session.tries, 1);
    assert_logged("the command that it was for has ended: ending");
}
END_TEST

START_TEST(a_mount_that_others_share_outlives_its_command)
{
    pid_t pid = child(be_run, slot);
    ck_assert_int_eq(process_watch_open(pid, &control.wrapper), 0);
    atomic_store(&slot->counters->holders, 1);
    kill_child(pid);
    serve_a_round();
}
END_TEST

START_TEST(a_mount_of_which_nobody_will_learn_ends)
{
    start_from("");
    atomic_store(&slot->counters->holders, 1);
    serve();
    assert_logged("the process that asked for the mount has ended: ending");
}
END_TEST

START_TEST(a_mount_of_which_others_have_learnt_goes_on)
{
    start_from("");
    atomic_store(&slot->counters->holders, 2);
    serve_a_round();
    ck_assert_uint_eq(atomic_load(&slot->counters->holders), 1);
}
END_TEST

START_TEST(a_starter_that_has_announced_the_mount_may_go)
{
    start_from("k");
    atomic_store(&slot->counters->holders, 1);
    serve_a_round();
    ck_assert_uint_eq(atomic_load(&slot->counters->holders), 1);
}
END_TEST

/* In a child, since it ends its process. */
START_TEST(threads_that_are_stuck_do_not_keep_the_process)
{
    int status;
    session.is_stuck = true;
    pid_t pid = fork();
    if (pid == 0) {
        control_stop(&session, false, 3);
        _exit(1);
    }
    ck_assert_int_eq(process_reap(pid, &status), 0);
    ck_assert_int_eq(WEXITSTATUS(status), 3);
}
END_TEST

START_TEST(a_line_of_the_log_is_one_line)
{
    char longest[3000];
    control_log(&control_lines, "a\nname \x1b[31m \x7f");
    read_log();
    assert_logged("]: a\\x0aname \\x1b[31m \\x7f\n");
    ck_assert_ptr_eq(strchr(lines, '\n'), lines + strlen(lines) - 1);
    memset(longest, '\n', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    control_log(&control_lines, longest);
    read_log();
    ck_assert_uint_gt(strlen(lines), 1000);
    ck_assert_ptr_eq(strchr(lines, '\n'), lines + strlen(lines) - 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("control");
    TCase *c = tcase_create("control");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, the_end_of_the_connection_ends_it_and_its_slot);
    tcase_add_test(c, a_signal_ends_it_when_nobody_uses_it);
    tcase_add_loop_test(c, a_hangup_ends_it_in_the_foreground_alone, 0, 3);
    tcase_add_test(c, a_mount_of_a_parent_is_left);
    tcase_add_loop_test(c, the_third_interrupt_ends_it_whoever_uses_it, 0, 2);
    tcase_add_test(c, the_end_of_its_owner_ends_it);
    tcase_add_test(c, the_end_of_the_command_that_it_was_for_ends_it);
    tcase_add_test(c, a_mount_that_others_share_outlives_its_command);
    tcase_add_test(c, a_mount_of_which_nobody_will_learn_ends);
    tcase_add_test(c, a_mount_of_which_others_have_learnt_goes_on);
    tcase_add_test(c, a_starter_that_has_announced_the_mount_may_go);
    tcase_add_test(c, threads_that_are_stuck_do_not_keep_the_process);
    tcase_add_test(c, a_line_of_the_log_is_one_line);
    suite_add_tcase(s, c);
    return run_suite(s);
}
