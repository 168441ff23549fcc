/*
 * The interface between subcommands and a person: options, numbers, messages, progress, names
 * on a terminal and in JSON.
 *
 * A command looks like this:
 *
 *     static const struct cli_usage usage = {"ls", "[-l] ARCHIVE...", "Lists ...\n"};
 *
 *     int command_ls(int argc, char **argv)
 *     {
 *         static const struct option longs[] = {{"long", no_argument, NULL, 'l'},
 *                                               CLI_OPTIONS_END};
 *         int opt, status = CLI_GO_ON;
 *         while ((opt = cli_getopt(&usage, argc, argv, "l", longs, &status)) != -1)
 *             ...
 *         if (status != CLI_GO_ON)
 *             return status;
 *         if (optind == argc)
 *             return cli_usage_error(&usage, "no archive was named");
 *         struct pot *pot;
 *         if (cli_open_pot(argv[optind], NULL, CLI_PROGRESS_AUTO, &pot) < 0)
 *             return CLI_FAILED;
 *
 * Messages go to standard error, one line each: `onepot: FILE: what is wrong (offset N); what
 * to do`. A message stays one line whatever bytes a name in it has: control bytes and invalid
 * UTF-8 are printed as \xNN. After the command has returned, main() checks that all output
 * reached standard output, so commands use stdio without checking.
 *
 * Threads: only cli_note may be called from several threads at once.
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
    CLI_GO_ON = -1, /* options are parsed; the command continues */
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_RUN_FAILED = 125, /* CLI_FAILED for 'run', whose command has exit statuses of its own */
};

/* ---- messages ---- */

/* "onepot: FILE: ..." from a fault, or from `err` (either sign) without one; CLI_FAILED. */
int cli_fail(const char *file, int err, const struct fault *fault);

/* "onepot: FILE: text"; FILE may be NULL. Returns CLI_FAILED. */
int cli_failf(const char *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "onepot: text": information, not an error. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- options ---- */

struct cli_usage {
    const char *name;     /* "ls" */
    const char *synopsis; /* what follows the name: "[-l] ARCHIVE..." */
    const char *text;     /* its purpose and options; ends with a newline */
};

#define CLI_OPTION_VERSION 0x1000 /* a command's own long options start at CLI_OPTION_OWN */
#define CLI_OPTION_MAX_RATIO 0x1001
#define CLI_OPTION_OWN 0x1002

/* Ends a table of long options with those of every command. */
#define CLI_OPTIONS_END                                                                        \
    {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, CLI_OPTION_VERSION},      \
    {                                                                                          \
        NULL, 0, NULL, 0                                                                       \
    }

/* The same for commands that open archives, with the help text for these options. */
#define CLI_ARCHIVE_OPTIONS_END                                                                \
    {"max-ratio", required_argument, NULL, CLI_OPTION_MAX_RATIO}, CLI_OPTIONS_END
#define CLI_ARCHIVE_OPTIONS_HELP                                                               \
    "      --max-ratio=N    a compressed stream may unpack to N times its size, or 'off'\n"

/* The value of --max-ratio, for struct pot_options; 0: not given. */
uint32_t cli_max_ratio(void);

/*
 * getopt_long with our error messages. Returns the option, or -1 when there are no more. Then
 * *ret_status is untouched, or holds the command's exit status: help was printed, or an option
 * was wrong (an error was printed that names the nearest option). `shorts` is as for getopt,
 * without 'h' and ':' in front; it may begin with '+'.
 */
int cli_getopt(const struct cli_usage *usage, int argc, char **argv, const char *shorts,
               const struct option *longs, int *ret_status);

/* ---- options by table ---- */

enum cli_kind {
    CLI_FLAG,   /* no argument: a bool becomes true */
    CLI_TEXT,   /* const char * */
    CLI_NUMBER, /* from min to max: an unsigned integer of 4 or 8 bytes */
    CLI_SIZE,   /* bytes: uint64_t */
    CLI_WORD,   /* one of `words`: an enum, its place in the list */
    CLI_CALL,   /* `call` takes the text */
};

/*
 * One option, and where its value goes in the command's own structure:
 *
 *     static const struct cli_option options[] = {
 *         {"jobs", 'j', CLI_NUMBER, CLI_AT(struct arguments, jobs), .min = 1, .max = 64},
 *         {"long", 0, CLI_FLAG, CLI_AT(struct arguments, is_long)},
 *         CLI_END,
 *     };
 *     int status = cli_parse(&usage, options, argc, argv, &arguments);
 *     if (status != CLI_GO_ON)
 *         return status;
 *     ... argv[optind] ...
 */
struct cli_option {
    const char *name; /* without dashes; "" if it has a letter only */
    char letter;      /* 0: none */
    enum cli_kind kind;
    size_t at, bytes;
    size_t given;     /* where a bool notes that it was given; 0: nowhere */
    bool is_optional; /* the argument may be missing: CLI_TEXT, CLI_CALL get NULL */
    uint64_t min, max;
    const char *const *words; /* ends with NULL */
    int (*call)(const struct cli_usage *usage, void *target, const char *text);
};
#define CLI_AT(type, member) .at = offsetof(type, member), .bytes = sizeof(((type *)0)->member)
#define CLI_GIVEN(type, member) .given = offsetof(type, member)
#define CLI_END                                                                                \
    {                                                                                          \
        .name = NULL                                                                           \
    }

/* Options that several commands have. */
#define CLI_PROGRESS(type, member)                                                             \
    {                                                                                          \
        "progress", 0, CLI_WORD, CLI_AT(type, member), .words = cli_progress_words             \
    }
#define CLI_MAX_RATIO                                                                          \
    {                                                                                          \
        "max-ratio", 0, CLI_CALL, .call = cli_take_max_ratio                                   \
    }
extern const char *const cli_progress_words[];
int cli_take_max_ratio(const struct cli_usage *usage, void *target, const char *text);

/*
 * Take all options; optind is then the first argument. CLI_GO_ON, or the exit status: help was
 * printed, or an option was wrong, which an error says. A `call` that does not return 0 ends it
 * with that status.
 */
int cli_parse(const struct cli_usage *usage, const struct cli_option *options, int argc,
              char **argv, void *target);

/* "onepot NAME: text; see 'onepot NAME --help'". Returns CLI_USAGE. */
int cli_usage_error(const struct cli_usage *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The candidate (NULL-terminated list) that `word` most likely stands for, or NULL. */
const char *cli_nearest(const char *word, const char *const *candidates);

/*
 * Parse bytes: a number, alone or followed by K, M, G or T (powers of 1024; "4K", "4KiB").
 * -EINVAL, or -ERANGE when it exceeds 64 bits.
 */
int cli_parse_size(const char *text, uint64_t *ret_bytes);

/* Parse a decimal number within [min, max]. -EINVAL, -ERANGE. */
int cli_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_number);

/* The same for an option's argument: 0, or CLI_USAGE after an error that names it. */
int cli_size_option(const struct cli_usage *usage, const char *option, const char *text,
                    uint64_t *ret_bytes);
int cli_number_option(const struct cli_usage *usage, const char *option, const char *text,
                      uint64_t min, uint64_t max, uint64_t *ret_number);

/* Raise the limit on open descriptors as far as this process may. */
void cli_raise_file_limit(void);

/* Threads for CPU-bound work: as many as the CPUs that this process may use, at most 64. */
unsigned cli_default_jobs(void);

/* ---- text ---- */

#define CLI_TEXT_LEN 32

/* "17 bytes", "1.5 KiB", "20.3 GiB"; returns buf. */
const char *cli_format_bytes(uint64_t bytes, char buf[CLI_TEXT_LEN]);
/* "1,234,567"; returns buf. */
const char *cli_format_count(uint64_t count, char buf[CLI_TEXT_LEN]);
/* "850 ns", "12.3 us", "4.5 ms", "7.1 s", "3 min 5 s", "2 h 10 min"; returns buf. */
const char *cli_format_time(uint64_t ns, char buf[CLI_TEXT_LEN]);

/* Print bytes for a person: control bytes and invalid UTF-8 as \xNN. */
void cli_print_safe(FILE *out, const char *bytes, size_t len);

/* Print a name on `out`: as cli_print_safe on a terminal, else its raw bytes. */
void cli_print_name(FILE *out, const char *bytes, size_t len);

/*
 * Print a JSON string, quotes included. A byte 0xNN outside valid UTF-8 becomes the lone
 * surrogate \udcNN, so that nothing is lost: os.fsencode turns the string from Python's
 * json.loads back into the same bytes.
 */
void cli_json_string(FILE *out, const char *bytes, size_t len);

/* Print one more field of an object to standard output: `,\n "key": value`. */
void cli_json_text(const char *key, const char *text, size_t max_len); /* NULL: null */
void cli_json_number(const char *key, uint64_t number);
void cli_json_bool(const char *key, bool value);

/* Returns `status` if all output reached standard output, else CLI_FAILED. */
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

/* One line on standard error that is redrawn; call start, show..., end. */
struct cli_progress {
    bool shown;    /* decided by the mode and the terminal */
    bool terminal; /* redraw the line; else print a line every few seconds */
    bool drawn;    /* a line is on screen and must be erased */
    uint64_t start_ns, last_ns;
    uint64_t step_ns, step_bytes; /* where the current step began, for its rate */
    char doing[128];
};

void cli_progress_start(struct cli_progress *progress, enum cli_progress_mode mode);
/* Draws at most five times a second; fits struct pot_options.progress with ctx = the struct. */
void cli_progress_show(void *progress, const char *doing, const struct progress *state);
/* Print a permanent line above the progress; fits struct pot_options.note. */
void cli_progress_note(void *progress, const char *line);
/* Erase the line. Call it before any message is printed. */
void cli_progress_end(struct cli_progress *progress);

/* ---- archives ---- */

/*
 * pot_open with notes and progress on standard error, and also to the callbacks of `options`
 * (NULL: the defaults), if it has any. 0, or -errno after the error was printed.
 */
int cli_open_pot(const char *path, const struct pot_options *options,
                 enum cli_progress_mode mode, struct pot **ret_pot);

#endif
