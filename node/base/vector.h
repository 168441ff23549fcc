/*
 * An array that grows.
 *
 *     VECTOR(uint64_t) sums = {0};
 *     r = vector_push(&sums, sum);
 *     for (size_t i = 0; i < sums.count; i++)
 *         use(sums.at[i]);
 *     vector_free(&sums);
 *
 * All zero is an empty vector. Pushing may move the items: keep indices, not pointers. One
 * thread at a time.
 */
#ifndef ONEPOT_VECTOR_H
#define ONEPOT_VECTOR_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define VECTOR(type)                                                                           \
    struct {                                                                                   \
        type *at;                                                                              \
        size_t count, capacity;                                                                \
    }

/* Grow; vector_reserve calls it where there is no room. 0 or -ENOMEM. */
int vector_grow(void *at, size_t count, size_t more, size_t *capacity, size_t item_bytes);

/* Make room for `more` items beyond `count`: 0 or -ENOMEM. */
#define vector_reserve(v, more)                                                                \
    ((v)->capacity - (v)->count >= (more)                                                      \
         ? 0                                                                                   \
         : vector_grow(&(v)->at, (v)->count, (more), &(v)->capacity, sizeof(*(v)->at)))

/* Add one item at the end: 0 or -ENOMEM. The item may be a compound literal. */
#define vector_push(v, ...)                                                                    \
    (vector_reserve((v), 1) < 0 ? -ENOMEM : ((v)->at[(v)->count++] = (__VA_ARGS__), 0))

/* Add `n` items from an array at the end: 0 or -ENOMEM. */
#define vector_append(v, items, n)                                                             \
    (vector_reserve(v, n) < 0                                                                  \
         ? -ENOMEM                                                                             \
         : ((n) ? (void)memcpy((v)->at + (v)->count, (items), (n) * sizeof(*(v)->at))          \
                : (void)0,                                                                     \
            (v)->count += (n), 0))

/* Add items that are all zero until there are `n`: 0 or -ENOMEM. No item is removed. */
#define vector_extend(v, n)                                                                    \
    ((v)->count >= (n) ? 0                                                                     \
     : vector_reserve((v), (n) - (v)->count) < 0                                               \
         ? -ENOMEM                                                                             \
         : (memset((v)->at + (v)->count, 0, ((n) - (v)->count) * sizeof(*(v)->at)),            \
            (v)->count = (n), 0))

/* Free the memory and leave an empty vector. */
#define vector_free(v)                                                                         \
    do {                                                                                       \
        free((v)->at);                                                                         \
        (v)->at = NULL;                                                                        \
        (v)->count = (v)->capacity = 0;                                                        \
    } while (0)

#endif
