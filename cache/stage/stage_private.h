/*
 * What the files of staging share:
 *
 *   stage.c         finding or making a copy, in which place; the end; reports
 *   stage_unpack.c  the same, of what is unpacked
 *   stage_stream.c  the same, of what is unpacked while it is read
 *   stage_expand.c  unpacking it, and waiting for that
 *   stage_again.c   going on with it when its storage was away
 *   stage_files.c   the files of a copy
 *   stage_copier.c  the threads that make it
 *   stage_read.c    reading through it
 *   stage_folder.c  where it lies
 *   stage_state.c   what is there of it
 */
#ifndef ONEPOT_STAGE_PRIVATE_H
#define ONEPOT_STAGE_PRIVATE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "stage.h"
#include "stage_folder.h"
#include "stage_state.h"

#define STAGE_STREAMS 28u
#define STAGE_STREAMS_MAX 64u
#define STAGE_SPARE_SHARE 16u /* of the room stays free: of memory, of a filesystem */

struct copier; /* of stage_copier.c */

struct stage {
    const struct source *source;
    struct stage_state *state;
    char place[PATH_MAX];
    char folder[PATH_MAX];
    char name[STAGE_NAME_MAX];
    unsigned streams;
    int state_fd; /* holds the lock that says: in use */
    int copy_fd;
    const uint8_t *map; /* of the copy */
    bool in_memory;     /* the copy, so that reading it never waits */
    bool unpacked;      /* it is what is inside of the source */
    uint64_t bytes;     /* of the copy */
    bool expands;       /* it is unpacked while it is read: */
    struct pot_stream stream;
    uint32_t idle_s;       /* its storage may be silent for so long; 0: five minutes */
    _Atomic bool stopping; /* who waits for a stream gives up */
    void (*note)(void *ctx, const char *line);
    void *note_ctx;
    struct copier *copier; /* NULL: not started */
};

/* With no files yet. NULL: out of memory. */
struct stage *stage_new(const struct source *source, const struct stage_options *options);

/* Wherever the copy is already; else in the first place with room for it. */
int stage_find_or_make(struct stage *stage, const char *archive, const char *given,
                       struct fault *fault);

void stage_say(const struct stage *stage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- stage_files.c: under the lock of the folder ---- */

/* Name the copy of stage->source, or of what is inside of it. */
void stage_name_for(struct stage *stage, const char *archive, bool unpacked);

/* Nobody uses it: then this process holds it until the descriptor is closed. */
bool stage_is_unused(int state_fd);
bool stage_stays(const struct stage_state *state);
void stage_sweep_folder(const struct stage_folder *folder);

/* Bytes that copies in this folder will still take. */
uint64_t stage_pending(const struct stage_folder *folder);

/* Use what is there. -ENOENT: nothing; -EUCLEAN: it is no copy of this archive, and in use. */
int stage_use(struct stage *stage, const struct stage_folder *folder);

/* Make both files. */
int stage_create(struct stage *stage, const struct stage_folder *folder, const char *archive);

/* Map the copy that was opened. -EUCLEAN: it has another length. */
int stage_map_copy(struct stage *stage);

/* Make the state of a copy (stage->copy_fd) that is there and whole. */
int stage_adopt(struct stage *stage, const struct stage_folder *folder, const char *archive);

/* Close and unmap. */
void stage_release(struct stage *stage);

/* ---- the copier and readers ---- */

/*
 * Fetch a chunk that this thread has claimed, into `buf` (STAGE_CHUNK_BYTES) and into the
 * copy, and settle it. 0; an error of the source (the chunk is absent again); or, with the
 * bytes in `buf`, the positive errno for which the copy could not take them.
 */
int stage_fetch(struct stage *stage, uint64_t chunk, void *buf);

/* Nobody goes on with the copy; told once. */
void stage_fail(struct stage *stage, int err);

/*
 * Unpack the stream into the copy, until it is whole, has failed, or *stop is true. `begun` is
 * posted when the child that does it has been forked.
 */
void stage_expand(struct stage *stage, const _Atomic bool *stop, sem_t *begun);

/* What was tried to go on with a stream whose storage fails. */
struct stage_again {
    uint64_t chunk; /* that did not come the last time */
    unsigned vain;  /* tries since another one did not */
    bool told;      /* that it is tried again */
    uint64_t since_ns;
};

/*
 * Unpacking ended with -errno `err`, `chunk` being the next that is missing; the packed file
 * was read up to `packed_at`. Waits until its storage answers there: true: try again. False:
 * that is in vain, or the end was asked for.
 */
bool stage_again(struct stage *stage, struct stage_again *again, int err, uint64_t chunk,
                 uint64_t packed_at, const struct pot_patience *patience);

/* It has come further. */
void stage_is_back(struct stage *stage, struct stage_again *again);

/* Was the archive changed since it was opened? */
bool stage_was_changed(const struct stage *stage);

/* Wait until the stream has come so far: true; false: it never will. */
bool stage_await_stream(struct stage *stage, uint64_t chunk);

/* Start and end of the threads. */
int stage_copier_start(struct stage *stage);
int stage_copier_stop(struct stage *stage);

#endif
