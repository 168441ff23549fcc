/*
 * The smaller and the larger of two numbers, each evaluated once; the order of numbers; a
 * binary search; numbers in text.
 */
#ifndef ONEPOT_NUMBERS_H
#define ONEPOT_NUMBERS_H

#include <errno.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* qsort, of uint64_t or of what begins with one. */
static inline int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

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

/* The digits at the start of `text`; *ret_rest is what follows them. -EINVAL, -ERANGE. */
static inline int digits_parse(const char *text, uint64_t *ret_number, const char **ret_rest)
{
    uint64_t number = 0;
    const char *c = text;
    for (; *c >= '0' && *c <= '9'; c++)
        if (__builtin_mul_overflow(number, 10u, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*c - '0'), &number))
            return -ERANGE;
    if (c == text)
        return -EINVAL;
    *ret_number = number;
    *ret_rest = c;
    return 0;
}

/*
 * Bytes: a number, alone or followed by K, M, G or T (powers of 1024; "4K", "4KiB"). -EINVAL,
 * or -ERANGE when it exceeds 64 bits.
 */
static inline int size_parse(const char *text, uint64_t *ret_bytes)
{
    uint64_t number;
    const char *rest;
    int r = digits_parse(text, &number, &rest);
    if (r < 0)
        return r;
    unsigned shift = 0;
    if (*rest) {
        static const char units[] = "KMGTkmgt";
        const char *unit = strchr(units, *rest);
        if (!unit || (rest[1] && strcmp(rest + 1, "iB") != 0))
            return -EINVAL;
        shift = 10 * ((unsigned)(unit - units) % 4 + 1);
    }
    if (__builtin_mul_overflow(number, UINT64_C(1) << shift, &number))
        return -ERANGE;
    *ret_bytes = number;
    return 0;
}

#endif
