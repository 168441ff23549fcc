/* Threads for tasks, vectors, texts, integers of a fixed byte order, files and trees of them.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "bytes.h"
#include "helpers.h"
#include "file_id.h"
#include "pause.h"
#include "remove_tree.h"
#include "suite.h"
#include "syscalls.h"
#include "text.h"
#include "vector.h"

struct counted {
    struct helper_task task;
    unsigned runs;
};

static void count_run(struct helper_task *task)
{
    ((struct counted *)task)->runs++;
}

/* In a new folder, "tree" with a chain of directories and `files` files at its end. */
static int make_deep_tree(unsigned depth, unsigned files)
{
    char folder[256], name[32];
    suite_make_folder("trees", folder, sizeof(folder));
    int top = open(folder, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(mkdirat(top, "tree", 0700), 0);
    int fd = openat(top, "tree", O_RDONLY | O_DIRECTORY);
    for (unsigned i = 0; i < depth; i++) {
        ck_assert_int_eq(mkdirat(fd, "d", 0700), 0);
        int next = openat(fd, "d", O_RDONLY | O_DIRECTORY);
        close(fd);
        fd = next;
    }
    for (unsigned i = 0; i < files; i++) {
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(mknodat(fd, name, S_IFREG | 0400, 0), 0);
    }
    ck_assert_int_eq(fchmod(fd, 0), 0);
    close(fd);
    return top;
}

START_TEST(tree_is_removed_however_deep_and_closed_but_not_what_it_links_to)
{
    struct rlimit few = {100, 100};
    int top = make_deep_tree(200, 3);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_assert_int_eq(mkdirat(top, "outside", 0700), 0);
    ck_assert_int_eq(mkdirat(top, "outside/kept", 0700), 0);
    ck_assert_int_eq(mkdirat(top, "tree/.0", 0700), 0); /* a name that it might use itself */
    ck_assert_int_eq(symlinkat("../../outside", top, "tree/.0/link"), 0);
    ck_assert(!remove_tree(top, "tree/.0/link", UINT64_MAX));
    ck_assert(remove_tree(top, "tree", UINT64_MAX));
    ck_assert_int_lt(faccessat(top, "tree", F_OK, 0), 0);
    ck_assert_int_eq(faccessat(top, "outside/kept", F_OK, 0), 0);
    ck_assert(remove_tree(top, "tree", UINT64_MAX)); /* it is gone, as was to be */
    ck_assert(remove_tree(top, "outside", UINT64_MAX));
    close(top);
}
END_TEST

START_TEST(tree_is_left_when_the_time_is_over)
{
    unsigned left = 0;
    char name[32];
    int top = make_deep_tree(2, 1000);
    ck_assert(!remove_tree(top, "tree", 0));
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "tree/d/d/%u", i);
        left += faccessat(top, name, F_OK, 0) == 0;
    }
    ck_assert_uint_ge(
        left, 700); /* it looks at the clock at every 256th, in the order of a listing */
    ck_assert(remove_tree(top, "tree", UINT64_MAX));
    close(top);
}
END_TEST

START_TEST(helpers_runs_each_task_once)
{
    struct counted tasks[300] = {0};
    struct helpers *helpers = NULL;
    ck_assert(_i == 0 || helpers_new((unsigned)_i, &helpers) == 0);
    ck_assert_uint_eq(helpers_threads(helpers), (unsigned)_i);
    for (unsigned i = 0; i < 300; i++) {
        tasks[i].task.run = count_run;
        helpers_begin(helpers, &tasks[i].task);
    }
    for (unsigned i = 0; i < 300; i++)
        if (i % 3)
            helpers_finish(helpers, &tasks[i].task);
        else
            helpers_cancel(helpers, &tasks[i].task);
    helpers_free(helpers);
    for (unsigned i = 0; i < 300; i++)
        ck_assert(i % 3 ? tasks[i].runs == 1 : tasks[i].runs <= 1);
}
END_TEST

/* A task that is not needed while others run: it never does. */
START_TEST(helpers_forgets_what_was_cancelled)
{
    struct counted task = {.task.run = count_run};
    struct helpers *helpers;
    ck_assert_int_eq(helpers_new(0, &helpers), 0);
    helpers_begin(helpers, &task.task);
    helpers_cancel(helpers, &task.task);
    ck_assert_uint_eq(task.runs, 0);
    helpers_begin(helpers, &task.task);
    helpers_finish(helpers, &task.task);
    ck_assert_uint_eq(task.runs, 1);
    helpers_free(helpers);
}
END_TEST

START_TEST(vector_keeps_what_was_pushed)
{
    VECTOR(uint64_t) v = {0};
    for (uint64_t i = 0; i < 1000; i++)
        ck_assert_int_eq(vector_push(&v, i * i), 0);
    ck_assert_uint_eq(v.count, 1000);
    for (uint64_t i = 0; i < 1000; i++)
        ck_assert_uint_eq(v.at[i], i * i);
    vector_free(&v);
    ck_assert_ptr_null(v.at);
    ck_assert_uint_eq(v.count + v.capacity, 0);
}
END_TEST

START_TEST(vector_appends_arrays_of_any_length)
{
    VECTOR(char) v = {0};
    const size_t none = 0;
    ck_assert_int_eq(vector_append(&v, "", none), 0);
    ck_assert_int_eq(vector_append(&v, "one", 3), 0);
    ck_assert_int_eq(vector_append(&v, "pot", 4), 0);
    ck_assert_str_eq(v.at, "onepot");
    vector_free(&v);
}
END_TEST

START_TEST(vector_is_extended_by_zeros_and_never_cut)
{
    VECTOR(uint32_t) v = {0};
    ck_assert_int_eq(vector_push(&v, 7), 0);
    ck_assert_int_eq(vector_extend(&v, 100u), 0);
    ck_assert_int_eq(vector_extend(&v, 5u), 0);
    ck_assert_uint_eq(v.count, 100);
    ck_assert_uint_eq(v.at[0], 7);
    for (size_t i = 1; i < 100; i++)
        ck_assert_uint_eq(v.at[i], 0);
    vector_free(&v);
}
END_TEST

START_TEST(vector_too_long_for_memory_is_an_error)
{
    VECTOR(uint64_t) v = {0};
    ck_assert_int_eq(vector_push(&v, 7), 0);
    ck_assert_int_eq(vector_reserve(&v, SIZE_MAX), -ENOMEM);
    ck_assert_uint_eq(v.count, 1);
    ck_assert_uint_eq(v.at[0], 7);
    vector_free(&v);
}
END_TEST

START_TEST(text_is_read_to_its_end_in_pieces)
{
    int ends[2];
    struct text text = {0};
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "one\n", 4), 4);
    ck_assert_int_eq(close(ends[1]), 0);
    ck_assert_int_eq(vector_push(&text, '>'), 0);
    ck_assert_int_eq(text_read(ends[0], TEXT_BYTES_MOST, &text), 0);
    ck_assert_uint_eq(text.count, 5);
    ck_assert_int_eq(memcmp(text.at, ">one\n", 5), 0);
    ck_assert_int_eq(close(ends[0]), 0);
    ck_assert_int_eq(text_read(ends[0], TEXT_BYTES_MOST, &text), -EBADF);
    vector_free(&text);
}
END_TEST

START_TEST(text_without_an_end_is_too_long)
{
    struct text text = {0};
    int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(text_read(fd, 1000000, &text), -EFBIG);
    ck_assert_uint_gt(text.count, 1000000);
    ck_assert_uint_lt(text.capacity, 2000000);
    vector_free(&text);
    close(fd);
}
END_TEST

static void ignore_alarm(int number)
{
    (void)number;
}

START_TEST(text_that_waits_can_be_interrupted_and_goes_on)
{
    static const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = ignore_alarm};
    struct text text = {0};
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "one", 3), 3);
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    while (text.count < 3) /* one may come before the first read */
        ck_assert_int_eq(text_read(ends[0], TEXT_BYTES_MOST, &text), -EINTR);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    ck_assert_int_eq(write(ends[1], "pot", 3), 3);
    ck_assert_int_eq(close(ends[1]), 0);
    ck_assert_int_eq(text_read(ends[0], TEXT_BYTES_MOST, &text), 0);
    ck_assert_uint_eq(text.count, 6);
    ck_assert_int_eq(memcmp(text.at, "onepot", 6), 0);
    vector_free(&text);
    close(ends[0]);
}
END_TEST

START_TEST(cursor_takes_no_more_than_there_is)
{
    const uint8_t bytes[] = {1, 2, 3, 4, 5, 6, 7};
    struct cursor c = {bytes, sizeof(bytes)};
    const uint8_t *rest;
    uint16_t little, big;
    uint32_t missing = 42;
    ck_assert(cursor_le16(&c, &little));
    ck_assert_uint_eq(little, 0x0201);
    ck_assert(cursor_be16(&c, &big));
    ck_assert_uint_eq(big, 0x0304);
    ck_assert(!cursor_le32(&c, &missing));
    ck_assert_uint_eq(missing, 42);
    ck_assert_uint_eq(c.left, 3);
    ck_assert(!cursor_take(&c, 4, &rest));
    ck_assert(cursor_take(&c, 3, &rest));
    ck_assert_uint_eq(rest[0], 5);
    ck_assert_uint_eq(c.left, 0);
}
END_TEST

START_TEST(integers_are_read_in_both_orders)
{
    const uint8_t bytes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    ck_assert_uint_eq(bytes_le64(bytes + 1), UINT64_C(0x0807060504030201));
    ck_assert_uint_eq(bytes_be64(bytes + 1), UINT64_C(0x0102030405060708));
    ck_assert_uint_eq(bytes_le32(bytes + 1), 0x04030201);
    ck_assert_uint_eq(bytes_be32(bytes + 1), 0x01020304);
}
END_TEST

START_TEST(integers_are_written_as_they_are_read)
{
    uint8_t bytes[9] = {0};
    bytes_put_le64(bytes + 1, UINT64_C(0x0102030405060708));
    ck_assert_uint_eq(bytes_le64(bytes + 1), UINT64_C(0x0102030405060708));
    ck_assert_uint_eq(bytes[1], 8);
    bytes_put_be32(bytes + 1, 0x01020304);
    ck_assert_uint_eq(bytes[1], 1);
    ck_assert_uint_eq(bytes[0], 0);
}
END_TEST

START_TEST(shorter_of_two_names_that_begin_alike_is_first)
{
    ck_assert_int_lt(bytes_compare("ab", 2, "abc", 3), 0);
    ck_assert_int_gt(bytes_compare("b", 1, "abc", 3), 0);
    ck_assert_int_eq(bytes_compare("abd", 2, "abc", 2), 0);
}
END_TEST

START_TEST(name_that_leads_elsewhere_is_another_file)
{
    char folder[64], first[72], second[72];
    suite_make_folder("toolkit", folder, sizeof(folder));
    snprintf(first, sizeof(first), "%s/first", folder);
    snprintf(second, sizeof(second), "%s/second", folder);
    int dir = open(folder, O_RDONLY | O_DIRECTORY);
    int fd = open(first, O_RDWR | O_CREAT, 0600), other = open(second, O_RDWR | O_CREAT, 0600);
    struct stat st;
    ck_assert_int_eq(file_is_named(dir, "first", fd, &st), 1);
    ck_assert(S_ISREG(st.st_mode));
    ck_assert_int_eq(file_is_named(dir, "second", fd, NULL), 0);
    ck_assert_int_eq(file_is_named(dir, "third", fd, NULL), 0);
    ck_assert_int_eq(unlink(first), 0);
    ck_assert_int_eq(symlink("second", first), 0);
    ck_assert_int_eq(file_is_named(dir, "first", other, NULL), 0);
    ck_assert_int_eq(file_is_named(dir, "first", -1, NULL), -EBADF);
    unlink(first);
    unlink(second);
    close(other);
    close(fd);
    close(dir);
    rmdir(folder);
}
END_TEST

static void *pause_long(void *arg)
{
    return (void *)(uintptr_t)pause_for(arg, UINT64_C(3600000000000));
}

START_TEST(long_pause_is_ended_by_another_thread)
{
    struct pause pause;
    pthread_t thread;
    void *went_on = &pause;
    pause_init(&pause);
    ck_assert_int_eq(pthread_create(&thread, NULL, pause_long, &pause), 0);
    pause_end(&pause);
    ck_assert_int_eq(pthread_join(thread, &went_on), 0);
    ck_assert_ptr_null(went_on);
    ck_assert(!pause_for(&pause, 1));
}
END_TEST

START_TEST(path_is_opened_if_its_names_are_in_memory)
{
    int fd = syscall_open_known("/");
    if (fd == -EINVAL || fd == -ENOSYS || fd == -EPERM) {
        fprintf(stderr, "skipped: the kernel can't tell\n");
        return;
    }
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(syscall_open_known("/proc/self/fd/0"), -EAGAIN);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("toolkit");
    TCase *tests = tcase_create("all");
    tcase_add_loop_test(tests, helpers_runs_each_task_once, 0, 4);
    tcase_add_test(tests, helpers_forgets_what_was_cancelled);
    tcase_add_test(tests, vector_keeps_what_was_pushed);
    tcase_add_test(tests, vector_appends_arrays_of_any_length);
    tcase_add_test(tests, vector_is_extended_by_zeros_and_never_cut);
    tcase_add_test(tests, vector_too_long_for_memory_is_an_error);
    tcase_add_test(tests, text_is_read_to_its_end_in_pieces);
    tcase_add_test(tests, text_without_an_end_is_too_long);
    tcase_add_test(tests, text_that_waits_can_be_interrupted_and_goes_on);
    tcase_add_test(tests, cursor_takes_no_more_than_there_is);
    tcase_add_test(tests, integers_are_read_in_both_orders);
    tcase_add_test(tests, integers_are_written_as_they_are_read);
    tcase_add_test(tests, shorter_of_two_names_that_begin_alike_is_first);
    tcase_add_test(tests, name_that_leads_elsewhere_is_another_file);
    tcase_add_test(tests, tree_is_removed_however_deep_and_closed_but_not_what_it_links_to);
    tcase_add_test(tests, tree_is_left_when_the_time_is_over);
    tcase_add_test(tests, path_is_opened_if_its_names_are_in_memory);
    tcase_add_test(tests, long_pause_is_ended_by_another_thread);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
