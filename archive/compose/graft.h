/*
 * Grafting: trees of indexes become one new tree, without touching data.
 *
 *     grafter_new(builder, &grafter);
 *     for each archive: graft_add(grafter, &graft, &fault);
 *     grafter_finish(grafter, &header);     header: codec, block_bytes, sum_kind
 *     builder_write(builder, &header, ...);
 *     grafter_free(grafter);
 *
 * An entry brings everything along that its index has: attributes, extended attributes, hard
 * links, the place of its bytes (by their offset plus that of the archive), its sum if all
 * archives have sums of one kind. A compressed block keeps its codec and size, and one that
 * files share is shared in the new index, too.
 *
 * Directories of one name are merged, and keep the attributes that they got first. If anything
 * else has a name already, `on_conflict` decides. To let the last of several archives win,
 * graft them in the opposite order with GRAFT_KEEP.
 *
 * A member that the new tree can't hold (its path is too long there) is left out, and the new
 * index says so, as it does of members that were left out of the archives.
 *
 * Indexes are checked readers, so this needs no sandbox. It ends, and takes memory in
 * proportion to the sizes of the indexes, whatever they say: one whose entries share so much
 * that it would be more is damaged (-EUCLEAN). A million entries take about half a second.
 *
 * Threads: none; one thread uses a grafter at a time.
 */
#ifndef ONEPOT_GRAFT_H
#define ONEPOT_GRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"

struct grafter;

enum graft_conflict {
    GRAFT_REFUSE, /* -EEXIST; the fault names both archives, or both members of one */
    GRAFT_KEEP,   /* the old one stays; the new one, with all below it, is left out */
};

enum graft_place {
    GRAFT_LEAVE_OUT, /* with all below it, about which nothing is asked */
    GRAFT_TAKE,
    GRAFT_IF_NEEDED, /* a directory: only if something below it is taken */
};

struct graft {
    const struct index *index; /* of one archive */
    const char *name;          /* of the archive, for messages; lives as long as the grafter */
    uint64_t base;             /* where its bytes begin in the new index's archive */
    /*
     * The directory of the new tree that takes the archive's root; "": the new root. Missing
     * ones are made like the archive's root.
     */
    const char *under;
    enum graft_conflict on_conflict;
    bool is_again; /* it was grafted before: its left-out members are told already */
    /*
     * Which entries to take: an enum graft_place, or -errno. `path` is that in the archive,
     * terminated; `mode` as st_mode; the root is not asked about. NULL: all.
     */
    int (*place)(void *ctx, const char *path, size_t len, uint32_t position, uint32_t mode);
    void *ctx;
};

/* -ENOMEM. The builder must live longer. */
int grafter_new(struct builder *builder, struct grafter **ret_grafter);
void grafter_free(struct grafter *grafter); /* NULL is fine */

/*
 * Add an archive's tree. -EUCLEAN: its index is damaged; -EEXIST: see above, also if `under`
 * leads through something that is no directory (with GRAFT_KEEP nothing is added); or
 * builder_add's errors.
 */
int graft_add(struct grafter *grafter, const struct graft *graft, struct fault *fault);

/* Names in the new tree so far, the root included. */
uint32_t grafter_entries(const struct grafter *grafter);

/* Fill in the header's codec, block_bytes and sum_kind. After the last archive. */
void grafter_finish(struct grafter *grafter, struct builder_header *header);

/*
 * Members that the archive's own index lacks are missing in the new one, too: copy the remarks
 * on them. -EUCLEAN, -ENOMEM. graft_add does that itself.
 */
int graft_copy_left_out(struct builder *builder, const struct index *index);

/*
 * ---- one entry at a time ----
 *
 *     grafting_begin(grafter, &graft, &fault, &grafting);
 *     grafting_put(grafting, position, directory, name, len, &entry); ...
 *     grafting_end(grafting);
 *
 * For who knows which entries to take, and under which names. `under` does not count, nor
 * does `place` but where it says so. An entry that is put under several names, other than a
 * directory, is one inode with several links.
 */
struct grafting;
int grafting_begin(struct grafter *grafter, const struct graft *graft, struct fault *fault,
                   struct grafting **ret_grafting); /* -ENOMEM */
void grafting_end(struct grafting *grafting);       /* NULL is fine */

/*
 * Put the entry, without those below it, into a directory (the number of a builder_entry).
 * 0: done. 1: nothing is put, as the name is taken and that is no conflict: by a directory, and
 * this is one, too; or by anything, with GRAFT_KEEP. *ret_entry has the name then.
 */
int grafting_put(struct grafting *grafting, uint32_t position, uint32_t directory,
                 const char *name, size_t len, struct builder_entry *ret_entry);

/*
 * Put everything below the directory at `position` into a directory. `place` counts here; its
 * paths are those in the archive.
 */
int grafting_put_tree(struct grafting *grafting, uint32_t position, uint32_t directory);

/* Give the root of the new tree the attributes of this archive's. */
int grafting_put_root(struct grafting *grafting);

#endif
