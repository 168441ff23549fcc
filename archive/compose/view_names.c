/*
 * Views: the names of a list or a map.
 *
 * Names that follow each other mostly lie in one directory, in its order. So the way to the
 * last name is kept, and a search begins where the last one ended: among ten million files, one
 * of ten is found by a few comparisons of neighbours.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "tree_view_private.h"

#define NOT_YET UINT32_MAX /* a directory that is put when something in it is */

/* A directory on the way to the last name. */
struct names_level {
    size_t len;                  /* of its path */
    uint32_t position;           /* in the archive */
    uint32_t first, count, near; /* its children; the one found last */
    uint32_t directory;          /* in the new tree, of a list; or NOT_YET */
};

struct names_way {
    VECTOR(char) path; /* of the last directory */
    VECTOR(struct names_level) levels;
};

/* The way to the directory last used in the new tree, of a map. */
struct names_target {
    VECTOR(char) path;
    uint32_t directory;
};

struct names_walk {
    const struct view *view;
    const struct index *index;
    struct grafting *s;
    struct view_filter *filter;
    struct fault *fault;
    struct names_way way;
    struct names_target target;
    uint8_t *marks;   /* to be set in place of grafting; or NULL */
    uint64_t lacking; /* names that the archive lacks */
    size_t first_lacking;
};

/* ---- finding ---- */

static int names_push_level(struct names_walk *w, size_t len, uint32_t position,
                            uint32_t directory)
{
    struct names_level level = {.len = len, .position = position, .directory = directory};
    int r = index_children(w->index, position, &level.first, &level.count);
    return r < 0 ? r : vector_push(&w->way.levels, level);
}

static int names_compare(const struct index *index, uint32_t position, const char *name,
                         size_t len, int *ret_order)
{
    const char *other;
    size_t other_len;
    int r = index_name(index, position, &other, &other_len);
    if (r == 0)
        *ret_order = bytes_compare(name, len, other, other_len);
    return r;
}

/* Narrow [*low, *high) around a name, in steps that double, from where the last one was. */
static int names_narrow(const struct index *index, const struct names_level *level,
                        const char *name, size_t len, uint32_t *low, uint32_t *high)
{
    int order = 0;
    *low = 0;
    *high = level->count;
    for (uint64_t at = level->near, step = 1; at < level->count; at += step, step *= 2) {
        int r = names_compare(index, level->first + (uint32_t)at, name, len, &order);
        if (r < 0)
            return r;
        if (order < 0) {
            *high = (uint32_t)at;
            return 0;
        }
        *low = (uint32_t)at;
        if (order == 0) {
            *high = *low + 1;
            return 0;
        }
    }
    return 0;
}

/* A child of the last level. -ENOENT. */
static int names_look_up(struct names_walk *w, const char *name, size_t len,
                         uint32_t *ret_position)
{
    struct names_level *level = &w->way.levels.at[w->way.levels.count - 1];
    uint32_t low, high;
    int r = names_narrow(w->index, level, name, len, &low, &high);
    while (r == 0 && low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = 0;
        r = names_compare(w->index, level->first + mid, name, len, &order);
        if (r == 0 && order == 0) {
            level->near = mid;
            *ret_position = level->first + mid;
            return 0;
        }
        if (order > 0)
            low = mid + 1;
        else
            high = mid;
    }
    return r < 0 ? r : -ENOENT;
}

/* Leave the levels that do not lead to this directory. */
static void names_go_up(struct names_way *way, const char *path, size_t len)
{
    for (;;) {
        size_t own = way->levels.at[way->levels.count - 1].len;
        if (own == 0 || (own <= len && memcmp(way->path.at, path, own) == 0 &&
                         (own == len || path[own] == '/')))
            return;
        way->levels.count--;
    }
}

/* Make the last level that of the directory at the first `len` bytes of the path. */
static int names_enter(struct names_walk *w, const char *path, size_t len)
{
    names_go_up(&w->way, path, len);
    w->way.path.count = 0;
    if (vector_append(&w->way.path, path, len) < 0)
        return -ENOMEM;
    size_t at = w->way.levels.at[w->way.levels.count - 1].len;
    while (at < len) {
        uint32_t position;
        at += at > 0;
        const char *slash = memchr(path + at, '/', len - at);
        size_t end = slash ? (size_t)(slash - path) : len;
        int r = names_look_up(w, path + at, end - at, &position);
        if (r == 0)
            r = names_push_level(w, end, position, NOT_YET);
        if (r < 0)
            return r;
        at = end;
    }
    return 0;
}

/* Where the last name of a path begins, and the length of its directory. */
static size_t names_split(const char *path, size_t len, size_t *ret_folder_len)
{
    const char *slash = memrchr(path, '/', len);
    *ret_folder_len = slash ? (size_t)(slash - path) : 0;
    return slash ? *ret_folder_len + 1 : 0;
}

/* -ENOENT: the archive lacks it. */
static int names_find(struct names_walk *w, const char *path, size_t len,
                      uint32_t *ret_position)
{
    size_t folder_len, at = names_split(path, len, &folder_len);
    if (len == 0) {
        *ret_position = INDEX_ROOT;
        return 0;
    }
    int r = names_enter(w, path, folder_len);
    if (r == 0)
        r = names_look_up(w, path + at, len - at, ret_position);
    return r == -ENOTDIR ? -ENOENT : r;
}

/*
 * The entry at a path, which is that of name `number`, and whether it is to be shown: 1, 0, or
 * an error. A lacking one is counted.
 */
static int names_choose(struct names_walk *w, const char *path, size_t number,
                        uint32_t *ret_position, struct node *ret_node)
{
    size_t len = strlen(path);
    int r = names_find(w, path, len, ret_position);
    if (r == -ENOENT) {
        if (w->lacking++ == 0)
            w->first_lacking = number;
        return 0;
    }
    if (r == 0)
        r = index_node(w->index, *ret_position, ret_node);
    if (r < 0)
        return fault_set(w->fault, r, path, FAULT_NO_OFFSET,
                         "its entry in the index is damaged");
    return w->view->pattern_count && len
               ? view_filter_shows_named(w->filter, path, len, S_ISDIR(ret_node->mode))
               : 1;
}

/* ---- lists ---- */

/* Put the directories on the way that are not there yet. */
static int names_make_way(struct names_walk *w, uint32_t *ret_directory)
{
    struct names_level *levels = w->way.levels.at;
    size_t i = w->way.levels.count;
    while (levels[i - 1].directory == NOT_YET)
        i--;
    for (; i < w->way.levels.count; i++) {
        struct builder_entry entry;
        size_t at = levels[i - 1].len + (levels[i - 1].len > 0);
        int r = grafting_put(w->s, levels[i].position, levels[i - 1].directory,
                             w->way.path.at + at, levels[i].len - at, &entry);
        if (r < 0)
            return r;
        levels[i].directory = entry.number;
    }
    *ret_directory = levels[i - 1].directory;
    return 0;
}

/* Mark an entry, and the directories on the way to it, which is the last way. */
static int names_mark_listed(struct names_walk *w, uint32_t position, bool whole)
{
    view_mark_entry(w->marks, position);
    size_t levels = position == INDEX_ROOT ? 0 : w->way.levels.count;
    for (size_t i = levels; i > 1 && w->way.levels.at[i - 1].directory == NOT_YET; i--) {
        view_mark_entry(w->marks, w->way.levels.at[i - 1].position);
        w->way.levels.at[i - 1].directory = BUILDER_ROOT; /* it is marked */
    }
    return whole ? view_mark_tree(w->index, w->filter, position, w->marks) : 0;
}

static int names_put_listed(struct names_walk *w, size_t number)
{
    bool whole;
    const char *path = name_list_name(w->view->names, number, &whole);
    struct builder_entry entry = {.number = BUILDER_ROOT};
    uint32_t position, directory;
    struct node node;
    size_t len = strlen(path), folder_len, at = names_split(path, len, &folder_len);
    int r = names_choose(w, path, number, &position, &node);
    if (r <= 0)
        return r;
    if (w->marks)
        return names_mark_listed(w, position, whole && S_ISDIR(node.mode));
    if (len) {
        r = names_make_way(w, &directory);
        if (r == 0)
            r = grafting_put(w->s, position, directory, path + at, len - at, &entry);
    }
    if (r < 0 || !whole || !S_ISDIR(node.mode))
        return r;
    return grafting_put_tree(w->s, position, entry.number);
}

static int names_put_list(struct names_walk *w)
{
    const struct view *view = w->view;
    size_t count = view->is_picked ? view->picked_count : name_list_count(view->names);
    int r = 0;
    for (size_t i = 0; r >= 0 && i < count; i++)
        r = names_put_listed(w, view->is_picked ? view->picked[i] : i);
    return r;
}

/* ---- maps ---- */

/* The directory of the new tree at the first `len` bytes of a path; what lacks is made. */
static int names_find_target(struct names_walk *w, const char *path, size_t len,
                             uint32_t *ret_directory)
{
    struct names_target *t = &w->target;
    struct builder_entry entry = {.number = BUILDER_ROOT};
    if (len == 0) {
        *ret_directory = BUILDER_ROOT;
        return 0;
    }
    if (t->path.count == len && memcmp(t->path.at, path, len) == 0) {
        *ret_directory = t->directory;
        return 0;
    }
    for (size_t at = 0; at < len; at++) {
        const char *slash = memchr(path + at, '/', len - at);
        size_t end = slash ? (size_t)(slash - path) : len;
        int r = grafting_put(w->s, INDEX_ROOT, entry.number, path + at, end - at, &entry);
        if (r < 0)
            return r;
        at = end;
    }
    t->path.count = 0;
    if (vector_append(&t->path, path, len) < 0)
        return -ENOMEM;
    t->directory = *ret_directory = entry.number;
    return 0;
}

static int names_put_mapped(struct names_walk *w, size_t number)
{
    const struct view_map_line *line = &w->view->map.lines.at[number];
    const char *from = w->view->map.text.at + line->from, *to = w->view->map.text.at + line->to;
    struct builder_entry entry;
    uint32_t position, directory;
    struct node node;
    size_t len = strlen(to), folder_len, at = names_split(to, len, &folder_len);
    int r = names_choose(w, from, number, &position, &node);
    if (r <= 0)
        return r;
    r = names_find_target(w, to, folder_len, &directory);
    if (r == 0)
        r = grafting_put(w->s, position, directory, to + at, len - at, &entry);
    if (r >= 0 && S_ISDIR(node.mode))
        r = grafting_put_tree(w->s, position, entry.number);
    if (r < 0 && w->fault && w->fault->err) {
        if (!w->fault->member[0]) /* a directory that only the map names */
            snprintf(w->fault->member, sizeof(w->fault->member), "%s", from);
        size_t used = strlen(w->fault->what);
        snprintf(w->fault->what + used, sizeof(w->fault->what) - used, " (line %llu of %.60s)",
                 (unsigned long long)line->number, w->view->file);
    }
    return r;
}

static int names_put_map(struct names_walk *w)
{
    const struct view *view = w->view;
    size_t count = view->is_picked ? view->picked_count : view->map.lines.count;
    int r = 0;
    for (size_t i = 0; r >= 0 && i < count; i++)
        r = names_put_mapped(w, view->is_picked ? view->picked[i] : i);
    return r;
}

/* ---- both ---- */

int view_report_lacking(const struct view *view, size_t first, uint64_t lacking,
                        const char *what, struct fault *fault)
{
    char more[100] = "", line[40] = "";
    const struct view_map_line *mapped = view->has_map ? &view->map.lines.at[first] : NULL;
    bool ignored;
    const char *name = mapped ? view->map.text.at + mapped->from
                              : name_list_name(view->names, first, &ignored);
    if (mapped)
        snprintf(line, sizeof(line), "line %llu of ", (unsigned long long)mapped->number);
    if (lacking > 1)
        snprintf(more, sizeof(more), ", nor %llu more of its names",
                 (unsigned long long)lacking - 1);
    fault_set(fault, -ENOENT, name, FAULT_NO_OFFSET, "%s (%s%.60s)%s", what, line, view->file,
              more);
    fault_advise(fault, "names are paths from the archive's root, as 'onepot ls -R' has them");
    return -ENOENT;
}

int view_graft_names(const struct view *view, struct grafting *s, const struct index *index,
                     struct view_filter *filter, struct fault *fault)
{
    struct names_walk w = {
        .view = view, .index = index, .s = s, .filter = filter, .fault = fault};
    int r = names_push_level(&w, 0, INDEX_ROOT, BUILDER_ROOT);
    if (r == 0)
        r = view->has_map ? names_put_map(&w) : names_put_list(&w);
    if (r >= 0)
        r = w.lacking && !view->is_of_several
                ? view_report_lacking(view, w.first_lacking, w.lacking,
                                      "the archive does not have it", fault)
                : 0;
    vector_free(&w.way.path);
    vector_free(&w.way.levels);
    vector_free(&w.target.path);
    return r;
}

int view_mark_names(const struct view *view, const struct index *index,
                    struct view_filter *filter, uint8_t *marks)
{
    struct names_walk w = {.view = view, .index = index, .filter = filter, .marks = marks};
    int r = names_push_level(&w, 0, INDEX_ROOT, BUILDER_ROOT);
    if (r == 0)
        r = names_put_list(&w);
    vector_free(&w.way.path);
    vector_free(&w.way.levels);
    return r >= 0 && w.lacking && !view->is_of_several ? -ENOTSUP : r < 0 ? r : 0;
}
