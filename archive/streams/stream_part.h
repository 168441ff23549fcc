/*
 * The parts of a stream that was scanned, each of which can be decompressed alone.
 */
#ifndef ONEPOT_STREAM_PART_H
#define ONEPOT_STREAM_PART_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "builder.h"

/* Memory that grows with the parts: of the caller, who frees `at`. All zero is empty. */
struct stream_buffer {
    uint8_t *at;
    size_t room;
};

/* Makes room for `len` bytes; where there was too little, what was there is dropped. -ENOMEM.
 */
static inline int stream_buffer_room(struct stream_buffer *buffer, size_t len)
{
    if (len <= buffer->room)
        return 0;
    free(buffer->at);
    buffer->at = malloc(len);
    buffer->room = buffer->at ? len : 0;
    return buffer->at ? 0 : -ENOMEM;
}

struct stream_part {
    struct builder_block
        block;                /* with its codec and point; block_bytes is its content's length,
                                 which may be 0 for the last part: leave that one out */
    struct block_point point; /* valid until the next call */
    bool is_last;             /* of its stream */
};

#endif
