/*
 * A tar in frames, for the walk over its members (tar.c). It feeds libarchive with the
 * decompressed frames and passes each member's data to the builder as parts of frames.
 *
 * A member's data follows its header, so its frames are not known when the member is added. Its
 * ranges wait until libarchive has found the next header.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <archive.h>

#include "tar_private.h"

/* Frames larger than this are worth a remark. */
#define LARGE_FRAME_BYTES (1u << 20)
/* How much behind the end-of-archive marker is read to look for damage. */
#define DRAIN_BYTES (64u << 20)

struct tar_range {
    uint64_t offset; /* in the tar */
    uint64_t length;
    uint64_t file_offset;
};

struct tar_framed {
    struct tar_frames *frames;
    struct builder *builder;
    struct progress *progress;
    int err; /* of the frame that could not be read */
    uint32_t inode;
    VECTOR(struct tar_range) ranges; /* of that inode */
    tar_pieces pieces;
};

int tar_framed_new(struct source *source, const char *compression, struct builder *builder,
                   struct progress *progress, struct fault *fault,
                   struct tar_framed **ret_framed)
{
    struct tar_framed *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->builder = builder;
    t->progress = progress;
    int r = tar_frames_new(source, compression, builder, fault, &t->frames);
    if (r < 0) {
        free(t);
        return r;
    }
    *ret_framed = t;
    return 0;
}

void tar_framed_free(struct tar_framed *t)
{
    if (!t)
        return;
    tar_frames_free(t->frames);
    vector_free(&t->ranges);
    vector_free(&t->pieces);
    free(t);
}

static ssize_t framed_feed(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct tar_framed *t = ctx;
    size_t len = 0;
    t->err = tar_frames_next(t->frames, ret_bytes, &len);
    if (t->err < 0) {
        archive_set_error(a, -t->err, "read error");
        return ARCHIVE_FATAL;
    }
    t->progress->bytes_done = tar_frames_packed_bytes(t->frames);
    t->progress->beats++;
    return (ssize_t)len;
}

int tar_framed_open(struct tar_framed *t, struct archive *a)
{
    archive_read_set_read_callback(a, framed_feed);
    archive_read_set_callback_data(a, t);
    int r = archive_read_open1(a);
    if (t->err < 0)
        return t->err;
    if (r == ARCHIVE_OK)
        return 0;
    return archive_errno(a) == ENOMEM ? -ENOMEM : -EUCLEAN;
}

int tar_framed_error(const struct tar_framed *t)
{
    return t->err;
}

uint64_t tar_framed_bytes(const struct tar_framed *t)
{
    return tar_frames_bytes(t->frames);
}

int tar_framed_read(const struct tar_framed *t, void *buf, size_t len, uint64_t offset)
{
    return tar_frames_read(t->frames, buf, len, offset);
}

int tar_framed_add(struct tar_framed *t, uint32_t inode, uint64_t offset, uint64_t length,
                   uint64_t file_offset)
{
    if (length == 0)
        return 0;
    t->inode = inode;
    return vector_push(&t->ranges, (struct tar_range){offset, length, file_offset});
}

int tar_framed_settle(struct tar_framed *t)
{
    int r = 0;
    if (t->ranges.count == 0)
        return 0;
    t->pieces.count = 0;
    for (size_t i = 0; r == 0 && i < t->ranges.count; i++)
        r = tar_frames_locate(t->frames, t->ranges.at[i].offset, t->ranges.at[i].length,
                              t->ranges.at[i].file_offset, &t->pieces);
    if (r == 0)
        r = builder_set_pieces(t->builder, t->inode, t->pieces.at, t->pieces.count);
    t->ranges.count = 0;
    return r;
}

int tar_framed_finish(struct tar_framed *t, struct builder_header *header)
{
    uint64_t end = tar_frames_bytes(t->frames) + DRAIN_BYTES;
    const void *ignored;
    size_t len = 1;
    int r = 0;
    while (r == 0 && len > 0 && tar_frames_bytes(t->frames) < end)
        r = tar_frames_next(t->frames, &ignored, &len);
    if (r == 0 && tar_frames_count(t->frames) < 2)
        r = -ENOTSUP;
    if (r < 0)
        return r;
    uint32_t largest = tar_frames_largest(t->frames);
    if (largest > LARGE_FRAME_BYTES && !t->progress->note[0])
        snprintf(
            t->progress->note, sizeof(t->progress->note),
            "is read through its frames, of up to %u MiB: each read at random decompresses "
            "a whole one; 'onepot pack --zstd' makes small ones",
            (largest + (1u << 20) - 1) >> 20);
    header->codec = tar_frames_codec(t->frames);
    header->block_bytes = largest;
    return 0;
}
