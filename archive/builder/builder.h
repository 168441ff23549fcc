/*
 * The builder turns members, in the order in which an archive has them, into an
 * index image. It knows what extraction would have left behind: the last of two
 * members of one name wins, a hard link holds on to the inode that its name had
 * when the link was made, directories that no member announced exist all the same.
 *
 * How to use it:
 *     builder_new(&b);
 *     for each member: builder_add(b, path, len, &member, &fault, &inode);
 *                      builder_add_xattr(...), builder_add_extent(...) as needed
 *     builder_write(b, &header, fd, 0, &fault, &image_bytes);
 *     builder_free(b);
 *
 * Paths are made safe here, for all formats: "./" and doubled slashes are dropped, a
 * leading slash is dropped, ".." is refused, so are names over 255 bytes and paths over 4095
 * (which bounds the depth of the tree, and what a member may cost). A directory
 * that no member announced has mode 0755 and owner and time of the first member in it.
 * A path that goes through a symbolic link of the archive leads where it would in the
 * mounted tree at that moment, if that is within the tree; directories on its way that
 * are missing come into being.
 *
 * Threads: none; one thread uses a builder at a time. Memory: about 100 bytes an
 * entry and its name.
 */
#ifndef ONEPOT_BUILDER_H
#define ONEPOT_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "index.h"

struct builder;

/* How a regular file's bytes are described. */
enum builder_data {
    DATA_STORED,  /* one range of the archive at `data_offset`; also for empty files */
    DATA_EXTENTS, /* by builder_add_extent: ranges with holes between them */
    DATA_BLOCKS,  /* by builder_set_blocks */
};

struct builder_member {
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev_major;
    uint32_t rdev_minor;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    uint64_t size_bytes; /* of a regular file */
    enum builder_data data;
    uint64_t data_offset;   /* DATA_STORED */
    uint64_t header_offset; /* where the member is announced: for messages only */
    const char *symlink;    /* target, for a symbolic link: 1 to 4095 bytes */
    size_t symlink_len;
};

/* -ENOMEM. The root exists from the start: a directory, mode 0755, owner 0:0, time 0. */
int builder_new(struct builder **ret_builder);
void builder_free(struct builder *builder); /* NULL is fine */

/*
 * Size of the archive: every range is checked against it as it is added. 0 (the
 * default) checks nothing.
 */
void builder_set_archive_size(struct builder *builder, uint64_t archive_bytes);

/*
 * Add a member. A path of "." or "/" sets the root's attributes. *ret_inode names the
 * inode for the calls below. A directory that comes again takes the new attributes
 * and keeps its children, one in the place of a symbolic link replaces it. Refused, with
 * the member's name and offset: ".." or a name too long (-EINVAL, -ENAMETOOLONG), a member
 * below something that is no directory, or a link that leads out of the tree, or a
 * non-directory in the place of a directory with children (-ENOTDIR, -EISDIR), a member
 * below links that go in circles (-ELOOP), data past the end of the archive (-EUCLEAN), more
 * than 2^32 - 2 entries (-EOVERFLOW).
 */
int builder_add(struct builder *builder, const char *path, size_t len,
                const struct builder_member *member, struct fault *fault, uint32_t *ret_inode);

/*
 * Has a member, or a directory that leads to one, this path? 1 or 0; -ENOTDIR: no member can,
 * since it lies below one that is no directory. Errors of builder_add that are about the path.
 */
int builder_has(struct builder *builder, const char *path, size_t len);

/*
 * Add a name for the inode that `target` (a path, made safe as above) has now. A link
 * to itself changes nothing. -ENOENT: no such member before this one; -EPERM: target
 * is a directory.
 */
int builder_link(struct builder *builder, const char *path, size_t len, const char *target,
                 size_t target_len, uint64_t header_offset, struct fault *fault,
                 uint32_t *ret_inode);

/*
 * Of what builder_add and builder_link refuse: is it the member alone that can't be shown? Then
 * the archive is worth something without it, and a back end may go on, after it told what is
 * left out and why. -ENOMEM.
 */
bool builder_may_leave_out(int err);
int builder_leave_out(struct builder *builder, const struct fault *why);

/* Add a name for an inode that an earlier call returned (formats with inode numbers). */
int builder_link_inode(struct builder *builder, const char *path, size_t len, uint32_t inode,
                       uint64_t header_offset, struct fault *fault);

/*
 * Name with its namespace ("user.x"); an empty value is a value. Of two of one name the
 * last one counts. -E2BIG: a name, a value or a number of them that Linux can't have.
 */
#define BUILDER_XATTRS_MAX 9362u /* of "user.x": a list of names has at most 64 KB */
int builder_add_xattr(struct builder *builder, uint32_t inode, const char *name,
                      size_t name_len, const void *value, size_t value_len);

/*
 * DATA_EXTENTS: bytes [offset, offset + length) of the file lie at source_offset. In
 * ascending order, without overlap, within the size of the file (-EUCLEAN), and all of
 * one inode before those of the next (-EINVAL).
 */
int builder_add_extent(struct builder *builder, uint32_t inode, uint64_t offset,
                       uint64_t length, uint64_t source_offset);

/* A compressed block of the archive. */
struct builder_block {
    uint64_t source_offset;
    uint32_t packed_bytes; /* 0: a hole */
    uint32_t block_bytes;  /* decompressed, at most; never 0, of a hole neither */
    bool stored;           /* not compressed after all */
};

/*
 * DATA_BLOCKS: fragments first. A fragment is a block that several files share; its
 * number is the order in which it was added, from 0. All fragments are added before
 * the first builder_set_blocks.
 */
int builder_add_fragment(struct builder *builder, const struct builder_block *block,
                         uint32_t *ret_number);
#define BUILDER_NO_FRAGMENT UINT32_MAX

/*
 * DATA_BLOCKS: the file is `count` blocks of index_header.block_bytes each (the last
 * one may hold less), and its tail, if `fragment` is not BUILDER_NO_FRAGMENT, lies at
 * fragment_offset of that fragment. Called once for an inode, after builder_add.
 * -EUCLEAN: they do not make a file of its size, or lie past the end of the archive.
 */
int builder_set_blocks(struct builder *builder, uint32_t inode,
                       const struct builder_block *blocks, uint32_t count, uint32_t fragment,
                       uint32_t fragment_offset);

/* A part of a file: stored, or in a fragment. */
struct builder_piece {
    uint64_t offset; /* in the file */
    uint64_t length;
    uint64_t source_offset; /* stored: in the archive */
    uint32_t fragment;      /* BUILDER_NO_FRAGMENT: stored */
    uint32_t fragment_offset;
};

/*
 * DATA_BLOCKS, in place of builder_set_blocks: the file is these pieces, ascending; what none
 * of them has is a hole. Full fragments of index_header.block_bytes make a file of blocks,
 * all else a file of ranges. The fragments' number is not limited as above: any may be added
 * before and after. -EUCLEAN: they don't fit the file, or the fragments.
 */
int builder_set_pieces(struct builder *builder, uint32_t inode,
                       const struct builder_piece *pieces, size_t count);

/*
 * From now on pieces never make a file of blocks: for fragments of which the largest is only
 * known at the end. Before the first builder_set_pieces.
 */
void builder_use_ranges(struct builder *builder);

/* XXH3-64 of a regular file's content, holes left out. All regular inodes get one, or none
 * does: else builder_write is -EINVAL. */
int builder_set_sum(struct builder *builder, uint32_t inode, uint64_t sum);

uint32_t builder_entries(const struct builder *builder);

/*
 * The sums of the archive's windows, see index_rest_sum; `sums` is the caller's and has to
 * live until builder_write returns.
 */
void builder_set_rest_sums(struct builder *builder, const uint64_t *sums, uint64_t count);

/* What the header says of the archive; see struct index_info. */
struct builder_header {
    enum format format;
    enum codec codec;
    uint32_t block_bytes;
    uint64_t archive_bytes;
    int64_t archive_mtime_sec;
    uint32_t archive_mtime_nsec;
    uint64_t archive_fingerprint;
    uint8_t identifier[16];
    uint64_t end_marker_offset;
    const uint64_t *expanded_sums; /* see index_expanded_sum; NULL: none */
    uint64_t expanded_count;
};

/*
 * Write the image at `offset` of `fd` (a seekable file or memory file) and return its
 * length. The same members give the same bytes. The builder can't be added to
 * afterwards. -ENOSPC and other write errors are passed on.
 */
int builder_write(struct builder *builder, const struct builder_header *header, int fd,
                  uint64_t offset, struct fault *fault, uint64_t *ret_image_bytes);

/* The same, in pieces that are `stride` apart: see disk_place in index_format.h. */
int builder_write_pieces(struct builder *builder, const struct builder_header *header, int fd,
                         uint64_t offset, uint64_t stride, struct fault *fault,
                         uint64_t *ret_image_bytes);

#endif
