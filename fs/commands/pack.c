/*
 * onepot pack: directories become one archive.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "commands.h"
#include "pack.h"

static const struct cli_usage usage = {
    "pack", "[-f] [-o OUT] [-j N] DIR...",
    "Pack directories into an archive that mounts at once, and that every tar program\n"
    "extracts. One DIR: its content is the root of the archive; several: each is a folder\n"
    "in it. The archive appears under its name when it is complete.\n"
    "\n"
    "  -o, --output=OUT      its name (default: DIR.onepot.tar in the present directory)\n"
    "  -f, --force           replace OUT if it exists\n"
    "  -j, --jobs=N          read with N threads (default: 4, and up to 64 where reading\n"
    "                        is slow); the archive is the same\n"
    "      --strict          give up at the first file that can't be packed\n"
    "      --no-sync         don't wait until the archive is on the disk\n"
    "  -q, --quiet           no summary\n"
    "      --progress=WHEN   show progress: auto, always or never\n"};

static _Atomic int stop;

static void on_signal(int number)
{
    atomic_store(&stop, number);
}

/* A signal ends the work cleanly; one that was ignored (nohup) stays so. */
static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, old;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes shall be an error, EFBIG */
}

static void tell(void *progress, enum pack_report kind, const struct fault *what)
{
    (void)kind;
    char line[2048];
    fault_describe(what, 0, NULL, line, sizeof(line));
    cli_progress_note(progress, line);
}

struct arguments {
    struct pack_options options;
    enum cli_progress_mode progress;
    bool quiet;
};

/*
 * Buffers of a few megabytes come and go all the time. By default each round would give
 * their memory back to the system and take it anew, page fault by page fault.
 */
static void keep_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void summarize(const struct arguments *a, const struct pack_result *result, uint64_t ns)
{
    char files[CLI_TEXT_LEN], bytes[CLI_TEXT_LEN], size[CLI_TEXT_LEN], time[CLI_TEXT_LEN];
    char problems[CLI_TEXT_LEN];
    if (!a->quiet)
        cli_note("%s: %s files, %s in an archive of %s, %s", a->options.output,
                 cli_format_count(result->totals.files + result->totals.hardlinks, files),
                 cli_format_bytes(result->totals.data_bytes, bytes),
                 cli_format_bytes(result->totals.file_bytes, size), cli_format_time(ns, time));
    if (result->problems)
        cli_note("%s: complete but for %s %s, listed above", a->options.output,
                 cli_format_count(result->problems, problems),
                 result->problems == 1 ? "problem" : "problems");
}

/* The error of a run; after a signal the shell shall see that it was one. */
static int fail(const struct arguments *a, int err, const struct fault *fault)
{
    int number = atomic_load(&stop);
    if (err != -EINTR || !number)
        return cli_fail(fault->member[0] ? NULL : a->options.output, err, fault);
    cli_note("%s: interrupted; nothing is left of it", a->options.output);
    fflush(NULL);
    signal(number, SIG_DFL);
    raise(number);
    return CLI_FAILED;
}

static int run(struct arguments *a)
{
    struct cli_progress progress;
    struct pack_result result;
    struct fault fault = {0};
    uint64_t start = now_ns();
    keep_memory();
    catch_signals();
    cli_progress_start(&progress, a->progress);
    a->options.report = tell;
    a->options.progress = cli_progress_show;
    a->options.ctx = &progress;
    a->options.stop = &stop;
    int r = pack_run(&a->options, &fault, &result);
    cli_progress_end(&progress);
    if (r < 0)
        return fail(a, r, &fault);
    summarize(a, &result, now_ns() - start);
    return result.problems ? CLI_FAILED : CLI_OK;
}

enum {
    OPTION_PROGRESS = CLI_OPTION_OWN,
    OPTION_STRICT,
    OPTION_NO_SYNC,
    OPTION_LATER, /* promised in the manual of a later version */
};

static const struct option longs[] = {
    {"output", required_argument, NULL, 'o'},
    {"force", no_argument, NULL, 'f'},
    {"jobs", required_argument, NULL, 'j'},
    {"strict", no_argument, NULL, OPTION_STRICT},
    {"no-sync", no_argument, NULL, OPTION_NO_SYNC},
    {"quiet", no_argument, NULL, 'q'},
    {"progress", required_argument, NULL, OPTION_PROGRESS},
    {"zstd", optional_argument, NULL, OPTION_LATER},
    {"block", required_argument, NULL, OPTION_LATER},
    {"align", required_argument, NULL, OPTION_LATER},
    {"exclude", required_argument, NULL, OPTION_LATER},
    {"files-from", required_argument, NULL, OPTION_LATER},
    {"shards", required_argument, NULL, OPTION_LATER},
    CLI_OPTIONS_END,
};

static int take_option(struct arguments *a, int opt, const char *word)
{
    uint64_t number;
    switch (opt) {
    case 'o':
        a->options.output = optarg;
        return 0;
    case 'f':
        a->options.overwrite = true;
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    case 'j':
        if (cli_number_option(&usage, "-j", optarg, 1, PACK_THREADS_MAX, &number) != 0)
            return CLI_USAGE;
        a->options.threads = (unsigned)number;
        return 0;
    case OPTION_STRICT:
        a->options.strict = true;
        return 0;
    case OPTION_NO_SYNC:
        a->options.no_sync = true;
        return 0;
    case OPTION_PROGRESS:
        return cli_progress_option(&usage, optarg, &a->progress);
    default:
        return cli_usage_error(&usage, "%s is not available yet", word);
    }
}

static int check_output(struct arguments *a, char **ret_default)
{
    if (!a->options.output) {
        if (a->options.source_count > 1)
            return cli_usage_error(&usage, "several directories: name the archive with -o");
        if (pack_default_output(a->options.sources[0], ret_default) < 0)
            return cli_usage_error(&usage, "%s has no name to call the archive by; use -o",
                                   a->options.sources[0]);
        a->options.output = *ret_default;
    }
    if (strcmp(a->options.output, "-") == 0)
        return cli_usage_error(&usage, "an archive can't be written to standard output; name a "
                                       "file with -o");
    return 0;
}

int command_pack(int argc, char **argv)
{
    struct arguments a = {.progress = CLI_PROGRESS_AUTO};
    int opt, status = CLI_GO_ON;
    while ((opt = cli_getopt(&usage, argc, argv, "o:fj:q", longs, &status)) != -1) {
        int r = take_option(&a, opt, argv[optind - 1]);
        if (r != 0)
            return r;
    }
    if (status != CLI_GO_ON)
        return status;
    if (optind == argc)
        return cli_usage_error(&usage, "no directory was named");
    a.options.sources = (const char *const *)argv + optind;
    a.options.source_count = (size_t)(argc - optind);

    char *own = NULL;
    status = check_output(&a, &own);
    if (status == 0)
        status = run(&a);
    free(own);
    return status;
}
