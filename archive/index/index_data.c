/*
 * The index, reading side: where the bytes of files lie, targets of symbolic links, extended
 * attributes, sums, the digest.
 *
 * Extents are returned one at a time and never collected. So nothing is allocated, and a false
 * count costs no more than the bounds check that it fails.
 */
#include "index.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "checksum.h"
#include "digest.h"
#include "index_private.h"
#include "index_records.h"
#include "numbers.h"
#include "path.h"

static bool index_in_archive(const struct index *index, uint64_t offset, uint64_t len)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, len, &end) && end <= index->info.archive_bytes;
}

/* ---- stored files and ranges ---- */

static int index_stored_extent(const struct index *index, const struct index_entry *e,
                               uint64_t offset, struct extent *ret_extent)
{
    if (!index_in_archive(index, e->data, e->size))
        return -EUCLEAN;
    *ret_extent = (struct extent){
        .kind = EXTENT_STORED,
        .offset = offset,
        .length = e->size - offset,
        .source_offset = e->data + offset,
        .whole_offset = e->data,
        .whole_length = e->size,
    };
    return 0;
}

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

struct block_record {
    uint32_t number;
    uint64_t source_offset;
    uint32_t packed_bytes;
    uint32_t block_bytes;
    enum codec codec;
};

static int index_read_block(const struct index *index, uint64_t number,
                            struct block_record *ret_block)
{
    const struct disk_block *b =
        index_bytes(index, SECTION_BLOCKS, number * sizeof(*b), sizeof(*b));
    if (!b)
        return -EUCLEAN;
    uint64_t offset = le64toh(b->source_offset);
    uint32_t codec = (uint32_t)(offset >> BLOCK_CODEC_SHIFT);
    struct block_record block = {
        .number = (uint32_t)number,
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
    struct block_record block;
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
    *extent = (struct extent){
        .kind = EXTENT_BLOCK,
        .offset = extent->offset,
        .length = length,
        .source_offset = block.source_offset,
        .codec = block.codec,
        .packed_bytes = block.packed_bytes,
        .block_bytes = block.block_bytes,
        .block_offset = (uint32_t)at,
        .block = block.number,
    };
    return 0;
}

/* ---- points ---- */

uint64_t index_points(const struct index *index)
{
    return index->points;
}

/* The point of this block, and its number. -EUCLEAN: it has none. */
static int index_find_point(const struct index *index, uint32_t block,
                            struct disk_point *ret_point, uint64_t *ret_number)
{
    uint64_t low = 0, high = index->points;
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

bool index_has_pieces(const struct index *index)
{
    return index->sections[SECTION_PIECES].bytes != NULL;
}

/* NULL: there are none. */
static const void *index_pieces(const struct index *index, uint64_t number)
{
    static const uint8_t none[POINT_PIECES_BYTES];
    const void *pieces =
        index_has_pieces(index)
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
        r = index_stored_extent(index, &e, offset, &extent);
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
