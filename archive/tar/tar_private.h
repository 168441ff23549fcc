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

/*
 * Words for an error of zstd's at `offset`: -ENOTSUP for a window that is too large and for a
 * dictionary that is not here, else -EUCLEAN.
 */
int tar_zstd_fault(size_t code, uint64_t offset, struct fault *fault);

int tar_unpack(struct source *source, int fd, uint64_t kept, uint64_t most,
               struct progress *progress, struct fault *fault);

#endif
