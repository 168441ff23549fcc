/*
 * Hands the members of an archive, in the order of their bytes, to several threads. Each thread
 * has its own range, so it reads forwards and works in its own folders. A thread that has
 * finished takes half of the longest range that is left. Members in one compressed block stay
 * together, so that the block is decompressed once.
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
    uint64_t key;      /* start of its bytes in the archive; equal keys: one block */
    uint32_t position; /* of the entry in the index */
    uint32_t piece;    /* 0: the whole member; other values are the caller's */
};

struct worklist;

int worklist_new(struct worklist **ret_list);
void worklist_free(struct worklist *list); /* NULL is fine */

/* Errors: -ENOMEM. */
int worklist_add(struct worklist *list, struct work_item item);

/* Sort, and give each of `threads` threads its range. -ENOMEM. */
int worklist_begin(struct worklist *list, unsigned threads);

/* Take some items for thread number `thread`; 0: nothing is left. */
size_t worklist_take(struct worklist *list, unsigned thread,
                     const struct work_item **ret_items);

/*
 * The key of the last of items[at + 1..n) before a gap of more than `gap` bytes between two
 * keys; 0 if the first already lies behind such a gap. For content_expect.
 */
uint64_t worklist_near_end(const struct work_item *items, size_t n, size_t at, uint64_t gap);

/*
 * Start of a regular file's bytes from `offset` in it on, holes skipped. `otherwise` if there
 * are none, or if the index is damaged there; reading the file reports that damage.
 */
uint64_t worklist_key(const struct index *index, uint32_t position, uint64_t offset,
                      uint64_t otherwise);

#endif
