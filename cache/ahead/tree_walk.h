/*
 * Directories that a walk through the tree will reach. find, ls -lR, du, os.walk and rsync go
 * through a tree in one order, a directory before what is in it, and the index knows that
 * order. Once a reader is seen on such a walk, the next directories are listed ahead of it.
 */
#ifndef ONEPOT_TREE_WALK_H
#define ONEPOT_TREE_WALK_H

#include "index.h"
#include "mount_fetcher.h"

/* Shared with the process that lists, all zero at first. */
struct tree_walk_trail {
    _Atomic uint32_t at;    /* the directory that a reader listed last */
    _Atomic uint32_t steps; /* futex: counts the directories that a reader listed */
    _Atomic uint32_t waits; /* the process waits, on `steps` */
    _Atomic bool full;      /* listings carry no more attributes */
};

struct tree_walk {
    const struct index *index;
    uint32_t root;
    struct tree_walk_trail *trail;
    _Atomic uint32_t in_order, wanted; /* steps: seen in a row, and needed to begin */
};

void tree_walk_init(struct tree_walk *walk, const struct index *index, uint32_t root,
                    struct tree_walk_trail *trail);

/* A reader begins to list a directory. True: it is on a walk that should be run ahead of. */
bool tree_walk_saw_listing(struct tree_walk *walk, uint32_t directory);
/* Listings carry only names from now on, which is not worth a process. */
void tree_walk_saw_names_only(const struct tree_walk *walk);

/* One process at a time. Tell the daemon's side how it ended. */
enum mount_fetch tree_walk_run(const struct tree_walk *walk,
                               const struct mount_fetcher *fetcher, void *ctx);
void tree_walk_ended(struct tree_walk *walk, enum mount_fetch outcome);

#endif
