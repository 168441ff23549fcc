/*
 * A block that belongs to one file gets the first buffer, because nobody will ask for it again.
 * Other blocks get the one of the other buffers that was used longest ago.
 */
#include "thread_blocks.h"

#include <errno.h>
#include <stdlib.h>

void thread_blocks_init(struct thread_blocks *b, struct reader *reader,
                        struct reader_scratch *scratch)
{
    *b = (struct thread_blocks){.reader = reader, .scratch = scratch};
}

void thread_blocks_free(struct thread_blocks *b)
{
    for (unsigned i = 0; i < THREAD_BLOCKS; i++)
        free(b->slots[i].bytes);
}

static struct thread_block *thread_blocks_find(struct thread_blocks *b, uint64_t source_offset)
{
    for (unsigned i = 0; i < THREAD_BLOCKS; i++)
        if (b->slots[i].len > 0 && b->slots[i].source_offset == source_offset)
            return &b->slots[i];
    return NULL;
}

static struct thread_block *thread_blocks_choose(struct thread_blocks *b,
                                                 const struct extent *extent)
{
    if (extent->block_offset == 0 && extent->length == extent->block_bytes)
        return &b->slots[0];
    struct thread_block *oldest = &b->slots[1];
    for (unsigned i = 2; i < THREAD_BLOCKS; i++)
        if (b->slots[i].used < oldest->used)
            oldest = &b->slots[i];
    return oldest;
}

static int thread_blocks_fill(struct thread_blocks *b, struct thread_block *slot,
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

int thread_blocks_get(struct thread_blocks *b, const struct extent *extent,
                      const uint8_t **ret_bytes)
{
    struct thread_block *slot = thread_blocks_find(b, extent->source_offset);
    if (!slot) {
        slot = thread_blocks_choose(b, extent);
        int r = thread_blocks_fill(b, slot, extent);
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
