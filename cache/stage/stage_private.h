/*
 * Shared by the files of staging:
 *
 *   stage.c         finds or makes a copy, and chooses the place; the end; reports
 *   stage_store.c   the same for archives that are compressed in one piece
 *   stage_files.c   the files of a copy
 *   stage_adopt.c   a copy that another program made
 *   stage_copier.c  the threads that make it
 *   stage_job.c     makes it together with other nodes
 *   stage_serve.c   the same, for an engine in another process
 *   stage_stream.c  unpacks a stream into it, and waits for that
 *   stage_source.c  reads through it
 *   stage_folder.c  where it lies
 *   stage_state.c   which parts of it are there
 */
#ifndef ONEPOT_STAGE_PRIVATE_H
#define ONEPOT_STAGE_PRIVATE_H

#include <semaphore.h>
#include <stdatomic.h>

#include "pause.h"
#include "stage.h"
#include "stage_folder.h"
#include "stage_state.h"

#define STAGE_STREAMS 28u

struct stage_given; /* of stage_adopt.c */

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
    const struct pot_unpacker *unpacker;
    uint64_t room; /* for it */
    bool expands;  /* or while it is read: */
    struct pot_stream stream;
    struct pause pause;        /* of the copier, and of readers that wait for a stream */
    _Atomic uint64_t demanded; /* the chunk after the last one that a reader fetched */
    _Atomic uint64_t wanted;   /* the chunk that the copier goes on with; 0: the next one */
    pthread_t copier;
    pid_t copier_process;      /* that started it; 0: none */
    sem_t begun;               /* the child that unpacks was forked, or will not be for now */
    struct stage_given *given; /* a copy to adopt; NULL: none */
    bool was_moved;            /* and it has become the copy */
};

/* A stage without files. NULL: out of memory. */
struct stage *stage_new(const struct source *source, const struct stage_options *options,
                        bool unpacked);

/*
 * Use the copy wherever it is already; else make it in the first place with room for it. With
 * an unpacker, unpack it there. -EINPROGRESS: another process unpacks it to stage->copy_fd, and
 * has that locked. After this and other errors, release the stage.
 */
int stage_find_or_make(struct stage *stage, struct fault *fault);

void stage_say(const struct stage *stage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- stage_files.c: under the lock of the folder ---- */

/* Name the copy of stage->source, or of its unpacked content. */
void stage_name_for(struct stage *stage);

bool stage_stays(const struct stage_state *state);
void stage_sweep_folder(const struct registry *folder);

/*
 * How many more bytes may be put there: without a spare share and the job's reserve, and
 * without the bytes that the copies in this folder will still take.
 */
uint64_t stage_room_left(const struct stage_room *room, const struct registry *folder);

/* Use the copy that is there. -ENOENT: none; -EUCLEAN: one in use, but not of this archive. */
int stage_use(struct stage *stage, const struct registry *folder);

/* Make both files. With an unpacker, only the copy: empty, and locked. */
int stage_create(struct stage *stage, const struct registry *folder);

/* Give the copy its length. A disk's space is reserved; on a tmpfs, writes fail once it is
 * full. */
int stage_reserve(const struct stage *stage);

/* Make and map the state of a new copy: in a file, or in memory if `fd` is -1. */
int stage_new_state(struct stage *stage, int fd, uint64_t bytes);

/* Map the opened copy. -EUCLEAN: its length is wrong. */
int stage_map_copy(struct stage *stage);

/* Make the state of a copy (stage->copy_fd) that is whole already. */
int stage_adopt(struct stage *stage, const struct registry *folder);

/* Close and unmap. */
void stage_release(struct stage *stage);

/* ---- stage_adopt.c ---- */

/* Open and judge the file at `path`. Errors come with a fault. */
int stage_given_new(const char *path, const struct source *source, struct fault *fault,
                    struct stage_given **ret_given);
void stage_given_free(struct stage_given *given); /* NULL is fine */

/* Make it the copy, or use one that is there by now. An error: it has to be copied. */
int stage_given_take(struct stage *stage, const struct stage_places *places);

/* Read it. An error: there is none, or it is not to be trusted any more. */
int stage_given_read(struct stage *stage, void *buf, size_t len, uint64_t offset);

/* ---- stage_store.c: copies that stage->unpacker makes ---- */

/*
 * The result of stage_use. 0: the whole copy; -ENOENT: none; -EINPROGRESS with
 * copy_fd: a process makes it; -EBUSY: it is not whole, but others read it.
 */
int stage_look_unpacked(struct stage *stage, const struct registry *folder, int used);

/*
 * Unpack into the new, locked copy, and publish it; or remove it. -ENOSPC: another place may
 * have the room. Other errors of the unpacker come with a fault, and leave copy_fd open.
 */
int stage_unpack(struct stage *stage, struct fault *fault);

/* ---- the copier and readers ---- */

/*
 * Fetch a chunk that this thread has claimed into `buf` (STAGE_CHUNK_BYTES) and into the copy,
 * and settle it. Returns 0; or an error of the source (the chunk is absent again); or, with the
 * bytes in `buf`, the positive errno that kept them out of the copy.
 */
int stage_fetch(struct stage *stage, uint64_t chunk, void *buf);

/* The two halves. Read a chunk, from the adopted copy or the source. */
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
 * The same of a stream, by unpacking it. `begun` is posted once the child that unpacks has been
 * forked.
 */
void stage_expand(struct stage *stage, sem_t *begun);

/* Attempts to go on with a stream whose storage fails. */
struct stage_retry {
    uint64_t chunk; /* the chunk that did not come the last time */
    unsigned vain;  /* attempts that stopped at that chunk */
    bool told;      /* the user knows that it is tried again */
    uint64_t since_ns;
};

/*
 * Unpacking ended with -errno `err`. `chunk` is the next missing one, and the packed file was
 * read up to `packed_at`. Waits until its storage answers there. True: try again. False: trying
 * is in vain, or the end was asked for.
 */
bool stage_retry(struct stage *stage, struct stage_retry *retry, int err, uint64_t chunk,
                 uint64_t packed_at);

/* Wait until the stream has reached the chunk. False: it never will. */
bool stage_await_stream(struct stage *stage, uint64_t chunk);

/* The content of a stream as a source, as far as it was unpacked. */
int stage_stream_source(struct stage *stage, const char *name, struct source **ret_source);

#endif
