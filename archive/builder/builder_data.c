/*
 * The builder, data: where the bytes of regular files lie, in the form used on disk; and sums.
 * Everything is checked on arrival, against the size of its file and the size of the archive,
 * so that the back end can name the member.
 */
#include "builder.h"

#include <endian.h>
#include <string.h>

#include "builder_private.h"
#include "checksum.h"
#include "numbers.h"

static bool builder_in_archive(const struct builder *b, uint64_t offset, uint64_t len)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, len, &end) &&
           (!b->archive_bytes || end <= b->archive_bytes);
}

static bool builder_has_kind(const struct builder *b, uint32_t inode, uint32_t kind)
{
    return !b->is_written && inode < b->inodes.count &&
           (inode_attr(b, inode)->flags & DATA_KIND_MASK) == kind;
}

int builder_add_extent(struct builder *b, uint32_t inode, uint64_t offset, uint64_t length,
                       uint64_t source_offset)
{
    if (!builder_has_kind(b, inode, DATA_KIND_EXTENTS))
        return -EINVAL;
    struct builder_inode *file = &b->inodes.at[inode];
    if (length == 0)
        return 0;
    if (offset > file->size || length > file->size - offset ||
        !builder_in_archive(b, source_offset, length))
        return -EUCLEAN;
    if (vector_reserve(&b->extents, 5) < 0)
        return -ENOMEM;
    uint64_t *list = b->extents.at;
    if (file->data == DATA_UNSET) {
        file->data = b->extents.count * 8;
        list[b->extents.count++] = htole64((uint64_t)DISK_RANGES << 32);
        list[b->extents.count++] = 0;
    }
    list += file->data / 8;
    uint64_t count = (uint32_t)le64toh(list[0]);
    if (file->data / 8 + 2 + 3 * count != b->extents.count)
        return -EINVAL; /* another inode's ranges came in between */
    uint64_t *next = list + 2 + 3 * count;
    uint64_t last_end = count > 0 ? le64toh(next[-2]) + le64toh(next[-1]) : 0;
    if (offset < last_end)
        return -EUCLEAN;
    if (count == UINT32_MAX)
        return -EOVERFLOW;
    list[1] = htole64(le64toh(list[1]) + length);
    if (count > 0 && offset == last_end &&
        source_offset == le64toh(next[-3]) + le64toh(next[-1])) {
        next[-1] = htole64(le64toh(next[-1]) + length);
        return 0;
    }
    list[0] = htole64((uint64_t)DISK_RANGES << 32 | (count + 1));
    next[0] = htole64(source_offset);
    next[1] = htole64(offset);
    next[2] = htole64(length);
    b->extents.count += 3;
    return 0;
}

/* Append the sums of pieces of the point that comes next; zeros where there are none. */
static int builder_append_pieces(struct builder *b, const void *pieces)
{
    static const char none[POINT_PIECES_BYTES];
    if (!pieces && b->pieces.count == 0)
        return 0;
    while (b->pieces.count < b->points.count * sizeof(none))
        if (vector_append(&b->pieces, none, sizeof(none)) < 0)
            return -ENOMEM;
    return vector_append(&b->pieces, pieces ? (const char *)pieces : none, sizeof(none));
}

/* Append the point of the block that comes next. */
static int builder_append_point(struct builder *b, const struct block_point *point)
{
    if (point->first_bit > 7 || point->last_bits == 0 || point->last_bits > 8 ||
        point->window_bytes > POINT_WINDOW_MAX || point->window_packed > POINT_PACKED_MAX ||
        (point->window_bytes == 0) != (point->window_packed == 0))
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

static int builder_append_block(struct builder *b, const struct builder_block *block)
{
    if (block->block_bytes == 0 || block->packed_bytes >= BLOCK_STORED ||
        block->codec >= CODEC_COUNT || block->source_offset >> BLOCK_CODEC_SHIFT ||
        (block->stored && block->packed_bytes > block->block_bytes) ||
        codec_has_point(block->codec) != (block->point != NULL) ||
        (block->point && (block->stored || block->packed_bytes == 0)) ||
        !builder_in_archive(b, block->source_offset, block->packed_bytes))
        return -EUCLEAN;
    if (b->blocks.count >= UINT32_MAX)
        return -EOVERFLOW;
    int r = block->point ? builder_append_point(b, block->point) : 0;
    if (r < 0)
        return r;
    b->block_bytes_max = max_u32(b->block_bytes_max, block->block_bytes);
    bool is_packed = block->packed_bytes && !block->stored;
    uint64_t codec = is_packed ? block->codec : CODEC_NONE;
    b->codecs |= codec ? 1u << codec : 0;
    struct disk_block disk = {
        .source_offset = htole64(
            block->packed_bytes ? block->source_offset | codec << BLOCK_CODEC_SHIFT : 0),
        .packed = htole32(block->packed_bytes |
                          (block->stored && block->packed_bytes ? BLOCK_STORED : 0)),
        .block_bytes = htole32(block->block_bytes),
    };
    return vector_push(&b->blocks, disk);
}

int builder_add_fragment(struct builder *b, const struct builder_block *block,
                         uint32_t *ret_number)
{
    if (b->is_written || b->blocks.count != b->fragments)
        return -EINVAL;
    if (block->packed_bytes == 0)
        return -EUCLEAN;
    int r = builder_append_block(b, block);
    if (r < 0)
        return r;
    *ret_number = b->fragments++;
    return 0;
}

/* Bytes in a block; for a compressed one only the maximum is known. */
static uint32_t builder_capacity(const struct builder_block *block)
{
    return block->stored && block->packed_bytes ? block->packed_bytes : block->block_bytes;
}

static uint32_t builder_fragment_capacity(const struct builder *b, uint32_t fragment)
{
    const struct disk_block *block = &b->blocks.at[fragment];
    uint32_t packed = le32toh(block->packed);
    return packed & BLOCK_STORED ? packed & ~BLOCK_STORED : le32toh(block->block_bytes);
}

/*
 * Do these blocks and a tail make a file of this size? All but the last block have one size,
 * the same for all files; a tail is shorter than that.
 */
static int builder_check_blocks(struct builder *b, uint64_t size,
                                const struct builder_block *blocks, uint32_t count,
                                uint32_t fragment, uint32_t fragment_offset)
{
    bool has_tail = fragment != BUILDER_NO_FRAGMENT;
    uint32_t full = has_tail ? count : count - (count > 0);
    for (uint32_t i = 0; i < full; i++) {
        if (b->block_bytes == 0)
            b->block_bytes = blocks[i].block_bytes;
        if (blocks[i].block_bytes != b->block_bytes ||
            builder_capacity(&blocks[i]) != b->block_bytes)
            return -EUCLEAN;
    }
    uint64_t begin = (uint64_t)full * b->block_bytes;
    uint64_t room = 0;
    if (has_tail) {
        if (fragment >= b->fragments)
            return -EUCLEAN;
        uint32_t fragment_bytes = builder_fragment_capacity(b, fragment);
        room = fragment_offset < fragment_bytes ? fragment_bytes - fragment_offset : 0;
        if (b->block_bytes && full > 0 && room >= b->block_bytes)
            room = b->block_bytes - 1;
    } else if (count > 0) {
        room = builder_capacity(&blocks[count - 1]);
        if (b->block_bytes && full > 0 && room > b->block_bytes)
            room = b->block_bytes;
    }
    if (begin > size || size - begin > room || (size == begin && (has_tail || count > 0)))
        return -EUCLEAN;
    return 0;
}

/* Bytes of the file in blocks that are holes. */
static uint64_t builder_hole_bytes(const struct builder *b, uint64_t size,
                                   const struct builder_block *blocks, uint32_t count)
{
    uint64_t holes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t rest = size - (uint64_t)i * b->block_bytes;
        if (blocks[i].packed_bytes == 0)
            holes += b->block_bytes ? min_u64(rest, b->block_bytes) : rest;
    }
    return holes;
}

int builder_set_blocks(struct builder *b, uint32_t inode, const struct builder_block *blocks,
                       uint32_t count, uint32_t fragment, uint32_t fragment_offset)
{
    if (!builder_has_kind(b, inode, DATA_KIND_BLOCKS) || b->inodes.at[inode].data != DATA_UNSET)
        return -EINVAL;
    uint64_t size = b->inodes.at[inode].size;
    bool has_tail = fragment != BUILDER_NO_FRAGMENT;
    int r = builder_check_blocks(b, size, blocks, count, fragment, fragment_offset);
    if (r < 0)
        return r;

    uint64_t data = b->blocks.count;
    for (uint32_t i = 0; i < count; i++) {
        r = builder_append_block(b, &blocks[i]);
        if (r < 0)
            return r;
    }
    uint32_t kind = has_tail ? DATA_KIND_TAIL : DATA_KIND_BLOCKS;
    if (count == 0) {
        kind = has_tail ? DATA_KIND_FRAGMENT : DATA_KIND_STORED;
        data = has_tail ? fragment | (uint64_t)fragment_offset << 32 : 0;
    } else if (has_tail) {
        struct disk_block tail = {htole64(fragment), htole32(fragment_offset),
                                  htole32(DISK_TAIL)};
        if (vector_push(&b->blocks, tail) < 0)
            return -ENOMEM;
    }
    uint64_t holes = builder_hole_bytes(b, size, blocks, count);
    if (holes > 0) {
        kind |= ATTR_HOLES | ATTR_DATA_BYTES;
        r = builder_add_side(b, inode, EXTRA_DATA_BYTES, size - holes);
        if (r < 0)
            return r;
    }
    b->inodes.at[inode].data = data;
    return builder_change_flags(b, inode, DATA_KIND_MASK, kind);
}

/* Are these the full fragments of a file of blocks, in sequence? */
static bool builder_is_run(const struct builder *b, uint64_t size,
                           const struct builder_piece *pieces, size_t count)
{
    uint64_t block_bytes = pieces[0].length, end = 0;
    if (b->ranges_only || count < 2 || (b->block_bytes && b->block_bytes != block_bytes))
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct builder_piece *p = &pieces[i];
        if (p->fragment == BUILDER_NO_FRAGMENT || p->fragment != pieces[0].fragment + i ||
            p->fragment_offset || p->offset != end || p->length > block_bytes ||
            (i + 1 < count && (p->length != block_bytes ||
                               builder_fragment_capacity(b, p->fragment) != block_bytes)))
            return false;
        end += p->length;
    }
    return end == size;
}

static int builder_check_piece(const struct builder *b, uint64_t size, uint64_t last_end,
                               const struct builder_piece *p)
{
    if (p->length == 0 || p->offset < last_end || p->offset > size ||
        p->length > size - p->offset)
        return -EUCLEAN;
    if (p->fragment == BUILDER_NO_FRAGMENT)
        return builder_in_archive(b, p->source_offset, p->length) ? 0 : -EUCLEAN;
    if (p->fragment >= b->fragments || p->fragment_offset >> 31)
        return -EUCLEAN;
    uint32_t room = builder_fragment_capacity(b, p->fragment);
    return p->fragment_offset <= room && p->length <= room - p->fragment_offset ? 0 : -EUCLEAN;
}

static int builder_append_ranges(struct builder *b, uint64_t size,
                                 const struct builder_piece *pieces, size_t count,
                                 uint64_t *ret_data)
{
    size_t words = 0;
    if (count > UINT32_MAX)
        return -EOVERFLOW;
    if (__builtin_mul_overflow(count, 3, &words) || vector_reserve(&b->extents, words + 2) < 0)
        return -ENOMEM;
    uint64_t *list = b->extents.at + b->extents.count, data_bytes = 0, end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct builder_piece *p = &pieces[i];
        int r = builder_check_piece(b, size, end, p);
        if (r < 0)
            return r;
        bool packed = p->fragment != BUILDER_NO_FRAGMENT;
        list[2 + 3 * i] =
            htole64(packed ? RANGE_PACKED | (uint64_t)p->fragment_offset << 32 | p->fragment
                           : p->source_offset);
        list[3 + 3 * i] = htole64(p->offset);
        list[4 + 3 * i] = htole64(p->length);
        data_bytes += p->length;
        end = p->offset + p->length;
    }
    list[0] = htole64((uint64_t)DISK_RANGES << 32 | count);
    list[1] = htole64(data_bytes);
    *ret_data = b->extents.count * 8;
    b->extents.count += 2 + words;
    return 0;
}

void builder_use_ranges(struct builder *b)
{
    b->ranges_only = true;
}

int builder_set_pieces(struct builder *b, uint32_t inode, const struct builder_piece *pieces,
                       size_t count)
{
    if (!builder_has_kind(b, inode, DATA_KIND_BLOCKS) ||
        b->inodes.at[inode].data != DATA_UNSET || count == 0)
        return -EINVAL;
    uint64_t data, size = b->inodes.at[inode].size;
    uint32_t kind = DATA_KIND_EXTENTS;
    bool is_whole = count == 1 && pieces[0].length == size;
    int r = is_whole ? builder_check_piece(b, size, 0, &pieces[0]) : 0;
    if (r < 0)
        return r;
    if (is_whole && pieces[0].fragment == BUILDER_NO_FRAGMENT) {
        kind = DATA_KIND_STORED;
        data = pieces[0].source_offset;
    } else if (is_whole) {
        kind = DATA_KIND_FRAGMENT;
        data = pieces[0].fragment | (uint64_t)pieces[0].fragment_offset << 32;
    } else if (builder_is_run(b, size, pieces, count)) {
        kind = DATA_KIND_BLOCKS;
        data = pieces[0].fragment;
        b->block_bytes = (uint32_t)pieces[0].length;
        r = builder_check_piece(b, size, 0, &pieces[count - 1]);
    } else {
        r = builder_append_ranges(b, size, pieces, count, &data);
    }
    if (r < 0)
        return r;
    b->has_pieces = true;
    b->inodes.at[inode].data = data;
    return builder_change_flags(b, inode, DATA_KIND_MASK, kind);
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

void builder_mix_sums(struct builder *b, uint32_t first, uint32_t end, enum sum_kind kind)
{
    for (size_t i = first; i < end && i < b->sums.count; i++)
        if (b->has_sum.at[i])
            b->sums.at[i] = checksum_mixed(kind, b->sums.at[i]);
}

void builder_set_rest_sums(struct builder *b, const uint64_t *sums, uint64_t count)
{
    b->rest_sums = sums;
    b->rest_sum_count = count;
}
