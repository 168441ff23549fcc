/*
 * onepot verify: checks that an archive is unchanged.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "cli.h"
#include "commands.h"
#include "interrupt.h"
#include "verify.h"

static const struct cli_usage usage = {
    "verify", "[-j N] [--json] ARCHIVE...",
    "Check archives: every bound, every checksum, every compressed block. What is wrong is\n"
    "printed, one line each, with the name of the member.\n"
    "\n"
    "  -j, --jobs=N          with N threads (default: the CPUs of this process)\n"
    "      --json            one array of objects\n"
    "  -q, --quiet           print only what is wrong\n"
    "      --progress=WHEN   show progress: auto, always or never\n" CLI_ARCHIVE_OPTIONS_HELP};

struct arguments {
    struct verify_options options;
    enum cli_progress_mode progress;
    bool quiet, json;
    const char *archive; /* the current one */
    struct cli_progress line;
    uint64_t problems; /* of this archive, so far */
    bool is_plain;     /* its trailer was reported as worthless */
};

/* ---- what is wrong ---- */

static void print_problem(const struct arguments *a, const struct fault *what)
{
    fputs(a->problems > 1 ? ",\n    {" : "\n    {", stdout);
    fputs("\"member\": ", stdout);
    if (what->member[0])
        cli_json_string(stdout, what->member, strlen(what->member));
    else
        fputs("null", stdout);
    fputs(", \"offset\": ", stdout);
    if (what->offset != FAULT_NO_OFFSET)
        printf("%llu", (unsigned long long)what->offset);
    else
        fputs("null", stdout);
    fputs(", \"what\": ", stdout);
    cli_json_string(stdout, what->what, strlen(what->what));
    fputs("}", stdout);
}

static void tell(void *ctx, const struct fault *what)
{
    struct arguments *a = ctx;
    a->problems++;
    cli_progress_end(&a->line);
    if (a->json)
        print_problem(a, what);
    else
        cli_fail(a->archive, -what->err, what);
}

static void show(void *ctx, const char *doing, const struct progress *progress)
{
    struct arguments *a = ctx;
    cli_progress_show(&a->line, doing, progress);
}

/* Print the indexer's notes, unless the trailer was already reported as worthless. */
static void note(void *ctx, const char *line)
{
    struct arguments *a = ctx;
    if (!a->is_plain && !a->quiet)
        cli_progress_note(&a->line, line);
}

/* ---- what was found ---- */

static const char *coverage_text(const struct pot *pot, const struct verify_result *result)
{
    if (result->has_sums && result->whole)
        return "every byte of the archive has the sum that it should have";
    if (result->has_sums)
        return "every file has the sum that it should have";
    if (pot->compression)
        return "unpacked and read; a tar has no sums of its files";
    if (index_info(pot->index)->codec != CODEC_NONE)
        return "every block was decompressed; there are no sums to compare with";
    return "headers are sound and every file lies within the archive; a tar has no sums of "
           "its files";
}

static void print_summary(const struct arguments *a, const struct pot *pot,
                          const struct verify_result *result)
{
    char files[CLI_TEXT_LEN], bytes[CLI_TEXT_LEN], problems[CLI_TEXT_LEN];
    if (a->problems) {
        cli_note("%s: %s %s", a->archive, cli_format_count(a->problems, problems),
                 a->problems == 1 ? "problem" : "problems");
        return;
    }
    if (a->quiet)
        return;
    cli_print_name(stdout, a->archive, strlen(a->archive));
    printf(": good: %s %s, %s: %s\n", cli_format_count(result->files, files),
           result->files == 1 ? "file" : "files", cli_format_bytes(result->bytes, bytes),
           coverage_text(pot, result));
}

static void print_json(const struct arguments *a, const struct pot *pot,
                       const struct verify_result *result)
{
    fputs(a->problems ? "\n  ]" : "]", stdout);
    cli_json_bool("good", a->problems == 0 && pot);
    cli_json_text("format", pot ? pot->backend->name : NULL, SIZE_MAX);
    cli_json_number("files", result->files);
    cli_json_number("bytes", result->bytes);
    cli_json_bool("has_sums", result->has_sums);
    cli_json_bool("whole", result->whole);
    fputs("\n}", stdout);
}

/* ---- one archive ---- */

static int open_pot(struct arguments *a, struct pot **ret_pot)
{
    struct fault fault = {0};
    struct pot_options options = {
        .save = POT_SAVE_NEVER,
        .lists_left_out = true,
        .rebuild = true, /* a saved index was not read from the archive just now */
        .memory_bytes = budget_memory_bytes(""),
        .max_ratio = cli_max_ratio(),
        .note = note,
        .progress = show,
        .ctx = a,
    };
    int r = verify_trailer(a->archive, &fault);
    a->is_plain = r < 0;
    a->options.trailer_is_good = r == 0;
    if (r < 0)
        tell(a, &fault);
    fault = (struct fault){0};
    r = pot_open(a->archive, &options, &fault, ret_pot);
    if (r < 0) {
        fault_set(&fault, r, NULL, FAULT_NO_OFFSET, "can't be opened: %s", strerror(-r));
        tell(a, &fault);
    }
    return r;
}

static int verify_pot(struct arguments *a, struct pot *pot, struct verify_result *ret_result)
{
    struct fault fault = {0};
    struct reader *reader;
    uint64_t bytes = (uint64_t)index_info(pot->index)->block_bytes * a->options.threads * 8;
    uint64_t most = budget_cache_bytes();
    struct reader_options options = {.cache_bytes = bytes < most ? bytes : most};
    int r = reader_new(pot, &options, &fault, &reader);
    if (r == 0) {
        r = verify_run(pot, reader, &a->options, &fault, ret_result);
        reader_free(reader);
    }
    if (r < 0 && r != -EINTR)
        tell(a, &fault);
    return r;
}

static int verify_archive(struct arguments *a, const char *archive)
{
    struct verify_result result = {0};
    struct pot *pot = NULL;
    a->archive = archive;
    a->problems = 0;
    if (a->json) {
        fputs("{\n  \"archive\": ", stdout);
        cli_json_string(stdout, archive, strlen(archive));
        fputs(",\n  \"problems\": [", stdout);
    }
    cli_progress_start(&a->line, a->progress);
    int r = open_pot(a, &pot);
    if (r == 0)
        r = verify_pot(a, pot, &result);
    cli_progress_end(&a->line);
    if (a->json)
        print_json(a, pot, &result);
    else if (r == 0)
        print_summary(a, pot, &result);
    pot_close(pot);
    return r < 0 || a->problems ? CLI_FAILED : CLI_OK;
}

static int run(struct arguments *a, char **archives, int count)
{
    int status = CLI_OK;
    interrupt_catch();
    if (a->json)
        fputs("[", stdout);
    for (int i = 0; i < count && !atomic_load(interrupt_flag()); i++) {
        if (a->json && i > 0)
            fputs(",\n", stdout);
        if (verify_archive(a, archives[i]) != CLI_OK)
            status = CLI_FAILED;
    }
    if (a->json)
        fputs("]\n", stdout);
    if (atomic_load(interrupt_flag())) {
        cli_note("%s: interrupted", a->archive);
        interrupt_die();
    }
    return status;
}

enum { OPTION_PROGRESS = CLI_OPTION_OWN, OPTION_JSON };

static int take_option(struct arguments *a, int opt)
{
    uint64_t number;
    switch (opt) {
    case 'j':
        if (cli_number_option(&usage, "-j", optarg, 1, VERIFY_THREADS_MAX, &number) != 0)
            return CLI_USAGE;
        a->options.threads = (unsigned)number;
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    case OPTION_JSON:
        a->json = true;
        return 0;
    default:
        return cli_progress_option(&usage, optarg, &a->progress);
    }
}

int command_verify(int argc, char **argv)
{
    static const struct option longs[] = {
        {"jobs", required_argument, NULL, 'j'},
        {"json", no_argument, NULL, OPTION_JSON},
        {"quiet", no_argument, NULL, 'q'},
        {"progress", required_argument, NULL, OPTION_PROGRESS},
        CLI_ARCHIVE_OPTIONS_END,
    };
    struct arguments a = {.progress = CLI_PROGRESS_AUTO};
    a.options = (struct verify_options){.threads = cli_default_jobs(),
                                        .report = tell,
                                        .progress = show,
                                        .ctx = &a,
                                        .stop = interrupt_flag()};
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "j:q", longs, &status)) != -1)
        if (take_option(&a, opt) != 0)
            return CLI_USAGE;
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&usage, "no archive was named");
    return run(&a, argv + optind, argc - optind);
}
