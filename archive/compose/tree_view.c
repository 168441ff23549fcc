/*
 * Views. Patterns and lists are filters: each marks the entries of the index that it shows, and
 * the tree (tree.h) takes those. A map puts entries into the tree under its names.
 *
 * A view goes over an index by view_walk, which meets each entry with its path, and leaves out
 * directories in which nothing can be shown.
 */
#include "tree_view.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cleanup.h"
#include "path.h"
#include "selection.h"
#include "tree_view_private.h"

/* How many names the list or map has. */
static size_t view_name_count(const struct view *view)
{
    return view->has_map ? view->lines.count : view->names ? name_list_count(view->names) : 0;
}

/* A name of the list or map, as the archive has it. */
static const char *view_name(const struct view *view, size_t i)
{
    bool ignored;
    return view->has_map ? view->text.at + view->lines.at[i].from
                         : name_list_name(view->names, i, &ignored);
}

/* ---- patterns ---- */

/* The patterns' verdict on this path alone. */
static enum view_verdict view_match(const struct view *view, const char *path, bool is_folder)
{
    for (size_t i = 0; i < view->pattern_count; i++)
        if (selection_matches(view->patterns[i].glob, path, is_folder))
            return view->patterns[i].includes ? VIEW_SHOWN : VIEW_HIDDEN;
    return VIEW_NOTHING;
}

int view_choose(struct view_filter *f, const char *path, size_t len, bool is_folder)
{
    const char *slash = memrchr(path, '/', len);
    size_t folder_len = slash ? (size_t)(slash - path) : 0;
    if (f->folder.count != folder_len + 1 || memcmp(f->folder.at, path, folder_len) != 0) {
        f->folder.count = 0;
        if (vector_append(&f->folder, path, folder_len) < 0 ||
            vector_push(&f->folder, '\0') < 0)
            return -ENOMEM;
        f->folder_verdict = VIEW_NOTHING;
        char *text = f->folder.at;
        for (size_t end = 0; end < folder_len && f->folder_verdict != VIEW_HIDDEN; end++) {
            end += strcspn(text + end, "/");
            char kept = text[end];
            text[end] = '\0';
            enum view_verdict own = view_match(f->view, text, true);
            text[end] = kept;
            if (own != VIEW_NOTHING)
                f->folder_verdict = own;
        }
    }
    enum view_verdict verdict = f->folder_verdict;
    enum view_verdict own =
        verdict == VIEW_HIDDEN ? VIEW_HIDDEN : view_match(f->view, path, is_folder);
    if (own != VIEW_NOTHING)
        verdict = own;
    if (verdict == VIEW_NOTHING && f->view->shows_rest)
        return VIEW_SHOWN;
    return verdict == VIEW_NOTHING && !is_folder ? VIEW_HIDDEN : verdict;
}

/* ---- the parser of maps: names only become shorter, so they stay where they were read ---- */

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
static int map_line(struct view *view, char *line, char *end, uint64_t number,
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
    struct view_map_line names = {(size_t)(line - view->text.at),
                                  (size_t)(tab + 1 - view->text.at), number};
    return vector_push(&view->lines, names);
}

int view_parse_map(struct view *view, struct fault *fault)
{
    char *at = view->text.at, *end = at + view->text.count;
    uint64_t number = 0;
    int r = 0;
    while (r == 0 && at < end) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline)
            return -EINVAL;
        number++;
        if (newline > at)
            r = map_line(view, at, newline, number, fault);
        at = newline + 1;
    }
    return r;
}

/* ---- all entries of an index ---- */

/* Takes the entry that the walk meets. 1: go on in it, if it is a directory; 0; or an error. */
typedef int view_visit(void *ctx, const struct index_walk *w);

/* Visit all entries below a directory. */
static int view_walk(const struct index *index, uint32_t root, view_visit *visit, void *ctx)
{
    struct index_walk w = {.index = index, .position = root, .enters = true, .has_paths = true};
    int r = 0;
    while (r >= 0 && (r = index_walk_next(&w)) > 0)
        if (w.path.count <= INDEX_PATH_MAX + 1) { /* else nothing can name it */
            r = visit(ctx, &w);
            w.enters = r == 1;
        }
    index_walk_free(&w);
    return r;
}

/* ---- what is shown of an index ---- */

struct showing {
    const struct view *view;
    const struct index *index;
    struct fault *fault;
    struct view_filter filter;
    uint8_t *matched;  /* by patterns, a bit for each entry; NULL: all */
    uint8_t *listed;   /* by a list, and matched */
    bool any;          /* is shown by patterns */
    struct tree *tree; /* of a map */
    uint32_t part;
    /* The directory of the name that was found last; NULL: none. */
    const char *folder;
    size_t folder_len;
    uint32_t folder_position;
    uint32_t next, end;     /* its entries from the one behind the name that was found last */
    VECTOR(uint64_t) picks; /* names that were met, by their numbers; lower half: positions */
    uint64_t lacking;       /* names that the archive lacks */
    size_t first_lacking;
};

/* Mark an entry of a directory, and the directories above it that are not marked yet. */
static int view_mark(const struct index *index, uint8_t *marks, uint32_t position,
                     uint32_t directory)
{
    int r = 0;
    marks[position / 8] |= (uint8_t)(1u << position % 8);
    while (r == 0 && directory != INDEX_ROOT && !(marks[directory / 8] & 1u << directory % 8)) {
        marks[directory / 8] |= (uint8_t)(1u << directory % 8);
        r = index_parent(index, directory, &directory);
    }
    return r;
}

/*
 * Mark what patterns show, and go on in directories that may have more of it. A pattern with a
 * slash can match only below the directories that its beginning names, up to the first
 * character that is not literal: of ten million files, `--include 'train/n01*'` looks at the
 * ones in train/n01* alone.
 */
static int visit_matched(void *ctx, const struct index_walk *w)
{
    struct showing *s = ctx;
    const char *path = w->path.at;
    size_t len = w->path.count - 1;
    uint32_t ignored;
    int r = index_children(s->index, w->position, &ignored, &ignored);
    if (r < 0 && r != -ENOTDIR)
        return r;
    const bool is_folder = r == 0;
    int verdict = view_choose(&s->filter, path, len, is_folder);
    if (verdict == VIEW_SHOWN) {
        s->any = true;
        r = view_mark(s->index, s->matched, w->position, w->directory);
        return r < 0 ? r : is_folder;
    }
    for (size_t i = 0; verdict == VIEW_NOTHING && i < s->view->pattern_count; i++) {
        const char *glob = s->view->patterns[i].glob;
        glob += *glob == '/';
        const char *slash = strchr(glob, '/');
        size_t literal = strcspn(glob, "*?[\\");
        if (s->view->patterns[i].includes &&
            (!slash || !slash[1] ||
             (literal <= len ? memcmp(glob, path, literal) == 0
                             : memcmp(glob, path, len) == 0 && glob[len] == '/')))
            return 1;
    }
    return verdict < 0 ? verdict : 0;
}

/* Mark what is matched below a directory that is listed whole. */
static int visit_whole(void *ctx, const struct index_walk *w)
{
    struct showing *s = ctx;
    if (!tree_shows(s->matched, w->position))
        return 0;
    int r = view_mark(s->index, s->listed, w->position, w->directory);
    return r < 0 ? r : 1;
}

/* ---- names of a list or map ---- */

static struct map_key view_key(const char *path, size_t len)
{
    XXH128_hash_t hash = XXH3_128bits(path, len);
    return (struct map_key){hash.high64, hash.low64};
}

/*
 * Where many archives have few of the names each, the names are looked up by the archive's
 * paths, and not the other way round. -ENOMEM.
 */
static int view_make_table(struct view *view)
{
    size_t count = view_name_count(view);
    uint64_t first;
    int r = 0;
    view->next_equal = calloc(count + 1, sizeof(*view->next_equal));
    if (!view->next_equal)
        return -ENOMEM;
    for (size_t i = 0; r == 0 && i < count; i++) {
        const char *name = view_name(view, i);
        struct map_key key = view_key(name, strlen(name));
        if (map_get(&view->table, key, &first) < 0) {
            r = map_put(&view->table, key, i);
        } else {
            view->next_equal[i] = view->next_equal[first];
            view->next_equal[first] = (uint32_t)i;
        }
    }
    return r;
}

static int visit_picked(void *ctx, const struct index_walk *w)
{
    struct showing *s = ctx;
    uint64_t number;
    int r = map_get(&s->view->table, view_key(w->path.at, w->path.count - 1), &number);
    if (r < 0)
        return 1;
    do
        r = vector_push(&s->picks, number << 32 | w->position);
    while (r == 0 && (number = s->view->next_equal[number]) != 0);
    return r < 0 ? r : 1;
}

static int view_by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/*
 * The entry at a path; its directory is s->folder_position. Names that follow each other mostly
 * lie in one directory, which is therefore kept, and mostly in its order: the next entry is
 * tried first. -ENOENT: the archive lacks it.
 */
static int names_find(struct showing *s, const char *path, uint32_t *ret_position)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    int r = 0;
    *ret_position = INDEX_ROOT;
    if (!s->folder || s->folder_len != len || memcmp(s->folder, path, len) != 0) {
        s->folder = NULL;
        r = index_resolve_from(s->index, INDEX_ROOT, path, len, &s->folder_position);
        s->next = s->end = 0;
        if (r == 0)
            r = index_children(s->index, s->folder_position, &s->next, &s->end);
        if (r == 0)
            s->folder = path;
        s->folder_len = len;
        s->end += s->next;
    }
    if (r == 0 && *path) {
        const char *name = slash ? slash + 1 : path, *next;
        size_t name_len = strlen(name), next_len;
        if (s->next < s->end && index_name(s->index, s->next, &next, &next_len) == 0 &&
            next_len == name_len && memcmp(next, name, name_len) == 0)
            *ret_position = s->next;
        else
            r = index_lookup(s->index, s->folder_position, name, name_len, ret_position);
        if (r == 0)
            s->next = *ret_position + 1;
    }
    return r == -ENOTDIR ? -ENOENT : r;
}

/* Show the entry of name `number`, which lies in the directory. */
static int names_show(struct showing *s, size_t number, uint32_t position, uint32_t directory)
{
    const struct view *view = s->view;
    const char *path = view_name(view, number);
    size_t len = strlen(path);
    bool whole = false;
    struct node node;
    int r = index_node(s->index, position, &node);
    if (r < 0)
        return fault_set(s->fault, r, path, FAULT_NO_OFFSET,
                         "its entry in the index is damaged");
    if (view->pattern_count && len) {
        r = view_choose(&s->filter, path, len, S_ISDIR(node.mode));
        if (r < 0 || r == VIEW_HIDDEN)
            return r < 0 ? r : 0;
    }
    if (view->has_map) {
        const struct view_map_line *line = &view->lines.at[number];
        const char *to = view->text.at + line->to;
        return tree_put(s->tree, TREE_TOP, to, strlen(to),
                        (struct tree_place){s->part, position}, (uint32_t)line->number,
                        s->fault);
    }
    (void)name_list_name(view->names, number, &whole);
    r = view_mark(s->index, s->listed, position, directory);
    return r == 0 && whole && S_ISDIR(node.mode) ? view_walk(s->index, position, visit_whole, s)
                                                 : r;
}

/* Report the first of `lacking` names of the list or map that are not there. -ENOENT. */
static int view_report_lacking(const struct view *view, size_t first, uint64_t lacking,
                               const char *what, struct fault *fault)
{
    char more[100] = "", line[40] = "";
    const struct view_map_line *mapped = view->has_map ? &view->lines.at[first] : NULL;
    if (mapped)
        snprintf(line, sizeof(line), "line %llu of ", (unsigned long long)mapped->number);
    if (lacking > 1)
        snprintf(more, sizeof(more), ", nor %llu more of its names",
                 (unsigned long long)lacking - 1);
    return fault_set_advised(
        fault, -ENOENT, view_name(view, first), FAULT_NO_OFFSET,
        "names are paths from the archive's root, as 'onepot ls -R' has them", "%s (%s%.60s)%s",
        what, line, view->file, more);
}

/* Show all names of the list or map, in its order. */
static int names_show_all(struct showing *s)
{
    const struct view *view = s->view;
    size_t count = view_name_count(view);
    uint32_t position, directory;
    int r = count < UINT32_MAX ? 0 : -EOVERFLOW;
    if (r == 0 && view->next_equal && index_info(s->index)->entries < count) {
        const struct index_walk root = {.path = {.at = (char[]){""}, .count = 1}};
        r = visit_picked(s, &root);
        if (r >= 0)
            r = view_walk(s->index, INDEX_ROOT, visit_picked, s);
        if (s->picks.count)
            qsort(s->picks.at, s->picks.count, sizeof(*s->picks.at), view_by_number);
        for (size_t i = 0; r == 0 && i < s->picks.count; i++) {
            position = (uint32_t)s->picks.at[i];
            r = index_parent(s->index, position, &directory);
            if (r == 0)
                r = names_show(s, s->picks.at[i] >> 32, position, directory);
        }
        return r;
    }
    for (size_t i = 0; r == 0 && i < count; i++) {
        r = names_find(s, view_name(view, i), &position);
        if (r == 0) {
            r = names_show(s, i, position, s->folder_position);
        } else if (r == -ENOENT) {
            s->first_lacking = s->lacking++ == 0 ? i : s->first_lacking;
            r = 0;
        } else {
            fault_set(s->fault, r, view_name(view, i), FAULT_NO_OFFSET,
                      "its entry in the index is damaged");
        }
    }
    if (r == 0 && s->lacking && !view->is_of_several)
        return view_report_lacking(view, s->first_lacking, s->lacking,
                                   "the archive does not have it", s->fault);
    return r;
}

/* ---- what several archives lack ---- */

/*
 * They are opened each by itself, and what one of them lacks is looked for in the others: among
 * the entries that they show, since a saved index of a view does not tell what its archive
 * lacked. Names are compared by their hashes.
 */
struct view_check {
    struct map names; /* as they are shown; of equal ones, the first */
    bool *found;      /* by number */
    size_t left;
};

static int visit_shown(void *ctx, const struct index_walk *w)
{
    struct view_check *c = ctx;
    uint64_t number;
    if (c->left > 0 &&
        map_get(&c->names, view_key(w->path.at, w->path.count - 1), &number) == 0 &&
        !c->found[number]) {
        c->found[number] = true;
        c->left--;
    }
    return c->left > 0;
}

/* Report the names that none has. A name that the patterns hide was not looked for. */
static int check_report(const struct view *view, const struct view_check *c,
                        struct fault *fault)
{
    struct view_filter filter = {.view = view};
    size_t first = 0, lacking = 0, count = view_name_count(view);
    int r = 0;
    for (size_t i = 0; r >= 0 && i < count; i++) {
        const char *name = view_name(view, i);
        if (c->found[i])
            continue;
        r = view->pattern_count ? view_choose(&filter, name, strlen(name), false) : VIEW_SHOWN;
        first = lacking == 0 && r == VIEW_SHOWN ? i : first;
        lacking += r == VIEW_SHOWN;
    }
    vector_free(&filter.folder);
    if (r < 0 || lacking == 0)
        return r < 0 ? r : 0;
    return view_report_lacking(view, first, lacking, "none of the archives has it", fault);
}

/*
 * While patterns match, they match bytes, whatever the locale of the program that the library
 * is in: '?' is one byte in Python, too, and 'onepot mount' shows the view that Python saved.
 * -ENOMEM.
 */
static int view_match_bytes(locale_t *ret_before)
{
    locale_t bytes = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (bytes)
        *ret_before = uselocale(bytes);
    return bytes ? 0 : -ENOMEM;
}

/* Report that a pattern that includes found nothing in `where`. -ENOENT. */
static int view_found_nothing(const struct view *view, const char *where, struct fault *fault)
{
    size_t i = 0;
    while (!view->patterns[i].includes)
        i++;
    return fault_set_advised(
        fault, -ENOENT, NULL, FAULT_NO_OFFSET, "'onepot ls -R' lists what it has",
        "nothing in %s matches --include '%.100s'", where, view->patterns[i].glob);
}

int view_check_several(const struct view *view, const struct index *const *shown, size_t count,
                       struct fault *fault)
{
    size_t names = view_name_count(view);
    uint64_t entries = 0;
    locale_t before;
    for (size_t i = 0; i < count; i++)
        entries += index_info(shown[i])->entries;
    if (!view->names && !view->has_map)
        return view->shows_rest || entries > count
                   ? 0
                   : view_found_nothing(view, "any of them", fault);
    struct view_check c = {.found = calloc(names + 1, sizeof(*c.found))};
    int r = c.found ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < names; i++) {
        const char *name =
            view->has_map ? view->text.at + view->lines.at[i].to : view_name(view, i);
        r = *name ? map_put(&c.names, view_key(name, strlen(name)), i) : -EEXIST;
        c.found[i] = r == -EEXIST; /* an equal one was, or it is the root, which all have */
        c.left += r == 0;
        r = r == -EEXIST ? 0 : r;
    }
    for (size_t i = 0; r == 0 && c.left > 0 && i < count; i++)
        r = view_walk(shown[i], INDEX_ROOT, visit_shown, &c);
    if (r == 0 && c.left > 0)
        r = view_match_bytes(&before);
    if (r == 0 && c.left > 0) {
        r = check_report(view, &c, fault);
        freelocale(uselocale(before));
    }
    map_free(&c.names);
    free(c.found);
    return r;
}

/* ---- reading ---- */

/* A name that can't be in any archive. */
static int view_refuse_name(void *ctx, const struct fault *what)
{
    *(struct fault *)ctx = *what;
    return -EINVAL;
}

static int view_read_map(struct view *view, int fd, struct fault *fault)
{
    view->has_map = true;
    int r = text_read(fd, TEXT_BYTES_MOST, &view->text);
    if (r == 0)
        r = vector_push(&view->text, '\n');
    return r < 0 ? r : view_parse_map(view, fault);
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
    size_t count = options->pattern_count;
    *ret_file = NULL;
    if (options->files_from && options->map)
        return fault_set(fault, -EINVAL, NULL, FAULT_NO_OFFSET,
                         "a list of files and a map exclude each other");
    struct view *view = calloc(1, sizeof(*view));
    if (!view)
        return -ENOMEM;
    view->shows_rest = count == 0 || !options->patterns[count - 1].includes;
    view->is_of_several = options->is_of_several;
    view->patterns = calloc(count + 1, sizeof(*view->patterns));
    int r = view->patterns ? 0 : -ENOMEM;
    for (; r == 0 && view->pattern_count < count; view->pattern_count++) {
        const struct view_pattern *from = &options->patterns[view->pattern_count];
        char *glob = strdup(from->glob);
        view->patterns[view->pattern_count] = (struct view_pattern){glob, from->includes};
        r = glob ? 0 : -ENOMEM;
    }
    if (r == 0 && (options->files_from || options->map)) {
        r = view_read_file(view, options, fault);
        *ret_file = options->list_name ? options->list_name
                    : options->map     ? options->map
                                       : options->files_from;
        if (r == 0 && view->is_of_several)
            r = view_make_table(view);
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
    if (!view)
        return;
    for (size_t i = 0; i < view->pattern_count; i++)
        free((char *)view->patterns[i].glob);
    free(view->patterns);
    name_list_free(view->names);
    vector_free(&view->text);
    vector_free(&view->lines);
    map_free(&view->table);
    free(view->next_equal);
    free(view->file);
    free(view);
}

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
            to = view->text.at + view->lines.at[i].to;
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

/* ---- the tree that it shows ---- */

int view_add(const struct view *view, const struct index *index, struct tree *tree,
             struct fault *fault)
{
    struct showing s = {
        .view = view, .index = index, .fault = fault, .filter = {.view = view}, .tree = tree};
    size_t bytes = index_info(index)->entries / 8 + 1;
    locale_t before;
    int r = view_match_bytes(&before);
    if (r < 0)
        return r;
    if (view->pattern_count) {
        s.matched = calloc(bytes, 1);
        r = s.matched ? view_walk(index, INDEX_ROOT, visit_matched, &s) : -ENOMEM;
    }
    if (r == 0 && view->names) {
        s.listed = calloc(bytes, 1);
        r = s.listed ? names_show_all(&s) : -ENOMEM;
    }
    if (r == 0 && !view->names && !view->has_map && !view->shows_rest && !view->is_of_several &&
        !s.any)
        r = view_found_nothing(view, "it", fault);
    if (r == 0) {
        uint8_t **shown = view->names ? &s.listed : &s.matched;
        const struct tree_part part = {.index = index,
                                       .forgets_left_out = view->names || view->has_map,
                                       .at_root = !view->has_map,
                                       .gives_root = true,
                                       .list = view->file,
                                       .shown = steal_ptr(shown)};
        r = tree_add(tree, &part, &s.part);
    }
    if (r == 0 && view->has_map)
        r = names_show_all(&s);
    freelocale(uselocale(before));
    if (r == -EUCLEAN)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "its index is damaged");
    free(s.matched);
    free(s.listed);
    vector_free(&s.filter.folder);
    vector_free(&s.picks);
    return r;
}
