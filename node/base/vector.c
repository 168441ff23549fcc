#include "vector.h"

/*
 * A quarter more than needed is allocated, not twice as much: large blocks grow without being
 * copied, and a limit on a process's memory counts unused room, too.
 */
int vector_grow(void *at, size_t count, size_t more, size_t *capacity, size_t item_bytes)
{
    size_t need, room;
    if (__builtin_add_overflow(count, more, &need) ||
        __builtin_add_overflow(need, need / 4 + 8, &room))
        return -ENOMEM;
    void *p = reallocarray(*(void **)at, room, item_bytes);
    if (!p)
        return -ENOMEM;
    *(void **)at = p;
    *capacity = room;
    return 0;
}
