/*
 * The threads that extract or verify an archive: each takes work from one list, while the
 * caller's thread shows progress.
 *
 *     struct workers workers = {.pot = pot, .reader = reader, .list = list, .threads = 4, ...};
 *     r = workers_init(&workers);
 *     if (r == 0)
 *         r = workers_run(&workers);
 *     workers_free(&workers);
 */
#ifndef ONEPOT_WORKERS_H
#define ONEPOT_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checksum.h"
#include "content.h"
#include "pot.h"
#include "reader.h"
#include "worklist.h"

/* One thread and its tools. */
struct worker {
    struct workers *workers;
    unsigned number;
    pthread_t thread;
    struct content *content;
    struct checksum *hash; /* of the kind that the index has; NULL where no file has a sum */
    uint8_t *buffer;
};

struct workers {
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

    /* Set by workers_init. */
    struct worker *at; /* one for each thread */
    unsigned running;
    pthread_cond_t done;
};

/* 0 or -errno; workers_free in any case. */
int workers_init(struct workers *workers);
void workers_free(struct workers *workers);

/* Work through the list. An error only if no thread could be started, or without memory. */
int workers_run(struct workers *workers);

/* Memory for blocks: each is used once, so a few for each thread suffice. */
uint64_t workers_cache_bytes(const struct pot *pot, unsigned threads);

#endif
