/*
 * Finds the files that are meant. A path that exists is taken literally, whatever characters it
 * has. Only a path that does not exist may be a pattern.
 */
#include "shards.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cleanup.h"
#include "dataset.h"
#include "error.h"
#include "leftovers.h"
#include "shard_exchange.h"
#include "stage.h"
#include "vector.h"

#define INDEX_SUFFIX ".onepot-index"

struct shards {
    VECTOR(struct pot *) pots;
    uint64_t memory_bytes;
    const char *stage;
    struct onepot_error *error;
};

static const char *shards_place(const struct shards *list)
{
    return list->stage && list->stage[0] ? list->stage : NULL;
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

/* An archive in memory needs no copy. */
static int shards_stage(const struct shards *list, struct pot *pot)
{
    const struct stage_options options = {.archive = pot->path, .place = shards_place(list)};
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
                                .is_private = !list->stage};
    const struct pot_store pot_store = stage_pot_store(&store);
    struct pot_options options = {
        .memory_bytes = list->memory_bytes, .max_ratio = max_ratio(), .store = &pot_store};
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
        return list->stage ? shards_stage(list, pot) : 0;
    /* it was unpacked there, or goes there from now on */
    r = shards_give_stage(pot, store.stage);
    return r < 0 ? error_errno(list->error, r, path) : 0;
}

static int is_shard(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name), n = strlen(INDEX_SUFFIX), own;
    return entry->d_name[0] != '.' && !partial_name_parse(entry->d_name, &own) &&
           (len < n || strcmp(entry->d_name + len - n, INDEX_SUFFIX) != 0);
}

static int shards_by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/*
 * Open one path, which may stand for several files. Returns 1 if an exchange of shards was
 * finished on the way, so that the files are different now.
 */
static int shards_open_one_of(struct shards *list, const char *path)
{
    struct fault fault = {0};
    int r = shard_exchange_settle(path, &fault);
    if (r < 0)
        return error_from_fault(list->error, r, &fault, path);
    return r > 0 ? 1 : shards_open_one(list, path);
}

static int shards_open_file_in(struct shards *list, const char *folder, const char *name)
{
    auto_free char *path = NULL;
    struct stat st;
    if (asprintf(&path, "%s/%s", folder, name) < 0) {
        path = NULL;
        return error_set(list->error, -ENOMEM, "out of memory");
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return 0;
    return shards_open_one_of(list, path);
}

static int shards_open_folder(struct shards *list, const char *path)
{
    struct dirent **entries;
    size_t before = list->pots.count;
    int n = scandir(path, &entries, is_shard, shards_by_name);
    if (n < 0)
        return error_errno(list->error, -errno, path);
    int r = 0;
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = shards_open_file_in(list, path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (r == 0 && list->pots.count == before)
        r = error_set(list->error, -ENOENT, "%s: there is no archive in this directory", path);
    return r;
}

static int shards_open_pattern(struct shards *list, const char *pattern)
{
    glob_t found = {0};
    int r = glob(pattern, 0, NULL, &found);
    if (r == GLOB_NOMATCH)
        r = error_set(list->error, -ENOENT, "%s: no file matches", pattern);
    else if (r != 0)
        r = error_set(list->error, r == GLOB_NOSPACE ? -ENOMEM : -EIO,
                      "%s: can't be looked for", pattern);
    for (size_t i = 0; r == 0 && i < found.gl_pathc; i++)
        r = shards_open_one_of(list, found.gl_pathv[i]);
    globfree(&found);
    return r;
}

static void shards_close_from(struct shards *list, size_t first)
{
    while (list->pots.count > first)
        pot_close(list->pots.at[--list->pots.count]);
}

static int shards_open_path(struct shards *list, const char *path)
{
    struct stat st;
    bool is_there = stat(path, &st) == 0;
    if (is_there ? !S_ISDIR(st.st_mode) : !strpbrk(path, "*?["))
        return shards_open_one(list, path);
    size_t before = list->pots.count;
    int r;
    while ((r = is_there ? shards_open_folder(list, path) : shards_open_pattern(list, path)) >
           0)
        shards_close_from(list, before);
    return r;
}

int shards_open(const char *const *paths, size_t count, uint64_t memory_bytes,
                const char *stage, struct onepot_error *error, struct pot ***ret_pots,
                size_t *ret_count)
{
    struct shards list = {.memory_bytes = memory_bytes, .stage = stage, .error = error};
    int r = count ? 0 : error_set(error, -EINVAL, "no archive was named");
    for (size_t i = 0; i < count && r == 0; i++)
        r = shards_open_path(&list, paths[i]);
    if (r < 0) {
        shards_close_from(&list, 0);
        vector_free(&list.pots);
        return r;
    }
    *ret_pots = list.pots.at;
    *ret_count = list.pots.count;
    return 0;
}
