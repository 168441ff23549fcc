/*
 * Decides from what readers read what to read ahead of them. It has no threads and does no
 * reads: ahead.c has those, and tests drive it by hand.
 *
 *     plan_observe(plan, &observation)             a read
 *     n = plan_take(plan, wants, max)              what one thread is to fetch now
 *     plan_finished(plan, wants, n, result)        it was fetched, or could not be
 *     if (plan_job(plan, &job)) { plan_work(&job); plan_job_done(plan, &job); }
 *
 * A known order, given or recognised, goes first. Files outside of it, or all files without
 * one, are read ahead in this order: large files from front to back, then directories in the
 * order of names, then the archive in its own order. Fetches that were not used are counted. A
 * kind that is wrong more often than right pauses, each time for longer.
 *
 * A job is long work (up to seconds) that needs nothing of the plan, so plan_work may run in
 * another thread meanwhile. There is at most one job at a time.
 */
#ifndef ONEPOT_PLAN_H
#define ONEPOT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "observer.h"
#include "known_reads.h"
#include "recognise.h"

struct plan;

/* Kinds of reading ahead. The values appear in the counters of a mount. */
enum plan_kind {
    PLAN_NONE = 0,
    PLAN_FILE = 1,       /* pieces of a large file */
    PLAN_DIRECTORY = 2,  /* names in a directory */
    PLAN_ARCHIVE = 3,    /* files as they lie in the archive */
    PLAN_RECOGNISED = 4, /* a shuffle */
    PLAN_GIVEN = 5,
};

struct plan_options {
    const struct index *index;
    uint32_t root;
    uint64_t seed;
    uint64_t window_bytes;     /* fetched data that may wait for readers; 0: fetch nothing */
    uint64_t most_bytes;       /* of memory for each known order */
    struct known_reads *given; /* shared; NULL: none */
    const _Atomic bool *stop;  /* true ends long work at once; NULL: never */
    /* Receives a line when an order was recognised or lost. May be NULL. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
};

int plan_new(const struct plan_options *options, struct plan **ret_plan);
void plan_free(struct plan *plan); /* no job may be at work; NULL is fine */

/* Change the window. Neither the old nor the new one may be 0. */
void plan_set_window(struct plan *plan, uint64_t window_bytes);

void plan_observe(struct plan *plan, const struct observation *observation);

struct plan_want {
    uint32_t position;
    uint64_t offset, len;
    uint64_t due; /* UINT64_MAX: not known */
    enum plan_kind kind;
};

/*
 * Returns how many; 0: nothing for now. Several wants lie close together and come in the order
 * of the archive.
 */
size_t plan_take(struct plan *plan, struct plan_want *wants, size_t max);
/* -ENOBUFS: there was no room for the data. */
void plan_finished(struct plan *plan, const struct plan_want *wants, size_t count, int result);

/* The order changed since the last call, so earlier values of `due` mean nothing any more. */
bool plan_order_changed(struct plan *plan);

/* Data due before this is no longer of use; 0 without an order. */
uint64_t plan_passed(const struct plan *plan);

struct plan_job;
bool plan_job(struct plan *plan, struct plan_job **ret_job);
void plan_work(struct plan_job *job);
/* After plan_work; or without it, if nobody will ever call it. */
void plan_job_done(struct plan *plan, struct plan_job *job);

struct plan_stats {
    enum plan_kind kind; /* of the last fetch */
    uint64_t requests, bytes, used, late, unused;
    uint64_t recognised, lost; /* how many times */
    /* Of the order that is followed; 0 where there is none. */
    uint64_t order_files, order_epoch, order_reads; /* reads until it was recognised */
    uint32_t order_directory, world, local;
    uint64_t in_order, found;
};
void plan_stats(const struct plan *plan, struct plan_stats *ret_stats);

#endif
