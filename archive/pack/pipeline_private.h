/*
 * Shared by the files of the pipeline.
 *
 *   pipeline.c        the list, threads, reading
 *   pipeline_write.c  writes what was read to the archives
 */
#ifndef ONEPOT_PIPELINE_PRIVATE_H
#define ONEPOT_PIPELINE_PRIVATE_H

#include <pthread.h>

#include "gather.h"
#include "links.h"
#include "pipeline.h"

enum kind {
    ITEM_MEMBER,
    ITEM_PIECE,    /* of a large file */
    CURSOR_FOLDER, /* names that were not taken yet */
    CURSOR_STREAM, /* the rest of a large file */
};

struct item {
    enum kind kind;
    bool ready; /* can be written */
    struct item *before, *after;
    struct item *cursor_before, *cursor_after; /* neighbours among the cursors alone */
    size_t flight_bytes;

    struct folder
        *folder; /* MEMBER: the folder it is in; CURSOR_FOLDER: the folder of the names */
    struct folder *below; /* MEMBER: a directory's content, or NULL */
    uint32_t shard;       /* the shard it goes to */
    const struct input *input;
    const struct folder_name *name;
    int folder_fd; /* pinned; or -errno */
    int source_fd;
    struct gathered gathered;

    struct stream *stream; /* PIECE, CURSOR_STREAM */
    uint64_t offset;
    size_t len;
    bool last;
    uint8_t *bytes;
    struct fault *problem;
};

struct pipeline {
    const struct pack_options *options;
    const struct pipeline_sources *sources;
    const struct selection *selection;
    struct shard_set *shards;
    struct folder_set *set;

    pthread_mutex_t lock; /* for all below, and for folders and cursors */
    pthread_cond_t wake;
    unsigned waiting;
    int error;
    struct item *first, *last;
    struct item *first_cursor;
    unsigned flight_items;
    size_t flight_bytes;
    bool writing;
    pthread_t threads[PACK_THREADS_MAX];
    unsigned started;              /* threads, the caller's included */
    unsigned most_threads;         /* upper limit, if reads turn out to be slow */
    unsigned reads, samples, slow; /* for deciding on more threads */

    /* Used only by the thread that writes. */
    struct links *links; /* one for each shard */
    struct pack_result *result;
    struct fault *fault;
    struct progress progress;
    uint64_t read_bytes; /* of files' data */
    uint64_t told_offset;
    unsigned silent; /* items since the last progress report */
};

/* Where to gather the item's member from. */
struct gather_from pipeline_place(const struct pipeline *p, const struct item *item,
                                  int folder_fd);

/*
 * Queues what a member leads to: a directory's names, the rest of a large file. The lock is
 * held.
 */
int pipeline_follow_up(struct pipeline *p, struct item *item);

/* Writes an item that is ready. Called without the lock, by one thread at a time. */
int pipeline_write(struct pipeline *p, struct item *item);

#endif
