/*
 * The builder turns the members of an archive, in archive order, into an index image. It
 * reproduces what extraction would have left behind: the last of two members with one name
 * wins; a hard link keeps the inode that its target had when the link was made; directories
 * that no member announced exist nevertheless.
 *
 * How to use it:
 *     builder_new(&b);
 *     for each member: builder_add(b, path, len, &member, &fault, &inode);
 *                      builder_add_xattr(...), builder_set_pieces(...) as needed
 *     builder_write(b, &header, fd, 0, &fault, &image_bytes);
 *     builder_free(b);
 *
 * Paths are made safe here, for all formats. "./", doubled slashes and a leading slash are
 * dropped. ".." is refused, as are names over 255 bytes and paths over 4095, which bounds the
 * depth of the tree and the cost of a member. A directory that no member announced has mode
 * 0755, and the owner and time of the first member in it. A path through a symbolic link of
 * the archive leads where it would in the mounted tree at that moment, if that is within the
 * tree; missing directories on its way are created.
 *
 * Threads: none; one thread uses a builder at a time. Memory: about 100 bytes per entry, plus
 * its name.
 */
#ifndef ONEPOT_BUILDER_H
#define ONEPOT_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "index.h"

struct builder;

/* A part of a file: stored, or in a block. */
struct builder_piece {
    uint64_t offset; /* in the file */
    uint64_t length;
    uint64_t source_offset; /* stored: in the archive */
    uint32_t block;         /* BUILDER_NO_BLOCK: stored */
    uint32_t block_offset;
};
#define BUILDER_NO_BLOCK UINT32_MAX

/* -ENOMEM. The root exists from the start: a directory with mode 0755, owner 0:0, time 0. */
int builder_new(struct builder **ret_builder);
void builder_free(struct builder *builder); /* NULL is fine */

/*
 * Set the size of the archive, against which every range is checked as it is added. 0 (the
 * default) disables the check.
 */
void builder_set_archive_size(struct builder *builder, uint64_t archive_bytes);

/*
 * Add a member. A path of "." or "/" sets the root's attributes. *ret_inode identifies the
 * inode in the calls below. A directory that comes again takes the new attributes and keeps
 * its children; one in the place of a symbolic link replaces the link. A hard link is another
 * name for the inode that its target, a path, has now; one to itself changes nothing. Errors,
 * recorded with the member's name and offset:
 *
 *     -EINVAL        ".." in the path
 *     -ENAMETOOLONG  a name too long
 *     -ENOTDIR       below something that is not a directory, or a link out of the tree
 *     -EISDIR        a non-directory in the place of a directory with children
 *     -ELOOP         below links that form a circle
 *     -ENOENT        a hard link to no member before this one
 *     -EPERM         a hard link to a directory
 *     -EMLINK        more hard links than a file can have
 *     -EUCLEAN       data past the end of the archive
 *     -EOVERFLOW     more than 2^32 - 2 entries
 */
int builder_add(struct builder *builder, const char *path, size_t len,
                const struct node *member, struct fault *fault, uint32_t *ret_inode);

/*
 * Add a member to a directory, which an earlier call returned or which is the root (0), by its
 * name there: for callers that walk over a tree. Nothing is replaced, and links are not
 * followed; `member` is no hard link, or NULL: another name for *inode, which is no directory.
 * Returns 1 if there is nothing to add: a directory has the name already, which is then *inode
 * and keeps its attributes, or *inode itself has. -EEXIST: something else has it. Other errors
 * as builder_add; their faults have the member's own path, if it has one.
 */
int builder_add_in(struct builder *builder, uint32_t directory, const char *name, size_t len,
                   const struct node *member, struct fault *fault, uint32_t *inode);

/*
 * Does this path belong to a member, or to a directory that leads to one? 1 or 0; -ENOTDIR: it
 * can't, since it lies below a member that is not a directory. Otherwise builder_add's errors
 * about the path.
 */
int builder_has(struct builder *builder, const char *path, size_t len);

/*
 * Does an error of builder_add mean only that this member can't be shown? Then the archive is
 * still useful without it, and a back end may go on after it called builder_leave_out with the
 * reason. builder_leave_out: -ENOMEM.
 */
bool builder_may_leave_out(int err);
int builder_leave_out(struct builder *builder, const struct fault *why);

/*
 * Count members that another index lacks, and pass on the first of them, with their names.
 * -ENOMEM, -EUCLEAN.
 */
int builder_leave_out_as(struct builder *builder, const struct index *index);

/*
 * Add an extended attribute. The name includes its namespace ("user.x"). An empty value is
 * valid. The last of two attributes with one name counts. One that Linux has no place for is
 * left out and counted: of another namespace, of a user on an inode that is neither a regular
 * file nor a directory, or with a name, value or number beyond the system's limits.
 */
#define BUILDER_XATTRS_MAX 9362u /* of "user.x": a list of names has at most 64 KB */
int builder_add_xattr(struct builder *builder, uint32_t inode, const char *name,
                      size_t name_len, const void *value, size_t value_len);

/* Give an inode without extended attributes those of another one. */
int builder_share_xattrs(struct builder *builder, uint32_t inode, uint32_t other);

/* A compressed block of the archive, which files may share. */
struct builder_block {
    uint64_t source_offset;
    uint32_t packed_bytes;
    uint32_t block_bytes; /* maximum decompressed size */
    enum codec codec;     /* if it is not the header's; else 0 */
    /* Of a codec of parts of streams, else NULL; copied. Such a codec is never the header's. */
    const struct block_point *point;
};

/*
 * Add a block. Its number is the order in which it was added, from 0. -EUCLEAN: it is empty, or
 * lies past the end of the archive.
 */
int builder_add_block(struct builder *builder, const struct builder_block *block,
                      uint32_t *ret_number);
/*
 * has_pieces: the file is these pieces, in ascending order; bytes in no piece are a hole.
 * Neighbours that also lie side by side in the archive, or in blocks that follow each other,
 * become one. Call once per inode, after builder_add. -EUCLEAN: the pieces don't fit the file,
 * the blocks or the archive.
 */
int builder_set_pieces(struct builder *builder, uint32_t inode,
                       const struct builder_piece *pieces, size_t count);

/*
 * Sum of a regular file's content, without holes, of the header's sum_kind. Either all regular
 * inodes get one or none; otherwise builder_write returns -EINVAL. Those of SUM_MIXED are made
 * by checksum_mixed, and not all inodes need one.
 */
int builder_set_sum(struct builder *builder, uint32_t inode, uint64_t sum);

/* The header's description of the archive; see struct index_info. */
struct builder_header {
    uint32_t format;
    enum codec codec;
    enum sum_kind sum_kind;
    uint32_t block_bytes;
    uint64_t archive_bytes;
    int64_t archive_mtime_sec;
    uint32_t archive_mtime_nsec;
    uint64_t archive_fingerprint;
    uint8_t identifier[16];
    uint64_t end_marker_offset;
    bool has_sums;               /* of all files, even if there are none */
    bool ignores_zeros;          /* a wish: read on behind end-of-archive marks, */
    bool has_joined;             /* and there were members */
    const uint64_t *window_sums; /* as on disk, see index_window_sum; NULL: none */
    uint64_t window_count;
    const void *recipe; /* see index_recipe; NULL: none */
    size_t recipe_len;
};

/*
 * Write the image at `offset` of `fd` (a seekable file or memory file) and return its length.
 * The same members give the same bytes. Nothing can be added to the builder afterwards.
 * -ENOSPC and other write errors are passed on.
 */
int builder_write(struct builder *builder, const struct builder_header *header, int fd,
                  uint64_t offset, struct fault *fault, uint64_t *ret_image_bytes);

/* No image of the present members is longer. */
uint64_t builder_image_bytes_max(const struct builder *builder);

#endif
