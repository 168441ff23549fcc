/*
 * The order in which training reads its samples: torch.randperm of a generator with a
 * given seed, bit for bit, as every version of torch since 1.0 has it.
 *
 *     permutation_new(n, seed + epoch, &p);
 *     permutation_at(p, i);                  i < n
 *
 * The numbers come from MT19937, seeded with the low 32 bits of the seed:
 *
 *     s[0] = seed;  s[j] = 1812433253 * (s[j-1] ^ s[j-1] >> 30) + j
 *
 * Up to PERMUTATION_NARROW_MAX - 1 elements they are used as
 *
 *     for i in 0..n-2: z = r32() % (n - i); swap a[i], a[i + z]
 *
 * and from there on (torch 2.6 and later) as
 *
 *     for i in 0..n-1: z = (r32() << 32 | r32()) % (i + 1); a[i] = a[z]; a[z] = i
 *
 * Threads: a permutation never changes once it is made.
 */
#ifndef ONEPOT_PERMUTATION_H
#define ONEPOT_PERMUTATION_H

#include <stdbool.h>
#include <stdint.h>

struct permutation;

/* From this many elements on torch draws 64-bit numbers: UINT32_MAX / 20. */
#define PERMUTATION_NARROW_MAX UINT64_C(214748364)

/*
 * Asked every few million elements, in the thread that makes a permutation: is it no longer
 * wanted? The function then returns -ECANCELED. NULL in place of the struct: nobody is asked.
 */
struct permutation_stop {
    bool (*is_wanted)(void *ctx);
    void *ctx;
};

/* An element takes 4 bytes if there are up to 2^32 of them, else 8. -ENOMEM, -ECANCELED. */
int permutation_new(uint64_t n, uint64_t seed, const struct permutation_stop *stop,
                    struct permutation **ret_permutation);

/* The same, but the caller chooses how numbers are drawn. */
int permutation_new_as(uint64_t n, uint64_t seed, bool draw_64_bits,
                       const struct permutation_stop *stop,
                       struct permutation **ret_permutation);

/*
 * A shuffle for data on slow storage. Elements are cut into blocks of `block` neighbours, and
 * the blocks are shuffled. Then each `window` successive blocks are shuffled among themselves,
 * element by element. So the reads of a moment lie in at most `window` places. -EINVAL: a block
 * or a window of 0.
 */
int permutation_new_blocks(uint64_t n, uint64_t seed, uint64_t block, uint64_t window,
                           const struct permutation_stop *stop,
                           struct permutation **ret_permutation);

void permutation_free(struct permutation *permutation); /* NULL is fine */

uint64_t permutation_at(const struct permutation *permutation, uint64_t i);

/*
 * The first `count` (at most n) elements of permutation_new(n, seed). Time and memory depend on
 * `count` alone, so that the fronts of many permutations can be looked at. -EINVAL from
 * PERMUTATION_NARROW_MAX elements on, where the first element is known last. -ENOMEM.
 */
int permutation_front(uint64_t n, uint64_t seed, uint32_t count, uint32_t *ret_elements);

/*
 * Keep `count` elements, every `step`-th from `first` on, and free the memory of the others.
 * Afterwards element i is what first + i * step was, modulo the size; they may wrap around.
 * -ENOMEM or -ECANCELED, and nothing has changed.
 */
int permutation_take(struct permutation *permutation, uint64_t first, uint64_t step,
                     uint64_t count, const struct permutation_stop *stop);

#endif
