/*
 * Keeps ahead of readers along a known order: it says what to fetch next, and whether they
 * still read in that order. It has no threads and does no reads. Its owner reports reads to it,
 * asks it what to fetch, and reports when that is done.
 *
 *     follow_new(&options, order, &follow);
 *     follow_read(follow, position, task)       a file was asked for
 *     follow_next(follow, &want)                fetch this; then follow_done(follow, want.due)
 *     if (follow_wants_next(follow)) follow_set_next(follow, the order of the next epoch)
 *
 * Readers need not keep the order exactly. Several of them, each with workers at different
 * batches, are out of step by thousands of places. So only the region they are in counts.
 * Places of the order are numbered on through the epochs; such a number is called `due`.
 *
 * How far ahead: until `window_bytes` of fetched data wait for their readers. Data that all
 * readers have left behind does not count, since nobody will ask for it any more.
 */
#ifndef ONEPOT_FOLLOW_H
#define ONEPOT_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "ahead.h"

struct follow;

struct follow_options {
    const struct ahead_options *ahead; /* outlives it; its window may change */
    struct ahead_stats *stats;         /* to count in; outlives it */
    /*
     * A shuffle over all ranks: nothing is fetched until it is known which of them are here.
     * Otherwise fetching begins before the first read.
     */
    bool shared;
    uint64_t spread;    /* readers are known to be within this many places; 0: not known */
    uint64_t first_due; /* `due` of its first place; places of earlier orders are below */
};

/* Shares the order. -ENOMEM. */
int follow_new(const struct follow_options *options, struct known_reads *order,
               struct follow **ret_follow);
void follow_free(struct follow *follow); /* NULL is fine */

enum follow_verdict {
    FOLLOW_FOREIGN,    /* not a file of this order */
    FOLLOW_UNEXPECTED, /* a file that is not due */
    FOLLOW_MISSED,     /* in order, but was not asked for in time */
    FOLLOW_LATE,       /* asked for, but not there yet */
    FOLLOW_FOUND,      /* there */
};

/* A thread reads a file for the first time in this epoch. */
enum follow_verdict follow_read(struct follow *follow, uint32_t position, uint32_t task);

/* Too many of the last reads were out of order: the readers don't follow this order. */
bool follow_is_lost(const struct follow *follow);
/*
 * Few enough of the last reads were out of order to be sure of this order. Between "lost" and
 * "sure" lies a gap, so that the answer does not change with every read.
 */
bool follow_is_sure(const struct follow *follow);

/* False: nothing to fetch for the moment. */
bool follow_next(struct follow *follow, struct reader_want *ret_want);
void follow_done(struct follow *follow, uint64_t due);
/* There was no room to fetch it. It comes again, and nothing comes before some reads. */
void follow_refused(struct follow *follow, uint64_t due);

/* The `due` that all readers have passed: nothing before it will be asked for. */
uint64_t follow_passed(const struct follow *follow);
uint64_t follow_end_due(const struct follow *follow); /* above all of this order */

/* True once an epoch: the readers are so far that the next epoch's order should be made. */
bool follow_wants_next(struct follow *follow);
int follow_set_next(struct follow *follow, struct known_reads *order); /* shares it. -ENOMEM */
/* True once for each epoch: the readers have gone on to the next order. */
bool follow_has_turned(struct follow *follow);

#endif
