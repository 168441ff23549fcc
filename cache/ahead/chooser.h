/*
 * A way to choose the next fetches. A plan (plan.h) has up to five of them, in this order:
 *
 *     order      a known order of files, given or recognised     plan.c, follow.h, recognise.h
 *     sequence   files and pieces of files in a row              plan.c, streams.h
 *     tree       directories that a walk will reach              tree_walk.h
 *     names      names of files that are opened without a listing   names.h
 *     near       files near the ones that are read           nearby.h
 *
 * The first two fetch into the block cache, the others through the mount itself. Every function
 * is called under the plan's lock, must not wait, and gets the chooser as its first argument.
 */
#ifndef ONEPOT_CHOOSER_H
#define ONEPOT_CHOOSER_H

#include <stdbool.h>
#include <stddef.h>

#include "observer.h"
#include "reader.h"

struct chooser {
    /* `expected`: an earlier chooser knew that this would come. Returns the same for the next.
     */
    bool (*observe)(void *chooser, const struct observation *o, bool expected);
    /* Readers rest or do something else: nothing is to be taken for now. NULL: never. */
    bool (*is_lost)(void *chooser, uint64_t now_ns);
    /* Returns how many wants; 0: none for now. */
    size_t (*take)(void *chooser, struct reader_want *wants, size_t max);
    /* The wants of one call of `take` were fetched, or could not be. May be NULL. */
    void (*finished)(void *chooser, const struct reader_want *wants, size_t count, int result);
};

#endif
