/*
 * Binary search by a condition.
 */
#ifndef ONEPOT_SEARCH_H
#define ONEPOT_SEARCH_H

#include <stdint.h>

/*
 * The first number `i` from `from` on, below `end`, for which a condition holds that then holds
 * for all behind it; `end` if it holds for none:
 *
 *     place = search_first(i, 0, count, positions[i] >= position);
 */
#define search_first(i, from, end, holds)                                                      \
    ({                                                                                         \
        uint64_t search_low = (from), search_high = (end);                                     \
        while (search_low < search_high) {                                                     \
            uint64_t i = search_low + (search_high - search_low) / 2;                          \
            if (holds)                                                                         \
                search_high = i;                                                               \
            else                                                                               \
                search_low = i + 1;                                                            \
        }                                                                                      \
        search_low;                                                                            \
    })

#endif
