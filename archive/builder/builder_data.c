/*
 * The builder, data: where the bytes of regular files lie, in the form used on disk; and sums.
 * Everything is checked on arrival, against the size of its file and the size of the archive,
 * so that the back end can name the member.
 */
#include "builder.h"

#include <endian.h>
#include <string.h>

#include "builder_private.h"
#include "numbers.h"

static bool builder_in_archive(const struct builder *b, uint64_t offset, uint64_t len)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, len, &end) &&
           (!b->archive_bytes || end <= b->archive_bytes);
}

int builder_append_pieces(struct builder *b, const void *pieces)
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
