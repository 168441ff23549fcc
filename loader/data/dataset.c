/*
 * Makes the table of records. Each archive is walked directory by directory, and the files of a
 * directory become a run of records. Then the directories are sorted, and the runs put in their
 * order. An index holds the children of a directory sorted, so files are never compared: ten
 * million files in a thousand directories cost a sort of a thousand paths.
 */
#include "dataset.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "cleanup.h"
#include "error.h"
#include "label.h"
#include "vector.h"

#define HOLE_BYTES (UINT64_C(64) << 20)
#define WALK_RUN 128u /* children looked up in one call */

/* A directory, and the run of its files. */
struct folder {
    char *path; /* below the root; "" is the root itself */
    uint32_t archive;
    uint32_t position;
    int32_t label;
    uint64_t first, count;
};

struct walk {
    struct dataset *dataset;
    const struct onepot_archive_options *options;
    struct onepot_error *error;
    VECTOR(struct folder) folders;
    char *path; /* MEMBER_PATH_MAX bytes, for the path of the present file */
};

/* ---- folders and classes ---- */

static int add_folder(struct walk *w, uint32_t archive, uint32_t position, const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    int r = vector_push(
        &w->folders,
        (struct folder){.path = copy, .archive = archive, .position = position, .label = -1});
    if (r < 0)
        free(copy);
    return r;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* By first component, then by path, then by archive. */
static int compare_folders(const void *a, const void *b)
{
    const struct folder *x = a, *y = b;
    if (x->label != y->label)
        return x->label < y->label ? -1 : 1;
    int compared = strcmp(x->path, y->path);
    if (compared != 0)
        return compared;
    return x->archive < y->archive ? -1 : x->archive > y->archive;
}

/* Classes are the folders of the first level, each name once. */
static int make_classes(struct walk *w)
{
    struct dataset *d = w->dataset;
    size_t count = 0;
    d->classes = calloc(w->folders.count + 1, sizeof(*d->classes));
    if (!d->classes)
        return -ENOMEM;
    for (size_t i = 0; i < w->folders.count; i++) {
        const char *path = w->folders.at[i].path;
        if (!*path || strchr(path, '/'))
            continue;
        if (!(d->classes[count++] = strdup(path)))
            return -ENOMEM;
    }
    qsort(d->classes, count, sizeof(*d->classes), compare_text);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept && strcmp(d->classes[kept - 1], d->classes[i]) == 0)
            free(d->classes[i]);
        else
            d->classes[kept++] = d->classes[i];
    }
    memset(d->classes + kept, 0, (count - kept) * sizeof(*d->classes));
    d->class_count = (uint32_t)kept;
    return 0;
}

static void label_folders(struct walk *w)
{
    struct dataset *d = w->dataset;
    for (size_t i = 0; i < w->folders.count; i++) {
        struct folder *f = &w->folders.at[i];
        size_t len = strcspn(f->path, "/");
        char kept = f->path[len];
        f->path[len] = '\0';
        char **class = len == 0 ? NULL
                                : bsearch(&f->path, d->classes, d->class_count,
                                          sizeof(*d->classes), compare_text);
        f->path[len] = kept;
        f->label = class ? (int32_t)(class - d->classes) : -1;
    }
}

/* ---- files ---- */

static bool has_extension(const struct walk *w, const char *name)
{
    if (w->options->extension_count == 0)
        return true;
    size_t len = strlen(name);
    for (size_t i = 0; i < w->options->extension_count; i++) {
        size_t n = strlen(w->options->extensions[i]);
        if (n <= len && strcasecmp(name + len - n, w->options->extensions[i]) == 0)
            return true;
    }
    return false;
}

static bool passes_filter(const struct walk *w, const char *path, const char *name)
{
    for (size_t i = 0; i < w->options->filter_count; i++) {
        const char *pattern = w->options->filters[i];
        if (fnmatch(pattern, strchr(pattern, '/') ? path : name, 0) == 0)
            return true;
    }
    return w->options->filter_count == 0;
}

static int add_file(struct walk *w, uint32_t archive, uint32_t position,
                    const struct index_file *file)
{
    struct dataset *d = w->dataset;
    if (d->record_count == UINT32_MAX)
        return -EOVERFLOW;
    if (d->record_count == d->record_bytes / sizeof(*d->records))
        return -EUCLEAN;
    uint64_t offset = file->offset < RECORD_OFFSET_NONE ? file->offset : RECORD_OFFSET_NONE;
    d->records[d->record_count++] =
        (struct record){.where = (uint64_t)archive << RECORD_OFFSET_BITS | offset,
                        .size_bytes = file->size_bytes,
                        .entry = position,
                        .label = -1};
    return 0;
}

/*
 * Write a child's path into w->path, which holds the folder's path and a slash up to `dir_len`.
 */
static int complete_path(struct walk *w, uint32_t archive, uint32_t position, size_t dir_len)
{
    const char *name;
    size_t len;
    int r = index_name(w->dataset->pots[archive]->index, position, &name, &len);
    if (r < 0)
        return r;
    if (dir_len + len + 1 > MEMBER_PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(w->path + dir_len, name, len);
    w->path[dir_len + len] = '\0';
    return 0;
}

/* Take one child of a folder in. A file's name is read only if a filter needs it. */
static int dataset_look_at(struct walk *w, uint32_t archive, uint32_t position, size_t dir_len,
                           const struct index_file *file)
{
    bool by_name = w->options->filter_count || w->options->extension_count;
    if (S_ISREG(file->mode) && !by_name)
        return add_file(w, archive, position, file);
    if (!S_ISREG(file->mode) && !S_ISDIR(file->mode))
        return 0;
    int r = complete_path(w, archive, position, dir_len);
    if (r < 0)
        return r;
    if (S_ISDIR(file->mode))
        return add_folder(w, archive, position, w->path);
    if (!has_extension(w, w->path + dir_len) || !passes_filter(w, w->path, w->path + dir_len))
        return 0;
    return add_file(w, archive, position, file);
}

static int walk_children(struct walk *w, uint32_t archive, uint32_t first, uint32_t count,
                         size_t dir_len)
{
    struct index_file files[WALK_RUN];
    for (uint32_t i = 0; i < count;) {
        uint32_t run = count - i < WALK_RUN ? count - i : WALK_RUN;
        int r = index_files(w->dataset->pots[archive]->index, first + i, run, files);
        for (uint32_t j = 0; j < run && r == 0; j++)
            r = dataset_look_at(w, archive, first + i + j, dir_len, &files[j]);
        if (r < 0)
            return r;
        i += run;
    }
    return 0;
}

static int walk_folder(struct walk *w, size_t number)
{
    struct folder *f = &w->folders.at[number]; /* moves when one is added */
    uint32_t archive = f->archive, first, count;
    size_t len = strlen(f->path);
    int r = index_children(w->dataset->pots[archive]->index, f->position, &first, &count);
    if (r < 0)
        return r;
    memcpy(w->path, f->path, len);
    if (len)
        w->path[len++] = '/';
    uint64_t start = w->dataset->record_count;
    r = walk_children(w, archive, first, count, len);
    w->folders.at[number].first = start;
    w->folders.at[number].count = w->dataset->record_count - start;
    return r;
}

static int walk_archive(struct walk *w, uint32_t archive)
{
    struct pot *pot = w->dataset->pots[archive];
    uint32_t root;
    int r = index_resolve(pot->index, w->options->root ? w->options->root : "", &root);
    if (r == -ENOENT || r == -ENOTDIR)
        return 0; /* another archive may have that root */
    size_t number = w->folders.count;
    if (r == 0)
        r = add_folder(w, archive, root, "");
    for (; r == 0 && number < w->folders.count; number++)
        r = walk_folder(w, number);
    if (r == -EUCLEAN)
        return error_set(w->error, r, "%s: its index is damaged", pot->path);
    if (r == -EOVERFLOW)
        return error_set(w->error, r, "%s: there are more than 4 billion samples", pot->path);
    if (r == -ENOTDIR)
        return error_set(w->error, r, "%s: '%s' is not a directory", pot->path,
                         w->options->root);
    return r < 0 ? error_errno(w->error, r, pot->path) : 0;
}

/* ---- the table ---- */

static struct record *map_records(uint64_t count, size_t *ret_bytes)
{
    if (__builtin_mul_overflow(count ? count : 1, sizeof(struct record), ret_bytes))
        return NULL;
    void *p = mmap(NULL, *ret_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, *ret_bytes, MADV_HUGEPAGE);
    return p;
}

static bool in_order(const struct walk *w)
{
    uint64_t next = 0;
    for (size_t i = 0; i < w->folders.count; i++) {
        if (w->folders.at[i].count && w->folders.at[i].first != next)
            return false;
        next += w->folders.at[i].count;
    }
    return true;
}

/* Put the records into the order of the sorted folders, and set their labels. */
static int arrange_records(struct walk *w)
{
    struct dataset *d = w->dataset;
    struct record *sorted = d->records;
    size_t bytes = d->record_bytes;
    if (!in_order(w) && !(sorted = map_records(d->record_count, &bytes)))
        return -ENOMEM;
    uint64_t at = 0;
    for (size_t i = 0; i < w->folders.count; i++) {
        struct folder *f = &w->folders.at[i];
        if (sorted != d->records)
            memcpy(sorted + at, d->records + f->first, f->count * sizeof(*sorted));
        for (uint64_t j = 0; j < f->count; j++)
            sorted[at + j].label = f->label;
        f->first = at;
        at += f->count;
    }
    if (sorted != d->records) {
        munmap(d->records, d->record_bytes);
        d->records = sorted;
        d->record_bytes = bytes;
    }
    return 0;
}

/* ---- groups ---- */

static int record_name(const struct dataset *d, uint64_t i, const char **ret_name,
                       size_t *ret_len)
{
    const struct record *record = &d->records[i];
    return index_name(d->pots[record_archive(record)]->index, record->entry, ret_name, ret_len);
}

/* Names in a directory are sorted, so names that agree up to the first dot are neighbours. */
static int group_by_base(struct dataset *d, const struct folder *f)
{
    const char *last = NULL, *name;
    size_t last_len = 0, len;
    for (uint64_t i = f->first; i < f->first + f->count; i++) {
        int r = record_name(d, i, &name, &len);
        if (r < 0)
            return r;
        size_t stem = dataset_stem(name, len);
        bool has_dot = stem < len;
        if (!last || !has_dot || stem != last_len || memcmp(name, last, stem) != 0)
            d->group_starts[d->group_count++] = (uint32_t)i;
        last = has_dot ? name : NULL;
        last_len = stem;
    }
    return 0;
}

static bool is_hidden(const struct dataset *d, uint64_t i)
{
    const char *name;
    size_t len;
    return record_name(d, i, &name, &len) == 0 && len > 0 && name[0] == '.';
}

/* WebDataset's samples have a name before the dot, so files without one are dropped. */
static void drop_hidden(struct walk *w)
{
    struct dataset *d = w->dataset;
    uint64_t kept = 0;
    for (size_t i = 0; i < w->folders.count; i++) {
        struct folder *f = &w->folders.at[i];
        uint64_t start = kept;
        for (uint64_t j = f->first; j < f->first + f->count; j++)
            if (!is_hidden(d, j))
                d->records[kept++] = d->records[j];
        f->first = start;
        f->count = kept - start;
    }
    d->record_count = kept;
}

static int make_groups(struct walk *w)
{
    struct dataset *d = w->dataset;
    d->group = w->options->group;
    d->group_count = d->record_count;
    if (d->group == ONEPOT_GROUP_NONE)
        return 0;
    if (d->group == ONEPOT_GROUP_BASE_NAME)
        drop_hidden(w);
    d->group_starts = malloc((d->record_count + 1) * sizeof(*d->group_starts));
    if (!d->group_starts)
        return -ENOMEM;
    d->group_count = 0;
    int r = 0;
    for (size_t i = 0; i < w->folders.count && r == 0; i++) {
        const struct folder *f = &w->folders.at[i];
        if (d->group == ONEPOT_GROUP_BASE_NAME)
            r = group_by_base(d, f);
        else if (f->count)
            d->group_starts[d->group_count++] = (uint32_t)f->first;
    }
    d->group_starts[d->group_count] = (uint32_t)d->record_count;
    return r;
}

/* ---- all of it ---- */

static void dataset_free_classes(struct dataset *d)
{
    for (uint32_t i = 0; d->classes && i < d->class_count; i++)
        free(d->classes[i]);
    free(d->classes);
    d->classes = NULL;
    d->class_count = 0;
}

/* Take labels from a part of each sample, and none from its directory. */
static int use_label_part(struct walk *w)
{
    struct dataset *d = w->dataset;
    if (!w->options->label_part)
        return 0;
    dataset_free_classes(d);
    int r = label_part_name(w->options->label_part, &d->label_part);
    return r < 0 ? r : label_check(d, w->error);
}

static int dataset_build(struct walk *w)
{
    struct dataset *d = w->dataset;
    uint64_t entries = 0;
    for (size_t i = 0; i < d->pot_count; i++)
        entries += index_info(d->pots[i]->index)->entries;
    d->records = map_records(entries, &d->record_bytes);
    w->path = malloc(MEMBER_PATH_MAX);
    if (!d->records || !w->path)
        return -ENOMEM;
    for (size_t i = 0; i < d->pot_count; i++) {
        int r = walk_archive(w, (uint32_t)i);
        if (r < 0)
            return r;
    }
    if (w->folders.count == 0)
        return error_set(w->error, -ENOENT, "%s: there is no directory '%s' in it",
                         d->pots[0]->path, w->options->root);
    int r = make_classes(w);
    if (r < 0)
        return r;
    label_folders(w);
    qsort(w->folders.at, w->folders.count, sizeof(*w->folders.at), compare_folders);
    r = arrange_records(w);
    if (r == 0)
        r = make_groups(w);
    return r < 0 ? r : use_label_part(w);
}

static int map_archives(struct dataset *d)
{
    d->maps = calloc(d->pot_count + 1, sizeof(*d->maps));
    d->brings = calloc(d->pot_count + 1, sizeof(*d->brings));
    d->sources = calloc(d->pot_count + 1, sizeof(struct source *));
    if (!d->maps || !d->brings || !d->sources)
        return -ENOMEM;
    for (size_t i = 0; i < d->pot_count; i++) {
        struct source *source = d->sources[i] = d->pots[i]->source;
        d->maps[i] = source_map(source);
        d->brings[i] = !source_has(source, 0, source_size(source));
    }
    return 0;
}

int dataset_new(struct pot **pots, size_t count, const struct onepot_archive_options *options,
                struct onepot_error *error, struct dataset **ret_dataset)
{
    struct dataset *d = calloc(1, sizeof(*d));
    if (!d) {
        for (size_t i = 0; i < count; i++)
            pot_close(pots[i]);
        free(pots);
        return error_set(error, -ENOMEM, "out of memory");
    }
    d->users = 1;
    d->pots = pots;
    d->pot_count = count;
    d->cache_bytes = options->cache_bytes;
    d->hole_bytes = options->hole_bytes ? options->hole_bytes : HOLE_BYTES;
    struct onepot_error words = {0};
    struct walk w = {.dataset = d, .options = options, .error = &words};
    int r = map_archives(d);
    if (r == 0)
        r = dataset_build(&w);
    for (size_t i = 0; i < count && r != -ENOMEM; i++) {
        struct fault fault = {0};
        int whole = pot_check_whole(pots[i], &fault);
        if (whole < 0)
            r = error_from_fault(&words, whole, &fault, pots[i]->path);
    }
    for (size_t i = 0; i < w.folders.count; i++)
        free(w.folders.at[i].path);
    vector_free(&w.folders);
    free(w.path);
    if (r < 0) {
        if (words.code == 0)
            error_errno(&words, r, d->pots[0]->path);
        dataset_free(d);
        return error_set(error, r, "%s", words.text);
    }
    *ret_dataset = d;
    return 0;
}

bool dataset_is_mapped(const struct dataset *d)
{
    for (size_t i = 0; i < d->pot_count; i++)
        if (!d->maps[i] || !source_is_local(d->pots[i]->source))
            return false;
    return true;
}

void dataset_free(struct dataset *dataset)
{
    if (!dataset || atomic_fetch_sub(&dataset->users, 1) > 1)
        return;
    dataset_free_readers(dataset);
    for (size_t i = 0; i < dataset->pot_count; i++)
        pot_close(dataset->pots[i]);
    free(dataset->pots);
    free(dataset->maps);
    free(dataset->brings);
    free(dataset->sources);
    if (dataset->records)
        munmap(dataset->records, dataset->record_bytes);
    free(dataset->group_starts);
    free(dataset->label_part);
    dataset_free_classes(dataset);
    free(dataset);
}
