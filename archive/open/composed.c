/*
 * Indexes composed of others: made here, or in the sandbox where archives in the archive have
 * to be parsed for it; saved in the cache folder, and found there by their recipe.
 *
 * The file's name has the recipe's hash, and the index the recipe itself. So one that was saved
 * for another archive, another view or by a version that composes otherwise is never used. All
 * else that holds for saved indexes (saved_index.c) holds for these.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "clock.h"
#include "nested.h"
#include "path.h"
#include "pot_private.h"
#include "syscalls.h"

/* The composed index is served already, and not saved yet. */
struct pot_unsaved {
    bool is_noted; /* a failure is worth a line */
    struct stat access;
};

static bool composed_has_recipe(const struct composition *c, const struct recipe *recipe,
                                const struct index *index)
{
    size_t named = recipe->name_bytes ? recipe->name_bytes : recipe->bytes.count, len;
    const void *bytes;
    if (index_recipe(index, &bytes, &len) < 0 || len < named ||
        memcmp(bytes, recipe->bytes.at, named) != 0)
        return false;
    return c->proves ? c->proves(c->arg, (const char *)bytes + named, len - named)
                     : len == named;
}

static int composed_path(const struct composition *c, const struct recipe *recipe,
                         char **ret_path)
{
    char key[RECIPE_NAME_LEN + 1];
    recipe_name(recipe, key);
    return index_cache_path(path_base(c->file), key, ret_path);
}

/* Take over the index and its path, in place of the pot's own. */
static void composed_take(struct pot *pot, struct index *index, char *path,
                          enum pot_index_origin origin)
{
    free(pot->unsaved);
    pot->unsaved = NULL;
    free(pot->index_path);
    pot->index_path = path;
    if (pot->packed) /* it may be unpacked by what its own index says */
        pot->stream_index = pot->index;
    else
        index_close(pot->index);
    pot->index = index;
    pot->origin = origin;
}

/* Use a saved index with this recipe. -ENOENT, -ENOMEM. */
static int composed_find(const struct composition *c, const struct recipe *recipe)
{
    auto_free char *path = NULL;
    struct index *index = NULL;
    if (c->options->rebuild)
        return -ENOENT;
    int r = composed_path(c, recipe, &path);
    if (r == 0)
        r = saved_index_open_file(path, c->options, c->archive, NULL, &index);
    if (r < 0)
        return r == -ENOTSUP ? -ENOENT : r;
    if (!composed_has_recipe(c, recipe, index)) {
        index_close(index);
        return -ENOENT;
    }
    index_cache_used(path);
    composed_take(c->pot, index, steal_ptr(&path), POT_INDEX_SAVED);
    return 0;
}

int composed_recall(struct composition *c)
{
    int r = -ENOENT;
    for (size_t i = c->count; r == -ENOENT && i-- > 0;) {
        r = composed_find(c, &c->recipes[i]);
        c->done = r == 0 ? i + 1 : 0;
    }
    return r;
}

void composition_free(struct composition *c)
{
    for (size_t i = 0; i < c->count; i++)
        recipe_free(&c->recipes[i]);
}

/* ---- making the next step ---- */

static bool composed_is_last(const struct composition *c)
{
    return c->done + 1 == c->count;
}

static bool composed_is_view(const struct composition *c)
{
    return c->view && composed_is_last(c);
}

static struct builder_header composed_header(const struct composition *c)
{
    const struct recipe *recipe = &c->recipes[c->done];
    return (struct builder_header){.recipe = recipe->bytes.at,
                                   .recipe_len = recipe->bytes.count};
}

int composed_write_image(const struct composition *c, composer *compose, void *arg, int fd,
                         struct fault *fault)
{
    struct tree *tree;
    struct builder_header header = composed_header(c);
    int r = tree_new(&tree);
    if (r == 0)
        r = compose(arg, tree, &header, fault);
    if (r == 0)
        r = tree_write(tree, &header, fd, fault);
    tree_free(tree);
    return r;
}

/* Leave it for pot_save, if that will find a folder for it. */
static int composed_save_later(struct pot *pot, const char *path, const struct stat *access,
                               struct fault *why)
{
    auto_close int folder = -1;
    int r = index_cache_open(path, why, &folder);
    if (r == 0 && faccessat(folder, ".", W_OK | X_OK, 0) < 0)
        r = -errno;
    if (r < 0)
        return r;
    pot->unsaved = calloc(1, sizeof(*pot->unsaved));
    if (!pot->unsaved)
        return -ENOMEM;
    pot->unsaved->access = *access;
    return 0;
}

static int composed_cannot_save(struct fault *fault, int err, const struct fault *why)
{
    return fault_set_advised(
        fault, err, NULL, FAULT_NO_OFFSET,
        "it stays in memory, and is made anew for the next mount",
        "the index of this view could not be saved in the cache folder: %s",
        why->err ? why->what : fault_errno(err));
}

int pot_save(struct pot *pot, struct fault *fault)
{
    auto_free struct pot_unsaved *unsaved = steal_ptr(&pot->unsaved);
    if (!unsaved)
        return 0;
    struct fault why = {0};
    int r = saved_index_write_file(pot->index_path, &unsaved->access, pot->index, &why);
    if (r < 0 && unsaved->is_noted)
        composed_cannot_save(fault, r, &why);
    return r;
}

static int composed_save(const struct composition *c, struct fault *fault)
{
    auto_free char *path = NULL;
    struct fault why = {0};
    struct stat access;
    int r = composed_path(c, &c->recipes[c->done], &path);
    if (r == 0)
        r = saved_index_access(c->is_private ? NULL : c->archive, &access);
    if (r == 0)
        r = c->saves_later && composed_is_last(c)
                ? composed_save_later(c->pot, path, &access, &why)
                : saved_index_write_file(path, &access, c->pot->index, &why);
    if (r < 0)
        return composed_cannot_save(fault, r, &why);
    c->pot->index_path = steal_ptr(&path);
    return 0;
}

/* Make the index and use it, and save it if that took long. */
static int composed_make(struct composition *c, composed_writer *write, struct fault *fault)
{
    uint64_t start_ms = c->done == 0 && c->start_ms ? c->start_ms : now_ms();
    uint64_t worth_ms = composed_is_view(c) ? COMPOSED_VIEW_WORTH_MS : COMPOSED_WORTH_MS;
    struct index *index = NULL;
    struct fault why = {0};
    enum pot_save save = c->options->save;
    auto_close int fd = syscall_memfd("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int r = fd < 0 ? fd : write(c, fd, fault);
    if (r == 0)
        r = built_index_open_image(fd, c->pot->path, fault, &index);
    if (r < 0)
        return r;
    composed_take(c->pot, index, NULL, POT_INDEX_BUILT);
    if (save == POT_SAVE_ALWAYS || (save == POT_SAVE_AUTO && now_ms() - start_ms >= worth_ms))
        r = composed_save(c, &why);
    if (r < 0 && save == POT_SAVE_ALWAYS) {
        if (fault)
            *fault = why;
        return r;
    }
    bool is_noted = save == POT_SAVE_ALWAYS || now_ms() - start_ms >= COMPOSED_NOTED_MS;
    if (c->pot->unsaved)
        c->pot->unsaved->is_noted = is_noted;
    if (r < 0 && is_noted)
        pot_note_fault(c->options, c->pot->path, &why);
    return 0;
}

/* ---- of one archive ---- */

void composed_describe_nested(const struct pot_options *options, struct recipe *recipe)
{
    const struct pot_compose *compose = options->compose;
    if (!compose || !compose->nested)
        return;
    const char *glob = compose->nested_glob;
    recipe_add(recipe, "nested", glob, glob ? strlen(glob) : 0);
    recipe_number(recipe, "by ending", !glob);
    recipe_number(recipe, "ratio", options->max_ratio);
}

/* A step of one archive's tree. */
static int composed_describe(struct opening *o, const struct view *view)
{
    const struct source_identity *id = &o->pot->identity;
    struct recipe *recipe = &o->steps.recipes[o->steps.count++];
    recipe_number(recipe, "version", COMPOSED_VERSION);
    recipe_number(recipe, "format", o->pot->backend->number);
    recipe_number(recipe, "size", id->size_bytes);
    recipe_number(recipe, "seconds", (uint64_t)id->mtime_sec);
    recipe_number(recipe, "nanoseconds", id->mtime_nsec);
    recipe_number(recipe, "fingerprint", o->pot->fingerprint);
    recipe_number(recipe, "offset", o->pot->container.offset);
    if (o->options->ignores_zeros)
        recipe_number(recipe, "ignore zeros", 1);
    composed_describe_nested(o->options, recipe);
    if (view)
        view_describe(view, recipe);
    return recipe->err;
}

int composed_open_saved(struct opening *o, struct fault *fault)
{
    const struct pot_compose *compose = o->options->compose;
    if (!compose)
        return OPENER_NOT_MINE;
    int r = opening_fingerprint(o);
    o->steps = (struct composition){.pot = o->pot,
                                    .options = o->options,
                                    .archive = o->pot->source,
                                    .file = o->pot->path,
                                    .arg = o,
                                    .view = compose->view};
    if (r == 0 && compose->nested)
        r = composed_describe(o, NULL);
    if (r == 0 && compose->view)
        r = composed_describe(o, compose->view);
    if (r == 0) /* the bytes of a stream are not there without another index */
        r = o->compression ? -ENOENT : composed_recall(&o->steps);
    if (r == -ENOENT)
        return OPENER_NOT_MINE;
    return r < 0 ? r : pot_check_index(o->pot, fault);
}

/* The new index describes the archive as the archive's own index does. */
static void composed_copy_header(const struct index *index, struct builder_header *header)
{
    const struct index_info *info = index_info(index);
    header->format = info->format;
    header->archive_bytes = info->archive_bytes;
    header->archive_mtime_sec = info->archive_mtime_sec;
    header->archive_mtime_nsec = info->archive_mtime_nsec;
    header->archive_fingerprint = info->archive_fingerprint;
}

static int composed_write_view(struct composition *c, int fd, struct fault *fault)
{
    struct builder_header header = composed_header(c);
    composed_copy_header(c->pot->index, &header);
    return view_write(c->view, c->pot->index, &header, fd, fault);
}

int composed_finish(struct composition *c, composed_writer *first, struct fault *fault)
{
    for (; c->done < c->count; c->done++) {
        int r = composed_make(c, composed_is_view(c) ? composed_write_view : first, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

int pot_show(struct pot *pot, const struct view *view, struct fault *fault)
{
    static const struct pot_options options = {.save = POT_SAVE_NEVER};
    struct composition steps = {.pot = pot, .options = &options, .view = view, .count = 1};
    return composed_finish(&steps, NULL, fault);
}

/* ---- archives in the archive ---- */

struct composed_nested {
    struct opening *o;
    struct source *scratch;
    struct progress *progress;
    int fd;
};

static void composed_tell_left(struct progress *progress, const struct nested_result *result)
{
    if (result->left == 1)
        snprintf(progress->note, sizeof(progress->note), "%s stays a file: %s", result->first,
                 result->why);
    else if (result->left > 1)
        snprintf(progress->note, sizeof(progress->note),
                 "%" PRIu64 " archives in it stay files; the first is %s: %s", result->left,
                 result->first, result->why);
}

static int composed_add_nested(void *arg, struct tree *tree, struct builder_header *header,
                               struct fault *fault)
{
    const struct composed_nested *n = arg;
    const struct pot *pot = n->o->pot;
    const struct nested nested = {.source = pot->source,
                                  .index = pot->index,
                                  .name = pot->path,
                                  .glob = n->o->options->compose->nested_glob,
                                  .ignores_zeros = n->o->options->ignores_zeros,
                                  .most_bytes = unpacked_most(pot->source, n->o->options),
                                  .scratch = n->scratch,
                                  .progress = n->progress};
    struct nested_result result;
    composed_copy_header(pot->index, header);
    int r = nested_add(&nested, tree, fault, &result);
    if (r == 0)
        composed_tell_left(n->progress, &result);
    return r;
}

/* In the child, whose end frees all that it allocated. */
static int composed_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct composed_nested *n = arg;
    n->progress = progress;
    return composed_write_image(&n->o->steps, composed_add_nested, n, n->fd, fault);
}

static int composed_write_nested(struct composition *c, int fd, struct fault *fault)
{
    struct opening *o = c->arg;
    struct composed_nested n = {.o = o, .fd = fd};
    if (o->pot->compression)
        return fault_set_advised(
            fault, -ENOTSUP, NULL, FAULT_NO_OFFSET, "decompress it first",
            "is one compressed stream: archives in it can't be read in place");
    int r = nested_scratch_new(&n.scratch);
    if (r < 0)
        return r;
    int keep[] = {fd, source_fd(n.scratch)};
    struct sandbox_limits limits = built_index_limits(o, true);
    limits.keep_source = o->pot->source;
    limits.keep_fds = keep;
    limits.keep_fd_count = 2;
    r = pot_run(o->options, o->pot->path, "indexing archives in it", composed_in_child, &n,
                &limits, fault);
    source_close(n.scratch);
    return r;
}

int composed_apply(struct opening *o, struct fault *fault)
{
    const struct pot_compose *compose = o->options->compose;
    if (!compose)
        return 0;
    int r = o->steps.done ? 0 : composed_recall(&o->steps);
    if (r < 0 && r != -ENOENT)
        return r;
    if (o->steps.done == 0 && compose->nested && o->options->only_ready)
        return -EAGAIN;
    o->steps.saves_later = o->options->saves_later && !o->pot->compression;
    return composed_finish(&o->steps, composed_write_nested, fault);
}
