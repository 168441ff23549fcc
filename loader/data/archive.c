/*
 * The public archive.
 *
 * Opening: the archives that a caller's words stand for (archive_list.h), staged if that was
 * asked for; and several of them once more as one tree, for the digest of their data.
 *
 * Questions about single samples. A label that is a part has the sample's name up to the first
 * dot, and its own behind it. So it is one lookup in the sample's directory, and nothing has to
 * be kept for it.
 *
 * Splits, folds and subsets: lists of samples over a shared dataset. A hash of each sample's
 * own name decides whether it is in a split, so that adding or removing a file changes nothing
 * for the others. Folds have equal sizes, so there the hashes only decide the order.
 */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "archive_list.h"
#include "cleanup.h"
#include "content.h"
#include "cpus.h"
#include "dataset.h"
#include "error.h"
#include "job.h"
#include "numbers.h"
#include "path.h"
#include "python_api.h"
#include "source_retry.h"
#include "stage.h"
#include "vector.h"

#define HOLES_TO_DATA 16u
#define STOP_PACE 1024u /* labels that are read between looks at whether they are wanted */

/* ---- opening ---- */

/*
 * From so many archives on, a list is looked for in all at once, and the view of each is not
 * saved; with fewer, a large one's may be.
 */
#define PICK_ARCHIVES 8u

struct shards {
    VECTOR(struct fileset *) filesets;
    struct fileset_compose compose; /* its view is ours */
    bool composes, is_whole;        /* as in the list of names */
    const struct onepot_archive_options *given;
    const char *opening;    /* the archive that is opened now */
    _Atomic bool cancelled; /* by the caller's progress */
    struct onepot_error *error;
};

static void shards_progress(void *ctx, const char *doing, const struct progress *progress)
{
    struct shards *list = ctx;
    if (list->given->progress(list->given->progress_ctx, list->opening, doing,
                              atomic_load(&progress->bytes_done),
                              atomic_load(&progress->bytes_total)) != 0)
        list->cancelled = true; /* and it stays so: not each look can end it at once */
}

/* Is the archive copied by another program of the job, as its script says once for all? */
static bool shards_in_job(const struct shards *list)
{
    const char *given = list->given->stage;
    const char *said = given && !given[0] ? job_variable("ONEPOT_STAGE") : given;
    return said && strcmp(said, "job") == 0;
}

static const char *shards_place(const struct shards *list)
{
    const char *given = list->given->stage;
    return given && given[0] && !shards_in_job(list) ? given : NULL;
}

static int shards_give_stage(struct fileset *fileset, struct stage *stage)
{
    int r = stage_attach(stage, &fileset->source, true);
    if (r < 0) {
        stage_close(stage);
        return r;
    }
    return stage_start(stage);
}

/* -EEXIST: it is to be read without a copy. */
static int shards_stage(const struct shards *list, struct fileset *fileset)
{
    const struct stage_options options = {
        .archive = fileset->path, .place = shards_place(list), .in_job = shards_in_job(list)};
    struct fault fault = {0};
    struct stage *stage;
    int r = stage_open(fileset->source, &options, &fault, &stage);
    if (r == -EEXIST)
        return 0;
    if (r < 0)
        return error_from_fault(list->error, r, &fault, fileset->path);
    r = shards_give_stage(fileset, stage);
    return r < 0 ? error_errno(list->error, r, fileset->path) : 0;
}

/* ONEPOT_MAX_RATIO, for struct fileset_options. A value that is not a number counts as unset.
 */
static uint32_t max_ratio(void)
{
    const char *text = getenv("ONEPOT_MAX_RATIO");
    unsigned long ratio = text ? strtoul(text, NULL, 10) : 0;
    if (text && strcmp(text, "off") == 0)
        return FILESET_RATIO_OFF;
    return ratio < FILESET_RATIO_OFF ? (uint32_t)ratio : FILESET_RATIO_OFF;
}

static int shards_open_one(struct shards *list, const char *path)
{
    struct stage_store store = {.options = {.archive = path, .place = shards_place(list)},
                                .is_private = !list->given->stage};
    const struct fileset_store fileset_store = stage_fileset_store(&store);
    struct fileset_options options = {.compose = list->composes ? &list->compose : NULL,
                                      .memory_bytes = list->given->memory_bytes,
                                      .max_ratio = max_ratio(),
                                      .ignores_zeros = list->given->ignore_zeros,
                                      .is_whole = list->is_whole,
                                      .is_plain = list->given->plain,
                                      .store = &fileset_store,
                                      .progress =
                                          list->given->progress ? shards_progress : NULL,
                                      .cancelled = &list->cancelled,
                                      .ctx = list};
    list->opening = path;
    struct fault fault = {0};
    if (vector_reserve(&list->filesets, 1) < 0)
        return error_set(list->error, -ENOMEM, "out of memory");
    if (list->filesets.count == ARCHIVES_MAX)
        return error_set(list->error, -EOVERFLOW, "%s: more than %u archives", path,
                         ARCHIVES_MAX);
    int r = fileset_open(path, &options, &fault, &list->filesets.at[list->filesets.count]);
    if (r < 0) {
        stage_close(store.stage);
        return error_from_fault(list->error, r, &fault, path);
    }
    struct fileset *fileset = list->filesets.at[list->filesets.count++];
    if (!store.stage)
        return list->given->stage ? shards_stage(list, fileset) : 0;
    /* it was unpacked there, or goes there from now on */
    r = shards_give_stage(fileset, store.stage);
    return r < 0 ? error_errno(list->error, r, path) : 0;
}

static void shards_close_from(struct shards *list, size_t first)
{
    while (list->filesets.count > first)
        fileset_close(list->filesets.at[--list->filesets.count]);
}

/* The archives that the words stand for. */
static int shards_list(const char *const *words, size_t count, struct onepot_error *error,
                       struct archive_list *names)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        struct fault fault = {0};
        r = archive_list_add(names, words[i], &fault);
        if (r < 0)
            error_from_fault(error, r, &fault, words[i]);
    }
    if (r == 0 && archive_list_join(names) < 0)
        r = error_set(error, -ENOMEM, "out of memory");
    return r;
}

/* Apply the view to each archive; they were opened without it. */
static int shards_show(struct shards *list, const struct view *view)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < list->filesets.count; i++) {
        struct fault fault = {0};
        r = fileset_show(list->filesets.at[i], view, &fault);
        if (r < 0)
            error_from_fault(list->error, r, &fault, list->filesets.at[i]->path);
    }
    return r;
}

static int shards_open_all(struct shards *list, const struct archive_list *names,
                           const struct view *view)
{
    const struct onepot_archive_options *options = list->given;
    bool picks = view && (options->files_from || options->map) && names->count >= PICK_ARCHIVES;
    int r = 0;
    list->compose.view = picks ? NULL : view;
    list->compose.nested = options->nested;
    list->compose.nested_glob = options->nested && *options->nested ? options->nested : NULL;
    list->composes = list->compose.view || options->nested;
    list->is_whole = names->is_whole;
    for (size_t i = 0; i < names->count && r == 0; i++)
        r = shards_open_one(list, names->at[i]);
    return r == 0 && picks ? shards_show(list, view) : r;
}

static bool shards_are_one_file(const char *const *paths, size_t count)
{
    struct stat st;
    return count == 1 && stat(paths[0], &st) == 0 && !S_ISDIR(st.st_mode);
}

/* Read the options that choose members of the archives. */
static int shards_read_view(const char *const *paths, size_t count,
                            const struct onepot_archive_options *o, struct onepot_error *error,
                            struct view **ret_view)
{
    size_t n = o->exclude_count + o->include_count;
    struct fault fault = {0};
    const char *file;
    *ret_view = NULL;
    if (n == 0 && !o->files_from && !o->map)
        return 0;
    auto_free struct view_pattern *patterns = calloc(n + 1, sizeof(*patterns));
    if (!patterns)
        return error_set(error, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        patterns[i] = i < o->exclude_count
                          ? (struct view_pattern){o->excludes[i], false}
                          : (struct view_pattern){o->includes[i - o->exclude_count], true};
    const struct view_options options = {.patterns = patterns,
                                         .pattern_count = n,
                                         .files_from = o->files_from,
                                         .map = o->map,
                                         .list_name = o->list_name,
                                         .is_of_several = !shards_are_one_file(paths, count)};
    int r = view_read(&options, &fault, &file, ret_view);
    return r < 0 ? error_from_fault(error, r, &fault, file ? file : "Archive") : 0;
}

/* Names and patterns for which there is nothing in all the archives. */
static int shards_check_view(const struct shards *list, const struct view *view)
{
    struct fault fault = {0};
    auto_free const struct index **shown = calloc(list->filesets.count + 1, sizeof(*shown));
    if (!shown)
        return error_set(list->error, -ENOMEM, "out of memory");
    for (size_t i = 0; i < list->filesets.count; i++)
        shown[i] = list->filesets.at[i]->index;
    int r = view_check_several(view, shown, list->filesets.count, &fault);
    return r < 0 ? error_from_fault(list->error, r, &fault, "the archives") : 0;
}

/*
 * Open all archives: staged, and as a view, as the options say. Where one path stands
 * for several files, they come in the order of their names. *ret_filesets and each of its
 * members are allocated.
 */
static int shards_open(const char *const *paths, size_t count,
                       const struct onepot_archive_options *options, struct onepot_error *error,
                       struct fileset ***ret_filesets, size_t *ret_count)
{
    struct view *view = NULL;
    struct archive_list names = {.is_plain = options->plain};
    struct shards list = {.given = options, .error = error};
    int r = count ? 0 : error_set(error, -EINVAL, "no archive was named");
    if (r == 0)
        r = shards_read_view(paths, count, options, error, &view);
    if (r == 0)
        r = shards_list(paths, count, error, &names);
    if (r == 0)
        r = shards_open_all(&list, &names, view);
    archive_list_free(&names);
    if (r == 0 && view && !shards_are_one_file(paths, count))
        r = shards_check_view(&list, view);
    view_free(view);
    if (r < 0) {
        shards_close_from(&list, 0);
        vector_free(&list.filesets);
        return r;
    }
    *ret_filesets = list.filesets.at;
    *ret_count = list.filesets.count;
    return 0;
}

int onepot_archive_open(const char *const *paths, size_t path_count,
                        const struct onepot_archive_options *options,
                        struct onepot_error *error, struct onepot_archive **ret_archive)
{
    struct onepot_archive_options o = {0};
    struct fileset **filesets;
    size_t count;
    int r = options_read(&o, sizeof(o), options, error);
    if (r < 0)
        return r;
    if (o.label_part && !*o.label_part)
        return error_set(error, -EINVAL, "the part that has the label needs a name");
    if ((unsigned)o.group > ONEPOT_GROUP_FOLDERS)
        return error_set(error, -EINVAL, "there is no grouping of kind %d", (int)o.group);
    if ((o.group == ONEPOT_GROUP_FOLDERS) != (o.part_count > 0))
        return error_set(error, -EINVAL, "parts need at least one folder, and folders a group");
    struct onepot_archive *archive = calloc(1, sizeof(*archive));
    if (!archive)
        return error_set(error, -ENOMEM, "out of memory");
    r = shards_open(paths, path_count, &o, error, &filesets, &count);
    if (r == 0) {
        for (size_t i = 0; o.retries && i < count; i++)
            source_set_retries(filesets[i]->source, o.retries == ONEPOT_NEVER ? 0 : o.retries);
        r = dataset_new(filesets, count, &o, error, &archive->dataset);
    }
    if (r < 0) {
        free(archive);
        return r;
    }
    archive->count = archive->dataset->group_count;
    *ret_archive = archive;
    return 0;
}

/* ---- the digest of the data ---- */

static struct fileset_options shards_watch(struct shards *list)
{
    return (struct fileset_options){.max_ratio = max_ratio(),
                                    .progress = list->given->progress ? shards_progress : NULL,
                                    .cancelled = &list->cancelled,
                                    .ctx = list};
}

static int shards_digest_one(struct shards *list, struct fileset *fileset, uint8_t *ret_digest)
{
    struct fault fault = {0};
    const struct fileset_options how = shards_watch(list);
    list->opening = fileset->path;
    int r = content_digest(fileset, cpus_allowed(), &how, &fault, ret_digest);
    return r < 0 ? error_from_fault(list->error, r, &fault, fileset->path) : 0;
}

/* The path of an archive, wherever this process has gone meanwhile. To be freed. */
static char *shards_path(const struct dataset *d, const char *path)
{
    char *whole;
    if (*path == '/' || !d->opened_in)
        return strdup(path);
    return asprintf(&whole, "%s/%s", d->opened_in, path) < 0 ? NULL : whole;
}

/* An archive that is not the file that it was any more; NULL: there is none. */
static const struct fileset *shards_replaced(const struct dataset *d, const struct fileset *now)
{
    auto_free struct source_identity *all = calloc(d->fileset_count, sizeof(*all));
    struct source_identity joined = {0};
    for (size_t i = 0; all && i < d->fileset_count; i++)
        all[i] = d->filesets[i]->identity;
    if (all)
        source_identity_join(all, d->fileset_count, &joined);
    if (source_identity_equal(&joined, &now->identity))
        return NULL;
    for (size_t i = 0; all && i < now->part_count && i < d->fileset_count; i++)
        if (!file_id_equal(now->parts[i].file, (struct file_id){all[i].dev, all[i].ino}))
            return d->filesets[i];
    return d->filesets[0];
}

/* All archives opened anew as one tree. -EEXIST: they are none. */
static int shards_open_union(struct shards *list, const struct dataset *d,
                             struct fileset **ret_fileset)
{
    struct fileset_options options = shards_watch(list);
    struct archive_list names = {0};
    struct fault fault = {0};
    const void *recipe;
    size_t len;
    int r = 0;
    list->opening = d->filesets[0]->path;
    for (size_t i = 0; r == 0 && i < d->fileset_count; i++) {
        bool is_view = index_recipe(d->filesets[i]->index, &recipe, &len) == 0;
        auto_free char *path = is_view ? NULL : shards_path(d, d->filesets[i]->path);
        r = is_view ? -EEXIST : path ? vector_push(&names, path) : -ENOMEM;
        if (r == 0)
            path = NULL; /* the list has it */
        options.ignores_zeros |= index_info(d->filesets[i]->index)->has_joined;
    }
    if (r == 0)
        r = archive_list_join(&names);
    options.is_whole = names.is_whole;
    if (r == 0)
        r = fileset_open_many((const char *const *)names.at, names.count, list->opening,
                              &options, &fault, ret_fileset);
    archive_list_free(&names);
    const struct fileset *replaced = r == 0 ? shards_replaced(d, *ret_fileset) : NULL;
    if (replaced) {
        fileset_close(*ret_fileset);
        list->opening = replaced->path;
        r = fault_set(&fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                      "was replaced or changed since it was opened");
    }
    return r < 0 && r != -EEXIST ? error_from_fault(list->error, r, &fault, list->opening) : r;
}

static int shards_digest_list(struct shards *list, const struct dataset *d, uint8_t *ret_digest)
{
    auto_free uint8_t *digests = calloc(d->fileset_count, ONEPOT_DIGEST_BYTES);
    XXH128_canonical_t canonical;
    int r = digests ? 0 : error_set(list->error, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < d->fileset_count; i++)
        r = shards_digest_one(list, d->filesets[i], digests + i * ONEPOT_DIGEST_BYTES);
    if (r < 0)
        return r;
    XXH128_canonicalFromHash(&canonical,
                             XXH3_128bits(digests, d->fileset_count * ONEPOT_DIGEST_BYTES));
    memcpy(ret_digest, canonical.digest, ONEPOT_DIGEST_BYTES);
    return 0;
}

static int shards_digest(struct shards *list, const struct dataset *d, uint8_t *ret_digest)
{
    struct fileset *fileset;
    if (d->fileset_count == 1)
        return shards_digest_one(list, d->filesets[0], ret_digest);
    int r = shards_open_union(list, d, &fileset);
    if (r == -EEXIST)
        return shards_digest_list(list, d, ret_digest);
    if (r < 0)
        return r;
    r = shards_digest_one(list, fileset, ret_digest);
    fileset_close(fileset);
    return r;
}

int onepot_archive_data_digest(const struct onepot_archive *archive,
                               const struct onepot_archive_options *options,
                               struct onepot_error *error,
                               uint8_t ret_digest[ONEPOT_DIGEST_BYTES])
{
    struct dataset *d = archive->dataset;
    struct onepot_archive_options o = {0};
    struct shards list = {.given = &o, .error = error};
    uint8_t *known = atomic_load(&d->data_digest);
    int r = known ? 0 : options_read(&o, sizeof(o), options, error);
    if (!known && r == 0) {
        uint8_t *found = calloc(1, ONEPOT_DIGEST_BYTES);
        r = found ? shards_digest(&list, d, found) : error_set(error, -ENOMEM, "out of memory");
        if (r == 0 && atomic_compare_exchange_strong(&d->data_digest, &known, found))
            known = found;
        else
            free(found); /* another thread was faster */
    }
    if (r == 0)
        memcpy(ret_digest, known, ONEPOT_DIGEST_BYTES);
    return r;
}

void onepot_archive_close(struct onepot_archive *archive)
{
    if (!archive)
        return;
    dataset_free(archive->dataset);
    free(archive->chosen);
    free(archive);
}

uint64_t onepot_archive_samples(const struct onepot_archive *archive)
{
    return archive->count;
}

/* ---- names ---- */

/* The length of the part of a file's path that names its group. */
static size_t group_name_length(enum onepot_group group, const char *path, size_t len)
{
    const char *slash = memrchr(path, '/', len);
    size_t start = slash ? (size_t)(slash - path) + 1 : 0;
    if (group == ONEPOT_GROUP_DIRECTORY)
        return start ? start - 1 : 0;
    return start + dataset_stem(group, path + start, len - start);
}

static int archive_name(const struct onepot_archive *archive, uint64_t sample, char *buf,
                        size_t size, size_t *ret_len)
{
    const struct dataset *d = archive->dataset;
    size_t len;
    int r = dataset_path(d, archive_first(archive, sample), buf, size, &len);
    if (r < 0)
        return r;
    if (d->group != ONEPOT_GROUP_NONE) {
        len = group_name_length(d->group, buf, len) - d->part_prefix;
        memmove(buf, buf + d->part_prefix, len);
        buf[len] = '\0';
    }
    *ret_len = len;
    return 0;
}

int onepot_archive_name(const struct onepot_archive *archive, uint64_t sample, char *buf,
                        size_t size, size_t *ret_len)
{
    if (sample >= archive->count)
        return -ERANGE;
    return archive_name(archive, sample, buf, size, ret_len);
}

/*
 * Samples that are single files under their own names: the index finds the file without looking
 * at other names.
 */
static int find_file(const struct onepot_archive *archive, const char *name,
                     uint64_t *ret_sample)
{
    const struct dataset *d = archive->dataset;
    for (uint32_t a = 0; a < d->fileset_count; a++) {
        uint32_t entry;
        int r = index_resolve(d->filesets[a]->index, name, &entry);
        if (index_is_lost(d->filesets[a]->index))
            return -EIO;
        if (r < 0)
            continue;
        for (uint64_t i = 0; i < archive->count; i++) {
            const struct record *record = &d->records[archive->chosen ? archive->chosen[i] : i];
            if (record->entry == entry && record_archive(record) == a) {
                *ret_sample = i;
                return 0;
            }
        }
    }
    return -ENOENT;
}

/* Is this the last part of the record's path? */
static bool has_base_name(const struct dataset *d, const struct record *record,
                          const char *base)
{
    const struct index *index;
    const char *name;
    size_t len;
    uint32_t named = record_named(d, record, &index);
    return index_name(index, named, &name, &len) == 0 && len == strlen(base) &&
           memcmp(name, base, len) == 0;
}

int onepot_archive_find(const struct onepot_archive *archive, const char *name,
                        uint64_t *ret_sample)
{
    const struct dataset *d = archive->dataset;
    bool by_file = d->group == ONEPOT_GROUP_NONE;
    if (by_file) {
        int r = find_file(archive, name, ret_sample);
        if (r != -ENOENT || d->links.count == 0)
            return r;
    }
    auto_free char *buf = malloc(MEMBER_PATH_MAX);
    if (!buf)
        return -ENOMEM;
    for (uint64_t i = 0; i < archive->count; i++) {
        const struct record *first = archive_first(archive, i);
        size_t len;
        if (by_file && (!record_link(d, first) || !has_base_name(d, first, path_base(name))))
            continue;
        int r = archive_name(archive, i, buf, MEMBER_PATH_MAX, &len);
        if (r < 0)
            return r;
        if (strcmp(buf, name) == 0) {
            *ret_sample = i;
            return 0;
        }
    }
    return -ENOENT;
}

/* ---- labels that are parts ---- */

static int label_look_up(const struct dataset *d, const struct index *index, uint32_t directory,
                         const char *stem, size_t stem_len, const char *ending,
                         uint32_t *ret_position)
{
    char name[INDEX_NAME_MAX + 1];
    int len = snprintf(name, sizeof(name), "%.*s%s%s%s", (int)stem_len, stem,
                       stem_len ? "." : "", d->label_part, ending);
    return len < 0 || len > (int)INDEX_NAME_MAX
               ? -ENOENT
               : index_lookup(index, directory, name, (size_t)len, ret_position);
}

int label_find(const struct dataset *d, const struct record *first, struct record *ret_part)
{
    const struct dataset_link *link = record_link(d, first);
    const struct index *index;
    const char *name;
    size_t len;
    uint32_t named = record_named(d, first, &index), directory, position;
    struct index_file file;
    int r = index_name(index, named, &name, &len);
    if (r == 0)
        r = index_parent(index, named, &directory);
    if (r < 0)
        return r;
    size_t stem_len =
        d->group == ONEPOT_GROUP_DIRECTORY ? 0 : dataset_stem(d->group, name, len);
    r = label_look_up(d, index, directory, name, stem_len, "", &position);
    if (r == -ENOENT) /* integers of a TFRecord have this ending, if their name has not */
        r = label_look_up(d, index, directory, name, stem_len, ".cls", &position);
    if (r == 0)
        r = index_files(index, position, 1, &file);
    if (r == 0 && S_ISLNK(file.mode)) {
        r = index_follow(index, position, "", NULL, &position);
        if (r == 0)
            r = index_files(index, position, 1, &file);
        if (r < 0 && r != -EUCLEAN)
            return -ENOENT;
    }
    if (r < 0)
        return r;
    if (!S_ISREG(file.mode))
        return -ENOENT;
    uint64_t archive = link ? link->archive : record_archive(first);
    uint64_t offset = file.offset < RECORD_OFFSET_NONE ? file.offset : RECORD_OFFSET_NONE;
    *ret_part = (struct record){.where = archive << RECORD_OFFSET_BITS | offset,
                                .size_bytes = file.size_bytes,
                                .entry = position};
    return file.size_bytes > LABEL_TEXT_MAX ? -EDOM : 0;
}

int label_parse(const void *text, size_t len, int64_t *ret_label)
{
    char copy[LABEL_TEXT_MAX + 1], *end;
    if (len > LABEL_TEXT_MAX)
        return -EDOM;
    memcpy(copy, text, len);
    copy[len] = '\0';
    errno = 0;
    int64_t label = strtoll(copy, &end, 10);
    if (end == copy || errno)
        return -EDOM;
    end += strspn(end, " \t\n\v\f\r");
    if (end != copy + len)
        return -EDOM;
    *ret_label = label;
    return 0;
}

int label_error(struct onepot_error *error, int err, const struct dataset *d,
                const struct record *first)
{
    struct record part;
    int r = label_find(d, first, &part);
    if (r < 0 && r != -EDOM)
        return dataset_error(error, err, d, first);
    if (err == -EDOM)
        return dataset_error_because(error, err, d, &part,
                                     "it is to be a label, and is no integer");
    return dataset_error(error, err, d, &part);
}

/* Read a sample's label; -1: it has none. Errors as in label_find and reads. */
static int label_read(struct dataset *d, const struct record *first, struct onepot_error *error,
                      int64_t *ret_label)
{
    char text[LABEL_TEXT_MAX];
    struct cursor *cursor;
    struct record part;
    int r = label_find(d, first, &part);
    if (r == -ENOENT) {
        *ret_label = -1;
        return 0;
    }
    if (r == 0) {
        r = cursor_get(d, error, &cursor);
        if (r < 0)
            return r;
        r = cursor_read(d, cursor, &part, 0, text, part.size_bytes);
        cursor_put(cursor);
    }
    if (r == 0)
        r = label_parse(text, part.size_bytes, ret_label);
    return r < 0 ? label_error(error, r, d, first) : 0;
}

/* ---- sizes, labels, parts ---- */

uint64_t archive_size(const struct onepot_archive *archive, uint64_t sample)
{
    uint64_t first, end, bytes = 0;
    archive_records(archive, sample, &first, &end);
    for (; first < end; first++)
        bytes = min_u64(bytes + archive->dataset->records[first].size_bytes, INT64_MAX);
    return bytes;
}

/*
 * Records in one piece and small records cost one comparison. No memory has INT64_MAX bytes, so
 * that who adds or allocates sizes after this check need not fear for their sum.
 */
int archive_check(const struct onepot_archive *archive, uint64_t sample, uint64_t *ret_record)
{
    const struct dataset *d = archive->dataset;
    uint64_t first, end;
    archive_records(archive, sample, &first, &end);
    if (archive_size(archive, sample) == INT64_MAX) { /* mostly holes, whatever was allowed */
        *ret_record = first;
        return -EFBIG;
    }
    for (; first < end; first++) {
        const struct record *record = &d->records[first];
        struct node node;
        if (record->size_bytes <= d->hole_bytes || record_offset(record) != RECORD_OFFSET_NONE)
            continue;
        int r = index_node(d->filesets[record_archive(record)]->index, record_file(d, record),
                           &node);
        if (r == 0 && record->size_bytes > node.data_bytes) {
            uint64_t holes = record->size_bytes - node.data_bytes;
            if (holes > d->hole_bytes && holes / HOLES_TO_DATA > node.data_bytes)
                r = -EFBIG;
        }
        if (r < 0) {
            *ret_record = first;
            return r;
        }
    }
    return 0;
}

int onepot_archive_check(const struct onepot_archive *archive, uint64_t sample,
                         struct onepot_error *error)
{
    const struct dataset *d = archive->dataset;
    uint64_t record;
    if (sample >= archive->count)
        return error_set(error, -ERANGE, "there is no sample %llu", (unsigned long long)sample);
    int r = archive_check(archive, sample, &record);
    return r < 0 ? dataset_error(error, r, d, &d->records[record]) : 0;
}

int onepot_archive_size(const struct onepot_archive *archive, uint64_t sample,
                        uint64_t *ret_bytes)
{
    if (sample >= archive->count)
        return -ERANGE;
    *ret_bytes = archive_size(archive, sample);
    return 0;
}

uint64_t onepot_archive_left_out(const struct onepot_archive *archive)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < archive->dataset->fileset_count; i++)
        count += index_left_out(archive->dataset->filesets[i]->index);
    return count;
}

uint64_t onepot_archive_passed_over(const struct onepot_archive *archive,
                                    const char **ret_first)
{
    *ret_first = archive->dataset->passed_over_first;
    return archive->dataset->passed_over;
}

uint64_t onepot_archive_unpaired(const struct onepot_archive *archive, const char **ret_first)
{
    *ret_first = archive->dataset->unpaired_first;
    return archive->dataset->unpaired;
}

uint64_t onepot_archive_common_size(const struct onepot_archive *archive)
{
    uint64_t size = archive->count ? archive_size(archive, 0) : 0;
    uint64_t record;
    for (uint64_t i = 0; i < archive->count && size; i++)
        if (archive_size(archive, i) != size || archive_check(archive, i, &record) < 0)
            return 0;
    return size;
}

int onepot_archive_label(const struct onepot_archive *archive, uint64_t sample,
                         struct onepot_error *error, int64_t *ret_label)
{
    if (sample >= archive->count)
        return error_set(error, -ERANGE, "there is no sample %llu", (unsigned long long)sample);
    const struct record *first = archive_first(archive, sample);
    if (archive->dataset->label_part)
        return label_read(archive->dataset, first, error, ret_label);
    *ret_label = first->label;
    return 0;
}

uint32_t onepot_archive_classes(const struct onepot_archive *archive)
{
    return archive->dataset->class_count;
}

const char *onepot_archive_class(const struct onepot_archive *archive, uint32_t label)
{
    return label < archive->dataset->class_count ? archive->dataset->classes[label] : NULL;
}

int onepot_archive_parts(const struct onepot_archive *archive, uint64_t sample,
                         uint64_t *ret_count)
{
    uint64_t first, end;
    if (sample >= archive->count)
        return -ERANGE;
    archive_records(archive, sample, &first, &end);
    *ret_count = end - first;
    return 0;
}

int onepot_archive_part(const struct onepot_archive *archive, uint64_t sample, uint64_t part,
                        struct onepot_part *ret_part)
{
    const struct dataset *d = archive->dataset;
    uint64_t first, end;
    if (sample >= archive->count)
        return -ERANGE;
    archive_records(archive, sample, &first, &end);
    if (part >= end - first)
        return -ERANGE;
    struct onepot_part found = {0};
    for (uint64_t i = 0; i < part; i++)
        found.offset += d->records[first + i].size_bytes;
    const struct record *record = &d->records[first + part];
    const struct index *index;
    uint32_t named = record_named(d, record, &index);
    int r = index_name(index, named, &found.name, &found.name_len);
    if (r < 0)
        return r;
    if (d->group == ONEPOT_GROUP_BASE_NAME) {
        size_t stem = dataset_stem(d->group, found.name, found.name_len);
        size_t skip = stem + (stem < found.name_len);
        found.name += skip;
        found.name_len -= skip;
    }
    if (d->group == ONEPOT_GROUP_FOLDERS) {
        found.name = d->part_names.at[part];
        found.name_len = strlen(found.name);
    }
    found.bytes = record->size_bytes;
    return result_write(ret_part, &found, sizeof(found), NULL);
}

/* ---- bytes ---- */

int onepot_archive_bytes(const struct onepot_archive *archive, uint64_t sample,
                         const void **ret_bytes, uint64_t *ret_len)
{
    const struct dataset *d = archive->dataset;
    uint64_t first, end;
    if (sample >= archive->count)
        return -ERANGE;
    archive_records(archive, sample, &first, &end);
    const struct record *record = &d->records[first];
    const uint8_t *map = d->maps[record_archive(record)];
    struct source *source = d->filesets[record_archive(record)]->source;
    if (end - first != 1 || !map || record_offset(record) == RECORD_OFFSET_NONE ||
        source_bring(source, record_offset(record), record->size_bytes) < 0 ||
        !source_is_whole(source))
        return -ENOTSUP;
    *ret_bytes = map + record_offset(record);
    *ret_len = record->size_bytes;
    return 0;
}

int onepot_archive_read(const struct onepot_archive *archive, uint64_t sample, uint64_t offset,
                        void *buf, size_t len, struct onepot_error *error, size_t *ret_len)
{
    struct dataset *d = archive->dataset;
    struct cursor *cursor;
    uint64_t first, end;
    uint8_t *to = buf;
    if (sample >= archive->count)
        return error_set(error, -ERANGE, "there is no sample %llu", (unsigned long long)sample);
    int r = cursor_get(d, error, &cursor);
    if (r < 0)
        return r;
    archive_records(archive, sample, &first, &end);
    for (; first < end && len > 0 && r == 0; first++) {
        const struct record *record = &d->records[first];
        if (offset >= record->size_bytes) {
            offset -= record->size_bytes;
            continue;
        }
        size_t n =
            record->size_bytes - offset < len ? (size_t)(record->size_bytes - offset) : len;
        r = cursor_read(d, cursor, record, offset, to, n);
        if (r < 0)
            dataset_error(error, r, d, record);
        to += n;
        len -= n;
        offset = 0;
    }
    cursor_put(cursor);
    if (r == 0)
        *ret_len = (size_t)(to - (uint8_t *)buf);
    return r;
}

/* ---- selections of samples ---- */

/*
 * A view with room for `room` samples, and none in it yet. 0: a view of the whole archive,
 * without a list.
 */
static struct onepot_archive *view_new(const struct onepot_archive *archive, uint64_t room)
{
    struct onepot_archive *view = calloc(1, sizeof(*view));
    if (view && room)
        view->chosen = malloc(room * sizeof(*view->chosen));
    if (!view || (room && !view->chosen)) {
        free(view);
        return NULL;
    }
    view->dataset = archive->dataset;
    atomic_fetch_add(&view->dataset->users, 1);
    return view;
}

static uint32_t chosen_at(const struct onepot_archive *archive, uint64_t i)
{
    return archive->chosen ? archive->chosen[i] : (uint32_t)i;
}

/* A sample in the order that its name's hash decides. */
struct ranked {
    uint64_t hash;
    int64_t label; /* 0: labels don't count */
    uint32_t sample;
};

/* The hashes of all samples' names, in the order of the samples. To be freed. */
static int hash_names(const struct onepot_archive *archive, uint64_t seed,
                      struct ranked **ret_ranked)
{
    auto_free char *name = malloc(MEMBER_PATH_MAX);
    struct ranked *ranked = calloc(archive->count + 1, sizeof(*ranked));
    int r = name && ranked ? 0 : -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < archive->count; i++) {
        size_t len;
        r = archive_name(archive, i, name, MEMBER_PATH_MAX, &len);
        if (r == 0)
            ranked[i] = (struct ranked){.hash = XXH3_64bits_withSeed(name, len, seed),
                                        .sample = (uint32_t)i};
    }
    if (r < 0) {
        free(ranked);
        return r;
    }
    *ret_ranked = ranked;
    return 0;
}

/* The first hash that is not below `fraction`, which is below 1. */
static uint64_t view_scale(double fraction)
{
    return (uint64_t)ldexp(fraction, 64);
}

int onepot_archive_split(const struct onepot_archive *archive, double low, double high,
                         uint64_t seed, struct onepot_archive **ret_part)
{
    struct ranked *ranked;
    if (!(low >= 0 && high <= 1 && low <= high))
        return -EINVAL;
    if (low == high) /* nothing is selected */
        return onepot_archive_subset(archive, NULL, 0, ret_part);
    uint64_t first = view_scale(low), last = high == 1 ? UINT64_MAX : view_scale(high) - 1;
    int r = hash_names(archive, seed, &ranked);
    if (r < 0)
        return r;
    struct onepot_archive *view = view_new(archive, archive->count + 1);
    for (uint64_t i = 0; view && i < archive->count; i++)
        if (ranked[i].hash >= first && ranked[i].hash <= last)
            view->chosen[view->count++] = chosen_at(archive, i);
    free(ranked);
    if (!view)
        return -ENOMEM;
    *ret_part = view;
    return 0;
}

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->label != y->label)
        return x->label < y->label ? -1 : 1;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/*
 * A fold is a range of the order, so that a file that comes or goes moves few others to another
 * fold. With labels, samples of one label are neighbours, and are dealt to the folds in turn.
 */
int archive_fold(const struct onepot_archive *archive, uint32_t folds, uint32_t fold,
                 bool held_out, uint64_t seed, bool stratify,
                 const struct permutation_stop *stop, struct onepot_error *error,
                 struct onepot_archive **ret_part)
{
    uint64_t count = archive->count;
    struct ranked *ranked;
    if (folds < 2 || fold >= folds)
        return error_set(error, -EINVAL, "there are at least 2 folds, counted from 0");
    int r = hash_names(archive, seed, &ranked);
    if (r < 0)
        return error_errno(error, r, archive->dataset->filesets[0]->path);
    for (uint64_t i = 0; stratify && r == 0 && i < count; i++)
        r = stop && i % STOP_PACE == 0 && !stop->is_wanted(stop->ctx)
                ? error_set(error, -ECANCELED, "interrupted")
                : onepot_archive_label(archive, i, error, &ranked[i].label);
    if (r == 0)
        qsort(ranked, count, sizeof(*ranked), compare_ranked);
    auto_free bool *is_in = calloc(count + 1, sizeof(*is_in));
    for (uint64_t i = 0; r == 0 && is_in && i < count; i++)
        is_in[ranked[i].sample] = (stratify ? i % folds : i * folds / count) == fold;
    free(ranked);
    struct onepot_archive *view = r == 0 && is_in ? view_new(archive, count + 1) : NULL;
    for (uint64_t i = 0; view && i < count; i++)
        if (is_in[i] == held_out)
            view->chosen[view->count++] = chosen_at(archive, i);
    if (!view)
        return r < 0 ? r : error_set(error, -ENOMEM, "out of memory");
    *ret_part = view;
    return 0;
}

int onepot_archive_fold(const struct onepot_archive *archive, uint32_t folds, uint32_t fold,
                        bool held_out, uint64_t seed, bool stratify, struct onepot_error *error,
                        struct onepot_archive **ret_part)
{
    return archive_fold(archive, folds, fold, held_out, seed, stratify, NULL, error, ret_part);
}

int onepot_archive_subset(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, struct onepot_archive **ret_part)
{
    for (uint64_t i = 0; i < count; i++)
        if (samples[i] >= archive->count)
            return -ERANGE;
    struct onepot_archive *view = view_new(archive, count + 1);
    if (!view)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++)
        view->chosen[i] = chosen_at(archive, samples[i]);
    view->count = count;
    *ret_part = view;
    return 0;
}

struct onepot_archive *archive_share(const struct onepot_archive *archive)
{
    struct onepot_archive *copy = view_new(archive, archive->chosen ? archive->count + 1 : 0);
    if (!copy)
        return NULL;
    if (copy->chosen)
        memcpy(copy->chosen, archive->chosen, archive->count * sizeof(*copy->chosen));
    copy->count = archive->count;
    return copy;
}

/* ---- the digest of a selection ---- */

/*
 * Hashes what the index's own sums and sizes tell. A digest that was saved later does not
 * count, so that pickles and states still belong to the archive.
 */
static int hash_archive(const struct index *index, XXH3_state_t *state)
{
    const struct index_info *info = index_info(index);
    uint8_t digest[INDEX_DIGEST_BYTES];
    enum digest_kind kind = info->has_holes ? DIGEST_STORED : DIGEST_TREE;
    bool is_of_sums = info->has_sums && info->sum_kind == SUM_XXH3 && info->digest_kind == kind;
    memcpy(digest, info->digest, sizeof(digest));
    int r = is_of_sums ? 0 : index_digest(index, NULL, digest, &kind);
    if (r < 0)
        return r;
    XXH3_128bits_update(state, digest, sizeof(digest));
    return 0;
}

static void hash_record(const struct dataset *d, uint64_t first, uint64_t end,
                        XXH3_state_t *state)
{
    const struct dataset_link *link = record_link(d, &d->records[first]);
    uint64_t which[2] = {htole64((uint64_t)record_archive(&d->records[first]) << 32 |
                                 record_file(d, &d->records[first])),
                         htole64(end - first)};
    XXH3_128bits_update(state, which, sizeof(which));
    if (link) { /* its name is another entry's, or below another path */
        const char *folder =
            link->folder == LINK_FOLDER_NONE ? "" : d->link_folders.at[link->folder];
        uint64_t name = htole64((uint64_t)link->archive << 32 | link->name);
        XXH3_128bits_update(state, &name, sizeof(name));
        XXH3_128bits_update(state, folder, strlen(folder) + 1);
    }
}

static void hash_choice(const struct onepot_archive *archive, XXH3_state_t *state)
{
    const struct dataset *d = archive->dataset;
    uint64_t head[2] = {htole64(archive->count), htole64((uint64_t)d->group)};
    XXH3_128bits_update(state, head, sizeof(head));
    for (uint64_t i = 0; i < archive->count; i++) {
        uint64_t first, end;
        archive_records(archive, i, &first, &end);
        do
            hash_record(d, first, end, state);
        while (d->group == ONEPOT_GROUP_FOLDERS &&
               ++first < end); /* else they are neighbours */
    }
}

int onepot_archive_digest(const struct onepot_archive *archive,
                          uint8_t ret_digest[ONEPOT_DIGEST_BYTES])
{
    const struct dataset *d = archive->dataset;
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -ENOMEM;
    XXH3_128bits_reset(state);
    int r = 0;
    for (size_t i = 0; i < d->fileset_count && r == 0; i++)
        r = hash_archive(d->filesets[i]->index, state);
    if (r == 0) {
        hash_choice(archive, state);
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(ret_digest, canonical.digest, ONEPOT_DIGEST_BYTES);
    }
    XXH3_freeState(state);
    return r;
}
