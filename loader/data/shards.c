/*
 * Opens a public archive: the archives that a caller's words stand for (archive_list.h), staged
 * if that was asked for; and several of them once more as one tree, for the digest of their
 * data.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "archive_list.h"
#include "cleanup.h"
#include "content.h"
#include "cpus.h"
#include "dataset.h"
#include "error.h"
#include "job.h"
#include "source_retry.h"
#include "stage.h"
#include "vector.h"

/*
 * From so many archives on, a list is looked for in all at once, and the view of each is not
 * saved; with fewer, a large one's may be.
 */
#define PICK_ARCHIVES 8u

struct shards {
    VECTOR(struct pot *) pots;
    struct pot_compose compose; /* its view is ours */
    bool composes, is_whole;    /* as in the list of names */
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

static int shards_give_stage(struct pot *pot, struct stage *stage)
{
    int r = stage_give(stage, &pot->source);
    if (r < 0) {
        stage_close(stage);
        return r;
    }
    return stage_start(stage);
}

/* -EEXIST: it is to be read without a copy. */
static int shards_stage(const struct shards *list, struct pot *pot)
{
    const struct stage_options options = {
        .archive = pot->path, .place = shards_place(list), .in_job = shards_in_job(list)};
    struct fault fault = {0};
    struct stage *stage;
    int r = stage_open(pot->source, &options, &fault, &stage);
    if (r == -EEXIST)
        return 0;
    if (r < 0)
        return error_from_fault(list->error, r, &fault, pot->path);
    r = shards_give_stage(pot, stage);
    return r < 0 ? error_errno(list->error, r, pot->path) : 0;
}

/* ONEPOT_MAX_RATIO, for struct pot_options. A value that is not a number counts as unset. */
static uint32_t max_ratio(void)
{
    const char *text = getenv("ONEPOT_MAX_RATIO");
    unsigned long ratio = text ? strtoul(text, NULL, 10) : 0;
    if (text && strcmp(text, "off") == 0)
        return POT_RATIO_OFF;
    return ratio < POT_RATIO_OFF ? (uint32_t)ratio : POT_RATIO_OFF;
}

static int shards_open_one(struct shards *list, const char *path)
{
    struct stage_store store = {.options = {.archive = path, .place = shards_place(list)},
                                .is_private = !list->given->stage};
    const struct pot_store pot_store = stage_pot_store(&store);
    struct pot_options options = {.compose = list->composes ? &list->compose : NULL,
                                  .memory_bytes = list->given->memory_bytes,
                                  .max_ratio = max_ratio(),
                                  .ignores_zeros = list->given->ignore_zeros,
                                  .is_whole = list->is_whole,
                                  .is_plain = list->given->plain,
                                  .store = &pot_store,
                                  .progress = list->given->progress ? shards_progress : NULL,
                                  .cancelled = &list->cancelled,
                                  .ctx = list};
    list->opening = path;
    struct fault fault = {0};
    if (vector_reserve(&list->pots, 1) < 0)
        return error_set(list->error, -ENOMEM, "out of memory");
    if (list->pots.count == ARCHIVES_MAX)
        return error_set(list->error, -EOVERFLOW, "%s: more than %u archives", path,
                         ARCHIVES_MAX);
    int r = pot_open(path, &options, &fault, &list->pots.at[list->pots.count]);
    if (r < 0) {
        stage_close(store.stage);
        return error_from_fault(list->error, r, &fault, path);
    }
    struct pot *pot = list->pots.at[list->pots.count++];
    if (!store.stage)
        return list->given->stage ? shards_stage(list, pot) : 0;
    /* it was unpacked there, or goes there from now on */
    r = shards_give_stage(pot, store.stage);
    return r < 0 ? error_errno(list->error, r, path) : 0;
}

static void shards_close_from(struct shards *list, size_t first)
{
    while (list->pots.count > first)
        pot_close(list->pots.at[--list->pots.count]);
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
    struct view_picker *picker;
    int r = view_picker_new(view, &picker);
    if (r < 0)
        return error_set(list->error, r, "out of memory");
    for (size_t i = 0; r == 0 && i < list->pots.count; i++) {
        struct pot *pot = list->pots.at[i];
        struct fault fault = {0};
        struct view *part = NULL;
        r = view_picker_view(picker, pot->index, &part);
        if (r == 0)
            r = pot_show(pot, part, &fault);
        if (r < 0)
            error_from_fault(list->error, r, &fault, pot->path);
        view_free(part);
    }
    view_picker_free(picker);
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
    auto_free const struct index **shown = calloc(list->pots.count + 1, sizeof(*shown));
    if (!shown)
        return error_set(list->error, -ENOMEM, "out of memory");
    for (size_t i = 0; i < list->pots.count; i++)
        shown[i] = list->pots.at[i]->index;
    int r = view_check_several(view, shown, list->pots.count, &fault);
    return r < 0 ? error_from_fault(list->error, r, &fault, "the archives") : 0;
}

/*
 * Open all archives: staged, and as a view, as the options say. Where one path stands
 * for several files, they come in the order of their names. *ret_pots and each of its members
 * are allocated.
 */
static int shards_open(const char *const *paths, size_t count,
                       const struct onepot_archive_options *options, struct onepot_error *error,
                       struct pot ***ret_pots, size_t *ret_count)
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
        vector_free(&list.pots);
        return r;
    }
    *ret_pots = list.pots.at;
    *ret_count = list.pots.count;
    return 0;
}

int onepot_archive_open(const char *const *paths, size_t path_count,
                        const struct onepot_archive_options *options,
                        struct onepot_error *error, struct onepot_archive **ret_archive)
{
    struct onepot_archive_options o = {0};
    struct pot **pots;
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
    r = shards_open(paths, path_count, &o, error, &pots, &count);
    if (r == 0) {
        for (size_t i = 0; o.retries && i < count; i++)
            source_set_retries(pots[i]->source, o.retries == ONEPOT_NEVER ? 0 : o.retries);
        r = dataset_new(pots, count, &o, error, &archive->dataset);
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

static struct pot_options shards_watch(struct shards *list)
{
    return (struct pot_options){.max_ratio = max_ratio(),
                                .progress = list->given->progress ? shards_progress : NULL,
                                .cancelled = &list->cancelled,
                                .ctx = list};
}

static int shards_digest_one(struct shards *list, struct pot *pot, uint8_t *ret_digest)
{
    struct fault fault = {0};
    const struct pot_options how = shards_watch(list);
    list->opening = pot->path;
    int r = content_digest(pot, cpus_allowed(), &how, &fault, ret_digest);
    return r < 0 ? error_from_fault(list->error, r, &fault, pot->path) : 0;
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
static const struct pot *shards_replaced(const struct dataset *d, const struct pot *now)
{
    auto_free struct source_identity *all = calloc(d->pot_count, sizeof(*all));
    struct source_identity joined = {0};
    for (size_t i = 0; all && i < d->pot_count; i++)
        all[i] = d->pots[i]->identity;
    if (all)
        source_identity_join(all, d->pot_count, &joined);
    if (source_identity_equal(&joined, &now->identity))
        return NULL;
    for (size_t i = 0; all && i < now->part_count && i < d->pot_count; i++)
        if (!file_id_equal(now->parts[i].file, (struct file_id){all[i].dev, all[i].ino}))
            return d->pots[i];
    return d->pots[0];
}

/* All archives opened anew as one tree. -EEXIST: they are none. */
static int shards_open_union(struct shards *list, const struct dataset *d, struct pot **ret_pot)
{
    struct pot_options options = shards_watch(list);
    struct archive_list names = {0};
    struct fault fault = {0};
    const void *recipe;
    size_t len;
    int r = 0;
    list->opening = d->pots[0]->path;
    for (size_t i = 0; r == 0 && i < d->pot_count; i++) {
        bool is_view = index_recipe(d->pots[i]->index, &recipe, &len) == 0;
        auto_free char *path = is_view ? NULL : shards_path(d, d->pots[i]->path);
        r = is_view ? -EEXIST : path ? vector_push(&names, path) : -ENOMEM;
        if (r == 0)
            path = NULL; /* the list has it */
        options.ignores_zeros |= index_info(d->pots[i]->index)->has_joined;
    }
    if (r == 0)
        r = archive_list_join(&names);
    options.is_whole = names.is_whole;
    if (r == 0)
        r = pot_open_many((const char *const *)names.at, names.count, list->opening, &options,
                          &fault, ret_pot);
    archive_list_free(&names);
    const struct pot *replaced = r == 0 ? shards_replaced(d, *ret_pot) : NULL;
    if (replaced) {
        pot_close(*ret_pot);
        list->opening = replaced->path;
        r = fault_set(&fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                      "was replaced or changed since it was opened");
    }
    return r < 0 && r != -EEXIST ? error_from_fault(list->error, r, &fault, list->opening) : r;
}

static int shards_digest_list(struct shards *list, const struct dataset *d, uint8_t *ret_digest)
{
    auto_free uint8_t *digests = calloc(d->pot_count, ONEPOT_DIGEST_BYTES);
    XXH128_canonical_t canonical;
    int r = digests ? 0 : error_set(list->error, -ENOMEM, "out of memory");
    for (size_t i = 0; r == 0 && i < d->pot_count; i++)
        r = shards_digest_one(list, d->pots[i], digests + i * ONEPOT_DIGEST_BYTES);
    if (r < 0)
        return r;
    XXH128_canonicalFromHash(&canonical,
                             XXH3_128bits(digests, d->pot_count * ONEPOT_DIGEST_BYTES));
    memcpy(ret_digest, canonical.digest, ONEPOT_DIGEST_BYTES);
    return 0;
}

static int shards_digest(struct shards *list, const struct dataset *d, uint8_t *ret_digest)
{
    struct pot *pot;
    if (d->pot_count == 1)
        return shards_digest_one(list, d->pots[0], ret_digest);
    int r = shards_open_union(list, d, &pot);
    if (r == -EEXIST)
        return shards_digest_list(list, d, ret_digest);
    if (r < 0)
        return r;
    r = shards_digest_one(list, pot, ret_digest);
    pot_close(pot);
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
