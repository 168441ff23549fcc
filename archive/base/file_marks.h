/*
 * Two bits for each file of a mount: who has read of it. A file counts once, whoever reads how
 * much of it how often.
 */
#ifndef ONEPOT_FILE_MARKS_H
#define ONEPOT_FILE_MARKS_H

#include <stdatomic.h>
#include <stdint.h>

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
