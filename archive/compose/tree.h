/*
 * One new tree of the trees of several indexes, without touching data.
 *
 *     tree_new(&tree);
 *     for each archive:
 *         tree_add(tree, &part, &number);  and unless it is part.at_root:
 *         tree_put(tree, TREE_TOP, name, len, place, ..);
 *     tree_write(tree, &header, fd, &fault);
 *     tree_free(tree);
 *
 * A directory of the new tree is a list of places, which are directories of the parts, and of
 * names that were put there. It has the entries of all of them. Where several have one name,
 * directories become one directory, with the attributes of the first; anything else is an
 * error, or the first one stays (gives_way). To let the last of several archives win, add them
 * in the opposite order.
 *
 * An entry brings everything along that its index has: attributes, extended attributes, hard
 * links, the place of its bytes (by their offset plus the archive's), its sum. An entry other
 * than a directory that has several names in the new tree is one inode with several links.
 *
 * A member that the new tree can't hold (its path is too long there) is left out, and the new
 * index says so, as it does of members that were left out of the archives.
 *
 * Indexes are checked readers, so this needs no sandbox. A part costs memory in proportion to
 * its index, whatever the index says, and a directory that is put costs as much each time. A
 * million entries take about 0.3 s, and the builder's 100 bytes each.
 *
 * Threads: none; one thread uses a tree at a time.
 */
#ifndef ONEPOT_TREE_H
#define ONEPOT_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"

struct tree;

struct tree_part {
    const struct index *index; /* lives as long as the tree */
    const char *name;          /* of the archive, for messages; so does this; NULL: none */
    uint64_t base;             /* where the archive's bytes begin in the new one's */
    const char *list;          /* the file whose lines put its entries, for messages */
    bool forgets_left_out;     /* its left-out members are not told */
    bool at_root;              /* the new root has all that is in its root */
    bool gives_root; /* the new root has its root's attributes; else the first at_root's */
    bool gives_way;  /* where an entry's name is taken, leave it out: no error */
    /*
     * Only the entries whose bits are set are shown; a directory whose bit is not set goes with
     * all below it. The root and entries put by name are shown in any case. The tree frees the
     * bits. NULL: all.
     */
    uint8_t *shown;
    struct index *owned; /* the index, if the tree is to close it at the end */
};

/* An entry of a part, or a directory that was made here. */
struct tree_place {
    uint32_t part, position;
};

#define TREE_MADE UINT32_MAX /* in place of a part */
#define TREE_TOP ((struct tree_place){TREE_MADE, 0})

/* Is an entry's bit among those of tree_part.shown? */
static inline bool tree_shows(const uint8_t *shown, uint32_t position)
{
    return !shown || shown[position / 8] & 1u << position % 8;
}

int tree_new(struct tree **ret_tree); /* -ENOMEM */
void tree_free(struct tree *tree);    /* NULL is fine */

/* Parts are numbered from 0. -ENOMEM, and what the tree would own is freed. */
int tree_add(struct tree *tree, const struct tree_part *part, uint32_t *ret_part);

/*
 * Put an entry, with all that is below it, at a path from a directory on; the path lives as
 * long as the tree. Directories that the path needs are made, with the attributes of the root
 * of the entry's part. `line`: of the part's list, for messages; 0: none. -EINVAL,
 * -ENAMETOOLONG: that is no path.
 */
int tree_put(struct tree *tree, struct tree_place directory, const char *path, size_t len,
             struct tree_place target, uint32_t line, struct fault *fault);

/*
 * Write the index. The header's archive_bytes bound the parts; its codec, block_bytes and
 * sum_kind are filled in. -EEXIST: a name is in two places, of which the fault names the later
 * one's entry, its line, and both archives, or both entries of one; where there are several
 * such names, one nearest to the root. -EUCLEAN: an index is damaged; -EOVERFLOW: an index
 * can't hold so much. Other errors: as builder_write.
 */
int tree_write(struct tree *tree, struct builder_header *header, int fd, struct fault *fault);

#endif
