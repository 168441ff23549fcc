/*
 * The threads that extract or verify an archive: each takes work from one list, while the
 * caller's thread shows progress.
 *
 *     struct crew crew = {.pot = pot, .reader = reader, .list = list, .threads = 4, ...};
 *     r = crew_init(&crew);
 *     if (r == 0)
 *         r = crew_run(&crew);
 *     crew_free(&crew);
 */
#ifndef ONEPOT_CREW_H
#define ONEPOT_CREW_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checksum.h"
#include "content.h"
#include "pot.h"
#include "reader.h"
#include "worklist.h"

/* One thread, and what it works with. */
struct worker {
    struct crew *crew;
    unsigned number;
    pthread_t thread;
    struct content *content;
    struct checksum *hash; /* of the kind that the index has; NULL where no file has a sum */
    uint8_t *buffer;
};

struct crew {
    struct pot *pot;
    struct reader *reader;
    struct worklist *list;
    unsigned threads;
    size_t buffer_bytes; /* for each thread */
    void *job;           /* for the functions below */
    void (*work)(struct worker *worker, const struct work_item *item);
    bool (*is_stopped)(const void *job);
    pthread_mutex_t *lock; /* held while progress is shown */
    const char *doing;     /* "extracting" */
    void (*show)(void *ctx, const char *doing, const struct progress *progress); /* or NULL */
    void *ctx;
    const struct progress *progress;

    /* Set by crew_init. */
    struct worker *workers;
    unsigned running;
    pthread_cond_t done;
};

/* 0 or -errno; crew_free in any case. */
int crew_init(struct crew *crew);
void crew_free(struct crew *crew);

/* Work through the list. An error only if no thread could be started, or without memory. */
int crew_run(struct crew *crew);

/* Memory for blocks: each is used once, so a few for each thread suffice. */
uint64_t crew_cache_bytes(const struct pot *pot, unsigned threads);

#endif
