/*
 * The members of an archive in the order in which their bytes lie in it, handed out to
 * several threads. Each thread has a range of its own, so that it reads forwards and
 * works in folders of its own; a thread that has finished takes half of the longest
 * range that is left. What lies in one compressed block is never parted, so that the
 * block is decompressed once.
 *
 *     worklist_new(&list);
 *     worklist_add(list, (struct work_item){key, position, 0}); for each member
 *     worklist_begin(list, threads);
 *     in thread t: while ((n = worklist_take(list, t, &items)) > 0) ...
 *
 * Threads: worklist_take may be called from all of them at once.
 */
#ifndef ONEPOT_WORKLIST_H
#define ONEPOT_WORKLIST_H

#include <stddef.h>
#include <stdint.h>

#include "index.h"

struct work_item {
    uint64_t key;      /* where its bytes begin in the archive; equal keys: one block */
    uint32_t position; /* of the entry in the index */
    uint32_t piece;    /* 0: all of it; else for the caller */
};

struct worklist;

int worklist_new(struct worklist **ret_list);
void worklist_free(struct worklist *list); /* NULL is fine */

/* -ENOMEM. */
int worklist_add(struct worklist *list, struct work_item item);

/* Sort, and give each of `threads` threads its range. -ENOMEM. */
int worklist_begin(struct worklist *list, unsigned threads);

/* Some items for thread number `thread`; 0: nothing is left. */
size_t worklist_take(struct worklist *list, unsigned thread,
                     const struct work_item **ret_items);

/*
 * How far the bytes go that items[at + 1..n) want, where no two of them begin more than
 * `gap` bytes apart; 0 if not even the first of them is near. For content_expect.
 */
uint64_t worklist_near_end(const struct work_item *items, size_t n, size_t at, uint64_t gap);

size_t worklist_count(const struct worklist *list);

/*
 * Where the bytes of a regular file begin, from `offset` in it on: the first that is no
 * hole. `otherwise` where there is none, or where the index is damaged there: that is
 * found by who reads the file.
 */
uint64_t worklist_key(const struct index *index, uint32_t position, uint64_t offset,
                      uint64_t otherwise);

#endif
