/*
 * Along a known order, ahead of those who read in it: what is to be fetched next, and whether
 * they still read in that order. No threads and no reads of its own: whoever owns it tells
 * it of reads, asks it what to fetch, and says when that is done.
 *
 *     follow_new(&options, order, &follow);
 *     follow_read(follow, position, task)       a file was asked for
 *     follow_next(follow, &item)                fetch this; then follow_done(follow, item.due)
 *     if (follow_wants_next(follow)) follow_set_next(follow, the order of the next epoch)
 *
 * Readers need not keep the order exactly: several of them, with workers that are each at
 * another batch, are out of step by thousands of places. What counts is the region that they
 * are in. Places of the order are numbered on through the epochs: that is `due`.
 *
 * How far ahead: until `window_bytes` of what was fetched wait for their reader. What was left
 * behind by all readers, so that nobody will ask for it any more, does not count.
 */
#ifndef ONEPOT_FOLLOW_H
#define ONEPOT_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "read_order.h"
#include "world.h"

struct follow;

struct follow_options {
    const struct index *index;
    uint64_t window_bytes;
    uint64_t file_most; /* bytes of a file that are fetched at most */
    /*
     * A shuffle of all ranks: nothing is fetched before it is known which of them are here.
     * Else fetching begins before the first read.
     */
    bool shared;
    uint64_t spread; /* places among which readers are known to be; 0: not known */
};

/* The order is shared. -ENOMEM. */
int follow_new(const struct follow_options *options, struct read_order *order,
               struct follow **ret_follow);
void follow_free(struct follow *follow); /* NULL is fine */

void follow_set_window(struct follow *follow, uint64_t window_bytes);

enum follow_verdict {
    FOLLOW_FOREIGN,    /* not a file of this order */
    FOLLOW_UNEXPECTED, /* one that is not due */
    FOLLOW_MISSED,     /* in order, and was not asked for in time */
    FOLLOW_LATE,       /* was asked for and had not come yet */
    FOLLOW_FOUND,      /* was there */
};

/* A file is read for the first time (of this epoch), by a thread. */
enum follow_verdict follow_read(struct follow *follow, uint32_t position, uint32_t task);

/* So many of the last reads were not in order that it is another one. */
bool follow_is_lost(const struct follow *follow);
/* So few were not that it is this one: not the opposite, lest it changes with every read. */
bool follow_is_sure(const struct follow *follow);

struct follow_item {
    uint32_t position;
    uint64_t bytes; /* from the start of the file */
    uint64_t due;
};

/* False: nothing for the moment. */
bool follow_next(struct follow *follow, struct follow_item *ret_item);
void follow_done(struct follow *follow, uint64_t due);
/* It could not be fetched for want of room: it comes again, and nothing before some were read.
 */
void follow_refused(struct follow *follow, uint64_t due);

/* The number that all readers have passed: nothing due before it will be asked for. */
uint64_t follow_passed(const struct follow *follow);

/* The readers are far enough that the next epoch's order should be made. Once an epoch. */
bool follow_wants_next(struct follow *follow);
int follow_set_next(struct follow *follow, struct read_order *order); /* shared. -ENOMEM */
/* True once for each epoch: the readers have gone on to the next order. */
bool follow_has_turned(struct follow *follow);

struct follow_stats {
    uint64_t read, found, late, missed, unexpected;
    uint64_t unused;        /* fetched and left behind */
    uint64_t waiting_bytes; /* fetched, or being so, and not read yet */
    uint32_t world, local;  /* 0: not known */
};
void follow_stats(const struct follow *follow, struct follow_stats *ret_stats);

#endif
