/*
 * The state of a copy, in a file that all its users map shared: the archive that it is of, and
 * the state of each chunk of STAGE_CHUNK_BYTES. A chunk is marked as there after its bytes were
 * written, never before. So a process that finds the mark finds the bytes, and a killed process
 * leaves at worst a chunk that is made twice.
 *
 * A chunk is claimed before it is made, so that it is fetched once. A claim is no lock: it only
 * says that somebody is at it, so that others wait a moment. The claim of a copier that was
 * replaced means nothing, and neither does an old claim of a reader.
 *
 * Nothing here outlives the node's boot: the file names the boot in which it was made.
 */
#ifndef ONEPOT_STAGE_STATE_H
#define ONEPOT_STAGE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "source.h"

/*
 * The layout below has this number. It is part of a copy's name, so that two versions of the
 * program make copies of their own.
 */
#ifndef STAGE_STATE_VERSION
#define STAGE_STATE_VERSION 7u
#endif

/* A chunk that was claimed this long ago may be taken over. */
#define STAGE_CLAIM_OLD_S 10

#define STAGE_CHUNK_BYTES (1u << 20)
#define STAGE_JOB_MAX 128
/* For job_ns, after which the copier brings the rest. */
#define STAGE_JOB_OVER 1u
#define STAGE_JOB_LOST                                                                         \
    2u /* a node has left, so that all lack its share, or this one lost them */

struct stage_state {
    char magic[8]; /* written last */
    uint32_t version;
    uint32_t chunk_bytes;
    char boot_id[40];
    struct source_identity identity; /* of the archive */
    uint64_t bytes; /* of the copy: of the archive, or of its unpacked content */
    uint64_t chunks;
    char archive[4096]; /* its path, for messages */
    char place[4096];   /* where the copy's folder lies */

    _Atomic uint32_t generation; /* number of the present copier */
    _Atomic uint32_t whole;      /* every chunk is there, and the archive was not changed */
    _Atomic int32_t failure;     /* why nobody works on it any more: an errno, or 0 */
    _Atomic int32_t copier_pid;  /* or 0 */

    /* The copy stays when nobody uses it: `onepot stage` made it. */
    _Atomic uint32_t pinned;
    int32_t owner_pid; /* it stays until this process ends; 0: until it is removed */
    uint64_t owner_start_ticks, owner_namespace;
    char job[STAGE_JOB_MAX]; /* "SLURM_JOB_ID=12": it stays for this job; "": for none */

    _Atomic uint64_t stream_ns;       /* for which earlier copiers worked, */
    _Atomic uint64_t stream_since_ns; /* and since when the present one works; 0: none does */
    _Atomic uint64_t stream_bytes;    /* that copiers fetched in that time */
    _Atomic uint64_t demand_bytes;    /* fetched because a reader needed them */
    _Atomic uint64_t demands;         /* chunks fetched for readers */
    _Atomic uint64_t past_bytes;      /* read from the archive and not kept */
    _Atomic uint64_t job_bytes;       /* that other nodes of a job had read */
    _Atomic uint64_t job_ns;          /* when a job's nodes last made progress; 0: none began */

    _Atomic uint64_t progress_ns; /* when copying or unpacking last made progress */
    char reason[256];             /* why a stream failed; written before `failure` */
    _Atomic int32_t away;         /* errno that holds a stream up for now; or 0 */

    _Atomic uint32_t chunk[]; /* the enum below, or a claim */
};

enum {
    CHUNK_ABSENT = 0,
    CHUNK_HERE = 1,
};

size_t stage_state_size(uint64_t bytes);

/* Fill the mapping of a new state file, which is all zeros. */
void stage_state_init(struct stage_state *state, const struct source *source, uint64_t bytes,
                      const char *archive, const char *place);

/* Map a state file. -EUCLEAN: it is not one, or not of this boot and version. */
int stage_state_map(int fd, struct stage_state **ret_state);
void stage_state_unmap(struct stage_state *state);

/* Bytes of a chunk; only the last one may be shorter. */
size_t stage_chunk_len(const struct stage_state *state, uint64_t chunk);

static inline bool stage_chunk_here(const struct stage_state *state, uint64_t chunk)
{
    return atomic_load_explicit(&state->chunk[chunk], memory_order_acquire) == CHUNK_HERE;
}

/* Claim a chunk for the copier of this generation, perhaps from a claimant that is gone. */
bool stage_claim_stream(struct stage_state *state, uint64_t chunk, uint32_t generation);

/*
 * Claim a chunk for a reader. True: it is the reader's to make. False: it is there, or being
 * made. A reader may also take a chunk from a copier that has made no progress for long,
 * because the copier's reads may never be answered.
 */
bool stage_claim_demand(struct stage_state *state, uint64_t chunk);

/* End a claim with CHUNK_HERE or CHUNK_ABSENT, and wake the threads that wait. */
void stage_settle(struct stage_state *state, uint64_t chunk, uint32_t outcome);

/*
 * Wait at most `timeout_ms` while somebody else makes the chunk. Does not report the outcome.
 */
void stage_wait(struct stage_state *state, uint64_t chunk, unsigned timeout_ms);

/* How many bytes are there. Looks at every chunk. */
uint64_t stage_bytes_here(const struct stage_state *state);

/* How many bytes are there from the start, without a gap. */
uint64_t stage_bytes_in_order(const struct stage_state *state);

static inline bool stage_is_complete(const struct stage_state *state)
{
    return stage_bytes_in_order(state) == state->bytes;
}

#endif
