/*
 * onepot extract: turns archives back into files.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "crew.h"
#include "format.h"
#include "extract.h"
#include "interrupt.h"

static const struct cli_usage usage = {
    "extract", "[-f] [-j N] [-C DIR] ARCHIVE... [[--] PATH...]",
    "Extract archives: everything, or only the files and directories PATH... in them. Behind\n"
    "the first archive, the first word that names no file here is a PATH, and so are all\n"
    "words after it, or after '--'.\n"};

struct arguments {
    struct extract_options options;
    enum cli_progress_mode progress;
    bool quiet, no_same_owner;
    const char *archive; /* the current one */
    char **archives;
    int archive_count;
    const char **paths;
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

/* Is one of the requested paths in an archive processed so far? */
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

static int extract_pot(struct arguments *a, struct pot *pot)
{
    struct reader_options options = {.cache_bytes = crew_cache_bytes(pot, a->options.threads)};
    struct extract_result result = {0};
    struct fault fault = {0};
    struct reader *reader;
    uint64_t start = now_ns();
    int r = reader_new(pot, &options, &fault, &reader);
    if (r < 0)
        return cli_fail(a->archive, r, &fault);
    cli_progress_start(&a->line, a->progress);
    r = extract_run(pot, reader, &a->options, &fault, &result);
    cli_progress_end(&a->line);
    reader_free(reader);
    a->options.directory_is_ours |= result.made_directory;
    if (r < 0)
        return command_extract_fail(a, r, &fault, &result);
    if (a->options.path_count == 0)
        result.problems += index_left_out(pot->index); /* reported when it was opened */
    if (found_any(&a->options))
        command_extract_summarize(a, &result, now_ns() - start);
    return result.problems ? CLI_FAILED : CLI_OK;
}

static int extract_archive(struct arguments *a, const char *archive)
{
    struct pot *pot;
    a->archive = archive;
    if (cli_open_pot(archive, NULL, a->progress, &pot) < 0)
        return CLI_FAILED;
    int status = extract_pot(a, pot);
    pot_close(pot);
    return status;
}

static int extract_archives(struct arguments *a)
{
    int status = CLI_OK;
    a->options.path_found = calloc(a->options.path_count + 1, sizeof(bool));
    if (!a->options.path_found)
        return cli_failf(NULL, "out of memory");
    cli_raise_file_limit(); /* files of several pieces are open until their last one */
    interrupt_catch();
    signal(SIGXFSZ, SIG_IGN); /* makes a file-size limit an error, EFBIG */
    int done = 0;
    for (; done < a->archive_count && !atomic_load(interrupt_flag()); done++)
        if (extract_archive(a, a->archives[done]) != CLI_OK)
            status = CLI_FAILED;
    if (atomic_load(interrupt_flag()) && (status != CLI_OK || done < a->archive_count))
        interrupt_die();
    for (size_t i = 0; i < a->options.path_count && status == CLI_OK; i++)
        if (!a->options.path_found[i])
            status =
                cli_failf(a->archive_count == 1 ? a->archive : NULL,
                          "%s: no such file or directory in the %s, and no archive here",
                          a->options.paths[i], a->archive_count == 1 ? "archive" : "archives");
    free(a->options.path_found);
    return status;
}

/* ---- arguments ---- */

static int take_path(const struct cli_usage *u, void *ctx, const char *text)
{
    (void)u;
    struct arguments *a = ctx;
    a->paths[a->options.path_count++] = text;
    return 0;
}

/* How many of the last arguments follow "--"; -1: there is no "--". */
static int count_paths(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0)
            return argc - i - 1;
    return -1;
}

/*
 * The same without "--": paths begin at the first argument, after an archive, that is no file.
 */
static int guess_paths(int argc, char **argv)
{
    struct stat st;
    int i = optind + 1;
    while (i < argc && stat(argv[i], &st) == 0 && !S_ISDIR(st.st_mode))
        i++;
    return i < argc ? argc - i : 0;
}

static int command_extract_parse(struct arguments *a, int argc, char **argv)
{
    int paths = count_paths(argc, argv);
    const struct cli_option options[] = {
        {"-C, --directory=DIR", "into DIR, made if it is not there (default: here)",
         .text = &a->options.directory},
        {"-f, --force", "replace files that exist", .flag = &a->options.overwrite},
        {"-j, --jobs=N", "with N threads (default: the CPUs of this process)",
         .count = &a->options.threads, .min = 1, .max = EXTRACT_THREADS_MAX},
        {"--path=PATH", "the same as PATH behind '--'; may be repeated", .take = take_path,
         .ctx = a},
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
        CLI_ARCHIVES(&a->progress),
        {NULL},
    };
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (paths < 0)
        paths = guess_paths(argc, argv);
    a->archives = argv + optind;
    a->archive_count = argc - optind - paths;
    if (a->archive_count <= 0)
        return cli_usage_error(&usage, "no archive was named");
    for (int i = argc - paths; i < argc; i++)
        a->paths[a->options.path_count++] = argv[i];
    a->options.exact_modes |= a->options.privileged;
    a->options.owners = geteuid() == 0 && !a->no_same_owner;
    return CLI_GO_ON;
}

int command_extract(int argc, char **argv)
{
    struct arguments a = {
        .options = {.directory = ".",
                    .threads = cli_default_jobs(),
                    .report = command_extract_report,
                    .progress = command_extract_show,
                    .ctx = &a,
                    .stop = interrupt_flag(),
                    .exact_modes = geteuid() == 0},
    };
    auto_free const char **paths = calloc((size_t)argc + 1, sizeof(*paths));
    if (!paths)
        return cli_failf(NULL, "out of memory");
    a.options.paths = a.paths = paths;
    int status = command_extract_parse(&a, argc, argv);
    return status == CLI_GO_ON ? extract_archives(&a) : status;
}
