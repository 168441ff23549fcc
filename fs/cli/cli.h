/*
 * What all subcommands share at the edge to a person: options, numbers, messages,
 * progress, names on a terminal and in JSON.
 *
 * A command looks like this:
 *
 *     static const struct cli_usage usage = {"ls", "[-l] ARCHIVE...", "Lists ...\n"};
 *
 *     int command_ls(int argc, char **argv)
 *     {
 *         static const struct option longs[] = {{"long", no_argument, NULL, 'l'},
 * CLI_OPTIONS_END}; int opt, status = CLI_GO_ON; while ((opt = cli_getopt(&usage, argc, argv,
 * "l", longs, &status)) != -1)
 *             ...
 *         if (status != CLI_GO_ON)
 *             return status;
 *         if (optind == argc)
 *             return cli_usage_error(&usage, "no archive was named");
 *         struct pot *pot;
 *         if (cli_open_pot(argv[optind], NULL, CLI_PROGRESS_AUTO, &pot) < 0)
 *             return CLI_FAILED;
 *
 * Messages go to standard error, one line each: `onepot: FILE: what is wrong (offset
 * N); what to do`. Whatever bytes a name in them has, the line stays one line: control
 * bytes and invalid UTF-8 come out as \xNN. main() checks, after the command returned,
 * that everything reached standard output, so commands use stdio without checking.
 *
 * Threads: none of this may be used from several threads at once, but for cli_note.
 */
#ifndef ONEPOT_CLI_H
#define ONEPOT_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "fault.h"
#include "pot.h"

enum cli_status {
    CLI_GO_ON = -1, /* options are read; the command has work to do */
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_RUN_FAILED = 125, /* CLI_FAILED of 'run', whose command has statuses of its own */
};

/* ---- messages ---- */

/* "onepot: FILE: ..." from a fault, or from `err` (either sign) without one; CLI_FAILED. */
int cli_fail(const char *file, int err, const struct fault *fault);

/* "onepot: FILE: text"; FILE may be NULL. Returns CLI_FAILED. */
int cli_failf(const char *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "onepot: text": what a person should know, and no error. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- options ---- */

struct cli_usage {
    const char *name;     /* "ls" */
    const char *synopsis; /* what follows the name: "[-l] ARCHIVE..." */
    const char *text;     /* what it does and its options; ends with a newline */
};

#define CLI_OPTION_VERSION 0x1000 /* own long options start at CLI_OPTION_OWN */
#define CLI_OPTION_MAX_RATIO 0x1001
#define CLI_OPTION_OWN 0x1002

/* Ends a table of long options: what every command has. */
#define CLI_OPTIONS_END                                                                        \
    {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, CLI_OPTION_VERSION},      \
    {                                                                                          \
        NULL, 0, NULL, 0                                                                       \
    }

/* The same for commands that open archives, and what their help says of it. */
#define CLI_ARCHIVE_OPTIONS_END                                                                \
    {"max-ratio", required_argument, NULL, CLI_OPTION_MAX_RATIO}, CLI_OPTIONS_END
#define CLI_ARCHIVE_OPTIONS_HELP                                                               \
    "      --max-ratio=N    a compressed stream may unpack to N times its size, or 'off'\n"

/* What --max-ratio said, for struct pot_options; 0: nothing. */
uint32_t cli_max_ratio(void);

/*
 * getopt_long with our words. Returns the option, or -1 when there are no more: then
 * *ret_status is untouched, or the command's exit status because help was printed or
 * an option was wrong (an error was printed that names the nearest option). `shorts`
 * is as for getopt, without 'h' and ':' in front; it may begin with '+'.
 */
int cli_getopt(const struct cli_usage *usage, int argc, char **argv, const char *shorts,
               const struct option *longs, int *ret_status);

/* "onepot NAME: text; see 'onepot NAME --help'". Returns CLI_USAGE. */
int cli_usage_error(const struct cli_usage *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The candidate (NULL-terminated list) that `word` was probably meant to be, or NULL. */
const char *cli_nearest(const char *word, const char *const *candidates);

/* Bytes: a number with nothing, K, M, G or T behind it (powers of 1024; "4K", "4KiB").
 * -EINVAL, or -ERANGE when it exceeds 64 bits. */
int cli_parse_size(const char *text, uint64_t *ret_bytes);

/* A decimal number within [min, max]. -EINVAL, -ERANGE. */
int cli_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_number);

/* The same for an option's argument: 0, or CLI_USAGE after an error that names it. */
int cli_size_option(const struct cli_usage *usage, const char *option, const char *text,
                    uint64_t *ret_bytes);
int cli_number_option(const struct cli_usage *usage, const char *option, const char *text,
                      uint64_t min, uint64_t max, uint64_t *ret_number);

/* As many descriptors as this process may have. */
void cli_raise_file_limit(void);

/* Threads for work that keeps CPUs busy: as many as this process may use, at most 64. */
unsigned cli_default_jobs(void);

/* ---- text ---- */

#define CLI_TEXT_LEN 32

/* "17 bytes", "1.5 KiB", "20.3 GiB"; returns buf. */
const char *cli_format_bytes(uint64_t bytes, char buf[CLI_TEXT_LEN]);
/* "1,234,567"; returns buf. */
const char *cli_format_count(uint64_t count, char buf[CLI_TEXT_LEN]);
/* "850 ns", "12.3 us", "4.5 ms", "7.1 s", "3 min 5 s", "2 h 10 min"; returns buf. */
const char *cli_format_time(uint64_t ns, char buf[CLI_TEXT_LEN]);

/* The bytes as a person may see them: controls and invalid UTF-8 as \xNN. */
void cli_print_safe(FILE *out, const char *bytes, size_t len);

/* A name on `out`: as cli_print_safe where that is a terminal, else its raw bytes. */
void cli_print_name(FILE *out, const char *bytes, size_t len);

/*
 * A JSON string, quotes included. A byte 0xNN that is no part of valid UTF-8 becomes
 * the lone surrogate \udcNN, so that nothing is lost: Python's json.loads gives the
 * string that os.fsencode turns back into the same bytes.
 */
void cli_json_string(FILE *out, const char *bytes, size_t len);

/* A further field of an object on standard output: `,\n  "key": value`. */
void cli_json_text(const char *key, const char *text, size_t max_len); /* NULL: null */
void cli_json_number(const char *key, uint64_t number);
void cli_json_bool(const char *key, bool value);

/* Everything that was printed reached standard output: `status`, else CLI_FAILED. */
int cli_finish(int status);

/* ---- progress ---- */

enum cli_progress_mode {
    CLI_PROGRESS_AUTO, /* where standard error is a terminal */
    CLI_PROGRESS_ALWAYS,
    CLI_PROGRESS_NEVER,
};

/* auto, always, never: 0, or CLI_USAGE after an error. */
int cli_progress_option(const struct cli_usage *usage, const char *text,
                        enum cli_progress_mode *ret_mode);

/* One line on standard error that is drawn over and over; use start, show..., end. */
struct cli_progress {
    bool shown;    /* by the mode and the terminal */
    bool terminal; /* draw over the line; else a line every few seconds */
    bool drawn;    /* there is a line that must be wiped */
    uint64_t start_ns, last_ns;
    uint64_t step_ns, step_bytes; /* where the present step began, for its rate */
    char doing[128];
};

void cli_progress_start(struct cli_progress *progress, enum cli_progress_mode mode);
/* At most five times a second; fits struct pot_options.progress with ctx = the struct. */
void cli_progress_show(void *progress, const char *doing, const struct progress *state);
/* A line that stays, above the progress; fits struct pot_options.note. */
void cli_progress_note(void *progress, const char *line);
/* Wipe the line. Before any message is printed. */
void cli_progress_end(struct cli_progress *progress);

/* ---- archives ---- */

/*
 * pot_open with notes and progress on standard error, and to those of `options` (NULL: the
 * defaults), if it has any. 0, or -errno after the error was printed.
 */
int cli_open_pot(const char *path, const struct pot_options *options,
                 enum cli_progress_mode mode, struct pot **ret_pot);

#endif
