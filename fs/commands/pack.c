/*
 * onepot pack: packs directories and archives into one archive, or several shards.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "archive_input.h"
#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "interrupt.h"
#include "launcher.h"
#include "pack.h"

static const struct cli_usage usage = {
    "pack", "[-f] [-o OUT] [-j N] [--exclude GLOB]... [--files-from LIST] [--shards N] SRC...",
    "Pack directories, or archives of any format that onepot reads, into an archive that\n"
    "mounts at once, and that every tar program extracts. One SRC: its content is the root\n"
    "of the archive; several: each is a folder in it. The archive appears under its name\n"
    "when it is complete.\n"
    "\n"
    "  -o, --output=OUT      its name (default: SRC.onepot.tar in the present directory)\n"
    "  -f, --force           replace OUT if it exists\n"
    "      --exclude=GLOB    leave out what matches, by its name or, if GLOB has a slash, by\n"
    "                        its path in SRC; may be repeated\n"
    "      --files-from=LIST pack only the files that LIST names (-: standard input), by\n"
    "                        paths relative to SRC (default: the present directory)\n"
    "      --null            names in LIST end with a NUL byte (found out if there is one)\n"
    "      --shards=N        N archives, a file's chosen by its path; under srun, mpirun and\n"
    "                        torchrun each rank writes its share\n"
    "      --rank=R --world=W  which rank of how many, in place of what the launcher says\n"
    "      --zstd[=LEVEL]    compress, as zstd does (1 to 22, default 3): a .tar.zst\n"
    "      --block=SIZE      compress so much together, of which a random read decompresses\n"
    "                        all (4K to 8M, default 512K)\n"
    "      --align=BYTES     begin the data of each file at a multiple of BYTES\n"
    "  -j, --jobs=N          read and compress with N threads (default: 4, and up to 128\n"
    "                        where reading is slow; compress with one a CPU); the archive\n"
    "                        is the same\n"
    "      --strict          give up at the first file that can't be packed\n"
    "      --no-sync         don't wait until the archive is on the disk\n"
    "  -q, --quiet           no summary\n"
    "      --progress=WHEN   show progress: auto, always or never\n"};

/* For decompressed blocks of a source that is a compressed archive. */
#define INPUT_CACHE_BYTES (UINT64_C(64) << 20)

/* More files than this would be unmanageable. */
#define SHARDS_MAX 1000000u

static void tell(void *progress, enum pack_report kind, const struct fault *what)
{
    (void)kind;
    char line[2048];
    fault_describe(what, 0, NULL, line, sizeof(line));
    cli_progress_note(progress, line);
}

/* A source that is an archive. */
struct opened {
    struct pot *pot;
    struct archive_input *input;
};

struct arguments {
    struct pack_options options;
    enum cli_progress_mode progress;
    bool quiet;
    bool has_rank, has_world;
    const char *launcher; /* that set the rank; NULL: none */
    const char **excludes;
    struct opened *opened; /* one for each source */
    const struct input **inputs;
    uint64_t left_out; /* members of source archives that can't be represented */
};

/*
 * Buffers of a few megabytes are allocated and freed all the time. By default each round would
 * return their memory to the system and take it anew, page fault by page fault.
 */
static void keep_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
}

/* " in an archive", " in 8 of 256 shards (rank 3 of 32 by Slurm)". */
static void describe_output(const struct arguments *a, char *text, size_t size)
{
    const struct pack_options *o = &a->options;
    if (!o->shards)
        snprintf(text, size, "an archive");
    else if (o->world <= 1)
        snprintf(text, size, "%u shards", o->shards);
    else
        snprintf(text, size, "%u of %u shards (rank %u of %u%s%s)",
                 o->rank < o->shards ? (o->shards + o->world - 1 - o->rank) / o->world : 0,
                 o->shards, o->rank, o->world, a->launcher ? " by " : "",
                 a->launcher ? a->launcher : "");
}

static void summarize(const struct arguments *a, const struct pack_result *result, uint64_t ns)
{
    char files[CLI_TEXT_LEN], bytes[CLI_TEXT_LEN], size[CLI_TEXT_LEN], time[CLI_TEXT_LEN];
    char problems[CLI_TEXT_LEN], output[128];
    uint64_t count = result->totals.files + result->totals.hardlinks;
    describe_output(a, output, sizeof(output));
    if (!a->quiet)
        cli_note("%s: %s %s, %s in %s of %s, %s%s", a->options.output,
                 cli_format_count(count, files), count == 1 ? "file" : "files",
                 cli_format_bytes(result->totals.data_bytes, bytes), output,
                 cli_format_bytes(result->totals.file_bytes, size), cli_format_time(ns, time),
                 result->waits ? "; named when those of all ranks are there" : "");
    if (result->problems)
        cli_note("%s: complete but for %s %s, listed above", a->options.output,
                 cli_format_count(result->problems, problems),
                 result->problems == 1 ? "problem" : "problems");
}

/* Report a run's error; after a signal, die of it, so that the shell sees it. */
static int fail(const struct arguments *a, int err, const struct fault *fault)
{
    if (err != -EINTR || !atomic_load(interrupt_flag()))
        return cli_fail(fault->member[0] ? NULL : a->options.output, err, fault);
    cli_note("%s: interrupted; nothing is left of it", a->options.output);
    interrupt_die();
    return CLI_FAILED;
}

/* ---- sources ---- */

/*
 * Any path that is not a directory is taken for an archive; a missing one fails as a directory.
 */
static bool is_archive(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

static int open_archive(struct arguments *a, size_t i)
{
    struct fault fault = {0};
    struct opened *o = &a->opened[i];
    const char *path = a->options.sources[i];
    int r = cli_open_pot(path, NULL, a->progress, &o->pot);
    if (r < 0)
        return r;
    a->left_out += index_left_out(o->pot->index);
    if (a->left_out && a->options.strict) {
        cli_failf(path, "not all that is in it can be packed; leave --strict away to pack the "
                        "rest");
        return -EUCLEAN;
    }
    r = archive_input_new(o->pot, INPUT_CACHE_BYTES, &fault, &o->input);
    if (r < 0)
        cli_fail(path, r, &fault);
    else
        a->inputs[i] = archive_input_get(o->input);
    return r;
}

static int open_archives(struct arguments *a)
{
    size_t count = a->options.source_count;
    a->opened = calloc(count, sizeof(*a->opened));
    a->inputs = calloc(count, sizeof(*a->inputs));
    if (!a->opened || !a->inputs)
        return cli_fail(NULL, -ENOMEM, NULL), -ENOMEM;
    a->options.inputs = a->inputs;
    for (size_t i = 0; i < count; i++) {
        int r = is_archive(a->options.sources[i]) ? open_archive(a, i) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static void close_archives(struct arguments *a)
{
    for (size_t i = 0; a->opened && i < a->options.source_count; i++) {
        archive_input_free(a->opened[i].input);
        pot_close(a->opened[i].pot);
    }
    free(a->opened);
    free(a->inputs);
}

/* ---- the run ---- */

static int pack(struct arguments *a)
{
    struct cli_progress progress;
    struct pack_result result;
    struct fault fault = {0};
    uint64_t start = now_ns();
    cli_progress_start(&progress, a->progress);
    a->options.report = tell;
    a->options.progress = cli_progress_show;
    a->options.ctx = &progress;
    a->options.stop = interrupt_flag();
    int r = pack_run(&a->options, &fault, &result);
    cli_progress_end(&progress);
    if (r < 0)
        return fail(a, r, &fault);
    result.problems += a->left_out;
    summarize(a, &result, now_ns() - start);
    return result.problems ? CLI_FAILED : CLI_OK;
}

static int run(struct arguments *a)
{
    keep_memory();
    interrupt_catch();
    signal(SIGXFSZ, SIG_IGN); /* makes a file-size limit an error, EFBIG */
    if (a->options.shards)
        cli_raise_file_limit(); /* each shard being written takes two descriptors */
    int r = open_archives(a);
    int status = r == -EINTR ? fail(a, r, NULL) : r < 0 ? CLI_FAILED : pack(a);
    close_archives(a);
    return status;
}

enum {
    OPTION_PROGRESS = CLI_OPTION_OWN,
    OPTION_STRICT,
    OPTION_NO_SYNC,
    OPTION_EXCLUDE,
    OPTION_FILES_FROM,
    OPTION_NULL,
    OPTION_SHARDS,
    OPTION_RANK,
    OPTION_WORLD,
    OPTION_ZSTD,
    OPTION_BLOCK,
    OPTION_ALIGN,
};

static const struct option longs[] = {
    {"output", required_argument, NULL, 'o'},
    {"force", no_argument, NULL, 'f'},
    {"jobs", required_argument, NULL, 'j'},
    {"strict", no_argument, NULL, OPTION_STRICT},
    {"no-sync", no_argument, NULL, OPTION_NO_SYNC},
    {"quiet", no_argument, NULL, 'q'},
    {"progress", required_argument, NULL, OPTION_PROGRESS},
    {"zstd", optional_argument, NULL, OPTION_ZSTD},
    {"block", required_argument, NULL, OPTION_BLOCK},
    {"align", required_argument, NULL, OPTION_ALIGN},
    {"exclude", required_argument, NULL, OPTION_EXCLUDE},
    {"files-from", required_argument, NULL, OPTION_FILES_FROM},
    {"null", no_argument, NULL, OPTION_NULL},
    {"shards", required_argument, NULL, OPTION_SHARDS},
    {"rank", required_argument, NULL, OPTION_RANK},
    {"world", required_argument, NULL, OPTION_WORLD},
    CLI_OPTIONS_END,
};

static int take_number(const char *option, uint64_t min, uint64_t max, uint32_t *ret_number)
{
    uint64_t number;
    if (cli_number_option(&usage, option, optarg, min, max, &number) != 0)
        return CLI_USAGE;
    *ret_number = (uint32_t)number;
    return 0;
}

/* Options that select what is packed, and into how many archives. */
static int take_selection(struct arguments *a, int opt, const char *word)
{
    switch (opt) {
    case OPTION_EXCLUDE:
        a->excludes[a->options.exclude_count++] = optarg;
        return 0;
    case OPTION_FILES_FROM:
        a->options.files_from = optarg;
        return 0;
    case OPTION_NULL:
        a->options.files_from_nul = true;
        return 0;
    case OPTION_SHARDS:
        return take_number("--shards", 1, SHARDS_MAX, &a->options.shards);
    case OPTION_RANK:
        a->has_rank = true;
        return take_number("--rank", 0, UINT32_MAX - 1, &a->options.rank);
    case OPTION_WORLD:
        a->has_world = true;
        return take_number("--world", 1, UINT32_MAX, &a->options.world);
    default:
        return cli_usage_error(&usage, "%s is not available yet", word);
    }
}

/* Parse a power of two. */
static int take_power(const char *option, uint32_t min, uint32_t max, uint32_t *ret_bytes)
{
    uint64_t bytes;
    if (cli_size_option(&usage, option, optarg, &bytes) != 0)
        return CLI_USAGE;
    if (bytes < min || bytes > max || (bytes & (bytes - 1)))
        return cli_usage_error(&usage, "%s takes a power of two from %u to %u", option, min,
                               max);
    *ret_bytes = (uint32_t)bytes;
    return 0;
}

/* Options for the archive's format. */
static int take_format(struct arguments *a, int opt, const char *word)
{
    uint64_t level = 3;
    switch (opt) {
    case OPTION_ZSTD:
        if (optarg &&
            cli_number_option(&usage, "--zstd", optarg, 1, WRITER_LEVEL_MAX, &level) != 0)
            return CLI_USAGE;
        a->options.zstd_level = (int)level;
        return 0;
    case OPTION_BLOCK:
        return take_power("--block", WRITER_BLOCK_MIN, WRITER_BLOCK_MAX,
                          &a->options.block_bytes);
    case OPTION_ALIGN:
        return take_power("--align", PAX_BLOCK_BYTES, WRITER_ALIGN_MAX,
                          &a->options.align_bytes);
    default:
        return take_selection(a, opt, word);
    }
}

static int check_format(const struct pack_options *o)
{
    if (o->block_bytes && !o->zstd_level)
        return cli_usage_error(&usage, "--block is about --zstd");
    if (o->align_bytes && o->zstd_level)
        return cli_usage_error(&usage, "--align is for archives without --zstd: in compressed "
                                       "ones nothing lies at a place of its own");
    return 0;
}

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
        return take_format(a, opt, word);
    }
}

/* Find this rank's share of the shards. */
static int find_rank(struct arguments *a)
{
    struct pack_options *o = &a->options;
    struct launcher launcher;
    struct fault fault = {0};
    if (a->has_rank != a->has_world)
        return cli_usage_error(&usage, "--rank and --world go together");
    if (a->has_rank && !o->shards)
        return cli_usage_error(&usage, "--rank needs --shards: ranks share those");
    if (a->has_rank && o->rank >= o->world)
        return cli_usage_error(&usage, "--rank=%u is not below --world=%u", o->rank, o->world);
    if (a->has_rank || !o->shards)
        return 0;
    if (launcher_find(launcher_environment, NULL, &fault, &launcher) < 0)
        return cli_fail(NULL, -EINVAL, &fault);
    o->rank = launcher.rank;
    o->world = launcher.world;
    o->start = launcher_start(launcher_environment, NULL, launcher.name);
    a->launcher = launcher.name;
    if (launcher.note[0])
        cli_note("%s", launcher.note);
    return 0;
}

static int check_sources(struct arguments *a)
{
    static const char *const here[] = {"."};
    struct pack_options *o = &a->options;
    if (!o->source_count && o->files_from) {
        o->sources = here;
        o->source_count = 1;
    }
    if (!o->source_count)
        return cli_usage_error(&usage, "no directory or archive was named");
    if (o->files_from_nul && !o->files_from)
        return cli_usage_error(&usage, "--null is about the names of --files-from");
    if (o->files_from && (o->source_count > 1 || is_archive(o->sources[0])))
        return cli_usage_error(&usage, "--files-from takes one directory");
    int r = check_format(o);
    return r ? r : find_rank(a);
}

static int check_output(struct arguments *a, char **ret_default)
{
    if (!a->options.output) {
        if (a->options.source_count > 1)
            return cli_usage_error(&usage, "several sources: name the archive with -o");
        const char *source = a->options.sources[0];
        if (pack_default_output(source, is_archive(source), ret_default) < 0)
            return cli_usage_error(&usage, "%s has no name to call the archive by; use -o",
                                   a->options.sources[0]);
        if (a->options.zstd_level) {
            char *name = *ret_default;
            if (asprintf(ret_default, "%s.zst", name) < 0)
                *ret_default = NULL;
            free(name);
            if (!*ret_default)
                return cli_fail(NULL, -ENOMEM, NULL);
        }
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
    auto_free const char **excludes = calloc((size_t)argc, sizeof(*excludes));
    if (!excludes)
        return cli_fail(NULL, -ENOMEM, NULL);
    a.excludes = excludes;
    a.options.excludes = excludes;
    while ((opt = cli_getopt(&usage, argc, argv, "o:fj:q", longs, &status)) != -1) {
        int r = take_option(&a, opt, argv[optind - 1]);
        if (r != 0)
            return r;
    }
    if (status != CLI_GO_ON)
        return status;
    a.options.sources = (const char *const *)argv + optind;
    a.options.source_count = (size_t)(argc - optind);

    auto_free char *own = NULL;
    status = check_sources(&a);
    if (status == 0)
        status = check_output(&a, &own);
    return status == 0 ? run(&a) : status;
}
