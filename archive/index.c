/*
 * The index, reading side: open an image, and answer questions about its tree.
 *
 * Opening maps the image and checks header, section table and the table of page sums;
 * it touches one page of the entries. What it allocates is a byte for each page of
 * 64 KB and a bit for each entry, both zero, so that memory is taken only where the
 * index is used. Without a local file to map, the image is read into a sealed memory
 * file and that is mapped.
 *
 * Why a hostile image can't send anybody in circles. A child lies behind its parent,
 * so no path is endless. And no entry is the child of two directories: the parent of
 * an entry is found by a binary search in DIRS, whatever DIRS holds; the positions for
 * which that search ends at one place of DIRS are a range, and the ranges of different
 * places do not overlap. So if the first and the last child of a directory both lead
 * to its place, then so do all between them, and no other directory can claim one.
 * check_children() asks just this, once for each directory that is used; hence a walk
 * of everything meets each entry once at most.
 *
 * The size of a directory is reported as 4096, as ext4 does for a small one: 0 makes
 * some programs think that it is empty. It has no data bytes, so du counts files only.
 */
#include "index.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>
#include <xxhash.h>

#include "cleanup.h"
#include "index_private.h"

#define DIRECTORY_SIZE 4096u

/* ---- opening ---- */

static int damaged(struct fault *fault, uint64_t offset, const char *what)
{
    fault_set(fault, -EUCLEAN, NULL, offset, "the index is damaged: %s", what);
    return -EUCLEAN;
}

/* Read the image into a memory file that nobody can change, and map that. */
static int map_copy(const struct source *source, uint64_t offset, size_t len, void **ret_map)
{
    auto_close int fd = memfd_create("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)len) < 0)
        return -errno;
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    int r = source_read(source, p, len, offset);
    munmap(p, len);
    if (r < 0)
        return r;
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    *ret_map = p;
    return 0;
}

/* Map `len` bytes at `offset`; *ret_image is where they are. */
static int map_image(struct index *index, struct source *source, uint64_t offset, size_t len,
                     const uint8_t **ret_image)
{
    size_t skip = 0;
    void *map = MAP_FAILED;
    if (source_is_local(source)) {
        skip = (size_t)(offset & ((uint64_t)sysconf(_SC_PAGESIZE) - 1));
        map = mmap(NULL, len + skip, PROT_READ, MAP_SHARED, source_fd(source),
                   (off_t)(offset - skip));
    }
    if (map == MAP_FAILED) {
        skip = 0;
        int r = map_copy(source, offset, len, &map);
        if (r < 0)
            return r;
    }
    index->map = map;
    index->map_bytes = len + skip;
    *ret_image = (const uint8_t *)map + skip;
    return 0;
}

static void decode_info(const struct disk_header *h, struct index_info *info)
{
    uint32_t features = le32toh(h->features);
    *info = (struct index_info){
        .format = (enum format)le32toh(h->format),
        .codec = (enum codec)le32toh(h->codec),
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
        .has_sums = features & DISK_HAS_SUMS,
        .archive_bytes = le64toh(h->archive_bytes),
        .archive_mtime_sec = (int64_t)le64toh((uint64_t)h->archive_mtime_sec),
        .archive_mtime_nsec = le32toh(h->archive_mtime_nsec),
        .archive_fingerprint = le64toh(h->archive_fingerprint),
        .end_marker_offset = le64toh(h->end_marker_offset),
    };
    memcpy(info->identifier, h->identifier, sizeof(info->identifier));
}

/*
 * The first bytes of the image: enough to know how long header and table are, and that
 * they are what was written. Nothing is copied, but the field of the sum.
 */
static int check_header(const uint8_t *image, uint64_t offset, uint64_t len,
                        struct fault *fault)
{
    struct disk_header h;
    if (len < sizeof(h))
        return damaged(fault, offset, "it is too short");
    memcpy(&h, image, sizeof(h));
    if (memcmp(h.magic, DISK_MAGIC, sizeof(h.magic)) != 0)
        return damaged(fault, offset, "it does not begin as an index does");

    uint32_t header_bytes = le32toh(h.header_bytes);
    if (header_bytes < sizeof(h) || header_bytes > DISK_HEADER_MAX || header_bytes > len)
        return damaged(fault, offset, "its header has a wrong length");
    auto_free uint8_t *copy = malloc(header_bytes);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, image, header_bytes);
    memset(copy + offsetof(struct disk_header, header_sum), 0, sizeof(h.header_sum));
    if (XXH3_64bits(copy, header_bytes) != le64toh(h.header_sum))
        return damaged(fault, offset, "its header does not have the sum it should have");

    if (le32toh(h.version) != DISK_VERSION || le64toh(h.incompatible) != 0) {
        fault_set(fault, -ENOTSUP, NULL, offset, "the index was made by a later onepot");
        fault_advise(fault, "use a newer onepot, or have this one index the archive anew");
        return -ENOTSUP;
    }
    if (le64toh(h.image_bytes) > len)
        return damaged(fault, offset, "it is cut off");
    return 0;
}

/* Area and page sums: that they lie in the image, and that the sums are sound. */
static int check_area(struct index *index, const struct disk_header *h, const uint8_t *image,
                      uint64_t offset, struct fault *fault)
{
    uint64_t image_bytes = le64toh(h->image_bytes);
    uint64_t area_offset = le64toh(h->area_offset);
    uint64_t area_bytes = le64toh(h->area_bytes);
    uint64_t sums_offset = le64toh(h->sums_offset);
    if (le32toh(h->page_bytes) != DISK_PAGE_BYTES || area_offset % 8 || sums_offset % 8 ||
        area_offset > image_bytes || area_bytes > image_bytes - area_offset || area_bytes == 0)
        return damaged(fault, offset, "its parts do not fit in it");

    uint64_t pages = (area_bytes - 1) / DISK_PAGE_BYTES + 1;
    if (sums_offset > image_bytes || pages * 8 > image_bytes - sums_offset)
        return damaged(fault, offset, "its page sums do not fit in it");
    if (XXH3_64bits(image + sums_offset, pages * 8) != le64toh(h->sums_sum))
        return damaged(fault, offset + sums_offset, "its page sums are not sound");

    index->area = image + area_offset;
    index->area_bytes = area_bytes;
    index->page_sums = (const uint64_t *)(const void *)(image + sums_offset);
    index->page_good = calloc(pages, 1);
    return index->page_good ? 0 : -ENOMEM;
}

static uint32_t record_bytes(uint32_t id)
{
    static const uint32_t bytes[SECTION_IDS] = {
        [SECTION_ENTRIES] = sizeof(struct disk_entry),
        [SECTION_NAMES] = 1,
        [SECTION_ATTRS] = sizeof(struct disk_attr),
        [SECTION_DIRS] = 4,
        [SECTION_EXTENTS] = 8,
        [SECTION_BLOCKS] = sizeof(struct disk_block),
        [SECTION_EXTRA] = sizeof(struct disk_extra),
        [SECTION_STRINGS] = 1,
        [SECTION_XATTRS] = 8,
        [SECTION_SUMS] = 8,
    };
    return bytes[id];
}

static int read_sections(struct index *index, const struct disk_header *h, const uint8_t *image,
                         uint64_t offset, struct fault *fault)
{
    uint64_t table = le32toh(h->sections_offset);
    uint64_t count = le32toh(h->sections);
    uint64_t area_offset = le64toh(h->area_offset);
    uint64_t header_bytes = le32toh(h->header_bytes);
    if (table % 8 || table > header_bytes ||
        count * sizeof(struct disk_section) > header_bytes - table)
        return damaged(fault, offset, "its section table does not fit in its header");

    for (uint64_t i = 0; i < count; i++) {
        struct disk_section s;
        memcpy(&s, image + table + i * sizeof(s), sizeof(s));
        uint32_t id = le32toh(s.id);
        uint64_t at = le64toh(s.offset);
        uint64_t length = le64toh(s.length);
        if (id == 0 || id >= SECTION_IDS)
            continue;
        if (index->sections[id].bytes || le32toh(s.record_bytes) != record_bytes(id) ||
            length % record_bytes(id) || at % 8 || at < area_offset ||
            at - area_offset > index->area_bytes ||
            length > index->area_bytes - (at - area_offset))
            return damaged(fault, offset, "a section does not lie where sections may");
        index->sections[id] = (struct index_section){
            .bytes = image + at,
            .area_offset = at - area_offset,
            .length = length,
        };
    }
    return 0;
}

static int count_records(struct index *index, const struct disk_header *h, uint64_t offset,
                         struct fault *fault)
{
    const struct index_section *s = index->sections;
    uint64_t entries = le32toh(h->entries);
    uint64_t blocks = s[SECTION_BLOCKS].length / sizeof(struct disk_block);
    uint64_t fragments = le32toh(h->fragments);
    uint64_t dirs = s[SECTION_DIRS].length / 4;
    uint64_t attrs = s[SECTION_ATTRS].length / sizeof(struct disk_attr);
    if (entries == 0 || s[SECTION_ENTRIES].length != entries * sizeof(struct disk_entry) ||
        dirs == 0 || dirs > entries || attrs == 0 || attrs > DISK_ATTR_LIMIT ||
        blocks > UINT32_MAX || fragments > blocks ||
        s[SECTION_NAMES].length >= DISK_NAME_LIMIT ||
        (s[SECTION_SUMS].bytes && s[SECTION_SUMS].length != entries * 8))
        return damaged(fault, offset, "the sizes of its sections contradict each other");

    index->attrs = (uint32_t)attrs;
    index->dirs = (uint32_t)dirs;
    index->blocks = (uint32_t)blocks;
    index->fragments = (uint32_t)fragments;
    index->extras = s[SECTION_EXTRA].length / sizeof(struct disk_extra);
    index->info.has_sums = index->info.has_sums && s[SECTION_SUMS].bytes;
    index->dir_good = calloc(entries / 8 + 1, 1);
    return index->dir_good ? 0 : -ENOMEM;
}

static int check_root(const struct index *index, uint64_t offset, struct fault *fault)
{
    struct index_entry root;
    if (index_entry(index, INDEX_ROOT, &root) < 0)
        return damaged(fault, offset, "its first entry can't be read");
    if (!S_ISDIR(root.attr.mode))
        return damaged(fault, offset, "its first entry is no directory");
    return 0;
}

static int open_image(struct index *index, const uint8_t *image, uint64_t offset, uint64_t len,
                      struct fault *fault)
{
    int r = check_header(image, offset, len, fault);
    if (r < 0)
        return r;
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    decode_info(&h, &index->info);
    r = check_area(index, &h, image, offset, fault);
    if (r < 0)
        return r;
    r = read_sections(index, &h, image, offset, fault);
    if (r < 0)
        return r;
    r = count_records(index, &h, offset, fault);
    if (r < 0)
        return r;
    return check_root(index, offset, fault);
}

int index_open(struct source *source, uint64_t offset, uint64_t len, struct fault *fault,
               struct index **ret_index)
{
    uint64_t size = source_size(source);
    if (offset % 8 || len == 0 || offset > size || len > size - offset)
        return damaged(fault, offset, "it does not lie within its file");
    struct index *index = calloc(1, sizeof(*index));
    if (!index)
        return -ENOMEM;
    const uint8_t *image;
    int r = map_image(index, source, offset, (size_t)len, &image);
    if (r < 0)
        fault_set(fault, r, NULL, offset, "the index can't be read: %s", strerror(-r));
    else
        r = open_image(index, image, offset, len, fault);
    if (r < 0) {
        index_close(index);
        return r;
    }
    *ret_index = index;
    return 0;
}

void index_close(struct index *index)
{
    if (!index)
        return;
    if (index->map)
        munmap(index->map, index->map_bytes);
    free((void *)index->page_good);
    free((void *)index->dir_good);
    free(index);
}

const struct index_info *index_info(const struct index *index)
{
    return &index->info;
}

bool index_check_page(const struct index *index, uint64_t page)
{
    uint64_t at = page << DISK_PAGE_BITS;
    uint64_t len = index->area_bytes - at;
    if (len > DISK_PAGE_BYTES)
        len = DISK_PAGE_BYTES;
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
    uint64_t name_attr = le64toh(e->name_attr);
    const struct disk_attr *a = index_bytes(
        index, SECTION_ATTRS, (name_attr >> DISK_NAME_BITS) * sizeof(*a), sizeof(*a));
    if (!a)
        return -EUCLEAN;
    *ret_entry = (struct index_entry){
        .position = position,
        .name_offset = name_attr & (DISK_NAME_LIMIT - 1),
        .size = le64toh(e->size),
        .data = le64toh(e->data),
        .mtime = le64toh(e->mtime),
        .attr = {.mode = le32toh(a->mode),
                 .uid = le32toh(a->uid),
                 .gid = le32toh(a->gid),
                 .flags = le32toh(a->flags)},
    };
    if (S_ISDIR(ret_entry->attr.mode) && ret_entry->attr.flags & DATA_KIND_MASK)
        return -EUCLEAN;
    return 0;
}

int index_inode(const struct index *index, uint32_t position, struct index_entry *ret_entry)
{
    struct index_entry e;
    int r = index_entry(index, position, &e);
    if (r < 0)
        return r;
    if ((e.attr.flags & DATA_KIND_MASK) == DATA_KIND_ALIAS) {
        if (e.data >= position)
            return -EUCLEAN;
        r = index_entry(index, (uint32_t)e.data, &e);
        if (r < 0)
            return r;
        if ((e.attr.flags & DATA_KIND_MASK) == DATA_KIND_ALIAS || S_ISDIR(e.attr.mode))
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

/* Type bits that a file can have, and no bits that no mode has. */
static bool mode_valid(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK:
    case S_IFIFO:
    case S_IFSOCK:
    case S_IFCHR:
    case S_IFBLK:
        return (mode & ~(uint32_t)(S_IFMT | 07777)) == 0;
    default:
        return false;
    }
}

static int node_times(const struct index *index, const struct index_entry *e, struct node *node)
{
    node->mtime_nsec = (uint32_t)(e->mtime & ((1u << DISK_NSEC_BITS) - 1));
    node->mtime_sec = (int64_t)(e->mtime >> DISK_NSEC_BITS) - DISK_MTIME_BIAS;
    if (node->mtime_nsec > 999999999)
        return -EUCLEAN;
    if (e->attr.flags & ATTR_WIDE_MTIME) {
        uint64_t value;
        int r = index_extra(index, e->position, EXTRA_MTIME, &value);
        if (r < 0)
            return r;
        node->mtime_sec = (int64_t)value;
    }
    return 0;
}

static int node_links(const struct index *index, const struct index_entry *e, struct node *node)
{
    uint64_t value = 1;
    if (S_ISDIR(e->attr.mode)) {
        value = e->size + 2;
    } else if (e->attr.flags & ATTR_NLINK) {
        int r = index_extra(index, e->position, EXTRA_NLINK, &value);
        if (r < 0)
            return r;
    }
    if (value == 0 || value > UINT32_MAX)
        return -EUCLEAN;
    node->nlink = (uint32_t)value;
    return 0;
}

static int node_bytes(const struct index *index, const struct index_entry *e, struct node *node)
{
    uint64_t data = e->size;
    if (e->size > INT64_MAX)
        return -EUCLEAN;
    node->size_bytes = e->size;
    switch (e->attr.flags & DATA_KIND_MASK) {
    case DATA_KIND_STORED:
    case DATA_KIND_FRAGMENT:
        break;
    case DATA_KIND_EXTENTS: {
        const uint64_t *list = index_bytes(index, SECTION_EXTENTS, e->data, 16);
        if (!list || e->data % 8)
            return -EUCLEAN;
        data = le64toh(list[1]);
        break;
    }
    case DATA_KIND_BLOCKS:
    case DATA_KIND_TAIL:
        if (e->attr.flags & ATTR_DATA_BYTES) {
            int r = index_extra(index, e->position, EXTRA_DATA_BYTES, &data);
            if (r < 0)
                return r;
        }
        break;
    default:
        return -EUCLEAN;
    }
    if (data > e->size)
        return -EUCLEAN;
    node->data_bytes = data;
    node->has_holes = e->attr.flags & ATTR_HOLES;
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
        .mode = e.attr.mode,
        .uid = e.attr.uid,
        .gid = e.attr.gid,
        .has_xattrs = e.attr.flags & ATTR_XATTRS,
    };
    if (!mode_valid(node.mode))
        return -EUCLEAN;
    if (S_ISREG(node.mode)) {
        r = node_bytes(index, &e, &node);
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
    r = node_times(index, &e, &node);
    if (r < 0)
        return r;
    r = node_links(index, &e, &node);
    if (r < 0)
        return r;
    *ret_node = node;
    return 0;
}

/* ---- names and directories ---- */

/* Where the name of an entry lies; not whether it is one that a file may have. */
static int raw_name(const struct index *index, uint32_t position, const char **ret_name,
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
    if (!name)
        return -EUCLEAN;
    *ret_name = name;
    *ret_len = (size_t)(end - start);
    return 0;
}

/* A length was checked already. */
static bool name_valid(const char *name, size_t len)
{
    if (name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')))
        return false;
    return !memchr(name, '/', len) && !memchr(name, '\0', len);
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
    const char *name;
    size_t len;
    int r = raw_name(index, position, &name, &len);
    if (r < 0)
        return r;
    if (!name_valid(name, len))
        return -EUCLEAN;
    *ret_name = name;
    *ret_len = len;
    return 0;
}

/* The directory at a place of DIRS. */
static int dir_at(const struct index *index, uint32_t place, struct index_entry *ret_dir)
{
    const uint32_t *p = index_bytes(index, SECTION_DIRS, (uint64_t)place * 4, 4);
    if (!p || le32toh(*p) >= index->info.entries)
        return -EUCLEAN;
    return index_entry(index, le32toh(*p), ret_dir);
}

/*
 * The last place in DIRS whose directory has its first child at or before `position`;
 * see the head of this file for why it matters that this is a plain binary search.
 */
static int find_owner(const struct index *index, uint32_t position, uint32_t *ret_place,
                      struct index_entry *ret_dir)
{
    uint32_t low = 0, high = index->dirs;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        struct index_entry dir;
        int r = dir_at(index, mid, &dir);
        if (r < 0)
            return r;
        if ((uint32_t)dir.data <= position)
            low = mid;
        else
            high = mid;
    }
    *ret_place = low;
    return dir_at(index, low, ret_dir);
}

static int check_children(const struct index *index, const struct index_entry *dir)
{
    _Atomic uint8_t *good = &index->dir_good[dir->position / 8];
    uint8_t bit = (uint8_t)(1u << (dir->position % 8));
    if (atomic_load_explicit(good, memory_order_relaxed) & bit)
        return 0;

    uint32_t first = (uint32_t)dir->data;
    uint32_t count = (uint32_t)(dir->data >> 32);
    if (count > 0) {
        if (first <= dir->position || first >= index->info.entries ||
            count > index->info.entries - first)
            return -EUCLEAN;
        uint32_t place, last_place;
        struct index_entry owner;
        int r = find_owner(index, first, &place, &owner);
        if (r < 0)
            return r;
        r = find_owner(index, first + count - 1, &last_place, &owner);
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
    if (!S_ISDIR(dir.attr.mode))
        return -ENOTDIR;
    r = check_children(index, &dir);
    if (r < 0)
        return r;
    *ret_first = (uint32_t)dir.data;
    *ret_count = (uint32_t)(dir.data >> 32);
    return 0;
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
        r = raw_name(index, low + half, &other, &other_len);
        if (r < 0)
            return r;
        int order = memcmp(name, other, len < other_len ? len : other_len);
        if (order == 0 && len == other_len) {
            if (!name_valid(other, other_len))
                return -EUCLEAN;
            *ret_position = low + half;
            return 0;
        }
        if (order > 0 || (order == 0 && len > other_len)) {
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
    int r = find_owner(index, position, &place, &dir);
    if (r < 0)
        return r;
    uint32_t first = (uint32_t)dir.data;
    uint32_t count = (uint32_t)(dir.data >> 32);
    if (!S_ISDIR(dir.attr.mode) || dir.position >= position || first > position ||
        position - first >= count)
        return -EUCLEAN;
    *ret_parent = dir.position;
    return 0;
}

int index_resolve(const struct index *index, const char *path, uint32_t *ret_position)
{
    uint32_t position = INDEX_ROOT;
    while (*path) {
        size_t len = strcspn(path, "/");
        if (len == 2 && path[0] == '.' && path[1] == '.')
            return -EINVAL;
        if (len > 0 && !(len == 1 && path[0] == '.')) {
            int r = index_lookup(index, position, path, len, &position);
            if (r < 0)
                return r;
        }
        path += len;
        path += *path == '/';
    }
    *ret_position = position;
    return 0;
}

int index_path(const struct index *index, uint32_t position, char *buf, size_t size,
               size_t *ret_len)
{
    if (position >= index->info.entries)
        return -EINVAL;
    if (size == 0)
        return -ENAMETOOLONG;
    /* From the last name to the first, at the end of the buffer; then it is moved. */
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
