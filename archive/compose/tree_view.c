/*
 * Views: reading, and the tree that they show.
 */
#include "tree_view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "tree_view_private.h"

/* ---- reading ---- */

static int view_copy_patterns(struct view *view, const struct view_options *options)
{
    size_t count = options->pattern_count;
    view->patterns = calloc(count + 1, sizeof(*view->patterns));
    if (!view->patterns)
        return -ENOMEM;
    for (; view->pattern_count < count; view->pattern_count++) {
        struct view_pattern *p = &view->patterns[view->pattern_count];
        *p = options->patterns[view->pattern_count];
        p->glob = strdup(p->glob);
        if (!p->glob)
            return -ENOMEM;
    }
    view->shows_rest = count == 0 || !options->patterns[count - 1].includes;
    return 0;
}

/* A name that can't be in any archive. */
static int view_refuse_name(void *ctx, const struct fault *what)
{
    *(struct fault *)ctx = *what;
    return -EINVAL;
}

static int view_read_map(struct view *view, int fd, struct fault *fault)
{
    view->has_map = true;
    int r = text_read(fd, TEXT_BYTES_MOST, &view->map.text);
    if (r == 0)
        r = vector_push(&view->map.text, '\n');
    return r < 0 ? r : view_map_parse(&view->map, fault);
}

static int view_read_file(struct view *view, const struct view_options *options,
                          struct fault *fault)
{
    const char *path = options->map ? options->map : options->files_from;
    bool is_input = strcmp(path, "-") == 0;
    struct fault own = {0};
    auto_close int file = is_input ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    view->file = strdup(options->list_name ? options->list_name
                        : is_input         ? "standard input"
                                           : path);
    if (!view->file)
        return -ENOMEM;
    if (!is_input && file < 0)
        return -errno;
    int fd = is_input ? STDIN_FILENO : file;
    int r = options->map ? view_read_map(view, fd, &own)
                         : name_list_read(fd, options->files_from_nul, "/", view_refuse_name,
                                          &own, &view->names);
    if (r < 0 && fault && own.err)
        *fault = own;
    return r;
}

int view_read(const struct view_options *options, struct fault *fault, const char **ret_file,
              struct view **ret_view)
{
    *ret_file = NULL;
    if (options->files_from && options->map)
        return fault_set(fault, -EINVAL, NULL, FAULT_NO_OFFSET,
                         "a list of files and a map exclude each other");
    struct view *view = calloc(1, sizeof(*view));
    if (!view)
        return -ENOMEM;
    view->is_of_several = options->is_of_several;
    int r = view_copy_patterns(view, options);
    if (r == 0 && (options->files_from || options->map)) {
        r = view_read_file(view, options, fault);
        *ret_file = options->list_name ? options->list_name
                    : options->map     ? options->map
                                       : options->files_from;
    }
    if (r < 0) {
        view_free(view);
        return r;
    }
    *ret_view = view;
    return 0;
}

void view_free(struct view *view)
{
    if (view && view->is_picked) {
        free(view->picked);
        free(view);
        return;
    }
    if (!view)
        return;
    for (size_t i = 0; i < view->pattern_count; i++)
        free((char *)view->patterns[i].glob);
    free(view->patterns);
    name_list_free(view->names);
    view_map_free(&view->map);
    free(view->file);
    free(view);
}

/* ---- the entries it shows ---- */

/* Add the sum of all names; a map's text has bytes behind them that may look like others. */
static void view_describe_names(const struct view *view, struct recipe *recipe)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) {
        recipe->err = -ENOMEM;
        return;
    }
    XXH3_128bits_reset(state);
    for (size_t i = 0; i < view_name_count(view); i++) {
        bool whole = false;
        const char *name = view_name(view, i), *to = NULL;
        if (view->has_map)
            to = view->map.text.at + view->map.lines.at[i].to;
        else
            (void)name_list_name(view->names, i, &whole);
        XXH3_128bits_update(state, name, strlen(name) + 1);
        XXH3_128bits_update(state, to ? to : whole ? "/" : "", to ? strlen(to) + 1 : 1);
    }
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state));
    XXH3_freeState(state);
    recipe_add(recipe, view->has_map ? "map" : "names", sum.digest, sizeof(sum.digest));
}

void view_describe(const struct view *view, struct recipe *recipe)
{
    for (size_t i = 0; i < view->pattern_count; i++)
        recipe_add(recipe, view->patterns[i].includes ? "include" : "exclude",
                   view->patterns[i].glob, strlen(view->patterns[i].glob));
    if (view->names || view->has_map)
        view_describe_names(view, recipe);
    if (view->is_of_several) /* alone, an archive that lacks names is an error */
        recipe_number(recipe, "of several", 1);
}

/* A pattern that was meant to show something, in a view of nothing. */
int view_found_nothing(const struct view *view, const char *where, struct fault *fault)
{
    size_t i = 0;
    while (!view->patterns[i].includes)
        i++;
    fault_set(fault, -ENOENT, NULL, FAULT_NO_OFFSET, "nothing in %s matches --include '%.100s'",
              where, view->patterns[i].glob);
    fault_advise(fault, "'onepot ls -R' lists what it has");
    return -ENOENT;
}

/* ---- the tree that it shows ---- */

/* Mark the entries shown; a map shows the ones below its names. *ret_marks NULL: all. */
static int view_mark(const struct view *view, const struct index *index, uint8_t **ret_marks,
                     struct fault *fault)
{
    size_t bytes = index_info(index)->entries / 8 + 1;
    auto_free uint8_t *matched = view->pattern_count ? calloc(bytes, 1) : NULL;
    *ret_marks = NULL;
    if (view->pattern_count) {
        int r = matched ? view_mark_matches(view, index, matched) : -ENOMEM;
        if (r < 0)
            return r;
    }
    if (!view->names) {
        *ret_marks = steal_ptr(&matched);
        return 0;
    }
    *ret_marks = calloc(bytes, 1);
    return *ret_marks ? view_mark_names(view, index, matched, *ret_marks, fault) : -ENOMEM;
}

static bool view_shows_nothing(const struct index *index, const uint8_t *marks)
{
    size_t bytes = index_info(index)->entries / 8 + 1;
    for (size_t i = 1; i < bytes; i++)
        if (marks[i])
            return false;
    return marks[0] == 1;
}

static int view_compose(const struct view *view, const struct index *index, struct tree *tree,
                        struct fault *fault)
{
    const struct tree_part whole = {.index = index,
                                    .forgets_left_out = view->names || view->has_map};
    uint8_t *marks;
    uint32_t part;
    int r = tree_add(tree, &whole, &part);
    if (r < 0)
        return r;
    r = view_mark(view, index, &marks, fault);
    tree_show(tree, part, marks);
    if (r < 0)
        return r;
    if (!view->names && !view->has_map && !view->shows_rest && !view->is_of_several &&
        view_shows_nothing(index, marks))
        return view_found_nothing(view, "it", fault);
    if (!view->has_map)
        return tree_merge_root(tree, part);
    tree_root_as(tree, part);
    return view_put_names(view, index, tree, part, fault);
}

int view_write(const struct view *view, const struct index *index,
               struct builder_header *header, int fd, struct fault *fault)
{
    struct view_bytes bytes;
    struct tree *tree;
    int r = tree_new(&tree);
    if (r == 0)
        r = view_bytes_begin(&bytes);
    if (r == 0) {
        r = view_compose(view, index, tree, fault);
        view_bytes_end(&bytes);
        if (r == 0)
            r = tree_write(tree, header, fd, fault);
        if (r == -EUCLEAN)
            fault_set(fault, r, NULL, FAULT_NO_OFFSET, "its index is damaged");
        if (r < 0 && tree_label(tree))
            view_tell_line(view, tree_label(tree) - 1, fault);
    }
    tree_free(tree);
    return r;
}
