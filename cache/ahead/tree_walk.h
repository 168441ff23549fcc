/*
 * Directories that a walk through the tree will reach. find, ls -lR, du, os.walk and rsync go
 * through a tree in one order, a directory before its entries, and the index knows that order.
 * Once a reader is seen on such a walk, the next directories are listed ahead of it.
 */
#ifndef ONEPOT_TREE_WALK_H
#define ONEPOT_TREE_WALK_H

#include "ahead.h"
#include "chooser.h"

struct tree_walk;

extern const struct chooser tree_walk_chooser; /* of a struct tree_walk */

/* `options` outlive it. -ENOMEM. */
int tree_walk_new(const struct ahead_options *options, struct tree_walk **ret_walk);
void tree_walk_free(struct tree_walk *walk); /* NULL is fine */

#endif
