/*
 * onepot extract: turns archives back into files.
 */
#include <errno.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "extract.h"
#include "interrupt.h"

static int extract_main(int argc, char **argv);

const struct cli_command command_extract = {
    "extract", extract_main, "extract files from an archive",
    "[-f] [-j N] [-C DIR] ARCHIVE... [[--] PATH...]",
    "Extract an archive, or several as one tree: "
    "everything, or only the files and directories\n"
    "PATH... in it. Behind the first archive, the first "
    "word that names no file here is a PATH,\n"
    "and so are all words after it, or after '--'.\n"};

struct arguments {
    struct extract_options options;
    bool quiet, no_same_owner;
    const char *archive; /* in messages: the archive, or the first of several */
    char archive_name[CLI_NAME_LEN];
    struct cli_paths words;
    struct cli_progress line;
};

static void command_extract_report(void *ctx, const struct fault *what)
{
    struct arguments *a = ctx;
    cli_progress_end(&a->line);
    cli_fail(a->archive, -what->err, what);
}

static void command_extract_show(void *ctx, const char *doing, const struct progress *progress)
{
    struct arguments *a = ctx;
    cli_progress_show(&a->line, doing, progress);
}

/* Is one of the requested paths in the archive? */
static bool found_any(const struct extract_options *o)
{
    for (size_t i = 0; i < o->path_count; i++)
        if (o->path_found[i])
            return true;
    return o->path_count == 0;
}

static void command_extract_summarize(const struct arguments *a,
                                      const struct extract_result *result, uint64_t ns)
{
    if (!a->quiet)
        cli_note("%s: %s %s, %s into %s, %s (%s/s)", a->archive, cli_count(result->files),
                 result->files == 1 ? "file" : "files", cli_bytes(result->bytes),
                 a->options.directory, cli_time(ns), cli_rate(result->bytes, ns));
    if (result->lost_xattrs)
        cli_note(
            "%s: %s of them lack extended attributes, which this user or the filesystem there "
            "can't set",
            a->archive, cli_count(result->lost_xattrs));
    if (result->unprivileged)
        cli_note(
            "%s: set-id bits, device nodes and attributes of the system are left out (of %s "
            "%s); --privileged restores them",
            a->archive, cli_count(result->unprivileged),
            result->unprivileged == 1 ? "member" : "members");
    if (result->problems)
        cli_note("%s: complete but for %s %s, listed above", a->archive,
                 cli_count(result->problems), result->problems == 1 ? "problem" : "problems");
}

/* Report a run's error; after a signal, die of it, so that the shell sees it. */
static int command_extract_fail(const struct arguments *a, int err, const struct fault *fault,
                                const struct extract_result *result)
{
    if (err != -EINTR || !atomic_load(interrupt_flag()))
        return cli_fail(a->archive, err, fault);
    cli_note("%s: interrupted; %s files are complete, unfinished ones were removed", a->archive,
             cli_count(result->files));
    interrupt_die();
    return CLI_FAILED;
}

static int extract_fileset(struct arguments *a, struct fileset *fileset)
{
    struct extract_result result = {0};
    struct fault fault = {0};
    uint64_t start = now_ns();
    cli_progress_start(&a->line);
    int r = extract_run(fileset, &a->options, &fault, &result);
    cli_progress_end(&a->line);
    if (r < 0)
        return command_extract_fail(a, r, &fault, &result);
    if (a->options.path_count == 0)
        result.problems += index_left_out(fileset->index); /* reported when it was opened */
    if (found_any(&a->options))
        command_extract_summarize(a, &result, now_ns() - start);
    return result.problems ? CLI_FAILED : CLI_OK;
}

static int extract_archives(struct arguments *a)
{
    struct fileset *fileset;
    size_t count = a->words.archive_count;
    a->archive = cli_name_of(a->words.archives, count, a->archive_name);
    cli_raise_file_limit(); /* files of several pieces are open until their last one */
    int status = CLI_FAILED;
    if (cli_open_words(&a->words, 0, count, NULL, &fileset) == 0) {
        interrupt_catch(); /* not before: a signal at once ends an opening that hangs */
        status = extract_fileset(a, fileset);
        fileset_close(fileset);
    }
    if (atomic_load(interrupt_flag()) && status != CLI_OK)
        interrupt_die();
    return status == CLI_OK ? cli_paths_check(&a->words) : status;
}

/* ---- arguments ---- */

static int command_extract_parse(struct arguments *a, int argc, char **argv)
{
    const struct cli_option options[] = {
        {"-C, --directory=DIR", "into DIR, made if it is not there (default: here)",
         .text = &a->options.directory},
        {"-f, --force", "replace files that exist", .flag = &a->options.overwrite},
        {"-j, --jobs=N",
         "with N threads (default: the CPUs of this process, or 16 for storage of other nodes)",
         .count = &a->options.work.threads, .min = 1, .max = EXTRACT_THREADS_MAX},
        CLI_PATH(&a->words),
        {"-p, --preserve-permissions",
         "the modes of the archive, whatever the umask (root's default)",
         .flag = &a->options.exact_modes},
        {"--privileged",
         "the same, and what gives rights: set-id bits, device nodes, capabilities and other "
         "attributes of the system",
         .flag = &a->options.privileged},
        {"--no-same-owner",
         "files belong to the user who extracts them (the default, except for root)",
         .flag = &a->no_same_owner},
        {"-q, --quiet", "no summary", .flag = &a->quiet},
        CLI_ARCHIVES,
        {NULL},
    };
    int status = cli_parse_paths(&command_extract, options, argc, argv, &a->words);
    if (status != CLI_GO_ON)
        return status;
    a->options.paths = a->words.paths;
    a->options.path_count = a->words.path_count;
    a->options.path_found = a->words.found;
    a->options.exact_modes |= a->options.privileged;
    a->options.owners = geteuid() == 0 && !a->no_same_owner;
    return CLI_GO_ON;
}

static int extract_main(int argc, char **argv)
{
    struct arguments a = {
        .options = {.work = {.report = command_extract_report,
                             .progress = command_extract_show,
                             .ctx = &a,
                             .stop = interrupt_flag()},
                    .directory = ".",
                    .exact_modes = geteuid() == 0},
    };
    int status = command_extract_parse(&a, argc, argv);
    if (status == CLI_GO_ON)
        status = extract_archives(&a);
    cli_paths_free(&a.words);
    return status;
}
