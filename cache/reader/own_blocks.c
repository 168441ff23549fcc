/*
 * A block that belongs to one file gets the first buffer, because nobody will ask for it again.
 * Other blocks get the one of the other buffers that was used longest ago.
 */
#include "own_blocks.h"

#include <errno.h>
#include <stdlib.h>

void own_blocks_init(struct own_blocks *b, struct reader *reader,
                     struct reader_scratch *scratch)
{
    *b = (struct own_blocks){.reader = reader, .scratch = scratch};
}

void own_blocks_free(struct own_blocks *b)
{
    for (unsigned i = 0; i < OWN_BLOCKS; i++)
        free(b->slots[i].bytes);
}

static struct own_block *own_blocks_find(struct own_blocks *b, uint64_t source_offset)
{
    for (unsigned i = 0; i < OWN_BLOCKS; i++)
        if (b->slots[i].len > 0 && b->slots[i].source_offset == source_offset)
            return &b->slots[i];
    return NULL;
}

static struct own_block *own_blocks_choose(struct own_blocks *b, const struct extent *extent)
{
    if (extent->block_offset == 0 && extent->length == extent->block_bytes)
        return &b->slots[0];
    struct own_block *oldest = &b->slots[1];
    for (unsigned i = 2; i < OWN_BLOCKS; i++)
        if (b->slots[i].used < oldest->used)
            oldest = &b->slots[i];
    return oldest;
}

static int own_blocks_fill(struct own_blocks *b, struct own_block *slot,
                           const struct extent *extent)
{
    size_t size = reader_block_bytes(b->reader);
    slot->len = 0;
    if (!slot->bytes)
        slot->bytes = malloc(size);
    if (!slot->bytes)
        return -ENOMEM;
    slot->source_offset = extent->source_offset;
    return reader_unpack(b->reader, b->scratch, extent, slot->bytes, &slot->len);
}

int own_blocks_get(struct own_blocks *b, const struct extent *extent, const uint8_t **ret_bytes)
{
    struct own_block *slot = own_blocks_find(b, extent->source_offset);
    if (!slot) {
        slot = own_blocks_choose(b, extent);
        int r = own_blocks_fill(b, slot, extent);
        if (r < 0) {
            slot->len = 0;
            return r;
        }
    }
    slot->used = ++b->now;
    if (extent->block_offset > slot->len || extent->length > slot->len - extent->block_offset)
        return -EUCLEAN;
    *ret_bytes = slot->bytes + extent->block_offset;
    return 0;
}
