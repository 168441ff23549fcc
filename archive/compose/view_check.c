/*
 * Views of several archives, each opened by itself: what one of them lacks is looked for in the
 * others. What they show is all that is walked over, since a saved index of a view does not
 * tell what its archive lacked. Names are compared by their hashes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "map.h"
#include "tree_view_private.h"

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
