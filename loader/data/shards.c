/*
 * Opens the archives that a caller's words stand for (archive_list.h), staged if that was asked
 * for.
 */
#include "shards.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "archive_list.h"
#include "cleanup.h"
#include "dataset.h"
#include "error.h"
#include "job.h"
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

int shards_open(const char *const *paths, size_t count,
                const struct onepot_archive_options *options, struct onepot_error *error,
                struct pot ***ret_pots, size_t *ret_count)
{
    struct view *view = NULL;
    struct archive_list names = {0};
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
