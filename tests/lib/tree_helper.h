/*
 * Shared by the suites of trees: indexes with one of each kind of member, and a comparison of
 * a tree with what became of it.
 */
#ifndef ONEPOT_TREE_HELPER_H
#define ONEPOT_TREE_HELPER_H

#include "checksum.h"
#include "index_helper.h"
#include "tree.h"

/* ---- the same tree in two indexes ---- */

struct pair {
    const struct index *old, *new;
    uint64_t base;
    unsigned entries;
};

static inline void compare_sums(const struct pair *p, uint32_t old, uint32_t new)
{
    const struct index_info *from = index_info(p->old), *to = index_info(p->new);
    uint64_t a, b;
    int r = index_sum(p->old, old, &a), r_new = index_sum(p->new, new, &b);
    if (!checksum_available(to->sum_kind))
        r = -ENODATA;
    ck_assert_int_eq(r, r_new);
    if (r == 0)
        ck_assert_uint_eq(to->sum_kind == SUM_MIXED ? checksum_mixed(from->sum_kind, a) : a, b);
}

static inline void compare_points(const struct pair *p, uint32_t old, uint32_t new)
{
    struct block_point a, b;
    ck_assert_int_eq(index_point(p->old, old, &a), 0);
    ck_assert_int_eq(index_point(p->new, new, &b), 0);
    ck_assert_uint_eq(a.sum, b.sum);
    ck_assert_uint_eq(a.first_bit, b.first_bit);
    ck_assert_uint_eq(a.last_bits, b.last_bits);
    ck_assert_uint_eq(a.window_bytes, b.window_bytes);
    ck_assert_uint_eq(a.window_packed, b.window_packed);
    if (a.window_packed)
        ck_assert_mem_eq(a.window, b.window, a.window_packed);
    ck_assert_int_eq(!a.pieces, !b.pieces);
    if (a.pieces)
        ck_assert_mem_eq(a.pieces, b.pieces, POINT_PIECES_BYTES);
}

static inline void compare_data(const struct pair *p, uint32_t old, uint32_t new, uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        struct extent a, b;
        ck_assert_int_eq(index_extent(p->old, old, at, &a), 0);
        ck_assert_int_eq(index_extent(p->new, new, at, &b), 0);
        ck_assert_int_eq(a.kind, b.kind);
        if (a.kind != EXTENT_HOLE)
            ck_assert_uint_eq(a.source_offset + p->base, b.source_offset);
        if (a.kind == EXTENT_BLOCK) {
            ck_assert_int_eq(a.codec, b.codec);
            ck_assert_uint_eq(a.packed_bytes, b.packed_bytes);
            ck_assert_uint_eq(a.block_bytes, b.block_bytes);
            ck_assert_uint_eq(a.block_offset, b.block_offset);
            ck_assert_uint_eq(a.length, b.length);
            if (codec_has_point(a.codec))
                compare_points(p, a.block, b.block);
        }
        at += a.length < b.length ? a.length : b.length;
    }
    compare_sums(p, old, new);
}

static inline void compare_xattrs(const struct pair *p, uint32_t old, uint32_t new)
{
    uint64_t i = 0, j = 0;
    struct xattr a, b;
    int r;
    while ((r = index_xattr_next(p->old, old, &i, &a)) == 0) {
        ck_assert_int_eq(index_xattr_next(p->new, new, &j, &b), 0);
        ck_assert_uint_eq(a.name_len, b.name_len);
        ck_assert_uint_eq(a.value_len, b.value_len);
        ck_assert_mem_eq(a.name, b.name, a.name_len);
        ck_assert_mem_eq(a.value, b.value, a.value_len);
    }
    ck_assert_int_eq(r, -ENOENT);
    ck_assert_int_eq(index_xattr_next(p->new, new, &j, &b), -ENOENT);
}

static inline void compare_entry(struct pair *p, uint32_t old, uint32_t new)
{
    struct node a, b;
    ck_assert_int_eq(index_node(p->old, old, &a), 0);
    ck_assert_int_eq(index_node(p->new, new, &b), 0);
    a.position = b.position = 0;
    ck_assert_uint_eq(a.mode, b.mode);
    ck_assert_uint_eq(a.nlink, b.nlink);
    ck_assert_uint_eq(a.data_bytes, b.data_bytes);
    ck_assert_int_eq(a.has_holes, b.has_holes);
    ck_assert_mem_eq(&a, &b, offsetof(struct node, has_holes) + 1); /* without padding */
    compare_xattrs(p, old, new);
    p->entries++;
    const char *x, *y;
    size_t x_len, y_len;
    if (S_ISREG(a.mode))
        compare_data(p, old, new, a.size_bytes);
    if (S_ISLNK(a.mode)) {
        ck_assert_int_eq(index_symlink(p->old, old, &x, &x_len), 0);
        ck_assert_int_eq(index_symlink(p->new, new, &y, &y_len), 0);
        ck_assert_uint_eq(x_len, y_len);
        ck_assert_mem_eq(x, y, x_len);
    }
    if (!S_ISDIR(a.mode))
        return;
    uint32_t first, count, first_new, count_new;
    ck_assert_int_eq(index_children(p->old, old, &first, &count), 0);
    ck_assert_int_eq(index_children(p->new, new, &first_new, &count_new), 0);
    ck_assert_uint_eq(count, count_new);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(index_name(p->old, first + i, &x, &x_len), 0);
        ck_assert_int_eq(index_name(p->new, first_new + i, &y, &y_len), 0);
        ck_assert_uint_eq(x_len, y_len);
        ck_assert_mem_eq(x, y, x_len);
        compare_entry(p, first + i, first_new + i);
    }
}

static inline void compare_trees(const struct index *old, const struct index *new,
                                 const char *under, uint64_t base)
{
    struct pair p = {old, new, base, 0};
    compare_entry(&p, INDEX_ROOT, position_of(new, under));
    ck_assert_uint_eq(p.entries, index_info(old)->entries);
}

/* ---- composing ---- */

/* Write a tree, which is freed, and open the index. */
static inline int write_tree(struct tree *tree, struct builder_header *header,
                             struct fault *fault, struct index **ret_index)
{
    struct source *source;
    int fd = memfd_create("tree", MFD_CLOEXEC);
    int r = tree_write(tree, header, fd, fault);
    tree_free(tree);
    ck_assert_int_eq(fchmod(fd, 0600), 0);
    ck_assert_int_eq(source_from_fd(fd, "tree", &source), 0);
    if (r == 0) {
        ck_assert_int_eq(index_open(source, 0, source_size(source), fault, ret_index), 0);
        ck_assert_int_eq(index_check(*ret_index, NULL), 0);
    }
    source_close(source);
    return r;
}

/* ---- indexes ---- */

static inline void add_xattr(struct builder *b, uint32_t inode, const char *name,
                             const char *value)
{
    ck_assert_int_eq(builder_add_xattr(b, inode, name, strlen(name), value, strlen(value)), 0);
}

/* One of each kind of member that has no blocks. */
static inline struct builder *rich_builder(void)
{
    struct builder *b = new_builder();
    uint32_t inode = add(
        b, ".", &(struct node){.mode = S_IFDIR | 02751, .uid = 1, .gid = 2, .mtime_sec = 3});
    add_xattr(b, inode, "user.root", "yes");
    add(b, "d",
        &(struct node){
            .mode = S_IFDIR | 01700, .uid = 7, .gid = 8, .mtime_sec = -9, .mtime_nsec = 10});
    inode = add(b, "d/f",
                &(struct node){.mode = S_IFREG | 04755,
                               .uid = UINT32_MAX - 1,
                               .gid = 70000,
                               .mtime_sec = INT64_C(1) << 40,
                               .mtime_nsec = 999999999,
                               .size_bytes = 1000,
                               .data_offset = 512});
    add_xattr(b, inode, "user.a", "1");
    add_xattr(b, inode, "security.b", "");
    inode = add_file(b, "d/same", 4096, 10);
    add_xattr(b, inode, "user.a", "1");
    add_xattr(b, inode, "security.b", "");
    inode = add_file(b, "d/other", 4106, 10);
    add_xattr(b, inode, "user.a", "2");
    add_file(b, "empty", 0, 0);
    add_dir(b, "hollow", 0711);
    add_symlink(b, "link", "d/f");
    add_symlink(b, "lost", "../nowhere");
    add_link(b, "a", "d/f");
    add_link(b, "d/e/deep", "d/f");
    add(b, "tty",
        &(struct node){.mode = S_IFCHR | 0620, .rdev_major = 1u << 20, .rdev_minor = 5});
    add(b, "disk", &(struct node){.mode = S_IFBLK | 0600, .rdev_major = 8, .rdev_minor = 1});
    add(b, "fifo", &(struct node){.mode = S_IFIFO | 0644});
    add(b, "socket", &(struct node){.mode = S_IFSOCK | 0644});
    add_link(b, "d/fifo", "fifo");
    const struct builder_piece ranges[] = {stored_at(5000, 100, 10000),
                                           stored_at(9000, 100, 20000)};
    add_pieces(b, "sparse", 1000000, ranges, 2);
    const struct builder_piece parts[] = {stored_at(0, 100, 30000), stored_at(100, 200, 40000)};
    add_pieces(b, "parts", 300, parts, 2);
    add_pieces(b, "hole", UINT64_C(1) << 50, NULL, 0);
    return b;
}

static inline struct index *rich_index(void)
{
    return build(rich_builder(), &tar_header);
}

/* Files of blocks: full ones, stored ones, holes, tails, small files in one block. */
static inline struct builder *block_builder(enum codec codec, uint32_t block_bytes,
                                            struct builder_header *ret_header)
{
    *ret_header = (struct builder_header){.format = FORMAT_SQUASHFS,
                                          .codec = codec,
                                          .block_bytes = block_bytes,
                                          .archive_bytes = UINT64_C(1) << 40};
    struct builder *b = new_builder();
    char path[32];
    uint32_t shared = add_block(b, 1000, 500, block_bytes);
    for (uint32_t i = 0; i < 100; i++) {
        const struct builder_piece piece = packed_at(0, 40, shared, i * 40);
        snprintf(path, sizeof(path), "small/%u", i);
        add_pieces(b, path, 40, &piece, 1);
    }
    for (uint32_t count = 1; count <= 5; count++)
        for (uint32_t tail = 0; tail < 2; tail++) {
            const uint64_t size = (uint64_t)count * block_bytes;
            uint32_t first = add_block(b, 2000, 100, block_bytes), n = 0;
            struct builder_piece pieces[4] = {packed_at(0, block_bytes, first, 0)};
            n = 1;
            if (count > 1)
                pieces[n++] = stored_at(block_bytes, (count > 2 ? 2u : 1u) * block_bytes, 9000);
            if (count > 4)
                pieces[n++] = packed_at(4 * (uint64_t)block_bytes, block_bytes,
                                        add_block(b, 5000, 50, block_bytes), 0);
            if (tail)
                pieces[n++] = packed_at(size, 30, shared, 7);
            snprintf(path, sizeof(path), "large/%u-%u", count, tail);
            add_pieces(b, path, size + (tail ? 30 : 0), pieces, n);
        }
    const struct builder_piece run[] = {
        packed_at(0, block_bytes - 5, add_block(b, 7000, 60, block_bytes), 5),
        packed_at(block_bytes - 5, block_bytes, add_block(b, 7060, 60, block_bytes), 0),
        packed_at(2 * (uint64_t)block_bytes - 5, 9, add_block(b, 7120, 60, block_bytes), 0)};
    add_pieces(b, "large/run", 2 * (uint64_t)block_bytes + 4, run, 3);
    return b;
}

/* Files of parts of streams, each with a window but the first; with sums of pieces or without.
 */
static inline struct builder *point_builder(const char *folder, bool has_pieces,
                                            struct builder_header *ret_header)
{
    static char windows[4][POINT_PACKED_MAX], pieces[4][POINT_PIECES_BYTES];
    *ret_header = (struct builder_header){
        .format = FORMAT_TAR, .block_bytes = 4096, .archive_bytes = UINT64_C(1) << 40};
    struct builder *b = new_builder();
    char path[64];
    for (uint32_t i = 0; i < 4; i++) {
        memset(windows[i], 'w' + (int)i, sizeof(windows[i]));
        memset(pieces[i], 'p' + (int)i, sizeof(pieces[i]));
        const struct block_point point = {.sum = 7 * i + 1,
                                          .first_bit = i,
                                          .last_bits = 8 - i,
                                          .window_bytes = i * 1000,
                                          .window_packed = i * 100,
                                          .window = windows[i],
                                          .pieces = has_pieces ? pieces[i] : NULL};
        const struct builder_block block = {.source_offset = 100 + i * 1000,
                                            .packed_bytes = 900,
                                            .block_bytes = 4096,
                                            .codec = CODEC_DEFLATE_POINT,
                                            .point = &point};
        struct builder_piece piece = {.length = 3000 + i};
        ck_assert_int_eq(builder_add_block(b, &block, &piece.block), 0);
        snprintf(path, sizeof(path), "%s/%u", folder, i);
        add_pieces(b, path, 3000 + i, &piece, 1);
    }
    return b;
}

static inline struct index *point_index(const char *folder, bool has_pieces)
{
    struct builder_header header;
    struct builder *b = point_builder(folder, has_pieces, &header);
    return build(b, &header);
}

static inline struct index *block_index(enum codec codec, uint32_t block_bytes)
{
    struct builder_header header;
    struct builder *b = block_builder(codec, block_bytes, &header);
    return build(b, &header);
}

/* "NAME" is a file of the archive at that offset. */
static inline struct index *file_index(const char *path, uint64_t offset)
{
    struct builder *b = new_builder();
    add_dir(b, ".", 0700);
    add_file(b, path, offset, 10);
    return build(b, &tar_header);
}

static inline struct index *summed_index(const char *path, enum sum_kind kind, uint64_t sum)
{
    struct builder *b = new_builder();
    struct builder_header header = tar_header;
    header.sum_kind = kind;
    ck_assert_int_eq(builder_set_sum(b, add_file(b, path, 0, 10), sum), 0);
    add_link(b, "again", path);
    return build(b, &header);
}

static inline struct disk_section section_of(const uint8_t *image, enum disk_section_id id)
{
    struct disk_header h;
    struct disk_section s;
    memcpy(&h, image, sizeof(h));
    for (uint32_t i = 0; i < h.sections; i++) {
        memcpy(&s, image + h.sections_offset + i * sizeof(s), sizeof(s));
        if (s.id == (uint32_t)id)
            return s;
    }
    ck_abort_msg("the image has no section %d", (int)id);
}

#endif
