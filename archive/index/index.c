/*
 * The index, reading side: an opened image, and all questions to it.
 *
 * There is one way to its bytes, index_bytes(): it checks that a range lies within its section,
 * and the sums of the pages that it touches. A caller that reads a number there must still
 * check its value.
 */
#include "index.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "bytes.h"
#include "checksum.h"
#include "cleanup.h"
#include "digest.h"
#include "index_format.h"
#include "index_records.h"
#include "lost_pages.h"
#include "numbers.h"
#include "path.h"
#include "write_at.h"

/*
 * As ext4 reports for a small directory: 0 makes some programs think that it is empty. It has
 * no data bytes, so du counts files only.
 */
#define DIRECTORY_SIZE 4096u
/* An image of so few bytes is read: that takes half as long, and a union opens thousands. */
#define READ_BYTES (16u << 10)
#define LINKS_MAX 40u /* as the kernel's MAXSYMLINKS */

struct index_section {
    const uint8_t *bytes;
    uint64_t area_offset;
    uint64_t length;
};

struct index {
    struct index_info info;
    struct index_section sections[SECTION_IDS];
    uint32_t dirs;
    uint32_t blocks;
    uint64_t extras;

    const uint8_t *area;
    uint64_t area_bytes;
    const uint64_t *page_sums;
    _Atomic uint8_t *page_good; /* one per page: 1 once its sum was found right */
    _Atomic uint8_t *dir_good;  /* one bit per entry: its children were found to be its own */

    const uint8_t *image;

    void *map; /* the image, from the memory page in which it starts */
    size_t map_bytes;
    struct lost_pages *guard; /* of the map */
    void *copy;               /* of the image, if it is not mapped */
};

/* ---- records ---- */

/* Compare a page with its sum; false if it is damaged. */
static bool index_check_page(const struct index *index, uint64_t page)
{
    uint64_t at = page << DISK_PAGE_BITS;
    uint64_t len = min_u64(index->area_bytes - at, DISK_PAGE_BYTES);
    if (XXH3_64bits(index->area + at, len) != le64toh(index->page_sums[page]))
        return false;
    atomic_store_explicit(&index->page_good[page], 1, memory_order_release);
    return true;
}

/* `len` (> 0) bytes at `offset` of a section, or NULL if they can't be trusted. */
static inline const void *index_bytes(const struct index *index, enum disk_section_id id,
                                      uint64_t offset, uint64_t len)
{
    const struct index_section *section = &index->sections[id];
    if (offset > section->length || len > section->length - offset || len == 0 ||
        lost_pages_any(index->guard))
        return NULL;
    uint64_t first = (section->area_offset + offset) >> DISK_PAGE_BITS;
    uint64_t last = (section->area_offset + offset + len - 1) >> DISK_PAGE_BITS;
    for (uint64_t page = first; page <= last; page++)
        if (!atomic_load_explicit(&index->page_good[page], memory_order_acquire) &&
            !index_check_page(index, page))
            return NULL;
    return section->bytes + offset;
}

uint64_t index_section_bytes(const struct index *index, enum disk_section_id id)
{
    return index->sections[id].length;
}

/* ---- entries ---- */

/* An entry, as far as all callers need it in host order. */
struct index_entry {
    uint32_t position;
    uint32_t mode;
    uint32_t flags;
    uint64_t size;
    uint64_t data;
    const struct disk_entry *disk;
    const struct disk_attr *attr;
};

/* The entry at a position. -EINVAL: no such position; -EUCLEAN. */
static int index_entry(const struct index *index, uint32_t position,
                       struct index_entry *ret_entry)
{
    if (position >= index->info.entries)
        return -EINVAL;
    const struct disk_entry *e =
        index_bytes(index, SECTION_ENTRIES, (uint64_t)position * sizeof(*e), sizeof(*e));
    if (!e)
        return -EUCLEAN;
    uint64_t attr = le64toh(e->name_attr) >> DISK_NAME_BITS;
    const struct disk_attr *a =
        index_bytes(index, SECTION_ATTRS, attr * sizeof(*a), sizeof(*a));
    if (!a)
        return -EUCLEAN;
    *ret_entry = (struct index_entry){
        .position = position,
        .mode = le32toh(a->mode),
        .flags = le32toh(a->flags),
        .size = le64toh(e->size),
        .data = le64toh(e->data),
        .disk = e,
        .attr = a,
    };
    uint32_t kind = ret_entry->flags & DATA_KIND_MASK;
    if (kind == 0 || e->mtime == 0 || (S_ISDIR(ret_entry->mode) && kind != DATA_KIND_NONE))
        return -EUCLEAN;
    return 0;
}

/* The same for its inode, following an alias. */
static int index_inode(const struct index *index, uint32_t position,
                       struct index_entry *ret_entry)
{
    struct index_entry e;
    int r = index_entry(index, position, &e);
    if (r < 0)
        return r;
    if ((e.flags & DATA_KIND_MASK) == DATA_KIND_ALIAS) {
        if (e.data >= position)
            return -EUCLEAN;
        r = index_entry(index, (uint32_t)e.data, &e);
        if (r < 0)
            return r;
        if ((e.flags & DATA_KIND_MASK) == DATA_KIND_ALIAS || S_ISDIR(e.mode))
            return -EUCLEAN;
    }
    *ret_entry = e;
    return 0;
}

int index_inode_position(const struct index *index, uint32_t position, uint32_t *ret_position)
{
    struct index_entry e;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    *ret_position = e.position;
    return 0;
}

/* A value from EXTRA. -EUCLEAN if it is missing, as the attributes promised it. */
static int index_extra(const struct index *index, uint32_t position, enum disk_extra_kind kind,
                       uint64_t *ret_value)
{
    uint64_t key = (uint64_t)position << 32 | (uint32_t)kind;
    uint64_t low = 0, high = index->extras;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct disk_extra *x =
            index_bytes(index, SECTION_EXTRA, mid * sizeof(*x), sizeof(*x));
        if (!x)
            return -EUCLEAN;
        uint64_t at = (uint64_t)le32toh(x->position) << 32 | le32toh(x->kind);
        if (at == key) {
            *ret_value = le64toh(x->value);
            return 0;
        }
        if (at < key)
            low = mid + 1;
        else
            high = mid;
    }
    return -EUCLEAN;
}

/*
 * The bytes of a list of ranges, as the list states; checked against the most that its ranges
 * can cover.
 */
static int index_ranges_bytes(const struct index *index, const struct index_entry *e,
                              uint64_t *ret_bytes)
{
    const uint64_t *list = index_bytes(index, SECTION_EXTENTS, e->data, 16);
    if (!list || e->data % 8 || le64toh(list[0]) >> 32 != DISK_RANGES)
        return -EUCLEAN;
    uint64_t count = (uint32_t)le64toh(list[0]), bytes = le64toh(list[1]), most;
    uint64_t each =
        max_u64(index->info.archive_bytes, (uint64_t)index->info.block_bytes * index->blocks);
    if (count > (index->sections[SECTION_EXTENTS].length - e->data - 16) / 24 ||
        (bytes == 0) != (count == 0) ||
        (!__builtin_mul_overflow(count, each, &most) && bytes > most))
        return -EUCLEAN;
    *ret_bytes = bytes;
    return 0;
}

/*
 * Can a file be as large as the entry says? The index must have room for its blocks, and the
 * archive for its bytes.
 */
static int index_node_bytes(const struct index *index, const struct index_entry *e,
                            uint64_t *ret_data_bytes)
{
    uint64_t data = e->size, block = index->info.block_bytes;
    int r = e->size > INT64_MAX ? -EUCLEAN : 0;
    switch (e->flags & DATA_KIND_MASK) {
    case DATA_KIND_STORED:
        if (e->size > index->info.archive_bytes)
            r = -EUCLEAN;
        break;
    case DATA_KIND_PACKED:
        if (e->size > 0 && ((uint32_t)e->data >= index->blocks ||
                            e->size > block * (index->blocks - (uint32_t)e->data)))
            r = -EUCLEAN;
        break;
    case DATA_KIND_EXTENTS:
        if (r == 0)
            r = index_ranges_bytes(index, e, &data);
        break;
    default:
        r = -EUCLEAN;
    }
    if (r < 0 || data > e->size)
        return -EUCLEAN;
    *ret_data_bytes = data;
    return 0;
}

int index_node(const struct index *index, uint32_t position, struct node *ret_node)
{
    struct index_entry e;
    uint64_t size = 0, data = 0, device = 0, links = 1;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    const uint64_t mtime = le64toh(e.disk->mtime);
    const uint32_t mtime_nsec = (uint32_t)(mtime & ((1u << DISK_NSEC_BITS) - 1));
    uint64_t mtime_sec = (mtime >> DISK_NSEC_BITS) - DISK_MTIME_BIAS;
    if (e.mode & ~(uint32_t)(S_IFMT | 07777))
        return -EUCLEAN;
    if (S_ISREG(e.mode)) {
        size = e.size;
        r = index_node_bytes(index, &e, &data);
    } else if (S_ISDIR(e.mode)) {
        size = DIRECTORY_SIZE;
        links = e.size + 2;
    } else if (S_ISLNK(e.mode)) {
        size = e.size;
        r = e.size == 0 || e.size > INDEX_SYMLINK_MAX ? -EUCLEAN : 0;
    } else if (S_ISCHR(e.mode) || S_ISBLK(e.mode)) {
        device = e.data;
    } else if (!S_ISFIFO(e.mode) && !S_ISSOCK(e.mode)) {
        r = -EUCLEAN;
    }
    if (r == 0 && e.flags & ATTR_WIDE_MTIME)
        r = index_extra(index, e.position, EXTRA_MTIME, &mtime_sec);
    if (r == 0 && e.flags & ATTR_NLINK && !S_ISDIR(e.mode))
        r = index_extra(index, e.position, EXTRA_NLINK, &links);
    if (r == 0 && (mtime_nsec > 999999999 || links == 0 || links > UINT32_MAX ||
                   lost_pages_any(index->guard)))
        r = -EUCLEAN;
    if (r < 0)
        return r;
    ret_node->mode = e.mode;
    ret_node->uid = le32toh(e.attr->uid);
    ret_node->gid = le32toh(e.attr->gid);
    ret_node->rdev_major = (uint32_t)device;
    ret_node->rdev_minor = (uint32_t)(device >> 32);
    ret_node->mtime_nsec = mtime_nsec;
    ret_node->mtime_sec = (int64_t)mtime_sec;
    ret_node->size_bytes = size;
    ret_node->position = e.position;
    ret_node->nlink = (uint32_t)links;
    ret_node->data_bytes = data;
    ret_node->has_xattrs = e.flags & ATTR_XATTRS;
    ret_node->has_holes = S_ISREG(e.mode) && e.flags & ATTR_HOLES;
    return 0;
}

/* ---- names and directories ---- */

/*
 * A hostile image can't cause endless loops. A child lies after its parent, so no path is
 * endless. And no entry is the child of two directories. The parent of an entry is found by a
 * binary search in DIRS, whatever DIRS holds. The positions for which that search ends at one
 * place of DIRS form a range, and the ranges of different places do not overlap. So if the
 * first and the last child of a directory both lead to its place, then so do all between them,
 * and no other directory can claim one. index_children() tests just this, once for each
 * directory used; hence a walk of the whole tree meets each entry once at most.
 */

/* Where the name of an entry lies; whether a file may have that name is not checked. */
static int index_raw_name(const struct index *index, uint32_t position, const char **ret_name,
                          size_t *ret_len)
{
    uint32_t records = position + 1 < index->info.entries ? 2 : 1;
    const struct disk_entry *e = index_bytes(
        index, SECTION_ENTRIES, (uint64_t)position * sizeof(*e), records * sizeof(*e));
    if (!e)
        return -EUCLEAN;
    uint64_t start = le64toh(e[0].name_attr) & (DISK_NAME_LIMIT - 1);
    uint64_t end = records == 2 ? le64toh(e[1].name_attr) & (DISK_NAME_LIMIT - 1)
                                : index->sections[SECTION_NAMES].length;
    if (end <= start || end - start > INDEX_NAME_MAX)
        return -EUCLEAN;
    const char *name = index_bytes(index, SECTION_NAMES, start, end - start);
    if (!name || name[0] == '\0' || name[end - start - 1] == '\0')
        return -EUCLEAN; /* zeros would mislead a search */
    *ret_name = name;
    *ret_len = (size_t)(end - start);
    return 0;
}

int index_name(const struct index *index, uint32_t position, const char **ret_name,
               size_t *ret_len)
{
    if (position >= index->info.entries)
        return -EINVAL;
    if (position == INDEX_ROOT) {
        *ret_name = "";
        *ret_len = 0;
        return 0;
    }
    int r = index_raw_name(index, position, ret_name, ret_len);
    return r == 0 && !path_is_name(*ret_name, *ret_len) ? -EUCLEAN : r;
}

/* The directory at a given place of DIRS. */
static int index_dir_at(const struct index *index, uint32_t place, struct index_entry *ret_dir)
{
    const uint32_t *p = index_bytes(index, SECTION_DIRS, (uint64_t)place * 4, 4);
    if (!p || le32toh(*p) >= index->info.entries)
        return -EUCLEAN;
    return index_entry(index, le32toh(*p), ret_dir);
}

/*
 * The last place in DIRS whose directory has its first child at or before `position`. The
 * proof at the head of this file relies on this being a plain binary search.
 */
static int index_find_owner(const struct index *index, uint32_t position, uint32_t *ret_place,
                            struct index_entry *ret_dir)
{
    uint32_t low = 0, high = index->dirs;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        struct index_entry dir;
        int r = index_dir_at(index, mid, &dir);
        if (r < 0)
            return r;
        if ((uint32_t)dir.data <= position)
            low = mid;
        else
            high = mid;
    }
    *ret_place = low;
    return index_dir_at(index, low, ret_dir);
}

int index_children(const struct index *index, uint32_t directory, uint32_t *ret_first,
                   uint32_t *ret_count)
{
    struct index_entry dir, owner;
    int r = index_entry(index, directory, &dir);
    if (r < 0)
        return r;
    if (!S_ISDIR(dir.mode))
        return -ENOTDIR;
    _Atomic uint8_t *good = &index->dir_good[dir.position / 8];
    uint8_t bit = (uint8_t)(1u << (dir.position % 8));
    uint32_t first = (uint32_t)dir.data, count = (uint32_t)(dir.data >> 32), place, last_place;
    if (count > 0 && (first <= dir.position || first >= index->info.entries ||
                      count > index->info.entries - first))
        return -EUCLEAN;
    if (!(atomic_load_explicit(good, memory_order_relaxed) & bit)) {
        if (count > 0) {
            r = index_find_owner(index, first, &place, &owner);
            if (r == 0)
                r = index_find_owner(index, first + count - 1, &last_place, &owner);
            if (r < 0)
                return r;
            if (place != last_place || owner.position != dir.position)
                return -EUCLEAN;
        }
        atomic_fetch_or_explicit(good, bit, memory_order_relaxed);
    }
    *ret_first = first;
    *ret_count = count;
    return 0;
}

int index_walk_next(struct index_walk *w)
{
    const char *name;
    size_t len;
    if (w->enters) {
        struct index_level level = {.directory = w->position, .path_len = w->path.count};
        w->enters = false;
        int r = index_children(w->index, w->position, &level.next, &level.count);
        if (r == 0 && level.path_len > 0)
            w->path.at[level.path_len - 1] = '/';
        if (r == 0)
            r = vector_push(&w->levels, level);
        if (r < 0 && r != -ENOTDIR)
            return r;
    }
    for (; w->levels.count > 0; w->levels.count--) {
        struct index_level *level = &w->levels.at[w->levels.count - 1];
        if (level->count == 0)
            continue;
        level->count--;
        w->directory = level->directory;
        w->position = level->next++;
        w->path.count = level->path_len;
        int r = w->has_paths ? index_name(w->index, w->position, &name, &len) : 1;
        if (r == 0)
            r = vector_append(&w->path, name, len);
        if (r == 0)
            r = vector_push(&w->path, '\0');
        return r < 0 ? r : 1;
    }
    return 0;
}

void index_walk_free(struct index_walk *w)
{
    vector_free(&w->path);
    vector_free(&w->levels);
}

int index_lookup(const struct index *index, uint32_t directory, const char *name, size_t len,
                 uint32_t *ret_position)
{
    uint32_t low, count;
    int r = index_children(index, directory, &low, &count);
    if (r < 0)
        return r;
    while (count > 0) {
        uint32_t half = count / 2;
        const char *other;
        size_t other_len;
        r = index_raw_name(index, low + half, &other, &other_len);
        if (r < 0)
            return r;
        int compared = bytes_compare(name, len, other, other_len);
        if (compared == 0) {
            if (!path_is_name(other, other_len))
                return -EUCLEAN;
            *ret_position = low + half;
            return 0;
        }
        if (compared > 0) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return -ENOENT;
}

int index_parent(const struct index *index, uint32_t position, uint32_t *ret_parent)
{
    if (position >= index->info.entries)
        return -EINVAL;
    if (position == INDEX_ROOT) {
        *ret_parent = INDEX_ROOT;
        return 0;
    }
    uint32_t place;
    struct index_entry dir;
    int r = index_find_owner(index, position, &place, &dir);
    if (r < 0)
        return r;
    uint32_t first = (uint32_t)dir.data;
    uint32_t count = (uint32_t)(dir.data >> 32);
    if (!S_ISDIR(dir.mode) || dir.position >= position || first > position ||
        position - first >= count)
        return -EUCLEAN;
    *ret_parent = dir.position;
    return 0;
}

int index_resolve_from(const struct index *index, uint32_t directory, const char *path,
                       size_t len, uint32_t *ret_position)
{
    uint32_t position = directory;
    const char *name;
    size_t name_len;
    while (path_next_name(&path, &len, &name, &name_len)) {
        int r = path_are_dots(name, name_len)
                    ? -EINVAL
                    : index_lookup(index, position, name, name_len, &position);
        if (r < 0)
            return r;
    }
    *ret_position = position;
    return 0;
}

int index_resolve(const struct index *index, const char *path, uint32_t *ret_position)
{
    return index_resolve_from(index, INDEX_ROOT, path, strlen(path), ret_position);
}

int index_path(const struct index *index, uint32_t position, char *buf, size_t size,
               size_t *ret_len)
{
    if (position >= index->info.entries)
        return -EINVAL;
    if (size == 0)
        return -ENAMETOOLONG;
    /*
     * Built from the last name to the first at the end of the buffer, then moved to its start.
     */
    size_t at = size - 1;
    buf[at] = '\0';
    bool is_last = true;
    while (position != INDEX_ROOT) {
        const char *name;
        size_t len;
        int r = index_name(index, position, &name, &len);
        if (r < 0)
            return r;
        if (at < len + !is_last)
            return -ENAMETOOLONG;
        if (!is_last)
            buf[--at] = '/';
        at -= len;
        memcpy(buf + at, name, len);
        is_last = false;
        r = index_parent(index, position, &position);
        if (r < 0)
            return r;
    }
    size_t len = size - 1 - at;
    memmove(buf, buf + at, len + 1);
    *ret_len = len;
    return 0;
}

/*
 * ---- data: where the bytes of files lie, targets of symbolic links, attributes, sums ----
 *
 * Extents are returned one at a time and never collected. So nothing is allocated, and a false
 * count costs no more than the bounds check that it fails.
 */

static bool index_in_archive(const struct index *index, uint64_t offset, uint64_t len)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, len, &end) && end <= index->info.archive_bytes;
}

/* ---- lists of ranges ---- */

struct range {
    uint64_t source;
    uint64_t logical;
    uint64_t length;
};

static int index_read_range(const struct index *index, uint64_t list, uint64_t number,
                            struct range *ret_range)
{
    const uint64_t *p = index_bytes(index, SECTION_EXTENTS, list + 16 + number * 24, 24);
    if (!p)
        return -EUCLEAN;
    *ret_range = (struct range){
        .source = le64toh(p[0]), .logical = le64toh(p[1]), .length = le64toh(p[2])};
    return ret_range->length ? 0 : -EUCLEAN;
}

/* The number of the first range that begins after `offset`. */
static int index_range_behind(const struct index *index, uint64_t list, uint64_t count,
                              uint64_t offset, uint64_t *ret_number)
{
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        struct range range;
        int r = index_read_range(index, list, mid, &range);
        if (r < 0)
            return r;
        if (range.logical <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    *ret_number = low;
    return 0;
}

/* ---- blocks ---- */

/* The block of this number: its fields of an extent. */
static int index_read_block(const struct index *index, uint64_t number,
                            struct extent *ret_block)
{
    const struct disk_block *b =
        index_bytes(index, SECTION_BLOCKS, number * sizeof(*b), sizeof(*b));
    if (!b)
        return -EUCLEAN;
    uint64_t offset = le64toh(b->source_offset);
    uint32_t codec = (uint32_t)(offset >> BLOCK_CODEC_SHIFT);
    struct extent block = {
        .kind = EXTENT_BLOCK,
        .block = (uint32_t)number,
        .source_offset = offset & ((UINT64_C(1) << BLOCK_CODEC_SHIFT) - 1),
        .codec = codec ? (enum codec)codec : index->info.codec,
        .packed_bytes = le32toh(b->packed),
        .block_bytes = le32toh(b->block_bytes),
    };
    if (block.packed_bytes == 0 || block.block_bytes == 0 ||
        block.block_bytes > index->info.block_bytes ||
        (codec && (codec >= CODEC_COUNT || !(index->info.codecs & 1u << codec))) ||
        !index_in_archive(index, block.source_offset, block.packed_bytes))
        return -EUCLEAN;
    *ret_block = block;
    return 0;
}

/*
 * The extent from `skip` on, of at most `length` bytes, of packed data that begins at `place`:
 * see DATA_KIND_PACKED.
 */
static int index_packed_extent(const struct index *index, uint64_t place, uint64_t skip,
                               uint64_t length, struct extent *extent)
{
    struct extent block;
    uint64_t first = (uint32_t)place, at;
    int r = index_read_block(index, first, &block);
    if (r < 0)
        return r;
    uint64_t bytes = block.block_bytes;
    if (__builtin_add_overflow(place >> 32, skip, &at) || at / bytes >= index->blocks - first)
        return -EUCLEAN;
    r = at < bytes ? 0 : index_read_block(index, first + at / bytes, &block);
    if (r < 0)
        return r;
    at %= bytes;
    length = min_u64(length, bytes - at);
    if (at > block.block_bytes || length > block.block_bytes - at)
        return -EUCLEAN;
    block.offset = extent->offset;
    block.length = length;
    block.block_offset = (uint32_t)at;
    *extent = block;
    return 0;
}

/* ---- points ---- */

/* The point of this block, and its number. -EUCLEAN: it has none. */
static int index_find_point(const struct index *index, uint32_t block,
                            struct disk_point *ret_point, uint64_t *ret_number)
{
    uint64_t low = 0, high = index->info.points;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct disk_point *p =
            index_bytes(index, SECTION_POINTS, mid * sizeof(*p), sizeof(*p));
        if (!p)
            return -EUCLEAN;
        uint32_t number = le32toh(p->block);
        if (number == block) {
            *ret_point = *p;
            *ret_number = mid;
            return 0;
        }
        if (number < block)
            low = mid + 1;
        else
            high = mid;
    }
    return -EUCLEAN;
}

/* NULL: there are none. */
static const void *index_pieces(const struct index *index, uint64_t number)
{
    static const uint8_t none[POINT_PIECES_BYTES];
    const void *pieces =
        index->info.has_pieces
            ? index_bytes(index, SECTION_PIECES, number * sizeof(none), sizeof(none))
            : NULL;
    return pieces && memcmp(pieces, none, sizeof(none)) != 0 ? pieces : NULL;
}

int index_point(const struct index *index, uint32_t block, struct block_point *ret_point)
{
    struct disk_point disk;
    uint64_t number;
    int r = index_find_point(index, block, &disk, &number);
    if (r < 0)
        return r;
    struct block_point point = {
        .sum = le64toh(disk.sum),
        .first_bit = le16toh(disk.first_bit),
        .last_bits = le16toh(disk.last_bits),
        .window_bytes = le32toh(disk.window_bytes),
        .window_packed = le32toh(disk.window_packed),
        .pieces = index_pieces(index, number),
    };
    if (!block_point_is_valid(&point))
        return -EUCLEAN;
    if (point.window_bytes > 0) {
        point.window =
            index_bytes(index, SECTION_WINDOWS, le64toh(disk.window), point.window_packed);
        if (!point.window)
            return -EUCLEAN;
    }
    *ret_point = point;
    return 0;
}

/* ---- ranges ---- */

/* The extent from `skip` on in a range. */
static int index_range_extent(const struct index *index, const struct range *range,
                              uint64_t skip, struct extent *ret_extent)
{
    struct extent extent = {
        .kind = EXTENT_STORED,
        .offset = range->logical + skip,
        .length = range->length - skip,
        .source_offset = range->source + skip,
        .whole_offset = range->source,
        .whole_length = range->length,
    };
    if (range->source & RANGE_PACKED) {
        int r = index_packed_extent(index, range->source & ~RANGE_PACKED, skip, extent.length,
                                    &extent);
        if (r < 0)
            return r;
    } else if (!index_in_archive(index, range->source, range->length)) {
        return -EUCLEAN;
    }
    *ret_extent = extent;
    return 0;
}

static int index_ranges_extent(const struct index *index, const struct index_entry *e,
                               uint64_t offset, struct extent *ret_extent)
{
    uint64_t length = index->sections[SECTION_EXTENTS].length;
    const uint64_t *list = index_bytes(index, SECTION_EXTENTS, e->data, 16);
    if (!list || e->data % 8 || le64toh(list[0]) >> 32 != DISK_RANGES)
        return -EUCLEAN;
    uint64_t count = (uint32_t)le64toh(list[0]);
    if (count > (length - e->data - 16) / 24)
        return -EUCLEAN;
    uint64_t next;
    int r = index_range_behind(index, e->data, count, offset, &next);
    if (r < 0)
        return r;

    struct range range;
    if (next > 0) {
        r = index_read_range(index, e->data, next - 1, &range);
        if (r < 0)
            return r;
        uint64_t skip = offset - range.logical;
        if (skip < range.length)
            return range.length > e->size - range.logical
                       ? -EUCLEAN
                       : index_range_extent(index, &range, skip, ret_extent);
    }
    uint64_t end = e->size;
    if (next < count) {
        r = index_read_range(index, e->data, next, &range);
        if (r < 0)
            return r;
        if (range.logical <= offset)
            return -EUCLEAN;
        if (range.logical < end)
            end = range.logical;
    }
    *ret_extent =
        (struct extent){.kind = EXTENT_HOLE, .offset = offset, .length = end - offset};
    return 0;
}

int index_extent(const struct index *index, uint32_t position, uint64_t offset,
                 struct extent *ret_extent)
{
    struct index_entry e;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    if (!S_ISREG(e.mode))
        return -EINVAL;
    if (offset >= e.size)
        return -ENXIO;
    if (e.size > INT64_MAX)
        return -EUCLEAN;

    struct extent extent = {.offset = offset};
    switch (e.flags & DATA_KIND_MASK) {
    case DATA_KIND_STORED:
        extent.kind = EXTENT_STORED;
        extent.length = e.size - offset;
        extent.source_offset = e.data + offset;
        extent.whole_offset = e.data;
        extent.whole_length = e.size;
        r = index_in_archive(index, e.data, e.size) ? 0 : -EUCLEAN;
        break;
    case DATA_KIND_EXTENTS:
        r = index_ranges_extent(index, &e, offset, &extent);
        break;
    case DATA_KIND_PACKED:
        r = index_packed_extent(index, e.data, offset, e.size - offset, &extent);
        break;
    default:
        r = -EUCLEAN;
    }
    extent.is_last = extent.length == e.size - offset;
    if (r == 0)
        *ret_extent = extent;
    return r;
}

/* ---- links, attributes, sums ---- */

int index_symlink(const struct index *index, uint32_t position, const char **ret_target,
                  size_t *ret_len)
{
    struct index_entry e;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    if (!S_ISLNK(e.mode))
        return -EINVAL;
    const char *target = index_bytes(index, SECTION_STRINGS, e.data, e.size);
    if (!target || e.size > INDEX_SYMLINK_MAX || memchr(target, '\0', e.size))
        return -EUCLEAN;
    *ret_target = target;
    *ret_len = (size_t)e.size;
    return 0;
}

/*
 * The attribute set of an inode: start of its first attribute, and end of its last one.
 * *ret_end is 0 if it has none.
 */
static int index_xattr_set(const struct index *index, uint32_t position, uint64_t *ret_start,
                           uint64_t *ret_end)
{
    struct index_entry e;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    if (!(e.flags & ATTR_XATTRS)) {
        *ret_start = *ret_end = 0;
        return 0;
    }
    uint64_t set;
    r = index_extra(index, e.position, EXTRA_XATTRS, &set);
    if (r < 0)
        return r;
    const uint8_t *head = index_bytes(index, SECTION_XATTRS, set, 8);
    uint32_t count = head ? bytes_le32(head) : 0, bytes = head ? bytes_le32(head + 4) : 0;
    if (count == 0 || bytes == 0 || bytes > index->sections[SECTION_XATTRS].length - set - 8)
        return -EUCLEAN;
    *ret_start = set + 8;
    *ret_end = set + 8 + bytes;
    return 0;
}

static int index_read_xattr(const struct index *index, uint64_t at, uint64_t end,
                            struct xattr *ret_xattr, uint64_t *ret_next)
{
    const uint8_t *head = end - at < 8 ? NULL : index_bytes(index, SECTION_XATTRS, at, 8);
    if (!head)
        return -EUCLEAN;
    uint32_t name_len = bytes_le32(head), value_len = bytes_le32(head + 4);
    uint64_t left = end - at - 8;
    if (name_len == 0 || name_len > INDEX_NAME_MAX || name_len > left ||
        value_len > left - name_len)
        return -EUCLEAN;
    const char *name =
        index_bytes(index, SECTION_XATTRS, at + 8, (uint64_t)name_len + value_len);
    if (!name || memchr(name, '\0', name_len))
        return -EUCLEAN;
    *ret_xattr = (struct xattr){name, name_len, name + name_len, value_len};
    *ret_next = at + 8 + name_len + value_len;
    return 0;
}

int index_xattr_next(const struct index *index, uint32_t position, uint64_t *cursor,
                     struct xattr *ret_xattr)
{
    uint64_t at, end;
    int r = index_xattr_set(index, position, &at, &end);
    if (r < 0)
        return r;
    if (*cursor != 0) {
        if (*cursor < at || *cursor > end)
            return -EINVAL;
        at = *cursor;
    }
    if (at == end)
        return -ENOENT;
    return index_read_xattr(index, at, end, ret_xattr, cursor);
}

int index_xattr_get(const struct index *index, uint32_t position, const char *name, size_t len,
                    struct xattr *ret_xattr)
{
    uint64_t at, end;
    int r = index_xattr_set(index, position, &at, &end);
    while (r == 0 && at < end) {
        struct xattr xattr;
        r = index_read_xattr(index, at, end, &xattr, &at);
        if (r == 0 && xattr.name_len == len && memcmp(xattr.name, name, len) == 0) {
            *ret_xattr = xattr;
            return 0;
        }
    }
    return r < 0 ? r : -ENODATA;
}

/* Record `number` of a section that holds sums. */
static int index_sum_at(const struct index *index, enum disk_section_id section,
                        uint64_t number, uint64_t *ret_sum)
{
    const uint64_t *sum = index_bytes(index, section, number * 8, 8);
    if (!sum)
        return -EUCLEAN;
    *ret_sum = le64toh(*sum);
    return 0;
}

int index_sum(const struct index *index, uint32_t position, uint64_t *ret_sum)
{
    struct index_entry e;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    if (!S_ISREG(e.mode))
        return -EINVAL;
    if (!index->info.has_some_sums)
        return -ENODATA;
    r = index_sum_at(index, SECTION_SUMS, e.position, ret_sum);
    return r == 0 && index->info.sum_kind == SUM_MIXED && checksum_is_missing(*ret_sum)
               ? -ENODATA
               : r;
}

uint64_t index_windows(const struct index *index)
{
    return index->sections[SECTION_WINDOW_SUMS].length / 8;
}

int index_window_sum(const struct index *index, uint64_t window, uint64_t *ret_sum)
{
    return window < index_windows(index)
               ? index_sum_at(index, SECTION_WINDOW_SUMS, window, ret_sum)
               : -EINVAL;
}

static int index_digest_position(const struct index *index, uint32_t position,
                                 const uint64_t *sums, struct digest *digest)
{
    struct index_entry e;
    struct digest_entry d = {0};
    int r = index_name(index, position, &d.name, &d.name_len);
    if (r == 0)
        r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    d.mode = e.mode;
    d.size = e.size;
    d.data = e.data;
    d.has_holes = !sums && (e.flags & ATTR_HOLES);
    size_t target_len;
    if (S_ISREG(d.mode) && sums)
        d.sum = sums[e.position];
    else if (S_ISREG(d.mode) && digest->sums)
        r = index_sum(index, position, &d.sum);
    if (S_ISLNK(d.mode))
        r = index_symlink(index, position, &d.target, &target_len);
    if (r == 0)
        digest_add(digest, &d);
    return r;
}

int index_digest(const struct index *index, const uint64_t *sums,
                 uint8_t ret_digest[INDEX_DIGEST_BYTES], enum digest_kind *ret_kind)
{
    struct digest digest;
    bool has_sums = index->info.has_sums && index->info.sum_kind == SUM_XXH3;
    int r = digest_begin(&digest, sums || has_sums);
    if (r < 0)
        return r;
    for (uint32_t i = 0; r == 0 && i < index->info.entries; i++)
        r = index_digest_position(index, i, sums, &digest);
    *ret_kind = digest_end(&digest, r == 0 ? ret_digest : NULL);
    return r;
}

void index_set_digest(struct index *index, const uint8_t digest[INDEX_DIGEST_BYTES])
{
    index->info.digest_kind = DIGEST_TREE;
    memcpy(index->info.digest, digest, INDEX_DIGEST_BYTES);
}

int index_recipe(const struct index *index, const void **ret_bytes, size_t *ret_len)
{
    uint64_t len = index->sections[SECTION_RECIPE].length;
    if (len == 0)
        return -ENODATA;
    *ret_bytes = index_bytes(index, SECTION_RECIPE, 0, len);
    *ret_len = (size_t)len;
    return *ret_bytes ? 0 : -EUCLEAN;
}

bool index_leads_out(const struct index *index, uint32_t position)
{
    char path[INDEX_PATH_MAX + 1];
    const char *target;
    size_t path_len, len;
    return index_symlink(index, position, &target, &len) == 0 &&
           index_path(index, position, path, sizeof(path), &path_len) == 0 &&
           path_leads_out(path, path_len, target, len);
}

/* ---- members of the archive that the tree lacks ---- */

static uint64_t index_count_in(const struct index *index, enum disk_section_id section)
{
    const uint64_t *count = index_bytes(index, section, 0, sizeof(*count));
    return min_u64(count ? le64toh(*count) : 0, UINT32_MAX); /* callers add these numbers */
}

uint64_t index_left_out(const struct index *index)
{
    return index_count_in(index, SECTION_LEFT_OUT);
}

uint64_t index_xattrs_left_out(const struct index *index)
{
    return index_count_in(index, SECTION_XATTRS_LEFT_OUT);
}

const struct left_out_words left_out_words[LEFT_OUT_KINDS] = {
    [LEFT_OUT_OTHER] = {"other", "that can't be shown"},
    [LEFT_OUT_NAME] = {"names", "with names or targets that no file can have"},
    [LEFT_OUT_PLACE] = {"places", "below or above other members"},
    [LEFT_OUT_LINK] = {"hard_links", "hard links without their file"},
    [LEFT_OUT_DEVICE] = {"devices", "devices or of unknown types"},
    [LEFT_OUT_ENCRYPTED] = {"encrypted", "encrypted"},
    [LEFT_OUT_METHOD] = {"methods", "compressed or stored in ways that are not read"},
    [LEFT_OUT_DAMAGED] = {"damaged", "damaged"},
    [LEFT_OUT_INCOMPLETE] = {"incomplete", "that go on in another volume"},
    [LEFT_OUT_BEHIND] = {"behind_end", "behind an end-of-archive mark"},
};

void index_left_out_kinds(const struct index *index, uint64_t ret_counts[LEFT_OUT_KINDS])
{
    uint64_t all = index_left_out(index), told = 0,
             kinds = index->sections[SECTION_LEFT_OUT_KINDS].length / sizeof(uint64_t);
    for (size_t i = 1; i < LEFT_OUT_KINDS; i++) {
        const uint64_t *count = i < kinds ? index_bytes(index, SECTION_LEFT_OUT_KINDS,
                                                        i * sizeof(*count), sizeof(*count))
                                          : NULL;
        ret_counts[i] = min_u64(count ? le64toh(*count) : 0, all - told);
        told += ret_counts[i];
    }
    ret_counts[LEFT_OUT_OTHER] = all - told;
}

unsigned index_left_out_text(const struct index *index, char text[LEFT_OUT_TEXT_LEN])
{
    uint64_t counts[LEFT_OUT_KINDS];
    size_t len = 0;
    unsigned kinds = 0;
    text[0] = '\0';
    index_left_out_kinds(index, counts);
    for (size_t i = LEFT_OUT_KINDS; i-- > 0;)
        if (counts[i] && len < LEFT_OUT_TEXT_LEN)
            len += (size_t)snprintf(text + len, LEFT_OUT_TEXT_LEN - len, "%s%" PRIu64 " %s",
                                    kinds++ ? ", " : "", counts[i], left_out_words[i].text);
    return kinds;
}

/* Copy a text of the record, truncated to the room in the fault. */
static void index_copy_text(char *to, size_t size, const char *from, size_t len)
{
    size_t n = len < size ? len : size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

int index_left_out_next(const struct index *index, uint64_t *cursor, struct fault *ret_why)
{
    uint64_t at = *cursor ? *cursor : sizeof(uint64_t);
    if (at >= index->sections[SECTION_LEFT_OUT].length)
        return -ENOENT;
    const char *head = index_bytes(index, SECTION_LEFT_OUT, at, DISK_LEFT_OUT_HEAD);
    if (!head)
        return -EUCLEAN;
    uint32_t member_len = bytes_le32(head + 8), what_len = bytes_le32(head + 12);
    uint64_t text_len = disk_left_out_texts(member_len, what_len);
    const char *text = index_bytes(index, SECTION_LEFT_OUT, at + DISK_LEFT_OUT_HEAD, text_len);
    if (!text)
        return -EUCLEAN;
    *ret_why = (struct fault){.err = EUCLEAN, .offset = bytes_le64(head)};
    index_copy_text(ret_why->member, sizeof(ret_why->member), text, member_len);
    index_copy_text(ret_why->what, sizeof(ret_why->what), text + member_len, what_len);
    *cursor = at + DISK_LEFT_OUT_HEAD + text_len;
    return 0;
}

/*
 * ---- many files at once ----
 *
 * To make a table of ten million files, a caller would ask for the inode and for the first
 * extent of each, which check the same pages and decode the same attributes again and again.
 * Neighbours mostly share their attributes, so these are examined once for a run of files.
 * That leaves only the size and the place of each file, and whether both can be true.
 */

/* The general way, which also handles entries that are not files. */
static int index_file_look_up(const struct index *index, uint32_t position,
                              struct index_file *ret_file)
{
    struct node node;
    struct extent extent;
    int r = index_node(index, position, &node);
    if (r < 0)
        return r;
    *ret_file = (struct index_file){.mode = node.mode, .offset = INDEX_FILE_IN_PIECES};
    if (!S_ISREG(node.mode))
        return 0;
    ret_file->size_bytes = node.size_bytes;
    if (node.size_bytes == 0)
        ret_file->offset = 0;
    else if (index_extent(index, position, 0, &extent) == 0 && extent.kind == EXTENT_STORED &&
             extent.length >= node.size_bytes)
        ret_file->offset = extent.source_offset;
    return 0;
}

/* Does this record of ATTRS describe regular files that are stored in one piece? */
static bool index_file_is_plain(const struct index *index, uint64_t attr)
{
    const struct disk_attr *a =
        index_bytes(index, SECTION_ATTRS, attr * sizeof(*a), sizeof(*a));
    return a && S_ISREG(le32toh(a->mode)) &&
           (le32toh(a->flags) & DATA_KIND_MASK) == DATA_KIND_STORED;
}

/* False: the entry is damaged. */
static bool index_file_read_plain(const struct index *index, const struct disk_entry *e,
                                  uint32_t mode, struct index_file *ret_file)
{
    uint64_t size = le64toh(e->size), offset = le64toh(e->data);
    uint64_t archive_bytes = index->info.archive_bytes;
    if (e->mtime == 0 || size > INT64_MAX || size > archive_bytes)
        return false;
    if (size == 0)
        offset = 0;
    else if (offset > archive_bytes || size > archive_bytes - offset)
        offset = INDEX_FILE_IN_PIECES;
    *ret_file = (struct index_file){.mode = mode, .size_bytes = size, .offset = offset};
    return true;
}

int index_files(const struct index *index, uint32_t first, uint32_t count,
                struct index_file *ret_files)
{
    if (first >= index->info.entries || count > index->info.entries - first)
        return -EINVAL;
    const struct disk_entry *e =
        count ? index_bytes(index, SECTION_ENTRIES, (uint64_t)first * sizeof(*e),
                            (uint64_t)count * sizeof(*e))
              : NULL;
    uint64_t plain = UINT64_MAX; /* the attributes of the last plain file */
    uint32_t mode = 0;
    if (count && !e)
        return -EUCLEAN;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t attr = le64toh(e[i].name_attr) >> DISK_NAME_BITS;
        if (attr == plain) {
            if (!index_file_read_plain(index, &e[i], mode, &ret_files[i]))
                return -EUCLEAN;
            continue;
        }
        int r = index_file_look_up(index, first + i, &ret_files[i]);
        if (r < 0)
            return r;
        if (index_file_is_plain(index, attr)) {
            plain = attr;
            mode = ret_files[i].mode;
        }
    }
    return 0;
}

/*
 * ---- paths with symbolic links ----
 *
 * As in the kernel, a link's target starts in the directory that holds the link, and ".." is
 * the parent of the directory that was reached. A link costs one level of recursion, which its
 * limit bounds.
 */

static int index_follow_path(const struct index *index, uint32_t directory, const char *path,
                             size_t len, struct index_way *way, uint32_t *ret_position);

static int index_follow_link(const struct index *index, uint32_t link, uint32_t directory,
                             struct index_way *way, uint32_t *ret_position)
{
    const char *target;
    size_t len;
    int r = index_symlink(index, link, &target, &len);
    if (r < 0)
        return r;
    if (way->links >= LINKS_MAX)
        return -ELOOP;
    way->links++;
    if (len == 0)
        return -ENOENT;
    if (target[0] == '/')
        return -EXDEV;
    return index_follow_path(index, directory, target, len, way, ret_position);
}

static int index_follow_path(const struct index *index, uint32_t directory, const char *path,
                             size_t len, struct index_way *way, uint32_t *ret_position)
{
    const char *name;
    size_t name_len;
    while (path_next_name(&path, &len, &name, &name_len)) {
        struct node node;
        uint32_t position, first, count;
        int r;
        way->steps++;
        if (path_are_dots(name, name_len)) {
            r = directory == INDEX_ROOT ? -EXDEV : index_parent(index, directory, &directory);
        } else {
            r = index_lookup(index, directory, name, name_len, &position);
            if (r == 0)
                r = index_node(index, position, &node);
            if (r == 0 && S_ISLNK(node.mode))
                r = index_follow_link(index, position, directory, way, &directory);
            else if (r == 0)
                directory = position;
        }
        if (r == 0 && path != name + name_len) /* a slash follows */
            r = index_children(index, directory, &first, &count);
        if (r < 0)
            return r;
    }
    *ret_position = directory;
    return 0;
}

int index_follow(const struct index *index, uint32_t from, const char *path,
                 struct index_way *way, uint32_t *ret_position)
{
    struct index_way own = {0};
    struct node node;
    uint32_t directory;
    int r = index_node(index, from, &node);
    if (!way)
        way = &own;
    if (r == 0 && S_ISLNK(node.mode)) {
        r = index_parent(index, from, &directory);
        if (r == 0)
            r = index_follow_link(index, from, directory, way, &from);
    }
    return r < 0 ? r : index_follow_path(index, from, path, strlen(path), way, ret_position);
}

/*
 * ---- opening: check what must be checked at once ----
 *
 * Opening maps the image and checks header, section table and the table of page sums; it
 * touches one page of the entries. It allocates a byte for each page of 64 KB and a bit for
 * each entry, all zero, so that memory is used only where the index is.
 *
 * All checks assume bytes that don't change. A file that other users may write to can change
 * between a check and the use, so its image is first read into memory of this process. So is
 * an image on a network, which is never mapped.
 */

static int image_damaged(struct fault *fault, uint64_t offset, const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "the index is damaged: %s", what);
}

/* Map the image, if nobody else can change it. False: it has to be read. */
static bool image_map(struct index *index, const struct source *source, uint64_t offset,
                      uint64_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const struct source *file = source_at(source, &offset);
    bool is_in_one = len <= source_size(file) - offset; /* not in several files */
    offset += source_start(file);
    if (!is_in_one || offset % sizeof(uint64_t) || !source_is_local(source) ||
        !source_is_ours(source) || page > DISK_PAGE_BYTES)
        return false;
    size_t skip = (size_t)(offset & (page - 1)), bytes = len + skip;
    void *map =
        mmap(NULL, bytes, PROT_READ, MAP_SHARED, source_fd(file), (off_t)(offset - skip));
    if (map == MAP_FAILED)
        return false;
    index->guard = lost_pages_guard(map, bytes);
    if (!index->guard) {
        munmap(map, bytes);
        return false;
    }
    index->map = map;
    index->map_bytes = bytes;
    index->image = (const uint8_t *)map + skip;
    return true;
}

static void image_decode_info(const struct disk_header *h, struct index_info *info)
{
    uint32_t features = le32toh(h->features);
    *info = (struct index_info){
        .format = le32toh(h->format),
        .codec = (enum codec)le32toh(h->codec),
        .codecs = le16toh(h->codecs),
        .sum_kind = (enum sum_kind)le16toh(h->sum_kind),
        .block_bytes = le32toh(h->block_bytes),
        .entries = le32toh(h->entries),
        .files = le64toh(h->files),
        .directories = le64toh(h->directories),
        .inodes = le64toh(h->inodes),
        .total_bytes = le64toh(h->total_bytes),
        .data_bytes = le64toh(h->data_bytes),
        .name_bytes = le64toh(h->name_bytes),
        .image_bytes = le64toh(h->image_bytes),
        .has_xattrs = features & DISK_HAS_XATTRS,
        .has_holes = features & DISK_HAS_HOLES,
        .has_hardlinks = features & DISK_HAS_HARDLINKS,
        .has_joined = features & DISK_HAS_JOINED,
        .has_sums = features & DISK_HAS_SUMS,
        .archive_bytes = le64toh(h->archive_bytes),
        .archive_mtime_sec = (int64_t)le64toh((uint64_t)h->archive_mtime_sec),
        .archive_mtime_nsec = le32toh(h->archive_mtime_nsec),
        .archive_fingerprint = le64toh(h->archive_fingerprint),
        .end_marker_offset = le64toh(h->end_marker_offset),
        .digest_kind = (enum digest_kind)le32toh(h->digest_kind),
    };
    memcpy(info->identifier, h->identifier, sizeof(info->identifier));
    memcpy(info->digest, h->digest, sizeof(info->digest));
    memcpy(info->made_by, h->made_by, sizeof(h->made_by));
}

/*
 * Check the first bytes of the image: enough to know the lengths of header and table, and that
 * they are as written. Nothing is copied except the field of the sum.
 */
static int image_check_header(const uint8_t *image, uint64_t offset, uint64_t len,
                              struct fault *fault)
{
    struct disk_header h;
    if (len < sizeof(h))
        return image_damaged(fault, offset, "it is too short");
    memcpy(&h, image, sizeof(h));
    if (memcmp(h.magic, DISK_MAGIC, sizeof(h.magic)) != 0)
        return image_damaged(fault, offset, "it does not begin as an index does");

    uint32_t header_bytes = le32toh(h.header_bytes);
    if (header_bytes < sizeof(h) || header_bytes > DISK_HEADER_MAX || header_bytes > len)
        return image_damaged(fault, offset, "its header has a wrong length");
    auto_free uint8_t *copy = malloc(header_bytes);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, image, header_bytes);
    memset(copy + offsetof(struct disk_header, header_sum), 0, sizeof(h.header_sum));
    if (XXH3_64bits(copy, header_bytes) != le64toh(h.header_sum))
        return image_damaged(fault, offset, "its header does not have the sum it should have");

    if (le32toh(h.version) != DISK_VERSION || (le64toh(h.incompatible) & ~DISK_NEEDS_KNOWN))
        return fault_set_advised(fault, -ENOTSUP, NULL, offset,
                                 "use that version, or pack the archive anew with this one",
                                 "the index was made by a later onepot");
    if (le64toh(h.image_bytes) > len)
        return image_damaged(fault, offset, "it is cut off");
    return 0;
}

/* Check that area and page sums lie in the image, and that the sums are intact. */
static int image_check_area(struct index *index, const struct disk_header *h,
                            const uint8_t *image, uint64_t offset, struct fault *fault)
{
    uint64_t image_bytes = le64toh(h->image_bytes);
    uint64_t area_offset = le64toh(h->area_offset);
    uint64_t area_bytes = le64toh(h->area_bytes);
    uint64_t sums_offset = le64toh(h->sums_offset);
    if (le32toh(h->page_bytes) != DISK_PAGE_BYTES || area_offset % 8 || sums_offset % 8 ||
        area_offset > image_bytes || area_bytes > image_bytes - area_offset || area_bytes == 0)
        return image_damaged(fault, offset, "its parts do not fit in it");

    uint64_t pages = (area_bytes - 1) / DISK_PAGE_BYTES + 1;
    if (sums_offset > image_bytes || pages * 8 > image_bytes - sums_offset)
        return image_damaged(fault, offset, "its page sums do not fit in it");
    if (XXH3_64bits(image + sums_offset, pages * 8) != le64toh(h->sums_sum))
        return image_damaged(fault, offset + sums_offset, "its page sums are not sound");

    index->area = image + area_offset;
    index->area_bytes = area_bytes;
    index->page_sums = (const uint64_t *)(const void *)(image + sums_offset);
    index->page_good = calloc(pages, 1);
    return index->page_good ? 0 : -ENOMEM;
}

static int image_read_sections(struct index *index, const struct disk_header *h,
                               const uint8_t *image, uint64_t offset, struct fault *fault)
{
    uint64_t table = le32toh(h->sections_offset);
    uint64_t count = le32toh(h->sections);
    uint64_t area_offset = le64toh(h->area_offset);
    uint64_t header_bytes = le32toh(h->header_bytes);
    if (table % 8 || table > header_bytes ||
        count * sizeof(struct disk_section) > header_bytes - table)
        return image_damaged(fault, offset, "its section table does not fit in its header");

    for (uint64_t i = 0; i < count; i++) {
        struct disk_section s;
        memcpy(&s, image + table + i * sizeof(s), sizeof(s));
        uint32_t id = le32toh(s.id);
        uint64_t at = le64toh(s.offset);
        uint64_t length = le64toh(s.length);
        uint32_t record_bytes = id < SECTION_IDS ? disk_record_bytes(id) : 0;
        if (record_bytes == 0) /* of a later version, or of none */
            continue;
        if (index->sections[id].bytes || le32toh(s.record_bytes) != record_bytes ||
            length % record_bytes || at % 8 || at < area_offset ||
            at - area_offset > index->area_bytes ||
            length > index->area_bytes - (at - area_offset))
            return image_damaged(fault, offset, "a section does not lie where sections may");
        index->sections[id] = (struct index_section){
            .bytes = image + at,
            .area_offset = at - area_offset,
            .length = length,
        };
    }
    return 0;
}

static int image_count_records(struct index *index, const struct disk_header *h,
                               uint64_t offset, struct fault *fault)
{
    const struct index_section *s = index->sections;
    uint64_t entries = le32toh(h->entries);
    uint64_t blocks = s[SECTION_BLOCKS].length / sizeof(struct disk_block);
    uint64_t dirs = s[SECTION_DIRS].length / 4;
    uint64_t attrs = s[SECTION_ATTRS].length / sizeof(struct disk_attr);
    if (entries == 0 || s[SECTION_ENTRIES].length != entries * sizeof(struct disk_entry) ||
        dirs == 0 || dirs > entries || attrs == 0 || attrs > DISK_ATTR_LIMIT ||
        blocks > UINT32_MAX || s[SECTION_NAMES].length >= DISK_NAME_LIMIT ||
        (s[SECTION_SUMS].bytes && s[SECTION_SUMS].length != entries * 8) ||
        (s[SECTION_PIECES].bytes && s[SECTION_PIECES].length / POINT_PIECES_BYTES !=
                                        s[SECTION_POINTS].length / sizeof(struct disk_point)))
        return image_damaged(fault, offset, "the sizes of its sections contradict each other");

    index->dirs = (uint32_t)dirs;
    index->blocks = (uint32_t)blocks;
    index->extras = s[SECTION_EXTRA].length / sizeof(struct disk_extra);
    index->info.points = s[SECTION_POINTS].length / sizeof(struct disk_point);
    index->info.has_pieces = s[SECTION_PIECES].bytes != NULL;
    index->info.has_some_sums = index->info.has_sums && s[SECTION_SUMS].bytes &&
                                checksum_available(index->info.sum_kind);
    index->info.has_sums = index->info.has_some_sums && index->info.sum_kind != SUM_MIXED;
    index->dir_good = calloc(entries / 8 + 1, 1);
    return index->dir_good ? 0 : -ENOMEM;
}

int index_open(struct source *source, uint64_t offset, uint64_t len, struct fault *fault,
               struct index **ret_index)
{
    uint64_t size = source_size(source);
    if (offset % 8 || len == 0 || offset > size || len > size - offset)
        return image_damaged(fault, offset, "it does not lie within its file");
    struct index *index = calloc(1, sizeof(*index));
    struct index_entry root;
    struct disk_header h;
    if (!index)
        return -ENOMEM;
    int r = 0;
    if (len > SIZE_MAX - DISK_PAGE_BYTES) { /* a system of 32 bits can't address more */
        r = -ENOMEM;
    } else if (len <= READ_BYTES || !image_map(index, source, offset, len)) {
        /* Read into memory that no other process can change. */
        index->copy = malloc(len);
        index->image = index->copy;
        r = index->copy ? source_read(source, index->copy, len, offset) : -ENOMEM;
    }
    if (r < 0)
        fault_set(fault, r, NULL, offset, "the index can't be read: %s", fault_errno(r));
    else
        r = image_check_header(index->image, offset, len, fault);
    if (r == 0) {
        memcpy(&h, index->image, sizeof(h));
        image_decode_info(&h, &index->info);
        index->info.image_offset = offset;
        r = image_check_area(index, &h, index->image, offset, fault);
    }
    if (r == 0)
        r = image_read_sections(index, &h, index->image, offset, fault);
    if (r == 0)
        r = image_count_records(index, &h, offset, fault);
    if (r == 0 && index_entry(index, INDEX_ROOT, &root) < 0)
        r = image_damaged(fault, offset, "its first entry can't be read");
    else if (r == 0 && !S_ISDIR(root.mode))
        r = image_damaged(fault, offset, "its first entry is not a directory");
    if (r < 0) {
        index_close(index);
        return r;
    }
    *ret_index = index;
    return 0;
}

/* Write the header anew, with the digest of index_set_digest. */
static int index_write_digest(const struct index *index, int fd)
{
    struct disk_header h;
    memcpy(&h, index->image, sizeof(h));
    size_t len = le32toh(h.header_bytes);
    auto_free uint8_t *header = malloc(len);
    if (!header)
        return -ENOMEM;
    memcpy(header, index->image, len);
    h.digest_kind = htole32(index->info.digest_kind);
    memcpy(h.digest, index->info.digest, sizeof(h.digest));
    h.header_sum = 0;
    memcpy(header, &h, sizeof(h));
    h.header_sum = htole64(XXH3_64bits(header, len));
    memcpy(header, &h, sizeof(h));
    return write_at(fd, header, len, 0);
}

int index_write(const struct index *index, int fd)
{
    const struct disk_header *h = (const void *)index->image;
    int r = write_at(fd, index->image, index->info.image_bytes, 0);
    bool has_digest = le32toh(h->digest_kind) == index->info.digest_kind;
    return r == 0 && !has_digest ? index_write_digest(index, fd) : r;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer takes mmap for a write. The mapped bytes do not change by it. */
const char *__tsan_default_suppressions(void) __attribute__((visibility("default")));
const char *__tsan_default_suppressions(void)
{
    return "race:^index_move$\n";
}
#endif

int index_move(const struct index *index, int fd, uint64_t offset)
{
    uint64_t skip = (uint64_t)(index->image - (const uint8_t *)index->map);
    struct disk_header there;
    if (!index->guard || offset < skip || (offset - skip) % (uint64_t)sysconf(_SC_PAGESIZE) ||
        read_at(fd, &there, sizeof(there), offset) < 0 ||
        le64toh(there.image_bytes) != index->info.image_bytes ||
        memcmp(there.identifier, index->info.identifier, sizeof(there.identifier)) != 0)
        return -ENOTSUP;
    /* At the same address, so that readers see the same bytes all the time. */
    return mmap(index->map, index->map_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
                (off_t)(offset - skip)) == MAP_FAILED
               ? -errno
               : 0;
}

void index_close(struct index *index)
{
    if (!index)
        return;
    if (index->map) {
        lost_pages_release(index->guard);
        munmap(index->map, index->map_bytes);
    }
    free(index->copy);
    free((void *)index->page_good);
    free((void *)index->dir_good);
    free(index);
}

const struct index_info *index_info(const struct index *index)
{
    return &index->info;
}

bool index_is_lost(const struct index *index)
{
    return lost_pages_any(index->guard);
}

/* ---- the whole of it ---- */

int index_check(const struct index *index, struct fault *fault)
{
    struct disk_header h;
    memcpy(&h, index->image, sizeof(h));
    uint64_t area_offset = le64toh(h.area_offset), sums_offset = le64toh(h.sums_offset);
    uint64_t pages = (index->area_bytes - 1) / DISK_PAGE_BYTES + 1;
    int r = image_check_header(index->image, index->info.image_offset, le64toh(h.image_bytes),
                               fault);
    if (r == 0 && XXH3_64bits(index->page_sums, pages * 8) != le64toh(h.sums_sum))
        r = image_damaged(fault, index->info.image_offset + sums_offset,
                          "its page sums are not sound");
    for (uint64_t page = 0; r == 0 && page < pages; page++)
        if (!index_check_page(index, page))
            r = image_damaged(fault,
                              index->info.image_offset + area_offset + (page << DISK_PAGE_BITS),
                              "a page of it does not have the sum it should have");
    const uint64_t gaps[][2] = {{le32toh(h.header_bytes), area_offset},
                                {area_offset + index->area_bytes, sums_offset},
                                {sums_offset + pages * 8, le64toh(h.image_bytes)}};
    for (size_t i = 0; i < 3; i++)
        for (uint64_t at = gaps[i][0]; r == 0 && at < gaps[i][1]; at++)
            if (index->image[at])
                r = image_damaged(fault, index->info.image_offset + at,
                                  "there is something between its parts");
    return r;
}
