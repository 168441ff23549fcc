/*
 * The index, reading side: entries, names, directories.
 *
 * A hostile image can't cause endless loops. A child lies after its parent, so no path is
 * endless. And no entry is the child of two directories. The parent of an entry is found by a
 * binary search in DIRS, whatever DIRS holds. The positions for which that search ends at one
 * place of DIRS form a range, and the ranges of different places do not overlap. So if the
 * first and the last child of a directory both lead to its place, then so do all between them,
 * and no other directory can claim one. index_check_children() tests just this, once for each
 * directory used; hence a walk of the whole tree meets each entry once at most.
 *
 * The size of a directory is reported as 4096, as ext4 does for a small one: 0 makes some
 * programs think that it is empty. It has no data bytes, so du counts files only.
 */
#include "index.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "bytes.h"
#include "index_private.h"
#include "index_records.h"
#include "numbers.h"
#include "path.h"

#define DIRECTORY_SIZE 4096u

/* ---- records ---- */

uint64_t index_section_bytes(const struct index *index, enum disk_section_id id)
{
    return index->sections[id].length;
}

const void *index_records(const struct index *index, enum disk_section_id id, uint64_t offset,
                          uint64_t len)
{
    return index_bytes(index, id, offset, len);
}

bool index_check_page(const struct index *index, uint64_t page)
{
    uint64_t at = page << DISK_PAGE_BITS;
    uint64_t len = min_u64(index->area_bytes - at, DISK_PAGE_BYTES);
    if (XXH3_64bits(index->area + at, len) != le64toh(index->page_sums[page]))
        return false;
    atomic_store_explicit(&index->page_good[page], 1, memory_order_release);
    return true;
}

/* ---- entries ---- */

int index_entry(const struct index *index, uint32_t position, struct index_entry *ret_entry)
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

int index_inode(const struct index *index, uint32_t position, struct index_entry *ret_entry)
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

int index_extra(const struct index *index, uint32_t position, enum disk_extra_kind kind,
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

/* Are these type bits that a file can have, without any bits outside a mode? */
static bool index_mode_is_valid(uint32_t mode)
{
    uint32_t type = mode & S_IFMT;
    return !(mode & ~(uint32_t)(S_IFMT | 07777)) &&
           (S_ISREG(type) || S_ISDIR(type) || S_ISLNK(type) || S_ISFIFO(type) ||
            S_ISSOCK(type) || S_ISCHR(type) || S_ISBLK(type));
}

static int index_node_times(const struct index *index, const struct index_entry *e,
                            struct node *node)
{
    uint64_t mtime = le64toh(e->disk->mtime);
    node->mtime_nsec = (uint32_t)(mtime & ((1u << DISK_NSEC_BITS) - 1));
    node->mtime_sec = (int64_t)(mtime >> DISK_NSEC_BITS) - DISK_MTIME_BIAS;
    if (node->mtime_nsec > 999999999)
        return -EUCLEAN;
    if (e->flags & ATTR_WIDE_MTIME) {
        uint64_t value;
        int r = index_extra(index, e->position, EXTRA_MTIME, &value);
        if (r < 0)
            return r;
        node->mtime_sec = (int64_t)value;
    }
    return 0;
}

static int index_node_links(const struct index *index, const struct index_entry *e,
                            struct node *node)
{
    uint64_t value = 1;
    if (S_ISDIR(e->mode)) {
        value = e->size + 2;
    } else if (e->flags & ATTR_NLINK) {
        int r = index_extra(index, e->position, EXTRA_NLINK, &value);
        if (r < 0)
            return r;
    }
    if (value == 0 || value > UINT32_MAX)
        return -EUCLEAN;
    node->nlink = (uint32_t)value;
    return 0;
}

/*
 * Can a file be as large as the entry says? The index must have room for its blocks, and the
 * archive for its bytes.
 */
static bool index_size_possible(const struct index *index, const struct index_entry *e)
{
    uint64_t block = index->info.block_bytes;
    if (e->size == 0)
        return true;
    switch (e->flags & DATA_KIND_MASK) {
    case DATA_KIND_STORED:
        return e->size <= index->info.archive_bytes;
    case DATA_KIND_PACKED:
        return (uint32_t)e->data < index->blocks &&
               e->size <= block * (index->blocks - (uint32_t)e->data);
    default:
        return true;
    }
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

static int index_node_bytes(const struct index *index, const struct index_entry *e,
                            struct node *node)
{
    uint64_t data = e->size;
    int r = 0;
    if (e->size > INT64_MAX || !index_size_possible(index, e))
        return -EUCLEAN;
    node->size_bytes = e->size;
    switch (e->flags & DATA_KIND_MASK) {
    case DATA_KIND_STORED:
    case DATA_KIND_PACKED:
        break;
    case DATA_KIND_EXTENTS:
        r = index_ranges_bytes(index, e, &data);
        break;
    default:
        return -EUCLEAN;
    }
    if (r < 0 || data > e->size)
        return -EUCLEAN;
    node->data_bytes = data;
    node->has_holes = e->flags & ATTR_HOLES;
    return 0;
}

int index_node(const struct index *index, uint32_t position, struct node *ret_node)
{
    struct index_entry e;
    int r = index_inode(index, position, &e);
    if (r < 0)
        return r;
    struct node node = {
        .position = e.position,
        .mode = e.mode,
        .uid = le32toh(e.attr->uid),
        .gid = le32toh(e.attr->gid),
        .has_xattrs = e.flags & ATTR_XATTRS,
    };
    if (!index_mode_is_valid(node.mode))
        return -EUCLEAN;
    if (S_ISREG(node.mode)) {
        r = index_node_bytes(index, &e, &node);
    } else if (S_ISDIR(node.mode)) {
        node.size_bytes = DIRECTORY_SIZE;
    } else if (S_ISLNK(node.mode)) {
        node.size_bytes = e.size;
        r = e.size == 0 || e.size > INDEX_SYMLINK_MAX ? -EUCLEAN : 0;
    } else if (S_ISCHR(node.mode) || S_ISBLK(node.mode)) {
        node.rdev_major = (uint32_t)e.data;
        node.rdev_minor = (uint32_t)(e.data >> 32);
    }
    if (r < 0)
        return r;
    r = index_node_times(index, &e, &node);
    if (r == 0)
        r = index_node_links(index, &e, &node);
    if (r == 0 && lost_pages_any(index->guard))
        r = -EUCLEAN;
    if (r == 0)
        *ret_node = node;
    return r;
}

/* ---- names and directories ---- */

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

static int index_check_children(const struct index *index, const struct index_entry *dir)
{
    _Atomic uint8_t *good = &index->dir_good[dir->position / 8];
    uint8_t bit = (uint8_t)(1u << (dir->position % 8));
    uint32_t first = (uint32_t)dir->data;
    uint32_t count = (uint32_t)(dir->data >> 32);
    if (count > 0 && (first <= dir->position || first >= index->info.entries ||
                      count > index->info.entries - first))
        return -EUCLEAN;
    if (atomic_load_explicit(good, memory_order_relaxed) & bit)
        return 0;

    if (count > 0) {
        uint32_t place, last_place;
        struct index_entry owner;
        int r = index_find_owner(index, first, &place, &owner);
        if (r < 0)
            return r;
        r = index_find_owner(index, first + count - 1, &last_place, &owner);
        if (r < 0)
            return r;
        if (place != last_place || owner.position != dir->position)
            return -EUCLEAN;
    }
    atomic_fetch_or_explicit(good, bit, memory_order_relaxed);
    return 0;
}

int index_children(const struct index *index, uint32_t directory, uint32_t *ret_first,
                   uint32_t *ret_count)
{
    struct index_entry dir;
    int r = index_entry(index, directory, &dir);
    if (r < 0)
        return r;
    if (!S_ISDIR(dir.mode))
        return -ENOTDIR;
    r = index_check_children(index, &dir);
    if (r < 0)
        return r;
    *ret_first = (uint32_t)dir.data;
    *ret_count = (uint32_t)(dir.data >> 32);
    return 0;
}

int index_lookup(const struct index *index, uint32_t directory, const char *name, size_t len,
                 uint32_t *ret_position)
{
    uint32_t first, count;
    int r = index_children(index, directory, &first, &count);
    return r < 0 ? r : index_search(index, first, count, name, len, ret_position);
}

int index_search(const struct index *index, uint32_t low, uint32_t count, const char *name,
                 size_t len, uint32_t *ret_position)
{
    while (count > 0) {
        uint32_t half = count / 2;
        const char *other;
        size_t other_len;
        int r = index_raw_name(index, low + half, &other, &other_len);
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
