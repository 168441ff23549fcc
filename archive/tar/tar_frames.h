/*
 * The frames of a compressed tar: zstd frames (pzstd, t2sz, the seekable format), or members of
 * a gzip file (bgzip). Each can be decompressed alone, so that an index can lead to them, and
 * no unpacked copy is needed.
 *
 * Frames are read one after the other, whole, while libarchive reads the tar in them; their
 * table then tells in which frames the bytes of a member lie. Tables of frames that files carry
 * themselves (seekable zstd, .gzi) are not read: they could lie.
 *
 * Only in a child with limits; one thread.
 */
#ifndef ONEPOT_TAR_FRAMES_H
#define ONEPOT_TAR_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"
#include "source.h"

/* Larger frames are not worth it: each read of a file decompresses a whole one. */
#define TAR_FRAME_BYTES_MAX (64u << 20)

struct tar_frames;

/*
 * For the file's compression, "zstd" or "gzip". -ENOTSUP: frames of others can't be found, or
 * the library is not built in.
 */
int tar_frames_new(struct source *source, const char *compression, struct builder *builder,
                   struct fault *fault, struct tar_frames **ret_frames);
void tar_frames_free(struct tar_frames *frames); /* NULL is fine */

/*
 * The next frame's bytes; they stay where they are until the next call. 0 bytes at the end.
 * -ENOTSUP: a frame is too large, or the file is one frame alone: it is not for us. -EUCLEAN
 * with a fault that names the offset: it is damaged. Errors of reading.
 */
int tar_frames_next(struct tar_frames *frames, const void **ret_bytes, size_t *ret_len);

/* How far that is: in the file, and of what is in it. */
uint64_t tar_frames_packed_bytes(const struct tar_frames *frames);
uint64_t tar_frames_bytes(const struct tar_frames *frames);

/* Bytes of the tar that were in the last frame or the one before; -ENODATA: others. */
int tar_frames_read(const struct tar_frames *frames, void *buf, size_t len, uint64_t offset);

/*
 * Where [offset, offset + length) of the tar lies: calls builder_set_pieces's pieces into
 * being, behind each other, the first of them at file_offset of a file. All of it must have
 * been read. *pieces grows (realloc); -ENOMEM.
 */
int tar_frames_locate(const struct tar_frames *frames, uint64_t offset, uint64_t length,
                      uint64_t file_offset, struct builder_piece **pieces, size_t *count,
                      size_t *room);

enum codec tar_frames_codec(const struct tar_frames *frames);
uint32_t tar_frames_largest(const struct tar_frames *frames);

/* Frames so far that hold anything. */
size_t tar_frames_count(const struct tar_frames *frames);

#endif
