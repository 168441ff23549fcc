/*
 * What population decides: which files, and until when.
 */
#ifndef ONEPOT_POPULATE_H
#define ONEPOT_POPULATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POPULATE_CHUNK_BITS 8 /* a chunk is so many entries, as a power of two */

struct populate_totals {
    _Atomic uint64_t files, bytes;
};

/* Over memory of zeros that the daemon shares with its children. */
struct populate_ledger {
    struct populate_totals *at;
    size_t chunks;
    _Atomic uint64_t *touched; /* bitmaps, by chunk: a reader read from it */
    _Atomic uint64_t *listed;
    _Atomic uint64_t *taken; /* claimed by a child, which populates it or gives it back */
};
size_t populate_ledger_bytes(uint32_t entries);
struct populate_ledger populate_ledger_at(void *shared, uint32_t entries);

/* Is the chunk to be populated, because readers read from it or shortly before it? */
bool populate_wants(const struct populate_ledger *ledger, size_t chunk);

/* The reads of readers, as last seen, and when they last grew. */
struct populate_pace {
    uint64_t reads, grown_ns;
};
/* Have readers paused, or are too many files populated (`files`) for what they read (`reads`)?
 */
bool populate_pace_is_lost(struct populate_pace *pace, uint64_t reads, uint64_t files,
                           uint64_t now);

#endif
