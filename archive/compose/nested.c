/*
 * A member that turns out to be an archive that can be read in place is hidden, and the root of
 * its tree put beside it. All indexes stay open until the tree is written.
 *
 * The index of an inner archive that carries none is made as any other, written to the
 * scratch file and read back into memory. So there is one file for any number of archives,
 * since the sandbox can open no other.
 */
#include "nested.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "map.h"
#include "numbers.h"
#include "path.h"
#include "selection.h"
#include "source_ops.h"
#include "source_slice.h"
#include "vector.h"
#include "syscalls.h"

#define SHARING_MOST 8u /* equal members may share their bytes, as mksquashfs makes them */

/* An archive whose tree is being added. */
struct nested_level {
    const struct index *index;
    uint64_t base;     /* of its bytes in the outermost archive */
    const char *under; /* its directory in the new tree */
    unsigned depth;
    struct index *owned;      /* the index, of an inner archive */
    uint32_t part;            /* of the tree */
    VECTOR(uint32_t) members; /* that may be archives */
};

struct nested_walk {
    const struct nested *nested;
    struct tree *tree;
    struct fault *fault;
    uint64_t left; /* members that stay files; the first of them, and why: */
    char first[160];
    const char *why;
    uint64_t left_bytes[NESTED_DEPTH + 1]; /* that archives of this depth may still have */
    uint64_t unpacked_left;                /* bytes that may still be decompressed */
};

int nested_scratch_new(struct source **ret_source)
{
    auto_close int fd = syscall_memfd("onepot-nested", MFD_CLOEXEC);
    if (fd < 0)
        return fd;
    return source_from_fd(steal_fd(&fd), "memory", ret_source);
}

/* ---- what stays a file ---- */

static int nested_path(const struct nested_level *level, uint32_t position,
                       char path[2 * INDEX_PATH_MAX])
{
    size_t n = strlen(level->under), ignored;
    if (n >= INDEX_PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(path, level->under, n);
    if (n > 0)
        path[n++] = '/';
    return index_path(level->index, position, path + n, INDEX_PATH_MAX, &ignored);
}

static void nested_leave(struct nested_walk *w, const struct nested_level *level,
                         uint32_t position, const char *why)
{
    char path[2 * INDEX_PATH_MAX];
    if (w->left++ > 0)
        return;
    w->why = why;
    if (nested_path(level, position, path) == 0)
        snprintf(w->first, sizeof(w->first), "%.*s", (int)sizeof(w->first) - 1, path);
}

/* ---- which members ---- */

/* Is the directory's name free? Of two members that want one name, the first gets it. */
static int nested_claim_name(const struct nested_level *level, struct map *names,
                             uint32_t position, const char *name, size_t len)
{
    uint32_t directory, there;
    int r = index_parent(level->index, position, &directory);
    if (r < 0)
        return r;
    r = index_lookup(level->index, directory, name, len, &there);
    if (r == 0 && there != position)
        return -EEXIST;
    return r < 0 && r != -ENOENT
               ? r
               : map_put(names, (struct map_key){directory, XXH3_64bits(name, len)}, 0);
}

/* The range of a member that is stored in one. -ENOTSUP: it is not; else as index_extent. */
static int nested_range(const struct nested_level *level, uint32_t position,
                        struct extent *ret_extent)
{
    int r = index_extent(level->index, position, 0, ret_extent);
    return r == 0 && (ret_extent->kind != EXTENT_STORED || !ret_extent->is_last) ? -ENOTSUP : r;
}

/* Note a member that may be an archive. */
static int nested_consider(struct nested_walk *w, struct nested_level *level, struct map *names,
                           uint32_t position)
{
    char path[INDEX_PATH_MAX + 1];
    const char *glob = w->nested->glob, *name;
    struct extent extent;
    uint32_t inode;
    size_t len, ignored;
    int r = index_name(level->index, position, &name, &len);
    const size_t stem = r < 0 ? 0 : backend_stem(name, len);
    if (r < 0 || (glob ? index_path(level->index, position, path, sizeof(path), &ignored) < 0 ||
                             !selection_matches(glob, path, false)
                       : stem == len))
        return r;
    r = index_inode_position(level->index, position, &inode);
    if (r < 0 || inode != position) /* of several names, the first */
        return r;
    r = nested_range(level, position, &extent);
    if (r == -EINVAL || r == -ENXIO) /* it is no file, or empty */
        return 0;
    if (r == -ENOTSUP) {
        nested_leave(w, level, position, "it is compressed, or in pieces");
        return 0;
    }
    if (r == 0 && level->depth == NESTED_DEPTH) {
        nested_leave(w, level, position, "it lies too deep");
        return 0;
    }
    if (r == 0)
        r = nested_claim_name(level, names, position, name, stem);
    if (r == -EEXIST) {
        nested_leave(w, level, position, "the name of its directory is taken");
        return 0;
    }
    return r < 0 ? r : vector_push(&level->members, position);
}

static int nested_find(struct nested_walk *w, struct nested_level *level)
{
    const uint32_t entries = index_info(level->index)->entries;
    struct map names = {0};
    int r = 0;
    for (uint32_t position = INDEX_ROOT + 1; r == 0 && position < entries; position++)
        r = nested_consider(w, level, &names, position);
    map_free(&names);
    return r;
}

/* ---- the index of one ---- */

/* Write an index to the scratch file, and open it: it is read, as others may write there. */
static int nested_scratch_index(struct source *scratch, struct builder *builder,
                                const struct builder_header *header, struct fault *fault,
                                struct index **ret_index)
{
    uint64_t bytes;
    int fd = source_fd(scratch);
    if (ftruncate(fd, 0) < 0) /* gaps in an image must be zeros */
        return -errno;
    int r = builder_write(builder, header, fd, 0, fault, &bytes);
    if (r < 0)
        return r;
    scratch->size_bytes = bytes; /* the sandbox can't open it anew */
    return index_open(scratch, 0, bytes, fault, ret_index);
}

static int nested_make_index(struct nested_walk *w, const struct backend *backend,
                             struct source *source, const char *compression,
                             struct fault *fault, struct index **ret_index)
{
    const struct nested *n = w->nested;
    struct builder_header header = {.format = backend->number,
                                    .archive_bytes = source_size(source),
                                    .ignores_zeros = n->ignores_zeros};
    struct builder *builder;
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    builder_set_archive_size(builder, header.archive_bytes);
    r = !compression ? backend->index(source, builder, &header, n->progress, fault)
        : backend->stream
            ? backend->stream->index_packed(source, compression, NULL, &w->unpacked_left,
                                            builder, &header, n->progress, fault)
            : -ENOTSUP;
    n->progress->note[0] = '\0'; /* it would be taken for one on the outer archive */
    n->progress->beats++;
    if (r == 0)
        r = nested_scratch_index(n->scratch, builder, &header, fault, ret_index);
    builder_free(builder);
    return builder_may_leave_out(r) ? -EUCLEAN : r;
}

/*
 * The index in the archive, or a new one. -ENOMSG: it is no archive; -ENOTSUP: none that can be
 * read in place; -E2BIG: it and those before it unpack to too much.
 */
static int nested_open_index(struct nested_walk *w, struct source *source, struct fault *fault,
                             struct index **ret_index)
{
    const struct backend *backend;
    const char *compression;
    struct embedded_index where;
    int r = backend_find(source, fault, &backend, &compression);
    if (r < 0)
        return r;
    if (backend->trailer && backend->trailer->find) {
        struct fault ignored = {0};
        r = backend->trailer->find(source, &ignored, &where);
        if (r == 0)
            r = index_open(source, where.offset, where.length, &ignored, ret_index);
        if (r == 0 && index_info(*ret_index)->archive_bytes <= source_size(source))
            return 0;
        if (r == 0)
            index_close(*ret_index);
        *ret_index = NULL;
        backend = backend->trailer->without_index;
        r = backend_compression(backend, source, &compression);
        if (r < 0)
            return r;
    }
    return nested_make_index(w, backend, source, compression, fault, ret_index);
}

/* ---- the tree ---- */

static int nested_add_tree(struct nested_walk *w, struct nested_level *level);

/* Report an error with the member's path in the outer archive and its place there. */
static int nested_fail(struct nested_walk *w, const char *path, uint64_t base, int err,
                       const struct fault *why)
{
    uint64_t at = why->offset == FAULT_NO_OFFSET || !why->err ? base : base + why->offset;
    if (err == -ENOMEM)
        return err;
    if (err == -EFBIG) /* of the index, not of the archive */
        return fault_set(w->fault, err, path, FAULT_NO_OFFSET, "%s", why->what);
    fault_set(w->fault, err, path, at, "is an archive that can't be read: %s%s%s", why->member,
              why->member[0] ? ": " : "", why->err ? why->what : fault_errno(err));
    fault_advise(w->fault, "copy it again, or name the others: --nested=GLOB");
    return err;
}

/* Put an archive's root in the place of the member that it is. */
static int nested_replace(struct nested_walk *w, const struct nested_level *level,
                          uint32_t position, uint32_t part)
{
    struct tree_place directory = {.part = level->part}, root = {part, INDEX_ROOT};
    const char *name;
    size_t len;
    int r = index_name(level->index, position, &name, &len);
    if (r == 0)
        r = index_parent(level->index, position, &directory.position);
    return r < 0
               ? r
               : tree_put(w->tree, directory, name, backend_stem(name, len), root, 0, w->fault);
}

/* 0; 1: it stays a file. */
static int nested_add_member(struct nested_walk *w, struct nested_level *level,
                             uint32_t position)
{
    char path[2 * INDEX_PATH_MAX];
    struct extent extent;
    struct fault why = {0};
    struct index *index = NULL;
    struct source *slice = w->nested->source;
    int r = nested_path(level, position, path);
    if (r == -ENAMETOOLONG || (r == 0 && strlen(path) > INDEX_PATH_MAX)) {
        nested_leave(w, level, position, "its path is too long");
        return 1;
    }
    if (r == 0)
        r = nested_range(level, position, &extent);
    if (r < 0)
        return r;
    uint64_t base = level->base + extent.source_offset,
             *left = &w->left_bytes[level->depth + 1];
    if (extent.length > *left)
        return fault_set(w->fault, -EUCLEAN, path, base,
                         "overlaps other archives: there are more bytes in them than around");
    *left -= extent.length;
    r = source_slice(&slice, base, extent.length);
    if (r < 0)
        return r;
    r = nested_open_index(w, slice, &why, &index);
    source_unslice(&slice);
    if (r == -ENOTSUP)
        nested_leave(w, level, position, "it is one compressed stream");
    if (r == -E2BIG)
        nested_leave(w, level, position,
                     "compressed archives unpack to too much (more: --max-ratio=N or off)");
    if (r == -ENOTSUP || r == -E2BIG || r == -ENOMSG)
        return 1;
    if (r < 0)
        return nested_fail(w, path, base, r, &why);
    const char *name = path_base(path);
    path[(size_t)(name - path) + backend_stem(name, strlen(name))] = '\0';
    struct nested_level inner = {
        .index = index, .owned = index, .base = base, .under = path, .depth = level->depth + 1};
    r = nested_add_tree(w, &inner);
    return r < 0 ? r : nested_replace(w, level, position, inner.part);
}

static int nested_add_tree(struct nested_walk *w, struct nested_level *level)
{
    size_t bytes = index_info(level->index)->entries / 8 + 1;
    const struct tree_part part = {.index = level->index,
                                   .name = w->nested->name,
                                   .base = level->base,
                                   .at_root = level->depth == 0,
                                   .shown = malloc(bytes),
                                   .owned = level->owned};
    int r = tree_add(w->tree, &part, &level->part);
    if (r == 0 && !part.shown)
        r = -ENOMEM;
    if (r == 0)
        memset(part.shown, 0xff, bytes);
    if (r == 0)
        r = nested_find(w, level);
    for (size_t i = 0; r >= 0 && i < level->members.count; i++) {
        uint32_t position = level->members.at[i];
        r = nested_add_member(w, level, position);
        if (r == 0)
            part.shown[position / 8] &= (uint8_t) ~(1u << position % 8);
    }
    vector_free(&level->members);
    return r < 0 ? r : 0;
}

int nested_add(const struct nested *nested, struct tree *tree, struct fault *fault)
{
    char *note = nested->progress->note;
    struct nested_level outer = {.index = nested->index, .under = ""};
    struct nested_walk w = {
        .nested = nested, .tree = tree, .fault = fault, .unpacked_left = nested->most_bytes};
    for (size_t i = 0; i <= NESTED_DEPTH; i++)
        w.left_bytes[i] =
            min_u64(source_size(nested->source), UINT64_MAX / SHARING_MOST) * SHARING_MOST;
    int r = nested_add_tree(&w, &outer);
    if (r == -EUCLEAN)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "its index is damaged");
    if (r == 0 && w.left == 1)
        snprintf(note, sizeof(nested->progress->note), "%s stays a file: %s", w.first, w.why);
    else if (r == 0 && w.left > 1)
        snprintf(note, sizeof(nested->progress->note),
                 "%" PRIu64 " archives in it stay files; the first is %s: %s", w.left, w.first,
                 w.why);
    return r;
}
