/*
 * Composing a tree: walk it breadth first, a place of a directory at a time, and add each entry
 * to the builder as any other member. The places of one directory come in their order, and so
 * the first of several entries with one name is added first, and what comes later either joins
 * it (directories do) or is a conflict.
 */
#include "tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "bytes.h"
#include "checksum.h"
#include "index_records.h"
#include "map.h"
#include "numbers.h"
#include "path.h"
#include "vector.h"

struct tree_source {
    struct tree_part part;
    uint32_t *inodes; /* the builder's, by the position of an inode; 0: none yet */
    uint32_t *blocks; /* the builder's number of each block plus 1; 0: none yet */
    uint64_t left;    /* see part_spend */
    uint32_t puts;    /* how often something of it was put */
};

/* An entry that was put under a name. */
struct tree_name {
    struct tree_place directory, target;
    const char *at;
    uint32_t len, line, number;
};

/* A place of a directory of the new tree. */
struct tree_dir {
    struct tree_place place;
    uint32_t line;
    uint32_t inode; /* the builder's */
};

struct tree {
    struct builder *builder;
    VECTOR(struct tree_source) sources;
    /* The entry for which each was made; it has the attributes of the root of that one's part.
     */
    VECTOR(struct tree_place) made;
    struct map made_at; /* directories that were made, by directory and name */
    VECTOR(struct tree_name) names;
    VECTOR(struct tree_dir) queue;       /* places of directories, in order */
    VECTOR(struct builder_piece) pieces; /* of the file at hand */
    struct map xattrs; /* inodes of the builder, by part and set of extended attributes */
    bool has_sums, mixes_sums;
    struct fault *fault;
};

#define NO_PART UINT32_MAX

/* ---- parts and names ---- */

int tree_new(struct tree **ret_tree)
{
    struct tree *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    if (builder_new(&t->builder) < 0 ||
        vector_push(&t->made, (struct tree_place){.part = NO_PART}) < 0) {
        tree_free(t);
        return -ENOMEM;
    }
    *ret_tree = t;
    return 0;
}

void tree_free(struct tree *t)
{
    if (!t)
        return;
    builder_free(t->builder);
    for (size_t i = 0; i < t->sources.count; i++) {
        free(t->sources.at[i].part.shown);
        index_close(t->sources.at[i].part.owned);
        free(t->sources.at[i].inodes);
        free(t->sources.at[i].blocks);
    }
    vector_free(&t->sources);
    vector_free(&t->made);
    map_free(&t->made_at);
    vector_free(&t->names);
    vector_free(&t->queue);
    vector_free(&t->pieces);
    map_free(&t->xattrs);
    free(t);
}

int tree_add(struct tree *t, const struct tree_part *part, uint32_t *ret_part)
{
    const struct tree_source source = {.part = *part, .puts = part->at_root};
    const uint32_t number = (uint32_t)t->sources.count;
    if (vector_reserve(&t->queue, 1) < 0 || vector_push(&t->sources, source) < 0) {
        free(part->shown);
        index_close(part->owned);
        return -ENOMEM;
    }
    if (part->at_root)
        (void)vector_push(&t->queue, (struct tree_dir){.place = {number, INDEX_ROOT}});
    if (part->gives_root || (part->at_root && t->made.at[0].part == NO_PART))
        t->made.at[0].part = number;
    *ret_part = number;
    return 0;
}

static int tree_put_name(struct tree *t, struct tree_name put, struct fault *fault)
{
    put.number = (uint32_t)t->names.count;
    if (put.len > INDEX_NAME_MAX)
        return fault_set(fault, -ENAMETOOLONG, put.at, FAULT_NO_OFFSET,
                         "has a name of more than %u bytes", INDEX_NAME_MAX);
    if (!path_is_name(put.at, put.len))
        return fault_set(fault, -EINVAL, put.at, FAULT_NO_OFFSET, "is no name in a directory");
    if (put.number == UINT32_MAX - 1)
        return -EOVERFLOW;
    return vector_push(&t->names, put);
}

/* Add the line that put an entry to an error about it, which may lack the entry's path. */
static void tree_tell_line(const struct tree *t, struct tree_place target, uint32_t line,
                           struct fault *fault)
{
    char path[INDEX_PATH_MAX + 1];
    size_t len;
    if (!fault || !fault->err || !line)
        return;
    const struct tree_part *part = &t->sources.at[target.part].part;
    size_t used = strlen(fault->what);
    if (!fault->member[0] &&
        index_path(part->index, target.position, path, sizeof(path), &len) == 0)
        snprintf(fault->member, sizeof(fault->member), "%.*s", (int)sizeof(fault->member) - 1,
                 path);
    snprintf(fault->what + used, sizeof(fault->what) - used, " (line %u of %.60s)",
             (unsigned)line, part->list);
}

int tree_put(struct tree *t, struct tree_place directory, const char *path, size_t len,
             struct tree_place target, uint32_t line, struct fault *fault)
{
    const char *slash;
    int r = 0;
    if (len > INDEX_PATH_MAX)
        r = fault_set(fault, -ENAMETOOLONG, "", FAULT_NO_OFFSET,
                      "would have a path of more than %u bytes", INDEX_PATH_MAX);
    while (r == 0 && (slash = memchr(path, '/', len))) {
        const struct tree_name above = {.directory = directory,
                                        .target = {TREE_MADE, (uint32_t)t->made.count},
                                        .at = path,
                                        .len = (uint32_t)(slash - path),
                                        .line = line};
        XXH128_hash_t hash = XXH3_128bits_withSeed(
            path, above.len, (uint64_t)directory.part << 32 | directory.position);
        const struct map_key key = {hash.high64, hash.low64};
        uint64_t number = above.target.position;
        if (map_get(&t->made_at, key, &number) < 0) {
            r = tree_put_name(t, above, fault);
            if (r == 0)
                r = vector_push(&t->made, target);
            if (r == 0)
                r = map_put(&t->made_at, key, number);
        }
        directory = (struct tree_place){TREE_MADE, (uint32_t)number};
        path = slash + 1;
        len -= above.len + 1;
    }
    if (r == 0)
        r = tree_put_name(
            t, (struct tree_name){directory, target, path, (uint32_t)len, line, 0}, fault);
    if (r < 0)
        tree_tell_line(t, target, line, fault);
    else
        t->sources.at[target.part].puts++;
    return r;
}

static int tree_compare_places(struct tree_place a, struct tree_place b)
{
    return a.part != b.part ? (a.part < b.part ? -1 : 1)
                            : (a.position > b.position) - (a.position < b.position);
}

static int tree_by_place(const void *a, const void *b)
{
    const struct tree_name *x = a, *y = b;
    int compared = tree_compare_places(x->directory, y->directory);
    return compared ? compared : (x->number > y->number) - (x->number < y->number);
}

/* The names that were put into a directory: [*ret_first, returned end). */
static size_t tree_find_names(const struct tree *t, struct tree_place directory,
                              size_t *ret_first)
{
    const struct tree_name *names = t->names.at;
    size_t end = search_first(i, 0, t->names.count,
                              tree_compare_places(names[i].directory, directory) >= 0);
    *ret_first = end;
    while (end < t->names.count && tree_compare_places(names[end].directory, directory) == 0)
        end++;
    return end;
}

/* ---- errors ---- */

/* Record an error about an entry, with its path in its archive. */
static int tree_fail(const struct tree *t, const struct tree_dir *entry, int err,
                     const char *what, struct fault *fault)
{
    char path[INDEX_PATH_MAX + 1] = ""; /* the fault keeps its beginning */
    size_t len;
    bool is_made = entry->place.part == TREE_MADE;
    struct tree_place target = is_made ? t->made.at[entry->place.position] : entry->place;
    const struct tree_part *part = is_made ? NULL : &t->sources.at[target.part].part;
    if (part)
        (void)index_path(part->index, target.position, path, sizeof(path), &len);
    fault_set(fault, err, path, FAULT_NO_OFFSET, "%s", what);
    tree_tell_line(t, target, entry->line, fault);
    if (part && part->name)
        fault_set_file(fault, part->name);
    return err;
}

static int tree_damaged(const struct tree *t, const struct tree_source *s)
{
    fault_set(t->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET, "its index is damaged");
    if (s->part.name)
        fault_set_file(t->fault, s->part.name);
    return -EUCLEAN;
}

/* The end of a name, which tells more of two shards than its beginning. */
static const char *tree_name_end(const struct tree *t, struct tree_place place)
{
    const char *name = t->sources.at[place.part].part.name;
    size_t len = name ? strlen(name) : 0;
    return !name ? "" : len > 100 ? name + len - 100 : name;
}

/* The entry that was the first to have a name in a directory. */
static struct tree_place tree_find_first(const struct tree *t, uint32_t inode, const char *name,
                                         size_t len)
{
    for (size_t i = 0, first; i < t->queue.count; i++) {
        struct tree_place place = t->queue.at[i].place;
        if (t->queue.at[i].inode != inode)
            continue;
        if (place.part != TREE_MADE) {
            const struct tree_source *s = &t->sources.at[place.part];
            struct tree_place found = {.part = place.part};
            if (index_lookup(s->part.index, place.position, name, len, &found.position) == 0 &&
                tree_shows(s->part.shown, found.position))
                return found;
        }
        for (size_t end = tree_find_names(t, place, &first); first < end; first++)
            if (t->names.at[first].len == len && memcmp(t->names.at[first].at, name, len) == 0)
                return t->names.at[first].target;
    }
    return TREE_TOP;
}

static int tree_conflict(struct tree *t, uint32_t directory, const char *name, size_t len,
                         const struct tree_dir *other)
{
    char what[sizeof(t->fault->what)], path[INDEX_PATH_MAX + 1] = "";
    struct tree_place first = tree_find_first(t, directory, name, len);
    if (first.part == TREE_MADE) {
        snprintf(what, sizeof(what),
                 "would have the name of a directory that other names need");
    } else if (first.part != other->place.part && other->place.part != TREE_MADE) {
        snprintf(what, sizeof(what), "is in '%.100s' and in '%.100s'", tree_name_end(t, first),
                 tree_name_end(t, other->place));
    } else {
        (void)index_path(t->sources.at[first.part].part.index, first.position, path,
                         sizeof(path), &len);
        snprintf(what, sizeof(what), "would have the name that '%.150s' has", path);
    }
    return tree_fail(t, other, -EEXIST, what, t->fault);
}

/* ---- what an entry has ---- */

/*
 * Count bytes of a part's tables that an entry refers to. Entries of a sound index share only
 * blocks, and those with their neighbours. A crafted one whose entries share longer pieces
 * would be multiplied: -EUCLEAN once they have twice its size.
 */
static int part_spend(struct tree_source *s, uint64_t bytes)
{
    if (bytes > s->left)
        return -EUCLEAN;
    s->left -= bytes;
    return 0;
}

/* The builder's number of a block. */
static int tree_take_block(struct tree *t, struct tree_source *s, const struct extent *extent,
                           uint32_t *ret_number)
{
    struct block_point point;
    struct builder_block block = {.packed_bytes = extent->packed_bytes,
                                  .block_bytes = extent->block_bytes,
                                  .codec = extent->codec};
    uint64_t bytes = index_section_bytes(s->part.index, SECTION_BLOCKS);
    if (!s->blocks)
        s->blocks = calloc(bytes / sizeof(struct disk_block), sizeof(*s->blocks));
    if (!s->blocks)
        return -ENOMEM;
    *ret_number = s->blocks[extent->block] - 1;
    if (s->blocks[extent->block])
        return 0;
    if (codec_has_point(extent->codec)) {
        int r = index_point(s->part.index, extent->block, &point);
        if (r == 0)
            r = part_spend(s, point.window_packed);
        if (r < 0)
            return r;
        block.point = &point;
    }
    if (__builtin_add_overflow(s->part.base, extent->source_offset, &block.source_offset))
        return -EUCLEAN;
    int r = builder_add_block(t->builder, &block, ret_number);
    if (r == 0)
        s->blocks[extent->block] = *ret_number + 1;
    return r;
}

/* Where the bytes of a file lie that does not lie in one range. */
static int tree_take_pieces(struct tree *t, struct tree_source *s, const struct node *node,
                            uint32_t inode)
{
    struct extent extent;
    int r = 0;
    t->pieces.count = 0;
    for (uint64_t at = 0; r == 0 && at < node->size_bytes; at += extent.length) {
        struct builder_piece piece = {.offset = at, .block = BUILDER_NO_BLOCK};
        r = index_extent(s->part.index, node->position, at, &extent);
        if (r < 0 || extent.kind == EXTENT_HOLE)
            continue;
        piece.length = extent.length;
        piece.block_offset = extent.block_offset;
        r = part_spend(s, sizeof(struct disk_block));
        if (r == 0 && extent.kind == EXTENT_BLOCK)
            r = tree_take_block(t, s, &extent, &piece.block);
        else if (r == 0 && __builtin_add_overflow(s->part.base, extent.source_offset,
                                                  &piece.source_offset))
            r = -EUCLEAN;
        if (r == 0)
            r = vector_push(&t->pieces, piece);
    }
    return r < 0 ? r : builder_set_pieces(t->builder, inode, t->pieces.at, t->pieces.count);
}

static int tree_take_xattrs(struct tree *t, struct tree_source *s, const struct node *node,
                            uint32_t inode)
{
    uint64_t cursor = 0, known;
    struct xattr x;
    int r = index_xattr_next(s->part.index, node->position, &cursor, &x);
    if (r < 0)
        return r;
    const struct map_key set = map_key_of((uintptr_t)x.name); /* where its first one lies */
    if (map_get(&t->xattrs, set, &known) == 0)
        return builder_share_xattrs(t->builder, inode, (uint32_t)known);
    for (; r == 0; r = index_xattr_next(s->part.index, node->position, &cursor, &x)) {
        r = part_spend(s, x.name_len + x.value_len);
        if (r == 0)
            r = builder_add_xattr(t->builder, inode, x.name, x.name_len, x.value, x.value_len);
        if (r < 0)
            return r;
    }
    return r == -ENOENT ? map_put(&t->xattrs, set, inode) : r;
}

static int tree_take_sum(struct tree *t, struct tree_source *s, const struct node *node,
                         uint32_t inode)
{
    uint64_t sum;
    int r = index_sum(s->part.index, node->position, &sum);
    if (r < 0)
        return r == -ENODATA ? 0 : r;
    if (t->mixes_sums)
        sum = checksum_mixed(index_info(s->part.index)->sum_kind, sum);
    return builder_set_sum(t->builder, inode, sum);
}

/* All that an inode has besides its record. */
static int tree_fill_inode(struct tree *t, struct tree_source *s, const struct node *node,
                           uint32_t inode)
{
    int r = node->has_xattrs ? tree_take_xattrs(t, s, node, inode) : 0;
    if (r == 0 && S_ISREG(node->mode) && node->has_pieces)
        r = tree_take_pieces(t, s, node, inode);
    if (r == 0 && S_ISREG(node->mode) && t->has_sums)
        r = tree_take_sum(t, s, node, inode);
    return r;
}

/* Where the bytes of a file lie, and where a symbolic link leads. */
static int part_describe(struct tree_source *s, struct node *node)
{
    struct extent extent;
    int r = 0;
    node->header_offset = FAULT_NO_OFFSET;
    if (S_ISLNK(node->mode)) {
        r = index_symlink(s->part.index, node->position, &node->link, &node->link_len);
        return r < 0 ? r : part_spend(s, node->link_len);
    }
    if (!S_ISREG(node->mode) || node->size_bytes == 0)
        return 0;
    r = index_extent(s->part.index, node->position, 0, &extent);
    if (r == 0 && (extent.kind != EXTENT_STORED || !extent.is_last))
        node->has_pieces = true;
    else if (r == 0 &&
             __builtin_add_overflow(s->part.base, extent.source_offset, &node->data_offset))
        r = -EUCLEAN;
    return r;
}

/* ---- the walk ---- */

/* Add an entry to a directory of the new tree; its own entries come later. */
static int tree_take(struct tree *t, uint32_t directory, const char *name, size_t len,
                     struct tree_place target, uint32_t line)
{
    struct tree_place from = target;
    struct tree_dir entry = {.place = target, .line = line};
    struct fault why = {0};
    struct node node = {0};
    if (target.part == TREE_MADE)
        from = (struct tree_place){t->made.at[target.position].part, INDEX_ROOT};
    struct tree_source *s = &t->sources.at[from.part];
    int r = index_node(s->part.index, from.position, &node);
    bool has_names = r == 0 && !S_ISDIR(node.mode) && (node.nlink > 1 || s->puts > 1);
    uint32_t *known = has_names ? &s->inodes[node.position] : NULL;
    entry.inode = known ? *known : 0;
    bool is_new = entry.inode == 0;
    if (r == 0 && is_new)
        r = part_describe(s, &node);
    if (r == 0)
        r = builder_add_in(t->builder, directory, name, len, is_new ? &node : NULL, &why,
                           &entry.inode);
    if (r == 0 && known)
        *known = entry.inode;
    if (r == 0 && is_new)
        r = tree_fill_inode(t, s, &node, entry.inode);
    if (r >= 0)
        return S_ISDIR(node.mode) ? vector_push(&t->queue, entry) : 0;
    if (r == -EEXIST)
        return s->part.gives_way ? 0 : tree_conflict(t, directory, name, len, &entry);
    if (r == -ENAMETOOLONG) { /* a member that the new tree can't hold */
        struct fault left_out = {0};
        entry.line = 0;
        tree_fail(t, &entry, r, why.what, &left_out);
        return builder_leave_out(t->builder, &left_out);
    }
    return tree_fail(t, &entry, r,
                     r == -EUCLEAN ? "its entry in the index is damaged"
                     : why.err     ? why.what
                                   : fault_errno(r),
                     t->fault);
}

/* Give the root of the new tree the attributes of a part's, and walk. */
static int tree_walk(struct tree *t)
{
    uint32_t part = t->made.at[0].part, inode;
    struct tree_source *s = part == NO_PART ? NULL : &t->sources.at[part];
    struct node node = {0};
    int r = s ? index_node(s->part.index, INDEX_ROOT, &node) : 0;
    if (s && r == 0 && !S_ISDIR(node.mode))
        r = -EUCLEAN;
    if (s && r == 0)
        r = part_describe(s, &node);
    if (s && r == 0)
        r = builder_add(t->builder, ".", 1, &node, t->fault, &inode);
    if (s && r == 0)
        r = tree_fill_inode(t, s, &node, inode);
    if (r < 0)
        return r == -EUCLEAN ? tree_damaged(t, s) : r;
    if (t->names.count > 0)
        qsort(t->names.at, t->names.count, sizeof(*t->names.at), tree_by_place);
    /* names come last, as everywhere */
    r = vector_push(&t->queue, (struct tree_dir){.place = TREE_TOP});
    for (size_t i = 0; r == 0 && i < t->queue.count; i++) {
        const struct tree_dir dir = t->queue.at[i];
        const struct tree_place place = dir.place;
        const char *name, *last = "";
        size_t len, last_len = 0, put = 0, end = 0;
        uint32_t first = 0, count = 0;
        s = place.part == TREE_MADE ? NULL : &t->sources.at[place.part];
        /* first the place's own entries, which must be in order */
        r = s ? index_children(s->part.index, place.position, &first, &count) : 0;
        for (uint32_t at = first; r == 0 && at < first + count; at++) {
            if (!tree_shows(s->part.shown, at))
                continue;
            r = index_name(s->part.index, at, &name, &len);
            if (r < 0 || bytes_compare(last, last_len, name, len) >= 0)
                return tree_damaged(t, s);
            r = tree_take(t, dir.inode, name, len, (struct tree_place){place.part, at},
                          dir.line);
            last = name;
            last_len = len;
        }
        if (s && r == -EUCLEAN)
            return tree_damaged(t, s);
        if (r == 0 && t->names.count > 0)
            end = tree_find_names(t, place, &put);
        for (; r == 0 && put < end; put++) {
            const struct tree_name *n = &t->names.at[put];
            r = tree_take(t, dir.inode, n->at, n->len, n->target, n->line);
        }
    }
    return r;
}

/* ---- the index ---- */

int tree_write(struct tree *t, struct builder_header *header, int fd, struct fault *fault)
{
    enum sum_kind first = SUM_XXH3;
    bool differ = false; /* some parts lack sums, or have another kind */
    uint64_t ignored;
    int r = 0;
    t->fault = fault;
    builder_set_archive_size(t->builder, header->archive_bytes);
    header->codec = CODEC_NONE;
    header->block_bytes = 0;
    for (size_t i = 0; r == 0 && i < t->sources.count; i++) {
        struct tree_source *s = &t->sources.at[i];
        const struct index_info *info = index_info(s->part.index);
        header->block_bytes = max_u32(header->block_bytes, info->block_bytes);
        first = i == 0 ? info->sum_kind : first;
        differ = differ || !info->has_some_sums || info->sum_kind != first;
        t->has_sums = t->has_sums || info->has_some_sums;
        s->left = 2 * info->image_bytes;
        s->inodes = calloc(info->entries, sizeof(*s->inodes));
        if (!s->inodes)
            return -ENOMEM;
        /* what a part's own index lacks is missing in the new one, too */
        r = s->part.forgets_left_out ? 0 : builder_leave_out_as(t->builder, s->part.index);
        r = r == -EUCLEAN ? tree_damaged(t, s) : r;
    }
    t->mixes_sums = t->has_sums && differ;
    header->has_sums = t->has_sums;
    header->sum_kind = t->mixes_sums ? SUM_MIXED : t->has_sums ? first : SUM_XXH3;
    if (r == 0)
        r = tree_walk(t);
    if (r == 0)
        r = builder_write(t->builder, header, fd, 0, fault, &ignored);
    for (size_t i = 0; r == 0 && i < t->sources.count; i++)
        if (index_is_lost(t->sources.at[i].part.index))
            r = tree_damaged(t, &t->sources.at[i]);
    return r;
}
