/*
 * Entries that are copied from other indexes, many at once: for a tree that is made of whole
 * indexes, or of a part of one, under the names that they have.
 *
 *     builder_new(&b);
 *     builder_copy(b, &copy, &header);     in place of adding members
 *     builder_write(b, &header, ...);
 *
 * The caller knows the order of the new tree, and describes it by runs: entries that follow
 * each other both in their index and in the new one. No name is hashed and nothing is sorted,
 * so an entry costs a twentieth of one that is added by itself.
 *
 * Checks values as strictly as the index's own accessors do: a range lies within its archive, a
 * link's target within its index, and so on. The order is not.
 *
 * -ENOTSUP of builder_copy, and of builder_write after it: an index is damaged, or has
 * something that can't be copied in this way. Then a new builder must be given the entries one
 * by one (graft.h), which also reports the reason.
 */
#ifndef ONEPOT_BUILDER_COPY_H
#define ONEPOT_BUILDER_COPY_H

#include "builder.h"

struct builder_copy_part {
    const struct index *index;
    uint64_t base;    /* where the bytes of its archive begin in the new one's */
    const char *name; /* of its root, where that is not the new root; a name that is valid */
};

#define BUILDER_COPY_NO_PART UINT32_MAX /* the root is an empty builder's */

/* Entries [first, first + count) of a part. A part's root is a separate run. */
struct builder_copy_run {
    uint32_t part, first, count;
};

/* A directory of the new tree. */
struct builder_copy_dir {
    uint32_t children, directories; /* how many of the children are directories */
};

/* The arrays stay the caller's, and must live until builder_write returns. */
struct builder_copy {
    const struct builder_copy_part *parts;
    size_t part_count;
    /* In the order of the new index, the root first. Those of one part ascend. */
    const struct builder_copy_run *runs;
    size_t run_count;
    /* In the same order. */
    const struct builder_copy_dir *dirs;
    size_t dir_count;
    bool is_partial; /* not all entries of the parts: -ENOTSUP if few need most of the rest */
};

/* Also fills in the header's codec, block_bytes and sum_kind. -ENOTSUP, -ENOMEM. */
int builder_copy(struct builder *builder, const struct builder_copy *copy,
                 struct builder_header *header);

/* The kind of the sums of several archives together, which may have none, or different ones. */
struct sum_kinds {
    enum sum_kind first;
    bool any, some, differ; /* parts; parts with sums; parts without them or of another kind */
};

static inline void sum_kinds_add(struct sum_kinds *kinds, bool has_sums, enum sum_kind kind)
{
    kinds->first = kinds->any ? kinds->first : kind;
    kinds->any = true;
    kinds->some = kinds->some || has_sums;
    kinds->differ = kinds->differ || !has_sums || kind != kinds->first;
}

static inline enum sum_kind sum_kinds_together(const struct sum_kinds *kinds)
{
    return !kinds->some ? SUM_XXH3 : kinds->differ ? SUM_MIXED : kinds->first;
}

#endif
