/*
 * Bits of an array of words, set by any thread or process; of a mount's files, two for each.
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

/*
 * Two bits for each file of a mount: who has read of it. A file counts once, whoever reads how
 * much of it how often.
 */
#define FILE_READ 1u  /* a reader has read of it */
#define FILE_AHEAD 2u /* the daemon has, so that the kernel has it when a reader comes */

/* Set a mark. Returns the marks that the file had before. */
static inline unsigned file_mark(_Atomic uint32_t *marks, uint64_t entry, unsigned mark)
{
    _Atomic uint32_t *word = &marks[entry / 16];
    unsigned shift = entry % 16 * 2;
    uint32_t had = atomic_load_explicit(word, memory_order_relaxed);

    if (!(had >> shift & mark))
        had = atomic_fetch_or_explicit(word, mark << shift, memory_order_relaxed);
    return had >> shift & (FILE_READ | FILE_AHEAD);
}

#endif
