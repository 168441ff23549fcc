/*
 * Packing as a whole: opens the sources, lets the pipeline fill the archive, and gives the
 * archive its name.
 */
#include "pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "backend.h"
#include "cleanup.h"
#include "numbers.h"
#include "path.h"
#include "count.h"
#include "folder.h"
#include "output.h"
#include "pipeline.h"
#include "shard_exchange.h"

#define SURVEY_THREADS 16u     /* they wait for the storage of files' attributes */
#define SURVEY_INDEX_BYTES 72u /* of the index for a member, about */

/* Everything that a run needs, from its options. */
struct run {
    const struct pack_options *options;
    struct pack_source *sources;
    struct selection selection;
    struct name_list *names;
    struct shard_names shard_names;
    struct pack_result result;
};

static int pack_source_fault(struct fault *fault, int err, const char *path)
{
    if (err != -ENOTDIR)
        return fault_set_errno(fault, err, path, "can't be packed");
    return fault_set_advised(fault, err, path, FAULT_NO_OFFSET,
                             "name the directory that is to be packed", "is not a directory");
}

/* The last component of a path; "." and the like are resolved first. The caller frees it. */
static int pack_base_name(const char *path, char **ret_name)
{
    size_t len = strlen(path);
    while (len && path[len - 1] == '/')
        len--;
    auto_free char *cut = strndup(path, len), *resolved = NULL;
    if (!cut)
        return -ENOMEM;
    const char *base = path_base(cut);
    if (!*base || path_is_dots(base)) {
        resolved = realpath(path, NULL);
        if (!resolved)
            return -errno;
        base = path_base(resolved);
        if (!*base)
            return -EINVAL;
    }
    *ret_name = strdup(base);
    return *ret_name ? 0 : -ENOMEM;
}

/* An archive's name without the ending of its format. */
static int pack_archive_name(const char *path, char **ret_name)
{
    int r = pack_base_name(path, ret_name);
    if (r == 0)
        (*ret_name)[backend_stem(*ret_name, strlen(*ret_name))] = '\0';
    return r;
}

int pack_default_output(const char *source, bool is_archive, char **ret_name)
{
    auto_free char *base = NULL;
    int r = is_archive ? pack_archive_name(source, &base) : pack_base_name(source, &base);
    if (r < 0)
        return r;
    return asprintf(ret_name, "%s.onepot.tar", base) < 0 ? -ENOMEM : 0;
}

static int pack_open_source(struct pack_source *s, const char *path, const struct input *input,
                            bool alone, struct fault *fault)
{
    s->path = path;
    s->input = input;
    if (!input)
        s->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!input && s->fd < 0)
        return pack_source_fault(fault, -errno, path);
    if (alone) {
        s->name = strdup("");
        return s->name ? 0 : -ENOMEM;
    }
    int r = input ? pack_archive_name(path, &s->name) : pack_base_name(path, &s->name);
    if (r == -EINVAL)
        fault_set_advised(fault, r, path, FAULT_NO_OFFSET, "pack it alone",
                          "has no name for its folder in the archive");
    return r;
}

static int pack_compare_sources(const void *a, const void *b)
{
    const struct pack_source *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int pack_compose(char **name)
{
    char *composed;
    int r = selection_compose(*name, &composed);
    if (r == 1) {
        free(*name);
        *name = composed;
    }
    return r < 0 ? r : 0;
}

static int pack_open_sources(const struct pack_options *o, struct pack_source *sources,
                             struct fault *fault)
{
    for (size_t i = 0; i < o->source_count; i++) {
        const struct input *input = o->inputs ? o->inputs[i] : NULL;
        int r =
            pack_open_source(&sources[i], o->sources[i], input, o->source_count == 1, fault);
        if (r == 0 && o->is_nfc)
            r = pack_compose(&sources[i].name);
        if (r < 0)
            return r;
    }
    qsort(sources, o->source_count, sizeof(*sources), pack_compare_sources);
    for (size_t i = 1; i < o->source_count; i++) {
        if (strcmp(sources[i - 1].name, sources[i].name) != 0)
            continue;
        return fault_set_advised(fault, -EEXIST, sources[i].path, FAULT_NO_OFFSET,
                                 "pack the directory that holds both",
                                 "another source has the same name, '%s'", sources[i].name);
    }
    return 0;
}

/* Makes the folder whose names are the sources. They are sorted already. */
static int pack_make_root(const struct run *run, struct folder_set *set,
                          struct folder **ret_root)
{
    struct listing_maker maker = {0};
    struct listing listing;
    for (size_t i = 0; i < run->options->source_count; i++) {
        const struct pack_source *s = &run->sources[i];
        uint32_t number = s->input ? INDEX_ROOT : run->names ? 0 : FOLDER_NAME_ALL;
        if (listing_maker_add(&maker, s->name, strlen(s->name), DT_DIR, number) < 0) {
            listing_maker_free(&maker);
            return -ENOMEM;
        }
    }
    listing_maker_finish(&maker, &listing);
    return folder_new(set, NULL, "", 0, -1, (struct file_id){0}, &listing, ret_root);
}

/* How many descriptors the process may have. */
static uint64_t pack_most_files(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 1024 : limit.rlim_cur;
}

/* How many descriptors folders and threads may take. */
static unsigned pack_descriptors(void)
{
    uint64_t most = pack_most_files();
    return most > 2048 ? 2048 : most < 64 ? 32 : (unsigned)most - 32;
}

/* Each thread has a folder and a file open. */
static unsigned pack_max_threads(void)
{
    return min_u32(pack_descriptors() / 4, PACK_THREADS_MAX);
}

/* Finds out how much there is to do, if that is known beforehand, to estimate the time left. */
static void pack_find_totals(const struct run *run, struct pipeline_sources *sources)
{
    uint32_t world = run->selection.world;
    for (size_t i = 0; i < run->options->source_count; i++) {
        if (!run->sources[i].input) {
            sources->total_bytes = 0;
            break;
        }
        sources->total_bytes += index_info(run->sources[i].input->index)->data_bytes / world;
    }
    if (run->names)
        sources->total_members = name_list_count(run->names) / world;
}

static int pack_fill(struct run *run, struct shard_set *shards, struct fault *fault)
{
    struct folder_set set = {.most = pack_descriptors() / 4,
                             .follows = run->options->dereference};
    struct pipeline_sources sources = {.at = run->sources};
    pack_find_totals(run, &sources);
    int r = pack_make_root(run, &set, &sources.root);
    if (r < 0)
        return r;
    r = pipeline_run(run->options, &sources, &run->selection, shards, &set, pack_max_threads(),
                     &run->result, fault);
    folder_unref(&set, sources.root);
    return r;
}

static int pack_write_shards(struct run *run, const char *letters, struct compress_pool *pool,
                             struct fault *fault)
{
    const struct pack_options *o = run->options;
    struct shard_set *shards;
    int r = shard_set_open(o, letters, &run->selection, pool, fault, &shards);
    if (r < 0)
        return r;
    r = pack_fill(run, shards, fault);
    if (r == 0) {
        r = shard_set_close(shards, fault, &run->result.totals);
        run->result.waits = r == 0;
    }
    if (r == -EINTR && o->resume && o->stop && atomic_load(o->stop))
        run->result.keeps = shard_set_keep(shards);
    shard_set_discard(shards);
    return r < 0 ? r : 0;
}

/* ---- which shards belong together ---- */

static void pack_mix(uint64_t *sum, const void *bytes, size_t len)
{
    *sum = XXH3_64bits_withSeed(bytes, len, *sum);
}

/*
 * The letters in the names of shards that are ready. They are the same for all ranks, but
 * differ for other options, and for another start if the launcher tells starts apart. A process
 * that runs alone draws its own.
 */
static int pack_find_letters(const struct run *run, char letters[PARTIAL_LETTER_COUNT + 1])
{
    const struct pack_options *o = run->options;
    const uint64_t numbers[] = {o->shards,
                                o->world,
                                o->start,
                                (uint64_t)o->writer.zstd_level,
                                o->writer.block_bytes,
                                o->writer.align_bytes,
                                o->dereference,
                                o->is_nfc};
    uint64_t sum = 0;
    if (run->selection.world <= 1 && getrandom(&sum, sizeof(sum), 0) != sizeof(sum))
        return -EIO;
    pack_mix(&sum, numbers, sizeof(numbers));
    for (size_t i = 0; i < o->source_count; i++)
        pack_mix(&sum, o->sources[i], strlen(o->sources[i]));
    for (size_t i = 0; i < o->exclude_count; i++)
        pack_mix(&sum, o->excludes[i], strlen(o->excludes[i]));
    if (o->files_from)
        pack_mix(&sum, o->files_from, strlen(o->files_from));
    partial_letters(sum, letters);
    return 0;
}

/* ---- what killed runs left ---- */

/* Among the shards only our own: other ranks remove theirs. */
static bool pack_is_own_shard(const void *ctx, const char *name, size_t len)
{
    const struct selection *s = ctx;
    uint32_t number;
    return shard_names_find(s->outputs, name, len, &number) && selection_has(s, number);
}

void pack_report_leftover(void *options, enum leftover what, const char *name)
{
    static const struct {
        int err;
        const char *what;
    } reports[] = {
        [LEFTOVER_REMOVED] = {-EEXIST, "removed: it was left there by a run that did not end"},
        [LEFTOVER_BUSY] = {-EBUSY, "another process is writing the same archive"},
        [LEFTOVER_UNKNOWN] = {-EBUSY, "left by a run that did not end, or being written on "
                                      "another node"},
    };
    const struct pack_options *o = options;
    struct fault fault = {0};
    fault_set(&fault, reports[what].err, name, FAULT_NO_OFFSET, "%s", reports[what].what);
    if (what == LEFTOVER_UNKNOWN)
        fault_advise(&fault, "remove it if there is none");
    if (o->report)
        o->report(o->ctx, PACK_NOTE, &fault);
}

static void pack_remove_leftovers(struct run *run, enum leftovers_kind kind)
{
    struct leftovers how = {.kind = kind,
                            .found = kind == LEFTOVERS_KEPT ? NULL : pack_report_leftover,
                            .ctx = (void *)run->options};
    auto_free char *shard = NULL;
    if (run->selection.outputs) {
        if (shard_name(run->selection.outputs, run->selection.rank, &shard) < 0)
            return;
        how.match = pack_is_own_shard;
        how.match_ctx = &run->selection;
    }
    output_clean(shard ? shard : run->options->output, &how);
}

/* Do not mistake this rank's finished shards for the ones it is about to write. */
static int pack_clear_shards(struct run *run, const char *letters, struct fault *fault)
{
    struct shard_exchange x;
    const struct pack_options *o = run->options;
    int r = shard_exchange_begin(run->selection.outputs, o->overwrite, o->stop, fault, &x);
    if (r < 0)
        return r;
    pack_remove_leftovers(run, o->resume ? LEFTOVERS_TO_RESUME : LEFTOVERS_ALL);
    for (uint32_t i = 0; i < run->selection.shards; i++)
        if (selection_has(&run->selection, i))
            shard_exchange_withdraw(&x, i, letters);
    shard_exchange_end(&x);
    return 0;
}

static int pack_write_archive(struct run *run, struct fault *fault)
{
    char letters[PARTIAL_LETTER_COUNT + 1];
    const struct pack_options *o = run->options;
    struct compress_pool *pool = NULL;
    int r = pack_find_letters(run, letters);
    if (r == 0 && run->selection.outputs)
        r = pack_clear_shards(run, letters, fault);
    else if (r == 0)
        pack_remove_leftovers(run, o->resume ? LEFTOVERS_TO_RESUME : LEFTOVERS_ALL);
    if (r == 0 && o->writer.zstd_level)
        r = compress_pool_new(o->writer.threads, o->writer.zstd_level, &pool);
    if (r == 0)
        r = pack_write_shards(run, letters, pool, fault);
    if (r == 0 && o->resume)
        pack_remove_leftovers(run, LEFTOVERS_KEPT);
    compress_pool_free(pool);
    return r;
}

/* ---- selection ---- */

static int pack_report_name(void *ctx, const struct fault *what)
{
    struct run *run = ctx;
    const struct pack_options *o = run->options;
    struct fault fault = {0};
    fault_set(&fault, -what->err, what->member, FAULT_NO_OFFSET, "left out: %s", what->what);
    fault_advise(&fault, "%s", what->advice);
    run->result.problems++;
    if (o->report)
        o->report(o->ctx, PACK_PROBLEM, &fault);
    return o->strict ? -what->err : 0;
}

static int pack_read_names(struct run *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    bool input = strcmp(o->files_from, "-") == 0;
    const char *name = input ? "standard input" : o->files_from;
    auto_close int own = input ? -1 : open(o->files_from, O_RDONLY | O_CLOEXEC);
    int r = !input && own < 0 ? -errno : 0;
    auto_free char *root =
        o->sources[0][0] == '/' ? strdup(o->sources[0]) : realpath(o->sources[0], NULL);
    if (r == 0)
        r = name_list_read(input ? STDIN_FILENO : own, o->files_from_nul, root,
                           pack_report_name, run, &run->names);
    if (r == -E2BIG)
        fault_set(fault, r, name, FAULT_NO_OFFSET,
                  "the list of names can't be read: it is too long");
    else if (r < 0 && !run->result.problems)
        fault_set_errno(fault, r, name, "the list of names can't be read");
    run->selection.names = run->names;
    return r;
}

/* Shards in it are not packed themselves. */
static int pack_find_output_folder(struct run *run)
{
    if (!run->options->output) /* a survey */
        return 0;
    auto_free char *folder = path_folder(run->options->output);
    struct stat st;
    if (!folder)
        return -ENOMEM;
    if (stat(folder, &st) == 0) /* else the writer will report the error */
        run->selection.output_folder = file_id_of(&st);
    return 0;
}

static int pack_prepare_shards(struct run *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    struct selection *s = &run->selection;
    s->world = 1;
    if (!o->shards)
        return 0;
    s->shards = o->shards;
    s->rank = o->rank;
    s->world = o->world ? o->world : 1;
    int r = shard_names_parse(o->output, o->shards, &run->shard_names);
    if (r == -EINVAL) {
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "has the shard's number before a slash");
        fault_advise(fault, "write it into the last part of the name");
    }
    if (r < 0)
        return r;
    s->outputs = &run->shard_names;
    uint64_t own = (o->shards + s->world - 1 - s->rank) / s->world;
    if (own * 2 > pack_most_files() / 2)
        return fault_set_advised(
            fault, -EMFILE, NULL, FAULT_NO_OFFSET,
            "use fewer shards or more ranks, or raise ulimit -n",
            "%llu shards at once take more open files than this process may have",
            (unsigned long long)own);
    return 0;
}

static int pack_select_files(struct run *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    run->selection.excludes = o->excludes;
    run->selection.exclude_count = o->exclude_count;
    run->selection.dereference = o->dereference;
    run->selection.is_nfc = o->is_nfc;
    run->selection.kept = o->kept;
    run->selection.kept_since = o->kept_since;
    int r = pack_find_output_folder(run);
    if (r == 0)
        r = pack_prepare_shards(run, fault);
    if (r == 0 && o->files_from)
        r = o->source_count == 1 && !(o->inputs && o->inputs[0]) ? pack_read_names(run, fault)
                                                                 : -EINVAL;
    return r;
}

/* Is there no shard for this rank? */
static bool pack_has_no_share(const struct pack_options *o)
{
    return o->shards && o->rank >= o->shards;
}

static void pack_close_run(struct run *run)
{
    for (size_t i = 0; run->sources && i < run->options->source_count; i++) {
        if (run->sources[i].fd >= 0)
            close(run->sources[i].fd);
        free(run->sources[i].name);
    }
    free(run->sources);
    name_list_free(run->names);
    shard_names_free(&run->shard_names);
}

/* Open the sources, and find which of their files are wanted. pack_close_run, in any case. */
static int pack_begin_run(struct run *run, const struct pack_options *options,
                          struct fault *fault)
{
    *run = (struct run){.options = options};
    if (options->source_count == 0)
        return -EINVAL;
    run->sources = calloc(options->source_count, sizeof(*run->sources));
    if (!run->sources)
        return -ENOMEM;
    for (size_t i = 0; i < options->source_count; i++)
        run->sources[i].fd = -1;
    int r = pack_open_sources(options, run->sources, fault);
    return r < 0 ? r : pack_select_files(run, fault);
}

int pack_run(const struct pack_options *options, struct fault *fault,
             struct pack_result *ret_result)
{
    struct run run;
    int r = pack_begin_run(&run, options, fault);
    if (r == 0 && !pack_has_no_share(options))
        r = pack_write_archive(&run, fault);
    *ret_result = run.result;
    pack_close_run(&run);
    return r;
}

/* ---- a survey ---- */

static int pack_count(struct run *run, struct pack_survey *survey)
{
    struct folder_set set = {.most = pack_descriptors() / 4};
    struct pipeline_sources sources = {.at = run->sources};
    struct count count = {.sources = &sources,
                          .selection = &run->selection,
                          .survey = survey,
                          .options = run->options};
    int r = pack_make_root(run, &set, &sources.root);
    if (r < 0)
        return r;
    r = count_all(&count, min_u32(SURVEY_THREADS, pack_max_threads()));
    count_stop(&count);
    folder_unref(&set, sources.root);
    survey->archive_bytes += survey->members * SURVEY_INDEX_BYTES;
    return r;
}

int pack_survey(const struct pack_options *options, struct fault *fault,
                struct pack_survey *ret_survey)
{
    struct run run;
    *ret_survey = (struct pack_survey){0};
    for (size_t i = 0; options->inputs && i < options->source_count; i++)
        if (options->inputs[i])
            return -EINVAL;
    int r = pack_begin_run(&run, options, fault);
    if (r == 0)
        r = pack_count(&run, ret_survey);
    pack_close_run(&run);
    return r;
}

void pack_survey_free(struct pack_survey *survey)
{
    for (size_t i = 0; i < survey->shares.count; i++)
        free(survey->shares.at[i].name);
    vector_free(&survey->shares);
}
