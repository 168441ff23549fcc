/*
 * Shared by the files of the builder.
 */
#ifndef ONEPOT_BUILDER_PRIVATE_H
#define ONEPOT_BUILDER_PRIVATE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "builder.h"
#include "index_format.h"
#include "map.h"
#include "vector.h"

/* A name: an entry of the tree. Names are never removed, only bound to another inode. */
struct builder_name {
    uint32_t parent; /* a name */
    uint32_t inode;
    uint64_t text; /* offset in `text` << 8 | length */
};

/*
 * An inode. The fields mean the same as in the entry on disk, except that `data` of a
 * directory is the number of its children, and `size` the length of its path (0: the root) with
 * the number of its name in the upper half. An inode without names (nlink 0) is left out.
 */
struct builder_inode {
    uint64_t size;
    uint64_t data;
    uint64_t mtime;
    uint32_t attr; /* number in `attrs` */
    uint32_t nlink;
};

#define ENTRIES_MAX (UINT32_MAX - 1) /* names, and inodes */
#define DATA_UNSET UINT64_MAX        /* pieces not set yet */
#define DATA_HOLE (UINT64_MAX - 1)   /* no pieces */

/* Distinct attributes, in host order, each with a number. Empty when all zero. */
struct attr_table {
    VECTOR(struct disk_attr) list;
    struct map numbers;
};

struct builder_xattr {
    size_t name; /* offset in `pending_bytes`; the value follows the name */
    uint32_t name_len;
    uint32_t value_len;
};

struct builder {
    VECTOR(struct builder_name) names;
    VECTOR(struct builder_inode) inodes;
    VECTOR(char) text;

    /*
     * Hash table of names by parent and name. Upper half: hash; lower half: number of a name;
     * 0: free.
     */
    uint64_t *slots;
    size_t slot_count;
    uint64_t seed;

    struct attr_table attrs; /* as members were added with; see struct image */

    /* Path of the directory that the last member was in. */
    VECTOR(char) last_path;
    uint32_t last_dir;

    VECTOR(char) strings;
    VECTOR(uint64_t) extents;         /* as on disk */
    uint64_t no_ranges;               /* where an empty list lies, plus 1; 0: nowhere */
    VECTOR(struct disk_block) blocks; /* as on disk */
    uint32_t block_bytes_max;         /* largest size so far */
    VECTOR(struct disk_point) points; /* as on disk */
    VECTOR(char) windows;
    VECTOR(char) pieces;         /* empty, or for all points so far */
    VECTOR(int64_t) wide_mtimes; /* by inode: the seconds of EXTRA_MTIME */

    /* Attributes of one inode are collected, and become a set when another inode's come. */
    uint32_t pending_inode;
    VECTOR(struct builder_xattr) pending;
    VECTOR(char) pending_bytes;
    VECTOR(char) xattrs;       /* sets, as on disk */
    VECTOR(uint64_t) xattr_of; /* by inode: offset of its set + 1, or 0 */
    struct map sets;           /* offset in `xattrs`, by a sum of the set */

    VECTOR(uint32_t) dirs; /* as on disk */

    VECTOR(char) left_out; /* as on disk; empty if nothing was left out */
    uint64_t left_out_count, left_out_kinds[LEFT_OUT_KINDS];
    unsigned left_out_told;
    uint64_t xattrs_left_out;

    VECTOR(uint64_t) sums; /* by inode */
    VECTOR(uint8_t) has_sum;

    uint64_t archive_bytes;
    uint32_t codecs; /* that blocks name */
    bool is_written;
};

static inline const char *name_text(const struct builder *b, uint32_t name)
{
    return b->text.at + (b->names.at[name].text >> 8);
}

static inline size_t name_length(const struct builder *b, uint32_t name)
{
    return b->names.at[name].text & 255;
}

static inline const struct disk_attr *inode_attr(const struct builder *b, uint32_t inode)
{
    return &b->attrs.list.at[b->inodes.at[inode].attr];
}

static inline bool is_directory_inode(const struct builder *b, uint32_t inode)
{
    return S_ISDIR(inode_attr(b, inode)->mode);
}

/* The number of these attributes, which are added if they are new. -EOVERFLOW; -ENOMEM. */
int attr_table_number(struct attr_table *table, const struct disk_attr *attr,
                      uint32_t *ret_number);
void attr_table_free(struct attr_table *table);

/* Turn the collected attributes into a set. */
int builder_flush_xattrs(struct builder *b);

#endif
