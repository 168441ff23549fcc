/*
 * What the suites of builder and index share: short ways to add members, to open what
 * was built, and a walk that asks an index everything it can be asked.
 */
#ifndef ONEPOT_INDEX_HELPER_H
#define ONEPOT_INDEX_HELPER_H

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "builder.h"
#include "format_numbers.h"
#include "index.h"
#include "index_format.h"
#include "suite.h"

static const struct builder_header tar_header = {
    .format = FORMAT_TAR,
    .archive_bytes = UINT64_C(1) << 40,
};

static inline struct builder *new_builder(void)
{
    struct builder *b = NULL;
    ck_assert_int_eq(builder_new(&b), 0);
    return b;
}

static inline int try_add(struct builder *b, const char *path, const struct node *m,
                          struct fault *fault, uint32_t *ret_inode)
{
    return builder_add(b, path, strlen(path), m, fault, ret_inode);
}

static inline uint32_t add(struct builder *b, const char *path, const struct node *m)
{
    struct fault fault = {0};
    uint32_t inode = UINT32_MAX;
    int r = try_add(b, path, m, &fault, &inode);
    ck_assert_msg(r == 0, "%s: %d %s", path, r, fault.what);
    return inode;
}

static inline uint32_t add_file(struct builder *b, const char *path, uint64_t offset,
                                uint64_t size)
{
    return add(
        b, path,
        &(struct node){.mode = S_IFREG | 0644, .data_offset = offset, .size_bytes = size});
}

static inline uint32_t add_block(struct builder *b, uint64_t source_offset,
                                 uint32_t packed_bytes, uint32_t block_bytes)
{
    const struct builder_block block = {source_offset, packed_bytes, block_bytes};
    uint32_t number = UINT32_MAX;
    ck_assert_int_eq(builder_add_block(b, &block, &number), 0);
    return number;
}

static inline struct builder_piece stored_at(uint64_t offset, uint64_t length,
                                             uint64_t source_offset)
{
    return (struct builder_piece){offset, length, source_offset, BUILDER_NO_BLOCK};
}

static inline struct builder_piece packed_at(uint64_t offset, uint64_t length, uint32_t block,
                                             uint32_t block_offset)
{
    return (struct builder_piece){offset, length, 0, block, block_offset};
}

/* Add a file whose pieces are set by a later call. */
static inline uint32_t add_unset(struct builder *b, const char *path, uint64_t size)
{
    return add(b, path,
               &(struct node){.mode = S_IFREG | 0600, .has_pieces = true, .size_bytes = size});
}

static inline uint32_t add_pieces(struct builder *b, const char *path, uint64_t size,
                                  const struct builder_piece *pieces, size_t count)
{
    uint32_t inode = add_unset(b, path, size);
    ck_assert_int_eq(builder_set_pieces(b, inode, pieces, count), 0);
    return inode;
}

static inline uint32_t add_dir(struct builder *b, const char *path, uint32_t mode)
{
    return add(b, path, &(struct node){.mode = S_IFDIR | mode});
}

static inline uint32_t add_symlink(struct builder *b, const char *path, const char *target)
{
    return add(
        b, path,
        &(struct node){.mode = S_IFLNK | 0777, .link = target, .link_len = strlen(target)});
}

static inline uint32_t add_link(struct builder *b, const char *path, const char *target)
{
    struct fault fault = {0};
    uint32_t inode = UINT32_MAX;
    const struct node link = {.is_hardlink = true, .link = target, .link_len = strlen(target)};
    int r = builder_add(b, path, strlen(path), &link, &fault, &inode);
    ck_assert_msg(r == 0, "%s -> %s: %d %s", path, target, r, fault.what);
    return inode;
}

/* The image as bytes that the caller frees. */
static inline uint8_t *build_image(struct builder *b, const struct builder_header *header,
                                   size_t *ret_len)
{
    struct fault fault = {0};
    uint64_t len = 0;
    int fd = memfd_create("image", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    int r = builder_write(b, header, fd, 0, &fault, &len);
    ck_assert_msg(r == 0, "%d %s", r, fault.what);
    builder_free(b);
    uint8_t *image = malloc(len);
    ck_assert_ptr_nonnull(image);
    ck_assert_int_eq(pread(fd, image, len, 0), (ssize_t)len);
    close(fd);
    *ret_len = len;
    return image;
}

static inline int open_image(const void *image, size_t len, struct index **ret_index)
{
    struct source *source = NULL;
    struct fault fault = {0};
    /* Sealing a memory file takes milliseconds; there are many images. */
    int fd = memfd_create("image", MFD_CLOEXEC);
    ck_assert_int_eq(write(fd, image, len), (ssize_t)len);
    ck_assert_int_eq(fchmod(fd, 0600), 0); /* so that it is mapped */
    ck_assert_int_eq(source_from_fd(fd, "image", &source), 0);
    int r = index_open(source, 0, len, &fault, ret_index);
    source_close(source);
    if (r < 0 && r != -ENOMEM) {
        ck_assert_int_eq(fault.err, -r);
        ck_assert_str_ne(fault.what, "");
    }
    return r;
}

/* Write, open, and free the builder. */
static inline struct index *build(struct builder *b, const struct builder_header *header)
{
    size_t len = 0;
    struct index *index = NULL;
    uint8_t *image = build_image(b, header, &len);
    int r = open_image(image, len, &index);
    ck_assert_int_eq(r, 0);
    free(image);
    return index;
}

static inline uint32_t position_of(const struct index *index, const char *path)
{
    uint32_t position = UINT32_MAX;
    int r = index_resolve(index, path, &position);
    ck_assert_msg(r == 0, "%s: %d", path, r);
    return position;
}

static inline struct node node_of(const struct index *index, const char *path)
{
    struct node node;
    ck_assert_int_eq(index_node(index, position_of(index, path), &node), 0);
    return node;
}

static inline struct extent extent_of(const struct index *index, const char *path,
                                      uint64_t offset)
{
    struct extent extent = {0};
    struct node node = {0};
    uint32_t position = position_of(index, path);
    int r = index_extent(index, position, offset, &extent);
    ck_assert_msg(r == 0, "%s at %llu: %d", path, (unsigned long long)offset, r);
    ck_assert_uint_eq(extent.offset, offset);
    ck_assert_int_eq(index_node(index, position, &node), 0);
    ck_assert_int_eq(extent.is_last, offset + extent.length == node.size_bytes);
    return extent;
}

/* Names of a directory, each followed by a space. */
static inline const char *listing(const struct index *index, const char *path)
{
    static char text[4096];
    uint32_t first = 0, count = 0;
    ck_assert_int_eq(index_children(index, position_of(index, path), &first, &count), 0);
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        const char *name;
        size_t len;
        ck_assert_int_eq(index_name(index, first + i, &name, &len), 0);
        strncat(text, name, len);
        strcat(text, " ");
    }
    return text;
}

/* Sums of a changed image made right again, as somebody hostile would. */
static inline void reseal(uint8_t *image, size_t len)
{
    struct disk_header h;
    if (len < sizeof(h))
        return;
    memcpy(&h, image, sizeof(h));
    uint64_t pages = (h.area_bytes + DISK_PAGE_BYTES - 1) / DISK_PAGE_BYTES;
    if (h.area_offset < len && h.area_bytes <= len - h.area_offset && h.sums_offset < len &&
        pages * 8 <= len - h.sums_offset) {
        for (uint64_t page = 0; page < pages; page++) {
            uint64_t at = page * DISK_PAGE_BYTES;
            uint64_t bytes =
                h.area_bytes - at < DISK_PAGE_BYTES ? h.area_bytes - at : DISK_PAGE_BYTES;
            uint64_t sum = XXH3_64bits(image + h.area_offset + at, bytes);
            memcpy(image + h.sums_offset + page * 8, &sum, 8);
        }
        h.sums_sum = XXH3_64bits(image + h.sums_offset, pages * 8);
    }
    h.header_sum = 0;
    memcpy(image, &h, sizeof(h));
    if (h.header_bytes <= len) {
        h.header_sum = XXH3_64bits(image, h.header_bytes);
        memcpy(image, &h, sizeof(h));
    }
}

/*
 * A walk from the root that asks of each entry everything. Every error other than the
 * ones that an index may answer is a failed test; so is an entry met twice, and an
 * extent that is empty or past the end of its file.
 */
struct walk {
    const struct index *index;
    uint8_t *seen;
    XXH64_hash_t digest;
    uint64_t visited;
    uint64_t errors;
};

static inline void walk_note(struct walk *w, const void *bytes, size_t len)
{
    w->digest = XXH3_64bits_withSeed(bytes, len, w->digest);
}

/* True for an answer, false for an error; *r must be one that is allowed. */
static inline bool walk_answer(struct walk *w, int r, int end)
{
    ck_assert_msg(r == 0 || r == -EUCLEAN || r == end, "unexpected error %d", r);
    if (r == -EUCLEAN)
        w->errors++;
    return r == 0;
}

static inline void walk_data(struct walk *w, uint32_t position, const struct node *node)
{
    uint64_t offset = 0;
    struct extent e;
    while (offset < node->size_bytes &&
           walk_answer(w, index_extent(w->index, position, offset, &e), 0)) {
        ck_assert_uint_eq(e.offset, offset);
        ck_assert_uint_gt(e.length, 0);
        ck_assert_uint_le(e.length, node->size_bytes - offset);
        uint64_t archive = index_info(w->index)->archive_bytes;
        if (e.kind == EXTENT_STORED)
            ck_assert(e.source_offset <= archive && e.length <= archive - e.source_offset);
        if (e.kind == EXTENT_BLOCK) {
            ck_assert(e.source_offset <= archive && e.packed_bytes > 0 &&
                      e.packed_bytes <= archive - e.source_offset);
            ck_assert(e.block_bytes <= index_info(w->index)->block_bytes);
            ck_assert(e.block_offset + e.length <= e.block_bytes);
        }
        struct block_point point;
        if (e.kind == EXTENT_BLOCK && codec_has_point(e.codec) &&
            walk_answer(w, index_point(w->index, e.block, &point), 0)) {
            ck_assert(point.first_bit < 8 && point.last_bits > 0 && point.last_bits <= 8);
            ck_assert_uint_le(point.window_bytes, POINT_WINDOW_MAX);
            walk_note(w, &point.sum, sizeof(point.sum));
            if (point.window_bytes > 0)
                walk_note(w, point.window, point.window_packed);
        }
        uint64_t facts[] = {e.kind,         e.offset,      e.length,      e.source_offset,
                            e.packed_bytes, e.block_bytes, e.block_offset};
        walk_note(w, facts, sizeof(facts));
        offset += e.length;
    }
    ck_assert_int_eq(index_extent(w->index, position, node->size_bytes, &e), -ENXIO);
    uint64_t sum;
    if (walk_answer(w, index_sum(w->index, position, &sum), -ENODATA))
        walk_note(w, &sum, sizeof(sum));
}

static inline void walk_xattrs(struct walk *w, uint32_t position)
{
    uint64_t cursor = 0;
    struct xattr x, again;
    int r;
    while (walk_answer(w, r = index_xattr_next(w->index, position, &cursor, &x), -ENOENT)) {
        walk_note(w, x.name, x.name_len);
        walk_note(w, x.value, x.value_len);
        walk_answer(w, index_xattr_get(w->index, position, x.name, x.name_len, &again), 0);
    }
}

/* What index_files says of children is what the other questions are answered with. */
static inline void walk_files(struct walk *w, uint32_t first, uint32_t count)
{
    const struct index *index = w->index;
    struct index_file *files = calloc(count + 1, sizeof(*files));
    ck_assert_ptr_nonnull(files);
    bool is_answer = walk_answer(w, index_files(index, first, count, files), 0);
    for (uint32_t i = 0; is_answer && i < count; i++) {
        struct node node;
        struct extent e;
        if (index_node(index, first + i, &node) < 0)
            continue; /* by what index_files does not look at */
        ck_assert_uint_eq(files[i].mode, node.mode);
        ck_assert_uint_eq(files[i].size_bytes, S_ISREG(node.mode) ? node.size_bytes : 0);
        bool is_whole = S_ISREG(node.mode) && index_extent(index, first + i, 0, &e) == 0 &&
                        e.kind == EXTENT_STORED && e.length == node.size_bytes;
        uint64_t offset = is_whole ? e.source_offset : INDEX_FILE_IN_PIECES;
        if (S_ISREG(node.mode) && node.size_bytes == 0)
            offset = 0;
        ck_assert_uint_eq(files[i].offset, offset);
    }
    free(files);
}

static inline void walk_entry(struct walk *w, uint32_t position, unsigned depth)
{
    const struct index *index = w->index;
    ck_assert_uint_lt(position, index_info(index)->entries);
    ck_assert_msg(!(w->seen[position / 8] & 1u << position % 8), "entry met twice");
    w->seen[position / 8] |= (uint8_t)(1u << position % 8);
    w->visited++;
    ck_assert_uint_le(depth, index_info(index)->entries);

    const char *text;
    size_t len;
    uint32_t first, count, found, parent;
    struct node node = {0};
    char path[4096];
    if (walk_answer(w, index_name(index, position, &text, &len), 0)) {
        ck_assert(len <= INDEX_NAME_MAX && !memchr(text, '/', len) && !memchr(text, 0, len));
        walk_note(w, text, len);
    }
    walk_answer(w, index_parent(index, position, &parent), 0);
    walk_answer(w, index_path(index, position, path, sizeof(path), &len), -ENAMETOOLONG);
    if (!walk_answer(w, index_node(index, position, &node), 0))
        return;
    uint64_t facts[] = {
        node.position,   node.mode,       node.uid,
        node.gid,        node.nlink,      node.rdev_major,
        node.rdev_minor, node.mtime_nsec, (uint64_t)node.mtime_sec,
        node.size_bytes, node.data_bytes, node.has_xattrs * 2u + node.has_holes};
    walk_note(w, facts, sizeof(facts));
    walk_xattrs(w, position);
    if (S_ISREG(node.mode))
        walk_data(w, position, &node);
    if (S_ISLNK(node.mode) && walk_answer(w, index_symlink(index, position, &text, &len), 0))
        walk_note(w, text, len);
    if (!S_ISDIR(node.mode)) {
        int r = index_children(index, position, &first, &count);
        ck_assert(r == -ENOTDIR || r == -EUCLEAN || r == 0);
        return;
    }
    if (!walk_answer(w, index_children(index, position, &first, &count), 0))
        return;
    ck_assert(count == 0 || (first > position && first < index_info(index)->entries &&
                             count <= index_info(index)->entries - first));
    if (count)
        walk_files(w, first, count);
    for (uint32_t i = 0; i < count; i++) {
        if (walk_answer(w, index_name(index, first + i, &text, &len), 0)) {
            int r = index_lookup(index, position, text, len, &found);
            ck_assert(r == 0 || r == -ENOENT || r == -EUCLEAN);
            w->errors += r != 0 || found != first + i;
        }
        walk_entry(w, first + i, depth + 1);
    }
}

static inline struct walk walk_all(const struct index *index)
{
    struct walk w = {.index = index};
    w.seen = calloc(index_info(index)->entries / 8 + 1, 1);
    ck_assert_ptr_nonnull(w.seen);
    walk_entry(&w, INDEX_ROOT, 0);
    free(w.seen);
    return w;
}

#endif
