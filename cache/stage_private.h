/*
 * What the files of staging share:
 *
 *   stage.c         finding, making, removing a copy
 *   stage_copier.c  the threads that make it
 *   stage_read.c    reading through it
 *   stage_folder.c  where it lies
 *   stage_state.c   what is there of it
 */
#ifndef ONEPOT_STAGE_PRIVATE_H
#define ONEPOT_STAGE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "stage.h"
#include "stage_folder.h"
#include "stage_state.h"

#define STAGE_STREAMS 28u
#define STAGE_STREAMS_MAX 64u

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
    void (*note)(void *ctx, const char *line);
    void *note_ctx;
    struct copier *copier; /* NULL: not started */
};

void stage_say(const struct stage *stage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Fetch a chunk that this thread has claimed, into `buf` (STAGE_CHUNK_BYTES) and into the
 * copy, and settle it. 0; an error of the source (the chunk is absent again); or, with the
 * bytes in `buf`, the positive errno for which the copy could not take them.
 */
int stage_fetch(struct stage *stage, uint64_t chunk, void *buf);

/* Nobody goes on with the copy; told once. */
void stage_fail(struct stage *stage, int err);

/* Start and end of the threads. */
int stage_copier_start(struct stage *stage);
int stage_copier_stop(struct stage *stage);

#endif
