/*
 * The builder: in archive order, members become names and inodes. Once all are there, these
 * become the image that index_format.h describes.
 *
 * Names and inodes are two arrays, because hard links and replaced members make them differ: a
 * name that comes again gets a new inode, while links keep the old one. An inode that lost its
 * last name is left out of the image.
 */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <xxhash.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "bytes.h"
#include "cleanup.h"
#include "digest.h"
#include "index_format.h"
#include "map.h"
#include "numbers.h"
#include "path.h"
#include "vector.h"
#include "write_at.h"

/* A name: an entry of the tree. Names are never removed, only bound to another inode. */
struct builder_name {
    uint32_t parent; /* a name */
    uint32_t inode;
    uint64_t text; /* offset in `text` << 8 | length */
};

/*
 * An inode. The fields mean the same as in the entry on disk, except that `data` of a
 * directory is the number of its children, and `size` the length of its path (0: the root) with
 * the number of its name in the upper half. An inode without names (nlink 0) is left out.
 */
struct builder_inode {
    uint64_t size;
    uint64_t data;
    uint64_t mtime;
    uint32_t attr; /* number in `attrs` */
    uint32_t nlink;
};

#define ENTRIES_MAX (UINT32_MAX - 1) /* names, and inodes */
#define DATA_UNSET UINT64_MAX        /* pieces not set yet */
#define DATA_HOLE (UINT64_MAX - 1)   /* no pieces */

/* Distinct attributes, in host order, each with a number. Empty when all zero. */
struct attr_table {
    VECTOR(struct disk_attr) list;
    struct map numbers;
};

struct builder_xattr {
    size_t name; /* offset in `pending_bytes`; the value follows the name */
    uint32_t name_len;
    uint32_t value_len;
};

struct builder {
    VECTOR(struct builder_name) names;
    VECTOR(struct builder_inode) inodes;
    VECTOR(char) text;

    /*
     * Hash table of names by parent and name. Upper half: hash; lower half: number of a name;
     * 0: free.
     */
    uint64_t *slots;
    size_t slot_count;
    uint64_t seed;

    struct attr_table attrs; /* as members were added with; see struct image */

    /* Path of the directory that the last member was in. */
    VECTOR(char) last_path;
    uint32_t last_dir;

    VECTOR(char) strings;
    VECTOR(uint64_t) extents;         /* as on disk */
    uint64_t no_ranges;               /* where an empty list lies, plus 1; 0: nowhere */
    VECTOR(struct disk_block) blocks; /* as on disk */
    uint32_t block_bytes_max;         /* largest size so far */
    VECTOR(struct disk_point) points; /* as on disk */
    VECTOR(char) windows;
    VECTOR(char) pieces;         /* empty, or for all points so far */
    VECTOR(int64_t) wide_mtimes; /* by inode: the seconds of EXTRA_MTIME */

    /* Attributes of one inode are collected, and become a set when another inode's come. */
    uint32_t pending_inode;
    VECTOR(struct builder_xattr) pending;
    VECTOR(char) pending_bytes;
    VECTOR(char) xattrs;       /* sets, as on disk */
    VECTOR(uint64_t) xattr_of; /* by inode: offset of its set + 1, or 0 */
    struct map sets;           /* offset in `xattrs`, by a sum of the set */

    VECTOR(uint32_t) dirs; /* as on disk */

    VECTOR(char) left_out; /* as on disk; empty if nothing was left out */
    uint64_t left_out_count, left_out_kinds[LEFT_OUT_KINDS];
    unsigned left_out_told;
    uint64_t xattrs_left_out;

    VECTOR(uint64_t) sums; /* by inode */
    VECTOR(uint8_t) has_sum;

    uint64_t archive_bytes;
    uint32_t codecs; /* that blocks name */
    bool is_written;
};

static inline const char *name_text(const struct builder *b, uint32_t name)
{
    return b->text.at + (b->names.at[name].text >> 8);
}

static inline size_t name_length(const struct builder *b, uint32_t name)
{
    return b->names.at[name].text & 255;
}

static inline const struct disk_attr *inode_attr(const struct builder *b, uint32_t inode)
{
    return &b->attrs.list.at[b->inodes.at[inode].attr];
}

static inline bool is_directory_inode(const struct builder *b, uint32_t inode)
{
    return S_ISDIR(inode_attr(b, inode)->mode);
}

/* A path from a member or a link, for the functions that resolve it. */
struct place {
    const char *path;
    size_t len;
    uint64_t header_offset;
    struct fault *fault;
    /* For directories that no member announced. */
    uint32_t uid, gid;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    /* The walk from the root to its directory, through links. */
    bool create;    /* directories on the way that are missing */
    unsigned depth; /* nesting depth of links */
    unsigned links; /* followed so far */
    uint64_t bytes; /* total length of their targets */
};

/* The result of resolving a path. */
struct spot {
    uint32_t dir;     /* its directory, as a name */
    const char *name; /* its last part, within place->path; the root has none (len 0) */
    size_t len;
    uint32_t hash;  /* of `name` in `dir` */
    uint32_t found; /* the name already there, or 0: none, or the root */
};

/*
 * The builder's tables: inodes, their distinct attributes, times beyond 32 bits.
 */

/* Mode and owner of a directory that no member announced. */
static const struct disk_attr builder_directory = {.mode = S_IFDIR | 0755,
                                                   .flags = DATA_KIND_NONE};

/* The number of these attributes, which are added if they are new. -EOVERFLOW; -ENOMEM. */
static int attr_table_number(struct attr_table *table, const struct disk_attr *attr,
                             uint32_t *ret_number)
{
    const struct map_key key = {(uint64_t)attr->mode << 32 | attr->uid,
                                (uint64_t)attr->gid << 32 | attr->flags};
    uint64_t number;
    if (map_get(&table->numbers, key, &number) < 0) {
        number = table->list.count;
        if (number == DISK_ATTR_LIMIT)
            return -EOVERFLOW;
        if (vector_push(&table->list, *attr) < 0 || map_put(&table->numbers, key, number) < 0)
            return -ENOMEM;
    }
    *ret_number = (uint32_t)number;
    return 0;
}

static int builder_set_wide_mtime(struct builder *b, uint32_t inode, int64_t seconds)
{
    if (vector_extend(&b->wide_mtimes, (size_t)inode + 1) < 0)
        return -ENOMEM;
    b->wide_mtimes.at[inode] = seconds;
    return 0;
}

static int builder_new_inode(struct builder *b, const struct builder_inode *inode,
                             uint32_t *ret_inode)
{
    if (b->inodes.count >= ENTRIES_MAX)
        return -EOVERFLOW;
    *ret_inode = (uint32_t)b->inodes.count;
    return vector_push(&b->inodes, *inode);
}

/*
 * Extended attributes: sets, each stored once.
 *
 * Many inodes have the same attributes (a security label, an access list). The attributes of
 * one inode are collected; when another inode's come, they are sorted and become a set. An
 * equal set that exists already is reused.
 *
 * Archives of other systems have attributes that Linux has no place for, such as
 * com.apple.provenance. Programs that copy attributes fail at the first that they can't set, so
 * such attributes are left out, for all formats, and counted.
 */

/* The limits of Linux: XATTR_SIZE_MAX, and XATTR_LIST_MAX for all names, each with its NUL. */
#define XATTR_VALUE_MAX 65536u
#define XATTR_NAMES_MAX 65536u

static int xattrs_compare_names(const struct builder_xattr *x, const struct builder_xattr *y,
                                const char *bytes)
{
    return bytes_compare(bytes + x->name, x->name_len, bytes + y->name, y->name_len);
}

/* Order attributes by name, and equal names by arrival, which is the order of their bytes. */
static int compare_xattrs(const void *a, const void *b, void *bytes)
{
    const struct builder_xattr *x = a, *y = b;
    int compared = xattrs_compare_names(x, y, bytes);
    return compared ? compared : (x->name > y->name) - (x->name < y->name);
}

/* Append the pending attributes to `xattrs` as a set, not yet counted. */
static int builder_append_set(struct builder *b, size_t *ret_bytes)
{
    size_t kept = 0, bytes = 8, names = 0;
    qsort_r(b->pending.at, b->pending.count, sizeof(*b->pending.at), compare_xattrs,
            b->pending_bytes.at);
    for (size_t i = 0; i < b->pending.count; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        if (i + 1 < b->pending.count &&
            xattrs_compare_names(x, x + 1, b->pending_bytes.at) == 0)
            continue; /* the last of equal names counts */
        names += (size_t)x->name_len + 1;
        if (names > XATTR_NAMES_MAX) {
            names -= (size_t)x->name_len + 1;
            b->xattrs_left_out++;
            continue;
        }
        bytes += 8 + (size_t)x->name_len + x->value_len;
        b->pending.at[kept++] = *x;
    }
    size_t padded = (bytes + 7) & ~(size_t)7;
    if (bytes > UINT32_MAX)
        return -E2BIG;
    if (vector_reserve(&b->xattrs, padded) < 0)
        return -ENOMEM;
    b->pending.count = kept;

    char *at = b->xattrs.at + b->xattrs.count;
    memset(at, 0, padded);
    bytes_put_le32(at, (uint32_t)kept);
    bytes_put_le32(at + 4, (uint32_t)(bytes - 8));
    at += 8;
    for (size_t i = 0; i < kept; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        bytes_put_le32(at, x->name_len);
        bytes_put_le32(at + 4, x->value_len);
        memcpy(at + 8, b->pending_bytes.at + x->name, (size_t)x->name_len + x->value_len);
        at += 8 + (size_t)x->name_len + x->value_len;
    }
    *ret_bytes = padded;
    return 0;
}

/* The equal set that exists already, or else the new one of this size at the end. */
static int builder_find_set(struct builder *b, size_t bytes, uint64_t *ret_offset)
{
    const char *set = b->xattrs.at + b->xattrs.count;
    XXH128_hash_t sum = XXH3_128bits_withSeed(set, bytes, b->seed);
    struct map_key key = {sum.high64, sum.low64};
    uint64_t other;
    if (map_get(&b->sets, key, &other) == 0 && b->xattrs.count - other >= bytes &&
        memcmp(b->xattrs.at + other, set, bytes) == 0) {
        *ret_offset = other;
        return 0;
    }
    *ret_offset = b->xattrs.count;
    b->xattrs.count += bytes;
    int r = map_put(&b->sets, key, *ret_offset);
    return r == -EEXIST ? 0 : r; /* two sets with one sum: the first can be found again */
}

/* Turn the collected attributes into a set. */
static int builder_flush_xattrs(struct builder *b)
{
    if (b->pending.count == 0)
        return 0;
    size_t bytes;
    uint64_t offset;
    int r = builder_append_set(b, &bytes);
    if (r == 0)
        r = builder_find_set(b, bytes, &offset);
    if (r < 0)
        return r;
    b->xattr_of.at[b->pending_inode] = offset + 1;
    b->pending.count = 0;
    b->pending_bytes.count = 0;
    return 0;
}

static int builder_append_pending(struct builder *b, const char *name, size_t name_len,
                                  const void *value, size_t value_len)
{
    struct builder_xattr x = {b->pending_bytes.count, (uint32_t)name_len, (uint32_t)value_len};
    if (vector_push(&b->pending, x) < 0 ||
        vector_append(&b->pending_bytes, name, name_len) < 0 ||
        vector_append(&b->pending_bytes, (const char *)value, value_len) < 0)
        return -ENOMEM;
    return 0;
}

/* Start collecting for this inode, beginning with the attributes it already has. */
static int builder_begin_xattrs(struct builder *b, uint32_t inode)
{
    int r = builder_flush_xattrs(b);
    if (r < 0)
        return r;
    if (vector_extend(&b->xattr_of, (size_t)inode + 1) < 0)
        return -ENOMEM;
    b->pending_inode = inode;
    if (!b->xattr_of.at[inode])
        return 0;

    const char *at = b->xattrs.at + b->xattr_of.at[inode] - 1;
    uint32_t count = bytes_le32(at);
    for (at += 8; count > 0; count--) {
        uint32_t name_len = bytes_le32(at), value_len = bytes_le32(at + 4);
        r = builder_append_pending(b, at + 8, name_len, at + 8 + name_len, value_len);
        if (r < 0)
            return r;
        at += 8 + (size_t)name_len + value_len;
    }
    return 0;
}

/* May a file of this mode have it? Only regular files and directories have user attributes. */
static bool xattr_has_place(const char *name, size_t len, size_t value_len, uint32_t mode)
{
    static const char *const namespaces[] = {"user.", "trusted.", "security.", "system."};
    if (len > INDEX_NAME_MAX || value_len > XATTR_VALUE_MAX || memchr(name, '\0', len))
        return false;
    for (size_t i = 0; i < sizeof(namespaces) / sizeof(namespaces[0]); i++) {
        size_t n = strlen(namespaces[i]);
        if (len > n && memcmp(name, namespaces[i], n) == 0)
            return i > 0 || S_ISREG(mode) || S_ISDIR(mode);
    }
    return false;
}

static void builder_leave_out_xattrs(struct builder *b, uint64_t count)
{
    if (__builtin_add_overflow(b->xattrs_left_out, count, &b->xattrs_left_out))
        b->xattrs_left_out = UINT64_MAX;
}

int builder_add_xattr(struct builder *b, uint32_t inode, const char *name, size_t name_len,
                      const void *value, size_t value_len)
{
    if (b->is_written || inode >= b->inodes.count)
        return -EINVAL;
    if (!xattr_has_place(name, name_len, value_len, inode_attr(b, inode)->mode)) {
        builder_leave_out_xattrs(b, 1);
        return 0;
    }
    if (b->pending.count == 0 || b->pending_inode != inode) {
        int r = builder_begin_xattrs(b, inode);
        if (r < 0)
            return r;
    }
    if (b->pending.count >= BUILDER_XATTRS_MAX) {
        builder_leave_out_xattrs(b, 1);
        return 0;
    }
    return builder_append_pending(b, name, name_len, value, value_len);
}

int builder_share_xattrs(struct builder *b, uint32_t inode, uint32_t other)
{
    if (b->is_written || inode >= b->inodes.count || other >= b->inodes.count)
        return -EINVAL;
    int r = builder_flush_xattrs(b);
    if (r == 0)
        r = vector_extend(&b->xattr_of, (size_t)max_u32(inode, other) + 1);
    if (r == 0)
        b->xattr_of.at[inode] = b->xattr_of.at[other];
    return r;
}

/*
 * Data: where the bytes of regular files lie, in the form used on disk; and sums.
 * Everything is checked on arrival, against the size of its file and the size of the archive,
 * so that the back end can name the member.
 */

static bool builder_in_archive(const struct builder *b, uint64_t offset, uint64_t len)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, len, &end) &&
           (!b->archive_bytes || end <= b->archive_bytes);
}

/* Append the sums of pieces of the point that comes next; zeros where there are none. */
static int builder_append_pieces(struct builder *b, const void *pieces)
{
    size_t start = b->points.count * POINT_PIECES_BYTES;
    if (!pieces && b->pieces.count == 0)
        return 0;
    if (vector_extend(&b->pieces, start + POINT_PIECES_BYTES) < 0)
        return -ENOMEM;
    if (pieces)
        memcpy(b->pieces.at + start, pieces, POINT_PIECES_BYTES);
    return 0;
}

/* Append the point of the block that comes next. */
static int builder_append_point(struct builder *b, const struct block_point *point)
{
    if (!block_point_is_valid(point))
        return -EUCLEAN;
    const struct disk_point disk = {
        .sum = htole64(point->sum),
        .window = htole64(b->windows.count),
        .block = htole32((uint32_t)b->blocks.count),
        .window_packed = htole32(point->window_packed),
        .window_bytes = htole32(point->window_bytes),
        .first_bit = htole16((uint16_t)point->first_bit),
        .last_bits = htole16((uint16_t)point->last_bits),
    };
    if (builder_append_pieces(b, point->pieces) < 0)
        return -ENOMEM;
    if (point->window_packed > 0 &&
        vector_append(&b->windows, (const char *)point->window, point->window_packed) < 0)
        return -ENOMEM;
    return vector_push(&b->points, disk);
}

int builder_add_block(struct builder *b, const struct builder_block *block,
                      uint32_t *ret_number)
{
    if (b->is_written)
        return -EINVAL;
    if (block->block_bytes == 0 || block->packed_bytes == 0 || block->codec >= CODEC_COUNT ||
        block->source_offset >> BLOCK_CODEC_SHIFT ||
        codec_has_point(block->codec) != (block->point != NULL) ||
        !builder_in_archive(b, block->source_offset, block->packed_bytes))
        return -EUCLEAN;
    if (b->blocks.count >= UINT32_MAX)
        return -EOVERFLOW;
    int r = block->point ? builder_append_point(b, block->point) : 0;
    if (r < 0)
        return r;
    uint64_t codec = block->codec;
    b->block_bytes_max = max_u32(b->block_bytes_max, block->block_bytes);
    b->codecs |= codec ? 1u << codec : 0;
    const struct disk_block disk = {
        .source_offset = htole64(block->source_offset | codec << BLOCK_CODEC_SHIFT),
        .packed = htole32(block->packed_bytes),
        .block_bytes = htole32(block->block_bytes),
    };
    *ret_number = (uint32_t)b->blocks.count;
    return vector_push(&b->blocks, disk);
}

/* ---- the pieces of a file ---- */

static uint32_t builder_block_bytes(const struct builder *b, uint64_t block)
{
    return le32toh(b->blocks.at[block].block_bytes);
}

/* The `source` of a range that is this piece, or begins with it. */
static uint64_t builder_piece_source(const struct builder_piece *p)
{
    return p->block == BUILDER_NO_BLOCK
               ? p->source_offset
               : RANGE_PACKED | (uint64_t)p->block_offset << 32 | p->block;
}

static int builder_check_piece(const struct builder *b, uint64_t size, uint64_t last_end,
                               const struct builder_piece *p)
{
    if (p->length == 0 || p->offset < last_end || p->offset > size ||
        p->length > size - p->offset)
        return -EUCLEAN;
    if (p->block == BUILDER_NO_BLOCK)
        return p->source_offset < RANGE_PACKED &&
                       builder_in_archive(b, p->source_offset, p->length)
                   ? 0
                   : -EUCLEAN;
    if (p->block >= b->blocks.count || p->block_offset >> 31)
        return -EUCLEAN;
    uint32_t room = builder_block_bytes(b, p->block);
    return p->block_offset <= room && p->length <= room - p->block_offset ? 0 : -EUCLEAN;
}

/* Does the piece go on where a range with this `source`, `length` bytes long, ends? */
static bool builder_goes_on(const struct builder *b, uint64_t source, uint64_t length,
                            const struct builder_piece *p)
{
    if (!(source & RANGE_PACKED))
        return p->block == BUILDER_NO_BLOCK && p->source_offset == source + length;
    uint32_t first = (uint32_t)source;
    uint64_t bytes = builder_block_bytes(b, first);
    uint64_t end = ((source & ~RANGE_PACKED) >> 32) + length;
    if (p->block == BUILDER_NO_BLOCK || p->block != first + end / bytes ||
        p->block_offset != end % bytes || p->block_offset + p->length > bytes)
        return false;
    return p->block_offset > 0 || builder_block_bytes(b, p->block - 1) == bytes;
}

/* Append the file's ranges to the lists. */
static int builder_append_ranges(struct builder *b, uint64_t size,
                                 const struct builder_piece *pieces, size_t count)
{
    size_t words;
    if (count > UINT32_MAX)
        return -EOVERFLOW;
    if (__builtin_mul_overflow(count, 3, &words) || vector_reserve(&b->extents, words + 2) < 0)
        return -ENOMEM;
    uint64_t *list = b->extents.at + b->extents.count, data_bytes = 0, end = 0, ranges = 0;
    uint64_t *range = list + 2; /* the next one */
    for (size_t i = 0; i < count; i++) {
        const struct builder_piece *p = &pieces[i];
        int r = builder_check_piece(b, size, end, p);
        if (r < 0)
            return r;
        data_bytes += p->length;
        if (ranges > 0 && p->offset == end &&
            builder_goes_on(b, le64toh(range[-3]), le64toh(range[-1]), p)) {
            range[-1] = htole64(le64toh(range[-1]) + p->length);
        } else {
            range[0] = htole64(builder_piece_source(p));
            range[1] = htole64(p->offset);
            range[2] = htole64(p->length);
            range += 3;
            ranges++;
        }
        end = p->offset + p->length;
    }
    list[0] = htole64((uint64_t)DISK_RANGES << 32 | ranges);
    list[1] = htole64(data_bytes);
    b->extents.count += (size_t)(range - list);
    return 0;
}

int builder_set_pieces(struct builder *b, uint32_t inode, const struct builder_piece *pieces,
                       size_t count)
{
    if (b->is_written || inode >= b->inodes.count ||
        (inode_attr(b, inode)->flags & DATA_KIND_MASK) != DATA_KIND_EXTENTS ||
        b->inodes.at[inode].data != DATA_UNSET)
        return -EINVAL;
    size_t start = b->extents.count;
    uint64_t size = b->inodes.at[inode].size, data = start * 8;
    uint32_t kind = DATA_KIND_EXTENTS;
    int r = builder_append_ranges(b, size, pieces, count);
    if (r < 0)
        return r;
    const uint64_t *list = b->extents.at + start;
    if (size == 0 || (b->extents.count == start + 5 && le64toh(list[4]) == size)) {
        data = size ? le64toh(list[2]) : 0;
        kind = data & RANGE_PACKED ? DATA_KIND_PACKED : DATA_KIND_STORED;
        data &= ~RANGE_PACKED;
        b->extents.count = start;
    } else if (count == 0) { /* one empty list is enough, and comes last */
        kind |= ATTR_HOLES;
        data = DATA_HOLE;
        b->extents.count = start;
    } else if (le64toh(list[1]) < size) {
        kind |= ATTR_HOLES;
    }
    b->inodes.at[inode].data = data;
    struct disk_attr attr = *inode_attr(b, inode);
    attr.flags = (attr.flags & ~DATA_KIND_MASK) | kind;
    return attr_table_number(&b->attrs, &attr, &b->inodes.at[inode].attr);
}

int builder_set_sum(struct builder *b, uint32_t inode, uint64_t sum)
{
    if (b->is_written || inode >= b->inodes.count)
        return -EINVAL;
    if (vector_extend(&b->sums, (size_t)inode + 1) < 0 ||
        vector_extend(&b->has_sum, (size_t)inode + 1) < 0)
        return -ENOMEM;
    b->sums.at[inode] = sum;
    b->has_sum.at[inode] = 1;
    return 0;
}

/*
 * Paths: where in the tree a member's path leads.
 *
 * Names are found through one hash table for all directories, keyed by parent and name. Its
 * hash has a random seed, so that nobody can prepare an archive whose names all collide.
 * Members of one directory tend to follow each other, so the last directory is remembered and
 * most members cost one probe.
 *
 * A path may lead through a symbolic link of the same archive: in a system image "lib" may
 * lead to "usr/lib", and a later layer brings "lib/x". The link is followed as the kernel
 * would follow it in the mounted tree, so that a reader of that path finds the member. The
 * path never leaves the tree: a link whose target is absolute or leads above the root is not
 * followed, since its meaning in the mount lies outside. Paths of the system itself are never
 * examined. The cost of links in one path is bounded.
 */

#define SLOTS_LEAST 1024    /* of the hash table */
#define LINKS_MAX 40        /* in one path, as in Linux */
#define LINK_BYTES_MAX 4096 /* of all targets in one path */

/* Record a fault of the member at `place`; returns `err`. */
static int builder_refuse(const struct place *place, int err, const char *format, ...)
{
    char member[sizeof(((struct fault *)0)->member)];
    char what[sizeof(((struct fault *)0)->what)];
    snprintf(member, sizeof(member), "%.*s", place->len < INT_MAX ? (int)place->len : INT_MAX,
             place->path);
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return fault_set(place->fault, err, member, place->header_offset, "%s", what);
}

/* ---- names ---- */

/* Find the name that is already at the spot. */
static void path_find_name(const struct builder *b, struct spot *spot)
{
    size_t mask = b->slot_count - 1;
    uint64_t seed = b->seed ^ spot->dir * UINT64_C(0x9e3779b97f4a7c15);
    spot->hash = (uint32_t)(XXH3_64bits_withSeed(spot->name, spot->len, seed) >> 32);
    spot->found = 0; /* the root is no directory's child */
    for (size_t slot = spot->hash & mask; b->slots[slot]; slot = (slot + 1) & mask) {
        uint32_t other = (uint32_t)b->slots[slot];
        if (b->slots[slot] >> 32 == spot->hash && b->names.at[other].parent == spot->dir &&
            name_length(b, other) == spot->len &&
            memcmp(name_text(b, other), spot->name, spot->len) == 0) {
            spot->found = other;
            return;
        }
    }
}

/* Length of the spot's path from the root. */
static uint64_t builder_path_bytes(const struct builder *b, const struct spot *spot)
{
    uint64_t above = (uint32_t)b->inodes.at[b->names.at[spot->dir].inode].size;
    return above + (above > 0) + spot->len;
}

static int path_refuse_long(const struct place *place)
{
    return builder_refuse(place, -ENAMETOOLONG,
                          "has a path of more than %u bytes, which no program can name",
                          INDEX_PATH_MAX);
}

/* Name `inode` at the spot, which must be free. -EOVERFLOW, -ENAMETOOLONG, -ENOMEM. */
static int builder_new_name(struct builder *b, const struct place *place,
                            const struct spot *spot, uint32_t inode)
{
    size_t len = spot->len;
    uint64_t path_bytes = builder_path_bytes(b, spot);
    if (path_bytes > INDEX_PATH_MAX)
        return path_refuse_long(place);
    if (b->names.count >= ENTRIES_MAX)
        return builder_refuse(place, -EOVERFLOW, "is one member more than an index can have");
    if (b->text.count + len >= DISK_NAME_LIMIT)
        return builder_refuse(place, -EOVERFLOW, "is one name more than an index can hold");
    /* Fill at most four fifths. */
    if ((b->names.count + 1) / 4 * 5 >= b->slot_count && b->slot_count <= UINT32_MAX) {
        size_t count = b->slot_count * 2;
        uint64_t *slots = calloc(count, sizeof(*slots));
        if (!slots)
            return -ENOMEM;
        for (size_t i = 0; i < b->slot_count; i++) {
            if (!b->slots[i])
                continue;
            size_t to = (b->slots[i] >> 32) & (count - 1);
            while (slots[to])
                to = (to + 1) & (count - 1);
            slots[to] = b->slots[i];
        }
        free(b->slots);
        b->slots = slots;
        b->slot_count = count;
    }
    uint32_t number = (uint32_t)b->names.count;
    struct builder_name name = {spot->dir, inode, b->text.count << 8 | len};
    if (vector_reserve(&b->text, len) < 0 || vector_push(&b->names, name) < 0)
        return -ENOMEM;
    (void)vector_append(&b->text, spot->name, len);

    size_t mask = b->slot_count - 1;
    size_t slot = spot->hash & mask;
    while (b->slots[slot])
        slot = (slot + 1) & mask;
    b->slots[slot] = (uint64_t)spot->hash << 32 | number;
    b->inodes.at[b->names.at[spot->dir].inode].data++;
    if (is_directory_inode(b, inode))
        b->inodes.at[inode].size = path_bytes | (uint64_t)number << 32;
    return 0;
}

/* Encode an entry's time as on disk. Returns whether only EXTRA can hold it. */
static bool builder_pack_mtime(int64_t sec, uint32_t nsec, uint64_t *ret_mtime)
{
    bool is_wide = sec <= -DISK_MTIME_BIAS || sec >= DISK_MTIME_LIMIT - DISK_MTIME_BIAS;
    uint64_t biased = is_wide ? 1 : (uint64_t)(sec + DISK_MTIME_BIAS);
    *ret_mtime = biased << DISK_NSEC_BITS | nsec;
    return is_wide;
}

/* ---- paths ---- */

static int path_check_part(const struct place *place, const char *part, size_t len)
{
    if (len == 2 && part[0] == '.' && part[1] == '.')
        return builder_refuse(place, -EINVAL, "has '..' in its name");
    if (len > INDEX_NAME_MAX)
        return builder_refuse(place, -ENAMETOOLONG, "has a name of %zu bytes, more than %u",
                              len, INDEX_NAME_MAX);
    return 0;
}

/* Check the names on the way to a member before any of their directories is created. */
static int path_check_way(const struct place *place, size_t len)
{
    const char *path = place->path, *part;
    size_t part_len, path_bytes = 0;
    int r = 0;
    while (r == 0 && path_next_name(&path, &len, &part, &part_len)) {
        path_bytes += part_len + 1;
        r = path_bytes < INDEX_PATH_MAX ? path_check_part(place, part, part_len)
                                        : path_refuse_long(place);
    }
    return r;
}

/* Add a directory that must exist although no member announced it. */
static int path_add_parent(struct builder *b, const struct place *place,
                           const struct spot *spot, uint32_t *ret_name)
{
    struct disk_attr attr = builder_directory;
    attr.uid = place->uid;
    attr.gid = place->gid;
    struct builder_inode inode = {.nlink = 1};
    bool is_wide = builder_pack_mtime(place->mtime_sec, place->mtime_nsec, &inode.mtime);
    attr.flags |= is_wide ? ATTR_WIDE_MTIME : 0;
    int r = attr_table_number(&b->attrs, &attr, &inode.attr);
    if (r < 0)
        return r;
    uint32_t number;
    r = builder_new_inode(b, &inode, &number);
    if (r < 0)
        return r;
    if (is_wide && builder_set_wide_mtime(b, number, place->mtime_sec) < 0)
        return -ENOMEM;
    r = builder_new_name(b, place, spot, number);
    if (r < 0)
        return r;
    *ret_name = (uint32_t)b->names.count - 1;
    return 0;
}

static int path_walk(struct builder *b, struct place *place, uint32_t dir, const char *path,
                     size_t len, uint32_t *ret_dir);

/* The directory that the symbolic link `link` leads to. */
static int path_follow(struct builder *b, struct place *place, uint32_t link, uint32_t *ret_dir)
{
    const struct builder_inode *inode = &b->inodes.at[b->names.at[link].inode];
    const char *target = b->strings.at + inode->data; /* b->strings does not grow on the way */
    size_t len = inode->size;
    if (target[0] == '/')
        return builder_refuse(place, -ENOTDIR,
                              "lies below the symbolic link '%.*s', which leads out of the "
                              "archive",
                              (int)name_length(b, link), name_text(b, link));
    place->bytes += len;
    if (++place->links > LINKS_MAX || place->bytes > LINK_BYTES_MAX)
        return builder_refuse(place, -ELOOP,
                              "lies below symbolic links that lead in circles, or too far");
    place->depth++;
    int r = path_walk(b, place, b->names.at[link].parent, target, len, ret_dir);
    place->depth--;
    return r;
}

/* The directory called `name` in `dir`. */
static int path_enter(struct builder *b, struct place *place, uint32_t dir, const char *name,
                      size_t len, uint32_t *ret_dir)
{
    if (place->depth > 0 && len == 2 && name[0] == '.' && name[1] == '.') {
        *ret_dir = b->names.at[dir].parent;
        return dir != 0 ? 0
                        : builder_refuse(place, -ENOTDIR,
                                         "lies below a symbolic link that leads out of the "
                                         "archive");
    }
    int r = path_check_part(place, name, len);
    if (r < 0)
        return r;
    struct spot spot = {.dir = dir, .name = name, .len = len};
    path_find_name(b, &spot);
    if (!spot.found && !place->create)
        return -ENOENT;
    r = spot.found ? 0 : path_add_parent(b, place, &spot, &spot.found);
    if (r < 0)
        return r;
    uint32_t mode = inode_attr(b, b->names.at[spot.found].inode)->mode;
    if (S_ISLNK(mode))
        return path_follow(b, place, spot.found, ret_dir);
    if (!S_ISDIR(mode))
        return builder_refuse(place, -ENOTDIR, "lies below a member that is not a directory");
    *ret_dir = spot.found;
    return 0;
}

/* The directory at `path`, relative to `dir`. */
static int path_walk(struct builder *b, struct place *place, uint32_t dir, const char *path,
                     size_t len, uint32_t *ret_dir)
{
    const char *part;
    size_t part_len;
    while (path_next_name(&path, &len, &part, &part_len)) {
        int r = path_enter(b, place, dir, part, part_len, &dir);
        if (r < 0)
            return r;
    }
    *ret_dir = dir;
    return 0;
}

/* Call after a name got another inode: paths through it may lead elsewhere now. */
static void builder_forget_path(struct builder *b)
{
    b->last_path.count = 0;
    b->last_dir = 0;
}

/* The directory at the first `len` bytes of the path; the last result is remembered. */
static int path_find_directory(struct builder *b, struct place *place, size_t len, bool create,
                               uint32_t *ret_dir)
{
    if (len == b->last_path.count && memcmp(b->last_path.at, place->path, len) == 0 &&
        is_directory_inode(b, b->names.at[b->last_dir].inode)) {
        *ret_dir = b->last_dir;
        return 0;
    }
    place->create = create;
    place->depth = place->links = 0;
    place->bytes = 0;
    int r = path_check_way(place, len);
    if (r == 0)
        r = path_walk(b, place, 0, place->path, len, ret_dir);
    if (r < 0)
        return r;
    builder_forget_path(b);
    if (vector_append(&b->last_path, place->path, len) < 0)
        return -ENOMEM;
    b->last_dir = *ret_dir;
    return 0;
}

/*
 * Resolve a path: its directory, and what its last name is there; the root has no name.
 * `create` creates missing directories on its way; without it they are -ENOENT. Other errors:
 * see builder_add; -ELOOP: too many symbolic links.
 */
static int builder_locate(struct builder *b, struct place *place, bool create,
                          struct spot *ret_spot)
{
    const char *path = place->path;
    size_t end = place->len;
    *ret_spot = (struct spot){.dir = 0};
    if (memchr(path, '\0', end))
        return builder_refuse(place, -EINVAL, "has a zero byte in its name");
    for (;;) { /* without slashes and dots at its end */
        while (end > 0 && path[end - 1] == '/')
            end--;
        if (end > 0 && path[end - 1] == '.' && (end == 1 || path[end - 2] == '/'))
            end--;
        else
            break;
    }
    if (end == 0)
        return 0;
    const char *slash = memrchr(path, '/', end);
    size_t dir_len = slash ? (size_t)(slash - path) + 1 : 0;
    ret_spot->name = path + dir_len;
    ret_spot->len = end - dir_len;
    int r = path_check_part(place, ret_spot->name, ret_spot->len);
    if (r == 0)
        r = path_find_directory(b, place, dir_len, create, &ret_spot->dir);
    if (r == 0)
        path_find_name(b, ret_spot);
    return r;
}

#define NLINK_MAX (UINT32_MAX - 1) /* the last value is NLINK_PLACED */

static int member_no_memory(const struct builder *b, struct fault *fault)
{
    return fault_set(fault, -ENOMEM, NULL, FAULT_NO_OFFSET,
                     "not enough memory to index more than %zu members", b->names.count);
}

/* ---- members ---- */

static int member_symlink(struct builder *b, const struct place *place, const struct node *m,
                          struct builder_inode *inode)
{
    if (m->link_len == 0)
        return builder_refuse(place, -EINVAL, "is a symbolic link to nothing");
    if (m->link_len > INDEX_SYMLINK_MAX)
        return builder_refuse(place, -ENAMETOOLONG,
                              "is a symbolic link of %zu bytes, more than %u", m->link_len,
                              INDEX_SYMLINK_MAX);
    if (memchr(m->link, '\0', m->link_len))
        return builder_refuse(place, -EINVAL, "is a symbolic link with a zero byte");
    inode->size = m->link_len;
    inode->data = b->strings.count;
    return vector_append(&b->strings, m->link, m->link_len);
}

/* Turn a member into an inode, without names yet. */
static int member_make_inode(struct builder *b, const struct place *place, const struct node *m,
                             struct builder_inode *ret_inode, bool *ret_is_wide)
{
    struct builder_inode inode = {.nlink = 0};
    uint32_t kind = DATA_KIND_NONE;
    uint64_t end;
    int r = 0;
    if (m->mtime_nsec > 999999999)
        return builder_refuse(place, -EUCLEAN,
                              "has a time with more than 999999999 nanoseconds");
    switch (m->mode & S_IFMT) {
    case S_IFREG:
        if (m->size_bytes > INT64_MAX)
            return builder_refuse(place, -EUCLEAN, "has a size that no file can have");
        inode.size = m->size_bytes;
        kind = m->has_pieces ? DATA_KIND_EXTENTS : DATA_KIND_STORED;
        inode.data = m->has_pieces ? DATA_UNSET : m->size_bytes ? m->data_offset : 0;
        if (!m->has_pieces && (__builtin_add_overflow(m->data_offset, m->size_bytes, &end) ||
                               (b->archive_bytes && end > b->archive_bytes))) {
            builder_refuse(place, -EUCLEAN, "size %llu lies past the end of file",
                           (unsigned long long)m->size_bytes);
            fault_advise(place->fault,
                         "the archive is cut off or damaged: make or copy it anew");
            return -EUCLEAN;
        }
        break;
    case S_IFLNK:
        r = member_symlink(b, place, m, &inode);
        break;
    case S_IFCHR:
    case S_IFBLK:
        inode.data = m->rdev_major | (uint64_t)m->rdev_minor << 32;
        break;
    case S_IFDIR:
    case S_IFIFO:
    case S_IFSOCK:
        break;
    default:
        r = builder_refuse(place, -EINVAL, "is of a type that is not known (mode %#o)",
                           m->mode);
    }
    if (r < 0)
        return r;
    *ret_is_wide = builder_pack_mtime(m->mtime_sec, m->mtime_nsec, &inode.mtime);
    struct disk_attr attr = {.mode = m->mode & (S_IFMT | 07777), .uid = m->uid, .gid = m->gid};
    attr.flags = kind | (*ret_is_wide ? ATTR_WIDE_MTIME : 0);
    r = attr_table_number(&b->attrs, &attr, &inode.attr);
    if (r == -EOVERFLOW)
        return builder_refuse(
            place, r, "has one combination of owner and mode more than an index can hold");
    if (r < 0)
        return r;
    *ret_inode = inode;
    return 0;
}

/* Bind the place's name to an existing inode. */
static int member_bind(struct builder *b, struct place *place, uint32_t inode)
{
    struct spot spot;
    int r = builder_locate(b, place, true, &spot);
    if (r < 0)
        return r;
    if (spot.len == 0)
        return builder_refuse(place, -EISDIR,
                              "is not a directory, but has the name of the root");
    if (!spot.found) {
        r = builder_new_name(b, place, &spot, inode);
        if (r < 0)
            return r;
    } else {
        uint32_t old_inode = b->names.at[spot.found].inode;
        if (old_inode == inode)
            return 0;
        if (is_directory_inode(b, old_inode) && b->inodes.at[old_inode].data > 0)
            return builder_refuse(place, -EISDIR,
                                  "takes the place of a directory with members");
        b->inodes.at[old_inode].nlink--;
        b->names.at[spot.found].inode = inode;
        if (is_directory_inode(b, inode))
            b->inodes.at[inode].size = builder_path_bytes(b, &spot) | (uint64_t)spot.found
                                                                          << 32;
        builder_forget_path(b);
    }
    b->inodes.at[inode].nlink++;
    return 0;
}

/* The inode that `target` has now. */
static int link_find_target(struct builder *b, const struct place *link, const char *target,
                            size_t target_len, uint32_t *ret_inode)
{
    struct place place = {.path = target, .len = target_len};
    struct spot spot;
    int r = builder_locate(b, &place, false, &spot);
    if (r == 0 && spot.len > 0 && !spot.found)
        r = -ENOENT;
    int shown = target_len < 100 ? (int)target_len : 100;
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return builder_refuse(link, -ENOENT,
                              "is a hard link to '%.*s', which no member before it is", shown,
                              target);
    uint32_t inode = b->names.at[spot.found].inode;
    if (is_directory_inode(b, inode))
        return builder_refuse(link, -EPERM, "is a hard link to the directory '%.*s'", shown,
                              target);
    *ret_inode = inode;
    return 0;
}

static int link_add(struct builder *b, struct place *place, uint32_t inode)
{
    const struct builder_inode *target = &b->inodes.at[inode];
    if (target->nlink >= NLINK_MAX)
        return builder_refuse(place, -EMLINK, "is one link more than a file can have");
    const struct disk_attr *attr = inode_attr(b, inode);
    place->uid = attr->uid;
    place->gid = attr->gid;
    place->mtime_sec = (int64_t)(target->mtime >> DISK_NSEC_BITS) - DISK_MTIME_BIAS;
    place->mtime_nsec = (uint32_t)(target->mtime & ((1u << DISK_NSEC_BITS) - 1));
    return member_bind(b, place, inode);
}

int builder_add(struct builder *b, const char *path, size_t len, const struct node *member,
                struct fault *fault, uint32_t *ret_inode)
{
    if (b->is_written)
        return -EINVAL;
    struct place place = {
        .path = path,
        .len = len,
        .header_offset = member->header_offset,
        .fault = fault,
        .uid = member->uid,
        .gid = member->gid,
        .mtime_sec = member->mtime_sec,
        .mtime_nsec = member->mtime_nsec,
    };
    uint32_t number = 0;
    if (member->is_hardlink) {
        int r = link_find_target(b, &place, member->link, member->link_len, &number);
        if (r == 0)
            r = link_add(b, &place, number);
        if (r == 0)
            *ret_inode = number;
        return r == -ENOMEM ? member_no_memory(b, fault) : r;
    }
    struct builder_inode inode;
    bool is_wide = false, is_new = true;
    int r = member_make_inode(b, &place, member, &inode, &is_wide);
    if (r == 0 && S_ISDIR(member->mode)) { /* a directory may come again, or be the root */
        struct spot spot;
        r = builder_locate(b, &place, true, &spot);
        if (r == 0 && (spot.found || spot.len == 0)) {
            number = b->names.at[spot.found].inode;
            is_new = !is_directory_inode(b, number);
        }
    }
    if (r == 0 && is_new) {
        r = builder_new_inode(b, &inode, &number);
    } else if (r == 0) { /* the same children */
        b->inodes.at[number].attr = inode.attr;
        b->inodes.at[number].mtime = inode.mtime;
    }
    if (r == 0 && is_wide)
        r = builder_set_wide_mtime(b, number, member->mtime_sec);
    if (r == 0 && is_new)
        r = member_bind(b, &place, number);
    if (r < 0)
        return r == -ENOMEM ? member_no_memory(b, fault) : r;
    *ret_inode = number;
    return 0;
}

int builder_add_in(struct builder *b, uint32_t directory, const char *name, size_t len,
                   const struct node *member, struct fault *fault, uint32_t *inode)
{
    if (b->is_written || directory >= b->inodes.count || !is_directory_inode(b, directory))
        return -EINVAL;
    const bool has_path = member && member->path_len;
    const struct place place = {.path = has_path ? member->path : name,
                                .len = has_path ? member->path_len : len,
                                .header_offset =
                                    member ? member->header_offset : FAULT_NO_OFFSET,
                                .fault = fault};
    struct spot spot = {
        .dir = (uint32_t)(b->inodes.at[directory].size >> 32), .name = name, .len = len};
    struct builder_inode new;
    bool is_wide = false;
    path_find_name(b, &spot);
    if (spot.found) {
        uint32_t there = b->names.at[spot.found].inode;
        bool joins =
            member ? S_ISDIR(member->mode) && is_directory_inode(b, there) : there == *inode;
        *inode = joins ? there : *inode;
        return joins ? 1 : -EEXIST;
    }
    int r = member ? member_make_inode(b, &place, member, &new, &is_wide) : 0;
    if (r == 0 && member)
        r = builder_new_inode(b, &new, inode);
    if (r == 0 && is_wide)
        r = builder_set_wide_mtime(b, *inode, member->mtime_sec);
    if (r == 0)
        r = builder_new_name(b, &place, &spot, *inode);
    if (r < 0)
        return r == -ENOMEM ? member_no_memory(b, fault) : r;
    b->inodes.at[*inode].nlink++;
    return 0;
}

int builder_has(struct builder *b, const char *path, size_t len)
{
    struct place place = {.path = path, .len = len};
    struct spot spot;
    int r = builder_locate(b, &place, false, &spot);
    return r == -ENOENT ? 0 : r < 0 ? r : spot.len == 0 || spot.found;
}

/*
 * ---- left-out members: no directory can show them ----
 *
 * Programs that extract complain about such a member, extract all others and report at the end
 * that something was wrong. The builder does the same: an archive of a million files is not
 * worthless for one hard link whose file was not packed. The index records the left-out
 * members, so that every mount can report them, even one that finds the index already made.
 */

static void builder_put_left_out(char *at, const struct fault *why, uint32_t member_len,
                                 uint32_t what_len)
{
    memset(at, 0, DISK_LEFT_OUT_HEAD + disk_left_out_texts(member_len, what_len));
    bytes_put_le64(at, why->offset);
    bytes_put_le32(at + 8, member_len);
    bytes_put_le32(at + 12, what_len);
    memcpy(at + DISK_LEFT_OUT_HEAD, why->member, member_len);
    memcpy(at + DISK_LEFT_OUT_HEAD + member_len, why->what, what_len);
}

/* The kind of a member that is left out with this error; LEFT_OUT_OTHER: none is. */
static enum left_out_kind left_out_kind(int err)
{
    static const struct {
        int err;
        enum left_out_kind kind;
    } kinds[] = {
        {EINVAL, LEFT_OUT_NAME},    {ENAMETOOLONG, LEFT_OUT_NAME}, {ENOTDIR, LEFT_OUT_PLACE},
        {EISDIR, LEFT_OUT_PLACE},   {ELOOP, LEFT_OUT_PLACE},       {ENOENT, LEFT_OUT_LINK},
        {EPERM, LEFT_OUT_LINK},     {ENOTBLK, LEFT_OUT_DEVICE},    {ENOKEY, LEFT_OUT_ENCRYPTED},
        {ENOTSUP, LEFT_OUT_METHOD}, {EILSEQ, LEFT_OUT_DAMAGED},    {EXDEV, LEFT_OUT_INCOMPLETE},
        {ESPIPE, LEFT_OUT_BEHIND},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (err == kinds[i].err)
            return kinds[i].kind;
    return LEFT_OUT_OTHER;
}

bool builder_may_leave_out(int err)
{
    /* -ENOTSUP may be about the whole archive. */
    return left_out_kind(-err) != LEFT_OUT_OTHER && err != -ENOTSUP;
}

static int builder_count_left_out(struct builder *b, uint64_t count, enum left_out_kind kind)
{
    if (vector_extend(&b->left_out, sizeof(uint64_t)) < 0)
        return -ENOMEM;
    uint64_t *const counts[] = {&b->left_out_count, &b->left_out_kinds[kind]};
    for (size_t i = 0; i < 2; i++)
        if (__builtin_add_overflow(*counts[i], count, counts[i]))
            *counts[i] = UINT64_MAX;
    bytes_put_le64(b->left_out.at, b->left_out_count);
    return 0;
}

/* The reason for a member that is counted already. */
static int builder_tell_left_out(struct builder *b, const struct fault *why)
{
    uint32_t member_len = (uint32_t)strnlen(why->member, sizeof(why->member));
    uint32_t what_len = (uint32_t)strnlen(why->what, sizeof(why->what));
    size_t bytes = DISK_LEFT_OUT_HEAD + disk_left_out_texts(member_len, what_len);
    if (b->left_out_told == DISK_LEFT_OUT_TOLD)
        return 0;
    if (vector_reserve(&b->left_out, bytes) < 0)
        return -ENOMEM;
    b->left_out_told++;
    builder_put_left_out(b->left_out.at + b->left_out.count, why, member_len, what_len);
    b->left_out.count += bytes;
    return 0;
}

int builder_leave_out(struct builder *b, const struct fault *why)
{
    int r = builder_count_left_out(b, 1, left_out_kind(why->err));
    return r < 0 ? r : builder_tell_left_out(b, why);
}

int builder_leave_out_as(struct builder *b, const struct index *index)
{
    uint64_t counts[LEFT_OUT_KINDS], cursor = 0;
    struct fault why;
    int r = 0;
    builder_leave_out_xattrs(b, index_xattrs_left_out(index));
    if (index_left_out(index) == 0)
        return 0;
    index_left_out_kinds(index, counts);
    for (size_t i = 0; r == 0 && i < LEFT_OUT_KINDS; i++)
        if (counts[i])
            r = builder_count_left_out(b, counts[i], (enum left_out_kind)i);
    while (r == 0 && (r = index_left_out_next(index, &cursor, &why)) == 0)
        r = builder_tell_left_out(b, &why);
    return r == -ENOENT ? 0 : r;
}

/*
 * The image: sections through one buffer, which takes a page's sum as the page fills. Once the
 * entries are in order, the sections are written one after the other. The header goes last,
 * since it holds the totals counted on the way. Tables needed only for adding are freed at the
 * start, so that writing takes no more memory than adding did.
 */

#define OUT_BYTES (16u * DISK_PAGE_BYTES)
#define SECTIONS_MAX (SECTION_IDS - 1)

struct image {
    struct builder *b;
    const struct builder_header *about;
    uint32_t entries;
    bool has_sums;
    uint32_t *name_at; /* the name at each position */
    /* In the order of the entries, whenever the place of data became known; 0 is all zero. */
    struct attr_table attrs;
    VECTOR(struct disk_extra) extras;
    struct disk_header header;

    int fd;
    uint64_t offset; /* of the image in its file */
    uint8_t *buf;
    size_t used;
    uint64_t flushed; /* bytes of the area already written out */
    VECTOR(uint64_t) page_sums;
    VECTOR(struct disk_section) sections;
};

/* ---- output ---- */

/* Write the rest of the buffer. After the last section. */
static int image_flush(struct image *image)
{
    for (size_t at = 0; at < image->used; at += DISK_PAGE_BYTES) {
        size_t len = (size_t)min_u64(image->used - at, DISK_PAGE_BYTES);
        if (vector_push(&image->page_sums, htole64(XXH3_64bits(image->buf + at, len))) < 0)
            return -ENOMEM;
    }
    uint64_t area = le64toh(image->header.area_offset);
    int r = write_at(image->fd, image->buf, image->used, image->offset + area + image->flushed);
    image->flushed += image->used;
    image->used = 0;
    return r;
}

static int image_put(struct image *image, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    while (len > 0) {
        size_t n = (size_t)min_u64(OUT_BYTES - image->used, len);
        memcpy(image->buf + image->used, p, n);
        image->used += n;
        p += n;
        len -= n;
        if (image->used == OUT_BYTES) {
            int r = image_flush(image);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* A section begins, and the one before it ends; the last one ends with the area. */
static int image_begin_section(struct image *image, enum disk_section_id id)
{
    static const uint8_t zeros[8];
    uint64_t here = le64toh(image->header.area_offset) + image->flushed + image->used;
    size_t padding = (8 - image->used % 8) % 8;
    struct disk_section section = {
        .id = htole32(id),
        .record_bytes = htole32(disk_record_bytes(id)),
        .offset = htole64(here + padding),
    };
    if (image->sections.count > 0) {
        struct disk_section *before = &image->sections.at[image->sections.count - 1];
        before->length = htole64(here - le64toh(before->offset));
    }
    int r = image_put(image, zeros, padding);
    return r < 0 ? r : vector_push(&image->sections, section);
}

/* Keep a value of SECTION_EXTRA, for the entry at this position. -ENOMEM. */
static int image_add_extra(struct image *image, uint32_t position, uint32_t kind,
                           uint64_t value)
{
    struct disk_extra extra = {htole64(value), htole32(position), htole32(kind)};
    return vector_push(&image->extras, extra);
}

/* ---- header ---- */

/* Add to a total of the header. */
static void image_add_saturated(uint64_t *sum, uint64_t value)
{
    uint64_t total;
    if (__builtin_add_overflow(le64toh(*sum), value, &total))
        total = UINT64_MAX;
    *sum = htole64(total);
}

/*
 * Fill in what does not depend on the sections. Room for their table is reserved before its
 * content is known; sections that few archives have take none in the others.
 */
static void image_begin_header(struct image *image)
{
    const struct builder *b = image->b;
    const struct builder_header *about = image->about;
    struct disk_header *h = &image->header;
    const size_t records = SECTIONS_MAX - (about->window_count == 0) -
                           2 * (b->left_out_count == 0) - (b->xattrs_left_out == 0) -
                           (about->recipe_len == 0) - (b->points.count == 0) -
                           (b->windows.count == 0) - (b->pieces.count == 0);
    *h = (struct disk_header){
        .version = htole32(DISK_VERSION),
        .sections_offset = htole32(sizeof(*h)),
        .area_offset = htole64(sizeof(*h) + records * sizeof(struct disk_section)),
        .page_bytes = htole32(DISK_PAGE_BYTES),
        .features = htole32(about->has_joined ? DISK_HAS_JOINED : 0),
        .format = htole32(about->format),
        .incompatible = htole64((b->codecs ? DISK_NEEDS_CODECS : 0) |
                                (about->sum_kind ? DISK_NEEDS_SUM_KIND : 0) |
                                (b->points.count ? DISK_NEEDS_POINTS : 0)),
        .codec = htole32(about->codec),
        .codecs = htole16((uint16_t)b->codecs),
        .sum_kind = htole16((uint16_t)about->sum_kind),
        .block_bytes = htole32(about->block_bytes),
        .entries = htole32(image->entries),
        .archive_mtime_nsec = htole32(about->archive_mtime_nsec),
        .archive_bytes = htole64(about->archive_bytes),
        .archive_mtime_sec = (int64_t)htole64((uint64_t)about->archive_mtime_sec),
        .archive_fingerprint = htole64(about->archive_fingerprint),
        .end_marker_offset = htole64(about->end_marker_offset),
    };
    memcpy(h->magic, DISK_MAGIC, sizeof(h->magic));
    memcpy(h->identifier, about->identifier, sizeof(h->identifier));
    static const char made_by[] = "onepot " ONEPOT_VERSION;
    static_assert(sizeof(made_by) <= sizeof(h->made_by), "the name of the program");
    memcpy(h->made_by, made_by, sizeof(made_by));
}

/* Write the page sums after the area, then header and section table before it. */
static int image_put_header(struct image *image, uint64_t *ret_image_bytes)
{
    struct disk_header *h = &image->header;
    struct disk_section *last = &image->sections.at[image->sections.count - 1];
    uint64_t area_end = le64toh(h->area_offset) + image->flushed;
    uint64_t sums_offset = (area_end + 7) & ~UINT64_C(7);
    size_t sums_bytes = image->page_sums.count * 8;
    last->length = htole64(area_end - le64toh(last->offset));
    h->area_bytes = htole64(image->flushed);
    h->sums_offset = htole64(sums_offset);
    h->sums_sum = htole64(XXH3_64bits(image->page_sums.at, sums_bytes));
    h->image_bytes = htole64(sums_offset + sums_bytes);
    h->directories = htole64(image->b->dirs.count);
    h->sections = htole32((uint32_t)image->sections.count);

    uint8_t bytes[sizeof(*h) + SECTIONS_MAX * sizeof(struct disk_section)] = {0};
    size_t table_bytes = image->sections.count * sizeof(struct disk_section);
    h->header_bytes = htole32((uint32_t)(sizeof(*h) + table_bytes));
    h->header_sum = 0;
    memcpy(bytes, h, sizeof(*h));
    memcpy(bytes + sizeof(*h), image->sections.at, table_bytes);
    h->header_sum = htole64(XXH3_64bits(bytes, sizeof(*h) + table_bytes));
    memcpy(bytes, h, sizeof(*h));

    int r = write_at(image->fd, image->page_sums.at, sums_bytes, image->offset + sums_offset);
    if (r == 0)
        r = write_at(image->fd, bytes, le64toh(h->area_offset), image->offset);
    if (r == 0)
        *ret_image_bytes = sums_offset + sums_bytes;
    return r;
}

/*
 * Order: sorts children by name as memcmp would, and numbers the tree breadth
 * first.
 *
 * Names in a dataset differ in a few digits after a long common prefix. So the prefix is found
 * first, and the eight bytes after it form a number to sort by; names that agree in those are
 * sorted the same way by what follows. Directories archived in order, as many are, are
 * detected and cost one pass.
 */

/* One name of a directory, while it is sorted. */
struct sort_item {
    uint64_t key; /* eight bytes of the name, as a number */
    uint64_t name;
};

/* All are children of one directory, whose names agree in `depth` bytes. */
static void order_sort(const struct builder *b, struct sort_item *items, size_t count,
                       size_t depth)
{
    if (count < 2)
        return;
    const char *text = name_text(b, (uint32_t)items[0].name) + depth;
    size_t common = name_length(b, (uint32_t)items[0].name) - depth; /* bytes, of all names */
    for (size_t i = 1; i < count && common > 0; i++) {
        uint32_t name = (uint32_t)items[i].name;
        const char *other = name_text(b, name) + depth;
        size_t len = name_length(b, name) - depth, same = 0;
        common = len < common ? len : common;
        while (same < common && text[same] == other[same])
            same++;
        common = same;
    }
    depth += common;
    bool is_sorted = true;
    for (size_t i = 0; i < count; i++) {
        uint32_t name = (uint32_t)items[i].name;
        size_t len = name_length(b, name);
        uint64_t key = 0; /* a name that ends sorts first, since no name has a zero byte */
        if (len > depth)
            memcpy(&key, name_text(b, name) + depth, len - depth < 8 ? len - depth : 8);
        items[i].key = be64toh(key);
        is_sorted = is_sorted && (i == 0 || items[i - 1].key <= items[i].key);
    }
    if (!is_sorted)
        qsort(items, count, sizeof(*items), compare_u64); /* by the key */

    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && items[end].key == items[i].key; end++)
            ;
        order_sort(b, items + i, end - i, depth + 8);
    }
}

/* ---- the tree ---- */

/*
 * Number the tree. name_at[position] is the name at each position, `dirs` has the positions of
 * directories, and the inodes of directories have `data` and `size` as on disk. `name_at` has
 * room for each name.
 */
static int builder_number(struct builder *b, uint32_t *name_at)
{
    size_t count = b->names.count;
    uint64_t largest = 1; /* directory */
    for (size_t i = 0; i < b->inodes.count; i++)
        if (is_directory_inode(b, (uint32_t)i) && b->inodes.at[i].data > largest)
            largest = b->inodes.at[i].data;
    auto_free uint32_t *by_parent = calloc(count, sizeof(*by_parent));
    auto_free uint32_t *ends = calloc(count, sizeof(*ends));
    auto_free struct sort_item *items = calloc((size_t)largest, sizeof(*items));
    if (!by_parent || !ends || !items)
        return -ENOMEM;

    /*
     * Group names by parent, in the order in which they were added. Those of `p` end up in
     * by_parent[ends[p - 1] .. ends[p]).
     */
    for (size_t i = 1; i < count; i++)
        ends[b->names.at[i].parent]++;
    uint32_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t n = ends[i];
        ends[i] = sum;
        sum += n;
    }
    for (size_t i = 1; i < count; i++)
        by_parent[ends[b->names.at[i].parent]++] = (uint32_t)i;

    uint32_t placed = 1;
    name_at[0] = 0;
    for (uint32_t position = 0; position < placed; position++) {
        uint32_t name = name_at[position];
        uint32_t inode = b->names.at[name].inode;
        if (!is_directory_inode(b, inode))
            continue;
        struct builder_inode *dir = &b->inodes.at[inode];
        uint32_t children = (uint32_t)dir->data;
        for (uint32_t i = 0; i < children; i++)
            items[i].name = by_parent[ends[name] - children + i];
        order_sort(b, items, children, 0);
        dir->data = placed | (uint64_t)children << 32;
        dir->size = 0;
        for (uint32_t i = 0; i < children; i++) {
            name_at[placed++] = (uint32_t)items[i].name;
            dir->size += is_directory_inode(b, b->names.at[items[i].name].inode);
        }
        if (vector_push(&b->dirs, htole32(position)) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* How far ahead of its use a record is prefetched. */
#define AHEAD 12

/* Marks an inode that has its entry already: `data` is then its position. */
#define NLINK_PLACED UINT32_MAX

/* Names are not visited in memory order: fetches the ones that come after `position`.
 */
static void image_prefetch(const struct image *image, uint32_t position, bool texts)
{
    const struct builder *b = image->b;
    if ((uint64_t)position + 2 * AHEAD < b->names.count)
        __builtin_prefetch(&b->names.at[image->name_at[position + 2 * AHEAD]]);
    if ((uint64_t)position + AHEAD >= b->names.count)
        return;
    uint32_t name = image->name_at[position + AHEAD];
    __builtin_prefetch(texts ? (const void *)name_text(b, name)
                             : &b->inodes.at[b->names.at[name].inode]);
}

/* ---- entries ---- */

/* The place of a list without ranges, for files that are one hole. */
static int image_find_no_ranges(struct builder *b, uint64_t *ret_data)
{
    const uint64_t none[] = {htole64((uint64_t)DISK_RANGES << 32), 0};
    if (b->no_ranges == 0) {
        b->no_ranges = b->extents.count * 8 + 1;
        if (vector_append(&b->extents, none, 2) < 0)
            return -ENOMEM;
    }
    *ret_data = b->no_ranges - 1;
    return 0;
}

/* Add a regular inode to the totals. */
static int image_settle_regular(struct image *image, uint32_t number, uint32_t *flags)
{
    struct builder *b = image->b;
    struct builder_inode *inode = &b->inodes.at[number];
    uint64_t data_bytes = inode->size;
    if (image->has_sums && image->about->sum_kind != SUM_MIXED &&
        (number >= b->has_sum.count || !b->has_sum.at[number]))
        return -EINVAL;
    if (inode->data == DATA_UNSET && inode->size > 0)
        return -EINVAL;
    if (inode->data == DATA_HOLE && image_find_no_ranges(b, &inode->data) < 0)
        return -ENOMEM;
    if (inode->data == DATA_UNSET) {
        inode->data = 0;
        *flags = (*flags & ~DATA_KIND_MASK) | DATA_KIND_STORED;
    } else if ((*flags & DATA_KIND_MASK) == DATA_KIND_EXTENTS) {
        data_bytes = le64toh(b->extents.at[inode->data / 8 + 1]);
    }
    image_add_saturated(&image->header.total_bytes, inode->size);
    image_add_saturated(&image->header.data_bytes, data_bytes);
    return 0;
}

static int image_put_entry(struct image *image, uint32_t position, uint64_t name_offset)
{
    struct builder *b = image->b;
    uint32_t number = b->names.at[image->name_at[position]].inode;
    struct builder_inode *inode = &b->inodes.at[number];
    bool is_alias = inode->nlink == NLINK_PLACED;
    struct disk_attr attr = *inode_attr(b, number);
    uint32_t attr_number;
    int r = 0;
    if (is_alias) {
        attr.flags = DATA_KIND_ALIAS;
    } else { /* the inode's first name: settle its data and values of EXTRA */
        if (S_ISREG(attr.mode))
            r = image_settle_regular(image, number, &attr.flags);
        if (r == 0 && inode->nlink > 1) {
            attr.flags |= ATTR_NLINK;
            r = image_add_extra(image, position, EXTRA_NLINK, inode->nlink);
        }
        if (r == 0 && number < b->xattr_of.count && b->xattr_of.at[number]) {
            attr.flags |= ATTR_XATTRS;
            r = image_add_extra(image, position, EXTRA_XATTRS, b->xattr_of.at[number] - 1);
        }
        if (r == 0 && attr.flags & ATTR_WIDE_MTIME)
            r = image_add_extra(image, position, EXTRA_MTIME,
                                (uint64_t)b->wide_mtimes.at[number]);
        image_add_saturated(&image->header.inodes, 1);
    }
    if (r == 0)
        r = attr_table_number(&image->attrs, &attr, &attr_number);
    if (r < 0)
        return r;
    if (S_ISREG(attr.mode))
        image_add_saturated(&image->header.files, 1);

    struct disk_entry e = {
        .name_attr = htole64(name_offset | (uint64_t)attr_number << DISK_NAME_BITS),
        .size = htole64(is_alias ? 0 : inode->size),
        .data = htole64(inode->data),
        .mtime = htole64(inode->mtime),
    };
    if (inode->nlink > 1 && !is_alias) {
        inode->nlink = NLINK_PLACED;
        inode->data = position;
    }
    return image_put(image, &e, sizeof(e));
}

static int image_put_entries_and_names(struct image *image)
{
    const struct builder *b = image->b;
    uint32_t count = (uint32_t)b->names.count;
    uint64_t name_offset = 0;
    int r = image_begin_section(image, SECTION_ENTRIES);
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        image_prefetch(image, i, false);
        r = image_put_entry(image, i, name_offset);
        name_offset += name_length(b, image->name_at[i]);
    }
    image->header.name_bytes = htole64(name_offset);
    if (r == 0)
        r = image_begin_section(image, SECTION_NAMES);
    for (uint32_t i = 1; r == 0 && i < count; i++) {
        image_prefetch(image, i, true);
        r = image_put(image, name_text(b, image->name_at[i]),
                      name_length(b, image->name_at[i]));
    }
    return r;
}

/* An inode's sum is at its first name; aliases and all but regular files have 0. */
static int image_put_content_sums(struct image *image)
{
    const struct builder *b = image->b;
    image->header.features |= htole32(DISK_HAS_SUMS);
    int r = image_begin_section(image, SECTION_SUMS);
    for (uint32_t i = 0; r == 0 && i < b->names.count; i++) {
        uint32_t number = b->names.at[image->name_at[i]].inode;
        const struct builder_inode *inode = &b->inodes.at[number];
        bool is_alias = inode->nlink == NLINK_PLACED && inode->data != i;
        bool has_sum = number < b->sums.count && S_ISREG(inode_attr(b, number)->mode);
        uint64_t sum = htole64(has_sum && !is_alias ? b->sums.at[number] : 0);
        r = image_put(image, &sum, sizeof(sum));
    }
    return r;
}

/* ---- digest ---- */

/* Done before the entries are written, as that changes the inodes. */
static int image_make_digest(struct image *image)
{
    const struct builder *b = image->b;
    struct digest digest;
    int r = digest_begin(&digest, true);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < b->names.count; i++) {
        image_prefetch(image, i, false);
        uint32_t name = image->name_at[i], number = b->names.at[name].inode;
        const struct builder_inode *inode = &b->inodes.at[number];
        const struct disk_attr *attr = inode_attr(b, number);
        const struct digest_entry e = {
            .name = name_text(b, name),
            .name_len = name_length(b, name),
            .mode = attr->mode,
            .size = inode->size,
            .data = inode->data,
            .sum = number < b->sums.count ? b->sums.at[number] : 0,
            .has_holes = attr->flags & ATTR_HOLES,
            .target = S_ISLNK(attr->mode) ? b->strings.at + inode->data : NULL,
        };
        digest_add(&digest, &e);
    }
    image->header.digest_kind = htole32(digest_end(&digest, image->header.digest));
    return 0;
}

static int image_put_area(struct image *image)
{
    struct builder *b = image->b;
    const struct builder_header *about = image->about;
    uint64_t kinds[LEFT_OUT_KINDS], xattrs_left_out = htole64(b->xattrs_left_out);
    uint32_t flags = 0; /* of the whole index */
    int r = image_put_entries_and_names(image);
    for (size_t i = 0; i < image->attrs.list.count; i++) {
        struct disk_attr *a = &image->attrs.list.at[i];
        flags |= a->flags;
        *a = (struct disk_attr){htole32(a->mode), htole32(a->uid), htole32(a->gid),
                                htole32(a->flags)};
    }
    image->header.features |= htole32((flags & ATTR_HOLES ? DISK_HAS_HOLES : 0) |
                                      (flags & ATTR_NLINK ? DISK_HAS_HARDLINKS : 0) |
                                      (flags & ATTR_XATTRS ? DISK_HAS_XATTRS : 0));
    for (size_t i = 0; i < LEFT_OUT_KINDS; i++)
        kinds[i] = htole64(b->left_out_kinds[i]);
    const struct {
        enum disk_section_id id;
        const void *bytes;
        uint64_t records;
    } sections[] = {
        {SECTION_ATTRS, image->attrs.list.at, image->attrs.list.count},
        {SECTION_DIRS, b->dirs.at, b->dirs.count},
        {SECTION_EXTENTS, b->extents.at, b->extents.count},
        {SECTION_BLOCKS, b->blocks.at, b->blocks.count},
        {SECTION_EXTRA, image->extras.at, image->extras.count},
        {SECTION_STRINGS, b->strings.at, b->strings.count},
        {SECTION_XATTRS, b->xattrs.at, b->xattrs.count / 8},
        {SECTION_POINTS, b->points.at, b->points.count},
        {SECTION_WINDOWS, b->windows.at, b->windows.count},
        {SECTION_PIECES, b->pieces.at, b->pieces.count / POINT_PIECES_BYTES},
        {SECTION_SUMS, NULL, image->has_sums ? b->names.count : 0},
        {SECTION_WINDOW_SUMS, about->window_sums, about->window_count},
        {SECTION_LEFT_OUT, b->left_out.at, b->left_out.count / 8},
        {SECTION_LEFT_OUT_KINDS, kinds, b->left_out_count ? LEFT_OUT_KINDS : 0},
        {SECTION_XATTRS_LEFT_OUT, &xattrs_left_out, b->xattrs_left_out > 0},
        {SECTION_RECIPE, about->recipe, about->recipe_len},
    };
    for (size_t i = 0; r == 0 && i < sizeof(sections) / sizeof(sections[0]); i++) {
        const uint64_t records = sections[i].records;
        if (records > 0 && sections[i].id == SECTION_SUMS) {
            r = image_put_content_sums(image);
        } else if (records > 0) {
            r = image_begin_section(image, sections[i].id);
            if (r == 0)
                r = image_put(image, sections[i].bytes,
                              records * disk_record_bytes(sections[i].id));
        }
    }
    return r < 0 ? r : image_flush(image);
}

static int builder_write_fault(struct fault *fault, int err)
{
    if (err != -ENOSPC && err != -EDQUOT)
        return fault_set(fault, err, NULL, FAULT_NO_OFFSET, "the index can't be written: %s%s",
                         fault_errno(err), fault_limit(err));
    return fault_set_advised(fault, err, NULL, FAULT_NO_OFFSET,
                             "free space there, or have the index saved elsewhere",
                             "no space is left for the index");
}

uint64_t builder_image_bytes_max(const struct builder *b)
{
    const uint64_t links =
        b->names.count > b->inodes.count ? b->names.count - b->inodes.count : 0;
    const uint64_t extras = links + b->wide_mtimes.count + b->xattr_of.count;
    uint64_t bytes =
        b->names.count * (sizeof(struct disk_entry) + sizeof(uint32_t) + sizeof(uint64_t)) +
        b->text.count + b->attrs.list.count * sizeof(struct disk_attr) +
        extras * sizeof(struct disk_extra) + b->extents.count * sizeof(uint64_t) +
        b->blocks.count * sizeof(struct disk_block) + b->strings.count + b->xattrs.count +
        2 * b->pending_bytes.count + b->points.count * sizeof(struct disk_point) +
        b->windows.count + b->pieces.count + b->left_out.count;
    return bytes + bytes / DISK_PAGE_BYTES * sizeof(uint64_t) + 2 * DISK_PAGE_BYTES;
}

int builder_write(struct builder *b, const struct builder_header *header, int fd,
                  uint64_t offset, struct fault *fault, uint64_t *ret_image_bytes)
{
    if (b->is_written || offset % 8 || codec_has_point(header->codec) ||
        b->block_bytes_max > header->block_bytes)
        return builder_write_fault(fault, -EINVAL);
    b->is_written = true;
    struct image image = {.b = b,
                          .about = header,
                          .entries = (uint32_t)b->names.count,
                          .has_sums = b->sums.count > 0 || header->has_sums,
                          .fd = fd,
                          .offset = offset,
                          .buf = malloc(OUT_BYTES)};
    uint32_t none;
    int r = image.buf ? vector_reserve(&image.sections, SECTIONS_MAX) : -ENOMEM;
    if (r == 0)
        r = attr_table_number(&image.attrs, &(struct disk_attr){0}, &none);
    if (r == 0)
        r = builder_flush_xattrs(b);
    /* Only adding needed these. */
    free(b->slots);
    b->slots = NULL;
    b->slot_count = 0;
    map_free(&b->sets);
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    image.name_at = calloc(b->names.count, sizeof(*image.name_at));
    if (r == 0)
        r = image.name_at ? builder_number(b, image.name_at) : -ENOMEM;
    if (r == 0) {
        image_begin_header(&image);
        if (image.has_sums && header->sum_kind == SUM_XXH3) /* without sums: not worth it */
            r = image_make_digest(&image);
    }
    if (r == 0)
        r = image_put_area(&image);
    if (r == 0)
        r = image_put_header(&image, ret_image_bytes);
    free(image.name_at);
    vector_free(&image.attrs.list);
    map_free(&image.attrs.numbers);
    vector_free(&image.extras);
    free(image.buf);
    vector_free(&image.page_sums);
    vector_free(&image.sections);
    return r < 0 ? builder_write_fault(fault, r) : 0;
}

/* ---- life ---- */

int builder_new(struct builder **ret_builder)
{
    struct builder *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->pending_inode = UINT32_MAX;
    b->slot_count = SLOTS_LEAST;
    b->slots = calloc(b->slot_count, sizeof(*b->slots));
    if (getrandom(&b->seed, sizeof(b->seed), GRND_NONBLOCK) < 0)
        b->seed = (uint64_t)(uintptr_t)b;
    struct builder_inode root = {.nlink = 1,
                                 .mtime = (uint64_t)DISK_MTIME_BIAS << DISK_NSEC_BITS};
    uint32_t inode;
    if (!b->slots || attr_table_number(&b->attrs, &builder_directory, &root.attr) < 0 ||
        builder_new_inode(b, &root, &inode) < 0 ||
        vector_push(&b->names, (struct builder_name){0}) < 0 ||
        vector_reserve(&b->last_path, 1) < 0 || vector_reserve(&b->text, 1) < 0) {
        builder_free(b);
        return -ENOMEM;
    }
    *ret_builder = b;
    return 0;
}

void builder_free(struct builder *b)
{
    if (!b)
        return;
    vector_free(&b->names);
    vector_free(&b->inodes);
    vector_free(&b->text);
    free(b->slots);
    vector_free(&b->attrs.list);
    map_free(&b->attrs.numbers);
    vector_free(&b->last_path);
    vector_free(&b->strings);
    vector_free(&b->extents);
    vector_free(&b->blocks);
    vector_free(&b->points);
    vector_free(&b->pieces);
    vector_free(&b->windows);
    vector_free(&b->wide_mtimes);
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    vector_free(&b->xattrs);
    vector_free(&b->xattr_of);
    map_free(&b->sets);
    vector_free(&b->dirs);
    vector_free(&b->left_out);
    vector_free(&b->sums);
    vector_free(&b->has_sum);
    free(b);
}

void builder_set_archive_size(struct builder *b, uint64_t archive_bytes)
{
    b->archive_bytes = archive_bytes;
}
