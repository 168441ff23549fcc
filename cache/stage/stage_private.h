/*
 * Shared by the files of staging:
 *
 *   stage.c       where a copy lies, its files, and which parts of it are there; finds,
 *                 makes or adopts one, also of an archive that is compressed as a whole; the
 *                 end; reports
 *   stage_copy.c  how its chunks come, and the source that reads through it
 *   stage_job.c   makes it together with other nodes
 */
#ifndef ONEPOT_STAGE_PRIVATE_H
#define ONEPOT_STAGE_PRIVATE_H

#include <limits.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "pause.h"
#include "runtime.h"
#include "source.h"
#include "stage.h"

#define STAGE_THREADS 28u

/* ---- the state ---- */

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

    _Atomic uint64_t copying_ns;       /* for which earlier copiers worked, */
    _Atomic uint64_t copying_since_ns; /* and since when the present one works; 0: none does */
    _Atomic uint64_t copied_bytes;     /* that copiers fetched in that time */
    _Atomic uint64_t demand_bytes;     /* fetched because a reader needed them */
    _Atomic uint64_t demands;          /* chunks fetched for readers */
    _Atomic uint64_t past_bytes;       /* read from the archive and not kept */
    _Atomic uint64_t job_bytes;        /* that other nodes of a job had read */
    _Atomic uint64_t job_ns; /* when a job's nodes last made progress; 0: none began */

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

/* Bytes of a chunk; only the last one may be shorter. */
size_t stage_chunk_len(const struct stage_state *state, uint64_t chunk);

static inline bool stage_chunk_here(const struct stage_state *state, uint64_t chunk)
{
    return atomic_load_explicit(&state->chunk[chunk], memory_order_acquire) == CHUNK_HERE;
}

/* Claim a chunk for the copier of this generation, perhaps from a claimant that is gone. */
bool stage_claim_to_copy(struct stage_state *state, uint64_t chunk, uint32_t generation);

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

/* ---- the folder ---- */

/*
 * Where copies lie: in a folder `onepot-stage-UID` (0700, the user's own) in /dev/shm, $TMPDIR
 * or /tmp, or where the user says. $ONEPOT_RUNTIME_DIR, if set, replaces these places. Each is
 * judged (place.h). A copy is two files there (0600), beside a lock:
 *
 *   NAME.copy   the bytes. The process that makes the copy holds a lock (flock) on it.
 *   NAME.state  which bytes are there (stage_state). Each process that uses the copy holds a
 *               shared lock on it: a copy without one was left by a killed process.
 *   lock        of the folder: copies come, are judged, and go only under it. It is held only
 *               for moments.
 *
 * A folder that is a link, or not ours alone, is not used. Neither is a file that is not a
 * regular file of ours.
 */

#define STAGE_NAME_MAX 160

/*
 * Open and lock the folder in `place`; with `create`, make it if need be. -ENOENT: there is
 * none; -EPERM: it is not ours alone; -ETIMEDOUT: its lock was taken for ten seconds.
 *
 * It ends by registry_remove: no process reads by a path in an empty folder, so whoever takes
 * the name then only has copies made elsewhere.
 */
int stage_folder_lock(const char *place, bool create, struct registry *ret_folder);

/* ---- a stage ---- */

struct stage_given; /* of stage.c */

struct stage {
    const struct source *source;
    struct stage_options options; /* completed; its texts are valid until the stage is open */
    struct stage_state *state;
    char place[PATH_MAX];
    char folder[PATH_MAX];
    char name[STAGE_NAME_MAX];
    int state_fd; /* its lock marks the copy as in use */
    int copy_fd;
    const uint8_t *map; /* of the copy */
    bool in_memory;     /* reading the copy never waits */
    bool unpacked;      /* the copy is the unpacked content of the source */
    bool is_private;    /* the copy has no name */
    uint64_t bytes;     /* of the copy */
    /* The copy is unpacked, before anybody reads it: */
    const struct fileset_unpacker *unpacker;
    uint64_t room; /* for it */
    bool expands;  /* or while it is read: */
    struct fileset_stream stream;
    /* Attempts to go on with a stream whose storage fails: */
    uint64_t retry_chunk;      /* the chunk that did not come the last time */
    unsigned retries;          /* attempts that stopped at that chunk */
    bool told_away;            /* the user knows that it is tried again, */
    uint64_t away_since_ns;    /* and since when */
    struct pause pause;        /* of the copier, and of readers that wait for a stream */
    _Atomic uint64_t demanded; /* the chunk after the last one that a reader fetched */
    _Atomic uint64_t wanted;   /* the chunk that the copier goes on with; 0: the next one */
    pthread_t copier;
    pid_t copier_process;      /* that started it; 0: none */
    sem_t begun;               /* the child that unpacks was forked, or will not be for now */
    struct stage_given *given; /* a copy to adopt; NULL: none */
    bool was_moved;            /* and it has become the copy */
};

void stage_say(const struct stage *stage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- under the lock of the folder ---- */

/*
 * How many more bytes may be put there: without a spare share and the job's reserve, and
 * without the bytes that the copies in this folder will still take. `free_bytes` of the
 * filesystem; `memory_bytes` for the job to use, UINT64_MAX: the place is on a disk.
 */
uint64_t stage_room_left(uint64_t free_bytes, uint64_t memory_bytes,
                         const struct registry *folder);

/* ---- the copier and readers ---- */

/* Read a chunk, from the adopted copy or the source. */
int stage_read_chunk(struct stage *stage, uint64_t chunk, void *buf);

/* Write a chunk that was claimed at `begun_ms` (now_ms) to the copy, and settle it. */
int stage_keep_chunk(struct stage *stage, uint64_t chunk, const void *buf, uint64_t begun_ms);

/* Is there room in the copy, as far as is known? */
bool stage_may_keep(const struct stage *stage);

/* If the copy has all chunks, it is whole; or it has failed, if the archive was changed. */
void stage_finish(struct stage *stage);

/* Nobody works on the copy any more. Reported once. */
void stage_fail(struct stage *stage, int err);

/* Copy missing chunks until the copy is whole, has failed, or pauses are ended. */
void stage_copy(struct stage *stage);

/*
 * Unpacking ended with -errno `err`. `chunk` is the next missing one, and the packed file was
 * read up to `packed_at`. Waits until its storage answers there. True: try again. False: trying
 * is in vain, or the end was asked for.
 */
bool stage_retry(struct stage *stage, int err, uint64_t chunk, uint64_t packed_at);

/* Wait until the stream has reached the chunk. False: it never will. */
bool stage_await_stream(struct stage *stage, uint64_t chunk);

/* The content of a stream as a source, as far as it was unpacked. */
int stage_stream_source(struct stage *stage, const char *name, struct source **ret_source);

#endif
