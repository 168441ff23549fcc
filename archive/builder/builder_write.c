/*
 * The builder, output: turns names and inodes into the image that index_format.h describes.
 *
 * Once the entries are in order, the sections are written one after the other through one
 * buffer, which takes a page's sum as the page fills. The header goes last, since it holds the
 * totals counted on the way. Tables needed only for adding are freed at the start, so that
 * writing takes no more memory than adding did.
 */
#include "builder.h"

#include <endian.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "builder_private.h"
#include "cleanup.h"
#include "digest.h"

/* How far ahead of its use a record is prefetched: names are not visited in memory order. */
#define AHEAD 12

#define OUT_BYTES (16u * DISK_PAGE_BYTES)

/* Marks an inode that has its entry already: `data` is then its position. */
#define NLINK_PLACED UINT32_MAX

struct image {
    struct builder *b;
    const struct builder_header *about;
    uint32_t *order; /* the name at each position */
    VECTOR(struct disk_extra) extras;
    uint32_t *sides;    /* the builder's sides, by inode and kind */
    uint64_t no_ranges; /* offset in EXTENTS of an empty list, for files that are one hole */
    struct disk_header header;

    int fd;
    uint64_t offset; /* of the image in its file */
    uint64_t stride; /* of the image's pieces */
    uint8_t *buf;
    size_t used;
    uint64_t flushed; /* bytes of the area already written out */
    VECTOR(uint64_t) page_sums;
    VECTOR(struct disk_section) sections;
};

/* ---- output ---- */

static int write_at(const struct image *image, const void *bytes, size_t len, uint64_t at)
{
    const uint8_t *p = bytes;
    while (len > 0) {
        uint64_t room, place = disk_place(image->offset, image->stride, at, &room);
        ssize_t n = pwrite(image->fd, p, len < room ? len : (size_t)room, (off_t)place);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static int flush(struct image *image)
{
    size_t pages = (image->used + DISK_PAGE_BYTES - 1) / DISK_PAGE_BYTES;
    if (vector_reserve(&image->page_sums, pages) < 0)
        return -ENOMEM;
    for (size_t at = 0; at < image->used; at += DISK_PAGE_BYTES) {
        size_t len = image->used - at < DISK_PAGE_BYTES ? image->used - at : DISK_PAGE_BYTES;
        image->page_sums.at[image->page_sums.count++] =
            htole64(XXH3_64bits(image->buf + at, len));
    }
    uint64_t area = le64toh(image->header.area_offset);
    int r = write_at(image, image->buf, image->used, area + image->flushed);
    image->flushed += image->used;
    image->used = 0;
    return r;
}

static int put(struct image *image, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    while (len > 0) {
        size_t n = OUT_BYTES - image->used < len ? OUT_BYTES - image->used : len;
        memcpy(image->buf + image->used, p, n);
        image->used += n;
        p += n;
        len -= n;
        if (image->used == OUT_BYTES) {
            int r = flush(image);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static int begin_section(struct image *image, enum disk_section_id id, uint32_t record_bytes)
{
    static const uint8_t zeros[8];
    int r = put(image, zeros, (8 - image->used % 8) % 8);
    if (r < 0)
        return r;
    image->sections.at[image->sections.count++] = (struct disk_section){
        .id = htole32(id),
        .record_bytes = htole32(record_bytes),
        .offset = htole64(le64toh(image->header.area_offset) + image->flushed + image->used),
    };
    return 0;
}

static void end_section(struct image *image)
{
    struct disk_section *s = &image->sections.at[image->sections.count - 1];
    uint64_t end = le64toh(image->header.area_offset) + image->flushed + image->used;
    s->length = htole64(end - le64toh(s->offset));
}

/* A section that lies in memory as it will on disk; omitted if empty. */
static int put_section(struct image *image, enum disk_section_id id, uint32_t record_bytes,
                       const void *bytes, size_t len)
{
    if (len == 0)
        return 0;
    int r = begin_section(image, id, record_bytes);
    if (r < 0)
        return r;
    r = put(image, bytes, len);
    end_section(image);
    return r;
}

/* ---- entries ---- */

static int compare_sides(const void *a, const void *b, void *sides)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct builder_side *x = (const struct builder_side *)sides + i;
    const struct builder_side *y = (const struct builder_side *)sides + j;
    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (i > j) - (i < j);
}

static int sort_sides(struct image *image)
{
    struct builder *b = image->b;
    image->sides = calloc(b->sides.count + 1, sizeof(*image->sides));
    if (!image->sides)
        return -ENOMEM;
    for (size_t i = 0; i < b->sides.count; i++)
        image->sides[i] = (uint32_t)i;
    if (b->sides.count > 0)
        qsort_r(image->sides, b->sides.count, sizeof(*image->sides), compare_sides,
                b->sides.at);
    return 0;
}

/* The last value set for an inode; there must be one. */
static uint64_t find_side(const struct image *image, uint32_t inode, uint32_t kind)
{
    const struct builder_side *sides = image->b->sides.at;
    size_t low = 0, high = image->b->sides.count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct builder_side *s = &sides[image->sides[mid]];
        if (s->inode < inode || (s->inode == inode && s->kind <= kind))
            low = mid + 1;
        else
            high = mid;
    }
    return sides[image->sides[low - 1]].value;
}

static int add_extra(struct image *image, uint32_t position, uint32_t kind, uint64_t value)
{
    if (vector_reserve(&image->extras, 1) < 0)
        return -ENOMEM;
    image->extras.at[image->extras.count++] =
        (struct disk_extra){htole64(value), htole32(position), htole32(kind)};
    return 0;
}

/* Add an inode's values of EXTRA; the flags name them already, except for links and xattrs. */
static int add_extras(struct image *image, uint32_t position, uint32_t number, uint32_t *flags)
{
    struct builder *b = image->b;
    const struct builder_inode *inode = &b->inodes.at[number];
    int r = 0;
    if (inode->nlink > 1) {
        *flags |= ATTR_NLINK;
        image->header.features |= htole32(DISK_HAS_HARDLINKS);
        r = add_extra(image, position, EXTRA_NLINK, inode->nlink);
    }
    if (r == 0 && number < b->xattr_of.count && b->xattr_of.at[number]) {
        *flags |= ATTR_XATTRS;
        image->header.features |= htole32(DISK_HAS_XATTRS);
        r = add_extra(image, position, EXTRA_XATTRS, b->xattr_of.at[number] - 1);
    }
    if (r == 0 && *flags & ATTR_WIDE_MTIME)
        r = add_extra(image, position, EXTRA_MTIME, find_side(image, number, EXTRA_MTIME));
    if (r == 0 && *flags & ATTR_DATA_BYTES)
        r = add_extra(image, position, EXTRA_DATA_BYTES,
                      find_side(image, number, EXTRA_DATA_BYTES));
    return r;
}

static void add_saturated(uint64_t *sum, uint64_t value)
{
    uint64_t total;
    if (__builtin_add_overflow(le64toh(*sum), value, &total))
        total = UINT64_MAX;
    *sum = htole64(total);
}

/*
 * One range that covers the whole file becomes stored data; a file without ranges gets the
 * empty list.
 */
static int settle_extents(struct image *image, struct builder_inode *inode, uint32_t *flags,
                          uint64_t *ret_data_bytes)
{
    struct builder *b = image->b;
    *ret_data_bytes = 0;
    if (inode->size > 0 && inode->data == DATA_UNSET) {
        if (image->no_ranges == DATA_UNSET) {
            if (vector_reserve(&b->extents, 2) < 0)
                return -ENOMEM;
            image->no_ranges = b->extents.count * 8;
            b->extents.at[b->extents.count++] = htole64((uint64_t)DISK_RANGES << 32);
            b->extents.at[b->extents.count++] = 0;
        }
        inode->data = image->no_ranges;
        *flags |= ATTR_HOLES;
        return 0;
    }
    const uint64_t *list = inode->size > 0 ? b->extents.at + inode->data / 8 : NULL;
    *ret_data_bytes = list ? le64toh(list[1]) : 0;
    if (*ret_data_bytes < inode->size) {
        *flags |= ATTR_HOLES;
    } else if (!list ||
               ((uint32_t)le64toh(list[0]) == 1 && !(le64toh(list[2]) & RANGE_PACKED))) {
        inode->data = list ? le64toh(list[2]) : 0;
        *flags = (*flags & ~DATA_KIND_MASK) | DATA_KIND_STORED;
    }
    return 0;
}

/* An archive with sums counts as having them even without any file. */
static bool has_sums(const struct builder *b)
{
    return b->sums.count > 0 || b->rest_sum_count > 0;
}

/* Add a regular inode to the totals, and simplify its kind of data where possible. */
static int settle_regular(struct image *image, uint32_t number, uint32_t *flags)
{
    struct builder *b = image->b;
    struct builder_inode *inode = &b->inodes.at[number];
    uint64_t data_bytes = inode->size;
    uint32_t kind = *flags & DATA_KIND_MASK;
    if (has_sums(b) && (number >= b->has_sum.count || !b->has_sum.at[number]))
        return -EINVAL;
    if (kind == DATA_KIND_EXTENTS) {
        int r = settle_extents(image, inode, flags, &data_bytes);
        if (r < 0)
            return r;
    } else if (kind == DATA_KIND_BLOCKS && inode->data == DATA_UNSET) {
        if (inode->size > 0)
            return -EINVAL;
        inode->data = 0;
        *flags = (*flags & ~DATA_KIND_MASK) | DATA_KIND_STORED;
    } else if (*flags & ATTR_DATA_BYTES) {
        data_bytes = find_side(image, number, EXTRA_DATA_BYTES);
    }
    if (*flags & ATTR_HOLES)
        image->header.features |= htole32(DISK_HAS_HOLES);
    add_saturated(&image->header.total_bytes, inode->size);
    add_saturated(&image->header.data_bytes, data_bytes);
    return 0;
}

/* The inode's first name: write its data, its extras, its attributes. */
static int settle_inode(struct image *image, uint32_t position, uint32_t number,
                        uint32_t *ret_attr)
{
    struct builder *b = image->b;
    struct disk_attr attr = *inode_attr(b, number);
    uint32_t flags = attr.flags;
    int r = S_ISREG(attr.mode) ? settle_regular(image, number, &attr.flags) : 0;
    if (r == 0)
        r = add_extras(image, position, number, &attr.flags);
    if (r < 0)
        return r;
    add_saturated(&image->header.inodes, 1);
    if (attr.flags != flags)
        return builder_intern_attr(b, &attr, ret_attr);
    *ret_attr = b->inodes.at[number].attr;
    return 0;
}

static int alias_attr(struct image *image, uint32_t number, uint32_t *ret_attr)
{
    struct disk_attr attr = *inode_attr(image->b, number);
    attr.flags = DATA_KIND_ALIAS;
    return builder_intern_attr(image->b, &attr, ret_attr);
}

static int put_entry(struct image *image, uint32_t position, uint64_t name_offset)
{
    struct builder *b = image->b;
    uint32_t number = b->names.at[image->order[position]].inode;
    struct builder_inode *inode = &b->inodes.at[number];
    bool is_alias = inode->nlink == NLINK_PLACED;
    uint32_t attr;
    int r = is_alias ? alias_attr(image, number, &attr)
                     : settle_inode(image, position, number, &attr);
    if (r < 0)
        return r;
    mode_t mode = inode_attr(b, number)->mode;
    if (S_ISREG(mode))
        add_saturated(&image->header.files, 1);

    struct disk_entry e = {
        .name_attr = htole64(name_offset | (uint64_t)attr << DISK_NAME_BITS),
        .size = htole64(is_alias ? 0 : inode->size),
        .data = htole64(inode->data),
        .mtime = htole64(inode->mtime),
    };
    if (inode->nlink > 1 && !is_alias) {
        inode->nlink = NLINK_PLACED;
        inode->data = position;
    }
    return put(image, &e, sizeof(e));
}

static int put_entries(struct image *image)
{
    const struct builder *b = image->b;
    uint32_t count = (uint32_t)b->names.count;
    uint64_t name_offset = 0;
    int r = begin_section(image, SECTION_ENTRIES, sizeof(struct disk_entry));
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        if (i + 2 * AHEAD < count)
            __builtin_prefetch(&b->names.at[image->order[i + 2 * AHEAD]]);
        if (i + AHEAD < count)
            __builtin_prefetch(&b->inodes.at[b->names.at[image->order[i + AHEAD]].inode]);
        r = put_entry(image, i, name_offset);
        name_offset += name_length(b, image->order[i]);
    }
    end_section(image);
    image->header.name_bytes = htole64(name_offset);
    return r;
}

static int put_names(struct image *image)
{
    const struct builder *b = image->b;
    uint32_t count = (uint32_t)b->names.count;
    int r = begin_section(image, SECTION_NAMES, 1);
    for (uint32_t i = 1; r == 0 && i < count; i++) {
        if (i + 2 * AHEAD < count)
            __builtin_prefetch(&b->names.at[image->order[i + 2 * AHEAD]]);
        if (i + AHEAD < count)
            __builtin_prefetch(name_text(b, image->order[i + AHEAD]));
        r = put(image, name_text(b, image->order[i]), name_length(b, image->order[i]));
    }
    end_section(image);
    return r;
}

static int put_attrs(struct image *image)
{
    struct builder *b = image->b;
    int r = begin_section(image, SECTION_ATTRS, sizeof(struct disk_attr));
    for (size_t i = 0; r == 0 && i < b->attrs.count; i++) {
        const struct disk_attr *a = &b->attrs.at[i];
        struct disk_attr disk = {htole32(a->mode), htole32(a->uid), htole32(a->gid),
                                 htole32(a->flags)};
        r = put(image, &disk, sizeof(disk));
    }
    end_section(image);
    return r;
}

/* An inode's sum is at its first name; aliases and all but regular files have 0. */
static int put_sums(struct image *image)
{
    const struct builder *b = image->b;
    if (!has_sums(b))
        return 0;
    image->header.features |= htole32(DISK_HAS_SUMS);
    int r = begin_section(image, SECTION_SUMS, 8);
    for (uint32_t i = 0; r == 0 && i < b->names.count; i++) {
        uint32_t number = b->names.at[image->order[i]].inode;
        const struct builder_inode *inode = &b->inodes.at[number];
        bool is_alias = inode->nlink == NLINK_PLACED && inode->data != i;
        bool has_sum = number < b->sums.count && S_ISREG(inode_attr(b, number)->mode);
        uint64_t sum = htole64(has_sum && !is_alias ? b->sums.at[number] : 0);
        r = put(image, &sum, sizeof(sum));
    }
    end_section(image);
    return r;
}

static int put_rest_sums(struct image *image)
{
    const struct builder *b = image->b;
    if (b->rest_sum_count == 0)
        return 0;
    int r = begin_section(image, SECTION_REST, 8);
    for (uint64_t i = 0; r == 0 && i < b->rest_sum_count; i++) {
        uint64_t sum = htole64(b->rest_sums[i]);
        r = put(image, &sum, sizeof(sum));
    }
    end_section(image);
    return r;
}

static int put_expanded_sums(struct image *image)
{
    const struct builder_header *header = image->about;
    if (header->expanded_count == 0)
        return 0;
    int r = begin_section(image, SECTION_EXPANDED, 8);
    for (uint64_t i = 0; r == 0 && i < header->expanded_count; i++) {
        uint64_t sum = htole64(header->expanded_sums[i]);
        r = put(image, &sum, sizeof(sum));
    }
    end_section(image);
    return r;
}

/* ---- digest ---- */

static void digest_name(const struct builder *b, uint32_t name, struct digest *digest)
{
    uint32_t number = b->names.at[name].inode;
    const struct builder_inode *inode = &b->inodes.at[number];
    uint32_t mode = inode_attr(b, number)->mode;
    struct digest_entry e = {
        .name = name_text(b, name),
        .name_len = name_length(b, name),
        .mode = mode,
        .first = S_ISDIR(mode)   ? inode->data >> 32
                 : S_ISREG(mode) ? inode->size
                                 : (uint32_t)inode->data,
        .second =
            S_ISREG(mode) && number < b->sums.count ? b->sums.at[number] : inode->data >> 32,
    };
    if (S_ISLNK(mode)) {
        e.target = b->strings.at + inode->data;
        e.target_len = (size_t)inode->size;
    }
    digest_add(digest, &e);
}

/*
 * Done before the entries are written, as that changes the inodes. Skipped without sums: not
 * worth it.
 */
static int make_digest(struct image *image)
{
    const struct builder *b = image->b;
    struct digest digest;
    if (!has_sums(b) || image->about->sum_kind != SUM_XXH3)
        return 0;
    int r = digest_begin(&digest, true);
    if (r < 0)
        return r;
    uint32_t count = (uint32_t)b->names.count;
    for (uint32_t i = 0; i < count; i++) {
        if (i + 2 * AHEAD < count)
            __builtin_prefetch(&b->names.at[image->order[i + 2 * AHEAD]]);
        if (i + AHEAD < count)
            __builtin_prefetch(&b->inodes.at[b->names.at[image->order[i + AHEAD]].inode]);
        digest_name(b, image->order[i], &digest);
    }
    digest_end(&digest, image->header.digest);
    image->header.digest_kind = htole32(DIGEST_CONTENT);
    return 0;
}

static int put_area(struct image *image)
{
    struct builder *b = image->b;
    int r = put_entries(image);
    if (r == 0)
        r = put_names(image);
    if (r == 0)
        r = put_attrs(image);
    if (r == 0)
        r = put_section(image, SECTION_DIRS, 4, b->dirs.at, b->dirs.count * 4);
    if (r == 0)
        r = put_section(image, SECTION_EXTENTS, 8, b->extents.at, b->extents.count * 8);
    if (r == 0)
        r = put_section(image, SECTION_BLOCKS, sizeof(struct disk_block), b->blocks.at,
                        b->blocks.count * sizeof(struct disk_block));
    if (r == 0)
        r = put_section(image, SECTION_EXTRA, sizeof(struct disk_extra), image->extras.at,
                        image->extras.count * sizeof(struct disk_extra));
    if (r == 0)
        r = put_section(image, SECTION_STRINGS, 1, b->strings.at, b->strings.count);
    if (r == 0)
        r = put_section(image, SECTION_XATTRS, 8, b->xattrs.at, b->xattrs.count);
    if (r == 0)
        r = put_sums(image);
    if (r == 0)
        r = put_rest_sums(image);
    if (r == 0)
        r = put_expanded_sums(image);
    if (r == 0)
        r = put_section(image, SECTION_LEFT_OUT, 8, b->left_out.at, b->left_out.count);
    return r < 0 ? r : flush(image);
}

/* ---- header ---- */

#define SECTIONS_MAX (SECTION_IDS - 1)

/*
 * Room for the table, reserved before its content is known; sections that few archives have
 * take none in the others.
 */
static size_t table_room(const struct image *image)
{
    size_t records =
        SECTIONS_MAX - (image->about->expanded_count == 0) - (image->b->left_out_count == 0);
    return records * sizeof(struct disk_section);
}

static void begin_header(struct image *image)
{
    const struct builder *b = image->b;
    const struct builder_header *about = image->about;
    struct disk_header *h = &image->header;
    *h = (struct disk_header){
        .version = htole32(DISK_VERSION),
        .sections_offset = htole32(sizeof(*h)),
        .area_offset = htole64(sizeof(*h) + table_room(image)),
        .page_bytes = htole32(DISK_PAGE_BYTES),
        .format = htole32(about->format),
        .incompatible = htole64((b->codecs ? DISK_NEEDS_CODECS : 0) |
                                (about->sum_kind ? DISK_NEEDS_SUM_KIND : 0)),
        .codec = htole32(about->codec),
        .codecs = htole16((uint16_t)b->codecs),
        .sum_kind = htole16((uint16_t)about->sum_kind),
        .block_bytes = htole32(about->block_bytes),
        .entries = htole32((uint32_t)b->names.count),
        .fragments = htole32(b->fragments),
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
static int put_header(struct image *image, uint64_t *ret_image_bytes)
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

    int r = write_at(image, image->page_sums.at, sums_bytes, sums_offset);
    if (r == 0)
        r = write_at(image, bytes, sizeof(*h) + table_room(image), 0);
    if (r == 0)
        *ret_image_bytes = sums_offset + sums_bytes;
    return r;
}

static int compare_attrs(const void *a, const void *b, void *attrs)
{
    const struct disk_attr *x = (const struct disk_attr *)attrs + *(const uint32_t *)a;
    const struct disk_attr *y = (const struct disk_attr *)attrs + *(const uint32_t *)b;
    const uint32_t p[] = {x->mode, x->uid, x->gid, x->flags};
    const uint32_t q[] = {y->mode, y->uid, y->gid, y->flags};
    for (size_t i = 0; i < 4; i++)
        if (p[i] != q[i])
            return p[i] < q[i] ? -1 : 1;
    return 0;
}

/*
 * Order the attributes independently of when the place of data became known. Number 0 is all
 * zero and stays first.
 */
static int sort_attrs(struct builder *b)
{
    size_t count = b->attrs.count;
    auto_free uint32_t *order = calloc(count, sizeof(*order));
    auto_free uint32_t *number = calloc(count, sizeof(*number));
    auto_free struct disk_attr *sorted = calloc(count, sizeof(*sorted));
    if (!order || !number || !sorted)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, count, sizeof(*order), compare_attrs, b->attrs.at);
    for (size_t i = 0; i < count; i++) {
        sorted[i] = b->attrs.at[order[i]];
        number[order[i]] = (uint32_t)i;
    }
    memcpy(b->attrs.at, sorted, count * sizeof(*sorted));
    for (size_t i = 0; i < b->inodes.count; i++)
        b->inodes.at[i].attr = number[b->inodes.at[i].attr];
    for (size_t i = 0; i < b->attr_slot_count; i++)
        if (b->attr_slots[i])
            b->attr_slots[i] = number[b->attr_slots[i] - 1] + 1;
    return 0;
}

/* Free what only adding needed. */
static int end_adding(struct builder *b)
{
    int r = builder_flush_xattrs(b);
    free(b->slots);
    free(b->set_slots);
    b->slots = NULL;
    b->set_slots = NULL;
    b->slot_count = b->set_slot_count = 0;
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    return r;
}

static int write_image(struct image *image, uint64_t *ret_image_bytes)
{
    image->buf = malloc(OUT_BYTES);
    if (!image->buf || vector_reserve(&image->sections, SECTIONS_MAX) < 0)
        return -ENOMEM;
    image->order = calloc(image->b->names.count, sizeof(*image->order));
    if (!image->order)
        return -ENOMEM;
    int r = end_adding(image->b);
    if (r == 0)
        r = builder_number(image->b, image->order);
    if (r == 0)
        r = sort_sides(image);
    if (r == 0 && image->b->has_pieces)
        r = sort_attrs(image->b);
    if (r < 0)
        return r;
    begin_header(image);
    r = make_digest(image);
    if (r == 0)
        r = put_area(image);
    return r < 0 ? r : put_header(image, ret_image_bytes);
}

static int write_fault(struct fault *fault, int err)
{
    if (err == -ENOSPC || err == -EDQUOT) {
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "no space is left for the index");
        fault_advise(fault, "free space there, or have the index saved elsewhere");
    } else {
        fault_set(fault, err, NULL, FAULT_NO_OFFSET, "the index can't be written: %s",
                  strerror(-err));
    }
    return err;
}

int builder_write(struct builder *b, const struct builder_header *header, int fd,
                  uint64_t offset, struct fault *fault, uint64_t *ret_image_bytes)
{
    return builder_write_pieces(b, header, fd, offset, 0, fault, ret_image_bytes);
}

int builder_write_pieces(struct builder *b, const struct builder_header *header, int fd,
                         uint64_t offset, uint64_t stride, struct fault *fault,
                         uint64_t *ret_image_bytes)
{
    if (b->is_written || offset % 8 || b->block_bytes_max > header->block_bytes ||
        (b->block_bytes && b->block_bytes != header->block_bytes))
        return write_fault(fault, -EINVAL);
    b->is_written = true;
    struct image image = {.b = b,
                          .about = header,
                          .fd = fd,
                          .offset = offset,
                          .stride = stride,
                          .no_ranges = DATA_UNSET};
    int r = write_image(&image, ret_image_bytes);
    free(image.order);
    vector_free(&image.extras);
    free(image.sides);
    free(image.buf);
    vector_free(&image.page_sums);
    vector_free(&image.sections);
    return r < 0 ? write_fault(fault, r) : 0;
}
