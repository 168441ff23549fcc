/*
 * Shared by the two files of the tar back end: tar.c recognizes a tar and reads its members,
 * tar_frames.c reads a compressed one by its frames, or unpacks it.
 */
#ifndef ONEPOT_TAR_PRIVATE_H
#define ONEPOT_TAR_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "tar_members.h"

#define TAR_BLOCK_BYTES 512u
#define TAR_TYPE_AT 156u /* in a header */

/* ---- tar.c ---- */

struct archive;

/* Hands the bytes of a source to libarchive, straight from its mapping if it has one. */
struct tar_feed {
    struct source *source;
    const uint8_t *map;
    uint8_t *buf;       /* only without a map */
    uint64_t offset;    /* of the next byte to hand out */
    size_t next_bytes;  /* how much to read ahead without a map */
    size_t block_bytes; /* most bytes in one call; 0: with a map, the whole file */
    int err;            /* -errno of the read that failed */
};

/*
 * Starts at `offset` and connects to `a`. Returns 0, -ENOMEM, or -EUCLEAN when libarchive does
 * not recognize the data (its error string has the reason).
 */
int tar_feed_open(struct tar_feed *feed, struct source *source, uint64_t offset,
                  size_t block_bytes, struct archive *a);
void tar_feed_close(struct tar_feed *feed);

/* ---- tar_frames.c ---- */

struct tar_framed;

/*
 * `compression` is the file's: "zstd", "gzip", "bzip2" or "xz". The helpers, which may be NULL,
 * helps with the last two. -ENOTSUP: frames of other formats can't be found, or the library is
 * not built in. `left_bytes` as in backend.h.
 */
int tar_framed_new(struct source *source, const char *compression, struct helpers *helpers,
                   uint64_t *left_bytes, struct builder *builder, struct progress *progress,
                   struct fault *fault, struct tar_framed **ret_framed);
void tar_framed_free(struct tar_framed *framed); /* NULL is fine */
/* The tar in the frames. */
struct tar_stream tar_framed_stream(struct tar_framed *framed);
/* builder_set_pieces for pieces of the tar (at source_offset), which must have been read. */
int tar_framed_set_pieces(struct tar_framed *framed, uint32_t inode,
                          const struct builder_piece *pieces, size_t count);
/* Call after the last member. -ENOTSUP: the file can't be read by frames after all. */
int tar_framed_finish(struct tar_framed *framed, struct builder_header *header);

int tar_unpack(struct source *source, int fd, uint64_t kept, uint64_t most,
               struct progress *progress, struct fault *fault);

#endif
