/*
 * What to read ahead of the readers, decided from what they read. No threads and no reads of
 * its own: ahead.c has those, and tests drive it by hand.
 *
 *     plan_observe(plan, &observation)             a read
 *     n = plan_take(plan, wants, max)              what is to be fetched now, by one thread
 *     plan_finished(plan, wants, n, result)        it was, or could not be
 *     if (plan_job(plan, &job)) { plan_work(&job); plan_job_done(plan, &job); }
 *
 * A known order goes first: given, or recognised. Beside it, for files that are not of it, and
 * without one: large files from front to back, then directories in the order of names, then the
 * archive in its own order. What was fetched and not used is counted, and a kind that is wrong
 * more often than right pauses, each time for longer.
 *
 * A job is work that takes long (up to seconds) and needs nothing of the plan: plan_work may
 * run in another thread meanwhile. There is at most one at a time.
 */
#ifndef ONEPOT_PLAN_H
#define ONEPOT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "observer.h"
#include "read_order.h"
#include "recognise.h"

struct plan;

/* What is followed. Values are in the counters of a mount. */
enum plan_kind {
    PLAN_NONE = 0,
    PLAN_FILE = 1,       /* pieces of a large file */
    PLAN_DIRECTORY = 2,  /* names in a directory */
    PLAN_ARCHIVE = 3,    /* as they lie in the archive */
    PLAN_RECOGNISED = 4, /* a shuffle */
    PLAN_GIVEN = 5,
};

struct plan_options {
    const struct index *index;
    uint32_t root;
    uint64_t seed;
    uint64_t window_bytes;    /* that may wait for their reader; 0: nothing is fetched */
    uint64_t most_bytes;      /* of memory for what is known of orders, each */
    struct read_order *given; /* shared; NULL: none */
    const _Atomic bool *stop; /* long work ends at once when this is true; NULL: never */
    /* One line about an order that was recognised or lost. May be NULL. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
};

int plan_new(const struct plan_options *options, struct plan **ret_plan);
void plan_free(struct plan *plan); /* no job may be at work; NULL is fine */

/* Another window than at the start, which was not 0 and is not now. */
void plan_set_window(struct plan *plan, uint64_t window_bytes);

void plan_observe(struct plan *plan, const struct observation *observation);

struct plan_want {
    uint32_t position;
    uint64_t offset, len;
    uint64_t due; /* UINT64_MAX: not known */
    enum plan_kind kind;
};

/*
 * How many; 0: nothing for now. Several only if they lie close together, in the order of the
 * archive.
 */
size_t plan_take(struct plan *plan, struct plan_want *wants, size_t max);
/* -ENOBUFS: there was no room for them. */
void plan_finished(struct plan *plan, const struct plan_want *wants, size_t count, int result);

/* The order changed since the last call: what was due has no place any more. */
bool plan_order_changed(struct plan *plan);

/* What was due before this has no use any more; 0 without an order. */
uint64_t plan_passed(const struct plan *plan);

struct plan_job;
bool plan_job(struct plan *plan, struct plan_job **ret_job);
void plan_work(struct plan_job *job);
/* Once it was worked on; or without, if nobody ever will. */
void plan_job_done(struct plan *plan, struct plan_job *job);

struct plan_stats {
    enum plan_kind kind; /* what was fetched last */
    uint64_t requests, bytes, used, late, unused;
    uint64_t recognised, lost; /* how often */
    /* Of the order that is followed; 0 where there is none. */
    uint64_t order_files, order_epoch, order_reads; /* reads until it was recognised */
    uint32_t order_directory, world, local;
    uint64_t in_order, found;
};
void plan_stats(const struct plan *plan, struct plan_stats *ret_stats);

#endif
