/*
 * Views, as copies of entries: what is shown is marked (view_mark.c), and copied in the order
 * that it has (builder_copy.h).
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "builder_copy.h"
#include "index_records.h"
#include "tree_view_private.h"

struct view_copy {
    const struct index *index;
    uint32_t entries;
    uint8_t *marks; /* a bit for each entry */
    VECTOR(struct builder_copy_run) runs;
    VECTOR(struct builder_copy_dir) dirs;
};

static int view_find_runs(struct view_copy *c)
{
    struct builder_copy_run root = {0, INDEX_ROOT, 1}, run = {0};
    int r = vector_push(&c->runs, root);
    for (uint64_t i = 1; r == 0 && i < c->entries; i++) { /* steps of 8 may pass 2^32 */
        if (i % 8 == 0 && c->marks[i / 8] == 0) {
            i += 7;
            continue;
        }
        if (!view_is_marked(c->marks, (uint32_t)i))
            continue;
        run.first = (uint32_t)i;
        while (i < c->entries && view_is_marked(c->marks, (uint32_t)i))
            i++;
        run.count = (uint32_t)i - run.first;
        r = vector_push(&c->runs, run);
    }
    return r;
}

/*
 * Count the entries of the shown directories, and how many of them are directories. Nothing is
 * read of the others. Where children are not in the order of their directories, the index is
 * damaged, and copies would land in other directories.
 */
static int view_find_dirs(struct view_copy *c)
{
    uint64_t bytes = index_section_bytes(c->index, SECTION_DIRS), count = bytes / 4, next = 1;
    uint32_t end = 1; /* of the last children */
    const uint32_t *dirs = index_records(c->index, SECTION_DIRS, 0, bytes);
    for (uint64_t i = 0; dirs && i < count; i++) {
        uint32_t position = le32toh(dirs[i]), first, children;
        struct builder_copy_dir dir = {0};
        if ((i && position <= le32toh(dirs[i - 1])) || /* once each: this ends */
            position >= c->entries)
            return -ENOTSUP;
        if (!view_is_marked(c->marks, position))
            continue;
        if (index_children(c->index, position, &first, &children) < 0 ||
            (children && first < end))
            return -ENOTSUP;
        end = children ? first + children : end;
        for (uint32_t j = first; j < first + children; j++)
            dir.children += view_is_marked(c->marks, j);
        while (next < count && le32toh(dirs[next]) < first)
            next++;
        for (; next < count && le32toh(dirs[next]) < c->entries &&
               le32toh(dirs[next]) - first < children;
             next++)
            dir.directories += view_is_marked(c->marks, le32toh(dirs[next]));
        if (vector_push(&c->dirs, dir) < 0)
            return -ENOMEM;
    }
    return dirs ? 0 : -ENOTSUP;
}

static int view_choose(const struct view *view, struct view_copy *c)
{
    struct view_filter filter = {.view = view};
    struct view_bytes bytes;
    int r = view_bytes_begin(&bytes);
    if (r < 0)
        return r;
    view_mark_entry(c->marks, INDEX_ROOT);
    r = view->names ? view_mark_names(view, c->index, &filter, c->marks)
                    : view_mark_matches(view, c->index, c->marks);
    view_bytes_end(&bytes);
    vector_free(&filter.folder);
    return r;
}

static int view_write_copy(const struct view *view, struct view_copy *c,
                           struct builder *builder, struct builder_header *header, int fd,
                           struct fault *fault)
{
    const struct builder_copy_part part = {.index = c->index};
    uint64_t ignored;
    int r = view_choose(view, c);
    if (r == 0)
        r = view_find_runs(c);
    if (r == 0)
        r = view_find_dirs(c);
    if (r == 0 && c->runs.count == 1 && !view->names) /* the way of grafts tells */
        r = -ENOTSUP;
    if (r == 0 && !view->names)
        r = graft_copy_left_out(builder, c->index);
    const struct builder_copy copy = {.parts = &part,
                                      .part_count = 1,
                                      .runs = c->runs.at,
                                      .run_count = c->runs.count,
                                      .dirs = c->dirs.at,
                                      .dir_count = c->dirs.count,
                                      .is_partial = true};
    if (r == 0)
        r = builder_copy(builder, &copy, header);
    if (r == 0)
        r = builder_write(builder, header, fd, 0, fault, &ignored);
    return r == 0 && index_is_lost(c->index) ? -ENOTSUP : r;
}

int view_write(const struct view *view, const struct index *index,
               struct builder_header *header, int fd, struct fault *fault)
{
    struct view_copy c = {.index = index, .entries = index_info(index)->entries};
    struct builder *builder;
    if (view->has_map)
        return -ENOTSUP;
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    c.marks = calloc(c.entries / 8 + 1, 1);
    r = c.marks ? view_write_copy(view, &c, builder, header, fd, fault) : -ENOMEM;
    builder_free(builder);
    free(c.marks);
    vector_free(&c.runs);
    vector_free(&c.dirs);
    if (r == -EUCLEAN)
        r = -ENOTSUP;
    if (r == -ENOTSUP && fault)
        *fault = (struct fault){0};
    return r;
}
