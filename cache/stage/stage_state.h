/*
 * What is known of a copy, in a file that all its users map shared: of which archive it is,
 * and the state of each chunk of CHUNK bytes. A chunk is marked as being there after its
 * bytes were written, never before: whoever finds the mark finds the bytes, and whoever is
 * killed leaves at most a chunk that is made twice.
 *
 * A chunk is claimed before it is made, so that it is fetched once. A claim is no lock: it
 * says who is at it, so that others wait a moment. One of a copier that was replaced means
 * nothing, nor does an old one of a reader.
 *
 * Nothing here outlives the node: the file names the boot in which it was made.
 */
#ifndef ONEPOT_STAGE_STATE_H
#define ONEPOT_STAGE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "source.h"

/* A chunk that somebody has been at for so long may be taken over. */
#define STAGE_CLAIM_OLD_S 10

#define STAGE_CHUNK_BYTES (1u << 20)

struct stage_state {
    char magic[8]; /* written last */
    uint32_t version;
    uint32_t chunk_bytes;
    char boot_id[40];
    struct source_identity identity; /* of the archive */
    uint64_t bytes; /* of the copy: of the archive, or of what is inside of it */
    uint64_t chunks;
    char archive[4096]; /* its path, for people */
    char place[4096];   /* where the copy's folder lies */

    _Atomic uint32_t generation; /* of copiers */
    _Atomic uint32_t whole;      /* every chunk is there, and the archive was not changed */
    _Atomic int32_t failure;     /* why nobody goes on with it: an errno, or 0 */
    _Atomic int32_t copier_pid;  /* or 0 */

    /* It stays when nobody uses it: `onepot stage`. */
    _Atomic uint32_t pinned;
    int32_t owner_pid; /* until this process ends; 0: until it is removed */
    uint64_t owner_start_ticks, owner_namespace;

    _Atomic uint64_t stream_ns;       /* for which copiers have worked, */
    _Atomic uint64_t stream_since_ns; /* before the one that works since then; or 0 */
    _Atomic uint64_t stream_bytes;    /* that they fetched in that time */
    _Atomic uint64_t demand_bytes;    /* fetched because a reader wanted them */
    _Atomic uint64_t demands;         /* chunks that were */
    _Atomic uint64_t past_bytes;      /* read from the archive and not kept */

    _Atomic uint64_t progress_ns; /* when the copier, or who unpacks, has last come further */
    char reason[256];             /* of the failure of a stream; written before it */
    _Atomic int32_t away; /* errno for which it comes no further now, but may again; or 0 */

    _Atomic uint32_t chunk[]; /* enum below, or a claim */
};

enum {
    CHUNK_ABSENT = 0,
    CHUNK_HERE = 1,
    CHUNK_BAD = 2, /* the archive can't be read there: nobody tries again for the copy */
};

size_t stage_state_size(uint64_t bytes);

/* Fill a mapping of zeros of a new state file. */
void stage_state_init(struct stage_state *state, const struct source_identity *identity,
                      uint64_t bytes, const char *archive, const char *place);

/* Map a state file: -EUCLEAN when it is not one, or not of this boot and version. */
int stage_state_map(int fd, struct stage_state **ret_state);
void stage_state_unmap(struct stage_state *state);

bool stage_state_is_of(const struct stage_state *state, const struct source_identity *identity);

/* Bytes of a chunk; only the last one may be shorter. */
size_t stage_chunk_len(const struct stage_state *state, uint64_t chunk);

static inline bool stage_chunk_here(const struct stage_state *state, uint64_t chunk)
{
    return atomic_load_explicit(&state->chunk[chunk], memory_order_acquire) == CHUNK_HERE;
}

/* A chunk for the copier of this generation; it may be claimed by somebody who is gone. */
bool stage_claim_stream(struct stage_state *state, uint64_t chunk, uint32_t generation);

/*
 * A chunk for a reader: true: it is his to make; false: it is there, or in the making. What a
 * copier is at that has come no further for long may be made by a reader, too: its reads may
 * never be answered.
 */
bool stage_claim_demand(struct stage_state *state, uint64_t chunk);

/* The end of a claim: CHUNK_HERE, CHUNK_ABSENT or CHUNK_BAD; wakes who waits for it. */
void stage_settle(struct stage_state *state, uint64_t chunk, uint32_t outcome);

/* Wait while somebody else makes it, at most so long; what became of it is not said. */
void stage_wait(struct stage_state *state, uint64_t chunk, unsigned timeout_ms);

/* How much of it is there. Looks at every chunk. */
uint64_t stage_bytes_here(const struct stage_state *state);

#endif
