/*
 * Views: reading, and the tree that they show.
 */
#include "tree_view.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "bytes.h"
#include "cleanup.h"
#include "cpus.h"
#include "index_records.h"
#include "map.h"
#include "numbers.h"
#include "path.h"
#include "search.h"
#include "selection.h"
#include "thread.h"
#include "tree_view_private.h"
#include "view_map.h"

/* Report the first of `lacking` names of the list or map that are not there. -ENOENT. */
static int view_report_lacking(const struct view *view, size_t first, uint64_t lacking,
                               const char *what, struct fault *fault);

static void view_mark_entry(uint8_t *marks, uint32_t position);
/* All below a directory, among the entries `matched` (NULL: all). */
static int view_mark_tree(const struct index *index, const uint8_t *matched, uint32_t position,
                          uint8_t *marks);

/* Report that a pattern that includes found nothing in `where`. -ENOENT. */
static int view_found_nothing(const struct view *view, const char *where, struct fault *fault);

/*
 * Views: patterns.
 *
 * A pattern with a slash can match only below the directories that its beginning names, up to
 * the first character that is not literal. So a walk leaves out other directories whole: of ten
 * million files, `--include 'train/n01*'` looks at the ones in train/n01* alone.
 */

/* The patterns' verdict on this path alone. */
static enum view_verdict view_match(const struct view *view, const char *path, bool is_folder)
{
    for (size_t i = 0; i < view->pattern_count; i++)
        if (selection_matches(view->patterns[i].glob, path, is_folder))
            return view->patterns[i].includes ? VIEW_SHOWN : VIEW_HIDDEN;
    return VIEW_NOTHING;
}

/*
 * The verdict on the first `len` bytes of the filter's folder, which end at a slash or the end.
 */
static enum view_verdict view_folder_verdict(struct view_filter *f, size_t len)
{
    enum view_verdict verdict = VIEW_NOTHING;
    char *text = f->folder.at;
    for (size_t end = 0; end < len && verdict != VIEW_HIDDEN; end++) {
        end += strcspn(text + end, "/");
        char kept = text[end];
        text[end] = '\0';
        enum view_verdict own = view_match(f->view, text, true);
        text[end] = kept;
        if (own != VIEW_NOTHING)
            verdict = own;
    }
    return verdict;
}

/* The verdict on a path, which all below it inherits. -ENOMEM. */
static int view_filter_verdict(struct view_filter *f, const char *path, size_t len,
                               bool is_folder)
{
    const char *slash = memrchr(path, '/', len);
    size_t folder_len = slash ? (size_t)(slash - path) : 0;
    bool is_known =
        f->folder.count == folder_len + 1 && memcmp(f->folder.at, path, folder_len) == 0;
    if (!is_known) {
        f->folder.count = 0;
        if (vector_append(&f->folder, path, folder_len) < 0 ||
            vector_push(&f->folder, '\0') < 0)
            return -ENOMEM;
        f->folder_verdict = view_folder_verdict(f, folder_len);
    }
    if (f->folder_verdict == VIEW_HIDDEN)
        return VIEW_HIDDEN;
    enum view_verdict own = view_match(f->view, path, is_folder);
    return own == VIEW_NOTHING ? f->folder_verdict : own;
}

int view_filter_shows_named(struct view_filter *f, const char *path, size_t len, bool is_folder)
{
    int verdict = view_filter_verdict(f, path, len, is_folder);
    if (verdict < 0)
        return verdict;
    return verdict == VIEW_SHOWN ||
           (verdict == VIEW_NOTHING && (is_folder || f->view->shows_rest));
}

/* Can the pattern match something below this directory? */
static bool view_reaches(const char *glob, const char *folder, size_t len)
{
    glob += *glob == '/';
    const char *slash = strchr(glob, '/');
    if (!slash || !slash[1])
        return true;
    size_t literal = strcspn(glob, "*?[\\");
    if (literal <= len)
        return memcmp(glob, folder, literal) == 0;
    return memcmp(glob, folder, len) == 0 && glob[len] == '/';
}

int view_choose(struct view_filter *f, const char *path, size_t len, uint32_t mode)
{
    const struct view *view = f->view;
    int verdict = view_filter_verdict(f, path, len, S_ISDIR(mode));
    if (verdict < 0)
        return verdict;
    if (verdict == VIEW_SHOWN || (verdict == VIEW_NOTHING && view->shows_rest))
        return VIEW_TAKE;
    if (verdict == VIEW_HIDDEN || !S_ISDIR(mode))
        return VIEW_LEAVE_OUT;
    for (size_t i = 0; i < view->pattern_count; i++)
        if (view->patterns[i].includes && view_reaches(view->patterns[i].glob, path, len))
            return VIEW_IF_NEEDED;
    return VIEW_LEAVE_OUT;
}

/*
 * While patterns match, they match bytes, whatever the locale of the program that the library
 * is in: '?' is one byte in Python, too, and 'onepot mount' shows the view that Python
 * saved.
 */
struct view_bytes {
    locale_t bytes, before;
};

/* -ENOMEM. */
static int view_bytes_begin(struct view_bytes *bytes)
{
    bytes->bytes = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!bytes->bytes)
        return -ENOMEM;
    bytes->before = uselocale(bytes->bytes);
    return 0;
}

static void view_bytes_end(struct view_bytes *bytes)
{
    uselocale(bytes->before);
    freelocale(bytes->bytes);
}

/*
 * The parser of maps. Names only become shorter by it, so they stay where they were read.
 */

static int map_refuse(struct fault *fault, uint64_t number, const char *why, const char *advice)
{
    return fault_set_advised(fault, -EINVAL, NULL, FAULT_NO_OFFSET, advice, "line %llu %s",
                             (unsigned long long)number, why);
}

/* Replace escapes; NULL: there is one that has no meaning. Else the new end. */
static char *map_unescape(char *name, const char *end)
{
    char *to = name;
    for (const char *from = name; from < end; from++) {
        char c = *from;
        if (c == '\\') {
            c = ++from == end ? '\0' : *from;
            c = c == 't' ? '\t' : c == 'n' ? '\n' : c == '\\' ? '\\' : '\0';
            if (!c)
                return NULL;
        }
        *to++ = c;
    }
    return to;
}

/* Drop what means nothing in a path; false: it has "..", or nothing is left. */
static bool map_normalise(char *name, const char *end)
{
    const char *path = name, *part;
    size_t len = (size_t)(end - name), part_len;
    char *to = name;
    while (path_next_name(&path, &len, &part, &part_len)) {
        if (path_are_dots(part, part_len))
            return false;
        if (to != name)
            *to++ = '/';
        memmove(to, part, part_len);
        to += part_len;
    }
    *to = '\0';
    return to != name;
}

static int map_name(struct fault *fault, uint64_t number, char *name, char *end)
{
    if (memchr(name, '\0', (size_t)(end - name)))
        return map_refuse(fault, number, "has a zero byte", "no name can have one");
    end = map_unescape(name, end);
    if (!end)
        return map_refuse(fault, number, "has a backslash without a meaning",
                          "write \\\\ for a backslash, \\t for a tab, \\n for a newline");
    if (!map_normalise(name, end))
        return map_refuse(fault, number, "has an empty name, or '..' in a name",
                          "name members by their path from the root");
    return 0;
}

/* One line; `end` is its newline. */
static int map_line(struct view_map *map, char *line, char *end, uint64_t number,
                    struct fault *fault)
{
    char *tab = memchr(line, '\t', (size_t)(end - line));
    if (!tab)
        return map_refuse(fault, number, "has no tab",
                          "write the name in the archive, a tab, and the name to show");
    if (memchr(tab + 1, '\t', (size_t)(end - tab - 1)))
        return map_refuse(fault, number, "has two tabs", "write \\t for a tab in a name");
    int r = map_name(fault, number, line, tab);
    if (r == 0)
        r = map_name(fault, number, tab + 1, end);
    if (r < 0)
        return r;
    struct view_map_line names = {(size_t)(line - map->text.at),
                                  (size_t)(tab + 1 - map->text.at), number};
    return vector_push(&map->lines, names);
}

int view_map_parse(struct view_map *map, struct fault *fault)
{
    char *at = map->text.at, *end = at + map->text.count;
    uint64_t number = 0;
    int r = 0;
    while (r == 0 && at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline)
            return -EINVAL;
        number++;
        if (newline > at)
            r = map_line(map, at, newline, number, fault);
        at = newline + 1;
    }
    return r;
}

void view_map_free(struct view_map *map)
{
    vector_free(&map->text);
    vector_free(&map->lines);
}

/*
 * Views of several archives, each opened by itself: what one of them lacks is looked for in the
 * others. What they show is all that is walked over, since a saved index of a view does not
 * tell what its archive lacked. Names are compared by their hashes.
 */

#define PICK_NONE UINT32_MAX

struct view_picker {
    const struct view *view;
    struct map names;         /* from the hash of a name to its number */
    uint32_t *next;           /* number of an equal name; PICK_NONE: there is no more */
    VECTOR(uint32_t) of_root; /* names of the root, which all have */
};

struct view_check {
    struct view_picker *names; /* as they are shown */
    bool *found;               /* by the number in `names` */
    size_t left;
};

struct picking {
    const struct view_picker *picker;
    VECTOR(uint32_t) numbers;
};

/* ---- names by their hashes ---- */

static struct map_key check_key(const char *path, size_t len)
{
    XXH128_hash_t hash = XXH3_128bits(path, len);
    return (struct map_key){hash.high64, hash.low64};
}

static int pick_add_name(struct view_picker *p, const char *name, uint32_t i)
{
    struct map_key key = check_key(name, strlen(name));
    uint64_t first;
    p->next[i] = PICK_NONE;
    if (!*name)
        return vector_push(&p->of_root, i);
    if (map_get(&p->names, key, &first) < 0)
        return map_put(&p->names, key, i);
    p->next[i] = p->next[first];
    p->next[first] = i;
    return 0;
}

/* A name as the view shows it. */
static const char *check_name(const struct view *view, size_t i)
{
    return view->has_map ? view->map.text.at + view->map.lines.at[i].to : view_name(view, i);
}

static int picker_new(const struct view *view, const char *name(const struct view *, size_t),
                      struct view_picker **ret_picker)
{
    size_t count = view_name_count(view);
    struct view_picker *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->view = view;
    p->next = calloc(count + 1, sizeof(*p->next));
    int r = p->next && count < PICK_NONE ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < count; i++)
        r = pick_add_name(p, name(view, i), (uint32_t)i);
    if (r < 0) {
        view_picker_free(p);
        return r;
    }
    *ret_picker = p;
    return 0;
}

int view_picker_new(const struct view *view, struct view_picker **ret_picker)
{
    return picker_new(view, view_name, ret_picker);
}

void view_picker_free(struct view_picker *picker)
{
    if (!picker)
        return;
    map_free(&picker->names);
    vector_free(&picker->of_root);
    free(picker->next);
    free(picker);
}

/* ---- all paths of an index ---- */

/* Called with each path of an index: 1: that is enough, or an error. */
typedef int check_visit(void *ctx, const char *path, size_t len);

/* The children of a directory, whose path is in `path`. */
static int check_directory(const struct index *index, uint32_t position,
                           char path[2 * INDEX_PATH_MAX], size_t len, check_visit *visit,
                           void *ctx)
{
    uint32_t first, count;
    int r = index_children(index, position, &first, &count);
    if (len)
        path[len++] = '/';
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        const char *name;
        size_t name_len;
        r = index_name(index, first + i, &name, &name_len);
        if (r == 0 && name_len > INDEX_PATH_MAX - 1)
            r = -EUCLEAN;
        if (r < 0)
            return r;
        memcpy(path + len, name, name_len);
        r = visit(ctx, path, len + name_len);
    }
    return r;
}

static int check_walk(const struct index *index, check_visit *visit, void *ctx)
{
    char path[2 * INDEX_PATH_MAX];
    uint32_t entries = index_info(index)->entries;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < entries; i++) {
        uint32_t first, count;
        size_t len = 0;
        r = index_children(index, i, &first, &count);
        if (r == -ENOTDIR) {
            r = 0;
            continue;
        }
        if (r == 0)
            r = index_path(index, i, path, INDEX_PATH_MAX + 1, &len);
        if (r == 0)
            r = check_directory(index, i, path, len, visit, ctx);
    }
    return r < 0 ? r : 0;
}

/* ---- what all of them lack ---- */

static int check_found(void *ctx, const char *path, size_t len)
{
    struct view_check *c = ctx;
    uint64_t number;
    if (c->left > 0 && map_get(&c->names->names, check_key(path, len), &number) == 0 &&
        !c->found[number]) {
        c->found[number] = true;
        c->left--;
    }
    return c->left == 0;
}

/* One name counts once. Names that the patterns hide were not looked for. */
static int check_report(const struct view_check *c, struct fault *fault)
{
    const struct view *view = c->names->view;
    struct view_filter filter = {.view = view};
    size_t first = 0, lacking = 0, count = view_name_count(view);
    int r = 0;
    for (size_t i = 0; r >= 0 && i < count; i++) {
        const char *from = view_name(view, i), *name = check_name(view, i);
        uint64_t number;
        if (map_get(&c->names->names, check_key(name, strlen(name)), &number) < 0 ||
            number != i || c->found[i])
            continue;
        r = view->pattern_count ? view_filter_shows_named(&filter, from, strlen(from), false)
                                : 1;
        first = lacking == 0 && r == 1 ? i : first;
        lacking += r == 1;
    }
    vector_free(&filter.folder);
    if (r < 0 || lacking == 0)
        return r < 0 ? r : 0;
    return view_report_lacking(view, first, lacking, "none of the archives has it", fault);
}

static int check_names(const struct view *view, const struct index *const *shown, size_t count,
                       struct fault *fault)
{
    struct view_check c = {0};
    int r = picker_new(view, check_name, &c.names);
    if (r < 0)
        return r;
    c.left = c.names->names.count;
    c.found = calloc(view_name_count(view) + 1, sizeof(*c.found));
    r = c.found ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && c.left > 0 && i < count; i++)
        r = check_walk(shown[i], check_found, &c);
    if (r == 0 && c.left > 0)
        r = check_report(&c, fault);
    view_picker_free(c.names);
    free(c.found);
    return r;
}

int view_check_several(const struct view *view, const struct index *const *shown, size_t count,
                       struct fault *fault)
{
    struct view_bytes bytes;
    uint64_t entries = 0;
    for (size_t i = 0; i < count; i++)
        entries += index_info(shown[i])->entries;
    if (!view->names && !view->has_map)
        return view->shows_rest || entries > count
                   ? 0
                   : view_found_nothing(view, "any of them", fault);
    int r = view_bytes_begin(&bytes);
    if (r < 0)
        return r;
    r = check_names(view, shown, count, fault);
    view_bytes_end(&bytes);
    return r;
}

/* ---- what each of them has of the names ---- */

static int pick_found(void *ctx, const char *path, size_t len)
{
    struct picking *picking = ctx;
    const struct view_picker *p = picking->picker;
    uint64_t number;
    int r = 0;
    if (map_get(&p->names, check_key(path, len), &number) < 0)
        return 0;
    for (uint32_t i = (uint32_t)number; r == 0 && i != PICK_NONE; i = p->next[i])
        r = vector_push(&picking->numbers, i);
    return r;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int view_picker_view(const struct view_picker *picker, const struct index *index,
                     struct view **ret_view)
{
    struct picking picking = {.picker = picker};
    struct view *view = calloc(1, sizeof(*view));
    int r = view ? vector_append(&picking.numbers, picker->of_root.at, picker->of_root.count)
                 : -ENOMEM;
    if (r == 0)
        r = check_walk(index, pick_found, &picking);
    if (r < 0) {
        vector_free(&picking.numbers);
        free(view);
        return r;
    }
    if (picking.numbers.count)
        qsort(picking.numbers.at, picking.numbers.count, sizeof(uint32_t), by_number);
    *view = *picker->view;
    view->is_picked = true;
    view->picked = picking.numbers.at;
    view->picked_count = picking.numbers.count;
    *ret_view = view;
    return 0;
}

/*
 * Views: the names of a list or a map.
 *
 * Names that follow each other mostly lie in one directory, in its order. So the last name's
 * directory is kept, and a search begins where the last one ended: among ten million files, one
 * of ten is found by a few comparisons of neighbours.
 */

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

/* Add the number of a map's line to an error about it. */
static void view_tell_line(const struct view *view, size_t number, struct fault *fault)
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

static int view_report_lacking(const struct view *view, size_t first, uint64_t lacking,
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

/*
 * Mark what a list names, a bit for each entry; below a whole directory, the entries `matched`
 * (NULL: all). -ENOENT: see view_write.
 */
static int view_mark_names(const struct view *view, const struct index *index,
                           const uint8_t *matched, uint8_t *marks, struct fault *fault)
{
    struct names_walk w = {
        .view = view, .index = index, .fault = fault, .matched = matched, .marks = marks};
    view_mark_entry(marks, INDEX_ROOT);
    return names_take_all(&w, names_mark_listed);
}

/* Put what a map names into a tree, in which the index is this part. Errors as view_write. */
static int view_put_names(const struct view *view, const struct index *index, struct tree *tree,
                          uint32_t part, struct fault *fault)
{
    struct names_walk w = {
        .view = view, .index = index, .fault = fault, .tree = tree, .part = part};
    return names_take_all(&w, names_put_mapped);
}

/*
 * Views, as marks: a bit for each entry that is shown.
 *
 * Patterns decide about directories first, from the root down, then about all other entries,
 * with several threads: millions of names are matched, and each alone. The entries of a
 * directory lie together, followed by the entries of the directories after it, so that a thread
 * takes a range of positions. At last a directory in which something is shown is shown, too.
 */

#define MARK_RANGE (16u << 10) /* positions that a thread takes at once */
#define MARK_THREADS 8u
#define MARK_THREAD_ENTRIES (100u << 10) /* for fewer, a thread costs more than it saves */
#define MARK_STACK_BYTES (256u << 10)

/* A directory, by its number in the index. */
struct mark_dir {
    uint32_t position, first, count; /* its children */
    uint32_t parent;
    uint32_t first_dir;    /* the first of its children that is a directory */
    bool is_entered;       /* entries in it may be shown */
    _Atomic bool is_shown; /* or something in it is */
};

struct marking {
    const struct view *view;
    const struct index *index;
    uint32_t entries, count;
    struct mark_dir *dirs;
    _Atomic uint8_t *marks;
    _Atomic uint64_t next; /* position that no thread took yet */
    _Atomic int err;
};

/* A thread's view of it. */
struct marker {
    struct marking *m;
    struct view_filter filter;
    VECTOR(char) path;
};

static void view_mark_entry(uint8_t *marks, uint32_t position)
{
    marks[position / 8] |= (uint8_t)(1u << position % 8);
}

static bool is_marked(const uint8_t *marks, uint32_t position)
{
    return !marks || marks[position / 8] & 1u << position % 8;
}

/* ---- all below a directory ---- */

static int view_mark_tree(const struct index *index, const uint8_t *matched, uint32_t position,
                          uint8_t *marks)
{
    VECTOR(uint32_t) dirs = {0};
    int r = vector_push(&dirs, position);
    while (r == 0 && dirs.count > 0) {
        uint32_t first, count;
        struct node node;
        r = index_children(index, dirs.at[--dirs.count], &first, &count);
        for (uint32_t i = first; r == 0 && i < first + count; i++) {
            if (!is_marked(matched, i))
                continue;
            view_mark_entry(marks, i);
            r = index_node(index, i, &node);
            if (r == 0 && S_ISDIR(node.mode))
                r = vector_push(&dirs, i);
        }
    }
    vector_free(&dirs);
    return r;
}

/* ---- one entry ---- */

/*
 * The entry's place in the view, an enum view_choice. w->path begins with its folder
 * (`folder_len` bytes).
 */
static int marker_ask(struct marker *w, size_t folder_len, uint32_t position, uint32_t mode)
{
    const char *name;
    size_t len;
    int r = index_name(w->m->index, position, &name, &len);
    if (r < 0)
        return r;
    if (folder_len + len > INDEX_PATH_MAX)
        return VIEW_LEAVE_OUT;
    w->path.count = folder_len;
    if (vector_append(&w->path, name, len) < 0 || vector_push(&w->path, '\0') < 0)
        return -ENOMEM;
    return view_choose(&w->filter, w->path.at, folder_len + len, mode);
}

/* Makes w->path a directory's path, with a slash behind it unless it is the root. */
static int marker_enter(struct marker *w, const struct mark_dir *dir, size_t *ret_len)
{
    char path[INDEX_PATH_MAX + 1];
    int r = index_path(w->m->index, dir->position, path, sizeof(path), ret_len);
    w->path.count = 0;
    if (r == 0)
        r = vector_append(&w->path, path, *ret_len);
    if (r == 0 && *ret_len > 0) {
        ++*ret_len;
        r = vector_push(&w->path, '/');
    }
    return r;
}

/* ---- 1. directories ---- */

/* Lists the directories. -EUCLEAN: they are not in the order that a sound index has. */
static int marking_list_dirs(struct marking *m)
{
    uint64_t bytes = index_section_bytes(m->index, SECTION_DIRS);
    const uint32_t *positions = index_records(m->index, SECTION_DIRS, 0, bytes);
    uint32_t end = 1; /* of the last children */
    m->count = (uint32_t)(bytes / sizeof(*positions));
    m->dirs = positions && m->count ? calloc(m->count, sizeof(*m->dirs)) : NULL;
    if (!m->dirs)
        return positions && m->count ? -ENOMEM : -EUCLEAN;
    for (uint32_t i = 0; i < m->count; i++) {
        struct mark_dir *dir = &m->dirs[i];
        dir->position = le32toh(positions[i]);
        if (dir->position >= m->entries ||
            (i ? dir->position <= dir[-1].position : dir->position != INDEX_ROOT) ||
            index_children(m->index, dir->position, &dir->first, &dir->count) < 0 ||
            (dir->count && dir->first < end))
            return -EUCLEAN;
        dir->first = dir->count ? dir->first : end;
        end = dir->first + dir->count;
    }
    return 0;
}

static int marking_ask_dir(struct marker *w, uint32_t number, size_t folder_len)
{
    struct mark_dir *dir = &w->m->dirs[number];
    int choice = marker_ask(w, folder_len, dir->position, S_IFDIR);
    dir->is_entered = choice > VIEW_LEAVE_OUT;
    atomic_store_explicit(&dir->is_shown, choice == VIEW_TAKE, memory_order_relaxed);
    return choice < 0 ? choice : 0;
}

static int marking_ask_dirs(struct marker *w)
{
    struct marking *m = w->m;
    uint32_t next = 1;
    size_t folder_len;
    m->dirs[0].is_entered = true;
    atomic_store_explicit(&m->dirs[0].is_shown, true, memory_order_relaxed);
    for (uint32_t i = 0; i < m->count; i++) {
        struct mark_dir *dir = &m->dirs[i];
        dir->first_dir = next;
        for (; next < m->count && m->dirs[next].position < dir->first + dir->count; next++) {
            m->dirs[next].parent = i;
            if (m->dirs[next].position < dir->first)
                return -EUCLEAN;
            int r = !dir->is_entered         ? 0
                    : next == dir->first_dir ? marker_enter(w, dir, &folder_len)
                                             : 0;
            if (r == 0 && dir->is_entered)
                r = marking_ask_dir(w, next, folder_len);
            if (r < 0)
                return r;
        }
    }
    return next == m->count ? 0 : -EUCLEAN;
}

/* ---- 2. all others ---- */

/* The first directory from `low` on that is not before a position. */
static uint32_t marking_next_dir(const struct marking *m, uint32_t low, uint32_t position)
{
    return (uint32_t)search_first(i, low, m->count, m->dirs[i].position >= position);
}

static int marker_take(struct marker *w, struct mark_dir *dir, uint32_t from, uint32_t to)
{
    struct marking *m = w->m;
    size_t folder_len;
    uint32_t next = marking_next_dir(m, dir->first_dir, from);
    int r = marker_enter(w, dir, &folder_len);
    for (uint32_t i = from; r == 0 && i < to; i++) {
        if (next < m->count && m->dirs[next].position == i) {
            next++;
            continue;
        }
        int choice = marker_ask(w, folder_len, i, S_IFREG);
        if (choice == VIEW_TAKE) {
            atomic_fetch_or_explicit(&m->marks[i / 8], (uint8_t)(1u << i % 8),
                                     memory_order_relaxed);
            atomic_store_explicit(&dir->is_shown, true, memory_order_relaxed);
        }
        r = choice < 0 ? choice : 0;
    }
    return r;
}

/* The first directory whose children do not end before a position. */
static uint32_t marking_dir_at(const struct marking *m, uint32_t position)
{
    return (uint32_t)search_first(i, 0, m->count,
                                  m->dirs[i].first + m->dirs[i].count > position);
}

static int marker_take_range(struct marker *w, uint32_t from, uint32_t to)
{
    struct marking *m = w->m;
    int r = 0;
    for (uint32_t i = marking_dir_at(m, from); r == 0 && i < m->count; i++) {
        struct mark_dir *dir = &m->dirs[i];
        if (dir->first >= to)
            break;
        if (dir->is_entered && dir->count)
            r = marker_take(w, dir, max_u32(from, dir->first),
                            (uint32_t)min_u64(to, (uint64_t)dir->first + dir->count));
    }
    return r;
}

static void marker_free(struct marker *w)
{
    vector_free(&w->filter.folder);
    vector_free(&w->path);
}

static void *marking_run(void *arg)
{
    struct marking *m = arg;
    struct marker w = {.m = m, .filter = {.view = m->view}};
    struct view_bytes bytes; /* each thread has a locale */
    int r = view_bytes_begin(&bytes);
    uint64_t at;
    if (r == 0) {
        while (r == 0 && (at = atomic_fetch_add(&m->next, MARK_RANGE)) < m->entries)
            r = marker_take_range(&w, (uint32_t)at,
                                  (uint32_t)min_u64(at + MARK_RANGE, m->entries));
        view_bytes_end(&bytes);
    }
    if (r < 0) {
        atomic_store(&m->err, r);
        atomic_store(&m->next, m->entries);
    }
    marker_free(&w);
    return NULL;
}

static int marking_run_all(struct marking *m)
{
    uint64_t wanted =
        min_u64(min_u64(m->entries / MARK_THREAD_ENTRIES, cpus_allowed()), MARK_THREADS);
    thread_team(wanted, MARK_STACK_BYTES, marking_run, m);
    return atomic_load(&m->err);
}

/* ---- 3. directories of shown entries ---- */

static void marking_show_dirs(struct marking *m, uint8_t *marks)
{
    for (uint32_t i = m->count; i-- > 0;) {
        if (!atomic_load_explicit(&m->dirs[i].is_shown, memory_order_relaxed))
            continue;
        view_mark_entry(marks, m->dirs[i].position);
        atomic_store_explicit(&m->dirs[m->dirs[i].parent].is_shown, true, memory_order_relaxed);
    }
}

/* Mark what patterns show, and the root. It starts threads. -EUCLEAN, -ENOMEM. */
static int view_mark_matches(const struct view *view, const struct index *index, uint8_t *marks)
{
    struct marking m = {.view = view, .index = index, .entries = index_info(index)->entries};
    struct marker w = {.m = &m, .filter = {.view = view}};
    m.marks = calloc(m.entries / 8 + 1, 1);
    int r = m.marks ? marking_list_dirs(&m) : -ENOMEM;
    if (r == 0)
        r = marking_ask_dirs(&w);
    if (r == 0)
        r = marking_run_all(&m);
    if (r == 0) {
        memcpy(marks, m.marks, m.entries / 8 + 1);
        marking_show_dirs(&m, marks);
    }
    marker_free(&w);
    free(m.marks);
    free(m.dirs);
    return r;
}

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
static int view_found_nothing(const struct view *view, const char *where, struct fault *fault)
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
