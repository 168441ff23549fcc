/*
 * The frames of a compressed tar: zstd frames (pzstd, t2sz, the seekable format), or members of
 * a gzip file (bgzip). Each frame can be decompressed alone. So an index can point into frames,
 * and no unpacked copy is needed.
 *
 * Frames are read one after the other, whole, while libarchive reads the tar in them. The table
 * that this makes gives the frames in which a member's bytes lie. Tables of frames that files
 * carry themselves (seekable zstd, .gzi) are not read: they could lie.
 *
 * Runs only in a child with limits, in one thread.
 */
#ifndef ONEPOT_TAR_FRAMES_H
#define ONEPOT_TAR_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"
#include "source.h"
#include "vector.h"

/* Larger frames are not worth supporting: each read of a file decompresses a whole frame. */
#define TAR_FRAME_BYTES_MAX (64u << 20)

struct tar_frames;

/*
 * `compression` is the file's: "zstd" or "gzip". -ENOTSUP: frames of other formats can't be
 * found, or the library is not built in.
 */
int tar_frames_new(struct source *source, const char *compression, struct builder *builder,
                   struct fault *fault, struct tar_frames **ret_frames);
void tar_frames_free(struct tar_frames *frames); /* NULL is fine */

/*
 * The next frame's bytes, valid until the next call; 0 bytes at the end. -ENOTSUP: a frame is
 * too large, or the whole file is one frame, so that it has to be unpacked instead. -EUCLEAN:
 * the frame is damaged, and the fault names its offset. Also errors of reading.
 */
int tar_frames_next(struct tar_frames *frames, const void **ret_bytes, size_t *ret_len);

/* How much was read so far: bytes of the file, and bytes of the tar in it. */
uint64_t tar_frames_packed_bytes(const struct tar_frames *frames);
uint64_t tar_frames_bytes(const struct tar_frames *frames);

/*
 * Reads bytes of the tar that were in the last frame or the one before. -ENODATA: other bytes.
 */
int tar_frames_read(const struct tar_frames *frames, void *buf, size_t len, uint64_t offset);

/*
 * Appends to *pieces where [offset, offset + length) of the tar lies, in the form that
 * builder_set_pieces takes. The first piece is at file_offset of a file; the others follow. The
 * range must have been read. -ENOMEM; -EUCLEAN: the range lies behind what was read.
 */
typedef VECTOR(struct builder_piece) tar_pieces;
int tar_frames_locate(const struct tar_frames *frames, uint64_t offset, uint64_t length,
                      uint64_t file_offset, tar_pieces *pieces);

enum codec tar_frames_codec(const struct tar_frames *frames);
uint32_t tar_frames_largest(const struct tar_frames *frames);

/* Number of frames so far that hold any data. */
size_t tar_frames_count(const struct tar_frames *frames);

#endif
