/*
 * Which compressed blocks a GPU may decompress. Its library does so for valid zstd only: what
 * it makes of other bytes is undefined, and archives are hostile. So the host decompresses each
 * block first, with a library that minds, and notes a sum of the block as it is packed and one
 * of what it holds. From then on the same bytes may go to a GPU, and what comes back is
 * compared.
 *
 * Threads: all functions may run at once.
 */
#ifndef ONEPOT_PROOFS_H
#define ONEPOT_PROOFS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

#define PROOF_BYTES_MAX (16u << 20) /* larger blocks are the host's */

struct proof {
    uint64_t packed_sum; /* proof_packed_sum of the block */
    uint64_t sum;        /* frame_sum.h, of what it holds, */
    uint32_t bytes;      /* which is so much */
};

struct proof_table;

/* Of one archive. Zeros are none, and nothing is noted. */
struct proofs {
    _Atomic(struct proof_table *) table;
};

/* Note from now on. -ENOMEM. */
int proofs_begin(struct proofs *proofs, const struct index *index);
void proofs_free(struct proofs *proofs);

/* The host has decompressed this block. What is no plain frame of zstd is not noted. */
void proofs_add(struct proofs *proofs, const struct extent *extent, const void *packed,
                const void *bytes, size_t len);

/* False: it was not decompressed yet, or is none for a GPU. */
bool proofs_get(const struct proofs *proofs, const struct extent *extent,
                struct proof *ret_proof);

uint64_t proof_packed_sum(const void *packed, size_t len);

#endif
