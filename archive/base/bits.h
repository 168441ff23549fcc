/*
 * Bits of an array of words, set by any thread or process.
 */
#ifndef ONEPOT_BITS_H
#define ONEPOT_BITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool bit_get(const _Atomic uint64_t *bits, size_t i)
{
    return atomic_load_explicit(&bits[i / 64], memory_order_relaxed) >> (i % 64) & 1;
}

/* Set it; true if it was not set. */
static inline bool bit_take(_Atomic uint64_t *bits, size_t i)
{
    uint64_t bit = UINT64_C(1) << (i % 64);

    return !bit_get(bits, i) && !(atomic_fetch_or(&bits[i / 64], bit) & bit);
}

#endif
