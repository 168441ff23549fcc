/*
 * The builder, output: turns names and inodes into the image that index_format.h describes.
 *
 * Once the entries are in order, the sections are written one after the other. Tables needed
 * only for adding are freed at the start, so that writing takes no more memory than adding did.
 */
#include <endian.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "builder.h"
#include "builder_private.h"
#include "cleanup.h"
#include "digest.h"
#include "numbers.h"
#include "write_at.h"

/*
 * The builder, image: sections through one buffer, which takes a page's sum as the page fills.
 * The header goes last, since it holds the totals counted on the way.
 */

#define OUT_BYTES (16u * DISK_PAGE_BYTES)
#define SECTIONS_MAX (SECTION_IDS - 1)

struct image {
    struct builder *b;
    const struct builder_header *about;
    uint32_t entries;
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

static int image_write(const struct image *image, const uint8_t *bytes, size_t len, uint64_t at)
{
    return write_at(image->fd, bytes, len, image->offset + at);
}

/* Write the rest of the buffer. After the last section. */
static int image_flush(struct image *image)
{
    for (size_t at = 0; at < image->used; at += DISK_PAGE_BYTES) {
        size_t len = (size_t)min_u64(image->used - at, DISK_PAGE_BYTES);
        if (vector_push(&image->page_sums, htole64(XXH3_64bits(image->buf + at, len))) < 0)
            return -ENOMEM;
    }
    uint64_t area = le64toh(image->header.area_offset);
    int r = image_write(image, image->buf, image->used, area + image->flushed);
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

static int image_begin_section(struct image *image, enum disk_section_id id)
{
    static const uint8_t zeros[8];
    int r = image_put(image, zeros, (8 - image->used % 8) % 8);
    struct disk_section section = {
        .id = htole32(id),
        .record_bytes = htole32(disk_record_bytes(id)),
        .offset = htole64(le64toh(image->header.area_offset) + image->flushed + image->used),
    };
    return r < 0 ? r : vector_push(&image->sections, section);
}

static void image_end_section(struct image *image)
{
    struct disk_section *s = &image->sections.at[image->sections.count - 1];
    uint64_t end = le64toh(image->header.area_offset) + image->flushed + image->used;
    s->length = htole64(end - le64toh(s->offset));
}

/* A section that lies in memory as it will on disk; omitted if empty. */
static int image_put_section(struct image *image, enum disk_section_id id, const void *bytes,
                             uint64_t records)
{
    if (records == 0)
        return 0;
    int r = image_begin_section(image, id);
    if (r < 0)
        return r;
    r = image_put(image, bytes, records * disk_record_bytes(id));
    image_end_section(image);
    return r;
}

/* A section of sums, which are in host order; omitted if empty. */
static int image_put_sums(struct image *image, enum disk_section_id id, const uint64_t *sums,
                          uint64_t count)
{
    if (count == 0)
        return 0;
    int r = image_begin_section(image, id);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t sum = htole64(sums[i]);
        r = image_put(image, &sum, sizeof(sum));
    }
    image_end_section(image);
    return r;
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
 * Room for the table, reserved before its content is known; sections that few archives have
 * take none in the others.
 */
static size_t image_table_room(const struct image *image)
{
    size_t records = SECTIONS_MAX - (image->about->window_count == 0) -
                     2 * (image->b->left_out_count == 0) - (image->b->xattrs_left_out == 0) -
                     (image->about->recipe_len == 0) - (image->b->points.count == 0) -
                     (image->b->windows.count == 0) - (image->b->pieces.count == 0);
    return records * sizeof(struct disk_section);
}

/* Fill in what does not depend on the sections. */
static void image_begin_header(struct image *image)
{
    const struct builder *b = image->b;
    const struct builder_header *about = image->about;
    struct disk_header *h = &image->header;
    *h = (struct disk_header){
        .version = htole32(DISK_VERSION),
        .sections_offset = htole32(sizeof(*h)),
        .area_offset = htole64(sizeof(*h) + image_table_room(image)),
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
    uint64_t sums_offset = (le64toh(h->area_offset) + image->flushed + 7) & ~UINT64_C(7);
    size_t sums_bytes = image->page_sums.count * 8;
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

    int r = image_write(image, (uint8_t *)image->page_sums.at, sums_bytes, sums_offset);
    if (r == 0)
        r = image_write(image, bytes, sizeof(*h) + image_table_room(image), 0);
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

/* How many bytes all names have in common from `depth` on. */
static size_t order_common_length(const struct builder *b, const struct sort_item *items,
                                  size_t count, size_t depth)
{
    uint32_t first = (uint32_t)items[0].name;
    const char *text = name_text(b, first) + depth;
    size_t common = name_length(b, first) - depth;
    for (size_t i = 1; i < count && common > 0; i++) {
        uint32_t name = (uint32_t)items[i].name;
        const char *other = name_text(b, name) + depth;
        size_t len = name_length(b, name) - depth;
        if (len < common)
            common = len;
        size_t same = 0;
        while (same < common && text[same] == other[same])
            same++;
        common = same;
    }
    return common;
}

/* A name that ends here sorts first, as it should, since no name has a zero byte. */
static uint64_t order_key(const struct builder *b, uint32_t name, size_t depth)
{
    size_t len = name_length(b, name);
    uint64_t key = 0;
    if (len > depth)
        memcpy(&key, name_text(b, name) + depth, len - depth < 8 ? len - depth : 8);
    return be64toh(key);
}

/* All are children of one directory, whose names agree in `depth` bytes. */
static void order_sort(const struct builder *b, struct sort_item *items, size_t count,
                       size_t depth)
{
    if (count < 2)
        return;
    depth += order_common_length(b, items, count, depth);
    bool is_sorted = true;
    for (size_t i = 0; i < count; i++) {
        items[i].key = order_key(b, (uint32_t)items[i].name, depth);
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
 * Group names by parent, in the order in which they were added. Those of `p` end up in
 * by_parent[ends[p - 1] .. ends[p]). Both arrays have one item for each name.
 */
static void order_group_children(const struct builder *b, uint32_t *by_parent, uint32_t *ends)
{
    size_t count = b->names.count;
    memset(ends, 0, count * sizeof(*ends));
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
}

/* Room for the largest directory. */
static struct sort_item *order_room(const struct builder *b)
{
    uint64_t largest = 1;
    for (size_t i = 0; i < b->inodes.count; i++)
        if (is_directory_inode(b, (uint32_t)i) && b->inodes.at[i].data > largest)
            largest = b->inodes.at[i].data;
    return calloc((size_t)largest, sizeof(struct sort_item));
}

/*
 * Append a directory's children to the order, sorted, and store in the directory
 * where they are, as its entry on disk will.
 */
static void order_place_children(struct builder *b, struct builder_inode *dir,
                                 const uint32_t *children, struct sort_item *items,
                                 uint32_t *name_at, uint32_t placed)
{
    uint32_t count = (uint32_t)dir->data;
    for (uint32_t i = 0; i < count; i++)
        items[i].name = children[i];
    order_sort(b, items, count, 0);
    for (uint32_t i = 0; i < count; i++)
        name_at[placed + i] = (uint32_t)items[i].name;
    dir->data = placed | (uint64_t)count << 32;
    dir->size = 0;
    for (uint32_t i = placed; i < placed + count; i++)
        dir->size += is_directory_inode(b, b->names.at[name_at[i]].inode);
}

/*
 * Number the tree. name_at[position] is the name at each position, `dirs` has the positions of
 * directories, and the inodes of directories have `data` and `size` as on disk. `name_at` has
 * room for each name.
 */
static int builder_number(struct builder *b, uint32_t *name_at)
{
    size_t count = b->names.count;
    auto_free uint32_t *by_parent = calloc(count, sizeof(*by_parent));
    auto_free uint32_t *ends = calloc(count, sizeof(*ends));
    auto_free struct sort_item *items = order_room(b);
    if (!by_parent || !ends || !items)
        return -ENOMEM;
    order_group_children(b, by_parent, ends);

    uint32_t placed = 1;
    name_at[0] = 0;
    for (uint32_t position = 0; position < placed; position++) {
        uint32_t name = name_at[position];
        uint32_t inode = b->names.at[name].inode;
        if (!is_directory_inode(b, inode))
            continue;
        struct builder_inode *dir = &b->inodes.at[inode];
        uint32_t children = (uint32_t)dir->data;
        order_place_children(b, dir, by_parent + (ends[name] - children), items, name_at,
                             placed);
        placed += children;
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

/* Add an inode's values of EXTRA; the flags name them already, except for links and xattrs. */
static int image_add_extras(struct image *image, uint32_t position, uint32_t number,
                            uint32_t *flags)
{
    struct builder *b = image->b;
    const struct builder_inode *inode = &b->inodes.at[number];
    int r = 0;
    if (inode->nlink > 1) {
        *flags |= ATTR_NLINK;
        r = image_add_extra(image, position, EXTRA_NLINK, inode->nlink);
    }
    if (r == 0 && number < b->xattr_of.count && b->xattr_of.at[number]) {
        *flags |= ATTR_XATTRS;
        r = image_add_extra(image, position, EXTRA_XATTRS, b->xattr_of.at[number] - 1);
    }
    if (r == 0 && *flags & ATTR_WIDE_MTIME)
        r = image_add_extra(image, position, EXTRA_MTIME, (uint64_t)b->wide_mtimes.at[number]);
    return r;
}

static bool image_has_sums(const struct image *image)
{
    return image->b->sums.count > 0 || image->about->has_sums;
}

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
    if (image_has_sums(image) && image->about->sum_kind != SUM_MIXED &&
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

/* The inode's first name: settle its data and extras. */
static int image_settle_inode(struct image *image, uint32_t position, uint32_t number,
                              struct disk_attr *attr)
{
    int r = S_ISREG(attr->mode) ? image_settle_regular(image, number, &attr->flags) : 0;
    if (r == 0)
        r = image_add_extras(image, position, number, &attr->flags);
    if (r == 0)
        image_add_saturated(&image->header.inodes, 1);
    return r;
}

static int image_put_entry(struct image *image, uint32_t position, uint64_t name_offset)
{
    struct builder *b = image->b;
    uint32_t number = b->names.at[image->name_at[position]].inode;
    struct builder_inode *inode = &b->inodes.at[number];
    bool is_alias = inode->nlink == NLINK_PLACED;
    struct disk_attr attr = *inode_attr(b, number);
    uint32_t attr_number;
    int r = is_alias ? 0 : image_settle_inode(image, position, number, &attr);
    attr.flags = is_alias ? DATA_KIND_ALIAS : attr.flags;
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

static int image_put_entries(struct image *image)
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
    image_end_section(image);
    image->header.name_bytes = htole64(name_offset);
    return r;
}

static int image_put_names(struct image *image)
{
    const struct builder *b = image->b;
    uint32_t count = (uint32_t)b->names.count;
    int r = image_begin_section(image, SECTION_NAMES);
    for (uint32_t i = 1; r == 0 && i < count; i++) {
        image_prefetch(image, i, true);
        r = image_put(image, name_text(b, image->name_at[i]),
                      name_length(b, image->name_at[i]));
    }
    image_end_section(image);
    return r;
}

/* The attributes, and what they say of the whole index. */
static int image_put_attrs(struct image *image)
{
    uint32_t flags = 0;
    int r = image_begin_section(image, SECTION_ATTRS);
    for (size_t i = 0; r == 0 && i < image->attrs.list.count; i++) {
        const struct disk_attr *a = &image->attrs.list.at[i];
        struct disk_attr disk = {htole32(a->mode), htole32(a->uid), htole32(a->gid),
                                 htole32(a->flags)};
        r = image_put(image, &disk, sizeof(disk));
        flags |= a->flags;
    }
    image_end_section(image);
    image->header.features |= htole32((flags & ATTR_HOLES ? DISK_HAS_HOLES : 0) |
                                      (flags & ATTR_NLINK ? DISK_HAS_HARDLINKS : 0) |
                                      (flags & ATTR_XATTRS ? DISK_HAS_XATTRS : 0));
    return r;
}

/* An inode's sum is at its first name; aliases and all but regular files have 0. */
static int image_put_content_sums(struct image *image)
{
    const struct builder *b = image->b;
    if (!image_has_sums(image))
        return 0;
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
    image_end_section(image);
    return r;
}

/* ---- digest ---- */

static void image_digest_name(const struct builder *b, uint32_t name, struct digest *digest)
{
    uint32_t number = b->names.at[name].inode;
    const struct builder_inode *inode = &b->inodes.at[number];
    struct digest_entry e = {
        .name = name_text(b, name),
        .name_len = name_length(b, name),
        .mode = inode_attr(b, number)->mode,
        .size = inode->size,
        .data = inode->data,
        .sum = number < b->sums.count ? b->sums.at[number] : 0,
        .has_holes = inode_attr(b, number)->flags & ATTR_HOLES,
    };
    if (S_ISLNK(e.mode))
        e.target = b->strings.at + inode->data;
    digest_add(digest, &e);
}

/*
 * Done before the entries are written, as that changes the inodes. Skipped without sums: not
 * worth it.
 */
static int image_make_digest(struct image *image)
{
    const struct builder *b = image->b;
    struct digest digest;
    if (!image_has_sums(image) || image->about->sum_kind != SUM_XXH3)
        return 0;
    int r = digest_begin(&digest, true);
    if (r < 0)
        return r;
    uint32_t count = (uint32_t)b->names.count;
    for (uint32_t i = 0; i < count; i++) {
        image_prefetch(image, i, false);
        image_digest_name(b, image->name_at[i], &digest);
    }
    image->header.digest_kind = htole32(digest_end(&digest, image->header.digest));
    return 0;
}

static int image_put_area(struct image *image)
{
    struct builder *b = image->b;
    int r = image_put_entries(image);
    if (r == 0)
        r = image_put_names(image);
    if (r == 0)
        r = image_put_attrs(image);
    const struct {
        enum disk_section_id id;
        const void *bytes;
        uint64_t records;
    } sections[] = {
        {SECTION_DIRS, b->dirs.at, b->dirs.count},
        {SECTION_EXTENTS, b->extents.at, b->extents.count},
        {SECTION_BLOCKS, b->blocks.at, b->blocks.count},
        {SECTION_EXTRA, image->extras.at, image->extras.count},
        {SECTION_STRINGS, b->strings.at, b->strings.count},
        {SECTION_XATTRS, b->xattrs.at, b->xattrs.count / 8},
        {SECTION_POINTS, b->points.at, b->points.count},
        {SECTION_WINDOWS, b->windows.at, b->windows.count},
        {SECTION_PIECES, b->pieces.at, b->pieces.count / POINT_PIECES_BYTES},
    };
    for (size_t i = 0; r == 0 && i < sizeof(sections) / sizeof(sections[0]); i++)
        r = image_put_section(image, sections[i].id, sections[i].bytes, sections[i].records);
    if (r == 0)
        r = image_put_content_sums(image);
    if (r == 0)
        r = image_put_sums(image, SECTION_WINDOW_SUMS, image->about->window_sums,
                           image->about->window_count);
    if (r == 0)
        r = image_put_section(image, SECTION_LEFT_OUT, b->left_out.at, b->left_out.count / 8);
    if (r == 0)
        r = image_put_sums(image, SECTION_LEFT_OUT_KINDS, b->left_out_kinds,
                           b->left_out_count ? LEFT_OUT_KINDS : 0);
    if (r == 0)
        r = image_put_sums(image, SECTION_XATTRS_LEFT_OUT, &b->xattrs_left_out,
                           b->xattrs_left_out > 0);
    if (r == 0)
        r = image_put_section(image, SECTION_RECIPE, image->about->recipe,
                              image->about->recipe_len);
    return r < 0 ? r : image_flush(image);
}

/* Free what only adding needed. */
static int builder_end_adding(struct builder *b)
{
    int r = builder_flush_xattrs(b);
    free(b->slots);
    b->slots = NULL;
    b->slot_count = 0;
    map_free(&b->sets);
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    return r;
}

/* Put the names in order. */
static int builder_arrange(struct image *image)
{
    struct builder *b = image->b;
    image->entries = (uint32_t)b->names.count;
    image->name_at = calloc(b->names.count, sizeof(*image->name_at));
    return image->name_at ? builder_number(b, image->name_at) : -ENOMEM;
}

static int builder_write_image(struct image *image, uint64_t *ret_image_bytes)
{
    image->buf = malloc(OUT_BYTES);
    if (!image->buf || vector_reserve(&image->sections, SECTIONS_MAX) < 0)
        return -ENOMEM;
    uint32_t none;
    int r = attr_table_number(&image->attrs, &(struct disk_attr){0}, &none);
    if (r == 0)
        r = builder_end_adding(image->b);
    if (r == 0)
        r = builder_arrange(image);
    if (r < 0)
        return r;
    image_begin_header(image);
    r = image_make_digest(image);
    if (r == 0)
        r = image_put_area(image);
    return r < 0 ? r : image_put_header(image, ret_image_bytes);
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
    struct image image = {.b = b, .about = header, .fd = fd, .offset = offset};
    int r = builder_write_image(&image, ret_image_bytes);
    free(image.name_at);
    attr_table_free(&image.attrs);
    vector_free(&image.extras);
    free(image.buf);
    vector_free(&image.page_sums);
    vector_free(&image.sections);
    return r < 0 ? builder_write_fault(fault, r) : 0;
}
