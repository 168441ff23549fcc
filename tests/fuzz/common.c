/*
 * What targets share: sources, seeds, and a walk through whatever became an index.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "backend.h"
#include "builder.h"
#include "format_numbers.h"
#include "fuzz.h"
#include "index.h"
#include "index_format.h"

#define EXTENTS_MAX 4096
#define MEMORY_BYTES (1u << 20)

struct source *fuzz_source(const uint8_t *data, size_t size)
{
    struct source *source;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size ||
        source_from_fd(fd, "fuzz", &source) < 0)
        abort();
    return source;
}

/* ---- the walk ---- */

void fuzz_fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: this does not hold: %s\n", file, line, condition);
    abort();
}

static void walk_extents(const struct index *index, uint32_t position, uint64_t size)
{
    struct extent extent;
    uint64_t at = 0;
    for (int i = 0; i < EXTENTS_MAX && at < size; i++) {
        if (index_extent(index, position, at, &extent) < 0)
            return;
        require(extent.offset == at && extent.length > 0 && extent.length <= size - at);
        uint64_t end = 0;
        uint64_t bytes = extent.kind == EXTENT_STORED ? extent.length : extent.packed_bytes;
        if (extent.kind != EXTENT_HOLE)
            require(!__builtin_add_overflow(extent.source_offset, bytes, &end) &&
                    end <= index_info(index)->archive_bytes);
        struct block_point point;
        if (extent.kind == EXTENT_BLOCK && codec_has_point(extent.codec) &&
            index_point(index, extent.block, &point) == 0)
            require(point.window_bytes <= POINT_WINDOW_MAX && point.first_bit < 8);
        at += extent.length;
    }
    if (at >= size)
        require(index_extent(index, position, at, &extent) == -ENXIO);
}

static void walk_xattrs(const struct index *index, uint32_t position)
{
    struct xattr x, again;
    uint64_t cursor = 0;
    while (index_xattr_next(index, position, &cursor, &x) == 0) {
        require(x.name_len <= INDEX_NAME_MAX);
        index_xattr_get(index, position, x.name, x.name_len, &again);
    }
}

static void walk_children(const struct index *index, uint32_t position)
{
    uint32_t first, count, found;
    const char *name;
    size_t len;
    if (index_children(index, position, &first, &count) < 0)
        return;
    uint32_t entries = index_info(index)->entries;
    require(count == 0 || (first > position && first < entries && count <= entries - first));
    if (count > 0 && index_name(index, first + count / 2, &name, &len) == 0)
        index_lookup(index, position, name, len, &found);
    index_lookup(index, position, "nobody", 6, &found);
}

static void walk_entry(const struct index *index, uint32_t position)
{
    struct node node;
    const char *text;
    char path[8192];
    size_t len;
    uint32_t other;
    uint64_t sum;

    if (index_name(index, position, &text, &len) == 0)
        require(len <= INDEX_NAME_MAX && !memchr(text, '\0', len) && !memchr(text, '/', len));
    if (index_path(index, position, path, sizeof(path), &len) == 0)
        require(strlen(path) == len);
    if (index_parent(index, position, &other) == 0)
        require(other < position || position == INDEX_ROOT);
    index_sum(index, position, &sum);
    walk_xattrs(index, position);
    if (index_node(index, position, &node) < 0)
        return;
    require(node.mtime_nsec < 1000000000);
    if (S_ISDIR(node.mode))
        walk_children(index, position);
    if (S_ISREG(node.mode))
        walk_extents(index, position, node.size_bytes);
    if (S_ISLNK(node.mode) && index_symlink(index, position, &text, &len) == 0)
        require(len <= INDEX_SYMLINK_MAX && !memchr(text, '\0', len));
    if (S_ISLNK(node.mode) && index_follow(index, position, "", NULL, &other) == 0)
        require(index_node(index, other, &node) < 0 || !S_ISLNK(node.mode));
}

static void walk_left_out(const struct index *index)
{
    struct fault why;
    uint64_t cursor = 0;
    require(index_left_out(index) <= UINT32_MAX);
    while (index_left_out_next(index, &cursor, &why) == 0)
        require(memchr(why.member, '\0', sizeof(why.member)) &&
                memchr(why.what, '\0', sizeof(why.what)));
}

void fuzz_walk(const struct index *index)
{
    uint32_t entries = index_info(index)->entries, position;
    for (uint32_t i = 0; i < entries; i++)
        walk_entry(index, i);
    walk_left_out(index);
    index_resolve(index, "a/b/../c", &position);
    require(index_inode_position(index, entries, &position) < 0);
}

void fuzz_walk_built(struct builder *builder, const struct builder_header *header)
{
    struct source *source;
    struct index *index;
    struct fault fault = {0};
    uint64_t bytes;
    int fd = memfd_create("index", MFD_CLOEXEC);

    if (fd < 0)
        abort();
    if (builder_write(builder, header, fd, 0, &fault, &bytes) < 0) {
        close(fd);
        return;
    }
    require(source_from_fd(fd, "index", &source) == 0);
    /* What was built is never damaged. */
    require(index_open(source, 0, bytes, &fault, &index) == 0);
    fuzz_walk(index);
    index_close(index);
    source_close(source);
}

void fuzz_index(const struct backend *backend, const uint8_t *data, size_t size)
{
    struct source *source = fuzz_source(data, size);
    struct builder_header header = {.format = backend->number, .archive_bytes = size};
    struct progress progress = {0};
    struct fault fault = {0};
    struct builder *builder;

    if (builder_new(&builder) < 0)
        abort();
    builder_set_archive_size(builder, size);
    if (backend->probe(source, data, size) == 1) {
        if (backend->index(source, builder, &header, &progress, &fault) == 0)
            fuzz_walk_built(builder, &header);
        else
            require(fault.err);
    }
    builder_free(builder);
    source_close(source);
}

/* ---- seeds ---- */

static void add_member(struct archive *a, const char *path, unsigned type, const char *target,
                       const char *data, size_t len)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, path);
    archive_entry_set_filetype(entry, type);
    archive_entry_set_perm(entry, 0640);
    archive_entry_set_uid(entry, 1000);
    archive_entry_set_mtime(entry, 1700000000, 123456789);
    archive_entry_set_size(entry, (la_int64_t)len);
    if (type == AE_IFLNK)
        archive_entry_set_symlink(entry, target);
    else if (target)
        archive_entry_set_hardlink(entry, target);
    if (type == AE_IFREG && len > 0) {
        archive_entry_xattr_add_entry(entry, "user.note", "value", 5);
        archive_entry_sparse_add_entry(entry, 0, (la_int64_t)len / 2);
        archive_entry_acl_add_entry(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, 4,
                                    ARCHIVE_ENTRY_ACL_USER, 77, NULL);
    }
    if (archive_write_header(a, entry) >= ARCHIVE_WARN && len > 0)
        archive_write_data(a, data, len);
    archive_entry_free(entry);
}

uint8_t *fuzz_make_tar(const char *format, size_t *ret_size)
{
    static const char data[3000] = "content";
    static const char name[] = "d/a name that is so long that no field of a plain header has "
                               "room for it, so that it needs an extension of some kind, "
                               "which is what this is about";
    struct archive *a = archive_write_new();
    uint8_t *bytes = calloc(1, MEMORY_BYTES);

    require(bytes && archive_write_set_format_by_name(a, format) == ARCHIVE_OK);
    archive_write_set_bytes_per_block(a, 512);
    require(archive_write_open_memory(a, bytes, MEMORY_BYTES, ret_size) == ARCHIVE_OK);
    add_member(a, "d/", AE_IFDIR, NULL, NULL, 0);
    add_member(a, "d/f", AE_IFREG, NULL, data, sizeof(data));
    add_member(a, "d/link", AE_IFREG, "d/f", NULL, 0);
    add_member(a, "symlink", AE_IFLNK, "d/../d/f", NULL, 0);
    add_member(a, name, AE_IFREG, NULL, data, 10);
    add_member(a, "d/f", AE_IFREG, NULL, data, 600);
    add_member(a, "fifo", AE_IFIFO, NULL, NULL, 0);
    add_member(a, "d/e/\xff\xfe", AE_IFREG, NULL, NULL, 0);
    add_member(a, "through", AE_IFLNK, "d/./..//d", NULL, 0);
    add_member(a, "through/x", AE_IFREG, NULL, data, 10);
    add_member(a, "left out", AE_IFREG, "nothing", NULL, 0);
    archive_write_close(a);
    archive_write_free(a);
    return bytes;
}

static void add_blocks(struct builder *b)
{
    const struct builder_block blocks[2] = {
        {.source_offset = 100, .packed_bytes = 50, .block_bytes = 4096},
        {.source_offset = 200, .packed_bytes = 60, .block_bytes = 4096},
    };
    struct node m = {.mode = S_IFREG | 0600, .has_pieces = true};
    uint32_t first, second, inode;
    require(builder_add_block(b, &blocks[0], &first) == 0 &&
            builder_add_block(b, &blocks[1], &second) == 0);
    const struct builder_piece pieces[3] = {
        {.length = 4096, .block = first},
        {.offset = 2 * 4096, .length = 100, .source_offset = 200, .block = BUILDER_NO_BLOCK},
        {.offset = 3 * 4096, .length = 70, .block = second, .block_offset = 5}};
    const struct builder_piece run[2] = {{.length = 4090, .block = first, .block_offset = 6},
                                         {.offset = 4090, .length = 70, .block = second}};
    const struct builder_piece small = {.length = 60, .block = second, .block_offset = 80};
    m.size_bytes = 3 * 4096 + 100;
    require(builder_add(b, "blocks", 6, &m, NULL, &inode) == 0 &&
            builder_set_pieces(b, inode, pieces, 3) == 0);
    m.size_bytes = 4090 + 70;
    require(builder_add(b, "run", 3, &m, NULL, &inode) == 0 &&
            builder_set_pieces(b, inode, run, 2) == 0);
    m.size_bytes = 60;
    require(builder_add(b, "small", 5, &m, NULL, &inode) == 0 &&
            builder_set_pieces(b, inode, &small, 1) == 0);
}

static void add_others(struct builder *b)
{
    struct node m = {.mode = S_IFREG | 0644, .size_bytes = 5000, .mtime_sec = 99};
    uint32_t inode;
    m.has_pieces = true;
    const struct builder_piece ranges[2] = {
        {.length = 1000, .source_offset = 500, .block = BUILDER_NO_BLOCK},
        {.offset = 3000, .length = 2000, .source_offset = 1500, .block = BUILDER_NO_BLOCK}};
    require(builder_add(b, "d/e/sparse", 10, &m, NULL, &inode) == 0 &&
            builder_set_pieces(b, inode, ranges, 2) == 0 &&
            builder_add_xattr(b, inode, "user.a", 6, "1", 1) == 0 &&
            builder_add_xattr(b, inode, "user.b", 6, "", 0) == 0);
    m = (struct node){.is_hardlink = true, .link = "d/e/sparse", .link_len = 10};
    require(builder_add(b, "link", 4, &m, NULL, &inode) == 0);
    m = (struct node){.mode = S_IFLNK | 0777, .link = "d/e", .link_len = 3, .mtime_sec = -1};
    require(builder_add(b, "d/symlink", 9, &m, NULL, &inode) == 0);
    m = (struct node){.mode = S_IFCHR | 0600, .rdev_major = 1, .rdev_minor = 300};
    m.mtime_sec = INT64_MAX;
    require(builder_add(b, "d/device", 8, &m, NULL, &inode) == 0);
    struct fault why = {
        .err = ENOENT, .offset = 512, .member = "member", .what = "is left out"};
    require(builder_leave_out(b, &why) == 0 && builder_leave_out(b, &why) == 0);
}

uint8_t *fuzz_make_image(size_t *ret_size)
{
    const struct builder_header header = {.format = FORMAT_SQUASHFS,
                                          .codec = CODEC_ZSTD,
                                          .block_bytes = 4096,
                                          .archive_bytes = 100000};
    struct builder *b = NULL;
    uint64_t bytes;
    int fd = memfd_create("image", MFD_CLOEXEC);
    require(fd >= 0 && builder_new(&b) == 0);
    builder_set_archive_size(b, header.archive_bytes);
    add_blocks(b);
    add_others(b);
    require(builder_write(b, &header, fd, 0, NULL, &bytes) == 0);
    builder_free(b);
    uint8_t *image = malloc(bytes);
    require(image && pread(fd, image, bytes, 0) == (ssize_t)bytes);
    close(fd);
    *ret_size = bytes;
    return image;
}

void fuzz_resum(uint8_t *image, size_t size)
{
    struct disk_header h;
    if (size < sizeof(h))
        return;
    memcpy(&h, image, sizeof(h));
    uint64_t pages = h.area_bytes / DISK_PAGE_BYTES + (h.area_bytes % DISK_PAGE_BYTES != 0);
    if (h.area_offset <= size && h.area_bytes <= size - h.area_offset &&
        h.sums_offset <= size && pages * 8 <= size - h.sums_offset) {
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t left = h.area_bytes - i * DISK_PAGE_BYTES;
            uint64_t sum = XXH3_64bits(image + h.area_offset + i * DISK_PAGE_BYTES,
                                       left < DISK_PAGE_BYTES ? left : DISK_PAGE_BYTES);
            memcpy(image + h.sums_offset + i * 8, &sum, sizeof(sum));
        }
        h.sums_sum = XXH3_64bits(image + h.sums_offset, pages * 8);
    }
    h.header_sum = 0;
    memcpy(image, &h, sizeof(h));
    if (h.header_bytes <= size)
        h.header_sum = XXH3_64bits(image, h.header_bytes);
    memcpy(image, &h, sizeof(h));
}
