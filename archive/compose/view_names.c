/*
 * Views: the names of a list or a map.
 *
 * Names that follow each other mostly lie in one directory, in its order. So the last name's
 * directory is kept, and a search begins where the last one ended: among ten million files, one
 * of ten is found by a few comparisons of neighbours.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "bytes.h"
#include "map.h"
#include "tree_view_private.h"

/* The last name's directory. */
struct names_folder {
    VECTOR(char) path;           /* with its NUL */
    uint32_t position;           /* in the archive */
    uint32_t first, count, near; /* its children; the one found last */
    bool is_known, is_marked;    /* of a list: with the directories above it */
};

struct names_walk {
    const struct view *view;
    const struct index *index;
    struct view_filter filter;
    struct fault *fault;
    struct names_folder folder;
    const uint8_t *matched; /* of a list: see view_mark_names */
    uint8_t *marks;
    struct tree *tree; /* of a map */
    uint32_t part;
    struct map made;  /* directories that were made, by a hash of their paths */
    uint64_t lacking; /* names that the archive lacks */
    size_t first_lacking;
};

/* ---- finding ---- */

/* Narrow [*low, *high) around a name, in steps that double, from where the last one was. */
static int names_narrow(const struct index *index, const struct names_folder *folder,
                        const char *name, size_t len, uint32_t *low, uint32_t *high)
{
    *low = 0;
    *high = folder->count;
    for (uint64_t at = folder->near, step = 1; at < folder->count; at += step, step *= 2) {
        const char *other;
        size_t other_len;
        int r = index_name(index, folder->first + (uint32_t)at, &other, &other_len);
        if (r < 0)
            return r;
        int compared = bytes_compare(name, len, other, other_len);
        if (compared < 0) {
            *high = (uint32_t)at;
            return 0;
        }
        *low = (uint32_t)at;
        if (compared == 0) {
            *high = *low + 1;
            return 0;
        }
    }
    return 0;
}

/* A child of the directory. -ENOENT. */
static int names_look_up(struct names_walk *w, const char *name, size_t len,
                         uint32_t *ret_position)
{
    struct names_folder *f = &w->folder;
    uint32_t low, high;
    int r = names_narrow(w->index, f, name, len, &low, &high);
    if (r == 0)
        r = index_search(w->index, f->first + low, high - low, name, len, ret_position);
    if (r == 0)
        f->near = *ret_position - f->first;
    return r;
}

/* Go to the directory at the first `len` bytes of the path. */
static int names_enter(struct names_walk *w, const char *path, size_t len)
{
    struct names_folder *f = &w->folder;
    if (f->is_known && f->path.count == len + 1 && memcmp(f->path.at, path, len) == 0)
        return 0;
    f->is_known = f->is_marked = false;
    f->path.count = f->near = 0;
    if (vector_append(&f->path, path, len) < 0 || vector_push(&f->path, '\0') < 0)
        return -ENOMEM;
    int r = index_resolve(w->index, f->path.at, &f->position);
    if (r == 0)
        r = index_children(w->index, f->position, &f->first, &f->count);
    f->is_known = r == 0;
    return r;
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
 * The entry at the path of name `number`, and whether it is to be shown: 1, 0, or
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
               ? view_filter_shows_named(&w->filter, path, len, S_ISDIR(ret_node->mode))
               : 1;
}

/* ---- lists ---- */

/* Mark the last name's directory, and the ones above it. */
static int names_mark_folder(struct names_walk *w)
{
    int r = 0;
    for (uint32_t at = w->folder.position; r == 0 && at != INDEX_ROOT;) {
        view_mark_entry(w->marks, at);
        r = index_parent(w->index, at, &at);
    }
    w->folder.is_marked = true;
    return r;
}

static int names_mark_listed(struct names_walk *w, size_t number)
{
    bool whole;
    const char *path = name_list_name(w->view->names, number, &whole);
    uint32_t position;
    struct node node;
    int r = names_choose(w, path, number, &position, &node);
    if (r <= 0)
        return r;
    view_mark_entry(w->marks, position);
    r = position == INDEX_ROOT || w->folder.is_marked ? 0 : names_mark_folder(w);
    if (r < 0)
        return r;
    return whole && S_ISDIR(node.mode)
               ? view_mark_tree(w->index, w->matched, position, w->marks)
               : 0;
}

/* ---- maps ---- */

void view_tell_line(const struct view *view, size_t number, struct fault *fault)
{
    const struct view_map_line *line = &view->map.lines.at[number];
    if (!fault || !fault->err)
        return;
    if (!fault->member[0]) /* a directory that only the map names */
        snprintf(fault->member, sizeof(fault->member), "%s", view->map.text.at + line->from);
    size_t used = strlen(fault->what);
    snprintf(fault->what + used, sizeof(fault->what) - used, " (line %llu of %.60s)",
             (unsigned long long)line->number, view->file);
}

/* The directory of the new tree at the first `len` bytes of a path; what lacks is made. */
static int names_find_target(struct names_walk *w, const char *path, size_t len, uint32_t label,
                             struct tree_place *ret_directory)
{
    *ret_directory = TREE_TOP;
    for (size_t at = 0, end; at < len; at = end + 1) {
        const char *slash = memchr(path + at, '/', len - at);
        end = slash ? (size_t)(slash - path) : len;
        XXH128_hash_t hash = XXH3_128bits(path, end);
        struct map_key key = {hash.high64, hash.low64};
        struct tree_place above = *ret_directory;
        uint64_t number = 0;
        int r = map_get(&w->made, key, &number);
        *ret_directory = (struct tree_place){TREE_MADE, (uint32_t)number};
        if (r < 0)
            r = tree_make(w->tree, above, path + at, end - at, w->part, label, w->fault,
                          ret_directory);
        else
            continue;
        if (r == 0)
            r = map_put(&w->made, key, ret_directory->position);
        if (r < 0)
            return r;
    }
    return 0;
}

static int names_put_mapped(struct names_walk *w, size_t number)
{
    const struct view_map_line *line = &w->view->map.lines.at[number];
    const char *from = w->view->map.text.at + line->from, *to = w->view->map.text.at + line->to;
    struct tree_place directory, target = {w->part, INDEX_ROOT};
    struct node node;
    size_t len = strlen(to), folder_len, at = names_split(to, len, &folder_len);
    int r = names_choose(w, from, number, &target.position, &node);
    if (r <= 0)
        return r;
    if (len > INDEX_PATH_MAX)
        r = fault_set(w->fault, -ENAMETOOLONG, from, FAULT_NO_OFFSET,
                      "would have a path of more than %u bytes", INDEX_PATH_MAX);
    else
        r = names_find_target(w, to, folder_len, (uint32_t)number + 1, &directory);
    if (r == 0)
        r = tree_put(w->tree, directory, to + at, len - at, target, (uint32_t)number + 1,
                     w->fault);
    if (r < 0)
        view_tell_line(w->view, number, w->fault);
    return r;
}

/* ---- both ---- */

int view_report_lacking(const struct view *view, size_t first, uint64_t lacking,
                        const char *what, struct fault *fault)
{
    char more[100] = "", line[40] = "";
    const struct view_map_line *mapped = view->has_map ? &view->map.lines.at[first] : NULL;
    if (mapped)
        snprintf(line, sizeof(line), "line %llu of ", (unsigned long long)mapped->number);
    if (lacking > 1)
        snprintf(more, sizeof(more), ", nor %llu more of its names",
                 (unsigned long long)lacking - 1);
    fault_set(fault, -ENOENT, view_name(view, first), FAULT_NO_OFFSET, "%s (%s%.60s)%s", what,
              line, view->file, more);
    fault_advise(fault, "names are paths from the archive's root, as 'onepot ls -R' has them");
    return -ENOENT;
}

/* Take all names of the list or map, by their numbers. */
static int names_take_all(struct names_walk *w,
                          int (*take)(struct names_walk *w, size_t number))
{
    const struct view *view = w->view;
    size_t count = view->is_picked ? view->picked_count : view_name_count(view);
    w->filter.view = view;
    int r = count < UINT32_MAX ? 0 : -EOVERFLOW;
    for (size_t i = 0; r >= 0 && i < count; i++)
        r = take(w, view->is_picked ? view->picked[i] : i);
    if (r >= 0)
        r = w->lacking && !view->is_of_several
                ? view_report_lacking(view, w->first_lacking, w->lacking,
                                      "the archive does not have it", w->fault)
                : 0;
    vector_free(&w->filter.folder);
    vector_free(&w->folder.path);
    map_free(&w->made);
    return r;
}

int view_mark_names(const struct view *view, const struct index *index, const uint8_t *matched,
                    uint8_t *marks, struct fault *fault)
{
    struct names_walk w = {
        .view = view, .index = index, .fault = fault, .matched = matched, .marks = marks};
    view_mark_entry(marks, INDEX_ROOT);
    return names_take_all(&w, names_mark_listed);
}

int view_put_names(const struct view *view, const struct index *index, struct tree *tree,
                   uint32_t part, struct fault *fault)
{
    struct names_walk w = {
        .view = view, .index = index, .fault = fault, .tree = tree, .part = part};
    return names_take_all(&w, names_put_mapped);
}
