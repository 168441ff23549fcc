/*
 * The index: one immutable description of a tree of files, whatever the format of
 * the archive. The bytes on disk are the bytes in memory: an index is mapped (or
 * read into a memory file, where the file lies on a network), never parsed into
 * nodes, so that opening one costs the same for ten files as for ten million.
 *
 * How it is laid out. Entries are records of 32 bytes, in breadth-first order, the
 * root first; the children of a directory are contiguous and sorted by name (byte
 * order). An entry's position is its identity: listing a directory is a linear
 * scan, a lookup is a binary search in one range. Names that are hard links to one
 * inode share it: the first of them in this order is the inode's position, the
 * others are aliases that refer to it.
 *
 * How it is trusted: not at all. It may come from a damaged disk, a hostile archive
 * or a child process that parsed one. Header and section table are checked when it
 * is opened; each page of 64 KB is checked against its sum at its first use; and
 * every function below checks bounds and returns -EUCLEAN for what can't be. In
 * particular a child lies behind its parent, so that no loop can be followed.
 *
 * A position that the index does not have is -EINVAL everywhere.
 *
 * Threads: all functions may be called from many threads at once; none allocates,
 * none locks. Pointers that are returned live as long as the index.
 */
#ifndef ONEPOT_INDEX_H
#define ONEPOT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fault.h"
#include "source.h"

struct index;

#define INDEX_ROOT 0u
#define INDEX_NAME_MAX 255u     /* NAME_MAX of Linux's filesystems */
#define INDEX_SYMLINK_MAX 4095u /* PATH_MAX less its NUL */
#define INDEX_PATH_MAX 4095u    /* from the root: no program can name a longer one */

/* How compressed blocks of the archive are coded. Values are on disk. */
enum codec {
    CODEC_NONE = 0,
    CODEC_ZLIB = 1, /* SquashFS "gzip": a zlib stream */
    CODEC_LZMA = 2, /* SquashFS "lzma": not supported by Linux either; never written */
    CODEC_LZO = 3,  /* LZO1X */
    CODEC_XZ = 4,
    CODEC_LZ4 = 5, /* raw LZ4 block */
    CODEC_ZSTD = 6,
    CODEC_GZIP = 7, /* a member of a gzip file */
};

/* Which format the archive has. Values are on disk. */
enum format {
    FORMAT_TAR = 1,
    FORMAT_SQUASHFS = 2,
    FORMAT_ONEPOT = 3,
    FORMAT_ZIP = 4,
};

/* What a digest covers. Values are on disk. */
enum digest_kind {
    DIGEST_NONE = 0,
    DIGEST_CONTENT = 1, /* names, and sums of the data */
    DIGEST_SIZES = 2,   /* names and sizes: of an archive without sums */
};
#define INDEX_DIGEST_BYTES 16u

/* An inode, decoded. */
struct node {
    uint32_t position; /* of the inode: st_ino is this plus one */
    uint32_t mode;     /* type and permission bits, as st_mode */
    uint32_t uid;
    uint32_t gid;
    uint32_t nlink;
    uint32_t rdev_major;
    uint32_t rdev_minor;
    uint32_t mtime_nsec;
    int64_t mtime_sec;
    uint64_t size_bytes; /* of a directory: 4096, and no bytes of data; see index.c */
    uint64_t data_bytes; /* bytes that are no hole, as many as the archive can hold: st_blocks
                          * is this / 512, rounded up */
    bool has_xattrs;
    bool has_holes;
};

/* What an index is about, from its header. */
struct index_info {
    enum format format;
    enum codec codec;
    uint32_t block_bytes; /* largest decompressed block; 0 without blocks */
    uint32_t entries;     /* names, the root included */
    uint64_t files;       /* regular files (names) */
    uint64_t directories; /* the root included */
    uint64_t inodes;      /* st_files of statfs */
    uint64_t total_bytes; /* sum of st_size over regular inodes */
    uint64_t data_bytes;  /* the same without holes */
    uint64_t name_bytes;
    uint64_t image_bytes; /* the whole index */
    bool has_xattrs, has_holes, has_hardlinks, has_sums;
    uint64_t archive_bytes; /* the archive that it was built from, */
    int64_t archive_mtime_sec;
    uint32_t archive_mtime_nsec;
    uint64_t archive_fingerprint;
    uint8_t identifier[16];       /* of an embedded index: binds header, footer and archive */
    uint64_t end_marker_offset;   /* of an embedded index: where the tar's end marker lies */
    enum digest_kind digest_kind; /* DIGEST_NONE: it was not made, see index_digest */
    uint8_t digest[INDEX_DIGEST_BYTES];
    char made_by[33]; /* "onepot 0.1.0": the program that wrote the index */
};

/*
 * Open the index image that lies at [offset, offset + len) of `source`. Mapped if the source
 * is local and nobody but this user and root can change it (source_is_ours), else read into
 * memory: what it says does not change while it is open. The source may be closed afterwards.
 * Errors: -EUCLEAN (damaged; the fault says what), -ENOTSUP (made by a later version), -ENOMEM,
 * or read errors.
 */
int index_open(struct source *source, uint64_t offset, uint64_t len, struct fault *fault,
               struct index **ret_index);

/* The same for one that may lie in pieces, `stride` apart: see disk_place; 0: it is whole. */
int index_open_pieces(struct source *source, uint64_t offset, uint64_t len, uint64_t stride,
                      struct fault *fault, struct index **ret_index);
void index_close(struct index *index); /* NULL is fine */

const struct index_info *index_info(const struct index *index);

/*
 * Is a part of it gone, because its file was cut short or can't be read any more? All that is
 * asked of it is -EUCLEAN then; an answer from before may have been made of zeros.
 */
bool index_is_lost(const struct index *index);

/* The inode behind the entry at `position` (an alias leads to its inode). */
int index_node(const struct index *index, uint32_t position, struct node *ret_node);

/* The position of the inode of the entry at `position`: itself unless it is an alias. */
int index_inode_position(const struct index *index, uint32_t position, uint32_t *ret_position);

/* The entry's own name, not terminated; the root's is empty. Never holds NUL or '/'. */
int index_name(const struct index *index, uint32_t position, const char **ret_name,
               size_t *ret_len);

/* The children of a directory: positions [first, first + count). -ENOTDIR. */
int index_children(const struct index *index, uint32_t directory, uint32_t *ret_first,
                   uint32_t *ret_count);

/* The entry called `name` in a directory. -ENOENT, -ENOTDIR. */
int index_lookup(const struct index *index, uint32_t directory, const char *name, size_t len,
                 uint32_t *ret_position);

/* The directory that holds the entry; the root's is the root. */
int index_parent(const struct index *index, uint32_t position, uint32_t *ret_parent);

/*
 * The entry at a path relative to the root; leading, trailing and double slashes and
 * "." are ignored, ".." is -EINVAL, symbolic links are not followed. "" is the root.
 */
int index_resolve(const struct index *index, const char *path, uint32_t *ret_position);

/*
 * The path of an entry, without a leading slash, terminated; the root's is "". A
 * path that does not fit is -ENAMETOOLONG. Returns the length through ret_len.
 */
int index_path(const struct index *index, uint32_t position, char *buf, size_t size,
               size_t *ret_len);

/* The target of a symbolic link, not terminated. -EINVAL if it is none. */
int index_symlink(const struct index *index, uint32_t position, const char **ret_target,
                  size_t *ret_len);

/* One extended attribute; name (with its namespace) is not terminated. */
struct xattr {
    const char *name;
    size_t name_len;
    const void *value;
    size_t value_len;
};

/*
 * The attributes of an inode one by one: start with *cursor = 0; 0 fills *ret_xattr,
 * -ENOENT is the end.
 */
int index_xattr_next(const struct index *index, uint32_t position, uint64_t *cursor,
                     struct xattr *ret_xattr);
/* One by its name. -ENODATA if there is none. */
int index_xattr_get(const struct index *index, uint32_t position, const char *name, size_t len,
                    struct xattr *ret_xattr);

/* Where a run of a file's bytes lies. */
enum extent_kind {
    EXTENT_HOLE,   /* nowhere: zeros */
    EXTENT_STORED, /* as they are, in the archive */
    EXTENT_BLOCK,  /* in a compressed block */
};

struct extent {
    enum extent_kind kind;
    uint64_t offset;        /* in the file, of the first byte: the one asked for */
    uint64_t length;        /* bytes from there on that this extent holds */
    uint64_t source_offset; /* STORED: of that byte; BLOCK: of the compressed block */
    uint32_t packed_bytes;  /* BLOCK: its compressed size */
    uint32_t block_bytes;   /* BLOCK: its decompressed size at most */
    uint32_t block_offset;  /* BLOCK: where that byte lies in the decompressed block */
    /*
     * STORED: the range of the archive, around that byte, which the file has as a whole: the
     * same for each of its bytes. (`length` may reach beyond it, where the next one follows.)
     */
    uint64_t whole_offset, whole_length;
};

/*
 * The extent that holds byte `offset` of the regular file at `position`, cut so that
 * it starts there. `offset` at or past the end of the file is -ENXIO. Every range is
 * checked against the size of the archive. -EINVAL if it is no regular file.
 */
int index_extent(const struct index *index, uint32_t position, uint64_t offset,
                 struct extent *ret_extent);

/* What a table of files has of an entry. */
struct index_file {
    uint32_t mode;       /* as in its node */
    uint64_t size_bytes; /* of a regular file; else 0 */
    uint64_t offset;     /* in the archive, where it is a file that lies there in one piece */
};
#define INDEX_FILE_IN_PIECES UINT64_MAX /* or compressed, damaged, no file at all */

/*
 * The entries [first, first + count) at once, for who walks over all of them: what index_node
 * and index_extent say of each, several times as fast. Times and links are not looked at, so
 * that an entry whose only damage is there is not noticed; and a range beyond the archive is
 * left to index_extent to tell.
 */
int index_files(const struct index *index, uint32_t first, uint32_t count,
                struct index_file *ret_files);

/* XXH3-64 of the file's content, its holes left out, where the archive has sums; else
 * -ENODATA. */
int index_sum(const struct index *index, uint32_t position, uint64_t *ret_sum);

/*
 * Compute the digest that names the content, see digest.h: DIGEST_CONTENT where there are
 * sums, else DIGEST_SIZES. It takes a walk over all entries; what the packer wrote is in
 * index_info, and has to be the same. -EUCLEAN, -ENOMEM.
 */
int index_digest(const struct index *index, uint8_t ret_digest[INDEX_DIGEST_BYTES],
                 enum digest_kind *ret_kind);

/*
 * The archive (its first info->archive_bytes) is cut in windows of INDEX_WINDOW_BYTES; the
 * sum of a window is XXH3-64 of those of its bytes that are no stored data of a member (see
 * coverage.h). How many sums there are: 0 where the index has none.
 */
#define INDEX_WINDOW_BYTES (1u << 20)
uint64_t index_rest_windows(const struct index *index);
int index_rest_sum(const struct index *index, uint64_t window, uint64_t *ret_sum);

/*
 * The index of an archive that is one compressed stream speaks of the tar in it, which is
 * info->archive_bytes long, and has the sum of each window of it: how many, 0 for all other
 * archives; and one of them. -EINVAL, -EUCLEAN.
 */
uint64_t index_expanded_windows(const struct index *index);
int index_expanded_sum(const struct index *index, uint64_t window, uint64_t *ret_sum);

/*
 * Members of the archive that no directory can show, and that the tree does not have: how many,
 * and the first of them one by one: why it is left out, with its name and the offset of its
 * header. *cursor is 0 for the first; -ENOENT: no more are told; -EUCLEAN.
 */
uint64_t index_left_out(const struct index *index);
int index_left_out_next(const struct index *index, uint64_t *cursor, struct fault *ret_why);

/*
 * Compare the whole image with its sums, and what is no part of it with zeros. -EUCLEAN with
 * the place in the file where it fails.
 */
int index_check(const struct index *index, struct fault *fault);

#endif
