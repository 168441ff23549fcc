/*
 * Grafting, see graft.h.
 *
 * The tree is walked depth first, with a stack on the heap. Names go straight into directories
 * of the builder; no path is resolved. So the cost of an entry is that of reading it, one probe
 * of the builder's table of names, and its data.
 *
 * A block is recognised by its place in the archive, size and codec; one that a file fills
 * completely is rarely shared, and not looked up.
 *
 * A hostile index may let a million entries refer to the same list of a million ranges. In an
 * index that the builder made, no two inodes share such a thing. So what is copied is counted,
 * and may not be more than the index has.
 */
#include "graft.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder_copy.h"
#include "map.h"
#include "vector.h"

#define EXTENT_COST 8u /* bytes of the index that an extent has at least */

/* An archive that was grafted. Inodes of the builder from `first_inode` on come from it. */
struct graft_part {
    uint32_t first_inode;
    const char *name;
    bool has_sums;
    enum sum_kind sum_kind;
};

struct grafter {
    struct builder *builder;
    VECTOR(struct graft_part) parts;
    uint32_t next_inode; /* no inode of an archive so far is as large */
    bool has_root;       /* an archive gave the root its attributes */
    struct map blocks;
    uint32_t block_bytes;
};

struct grafting {
    struct grafter *grafter;
    struct graft graft;
    struct fault *fault;
    struct fault own_fault; /* if the caller wants none */
    uint32_t *inode_of;     /* by position: the builder's inode plus 1, or 0 */
    struct map xattr_sets;  /* the builder's inode that has a set, by the set's address */
    VECTOR(struct builder_piece) pieces;
    uint64_t left_bytes; /* that may still be copied */
    bool takes_sums;
};

int grafter_new(struct builder *builder, struct grafter **ret_grafter)
{
    struct grafter *g = calloc(1, sizeof(*g));
    if (!g)
        return -ENOMEM;
    g->builder = builder;
    g->next_inode = 1; /* that of the root is nobody's */
    *ret_grafter = g;
    return 0;
}

void grafter_free(struct grafter *g)
{
    if (!g)
        return;
    vector_free(&g->parts);
    map_free(&g->blocks);
    free(g);
}

uint32_t grafter_entries(const struct grafter *g)
{
    return builder_entries(g->builder);
}

static enum sum_kind grafter_sum_kind(const struct grafter *g)
{
    struct sum_kinds kinds = {0};
    for (size_t i = 0; i < g->parts.count; i++)
        sum_kinds_add(&kinds, g->parts.at[i].has_sums, g->parts.at[i].sum_kind);
    return sum_kinds_together(&kinds);
}

void grafter_finish(struct grafter *g, struct builder_header *header)
{
    header->codec = CODEC_NONE;
    header->block_bytes = g->block_bytes;
    header->sum_kind = grafter_sum_kind(g);
    for (size_t i = 0; header->sum_kind == SUM_MIXED && i < g->parts.count; i++) {
        const struct graft_part *part = &g->parts.at[i];
        uint32_t end = i + 1 < g->parts.count ? part[1].first_inode : UINT32_MAX;
        builder_mix_sums(g->builder, part->first_inode, end, part->sum_kind);
    }
}

/* ---- one archive ---- */

static void grafting_note_info(struct grafting *s, const struct index_info *info)
{
    struct grafter *g = s->grafter;
    if (info->block_bytes > g->block_bytes)
        g->block_bytes = info->block_bytes;
    s->takes_sums = info->has_some_sums;
    s->left_bytes = info->image_bytes;
}

int grafting_begin(struct grafter *g, const struct graft *graft, struct fault *fault,
                   struct grafting **ret_grafting)
{
    const struct index_info *info = index_info(graft->index);
    struct grafting *s = calloc(1, sizeof(*s));
    uint32_t *inode_of = calloc(info->entries, sizeof(*inode_of));
    struct graft_part part = {g->next_inode, graft->name ? graft->name : "",
                              info->has_some_sums, info->sum_kind};
    if (!s || !inode_of || vector_push(&g->parts, part) < 0) {
        free(s);
        free(inode_of);
        return -ENOMEM;
    }
    *s = (struct grafting){.grafter = g, .graft = *graft, .inode_of = inode_of};
    s->fault = fault ? fault : &s->own_fault;
    grafting_note_info(s, info);
    *ret_grafting = s;
    return 0;
}

void grafting_end(struct grafting *s)
{
    if (!s)
        return;
    free(s->inode_of);
    map_free(&s->xattr_sets);
    vector_free(&s->pieces);
    free(s);
}

/* Record an error about the entry at a position, by its path in the archive. */
static int grafting_fail(struct grafting *s, uint32_t position, int err, const char *what)
{
    char path[INDEX_PATH_MAX + 1] = ""; /* the fault keeps its beginning */
    size_t len;
    if (err == -ENOMEM)
        return err;
    (void)index_path(s->graft.index, position, path, sizeof(path), &len);
    return fault_set(s->fault, err, path, FAULT_NO_OFFSET, "%s", what);
}

static int grafting_damaged(struct grafting *s, uint32_t position, int err)
{
    return grafting_fail(s, position, err, "its entry in the index is damaged");
}

/* Count bytes that are copied. */
static int grafting_spend(struct grafting *s, uint64_t bytes)
{
    if (bytes > s->left_bytes)
        return -EUCLEAN;
    s->left_bytes -= bytes;
    return 0;
}

/* ---- data ---- */

static int graft_block(struct grafting *s, const struct extent *e, uint32_t *ret_number)
{
    struct grafter *g = s->grafter;
    struct builder_block block = {
        .packed_bytes = e->packed_bytes, .block_bytes = e->block_bytes, .codec = e->codec};
    struct block_point point;
    if (__builtin_add_overflow(s->graft.base, e->source_offset, &block.source_offset))
        return -EUCLEAN;
    bool may_be_shared = e->block_offset > 0 || e->length < e->block_bytes;
    struct map_key key = {block.source_offset,
                          (uint64_t)e->packed_bytes << 32 | e->block_bytes};
    key.high |= (uint64_t)e->codec << 56; /* the builder refuses larger offsets */
    uint64_t number;
    if (may_be_shared && map_get(&g->blocks, key, &number) == 0) {
        *ret_number = (uint32_t)number;
        return 0;
    }
    int r = 0;
    if (codec_has_point(e->codec)) {
        r = index_point(s->graft.index, e->block, &point);
        if (r == 0)
            r = grafting_spend(s, point.window_packed);
        block.point = &point;
    }
    if (r == 0)
        r = builder_add_block(g->builder, &block, ret_number);
    if (r == 0 && may_be_shared)
        r = map_put(&g->blocks, key, *ret_number);
    return r;
}

/* Add an extent to the file's pieces. */
static int graft_extent(struct grafting *s, const struct extent *e)
{
    struct builder_piece piece = {
        .offset = e->offset, .length = e->length, .block = BUILDER_NO_BLOCK};
    int r = grafting_spend(s, EXTENT_COST);
    if (r < 0 || e->kind == EXTENT_HOLE)
        return r;
    if (e->kind == EXTENT_BLOCK) {
        piece.block_offset = e->block_offset;
        r = graft_block(s, e, &piece.block);
    } else if (__builtin_add_overflow(s->graft.base, e->source_offset, &piece.source_offset)) {
        r = -EUCLEAN;
    }
    return r < 0 ? r : vector_push(&s->pieces, piece);
}

static int graft_pieces(struct grafting *s, const struct node *node)
{
    s->pieces.count = 0;
    for (uint64_t at = 0; at < node->size_bytes;) {
        struct extent e;
        int r = index_extent(s->graft.index, node->position, at, &e);
        if (r == 0)
            r = graft_extent(s, &e);
        if (r < 0)
            return r;
        at += e.length;
    }
    return 0;
}

static int graft_data(struct grafting *s, const struct node *node, uint32_t inode)
{
    struct builder *b = s->grafter->builder;
    uint64_t sum;
    int r = builder_set_pieces(b, inode, s->pieces.at, s->pieces.count);
    if (r < 0 || !s->takes_sums)
        return r;
    r = index_sum(s->graft.index, node->position, &sum);
    return r == -ENODATA ? 0 : r < 0 ? r : builder_set_sum(b, inode, sum);
}

/* ---- entries ---- */

/* A set of attributes that many inodes have is read once. */
static int graft_xattrs(struct grafting *s, const struct node *node, uint32_t inode)
{
    struct builder *b = s->grafter->builder;
    struct xattr x;
    uint64_t cursor = 0, other;
    int r = node->has_xattrs ? index_xattr_next(s->graft.index, node->position, &cursor, &x)
                             : -ENOENT;
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    struct map_key set = map_key_of((uintptr_t)x.name);
    if (map_get(&s->xattr_sets, set, &other) == 0)
        return builder_share_xattrs(b, inode, (uint32_t)other);
    while (r == 0) {
        r = grafting_spend(s, x.name_len + x.value_len);
        if (r == 0)
            r = builder_add_xattr(b, inode, x.name, x.name_len, x.value, x.value_len);
        if (r == 0)
            r = index_xattr_next(s->graft.index, node->position, &cursor, &x);
    }
    return r == -ENOENT ? map_put(&s->xattr_sets, set, inode) : r;
}

static int graft_describe(struct grafting *s, const struct node *node,
                          struct builder_member *ret_member)
{
    *ret_member = (struct builder_member){
        .mode = node->mode,
        .uid = node->uid,
        .gid = node->gid,
        .rdev_major = node->rdev_major,
        .rdev_minor = node->rdev_minor,
        .mtime_sec = node->mtime_sec,
        .mtime_nsec = node->mtime_nsec,
        .header_offset = FAULT_NO_OFFSET,
    };
    if (S_ISREG(node->mode)) {
        ret_member->size_bytes = node->size_bytes;
        ret_member->data = DATA_PIECES;
        return graft_pieces(s, node);
    }
    if (!S_ISLNK(node->mode))
        return 0;
    int r = index_symlink(s->graft.index, node->position, &ret_member->symlink,
                          &ret_member->symlink_len);
    return r < 0 ? r : grafting_spend(s, ret_member->symlink_len);
}

/* The archive that an inode of the builder came from. */
static const char *graft_origin(const struct grafter *g, uint32_t inode)
{
    size_t low = 0, high = g->parts.count;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (g->parts.at[mid].first_inode <= inode)
            low = mid;
        else
            high = mid;
    }
    return g->parts.at[low].name;
}

/* The end of a name, which tells more of two shards than its beginning. */
static const char *graft_name_end(const char *name)
{
    size_t len = strlen(name);
    return len > 100 ? name + len - 100 : name;
}

/* The path in this archive of what became an inode of the builder; false: nothing of it. */
static bool graft_path_of(const struct grafting *s, uint32_t inode, char *buf, size_t size)
{
    uint32_t entries = index_info(s->graft.index)->entries;
    size_t len;
    for (uint32_t i = 0; i < entries; i++)
        if (s->inode_of[i] == inode + 1)
            return index_path(s->graft.index, i, buf, size, &len) == 0;
    return false;
}

/* The name is taken. Returns 1 if that is no conflict. */
static int graft_conflict(struct grafting *s, uint32_t position, const struct node *node,
                          const struct builder_entry *taken)
{
    if ((S_ISDIR(node->mode) && S_ISDIR(taken->mode)) || s->graft.on_conflict == GRAFT_KEEP ||
        s->inode_of[node->position] == taken->inode + 1)
        return 1;
    const struct grafter *g = s->grafter;
    char what[sizeof(s->fault->what)], other[INDEX_PATH_MAX + 1];
    if (graft_path_of(s, taken->inode, other, sizeof(other))) {
        snprintf(what, sizeof(what), "would have the name that '%.150s' has", other);
        return grafting_fail(s, position, -EEXIST, what);
    }
    snprintf(what, sizeof(what), "is in '%.100s' and in '%.100s'",
             graft_name_end(graft_origin(g, taken->inode)),
             graft_name_end(g->parts.at[g->parts.count - 1].name));
    return grafting_fail(s, position, -EEXIST, what);
}

/* A new inode of the builder, under its first name. */
static int graft_new(struct grafting *s, const struct node *node, uint32_t directory,
                     const char *name, size_t len, struct fault *fault,
                     struct builder_entry *ret_entry)
{
    struct grafter *g = s->grafter;
    struct builder_member member;
    int r = graft_describe(s, node, &member);
    if (r == 0)
        r = builder_add_child(g->builder, directory, name, len, &member, fault, ret_entry);
    if (r != 0)
        return r;
    g->next_inode = ret_entry->inode + 1;
    s->inode_of[node->position] = g->next_inode;
    if (S_ISREG(node->mode))
        r = graft_data(s, node, ret_entry->inode);
    return r < 0 ? r : graft_xattrs(s, node, ret_entry->inode);
}

static int graft_put(struct grafting *s, uint32_t position, const struct node *node,
                     uint32_t directory, const char *name, size_t len,
                     struct builder_entry *ret_entry)
{
    struct fault why = {0};
    uint32_t known = S_ISDIR(node->mode) ? 0 : s->inode_of[node->position];
    /* Copy nothing of an entry that stays out: it would cost blocks and bytes. */
    if (s->graft.on_conflict == GRAFT_KEEP &&
        builder_find_child(s->grafter->builder, directory, name, len, ret_entry) == 1)
        return graft_conflict(s, position, node, ret_entry);
    int r = known ? builder_link_child(s->grafter->builder, directory, name, len, known - 1,
                                       &why, ret_entry)
                  : graft_new(s, node, directory, name, len, &why, ret_entry);
    if (r == 1)
        return graft_conflict(s, position, node, ret_entry);
    if (r < 0)
        return why.err ? grafting_fail(s, position, r, why.what)
                       : grafting_damaged(s, position, r);
    return 0;
}

int grafting_put(struct grafting *s, uint32_t position, uint32_t directory, const char *name,
                 size_t len, struct builder_entry *ret_entry)
{
    struct node node;
    int r = index_node(s->graft.index, position, &node);
    return r < 0 ? grafting_damaged(s, position, r)
                 : graft_put(s, position, &node, directory, name, len, ret_entry);
}

int grafting_put_root(struct grafting *s)
{
    struct node node;
    struct builder_member member;
    uint32_t inode;
    int r = index_node(s->graft.index, INDEX_ROOT, &node);
    if (r == 0 && !S_ISDIR(node.mode))
        r = -EUCLEAN;
    if (r == 0)
        r = graft_describe(s, &node, &member);
    if (r == 0)
        r = builder_add(s->grafter->builder, "", 0, &member, s->fault, &inode);
    if (r == 0)
        r = graft_xattrs(s, &node, inode);
    s->grafter->has_root = true;
    return r < 0 ? grafting_damaged(s, INDEX_ROOT, r) : 0;
}

/* ---- a whole tree ---- */

#define NOT_YET UINT32_MAX /* a directory that is made when something in it is taken */

struct graft_level {
    uint32_t position;  /* of the directory */
    uint32_t next, end; /* children still to come */
    uint32_t directory; /* the builder's; NOT_YET */
    size_t path_len;    /* of its path, with a slash behind it unless it is the root */
};

struct graft_walk {
    struct grafting *s;
    VECTOR(struct graft_level) levels;
    VECTOR(char) path; /* only where `place` wants it */
};

static int graft_enter(struct graft_walk *w, uint32_t position, uint32_t directory,
                       size_t path_len)
{
    struct graft_level level = {
        .position = position, .directory = directory, .path_len = path_len};
    uint32_t count;
    int r = index_children(w->s->graft.index, position, &level.next, &count);
    if (r < 0)
        return grafting_damaged(w->s, position, r);
    level.end = level.next + count;
    return vector_push(&w->levels, level);
}

/* A member that the new tree can't hold. */
static int graft_leave_out(struct graft_walk *w, int err)
{
    struct fault *fault = w->s->fault;
    if (err != -ENAMETOOLONG)
        return err;
    int r = builder_leave_out(w->s->grafter->builder, fault);
    *fault = (struct fault){0};
    return r;
}

/* Make the directories that turn out to be needed only now. 1: another entry has a name. */
static int graft_make_way(struct graft_walk *w)
{
    size_t i = w->levels.count;
    while (w->levels.at[i - 1].directory == NOT_YET)
        i--;
    for (; i < w->levels.count; i++) {
        struct graft_level *level = &w->levels.at[i];
        struct builder_entry entry;
        const char *name;
        size_t len;
        int r = index_name(w->s->graft.index, level->position, &name, &len);
        if (r == 0)
            r = grafting_put(w->s, level->position, w->levels.at[i - 1].directory, name, len,
                             &entry);
        if (r < 0)
            return r;
        if (!S_ISDIR(entry.mode)) {
            for (size_t j = i; j < w->levels.count; j++)
                w->levels.at[j].next = w->levels.at[j].end;
            return 1;
        }
        level->directory = entry.number;
    }
    return 0;
}

/* Decide about the entry, whose path is left in `path`. */
static int graft_ask(struct graft_walk *w, size_t path_len, uint32_t position, const char *name,
                     size_t len, uint32_t mode)
{
    const struct graft *graft = &w->s->graft;
    if (!graft->place)
        return GRAFT_TAKE;
    if (path_len + len > INDEX_PATH_MAX)
        return GRAFT_LEAVE_OUT; /* no program can name it, and the archive's index says so */
    w->path.count = path_len;
    if (vector_append(&w->path, name, len) < 0 || vector_push(&w->path, '\0') < 0)
        return -ENOMEM;
    int r = graft->place(graft->ctx, w->path.at, path_len + len, position, mode);
    w->path.at[path_len + len] = '/';
    return r;
}

/* Take the next child of the innermost directory, and go on in it if it is one. */
static int graft_step(struct graft_walk *w)
{
    struct grafting *s = w->s;
    struct graft_level *level = &w->levels.at[w->levels.count - 1];
    if (level->next == level->end) {
        w->levels.count--;
        return 0;
    }
    uint32_t position = level->next++;
    size_t path_len = level->path_len, len;
    struct builder_entry entry = {.number = NOT_YET};
    const char *name;
    struct node node;
    int r = index_name(s->graft.index, position, &name, &len);
    if (r == 0)
        r = index_node(s->graft.index, position, &node);
    if (r < 0)
        return grafting_damaged(s, position, r);
    int place = graft_ask(w, path_len, position, name, len, node.mode);
    if (place <= GRAFT_LEAVE_OUT)
        return place;
    if (place == GRAFT_TAKE) {
        r = graft_make_way(w);
        if (r == 0)
            r = graft_put(s, position, &node, w->levels.at[w->levels.count - 1].directory, name,
                          len, &entry);
    }
    if (r < 0)
        return graft_leave_out(w, r);
    bool goes_on = S_ISDIR(node.mode) && (entry.number == NOT_YET || S_ISDIR(entry.mode));
    return goes_on ? graft_enter(w, position, entry.number, path_len + len + 1) : 0;
}

/* The directory that takes the root. 1: there is none, because another entry has its name. */
static int graft_find_root(struct grafting *s, uint32_t *ret_directory)
{
    struct builder_entry at = {.number = BUILDER_ROOT};
    const char *under = s->graft.under ? s->graft.under : "";
    while (*(under += strspn(under, "/"))) {
        size_t len = strcspn(under, "/");
        int r = grafting_put(s, INDEX_ROOT, at.number, under, len, &at);
        if (r < 0)
            return r;
        if (!S_ISDIR(at.mode))
            return 1;
        under += len;
    }
    *ret_directory = at.number;
    return at.number == BUILDER_ROOT && !s->grafter->has_root ? grafting_put_root(s) : 0;
}

int graft_copy_left_out(struct builder *b, const struct index *index)
{
    uint64_t cursor = 0, count = index_left_out(index), known = 0;
    struct fault why;
    int r = 0;
    while (known < count && (r = index_left_out_next(index, &cursor, &why)) == 0) {
        r = builder_leave_out(b, &why);
        if (r < 0)
            return r;
        known++;
    }
    builder_leave_out_xattrs(b, index_xattrs_left_out(index));
    return r < 0 && r != -ENOENT ? r : builder_leave_out_more(b, count - known);
}

/* The path of the directory where a walk begins, with its slash. */
static int graft_start_path(struct graft_walk *w, uint32_t position)
{
    size_t len;
    if (position == INDEX_ROOT)
        return 0;
    if (vector_reserve(&w->path, INDEX_PATH_MAX + 2) < 0)
        return -ENOMEM;
    int r = index_path(w->s->graft.index, position, w->path.at, INDEX_PATH_MAX + 1, &len);
    if (r < 0)
        return grafting_damaged(w->s, position, r);
    w->path.at[len] = '/';
    w->path.count = len + 1;
    return 0;
}

int grafting_put_tree(struct grafting *s, uint32_t position, uint32_t directory)
{
    struct graft_walk w = {.s = s};
    int r = graft_start_path(&w, position);
    if (r == 0)
        r = graft_enter(&w, position, directory, w.path.count);
    while (r == 0 && w.levels.count > 0)
        r = graft_step(&w);
    vector_free(&w.levels);
    vector_free(&w.path);
    return r;
}

static int graft_tree(struct grafting *s)
{
    uint32_t directory;
    int r = graft_find_root(s, &directory);
    if (r == 0)
        r = grafting_put_tree(s, INDEX_ROOT, directory);
    if (r != 0 || s->graft.is_again)
        return r < 0 ? r : 0;
    int left_out = graft_copy_left_out(s->grafter->builder, s->graft.index);
    return left_out == -EUCLEAN ? grafting_damaged(s, INDEX_ROOT, left_out) : left_out;
}

int graft_add(struct grafter *g, const struct graft *graft, struct fault *fault)
{
    struct grafting *s;
    int r = grafting_begin(g, graft, fault, &s);
    if (r < 0)
        return r;
    r = graft_tree(s);
    grafting_end(s);
    return r;
}
