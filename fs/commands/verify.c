/*
 * onepot verify: checks that an archive is unchanged.
 */
#include <errno.h>
#include <string.h>

#include "budget.h"
#include "cli.h"
#include "commands.h"
#include "interrupt.h"
#include "json.h"
#include "verify.h"

static int verify_main(int argc, char **argv);

const struct cli_command command_verify = {
    "verify", verify_main, "check every bound and every checksum", "[-j N] [--json] ARCHIVE...",
    "Check archives: every bound, every checksum, every compressed block. Each fault is\n"
    "printed on a line with the name of its member.\n"};

struct arguments {
    struct work_options work;
    bool trailer_is_good;
    bool quiet, as_json;
    struct json json;
    const char *archive; /* the current one */
    const struct fileset_compose *compose;
    bool is_tree; /* check the options' view, as one tree */
    struct cli_progress line;
    uint64_t problems; /* of this archive, so far */
    bool is_plain;     /* its trailer was reported as worthless */
};

/* ---- problems ---- */

static void json_problem(struct json *j, const struct fault *what)
{
    json_open(j, NULL, '{');
    json_text(j, "member", what->member[0] ? what->member : NULL, SIZE_MAX);
    if (what->offset != FAULT_NO_OFFSET)
        json_number(j, "offset", what->offset);
    else
        json_null(j, "offset");
    json_text(j, "what", what->what, SIZE_MAX);
    json_close(j, '}');
}

static void command_verify_report(void *ctx, const struct fault *what)
{
    struct arguments *a = ctx;
    a->problems++;
    cli_progress_end(&a->line);
    if (a->as_json)
        json_problem(&a->json, what);
    else
        cli_fail(a->archive, -what->err, what);
}

static void command_verify_show(void *ctx, const char *doing, const struct progress *progress)
{
    struct arguments *a = ctx;
    cli_progress_show(&a->line, doing, progress);
}

/* Print the indexer's notes, unless the trailer was already reported as worthless. */
static void command_verify_note(void *ctx, const char *line)
{
    struct arguments *a = ctx;
    if (!a->is_plain && !a->quiet)
        cli_progress_note(&a->line, line);
}

/* ---- what was found ---- */

/* The work done on an archive whose files have no sums. */
static const char *work_text(const struct arguments *a, const struct fileset *fileset)
{
    if (a->is_tree)
        return "every file shown was read";
    if (fileset_is_packed(fileset))
        return "all of it was decompressed, and has the sums that its compression names";
    if (index_info(fileset->index)->codec != CODEC_NONE)
        return "every block was decompressed";
    return "headers are sound and every file lies within the archive";
}

static void print_coverage(const struct arguments *a, const struct fileset *fileset,
                           const struct verify_result *result)
{
    char text[FILESET_SUMS_TEXT_LEN];
    if (result->sums.every && result->whole && !a->is_tree)
        puts("every byte of the archive has the sum that it should have");
    else if (result->sums.every)
        printf("every file%s has the sum that it should have\n", a->is_tree ? " shown" : "");
    else if (fileset->backend->checked && !a->is_tree)
        puts(fileset->backend->checked);
    else if (result->sums.some)
        printf(
            "every file shown was read, and compared where it has a sum: there are sums %s\n",
            fileset_sums_text(fileset, &result->sums, text));
    else
        printf("%s; %s\n", work_text(a, fileset),
               fileset_sums_text(fileset, &result->sums, text));
}

static void print_summary(const struct arguments *a, const struct fileset *fileset,
                          const struct verify_result *result)
{
    if (a->problems) {
        char kinds[LEFT_OUT_TEXT_LEN];
        bool lacks = index_left_out_text(fileset->index, kinds) > 0;
        cli_note("%s: %s %s%s%s", a->archive, cli_count(a->problems),
                 a->problems == 1 ? "problem" : "problems", lacks ? "; left out: " : "", kinds);
        return;
    }
    if (a->quiet)
        return;
    cli_print_safe(stdout, a->archive, strlen(a->archive));
    printf(": good: %s %s, %s: ", cli_count(result->files),
           result->files == 1 ? "file" : "files", cli_bytes(result->bytes));
    if (result->links_out)
        printf("%s symbolic %s out of it; ", cli_count(result->links_out),
               result->links_out == 1 ? "link leads" : "links lead");
    print_coverage(a, fileset, result);
}

static void command_verify_json(struct arguments *a, const struct fileset *fileset,
                                const struct verify_result *result)
{
    struct json *j = &a->json;
    json_close(j, ']');
    json_bool(j, "good", a->problems == 0 && fileset);
    json_text(j, "format", fileset ? fileset->backend->name : NULL, SIZE_MAX);
    json_number(j, "files", result->files);
    json_number(j, "bytes", result->bytes);
    json_bool(j, "has_sums", result->sums.every);
    json_bool(j, "has_some_sums", result->sums.some);
    json_bool(j, "whole", result->whole);
    json_number(j, "links_out", result->links_out);
    if (fileset)
        json_left_out(j, fileset->index);
    json_close(j, '}');
}

/* ---- one archive ---- */

static int open_fileset(struct arguments *a, char **paths, size_t count,
                        struct fileset **ret_fileset)
{
    struct fault fault = {0};
    struct fileset_options options = {
        .compose = a->compose,
        .together = cli_together,
        .save = FILESET_SAVE_NEVER,
        .lists_left_out = true,
        .rebuild = true, /* a saved index was not read from the archive just now */
        .memory_bytes = budget_memory_bytes(""),
        .max_ratio = cli_max_ratio,
        .offset = cli_offset,
        .ignores_zeros = cli_ignores_zeros,
        .note = command_verify_note,
        .progress = command_verify_show,
        .ctx = a,
    };
    int trailer = a->is_tree ? 0 : verify_trailer(a->archive, cli_offset, &fault);
    a->is_plain = trailer < 0;
    struct fault why = {0};
    int r = fileset_open_many((const char *const *)paths, count, a->archive, &options, &why,
                              ret_fileset);
    if (r == 0 && trailer == -ESTALE && (*ret_fileset)->was_reindexed)
        trailer = 0;
    a->trailer_is_good = trailer == 0 && !a->is_tree;
    if (trailer < 0)
        command_verify_report(a, &fault);
    if (r < 0) {
        fault_set_errno(&why, r, NULL, "can't be opened");
        command_verify_report(a, &why);
    }
    return r;
}

static int verify_fileset(struct arguments *a, struct fileset *fileset,
                          struct verify_result *ret_result)
{
    struct fault fault = {0};
    interrupt_catch(); /* not before: a signal at once ends an opening that hangs */
    int r = verify_run(fileset, &a->work, a->trailer_is_good, &fault, ret_result);
    if (r < 0 && r != -EINTR)
        command_verify_report(a, &fault);
    return r;
}

/* One archive, or several as one tree. */
static int verify_archive(struct arguments *a, const char *name, char **paths, size_t count)
{
    struct verify_result result = {0};
    struct fileset *fileset = NULL;
    a->archive = name;
    a->problems = 0;
    if (a->as_json) {
        json_open(&a->json, NULL, '{');
        json_text(&a->json, "archive", name, SIZE_MAX);
        json_open(&a->json, "problems", '[');
    }
    cli_progress_start(&a->line);
    int r = open_fileset(a, paths, count, &fileset);
    if (r == 0)
        r = verify_fileset(a, fileset, &result);
    cli_progress_end(&a->line);
    if (a->as_json)
        command_verify_json(a, fileset, &result);
    else if (r == 0)
        print_summary(a, fileset, &result);
    fileset_close(fileset);
    return r < 0 || a->problems ? CLI_FAILED : CLI_OK;
}

/* The tree that is shown of all. */
static int verify_tree(struct arguments *a, char **words, size_t count)
{
    struct archive_list list = {0};
    char name[CLI_NAME_LEN];
    int status = CLI_FAILED;
    if (cli_list_archives(words, count, &list) == 0)
        status = verify_archive(a, cli_name_of(words, count, name), list.at, list.count);
    a->archive = words[0];
    archive_list_free(&list);
    return status;
}

/* Each archive of a folder, a pattern or a list. */
static int verify_word(struct arguments *a, char *const *word)
{
    struct archive_list list = {0};
    int status = cli_list_archives(word, 1, &list) < 0 ? CLI_FAILED : CLI_OK;
    for (size_t i = 0; i < list.count && !atomic_load(interrupt_flag()); i++)
        if (verify_archive(a, list.at[i], &list.at[i], 1) != CLI_OK)
            status = CLI_FAILED;
    a->archive = *word;
    archive_list_free(&list);
    return status;
}

static int verify_archives(struct arguments *a, char **archives, int count)
{
    int status = CLI_OK;
    if (cli_compose(&a->compose) < 0)
        return CLI_FAILED;
    a->is_tree = a->compose || cli_together.each || cli_together.skip_damaged ||
                 cli_together.on_conflict != FILESET_CONFLICT_ERROR;
    if (a->as_json)
        json_open(&a->json, NULL, '[');
    if (a->is_tree)
        status = verify_tree(a, archives, (size_t)count);
    for (int i = 0; !a->is_tree && i < count && !atomic_load(interrupt_flag()); i++)
        if (verify_word(a, &archives[i]) != CLI_OK)
            status = CLI_FAILED;
    if (a->as_json)
        json_close(&a->json, ']');
    if (atomic_load(interrupt_flag())) {
        cli_note("%s: interrupted", a->archive);
        interrupt_die();
    }
    return status;
}

static int verify_main(int argc, char **argv)
{
    struct arguments a = {
        .work = {.threads = cli_default_jobs(),
                 .report = command_verify_report,
                 .progress = command_verify_show,
                 .ctx = &a,
                 .stop = interrupt_flag()},
        .json = {.out = stdout, .lines = 3},
    };
    const struct cli_option options[] = {
        {"-j, --jobs=N", "with N threads (default: the CPUs of this process)",
         .count = &a.work.threads, .min = 1, .max = VERIFY_THREADS_MAX},
        {"--json", "print one array of objects", .flag = &a.as_json},
        {"-q, --quiet", "print only what is wrong", .flag = &a.quiet},
        CLI_ARCHIVES,
        {NULL},
    };
    int status = cli_parse(&command_verify, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&command_verify, "no archive was named");
    return verify_archives(&a, argv + optind, argc - optind);
}
