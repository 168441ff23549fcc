/* A table with an entry for each block of an archive, which is written once. */
#include "proofs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "codec.h"
#include "frame_sum.h"

enum entry_state { ENTRY_NONE, ENTRY_BUSY, ENTRY_THERE };

struct proof_table {
    uint64_t count;
    struct proof_entry {
        struct proof proof;
        _Atomic uint32_t state;
    } entries[];
};

int proofs_begin(struct proofs *proofs, const struct index *index)
{
    struct proof_table *none = NULL, *table;
    uint64_t count = index_blocks(index);
    if (atomic_load(&proofs->table))
        return 0;
    table = calloc(1, sizeof(*table) + count * sizeof(table->entries[0]));
    if (!table)
        return -ENOMEM;
    table->count = count;
    if (!atomic_compare_exchange_strong(&proofs->table, &none, table))
        free(table);
    return 0;
}

void proofs_free(struct proofs *proofs)
{
    free(atomic_load(&proofs->table));
}

uint64_t proof_packed_sum(const void *packed, size_t len)
{
    return XXH3_64bits(packed, len);
}

static uint64_t proof_sum(const uint8_t *bytes, size_t len)
{
    uint64_t sum = 0, word;
    size_t i = 0;
    for (; 8 * i + 8 <= len; i++) {
        memcpy(&word, bytes + 8 * i, sizeof(word));
        sum += frame_sum_word(word, i);
    }
    if (8 * i < len) {
        word = 0;
        memcpy(&word, bytes + 8 * i, len - 8 * i);
        sum += frame_sum_word(word, i);
    }
    return sum;
}

static struct proof_entry *entry_of(const struct proofs *proofs, const struct extent *extent)
{
    struct proof_table *table = atomic_load(&proofs->table);
    return table && extent->codec == CODEC_ZSTD && extent->block < table->count
               ? &table->entries[extent->block]
               : NULL;
}

void proofs_add(struct proofs *proofs, const struct extent *extent, const void *packed,
                const void *bytes, size_t len)
{
    struct proof_entry *e = entry_of(proofs, extent);
    uint32_t none = ENTRY_NONE;
    if (!e || len == 0 || len > PROOF_BYTES_MAX || atomic_load(&e->state) ||
        !codec_is_plain_zstd(packed, extent->packed_bytes, len) ||
        !atomic_compare_exchange_strong(&e->state, &none, ENTRY_BUSY))
        return;
    e->proof = (struct proof){.packed_sum = proof_packed_sum(packed, extent->packed_bytes),
                              .sum = proof_sum(bytes, len),
                              .bytes = (uint32_t)len};
    atomic_store(&e->state, ENTRY_THERE);
}

bool proofs_get(const struct proofs *proofs, const struct extent *extent,
                struct proof *ret_proof)
{
    const struct proof_entry *e = entry_of(proofs, extent);
    if (!e || atomic_load(&e->state) != ENTRY_THERE)
        return false;
    *ret_proof = e->proof;
    return extent->block_offset <= e->proof.bytes &&
           extent->length <= e->proof.bytes - extent->block_offset;
}
