/*
 * onepot pack: packs directories and archives into one archive, or several shards.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_input.h"
#include "backend.h"
#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "interrupt.h"
#include "launcher.h"
#include "output.h"
#include "pack.h"
#include "path.h"
#include "pour.h"
#include "selection.h"
#include "source.h"
#include "vector.h"
#include "volumes.h"

static int pack_main(int argc, char **argv);

const struct cli_command command_pack = {
    "pack", pack_main, "make an archive of a directory",
    "[-f] [-o OUT] [-j N] [--exclude GLOB]... [--files-from LIST] [--shards N] SRC...",
    "Pack directories, archives of any format that onepot reads, or a tar from a stream (-),\n"
    "into an archive that mounts at once, and that every tar program extracts. The content\n"
    "of a single SRC is the root of the archive; several become folders in it. The archive\n"
    "gets its name when it is complete.\n"};

/* For decompressed blocks of a source that is a compressed archive. */
#define INPUT_CACHE_BYTES (UINT64_C(64) << 20)

#define DRY_RUN "--dry-run"
#define SHARES_SHOWN 10u

/* More files than this would be unmanageable. */
#define SHARDS_MAX 1000000u

static void command_pack_report(void *progress, enum pack_report kind, const struct fault *what)
{
    (void)kind;
    char line[2048];
    fault_describe(what, 0, NULL, line, sizeof(line));
    cli_progress_note(progress, line);
}

/* A source that is an archive. */
struct opened {
    struct fileset *fileset;
    const struct input *input;
};

struct arguments {
    struct pack_options options;
    bool quiet;
    bool is_dry;
    bool is_poured;
    bool is_union; /* the sources are archives that become one tree */
    bool has_rank, has_world;
    const char *launcher; /* that set the rank; NULL: none */
    int poured_fd;        /* of the source, if `is_poured`: it is read front to back */
    bool is_file;         /* and no pipe */
    const char **excludes;
    struct opened *opened; /* one for each source */
    struct opened kept;    /* --resume: what was written before, and its files: */
    VECTOR(struct file_id) kept_ids;
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

static void advise_stripes(const struct arguments *a, const struct pack_result *result)
{
    unsigned stripes;
    if (a->options.shards || a->options.stripes ||
        stripes_of(a->options.output, &stripes) < 0 ||
        !stripes_are_few(stripes, result->totals.file_bytes))
        return;
    cli_note("%s: all of it lies on one storage target; 'lfs migrate -c %u %s%s' spreads it, "
             "as --stripe does from the start",
             a->options.output, STRIPES_ADVISED, a->options.output[0] == '-' ? "./" : "",
             a->options.output);
}

static void command_pack_summarize(const struct arguments *a, const struct pack_result *result,
                                   uint64_t ns)
{
    char output[128];
    uint64_t count = result->totals.files;
    describe_output(a, output, sizeof(output));
    if (!a->quiet)
        cli_note("%s: %s %s, %s in %s of %s, %s%s", a->options.output, cli_count(count),
                 count == 1 ? "file" : "files", cli_bytes(result->totals.data_bytes), output,
                 cli_bytes(result->totals.file_bytes), cli_time(ns),
                 result->waits ? "; named when all ranks are complete" : "");
    if (result->problems)
        cli_note("%s: complete but for %s %s, listed above", a->options.output,
                 cli_count(result->problems), result->problems == 1 ? "problem" : "problems");
}

/* Tells of a partial file that is left, or, after an interruption, that none is. */
static void say_what_is_left(const struct arguments *a, bool interrupted, bool keeps)
{
    const char *left = output_left();
    if (keeps)
        cli_note("%s: interrupted; what was written is kept, and the same command goes on "
                 "from there",
                 a->options.output);
    else if (left)
        cli_note("%s: %sits partial file '%s' could not be removed; remove it",
                 a->options.output, interrupted ? "interrupted; " : "", left);
    else if (interrupted)
        cli_note("%s: interrupted; nothing is left of it", a->options.output);
}

/* Report a run's error; after a signal, die of it, so that the shell sees it. */
static int command_pack_fail(const struct arguments *a, int err, const struct fault *fault,
                             bool keeps)
{
    bool interrupted = err == -EINTR && atomic_load(interrupt_flag());
    if (!interrupted)
        cli_fail(fault->member[0] ? NULL : a->options.output, err, fault);
    say_what_is_left(a, interrupted, keeps);
    if (interrupted)
        interrupt_die();
    return CLI_FAILED;
}

/* ---- sources ---- */

/* Can it be read front to back alone? "-" is standard input, whatever that is. */
static bool is_stream(const char *path)
{
    struct stat st;
    return strcmp(path, "-") == 0 ||
           (stat(path, &st) == 0 &&
            (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || S_ISCHR(st.st_mode)));
}

/* Is it a file that nothing but pack reads, from its first bytes on? */
static bool is_container(const char *path)
{
    enum { HEAD_BYTES = 33 << 10 };
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    auto_free uint8_t *head = malloc(HEAD_BYTES);
    struct source *source = NULL;
    struct stat st;
    if (fd < 0 || !head || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return false;
    ssize_t len = pread(fd, head, HEAD_BYTES, 0);
    if (len <= 0 || !backend_container(head, (size_t)len))
        return false;
    if (volumes_open(path, NULL, NULL, &source) < 0)
        return false;
    bool is_known = source_member(source, 1) || backend_of_head(source, head, (size_t)len);
    source_close(source);
    return !is_known;
}

/*
 * Any path that is not a directory is taken for an archive; a missing one fails as a directory,
 * if it is neither a pattern nor a list.
 */
static bool is_archive(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? !S_ISDIR(st.st_mode) : archive_list_is_set(path);
}

static int command_pack_open(struct arguments *a, size_t i)
{
    struct fault fault = {0};
    struct opened *o = &a->opened[i];
    const char *path = a->options.sources[i];
    const struct cli_paths all = {.archives = (char **)(uintptr_t)a->options.sources};
    int r = a->is_union ? cli_open_words(&all, 0, a->options.source_count, NULL, &o->fileset)
                        : cli_open_fileset(path, NULL, &o->fileset);
    if (r < 0)
        return r;
    a->left_out += index_left_out(o->fileset->index);
    if (a->left_out && a->options.strict) {
        cli_failf(path,
                  "not everything in it can be packed; without --strict the rest is packed");
        return -EUCLEAN;
    }
    if (index_left_out(o->fileset->index) && index_info(o->fileset->index)->files == 0) {
        cli_failf(path,
                  "none of its files can be packed; if they are encrypted, extract it with "
                  "its password, and pack the directory");
        return -EUCLEAN;
    }
    r = archive_input_new(o->fileset, INPUT_CACHE_BYTES, &fault, &o->input);
    if (r < 0)
        cli_fail(path, r, &fault);
    else
        a->inputs[i] = o->input;
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
        int r = is_archive(a->options.sources[i]) ? command_pack_open(a, i) : 0;
        if (r < 0)
            return r;
        if (a->is_union)
            a->options.source_count = count = 1;
    }
    return 0;
}

static void close_archives(struct arguments *a)
{
    for (size_t i = 0; a->opened && i < a->options.source_count; i++) {
        archive_input_free(a->opened[i].input);
        fileset_close(a->opened[i].fileset);
    }
    archive_input_free(a->kept.input);
    fileset_close(a->kept.fileset);
    vector_free(&a->kept_ids);
    free(a->opened);
    free(a->inputs);
}

/* ---- --resume ---- */

/*
 * Is this the name of what an earlier run has kept of an archive that this one writes? A
 * complete shard that waits for other ranks counts, too: this run takes it away.
 */
static bool is_kept_name(const struct pack_options *o, const struct shard_names *shards,
                         const char *output, const char *name)
{
    const char *suffix = strrchr(name, '.');
    const size_t output_len = strnlen(output, NAME_MAX - PARTIAL_EXTRA_LEN);
    const struct selection own = {.rank = o->rank, .world = o->world};
    uint32_t number;
    size_t len;
    if (!partial_name_parse(name, &len) ||
        (strcmp(suffix, KEPT_SUFFIX) != 0 && (!o->shards || strcmp(suffix, READY_SUFFIX) != 0)))
        return false;
    return o->shards
               ? shard_names_find(shards, name, len, &number) && selection_has(&own, number)
               : len == output_len && memcmp(name, output, len) == 0;
}

/*
 * Why its files may not be packed in place of the user's; NULL: they may. The time is struct
 * output's.
 */
static const char *why_not_kept(const struct stat *st)
{
    if (st->st_mode & 0022)
        return "others may write to it";
    if (st->st_nlink != 1)
        return "it has another name";
    return st->st_mtim.tv_sec ? NULL : "a file in it could not be packed as it is";
}

static int list_kept(struct arguments *a, const struct shard_names *shards,
                     struct archive_list *list)
{
    char target[PATH_MAX];
    struct stat link;
    const char *output = a->options.output;
    if (!a->options.shards && lstat(output, &link) == 0 && S_ISLNK(link.st_mode) &&
        path_real(output, target, NULL) == 0)
        output = target; /* where the archive is written */
    auto_free char *folder = path_folder(output);
    auto_closedir DIR *dir = folder ? opendir(folder) : NULL;
    const struct dirent *entry;
    int r = folder ? 0 : -ENOMEM, folder_len = (int)(path_base(output) - output);
    while (r == 0 && dir && (entry = readdir(dir))) {
        struct stat st;
        char *path = NULL;
        if (!is_kept_name(&a->options, shards, path_base(output), entry->d_name) ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(st.st_mode) || st.st_uid != geteuid())
            continue;
        const char *why_not = why_not_kept(&st);
        if (why_not) {
            cli_note("%.*s%s: is not used: %s", folder_len, output, entry->d_name, why_not);
            continue;
        }
        if (list->count == 0 || st.st_mtim.tv_sec < a->options.kept_since)
            a->options.kept_since = st.st_mtim.tv_sec;
        if (vector_push(&a->kept_ids, file_id_of(&st)) < 0 ||
            asprintf(&path, "%.*s%s", folder_len, output, entry->d_name) < 0 ||
            vector_push(list, path) < 0)
            r = -ENOMEM;
    }
    return r;
}

/* Are these the files that were looked at, and none that took a name since? */
static bool are_listed(const struct arguments *a)
{
    for (size_t i = 0; i < a->kept.fileset->part_count; i++) {
        size_t k = 0;
        while (k < a->kept_ids.count &&
               !file_id_equal(a->kept_ids.at[k], a->kept.fileset->parts[i].file))
            k++;
        if (k == a->kept_ids.count)
            return false;
    }
    return true;
}

static void note_kept(void *ctx, const char *line)
{
    (void)ctx;
    cli_note("%s", line);
}

/* Opens what earlier runs have kept, as one tree; without any, everything is read. */
static int find_kept(struct arguments *a)
{
    struct pack_options *o = &a->options;
    struct shard_names shards = {0};
    struct archive_list list = {0};
    struct fault fault = {0};
    const struct fileset_options options = {
        .together = {.on_conflict = FILESET_CONFLICT_FIRST, .skip_damaged = true},
        .save = FILESET_SAVE_NEVER,
        .rebuild = true,
        .is_whole = true,
        .note = note_kept};
    int r = o->shards ? shard_names_parse(o->output, o->shards, &shards) : 0;
    if (r == 0)
        r = list_kept(a, &shards, &list);
    if (r == 0 && list.count)
        r = fileset_open_many((const char *const *)list.at, list.count, o->output, &options,
                              &fault, &a->kept.fileset);
    const struct index_info *info = a->kept.fileset ? index_info(a->kept.fileset->index) : NULL;
    if (info && !are_listed(a))
        r = fault_set(&fault, -ESTALE, NULL, FAULT_NO_OFFSET, "it was just replaced");
    if (r == 0 && info &&
        !(info->has_sums && info->sum_kind == SUM_XXH3)) /* else nothing tells damage */
        r = fault_set(&fault, -EUCLEAN, NULL, FAULT_NO_OFFSET, "it has no index with sums");
    if (r == 0 && info)
        r = archive_input_new(a->kept.fileset, INPUT_CACHE_BYTES, &fault, &a->kept.input);
    if (r < 0 && r != -ENOMEM) {
        cli_note("%s: what was kept of it can't be used, and everything is read anew: %s",
                 o->output, fault.what);
        r = 0;
    }
    if (a->kept.input) {
        o->kept = a->kept.input;
        cli_note("%s: goes on from the %s files that were kept", o->output,
                 cli_count(info->files));
    }
    o->kept_ids = a->kept_ids.at;
    o->kept_count = a->kept_ids.count;
    shard_names_free(&shards);
    archive_list_free(&list);
    return r;
}

/* ---- the run ---- */

static int command_pack_run(struct arguments *a)
{
    struct cli_progress progress;
    struct pack_result result = {0};
    struct fault fault = {0};
    uint64_t start = now_ns();
    cli_progress_start(&progress);
    a->options.report = command_pack_report;
    if (progress.shown) /* else nothing is counted */
        a->options.progress = cli_progress_show;
    a->options.ctx = &progress;
    a->options.stop = interrupt_flag();
    int r = a->is_poured ? pour_run(&a->options, a->poured_fd, a->is_file, &fault, &result)
                         : pack_run(&a->options, &fault, &result);
    cli_progress_end(&progress);
    if (r < 0)
        return command_pack_fail(a, r, &fault, result.keeps);
    result.problems += a->left_out;
    command_pack_summarize(a, &result, now_ns() - start);
    advise_stripes(a, &result);
    return result.problems ? CLI_FAILED : CLI_OK;
}

static int command_pack_run_stream(struct arguments *a)
{
    static const char *const standard_input[] = {"standard input"};
    const char *path = a->options.sources[0];
    auto_close int own = -1;
    a->options.ignores_zeros = cli_ignores_zeros;
    if (strcmp(path, "-") == 0) {
        a->options.sources = standard_input;
    } else {
        own = open(path, O_RDONLY | O_CLOEXEC);
        if (own < 0)
            return cli_fail(path, -errno, NULL);
        a->poured_fd = own;
    }
    return command_pack_run(a);
}

static int pack_sources(struct arguments *a)
{
    keep_memory();
    if (a->is_poured) {
        interrupt_catch();
        return command_pack_run_stream(a);
    }
    if (a->options.shards)
        cli_raise_file_limit(); /* each shard being written takes two descriptors */
    int r = open_archives(a);
    interrupt_catch(); /* not before: a signal at once ends an opening that hangs */
    if (r == 0 && a->options.resume)
        r = find_kept(a);
    int status = r == -EINTR ? command_pack_fail(a, r, NULL, false)
                 : r < 0     ? CLI_FAILED
                             : command_pack_run(a);
    close_archives(a);
    return status;
}

/* ---- --dry-run ---- */

static int by_inodes(const void *a, const void *b)
{
    const struct pack_share *x = a, *y = b;
    return x->inodes != y->inodes ? (x->inodes < y->inodes ? 1 : -1) : strcmp(x->name, y->name);
}

static void print_shares(struct pack_survey *s)
{
    if (s->shares.count == 0)
        return;
    qsort(s->shares.at, s->shares.count, sizeof(s->shares.at[0]), by_inodes);
    printf("%15s %15s %12s  folder\n", "inodes", "files", "bytes");
    for (size_t i = 0; i < s->shares.count && i < SHARES_SHOWN; i++) {
        const struct pack_share *share = &s->shares.at[i];
        printf("%15s %15s %12s  ", cli_count(share->inodes), cli_count(share->files),
               cli_bytes(share->bytes));
        cli_print_safe(stdout, share->name, strlen(share->name));
        putchar('\n');
    }
    if (s->shares.count > SHARES_SHOWN)
        printf("and %s more\n", cli_count(s->shares.count - SHARES_SHOWN));
}

/* A word of a command, as a shell takes it. */
static void print_word(const char *word)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    putchar(' ');
    if (*word && word[strspn(word, plain)] == '\0')
        fputs(word, stdout);
    else
        cli_print_quoted(stdout, word);
}

/* Would the archive lie on one storage target? */
static bool needs_stripes(const struct arguments *a, const struct pack_survey *s)
{
    unsigned stripes;
    return !a->options.shards && !a->options.stripes &&
           stripes_of_new(a->options.output, &stripes) == 0 &&
           stripes_are_few(stripes, s->archive_bytes);
}

static void print_survey(const struct arguments *a, struct pack_survey *s, char **argv)
{
    char output[128];
    printf("%s %s, %s, %s inodes\n", cli_count(s->all.files),
           s->all.files == 1 ? "file" : "files", cli_bytes(s->all.bytes),
           cli_count(s->all.inodes));
    print_shares(s);
    describe_output(a, output, sizeof(output));
    printf("packed: about %s in ", cli_bytes(s->archive_bytes));
    cli_print_safe(stdout, output, strlen(output));
    puts(a->options.writer.zstd_level ? ", less what compression saves" : "");
    printf("next: onepot pack");
    if (needs_stripes(a, s))
        printf(" --stripe=%u", STRIPES_ADVISED);
    for (size_t i = 1; argv[i]; i++)
        if (strcmp(argv[i], DRY_RUN) != 0)
            print_word(argv[i]);
    putchar('\n');
}

static int survey_sources(struct arguments *a, char **argv)
{
    struct pack_survey survey;
    struct fault fault = {0};
    struct cli_progress progress = {0}; /* none is shown */
    interrupt_catch();
    a->options.report = command_pack_report;
    a->options.ctx = &progress;
    a->options.stop = interrupt_flag();
    int r = pack_survey(&a->options, &fault, &survey);
    int status = survey.problems ? CLI_FAILED : CLI_OK;
    if (r == 0)
        print_survey(a, &survey, argv);
    pack_survey_free(&survey);
    if (r == -EINTR)
        interrupt_die();
    return r < 0 ? cli_fail(NULL, r, &fault) : status;
}

/* ---- options ---- */

/* The view leaves it out of an archive, in the order of the patterns. */
static int take_exclude(const struct cli_command *u, void *ctx, const char *text)
{
    struct arguments *a = ctx;
    a->excludes[a->options.exclude_count++] = text;
    return cli_take_view(u, &cli_view_words[1], text);
}

/* Files that macOS and Windows add for themselves. */
static const char *const junk[] = {"._*", "__MACOSX/", ".DS_Store", "Thumbs.db"};
#define JUNK_COUNT (sizeof(junk) / sizeof(junk[0]))

static int take_drop_junk(const struct cli_command *u, void *ctx, const char *text)
{
    (void)text;
    int r = 0;
    for (size_t i = 0; r == 0 && i < JUNK_COUNT; i++)
        r = take_exclude(u, ctx, junk[i]);
    return r;
}

static int take_files_from(const struct cli_command *u, void *ctx, const char *text)
{
    struct arguments *a = ctx;
    if (a->options.files_from)
        return cli_usage_error(u, "--files-from can be given once: join the lists");
    a->options.files_from = text;
    return 0;
}

static int take_normalize(const struct cli_command *u, void *ctx, const char *text)
{
    if (strcmp(text, "NFC") != 0)
        return cli_usage_error(u, "--normalize takes NFC, not '%s'", text);
    *(bool *)ctx = true;
#ifdef HAVE_UTF8PROC
    return 0;
#else
    return cli_failf("--normalize", "this onepot was built without libutf8proc");
#endif
}

static int take_level(const struct cli_command *u, void *ctx, const char *text)
{
    struct arguments *a = ctx;
    uint64_t level = 3;
    if (text && cli_number_option(u, "--zstd", text, 1, WRITER_LEVEL_MAX, &level) != 0)
        return CLI_USAGE;
    a->options.writer.zstd_level = (int)level;
    return 0;
}

static int take_power(const char *option, const char *text, uint32_t min, uint32_t max,
                      uint32_t *ret_bytes)
{
    uint64_t bytes = 0;
    int r = cli_size_option(&command_pack, option, text, &bytes);
    if (r == 0 && (bytes < min || bytes > max || (bytes & (bytes - 1))))
        return cli_usage_error(&command_pack, "%s takes a power of two from %u to %u", option,
                               min, max);
    *ret_bytes = (uint32_t)bytes;
    return r;
}

static int take_block(const struct cli_command *u, void *ctx, const char *text)
{
    (void)u;
    return take_power("--block", text, WRITER_BLOCK_MIN, WRITER_BLOCK_MAX, ctx);
}

static int take_align(const struct cli_command *u, void *ctx, const char *text)
{
    (void)u;
    return take_power("--align", text, PAX_BLOCK_BYTES, WRITER_ALIGN_MAX, ctx);
}

static int check_format(const struct pack_options *o)
{
    if (o->writer.block_bytes && !o->writer.zstd_level)
        return cli_usage_error(&command_pack, "--block needs --zstd");
    if (o->writer.align_bytes && o->writer.zstd_level)
        return cli_usage_error(
            &command_pack,
            "--align and --zstd exclude each other: compressed data can't be aligned");
    return 0;
}

static int command_pack_parse(struct arguments *a, int argc, char **argv)
{
    struct pack_options *o = &a->options;
    const struct cli_option options[] = {
        {"-o, --output=OUT",
         "name of the archive (default: SRC.onepot.tar in the current directory)",
         .text = &o->output},
        {"-f, --force", "replace OUT if it exists", .flag = &o->overwrite},
        {"--exclude=GLOB",
         "leave out what matches, by its name or, if GLOB has a slash, by its path in SRC; may "
         "be "
         "repeated",
         .take = take_exclude, .ctx = a},
        {"--drop-junk", "leave out ._*, __MACOSX, .DS_Store and Thumbs.db",
         .take = take_drop_junk, .ctx = a},
        {"--normalize=NFC",
         "spell names in Unicode NFC, as files made on a Mac may not have them; also what "
         "links "
         "within the tree lead to",
         .take = take_normalize, .ctx = &o->is_nfc},
        {"--files-from=LIST",
         "pack only the files that LIST names (-: standard input), by paths relative to SRC "
         "(default: the current directory)",
         .take = take_files_from, .ctx = a},
        {"--include=GLOB",
         "of archives, pack only what matches; the first pattern that matches decides",
         .take = cli_take_view, .ctx = &cli_view_words[0]},
        {"--map=FILE",
         "of archives, pack members under other names: lines of NAME, a tab, NAME TO SHOW",
         .take = cli_take_view, .ctx = &cli_view_words[3]},
        {"--nested[=GLOB]",
         "of archives, pack the archives in them as directories: those with the ending of one, "
         "or what matches GLOB",
         .take = cli_take_nested},
        {"-h, --dereference", "of directories, pack what symbolic links lead to, as tar does",
         .flag = &o->dereference},
        {"--null", "names in LIST end with a NUL byte (detected if there is one)",
         .flag = &o->files_from_nul},
        {"--shards=N",
         "make N archives; a file's path decides to which it goes; under srun, mpirun and "
         "torchrun each rank writes its share",
         .count = &o->shards, .min = 1, .max = SHARDS_MAX},
        {"--rank=R", "which rank this is, whatever the launcher says", .flag = &a->has_rank,
         .count = &o->rank, .max = UINT32_MAX - 1},
        {"--world=W", "the number of ranks; goes with --rank", .flag = &a->has_world,
         .count = &o->world, .min = 1, .max = UINT32_MAX},
        {"--zstd[=LEVEL]", "compress, as zstd does (1 to 22, default 3): a .tar.zst",
         .take = take_level, .ctx = a},
        {"--block=SIZE",
         "compress so much together, all of which a random read decompresses (4K to 8M, "
         "default "
         "512K)",
         .take = take_block, .ctx = &o->writer.block_bytes},
        {"--align=BYTES", "begin the data of each file at a multiple of BYTES",
         .take = take_align, .ctx = &o->writer.align_bytes},
        {"--stripe=N", "on Lustre, spread each archive over N storage targets",
         .count = &o->stripes, .min = 1, .max = STRIPES_MAX},
        {"-j, --jobs=N",
         "read and compress with N threads; the archive is the same (default: 4, and up to 128 "
         "where reading is slow; one for each CPU to compress)",
         .count = &o->writer.threads, .min = 1, .max = PACK_THREADS_MAX},
        {"--strict", "give up at the first file that can't be packed", .flag = &o->strict},
        {"--resume",
         "when interrupted, keep what was written; and go on from what was kept before",
         .flag = &o->resume},
        {"--no-sync", "don't wait until the archive is on the disk", .flag = &o->no_sync},
        {DRY_RUN,
         "write nothing; print files, bytes and inodes of the largest folders, and how large "
         "the archive will be",
         .flag = &a->is_dry},
        {"-q, --quiet", "no summary", .flag = &a->quiet},
        CLI_TOGETHER,
        CLI_PROGRESS,
        CLI_IGNORE_ZEROS,
        {NULL},
    };
    return cli_parse(&command_pack, options, argc, argv);
}

/* Find this rank's share of the shards. */
static int find_rank(struct arguments *a)
{
    struct pack_options *o = &a->options;
    struct launcher launcher;
    struct fault fault = {0};
    if (a->has_rank != a->has_world)
        return cli_usage_error(&command_pack, "--rank and --world go together");
    if (a->has_rank && !o->shards)
        return cli_usage_error(&command_pack, "--rank needs --shards: ranks share those");
    if (a->has_rank && o->rank >= o->world)
        return cli_usage_error(&command_pack, "--rank=%u is not below --world=%u", o->rank,
                               o->world);
    if (a->has_rank || !o->shards)
        return 0;
    if (launcher_find(&fault, &launcher) < 0)
        return cli_fail(NULL, -EINVAL, &fault);
    o->rank = launcher.rank;
    o->world = launcher.world;
    o->start = launcher_start(launcher.name);
    a->launcher = launcher.name;
    if (launcher.note[0])
        cli_note("%s", launcher.note);
    return 0;
}

/* Directories can't have a view; an archive's --files-from is a part of its view. */
static int check_view(struct pack_options *o)
{
    const bool has_view = cli_picks_of_archives();
    for (size_t i = 0; has_view && i < o->source_count; i++)
        if (!is_archive(o->sources[i]))
            return cli_usage_error(&command_pack,
                                   "--include, --map and --nested are for archives; %s is none",
                                   o->sources[i]);
    if (has_view)
        o->exclude_count = 0; /* the view has them, in their order */
    if (!o->files_from || !is_archive(o->sources[0]))
        return 0;
    int r =
        cli_take_view(&command_pack, &cli_view_words[o->files_from_nul ? 4 : 2], o->files_from);
    o->files_from = NULL;
    return r;
}

/* A pattern or a list has no name for an archive, nor for a folder in one. */
static int check_sets(struct arguments *a)
{
    const struct pack_options *o = &a->options;
    bool has_set = false;
    for (size_t i = 0; i < o->source_count; i++) {
        const char *source = o->sources[i];
        if (!is_archive(source) || !archive_list_is_set(source))
            continue;
        has_set = true;
        if (o->source_count > 1)
            return cli_usage_error(&command_pack,
                                   "%s stands for several archives: pack it alone", source);
        if (!o->output)
            return cli_usage_error(&command_pack,
                                   "%s stands for several archives: name the new one "
                                   "with -o",
                                   source);
    }
    a->is_union = !has_set && (cli_together.each || cli_together.skip_damaged ||
                               cli_together.on_conflict != FILESET_CONFLICT_ERROR);
    for (size_t i = 0; a->is_union && i < o->source_count; i++)
        if (o->source_count == 1 || !is_archive(o->sources[i]))
            return cli_usage_error(&command_pack,
                                   "--each, --on-conflict and --skip-damaged are for "
                                   "several archives");
    return 0;
}

/* Options that need to know all names before the first is packed. */
static int check_stream(struct arguments *a)
{
    const struct pack_options *o = &a->options;
    const struct {
        bool is_given;
        const char *option;
    } others[] = {
        {a->is_dry, DRY_RUN},
        {o->shards, "--shards"},
        {o->files_from, "--files-from"},
        {cli_picks_of_archives(), "--include, --map and --nested"},
        {cli_together.each || cli_together.skip_damaged ||
             cli_together.on_conflict != FILESET_CONFLICT_ERROR,
         "--each, --on-conflict and --skip-damaged"},
    };
    const char *name = NULL;
    for (size_t i = 0; !name && i < o->source_count; i++) {
        a->is_file = !is_stream(o->sources[i]);
        if (!a->is_file || is_container(o->sources[i]))
            name = strcmp(o->sources[i], "-") == 0 ? "standard input" : o->sources[i];
    }
    if (!name)
        return 0;
    if (o->source_count > 1)
        return cli_usage_error(&command_pack, "%s is packed alone", name);
    if (!o->output && !a->is_file)
        return cli_usage_error(&command_pack, "%s has no name: name the archive with -o", name);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (others[i].is_given)
            return cli_usage_error(&command_pack,
                                   "%s can't be had of %s: pack it, and then the archive",
                                   others[i].option, name);
    a->is_poured = true;
    return 0;
}

static int check_dry(const struct arguments *a)
{
    const struct pack_options *o = &a->options;
    if (a->is_dry && o->files_from)
        return cli_usage_error(&command_pack, DRY_RUN " and --files-from exclude each other");
    for (size_t i = 0; a->is_dry && i < o->source_count; i++)
        if (is_archive(o->sources[i]))
            return cli_usage_error(&command_pack,
                                   DRY_RUN " is for directories; 'onepot info %s' tells what "
                                           "the archive has",
                                   o->sources[i]);
    return 0;
}

/* The links of an archive lead to its own members, if anywhere; and it is read fast. */
static int check_links(const struct pack_options *o)
{
    for (size_t i = 0; (o->dereference || o->resume) && i < o->source_count; i++)
        if (is_stream(o->sources[i]) || is_archive(o->sources[i]))
            return cli_usage_error(&command_pack, "%s is for directories; %s is none",
                                   o->dereference ? "--dereference" : "--resume",
                                   o->sources[i]);
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
        return cli_usage_error(&command_pack, "no directory or archive was named");
    if (o->files_from_nul && !o->files_from)
        return cli_usage_error(&command_pack, "--null needs --files-from");
    if (o->files_from && o->source_count > 1)
        return cli_usage_error(&command_pack, "--files-from takes one directory or archive");
    int r = check_format(o);
    if (r == 0)
        r = check_links(o);
    if (r == 0)
        r = check_stream(a);
    if (r != 0 || a->is_poured)
        return r;
    r = check_dry(a);
    if (r == 0)
        r = check_sets(a);
    if (r == 0)
        r = check_view(o);
    return r ? r : find_rank(a);
}

static int check_output(struct arguments *a, char **ret_default)
{
    if (!a->options.output) {
        if (a->options.source_count > 1)
            return cli_usage_error(&command_pack, "several sources: name the archive with -o");
        const char *source = a->options.sources[0];
        if (pack_default_output(source, is_archive(source), ret_default) < 0)
            return cli_usage_error(&command_pack, "%s gives no name for the archive; use -o",
                                   a->options.sources[0]);
        if (a->options.writer.zstd_level) {
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
        return cli_usage_error(&command_pack,
                               "an archive can't be written to standard output; name a "
                               "file with -o");
    return 0;
}

static int pack_main(int argc, char **argv)
{
    struct arguments a = {0};
    auto_free const char **excludes = calloc((size_t)argc * JUNK_COUNT, sizeof(*excludes));
    if (!excludes)
        return cli_fail(NULL, -ENOMEM, NULL);
    a.excludes = excludes;
    a.options.excludes = excludes;
    int status = command_pack_parse(&a, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    a.options.sources = (const char *const *)argv + optind;
    a.options.source_count = (size_t)(argc - optind);

    auto_free char *own = NULL;
    status = check_sources(&a);
    if (status == 0)
        status = check_output(&a, &own);
    if (status == 0)
        status = a.is_dry ? survey_sources(&a, argv) : pack_sources(&a);
    return status;
}
