/*
 * What the files of the framer share.
 *
 *   framer.c      what goes in: which bytes are in which frame
 *   framer_out.c  frames that come out: into the file, their places into the index
 */
#ifndef ONEPOT_FRAMER_PRIVATE_H
#define ONEPOT_FRAMER_PRIVATE_H

#include "compress.h"
#include "writer_private.h"

#define RAW_BLOCK_BYTES (128u << 10) /* zstd's largest block */

/* A run of bytes in a frame; of a packed frame there is one, of `in`. */
struct part {
    uint8_t *bytes;
    size_t len;
    void *owned;
};

/* Data of a member in a frame. */
struct place {
    uint32_t inode;
    uint32_t offset; /* in the frame */
    uint32_t length;
    bool last;       /* the member's data ends here */
    uint64_t stream; /* offset in the member's data */
};

struct frame {
    struct compress_job job; /* first */
    struct frame *next;
    bool raw;
    uint8_t *in; /* block_bytes; NULL: raw */
    size_t len;
    size_t ridden_bytes; /* of members that were not looked at */
    struct part *parts;
    size_t part_count, part_capacity;
    struct place *places;
    size_t place_count, place_capacity;
};

/* The extents of a sparse member whose data is on its way. */
struct map {
    struct map *next;
    uint32_t inode;
    size_t count;
    struct pax_extent extents[];
};

struct framer {
    struct writer *w;
    struct compressor compressor;
    struct compress_pool *own_pool; /* NULL: it is somebody else's */
    size_t block_bytes;

    struct frame *open;
    struct frame *first, *last; /* in flight */
    uint64_t run_bytes;         /* of data that does not get smaller, one behind the other */

    struct pax_buffer header; /* of a member whose data did not come yet */
    uint32_t inode;           /* of the present member */
    uint64_t stored, done;    /* its data */

    /* Of the member whose data is coming out. */
    struct builder_piece *pieces;
    size_t piece_count, piece_capacity;
    struct map *first_map, *last_map;
};

/* Room for `more` items in an array. */
int framer_grow(void *at, size_t count, size_t more, size_t *capacity, size_t item_bytes);

/* Bytes that follow in a raw frame; `owned` (or NULL) is freed with it, on failure at once. */
int framer_add_part(struct frame *frame, uint8_t *bytes, size_t len, void *owned);

void framer_free_frame(struct frame *frame);

/* Hand a frame whose job is done to the file, in the order of the tar; it is freed. */
int framer_emit(struct framer *f, struct frame *frame, struct fault *fault);

#endif
