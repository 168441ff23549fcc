/*
 * Shared by the files of the framer.
 *
 *   framer.c      input: decides which bytes go in which frame
 *   framer_out.c  output: frames go to the file, their places to the index
 */
#ifndef ONEPOT_FRAMER_PRIVATE_H
#define ONEPOT_FRAMER_PRIVATE_H

#include "compress.h"
#include "writer_private.h"

#define RAW_BLOCK_BYTES (128u << 10) /* zstd's largest block */

/* A run of bytes in a frame. A packed frame has one, which is `in`. */
struct part {
    uint8_t *bytes;
    size_t len;
    void *owned;
};

/* Where data of a member lies in a frame. */
struct place {
    uint32_t inode;
    uint32_t offset; /* in the frame */
    uint32_t length;
    bool last;       /* the member's data ends here */
    uint64_t stream; /* offset in the member's data */
};

struct frame {
    struct compress_job job; /* must be first */
    struct frame *next;
    bool raw;
    uint8_t *in; /* block_bytes long; NULL in a raw frame */
    size_t len;
    size_t ridden_bytes; /* bytes of members that were not sampled */
    struct part *parts;
    size_t part_count, part_capacity;
    struct place *places;
    size_t place_count, place_capacity;
};

/* The extents of a sparse member whose data is not yet written. */
struct map {
    struct map *next;
    uint32_t inode;
    size_t count;
    struct pax_extent extents[];
};

struct framer {
    struct writer *w;
    struct compressor compressor;
    struct compress_pool *own_pool; /* NULL: the pool belongs to the caller */
    size_t block_bytes;

    struct frame *open;
    struct frame *first, *last; /* in flight */
    uint64_t run_bytes; /* length of the current run of data that does not get smaller */

    struct pax_buffer header; /* of a member whose data has not come yet */
    uint32_t inode;           /* of the current member */
    uint64_t stored, done;    /* bytes of its data: in all, so far */

    /* For the member whose data is being written. */
    struct builder_piece *pieces;
    size_t piece_count, piece_capacity;
    struct map *first_map, *last_map;
};

/* Makes room for `more` items in an array. */
int framer_grow(void *at, size_t count, size_t more, size_t *capacity, size_t item_bytes);

/*
 * Appends bytes to a raw frame. `owned` (or NULL) is freed with the frame; on failure at once.
 */
int framer_add_part(struct frame *frame, uint8_t *bytes, size_t len, void *owned);

void framer_free_frame(struct frame *frame);

/* Writes a frame whose job is done to the file, in the order of the tar, and frees it. */
int framer_emit(struct framer *f, struct frame *frame, struct fault *fault);

#endif
