/*
 * The index: one immutable description of a tree of files, whatever the format of the archive.
 * The bytes on disk are the bytes in memory: an index is mapped (or read into a memory file,
 * if it lies on a network), never parsed into nodes. So opening one costs the same for ten
 * files as for ten million.
 *
 * Layout. Entries are records of 32 bytes, in breadth-first order, the root first. The
 * children of a directory are contiguous and sorted by name (byte order). An entry's position
 * is its identity: listing a directory is a linear scan, a lookup is a binary search in one
 * range. Hard links to one inode share it: the first name in this order is the inode's
 * position, the others are aliases that refer to it.
 *
 * Trust. An index is never trusted: it may come from a damaged disk, a hostile archive or a
 * child process that parsed one. Header and section table are checked when it is opened; each
 * page of 64 KB is checked against its sum at its first use; and every function below checks
 * bounds and returns -EUCLEAN for what can't be. In particular, a child lies after its parent,
 * so no loop can be followed.
 *
 * A position that the index does not have is -EINVAL everywhere.
 *
 * Threads: any function may be called from many threads at once; none locks, and none but
 * index_walk_next allocates. Returned pointers are valid as long as the index.
 */
#ifndef ONEPOT_INDEX_H
#define ONEPOT_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fault.h"
#include "source.h"
#include "vector.h"

struct index;

#define INDEX_ROOT 0u
#define INDEX_NAME_MAX 255u     /* NAME_MAX of Linux's filesystems */
#define INDEX_SYMLINK_MAX 4095u /* PATH_MAX less its NUL */
#define INDEX_PATH_MAX 4095u    /* from the root: no program can use a longer one */

/* Compression of a block. Values are on disk. */
enum codec {
    CODEC_NONE = 0,
    CODEC_ZLIB = 1, /* SquashFS "gzip": a zlib stream */
    CODEC_LZMA = 2, /* SquashFS "lzma": not supported by Linux either; never written */
    CODEC_LZO = 3,  /* LZO1X */
    CODEC_XZ = 4,
    CODEC_LZ4 = 5, /* raw LZ4 block */
    CODEC_ZSTD = 6,
    CODEC_GZIP = 7,    /* a member of a gzip file */
    CODEC_DEFLATE = 8, /* raw deflate, as in a zip */
    CODEC_INT64 = 9,   /* protobuf's list of int64, shown as decimal text */
    /* Parts of a longer stream, which have a struct block_point: */
    CODEC_DEFLATE_POINT = 10, /* raw deflate, from one of its blocks to another */
    CODEC_BZIP2 = 11,         /* a block of a bzip2 stream; bits count from the highest */
    CODEC_XZ_BLOCK = 12,      /* a block of an xz stream, without the sum behind it */
    /* As zips have them: */
    CODEC_BZIP2_FILE = 13, /* a whole bzip2 stream */
    CODEC_ZIP_LZMA = 14,   /* lzma, behind the version and properties that zip puts there */
    CODEC_COUNT,           /* at most 16, see struct disk_header */
};

static inline bool codec_has_point(enum codec codec)
{
    return codec >= CODEC_DEFLATE_POINT && codec <= CODEC_XZ_BLOCK;
}

/* No codec makes a block longer than this. Readers refuse a longer one: do not index it. */
static inline uint64_t codec_packed_max(uint64_t block_bytes)
{
    return block_bytes + block_bytes / 8 + 4096;
}

/* Kind of the sums of files. Values are on disk. */
enum sum_kind {
    SUM_XXH3 = 0,  /* XXH3-64 */
    SUM_CRC32 = 1, /* as in a zip */
    SUM_MIXED = 2, /* of several archives: of different kinds, or only some files have one */
};

/* Coverage of a digest: names, types, modes, and more. Values are on disk. */
enum digest_kind {
    DIGEST_NONE = 0,
    DIGEST_EARLIER = 1, /* by onepot before modes counted: not used */
    DIGEST_SIZES = 2,   /* sizes, for an archive without XXH3-64 sums; never on disk */
    DIGEST_TREE = 3,    /* contents: the same for a tree in any format */
    DIGEST_STORED = 4,  /* contents without their holes, which formats find differently */
};
#define INDEX_DIGEST_BYTES 16u

/*
 * A file of any type: an inode of an index, or a member of an archive on its way into one. The
 * builder takes a member's attributes, its place and its link, and gets the path and the rest
 * by calls of their own; the writer (writer.h) takes all of a member but the offsets, which it
 * knows.
 */
struct node {
    uint32_t mode; /* type and permission bits, as st_mode */
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev_major;
    uint32_t rdev_minor;
    uint32_t mtime_nsec;
    int64_t mtime_sec;
    uint64_t size_bytes; /* of a regular file, holes included; of an index's directory: 4096,
                            without any data, see index.c */

    /* Of an inode; the builder finds them itself. */
    uint32_t position; /* st_ino is this plus one */
    uint32_t nlink;
    uint64_t data_bytes; /* bytes outside holes, at most as many as the archive can hold;
                            st_blocks is this / 512, rounded up */
    bool has_xattrs;
    bool has_holes;

    /* Of a member; index_node leaves them as they are. */
    bool is_hardlink; /* to `link`, an earlier path */
    bool has_sum;     /* the XXH3-64 of the data is `sum` */
    bool has_pieces;  /* of a regular file: with holes or in blocks; else one range, or empty */
    uint64_t data_offset;   /* of that range, in the archive */
    uint64_t header_offset; /* of the member's header, for messages only */
    const char *link;       /* target of a symbolic link (1 to 4095 bytes) or hard link */
    size_t link_len;
    const char *path; /* raw bytes without "./" in front or "/" behind; "": the root */
    size_t path_len;
    const struct xattr *xattrs;
    size_t xattr_count;
    const struct builder_piece *pieces; /* offset and length of each, ascending, not empty,
                                           without overlap; see builder.h */
    size_t piece_count;
    uint64_t sum;
};

/* The header's description of the index. */
struct index_info {
    uint32_t format;  /* of the archive: a number of the registry of formats */
    enum codec codec; /* of blocks that name none; the only one in most archives */
    uint32_t codecs;  /* the ones that blocks name: bit n is for codec n */
    enum sum_kind sum_kind;
    uint32_t block_bytes; /* largest decompressed block; 0 without blocks */
    uint32_t entries;     /* names, the root included */
    uint64_t files;       /* regular files (names) */
    uint64_t directories; /* the root included */
    uint64_t inodes;      /* f_files of statvfs(3) */
    uint64_t total_bytes; /* sum of st_size over regular inodes */
    uint64_t data_bytes;  /* the same, without holes */
    uint64_t name_bytes;
    uint64_t image_bytes;  /* the whole index, */
    uint64_t image_offset; /* and where it begins in the source that it was opened from */
    uint64_t points;       /* blocks with a point, see index_point */
    bool has_pieces;       /* some of them have sums of their pieces (point->pieces) */
    bool has_xattrs, has_holes, has_hardlinks;
    bool has_joined;        /* members behind an end-of-archive mark (--ignore-zeros) */
    bool has_sums;          /* every file has one, */
    bool has_some_sums;     /* or some may */
    uint64_t archive_bytes; /* of the archive that it was built from, */
    int64_t archive_mtime_sec;
    uint32_t archive_mtime_nsec;
    uint64_t archive_fingerprint;
    uint8_t identifier[16];       /* of an embedded index: binds header, footer and archive */
    uint64_t end_marker_offset;   /* of an embedded index: where the tar's end marker lies */
    enum digest_kind digest_kind; /* DIGEST_NONE: not computed, see index_digest */
    uint8_t digest[INDEX_DIGEST_BYTES];
    char made_by[33]; /* "onepot 0.1.0": the program that wrote the index */
};

/*
 * Open the index image at [offset, offset + len) of `source`. It is mapped if it has more than
 * some kilobytes, and the source is local and only this user and root can change it
 * (source_is_ours), else read into memory; either way its content does not change while it is
 * open. The source may be closed afterwards. Errors: -EUCLEAN (damaged; the fault says how),
 * -ENOTSUP (made by a later version), -ENOMEM, or read errors.
 */
int index_open(struct source *source, uint64_t offset, uint64_t len, struct fault *fault,
               struct index **ret_index);

/* Write the whole image into an empty file, which then is an index. Errors of write(2). */
int index_write(const struct index *index, int fd);

/*
 * Have an index that is mapped use this file in its place, which has the same bytes from
 * `offset` on and is as trusted: pages of a file can be dropped, and are shared. Other threads
 * may be reading the index. -ENOTSUP: it can't be done.
 */
int index_move(const struct index *index, int fd, uint64_t offset);

void index_close(struct index *index); /* NULL is fine */

const struct index_info *index_info(const struct index *index);

/*
 * Is a part of the index gone, because its file was cut short or can't be read any more? Then
 * all calls return -EUCLEAN, and earlier answers may have been made from zeros.
 */
bool index_is_lost(const struct index *index);

/*
 * The inode behind the entry at `position` (an alias leads to its inode). Only an inode's
 * fields are filled in: who makes a member of it begins with zeros. After an error none is.
 */
int index_node(const struct index *index, uint32_t position, struct node *ret_node);

/* The position of the inode of the entry at `position`: itself unless it is an alias. */
int index_inode_position(const struct index *index, uint32_t position, uint32_t *ret_position);

/* The entry's own name, not terminated; the root's is empty. Never holds NUL or '/'. */
int index_name(const struct index *index, uint32_t position, const char **ret_name,
               size_t *ret_len);

/* Children of a directory: positions [first, first + count). -ENOTDIR. */
int index_children(const struct index *index, uint32_t directory, uint32_t *ret_first,
                   uint32_t *ret_count);

/* The entry called `name` in a directory. -ENOENT, -ENOTDIR. */
int index_lookup(const struct index *index, uint32_t directory, const char *name, size_t len,
                 uint32_t *ret_position);

/* The directory that holds the entry; the root's is the root. */
int index_parent(const struct index *index, uint32_t position, uint32_t *ret_parent);

/*
 * A walk over all that is below a directory. An entry comes right before what is in it, and
 * names come in their order:
 *
 *     struct index_walk walk = {.index = index, .position = directory, .enters = true};
 *     while ((r = index_walk_next(&walk)) > 0)
 *         walk.enters = ...;
 *     index_walk_free(&walk);
 *
 * A walk keeps its way on the heap, since an archive may be deeper than a call stack allows. It
 * ends, because no entry is in two directories. One thread uses it at a time.
 */
struct index_level {
    uint32_t directory, next, count; /* of the children that are still to come */
    size_t path_len;                 /* of the directory itself, its slash included */
};

struct index_walk {
    const struct index *index;
    uint32_t position, directory; /* of the entry, and of what it is in */
    bool enters;       /* go on in it, if it is a directory; each step takes this back */
    bool has_paths;    /* each entry has its path below the first directory: */
    VECTOR(char) path; /* with a NUL */
    VECTOR(struct index_level) levels; /* the directories that the entry is in */
};

/*
 * 1; 0: that was all; -ENOMEM. After an error of index_children the walk can go on. There is a
 * path only after 1.
 */
int index_walk_next(struct index_walk *walk);
void index_walk_free(struct index_walk *walk);

/*
 * The entry at a path relative to the root. Leading, trailing and double slashes and "." are
 * ignored, ".." is -EINVAL, symbolic links are not followed. "" is the root.
 */
int index_resolve(const struct index *index, const char *path, uint32_t *ret_position);

/* The same from a directory on, for a path of `len` bytes. */
int index_resolve_from(const struct index *index, uint32_t directory, const char *path,
                       size_t len, uint32_t *ret_position);

/*
 * The path of an entry, terminated, without a leading slash; the root's is "". -ENAMETOOLONG:
 * it does not fit. Returns the length through ret_len.
 */
int index_path(const struct index *index, uint32_t position, char *buf, size_t size,
               size_t *ret_len);

/* The target of a symbolic link, not terminated. -EINVAL: not a symbolic link. */
int index_symlink(const struct index *index, uint32_t position, const char **ret_target,
                  size_t *ret_len);

/* Is the entry a symbolic link that leads out of the tree (path_leads_out)? */
bool index_leads_out(const struct index *index, uint32_t position);

/* The way to an entry: what was followed so far. */
struct index_way {
    unsigned links; /* at most 40, as in the kernel */
    uint64_t steps; /* names looked up, for callers that bound their time */
};

/*
 * The entry that `path` leads to from a directory, or from where a symbolic link leads, as a
 * mount would follow it: links and ".." have their usual meaning, leading slashes none. `way`
 * goes on where an earlier call left it; NULL begins a new one. -ENOENT, -ENOTDIR; -ELOOP: over
 * 40 links; -EXDEV: a link or ".." leads out of the archive, as absolute targets do; -EUCLEAN.
 */
int index_follow(const struct index *index, uint32_t from, const char *path,
                 struct index_way *way, uint32_t *ret_position);

/* One extended attribute; the name (with its namespace) is not terminated. */
struct xattr {
    const char *name;
    size_t name_len;
    const void *value;
    size_t value_len;
};

/*
 * Iterate over the attributes of an inode. Start with *cursor = 0; 0 fills *ret_xattr, -ENOENT
 * marks the end.
 */
int index_xattr_next(const struct index *index, uint32_t position, uint64_t *cursor,
                     struct xattr *ret_xattr);
/* One attribute by name. -ENODATA if there is none. */
int index_xattr_get(const struct index *index, uint32_t position, const char *name, size_t len,
                    struct xattr *ret_xattr);

/* Where a range of a file's bytes lies. */
enum extent_kind {
    EXTENT_HOLE,   /* nowhere: zeros */
    EXTENT_STORED, /* uncompressed, in the archive */
    EXTENT_BLOCK,  /* in a compressed block */
};

struct extent {
    enum extent_kind kind;
    bool is_last;           /* the file ends with it */
    uint64_t offset;        /* in the file, of the first byte: the one requested */
    uint64_t length;        /* bytes that this extent holds from there on */
    uint64_t source_offset; /* STORED: of that byte; BLOCK: of the compressed block */
    enum codec codec;       /* BLOCK */
    uint32_t packed_bytes;  /* BLOCK: its compressed size */
    uint32_t block_bytes;   /* BLOCK: its maximum decompressed size */
    uint32_t block_offset;  /* BLOCK: where that byte lies in the decompressed block */
    uint32_t block;         /* BLOCK: its number, for index_point */
    /*
     * STORED: the whole stored piece around that byte, as a range of the archive; the same for
     * each byte of the piece.
     */
    uint64_t whole_offset, whole_length;
};

/*
 * The extent that holds byte `offset` of the regular file at `position`, cut to start there.
 * -ENXIO: `offset` is at or past the end of the file. Every range is checked against the size
 * of the archive. -EINVAL: not a regular file.
 */
int index_extent(const struct index *index, uint32_t position, uint64_t offset,
                 struct extent *ret_extent);

/*
 * More that it takes to decompress a block of a longer stream: such a block may begin and end
 * within a byte, and refer to bytes before it (the window). Bits are counted as the
 * stream's format does. It decompresses to exactly its block_bytes.
 */
struct block_point {
    uint64_t sum;          /* XXH3-64 of the decompressed block */
    unsigned first_bit;    /* of its first byte: 0 to 7 */
    unsigned last_bits;    /* how many bits of its last byte belong to it: 1 to 8 */
    uint32_t window_bytes; /* decompressed bytes right before it, which it refers to; 0: none */
    uint32_t window_packed; /* length of the zstd frame that holds these bytes, */
    const void *window;     /* and the frame itself */
    const void *pieces;     /* sums of its pieces, as in index_format.h; NULL: there are none */
};
#define POINT_PIECES 16u
#define POINT_PIECES_BYTES (POINT_PIECES * 4)
#define POINT_WINDOW_MAX 32768u
#define POINT_PACKED_MAX (POINT_WINDOW_MAX + 1024u) /* what zstd makes of them at most */

static inline bool block_point_is_valid(const struct block_point *p)
{
    return p->first_bit <= 7 && p->last_bits > 0 && p->last_bits <= 8 &&
           p->window_bytes <= POINT_WINDOW_MAX && p->window_packed <= POINT_PACKED_MAX &&
           (p->window_bytes == 0) == (p->window_packed == 0);
}

/* How long the pieces of a block of so many bytes are, but for the last ones. */
static inline uint32_t point_piece_bytes(uint32_t block_bytes)
{
    const uint32_t unit = 4096;
    return (uint32_t)(((uint64_t)block_bytes + POINT_PIECES * unit - 1) /
                      (POINT_PIECES * unit) * unit);
}

/* The point of block number `block` (extent.block). -EUCLEAN. */
int index_point(const struct index *index, uint32_t block, struct block_point *ret_point);

/* An entry, as a table of files needs it. */
struct index_file {
    uint32_t mode;       /* as in its node */
    uint64_t size_bytes; /* of a regular file; else 0 */
    uint64_t offset;     /* in the archive, if the file lies there in one piece */
};
#define INDEX_FILE_IN_PIECES UINT64_MAX /* or compressed, damaged, not a file */

/*
 * The entries [first, first + count) at once, for callers that walk over all of them: the
 * answers of index_node and index_extent, several times as fast. Times and links are not
 * examined, so an entry with damage only there goes unnoticed. A range beyond the archive is
 * left for index_extent to report.
 */
int index_files(const struct index *index, uint32_t first, uint32_t count,
                struct index_file *ret_files);

/*
 * The sum of the file's content, without holes: see checksum.h. -ENODATA if the archive has no
 * sums, or none of this file.
 */
int index_sum(const struct index *index, uint32_t position, uint64_t *ret_sum);

/*
 * Compute the digest that identifies the tree (see digest.h), walking over all entries. `sums`:
 * XXH3-64 of each whole file, by the position of its inode, which makes it a DIGEST_TREE; NULL:
 * the index's own sums, if they are XXH3-64. The result must then equal the digest in
 * index_info, which the packer wrote. -EUCLEAN, -ENOMEM.
 */
int index_digest(const struct index *index, const uint64_t *sums,
                 uint8_t ret_digest[INDEX_DIGEST_BYTES], enum digest_kind *ret_kind);

/* Have index_info and what index_write writes name this DIGEST_TREE. Before others use it. */
void index_set_digest(struct index *index, const uint8_t digest[INDEX_DIGEST_BYTES]);

/*
 * XXH3-64 of each window of INDEX_WINDOW_BYTES (the last may be shorter) of the first
 * info->archive_bytes of the archive. Our own archives have these sums, and an index saved for
 * one compressed stream: there the windows are the tar's in it, of info->archive_bytes.
 *
 * index_windows returns their number, 0 if the index has none. -EINVAL, -EUCLEAN.
 */
#define INDEX_WINDOW_BYTES (1u << 20)
uint64_t index_windows(const struct index *index);
int index_window_sum(const struct index *index, uint64_t window, uint64_t *ret_sum);

/* The number of windows in so many bytes. */
static inline uint64_t index_windows_of(uint64_t bytes)
{
    return bytes / INDEX_WINDOW_BYTES + (bytes % INDEX_WINDOW_BYTES != 0);
}

/*
 * The recipe of an index composed of others (recipe.h): its parts, and how they were joined.
 * -ENODATA: the index is not composed. -EUCLEAN.
 */
int index_recipe(const struct index *index, const void **ret_bytes, size_t *ret_len);

/*
 * Members of the archive that no directory can show, so that the tree lacks them: their
 * number, and the first of them one by one, each with the reason, its name and the offset of
 * its header. *cursor is 0 for the first; -ENOENT: no more are listed; -EUCLEAN.
 */
uint64_t index_left_out(const struct index *index);
int index_left_out_next(const struct index *index, uint64_t *cursor, struct fault *ret_why);

/* Why a member is left out. Values are on disk; each is of some errors of builder_leave_out. */
enum left_out_kind {
    LEFT_OUT_OTHER,      /* not told */
    LEFT_OUT_NAME,       /* EINVAL, ENAMETOOLONG */
    LEFT_OUT_PLACE,      /* ENOTDIR, EISDIR, ELOOP */
    LEFT_OUT_LINK,       /* ENOENT, EPERM */
    LEFT_OUT_DEVICE,     /* ENOTBLK */
    LEFT_OUT_ENCRYPTED,  /* ENOKEY */
    LEFT_OUT_METHOD,     /* ENOTSUP */
    LEFT_OUT_DAMAGED,    /* EILSEQ */
    LEFT_OUT_INCOMPLETE, /* EXDEV */
    LEFT_OUT_BEHIND,     /* ESPIPE */
    LEFT_OUT_KINDS,
};

/* A kind for programs ("encrypted"), and for people, behind a number. */
extern const struct left_out_words {
    const char *name, *text;
} left_out_words[LEFT_OUT_KINDS];

/* Their numbers; the sum is index_left_out. */
void index_left_out_kinds(const struct index *index, uint64_t ret_counts[LEFT_OUT_KINDS]);

/* The same in words: "2 encrypted, 1 damaged". Returns how many kinds there are. */
#define LEFT_OUT_TEXT_LEN 360
unsigned index_left_out_text(const struct index *index, char text[LEFT_OUT_TEXT_LEN]);

/* How many extended attributes the tree lacks, as Linux has no place for them. */
uint64_t index_xattrs_left_out(const struct index *index);

/*
 * Compare the whole image with its sums, and its padding with zeros. -EUCLEAN with the place
 * in the file that fails.
 */
int index_check(const struct index *index, struct fault *fault);

#endif
