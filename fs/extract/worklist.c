/*
 * A range is handed out in small portions, under one lock. A portion (some files, or about a
 * megabyte) is long enough for the lock not to matter, and short enough for the threads to
 * finish together.
 */
#include "worklist.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "vector.h"

#define PORTION_ITEMS 64u
#define PORTION_BYTES (1u << 20)

struct range {
    size_t next, end;
};

struct worklist {
    VECTOR(struct work_item) items;
    bool sorted;
    struct range *ranges; /* one for each thread */
    unsigned threads;
    pthread_mutex_t lock;
};

int worklist_new(struct worklist **ret_list)
{
    struct worklist *list = calloc(1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    list->sorted = true;
    pthread_mutex_init(&list->lock, NULL);
    *ret_list = list;
    return 0;
}

void worklist_free(struct worklist *list)
{
    if (!list)
        return;
    pthread_mutex_destroy(&list->lock);
    free(list->ranges);
    vector_free(&list->items);
    free(list);
}

static int compare_items(const void *a, const void *b)
{
    const struct work_item *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

int worklist_add(struct worklist *list, struct work_item item)
{
    if (list->items.count && compare_items(&list->items.at[list->items.count - 1], &item) > 0)
        list->sorted = false;
    return vector_push(&list->items, item);
}

/* The first place from `at` on where a block ends. */
static size_t next_border(const struct worklist *list, size_t at, size_t end)
{
    while (at > 0 && at < end && list->items.at[at].key == list->items.at[at - 1].key)
        at++;
    return at;
}

int worklist_begin(struct worklist *list, unsigned threads)
{
    list->ranges = calloc(threads, sizeof(*list->ranges));
    if (!list->ranges)
        return -ENOMEM;
    list->threads = threads;
    if (!list->sorted)
        qsort(list->items.at, list->items.count, sizeof(*list->items.at), compare_items);
    size_t at = 0;
    for (unsigned t = 0; t < threads; t++) {
        size_t end =
            t + 1 == threads ? list->items.count : list->items.count / threads * (t + 1);
        end = next_border(list, end > at ? end : at, list->items.count);
        list->ranges[t] = (struct range){at, end};
        at = end;
    }
    return 0;
}

/* Give the thread half of the longest range: false when all are empty. */
static bool worklist_steal(struct worklist *list, struct range *mine)
{
    struct range *longest = &list->ranges[0];
    for (unsigned t = 1; t < list->threads; t++)
        if (list->ranges[t].end - list->ranges[t].next > longest->end - longest->next)
            longest = &list->ranges[t];
    size_t left = longest->end - longest->next;
    if (left == 0)
        return false;
    size_t middle = next_border(list, longest->next + left / 2, longest->end);
    if (middle == longest->end)
        middle = longest->next;
    *mine = (struct range){middle, longest->end};
    longest->end = middle;
    return true;
}

static size_t worklist_portion(const struct worklist *list, const struct range *range)
{
    const struct work_item *first = &list->items.at[range->next];
    size_t left = range->end - range->next, n = 1;
    while (n < left && (first[n].key == first[n - 1].key ||
                        (n < PORTION_ITEMS && first[n].key - first->key < PORTION_BYTES)))
        n++;
    return n;
}

size_t worklist_take(struct worklist *list, unsigned thread, const struct work_item **ret_items)
{
    struct range *mine = &list->ranges[thread];
    size_t n = 0;
    pthread_mutex_lock(&list->lock);
    if (mine->next < mine->end || worklist_steal(list, mine)) {
        n = worklist_portion(list, mine);
        *ret_items = &list->items.at[mine->next];
        mine->next += n;
    }
    pthread_mutex_unlock(&list->lock);
    return n;
}

uint64_t worklist_near_end(const struct work_item *items, size_t n, size_t at, uint64_t gap)
{
    uint64_t end = 0;
    if (n > at + PORTION_ITEMS)
        n = at + PORTION_ITEMS; /* many in one block: they are read at once anyway */
    while (at + 1 < n && items[at + 1].key - items[at].key <= gap)
        end = items[++at].key;
    return end;
}

uint64_t worklist_key(const struct index *index, uint32_t position, uint64_t offset,
                      uint64_t otherwise)
{
    struct extent e;
    while (index_extent(index, position, offset, &e) == 0) {
        if (e.kind != EXTENT_HOLE)
            return e.source_offset;
        offset += e.length;
    }
    return otherwise;
}
