/*
 * The edge of the program: sizes and numbers, options and their errors, names on a
 * terminal and in JSON, progress. What is printed is caught by a child process whose
 * standard output and error are files.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "json.h"
#include "numbers.h"
#include "suite.h"

static const struct cli_command command = {
    .name = "test", .synopsis = "[-l] [--path PATH] ARCHIVE...", .text = "Tests.\n"};

/* ---- a child whose output is kept ---- */

struct output {
    int status; /* exit status */
    char out[4096], err[4096];
};

static void slurp(int fd, char *buf, size_t size)
{
    ssize_t n = pread(fd, buf, size - 1, 0);
    ck_assert_int_ge(n, 0);
    buf[n] = '\0';
    close(fd);
}

static struct output in_child(int (*work)(void *arg), void *arg, const char *out_path)
{
    struct output output = {0};
    int out = out_path ? open(out_path, O_WRONLY) : memfd_create("out", 0);
    int err = memfd_create("err", 0);
    ck_assert(out >= 0 && err >= 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        int status = cli_finish(work(arg));
        _exit(status);
    }
    int wait_status;
    ck_assert_int_eq(waitpid(pid, &wait_status, 0), pid);
    ck_assert(WIFEXITED(wait_status));
    output.status = WEXITSTATUS(wait_status);
    if (out_path)
        close(out);
    else
        slurp(out, output.out, sizeof(output.out));
    slurp(err, output.err, sizeof(output.err));
    return output;
}

/* ---- sizes and numbers ---- */

START_TEST(sizes_take_binary_units)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"4096", 4096},
        {"1K", 1024},
        {"3k", 3072},
        {"2M", UINT64_C(2) << 20},
        {"5G", UINT64_C(5) << 30},
        {"7T", UINT64_C(7) << 40},
        {"16MiB", UINT64_C(16) << 20},
        {"18446744073709551615", UINT64_MAX},
        {"16777215T", UINT64_C(16777215) << 40},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 1;
        ck_assert_msg(size_parse(cases[i].text, &bytes) == 0, "%s", cases[i].text);
        ck_assert_uint_eq(bytes, cases[i].bytes);
    }
}
END_TEST

START_TEST(sizes_that_are_none_or_overflow_are_refused)
{
    static const char *const none[] = {"",    "K",   "-1",  " 1",  "1 ",    "1X",
                                       "1KB", "1kk", "0x1", "1.5", "1KiBs", "+1"};
    static const char *const large[] = {"18446744073709551616", "16777216T",
                                        "18014398509481984K", "99999999999999999999999999"};
    uint64_t bytes = 77;
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        ck_assert_msg(size_parse(none[i], &bytes) == -EINVAL, "%s", none[i]);
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++)
        ck_assert_msg(size_parse(large[i], &bytes) == -ERANGE, "%s", large[i]);
    ck_assert_uint_eq(bytes, 77);
}
END_TEST

START_TEST(numbers_keep_to_their_range)
{
    uint64_t n = 77;
    ck_assert_int_eq(cli_parse_number("0", 1, 10, &n), -ERANGE);
    ck_assert_int_eq(cli_parse_number("11", 1, 10, &n), -ERANGE);
    ck_assert_int_eq(cli_parse_number("1K", 1, 10000, &n), -EINVAL);
    ck_assert_int_eq(cli_parse_number("", 0, 10, &n), -EINVAL);
    ck_assert_int_eq(cli_parse_number("18446744073709551616", 0, UINT64_MAX, &n), -ERANGE);
    ck_assert_uint_eq(n, 77);
    ck_assert_int_eq(cli_parse_number("10", 1, 10, &n), 0);
    ck_assert_uint_eq(n, 10);
}
END_TEST

START_TEST(bytes_counts_and_times_read_well)
{
    char buf[CLI_TEXT_LEN];
    ck_assert_str_eq(cli_format_bytes(0, buf), "0 bytes");
    ck_assert_str_eq(cli_format_bytes(1, buf), "1 byte");
    ck_assert_str_eq(cli_format_bytes(1023, buf), "1023 bytes");
    ck_assert_str_eq(cli_format_bytes(1536, buf), "1.5 KiB");
    ck_assert_str_eq(cli_format_bytes((1u << 20) - 1, buf), "1.0 MiB");
    ck_assert_str_eq(cli_format_bytes(UINT64_MAX, buf), "16.0 EiB");
    ck_assert_str_eq(cli_format_count(0, buf), "0");
    ck_assert_str_eq(cli_format_count(999, buf), "999");
    ck_assert_str_eq(cli_format_count(1000, buf), "1,000");
    ck_assert_str_eq(cli_format_count(UINT64_MAX, buf), "18,446,744,073,709,551,615");
    ck_assert_str_eq(cli_format_time(850, buf), "850 ns");
    ck_assert_str_eq(cli_format_time(12300, buf), "12.3 us");
    ck_assert_str_eq(cli_format_time(UINT64_C(7100000000), buf), "7.1 s");
    ck_assert_str_eq(cli_format_time(UINT64_C(185000000000), buf), "3 min 5 s");
    ck_assert_str_eq(cli_format_time(UINT64_C(7800000000000), buf), "2 h 10 min");
}
END_TEST

/* ---- names ---- */

/* What a printing function makes of bytes, in memory. */
static const char *printed(void (*print)(FILE *, const char *, size_t), const char *bytes,
                           size_t len)
{
    static char buf[256];
    memset(buf, 0, sizeof(buf));
    FILE *out = fmemopen(buf, sizeof(buf) - 1, "w");
    ck_assert_ptr_nonnull(out);
    print(out, bytes, len);
    fclose(out);
    return buf;
}

START_TEST(json_strings_lose_no_byte)
{
    ck_assert_str_eq(printed(json_string, "a\"b\\c", 5), "\"a\\\"b\\\\c\"");
    ck_assert_str_eq(printed(json_string, "a\nb\x01", 4), "\"a\\u000ab\\u0001\"");
    ck_assert_str_eq(printed(json_string, "\x7f", 1), "\"\\u007f\"");
    ck_assert_str_eq(printed(json_string, "\xc3\xa4", 2), "\"\xc3\xa4\"");
    ck_assert_str_eq(printed(json_string, "\xff\xfe.jpg", 6), "\"\\udcff\\udcfe.jpg\"");
    /* Cut, overlong and surrogate sequences are bytes, not characters. */
    ck_assert_str_eq(printed(json_string, "\xc3", 1), "\"\\udcc3\"");
    ck_assert_str_eq(printed(json_string, "\xc0\x80", 2), "\"\\udcc0\\udc80\"");
    ck_assert_str_eq(printed(json_string, "\xed\xa0\x80", 3), "\"\\udced\\udca0\\udc80\"");
    ck_assert_str_eq(printed(json_string, "", 0), "\"\"");
}
END_TEST

START_TEST(json_strings_cannot_steer_a_terminal)
{
    ck_assert_str_eq(printed(json_string, "\xc2\x80\xc2\x9b\xc2\x9f", 6),
                     "\"\\u0080\\u009b\\u009f\"");
    ck_assert_str_eq(printed(json_string, "\xc2\xa0", 2), "\"\xc2\xa0\"");
    ck_assert_str_eq(printed(json_string, "\xe2\x80\xa8\xe2\x80\xa9", 6), "\"\\u2028\\u2029\"");
    ck_assert_str_eq(printed(json_string, "\xe2\x80\xae", 3), "\"\\u202e\"");
}
END_TEST

START_TEST(a_name_cannot_steer_a_terminal)
{
    ck_assert_str_eq(printed(cli_print_safe, "\033[2J\n", 5), "\\x1b[2J\\x0a");
    ck_assert_str_eq(printed(cli_print_safe, "\xc2\x9b", 2), "\\xc2\\x9b"); /* C1 CSI */
    ck_assert_str_eq(printed(cli_print_safe, "\xe2\x80\xae", 3), "\\xe2\\x80\\xae"); /* RLO */
    ck_assert_str_eq(printed(cli_print_safe, "\xc3\xa4 \xf0\x9f\x90\x88", 7),
                     "\xc3\xa4 \xf0\x9f\x90\x88");
}
END_TEST

/* ---- messages ---- */

static int fail_with_fault(void *arg)
{
    (void)arg;
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, "dir/x\n", 1536, "size %d lies past the end", 99);
    fault_advise(&fault, "copy it again");
    return cli_fail("a\nb.tar", -EUCLEAN, &fault);
}

START_TEST(an_error_is_one_line_with_file_member_offset_and_advice)
{
    struct output o = in_child(fail_with_fault, NULL, NULL);
    ck_assert_int_eq(o.status, CLI_FAILED);
    ck_assert_str_eq(o.err, "onepot: a\\x0ab.tar: dir/x\\x0a: size 99 lies past the end "
                            "(offset 1536); copy it again\n");
}
END_TEST

static int fail_without_fault(void *arg)
{
    (void)arg;
    return cli_fail("x.tar", -ENOENT, NULL);
}

START_TEST(an_error_without_fault_is_the_system_s_words)
{
    struct output o = in_child(fail_without_fault, NULL, NULL);
    ck_assert_str_eq(o.err, "onepot: x.tar: No such file or directory\n");
}
END_TEST

static int print_line(void *arg)
{
    puts("a line");
    return *(int *)arg;
}

START_TEST(output_that_does_not_arrive_is_a_failure)
{
    int status = 0;
    struct output o = in_child(print_line, &status, "/dev/full");
    ck_assert_int_eq(o.status, CLI_FAILED);
    ck_assert_str_eq(o.err, "onepot: standard output: No space left on device\n");
    status = 7;
    ck_assert_int_eq(in_child(print_line, &status, "/dev/full").status, 7);
    ck_assert_int_eq(in_child(print_line, &status, NULL).status, 7);
    status = 0;
    ck_assert_int_eq(in_child(print_line, &status, NULL).status, 0);
}
END_TEST

/* ---- options ---- */

#define ARGS_MAX 8

static int print_argument(const struct cli_command *u, void *name, const char *text)
{
    (void)u;
    printf("%s=%s ", (const char *)name, text ? text : "");
    return 0;
}

/* Parses arguments and prints what is taken. */
static int scan(void *arg)
{
    const struct cli_option options[] = {
        {"-l, --long", "long", .take = print_argument, .ctx = (char *)"l"},
        {"--path=PATH", "path", .take = print_argument, .ctx = (char *)"path"},
        {"--stage[=DIR]", "stage", .take = print_argument, .ctx = (char *)"stage"},
        {"-C DIR", "directory", .take = print_argument, .ctx = (char *)"C"},
        {NULL},
    };
    char **argv = arg;
    int argc = 0;
    while (argv[argc])
        argc++;
    int status = cli_parse(&command, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    for (int i = optind; i < argc; i++)
        printf("<%s>", argv[i]);
    return CLI_OK;
}

static struct output scanned(const char *a, const char *b, const char *c)
{
    char *argv[ARGS_MAX] = {(char *)"test", (char *)a, (char *)b, (char *)c, NULL};
    return in_child(scan, argv, NULL);
}

START_TEST(options_may_stand_behind_arguments)
{
    ck_assert_str_eq(scanned("A", "--path", "p").out, "path=p <A>");
    ck_assert_str_eq(scanned("-lCdir", "A", NULL).out, "l= C=dir <A>");
    ck_assert_str_eq(scanned("--stage", "A", NULL).out, "stage= <A>");
    ck_assert_str_eq(scanned("--stage=d", "--", "-l").out, "stage=d <-l>");
}
END_TEST

START_TEST(wrong_options_are_usage_errors_that_name_the_nearest)
{
    static const struct {
        const char *arg, *err;
    } cases[] = {
        {"--lnog", "there is no option '--lnog', did you mean '--long'?"},
        {"--pth=x", "there is no option '--pth', did you mean '--path'?"},
        {"--zzzzzz", "there is no option '--zzzzzz'"},
        {"-x", "there is no option '-x'"},
        {"-lx", "there is no option '-x'"},
        {"--path", "option '--path' needs an argument"},
        {"-C", "option '-C' needs an argument"},
        {"--long=1", "option '--long' takes no argument"},
        {"--he\nlp", "there is no option '--he\\x0alp', did you mean '--help'?"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char expected[256];
        snprintf(expected, sizeof(expected), "onepot test: %s; see 'onepot test --help'\n",
                 cases[i].err);
        struct output o = scanned(cases[i].arg, NULL, NULL);
        ck_assert_str_eq(o.err, expected);
        ck_assert_int_eq(o.status, CLI_USAGE);
    }
}
END_TEST

START_TEST(help_and_version_go_to_standard_output)
{
    struct output o = scanned("--help", NULL, NULL);
    ck_assert_int_eq(o.status, 0);
    ck_assert_ptr_nonnull(
        strstr(o.out, "Usage: onepot test [-l] [--path PATH] ARCHIVE...\nTests.\n"));
    ck_assert_str_eq(scanned("-h", NULL, NULL).out, o.out);
    ck_assert_str_eq(scanned("--version", NULL, NULL).out, "onepot " ONEPOT_VERSION "\n");
    ck_assert_str_eq(o.err, "");
}
END_TEST

START_TEST(the_nearest_word_is_near)
{
    static const char *const words[] = {"mount", "umount", "ls", "cat", "info", "index", NULL};
    ck_assert_str_eq(cli_nearest("muont", words), "mount");
    ck_assert_str_eq(cli_nearest("unmount", words), "umount");
    ck_assert_str_eq(cli_nearest("inf", words), "info");
    ck_assert_str_eq(cli_nearest("lss", words), "ls");
    ck_assert_ptr_null(cli_nearest("frobnicate", words));
    ck_assert_ptr_null(cli_nearest("", words));
    char longest[400];
    memset(longest, 'm', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    ck_assert_ptr_null(cli_nearest(longest, words));
}
END_TEST

static int bad_arguments(void *arg)
{
    uint64_t n;
    (void)arg;
    ck_assert_int_eq(cli_size_option(&command, "--cache", "1X", &n), CLI_USAGE);
    ck_assert_int_eq(cli_size_option(&command, "--cache", "99999999T", &n), CLI_USAGE);
    ck_assert_int_eq(cli_number_option(&command, "--threads", "0", 1, 64, &n), CLI_USAGE);
    ck_assert_int_eq(cli_number_option(&command, "--threads", "4", 1, 64, &n), 0);
    const struct cli_option options[] = {CLI_PROGRESS, {NULL}};
    char *argv[] = {(char *)"test", (char *)"--progress=sometimes", NULL};
    return cli_parse(&command, options, 2, argv);
}

START_TEST(wrong_arguments_name_their_option)
{
    struct output o = in_child(bad_arguments, NULL, NULL);
    ck_assert_int_eq(o.status, CLI_USAGE);
    ck_assert_str_eq(
        o.err, "onepot test: --cache: '1X' is not a size; write a number with K, M, G or T; "
               "see 'onepot test --help'\n"
               "onepot test: --cache: '99999999T' is too large; see 'onepot test --help'\n"
               "onepot test: --threads: '0' is not between 1 and 64; "
               "see 'onepot test --help'\n"
               "onepot test: --progress: 'sometimes' is not one of auto, always, never; "
               "see 'onepot test --help'\n");
}
END_TEST

/* A variable that is not set: refused where a later one of the same option follows, too. */
static int empty_directory(void *arg)
{
    const char *dir = NULL;
    const struct cli_option options[] = {{"--stage[=DIR]", "", .text = &dir}, {NULL}};
    char *argv[] = {(char *)"test", (char *)"--stage", arg, (char *)"--stage=/tmp", NULL};
    optind = 1;
    return cli_parse(&command, options, 4, argv);
}

START_TEST(a_directory_s_name_is_not_empty)
{
    struct output o = in_child(empty_directory, (char *)"--stage=", NULL);
    ck_assert_int_eq(o.status, CLI_USAGE);
    ck_assert_str_eq(o.err, "onepot test: --stage= needs a directory; "
                            "see 'onepot test --help'\n");
    o = in_child(empty_directory, (char *)"--stage=/", NULL);
    ck_assert_str_eq(o.err, "");
}
END_TEST

/* ---- progress ---- */

static int work_with_progress(void *arg)
{
    struct progress state = {.bytes_done = 512, .bytes_total = 2048, .members = 1234};
    struct cli_progress progress;
    cli_progress_mode = *(enum cli_progress_mode *)arg;
    cli_progress_start(&progress);
    cli_progress_show(&progress, "indexing", &state);
    cli_progress_show(&progress, "indexing", &state);
    cli_progress_note(&progress, "a note");
    cli_progress_end(&progress);
    return 0;
}

START_TEST(progress_is_silent_unless_there_is_a_terminal_or_a_wish)
{
    enum cli_progress_mode mode = CLI_PROGRESS_AUTO;
    ck_assert_str_eq(in_child(work_with_progress, &mode, NULL).err, "onepot: a note\n");
    mode = CLI_PROGRESS_NEVER;
    ck_assert_str_eq(in_child(work_with_progress, &mode, NULL).err, "onepot: a note\n");
    mode = CLI_PROGRESS_ALWAYS;
    ck_assert_str_eq(in_child(work_with_progress, &mode, NULL).err,
                     "onepot: indexing: 512 bytes of 2.0 KiB (25 %), 1,234 files\n"
                     "onepot: a note\n");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cli");
    TCase *c = tcase_create("cli");
    tcase_add_test(c, sizes_take_binary_units);
    tcase_add_test(c, sizes_that_are_none_or_overflow_are_refused);
    tcase_add_test(c, numbers_keep_to_their_range);
    tcase_add_test(c, bytes_counts_and_times_read_well);
    tcase_add_test(c, json_strings_lose_no_byte);
    tcase_add_test(c, json_strings_cannot_steer_a_terminal);
    tcase_add_test(c, a_name_cannot_steer_a_terminal);
    tcase_add_test(c, an_error_is_one_line_with_file_member_offset_and_advice);
    tcase_add_test(c, an_error_without_fault_is_the_system_s_words);
    tcase_add_test(c, output_that_does_not_arrive_is_a_failure);
    tcase_add_test(c, options_may_stand_behind_arguments);
    tcase_add_test(c, wrong_options_are_usage_errors_that_name_the_nearest);
    tcase_add_test(c, help_and_version_go_to_standard_output);
    tcase_add_test(c, the_nearest_word_is_near);
    tcase_add_test(c, wrong_arguments_name_their_option);
    tcase_add_test(c, a_directory_s_name_is_not_empty);
    tcase_add_test(c, progress_is_silent_unless_there_is_a_terminal_or_a_wish);
    suite_add_tcase(s, c);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
