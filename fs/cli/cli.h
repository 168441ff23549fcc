/*
 * The interface between subcommands and a person: options, numbers, messages, progress, names
 * on a terminal.
 *
 * A command looks like this:
 *
 *     static int ls_main(int argc, char **argv);
 *
 *     const struct cli_command command_ls = {"ls", ls_main, "list the contents of an archive",
 *                                            "[-l] ARCHIVE...", "Lists ...\n"};
 *
 *     static int ls_main(int argc, char **argv)
 *     {
 *         bool is_long = false;
 *         const struct cli_option options[] = {
 *             {"-l, --long", "also type, mode and size", .flag = &is_long},
 *             CLI_MAX_RATIO,
 *             {NULL},
 *         };
 *         int status = cli_parse(&command_ls, options, argc, argv);
 *         if (status != CLI_GO_ON)
 *             return status;
 *         if (optind == argc)
 *             return cli_usage_error(&command_ls, "no archive was named");
 *         struct fileset *fileset;
 *         if (cli_open_fileset(argv[optind], NULL, &fileset) < 0)
 *             return CLI_FAILED;
 *
 * Messages go to standard error, one line each: `onepot: FILE: reason (offset N); remedy`. A
 * message stays one line whatever bytes a name in it has: control bytes and invalid UTF-8 are
 * printed as \xNN. After the command has returned, main() checks that all output reached
 * standard output, so commands use stdio without checking.
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

#include "archive_list.h"
#include "fault.h"
#include "fileset.h"

enum cli_status {
    CLI_GO_ON = -1, /* options are parsed; the command continues */
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_RUN_FAILED = 125, /* CLI_FAILED for 'run', since its command also exits with 1 */
};

/* ---- messages ---- */

/* "onepot: FILE: ..." from a fault, or from `err` (either sign) without one; CLI_FAILED. */
int cli_fail(const char *file, int err, const struct fault *fault);

/* "onepot: FILE: text"; FILE may be NULL. Returns CLI_FAILED. */
int cli_failf(const char *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "onepot: text": information, not an error. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- options ---- */

struct cli_command {
    const char *name; /* "ls" */
    /*
     * NULL: not built in. argv[0] is the command's name, and getopt is ready to start (optind
     * 1). Returns the program's exit status.
     */
    int (*run)(int argc, char **argv);
    const char *summary;  /* one line, for the list of commands */
    const char *synopsis; /* what follows the name: "[-l] ARCHIVE..." */
    const char *text;     /* its purpose, without options; ends with a newline */
};

/* One option. The pointers say where its value is stored; several may be set. */
struct cli_option {
    const char *spelling; /* "-f, --force", "-j, --jobs=N", "--zstd[=LEVEL]", "-o WORD" */
    const char *help;     /* broken into lines when printed; NULL: not printed */
    bool *flag;           /* becomes true */
    const char **text;
    uint64_t *size;   /* a number of bytes, with K, M, G or T */
    uint64_t *number; /* from min to max */
    uint32_t *count;  /* the same in 32 bits */
    uint64_t min, max;
    unsigned *word; /* an enum: the place in `words`, which ends with NULL */
    const char *const *words;
    /* Anything else: 0, or the exit status. `text` is NULL for `--zstd` without a level. */
    int (*take)(const struct cli_command *command, void *ctx, const char *text);
    void *ctx;
};

/* Options that several commands have. */
#define CLI_PROGRESS                                                                           \
    {                                                                                          \
        "--progress=WHEN", "show progress: auto, always or never", .word = &cli_progress_mode, \
                                                                   .words = cli_progress_words \
    }
extern unsigned cli_progress_mode; /* enum cli_progress_mode */
#define CLI_MAX_RATIO                                                                          \
    {                                                                                          \
        "--max-ratio=N", "a compressed stream may unpack to N times its size, or 'off'",       \
            .take = cli_take_max_ratio                                                         \
    }
#define CLI_OFFSET                                                                             \
    {                                                                                          \
        "--offset=BYTES", "where the archive begins in its file, if that is not found out",    \
            .size = &cli_offset                                                                \
    }
#define CLI_IGNORE_ZEROS                                                                       \
    {                                                                                          \
        "--ignore-zeros",                                                                      \
            "of tars that are joined, read all: go on behind end-of-archive marks",            \
            .flag = &cli_ignores_zeros                                                         \
    }
#define CLI_NESTED                                                                             \
    {                                                                                          \
        "--nested[=GLOB]",                                                                     \
            "archives in the archive are directories: those with the ending of one, or what "  \
            "matches GLOB",                                                                    \
            .take = cli_take_nested                                                            \
    }
extern const char *const cli_progress_words[];
int cli_take_max_ratio(const struct cli_command *command, void *ctx, const char *text);
int cli_take_nested(const struct cli_command *command, void *ctx, const char *text);

#define CLI_PLAIN                                                                              \
    {                                                                                          \
        "--plain", "no archive, but a folder of few large files, which are shown as they are", \
            .flag = &cli_plain                                                                 \
    }

/*
 * Values of --offset, --max-ratio, --ignore-zeros and --plain, for struct fileset_options; 0:
 * not given.
 */
extern uint64_t cli_offset;
extern uint32_t cli_max_ratio;
extern bool cli_ignores_zeros, cli_plain;

/* How the archives that one word stands for become one tree: three options of several commands.
 */
#define CLI_TOGETHER                                                                           \
    {"--each", "show each archive in a directory of its name without the ending",              \
     .flag = &cli_together.each},                                                              \
        {"--on-conflict=WHICH",                                                                \
         "error, first or last: which archive has a name that is in several (default error)",  \
         .word = &cli_together.on_conflict, .words = cli_conflict_words},                      \
    {                                                                                          \
        "--skip-damaged", "leave out archives that can't be opened",                           \
            .flag = &cli_together.skip_damaged                                                 \
    }
extern struct fileset_together cli_together;
extern const char *const cli_conflict_words[];

/*
 * The part of an archive that a command sees (tree_view.h). All archives that cli_open_fileset
 * opens are seen so.
 */
#define CLI_VIEW                                                                               \
    {"--include=GLOB", "show only what matches GLOB; the first pattern that matches decides",  \
     .take = cli_take_view, .ctx = &cli_view_words[0]},                                        \
        {"--exclude=GLOB", "leave out what matches GLOB", .take = cli_take_view,               \
         .ctx = &cli_view_words[1]},                                                           \
        {"--files-from=LIST", "show only the names in the file LIST ('-': standard input)",    \
         .take = cli_take_view, .ctx = &cli_view_words[2]},                                    \
    {                                                                                          \
        "--map=FILE", "show members under other names: lines of NAME, a tab, NAME TO SHOW",    \
            .take = cli_take_view, .ctx = &cli_view_words[3]                                   \
    }
extern unsigned cli_view_words[5]; /* the last one: --files-from, of names that end with NUL */
int cli_take_view(const struct cli_command *command, void *ctx, const char *text);

/* Was --include, --map or --nested given, which mean nothing for a directory? */
bool cli_picks_of_archives(void);

/* Options of all commands that open archives by cli_open_fileset. */
#define CLI_ARCHIVES                                                                           \
    CLI_TOGETHER, CLI_PROGRESS, CLI_VIEW, CLI_MAX_RATIO, CLI_NESTED, CLI_OFFSET,               \
        CLI_IGNORE_ZEROS

/*
 * The wishes of those options and --nested, for struct fileset_options; NULL: none was given.
 * Reads list or map at the first call. -errno after an error was printed.
 */
int cli_compose(const struct fileset_compose **ret_compose);

/*
 * For completions. If it is set, cli_parse only looks: it stores nothing, passes over errors,
 * calls this at the end with the last option that has a value, and that value (NULL: there is
 * none), and returns CLI_OK.
 */
extern void (*cli_see)(const struct cli_command *command, const struct cli_option *options,
                       const struct cli_option *option, const char *value);

/*
 * Parse the options; the table ends with {NULL}. optind is then the first argument. CLI_GO_ON,
 * or the exit status: help was printed, or an error that names the wrong option.
 */
int cli_parse(const struct cli_command *command, const struct cli_option *options, int argc,
              char **argv);

/* "onepot NAME: text; see 'onepot NAME --help'". Returns CLI_USAGE. */
int cli_usage_error(const struct cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The candidate (NULL-terminated list) that `word` most likely stands for, or NULL. */
const char *cli_nearest(const char *word, const char *const *candidates);

/* Parse a decimal number within [min, max]. -EINVAL, -ERANGE. */
int cli_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_number);

/* Parse "K/N", the K-th (from 0) of N parts, of which there are at most `most`. -EINVAL,
 * -ERANGE. */
int cli_parse_part(const char *text, uint64_t most, uint64_t *ret_part, uint64_t *ret_parts);

/* The same for an option's argument: 0, or CLI_USAGE after an error that names it. */
int cli_size_option(const struct cli_command *command, const char *option, const char *text,
                    uint64_t *ret_bytes);
int cli_number_option(const struct cli_command *command, const char *option, const char *text,
                      uint64_t min, uint64_t max, uint64_t *ret_number);

/* "train.tar", or of several words "train-0.tar and 3 more"; returns buf. */
#define CLI_NAME_LEN 512
const char *cli_name_of(char *const *words, size_t count, char buf[CLI_NAME_LEN]);

/* Raise the limit on open descriptors as far as this process may. */
void cli_raise_file_limit(void);

/* Threads for CPU-bound work: as many as the CPUs that this process may use, at most 64. */
unsigned cli_default_jobs(void);

/*
 * The words of commands that take ARCHIVE... [[--] PATH...]. A path begins at the first word
 * behind an archive that is no file here, and behind "--" whatever is there.
 */
struct cli_paths {
    char **archives;
    size_t archive_count;
    const char **paths; /* in the archives; the names of --path first */
    bool *found;        /* by the caller: an archive has the path */
    size_t path_count;
    size_t option_count; /* of these, by --path */
    bool guessed;        /* there was no "--": a path may have been taken for an archive */
};
#define CLI_PATH(words)                                                                        \
    {                                                                                          \
        "--path=PATH", "the same as PATH behind '--'; may be repeated", .take = cli_take_path, \
                                                                        .ctx = (words)         \
    }
/* How many of the last arguments follow "--"; -1: there is no "--". */
int cli_count_behind_dashes(int argc, char **argv);

int cli_take_path(const struct cli_command *command, void *ctx, const char *text);

/* cli_parse, and then the words. Whatever it returns, `words` is freed by cli_paths_free. */
int cli_parse_paths(const struct cli_command *command, const struct cli_option *options,
                    int argc, char **argv, struct cli_paths *words);
void cli_paths_free(struct cli_paths *words);

/* CLI_OK, or CLI_FAILED after "ARCHIVE: PATH: no such file ...": one was not found. */
int cli_paths_check(const struct cli_paths *words);

/* ---- commands ---- */

/* In the order in which a person needs them; ends with NULL. main() sets it. */
extern const struct cli_command *const *cli_commands;

/* Run the command argv[0]: its exit status, or CLI_USAGE after an error about the name. */
int cli_run_command(int argc, char **argv);

/* The list, for a person. */
void cli_print_commands(FILE *out);

/* ---- text ---- */

/* The meaning of an error of index_follow, for a message; NULL if it is the usual one. */
const char *cli_path_error(int err);

#define CLI_TEXT_LEN 32

/* "17 bytes", "1.5 KiB", "20.3 GiB"; returns buf. */
const char *cli_format_bytes(uint64_t bytes, char buf[CLI_TEXT_LEN]);
/* "1,234,567"; returns buf. */
const char *cli_format_count(uint64_t count, char buf[CLI_TEXT_LEN]);
/* "850 ns", "12.3 us", "4.5 ms", "7.1 s", "3 min 5 s", "2 h 10 min"; returns buf. */
const char *cli_format_time(uint64_t ns, char buf[CLI_TEXT_LEN]);

/*
 * The same as arguments of printf. The text lives until the block ends.
 *
 *     cli_note("%s files, %s in %s", cli_count(files), cli_bytes(bytes), cli_time(ns));
 */
#define cli_bytes(bytes) cli_format_bytes((bytes), (char[CLI_TEXT_LEN]){0})
#define cli_count(count) cli_format_count((count), (char[CLI_TEXT_LEN]){0})
#define cli_time(ns) cli_format_time((ns), (char[CLI_TEXT_LEN]){0})

/* Bytes for each second of `ns`, as in "%s/s". */
#define cli_rate(bytes, ns) cli_bytes(per_second((bytes), (ns)))

static inline uint64_t per_second(uint64_t count, uint64_t ns)
{
    return ns ? (uint64_t)((double)count * 1e9 / (double)ns) : 0;
}

static inline double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* Print bytes for a person: control bytes and invalid UTF-8 as \xNN. */
void cli_print_safe(FILE *out, const char *bytes, size_t len);

/* Print a word for a shell, in quotes. */
void cli_print_quoted(FILE *out, const char *word);

/* Returns `status` if all output reached standard output, else CLI_FAILED. */
int cli_finish(int status);

/* ---- progress ---- */

enum cli_progress_mode {
    CLI_PROGRESS_AUTO, /* where standard error is a terminal */
    CLI_PROGRESS_ALWAYS,
    CLI_PROGRESS_NEVER,
};

/* One line on standard error that is redrawn; call start, show..., end. */
struct cli_progress {
    bool shown;    /* decided by the mode and the terminal */
    bool terminal; /* redraw the line; else print a line every few seconds */
    bool drawn;    /* a line is on screen and must be erased */
    uint64_t start_ns, last_ns;
    uint64_t step_ns, step_bytes; /* where the current step began, for its rate */
    char doing[128];
};

void cli_progress_start(struct cli_progress *progress); /* by --progress */
/* Draws at most five times a second; fits struct fileset_options.progress with ctx = the
 * struct. */
void cli_progress_show(void *progress, const char *doing, const struct progress *state);
/* Print a permanent line above the progress; fits struct fileset_options.note. */
void cli_progress_note(void *progress, const char *line);
/* Erase the line. Call it before any message is printed. */
void cli_progress_end(struct cli_progress *progress);

/* ---- archives ---- */

/*
 * Open what a word stands for: one archive, or all archives of a folder, a pattern or a list as
 * one tree (archive_list.h), by the options of CLI_TOGETHER. Notes and progress go to standard
 * error, and also to the callbacks of `options` (NULL: the defaults), if it has any. 0, or
 * -errno after the error was printed.
 */
int cli_open_fileset(const char *word, const struct fileset_options *options,
                     struct fileset **ret_fileset);

/*
 * The same of all the archives that several words stand for: one tree. If one that is no
 * archive was perhaps meant as a path, the message says how to write that.
 */
int cli_open_words(const struct cli_paths *words, size_t first, size_t count,
                   const struct fileset_options *options, struct fileset **ret_fileset);

/* Add the words' archives to a list. -errno after the error was printed. */
int cli_list_archives(char *const *words, size_t count, struct archive_list *list);

/* Words that were taken for archives, and may have been meant for something else. */
struct cli_doubt {
    char *const *words;
    size_t count;
    int err; /* which error of such a word, or of a file in such a folder; 0: any */
    const char *advice;
};

/* Advise so, if the fault of `file` is one that raises the doubt. */
void cli_advise(const struct cli_doubt *doubt, const char *file, struct fault *fault);

/* The same of archives that were listed. Messages call them `name`. `doubt` may be NULL. */
int cli_open_list(const struct archive_list *list, const char *name,
                  const struct cli_doubt *doubt, const struct fileset_options *options,
                  struct fileset **ret_fileset);

/*
 * The digest of a fileset's tree, in hexadecimal. Where the index has no sums that make it, all
 * files are read, and a note tells how long that takes; the index then names the digest.
 * `options`: the fileset was opened with these; a stream whose content is left to their store,
 * or was not wanted, is unpacked for it. Notes and progress as above. 0, or -errno after the
 * error was printed; -ECANCELED: a signal came.
 */
int cli_digest(struct fileset *fileset, const struct fileset_options *options,
               char ret_hex[2 * INDEX_DIGEST_BYTES + 1]);

/*
 * Make room for so many archives. cli_open_list does that, too, but it is done sooner in a
 * process that has no other threads yet (source_expect).
 */
void cli_expect_archives(size_t count);

#endif
