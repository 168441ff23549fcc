/*
 * Entries that are copied from other indexes, many at once (archive/compose/tree.h).
 *
 *     builder_new(&b);
 *     builder_copy(b, &copy, &header, &fault);     in place of adding members
 *     builder_write(b, &header, ...);
 *
 * The caller knows the order of the new tree, and describes it by runs: entries that follow
 * each other both in their index and in the new one. No name is hashed and nothing is sorted,
 * so an entry costs a twentieth of one that is added by itself. What the entries of a part
 * refer to (link targets, blocks and such) comes along, and no more of it than they need.
 *
 * Checks values as strictly as the index's own accessors do: a range lies within its archive, a
 * link's target within its index, and so on. The order is not.
 *
 * -EUCLEAN of builder_copy, and of builder_write after it: an index is damaged, or a part lies
 * past the end of the new archive; the fault names the entry.
 */
#ifndef ONEPOT_BUILDER_COPY_H
#define ONEPOT_BUILDER_COPY_H

#include "builder.h"

struct builder_copy_part {
    const struct index *index;
    uint64_t base;    /* where the bytes of its archive begin in the new one's */
    const char *name; /* of the archive, for messages; NULL: the caller knows it */
    bool repeats;     /* an entry may come several times: as one inode, unless a directory */
};

struct builder_copy_name {
    const char *at; /* a valid name */
    size_t len;
};

#define BUILDER_COPY_NO_PART UINT32_MAX /* the root is an empty builder's */

/* Entries [first, first + count) of a part, or one entry under another name. */
struct builder_copy_run {
    uint32_t part, first, count;
    uint32_t name; /* 0: their own; else its number in `names` plus 1 */
};

/* A directory of the new tree. */
struct builder_copy_dir {
    uint32_t children, directories; /* how many of the children are directories */
};

/* The arrays stay the caller's, and must live until builder_write returns. */
struct builder_copy {
    const struct builder_copy_part *parts;
    size_t part_count;
    const struct builder_copy_name *names;
    /* In the order of the new index, the root first, alone in its run. */
    const struct builder_copy_run *runs;
    size_t run_count;
    /* In the same order. */
    const struct builder_copy_dir *dirs;
    size_t dir_count;
};

/*
 * The header's archive_bytes bound the parts. Fills in its codec, block_bytes and sum_kind.
 * -EUCLEAN, -EOVERFLOW, -ENOMEM.
 */
int builder_copy(struct builder *builder, const struct builder_copy *copy,
                 struct builder_header *header, struct fault *fault);

#endif
