/*
 * Views of several archives, each opened by itself: what one of them lacks is looked for in the
 * others. What they show is all that is walked over, since a saved index of a view does not
 * tell what its archive lacked. Names are compared by their hashes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "cleanup.h"
#include "map.h"
#include "tree_view_private.h"

struct view_check {
    const struct view *view;
    struct map names; /* from the hash of a name to its number */
    bool *found;      /* by number */
    size_t count, left;
};

/* A name as the view shows it. */
static const char *check_name(const struct view *view, size_t i)
{
    bool ignored;
    return view->has_map ? view->map.text.at + view->map.lines.at[i].to
                         : name_list_name(view->names, i, &ignored);
}

static struct map_key check_key(const char *path, size_t len)
{
    XXH128_hash_t hash = XXH3_128bits(path, len);
    return (struct map_key){hash.high64, hash.low64};
}

static int check_begin(struct view_check *c)
{
    const struct view *view = c->view;
    c->count = view->has_map ? view->map.lines.count : name_list_count(view->names);
    c->found = calloc(c->count + 1, sizeof(*c->found));
    int r = c->found ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < c->count; i++) {
        const char *name = check_name(view, i);
        r = *name ? map_put(&c->names, check_key(name, strlen(name)), i) : -EEXIST;
        c->found[i] = r == -EEXIST; /* the root is in all; one name counts once */
        c->left += r == 0;
        r = r == -EEXIST ? 0 : r;
    }
    return r;
}

/* Look at the children of a directory, whose path is in `path`. */
static int check_directory(struct view_check *c, const struct index *index, uint32_t position,
                           char path[2 * INDEX_PATH_MAX], size_t len)
{
    uint32_t first, count;
    int r = index_children(index, position, &first, &count);
    if (len)
        path[len++] = '/';
    for (uint32_t i = 0; r == 0 && c->left > 0 && i < count; i++) {
        const char *name;
        size_t name_len;
        uint64_t number;
        r = index_name(index, first + i, &name, &name_len);
        if (r == 0 && name_len > INDEX_PATH_MAX - 1)
            r = -EUCLEAN;
        if (r < 0)
            return r;
        memcpy(path + len, name, name_len);
        if (map_get(&c->names, check_key(path, len + name_len), &number) < 0 ||
            c->found[number])
            continue;
        c->found[number] = true;
        c->left--;
    }
    return r;
}

static int check_index(struct view_check *c, const struct index *index)
{
    char path[2 * INDEX_PATH_MAX];
    uint32_t entries = index_info(index)->entries;
    for (uint32_t i = 0; i < entries && c->left > 0; i++) {
        uint32_t first, count;
        size_t len = 0;
        int r = index_children(index, i, &first, &count);
        if (r == -ENOTDIR)
            continue;
        if (r == 0)
            r = index_path(index, i, path, INDEX_PATH_MAX + 1, &len);
        if (r == 0)
            r = check_directory(c, index, i, path, len);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Names that the patterns hide were not looked for. */
static int check_report(const struct view_check *c, struct fault *fault)
{
    const struct view *view = c->view;
    struct view_filter filter = {.view = view};
    size_t first = 0, lacking = 0;
    int r = 0;
    for (size_t i = 0; r >= 0 && i < c->count; i++) {
        const char *from = view->has_map ? view->map.text.at + view->map.lines.at[i].from
                                         : check_name(view, i);
        if (c->found[i])
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
    struct view_check c = {.view = view};
    int r = check_begin(&c);
    for (size_t i = 0; r == 0 && i < count; i++)
        r = check_index(&c, shown[i]);
    if (r == 0 && c.left > 0)
        r = check_report(&c, fault);
    map_free(&c.names);
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
