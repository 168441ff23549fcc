/*
 * The threads that extract or verify an archive: each takes work from one list, while the
 * caller's thread shows progress. And what such runs have in common: problems, and their end.
 *
 *     struct workers workers = {.options = &work, .fileset = fileset, ...};
 *     r = workers_init(&workers, fault);
 *     if (r == 0)
 *         r = worklist_add(&workers, item);
 *     if (r == 0)
 *         r = workers_run(&workers);
 *     workers_free(&workers);
 */
#ifndef ONEPOT_WORKERS_H
#define ONEPOT_WORKERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checksum.h"
#include "content.h"
#include "fault.h"
#include "index.h"
#include "fileset.h"
#include "reader.h"
#include "vector.h"

struct work_item {
    uint64_t key;      /* start of its bytes in the archive; equal keys: one block */
    uint32_t position; /* of the entry in the index */
    uint32_t piece;    /* 0: the whole member; other values are the caller's */
};

/* The part of their options that an extraction and a verification share. */
struct work_options {
    unsigned threads; /* 0: as many as the CPUs, or as hide the latency of far storage */
    /* Called once for each problem, never twice at a time. May be NULL. */
    void (*report)(void *ctx, const struct fault *what);
    /* Called now and then, by the caller's thread, never while `report` runs. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;
    /* Set it, for example in a signal handler, to end the run soon: -EINTR. May be NULL. */
    const _Atomic int *stop;
};

/* One thread and its tools. */
struct worker {
    struct workers *workers;
    unsigned number;
    pthread_t thread;
    struct content *content;
    struct checksum *hash; /* of the kind that the index has; NULL where no file has a sum */
    uint8_t *buffer;
    size_t next, end; /* its range of the list */
};

struct workers {
    const struct work_options *options;
    struct fileset *fileset;
    size_t buffer_bytes; /* for each thread */
    const char *doing;   /* "extracting" */
    void (*work)(struct worker *worker, const struct work_item *item);
    void *job; /* the caller's, for `work` */

    /* Set by workers_init. */
    unsigned threads;
    struct reader *reader;
    struct worker *at; /* one for each thread */
    VECTOR(struct work_item) items;
    bool is_unsorted;
    pthread_mutex_t list_lock; /* for the threads' ranges */
    pthread_mutex_t lock; /* held while a problem is reported, and while progress is shown */
    struct progress progress;
    _Atomic uint64_t problems; /* reported so far */
    _Atomic int error;         /* that ends the run; 0: none. `fault` describes it */
    struct fault fault;
    unsigned running;
    pthread_cond_t done;
};

/* 0 or -errno; workers_free in any case. */
int workers_init(struct workers *workers, struct fault *fault);
void workers_free(struct workers *workers);

/* Work through the list. An error only if no thread could be started. */
int workers_run(struct workers *workers);

/* Did an error end the run, or does its caller want its end? */
static inline bool workers_stopped(const struct workers *workers)
{
    const _Atomic int *stop = workers->options->stop;
    return atomic_load_explicit(&workers->error, memory_order_relaxed) ||
           (stop && atomic_load_explicit(stop, memory_order_relaxed));
}

/*
 * Report and count a problem, or keep the first one that ends the run. Its offset is in the
 * source; of several archives the fault gets the one that has it. Any thread.
 */
void workers_report(struct workers *workers, const struct fault *fault, bool ends_run);

/* ---- the list of work ---- */

/* Add an item, before workers_run. Errors: -ENOMEM. */
int worklist_add(struct workers *workers, struct work_item item);

/*
 * The key of the last of items[at + 1..n) before a gap of more than `gap` bytes between two
 * keys; 0 if the first already lies behind such a gap. For content_expect.
 */
uint64_t worklist_near_end(const struct work_item *items, size_t n, size_t at, uint64_t gap);

/*
 * Start of a regular file's bytes from `offset` in it on, holes skipped. `otherwise` if there
 * are none, or if the index is damaged there; reading the file reports that damage.
 */
uint64_t worklist_key(const struct index *index, uint32_t position, uint64_t offset,
                      uint64_t otherwise);

#endif
