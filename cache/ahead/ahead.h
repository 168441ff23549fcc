/*
 * Reading ahead: what readers were seen to read goes in, what they will read next comes out,
 * and a fetcher brings it in.
 *
 *     observe (observer.h)  ->  plan (plan.h)  ->  fetch (struct fetcher)
 *
 * A thread that answers readers notes an *observation* of each read. One thread takes these and
 * gives them to the plan. The plan answers with *wants*: parts of files, and the order in which
 * they are *due* where that is known. Fetchers bring them in. Data that was fetched and not
 * read yet *waits*; no more than a *window* of bytes waits at a time. When its reader comes it
 * is *used*, or *late* if the fetch has not ended. When all readers have *passed* it, it stays
 * *unused*.
 *
 * The plan follows a known order (follow.h), which was given or recognised (recognise.h). Reads
 * outside of it may be sequences (scan.h, streams.h). The values of `onepot stat` are those of
 * struct ahead_stats: "foreseen" is what was planned, "prefetched" what the block cache got.
 *
 * On this node's storage without a known order nothing is planned here. There files and names
 * are fetched through the mount itself, into the kernel's cache of it, by processes that share
 * their plans with the daemon (mount_fetcher.h). These have a table of their own, since such a
 * process may neither lock nor allocate, and fetches directories as well as bytes. Their part
 * in the vocabulary is the same: a reader was *seen*, a plan is *run* with a fetcher.
 *
 *     ahead_new(&options, &ahead);
 *     ahead_observer(ahead, &observer);        once in each thread that answers readers
 *     observer_note(observer, &observation);   there, before a read is answered
 *     ahead_end(ahead);                        begins no more fetches
 *     ahead_join(ahead, until, &recorded);     if it returns 0:
 *     ahead_free(ahead);
 */
#ifndef ONEPOT_AHEAD_H
#define ONEPOT_AHEAD_H

#include <stdatomic.h>
#include <time.h>

#include "known_reads.h"
#include "observer.h"
#include "reader.h"
#include "recorder.h"

struct ahead;

#define AHEAD_FETCHERS_MAX 32u

/* Kinds of reading ahead. The values appear in the counters of a mount. */
enum ahead_kind {
    AHEAD_NOTHING = 0,
    AHEAD_FILE = 1,       /* pieces of a large file */
    AHEAD_DIRECTORY = 2,  /* names in a directory */
    AHEAD_ARCHIVE = 3,    /* files as they lie in the archive */
    AHEAD_RECOGNISED = 4, /* a shuffle */
    AHEAD_GIVEN = 5,
};

/*
 * The way to fetch. Several threads call `fetch` at the same time, each with what its `begin`
 * returned.
 */
struct fetcher {
    int (*begin)(void *ctx, void **ret_scratch);
    /*
     * Bring in wants that lie close together, in the order of the archive. -ENOBUFS: there is
     * no room, so those with a known place in the order come again later.
     */
    int (*fetch)(void *ctx, void *scratch, const struct reader_want *wants, size_t count);
    void (*end)(void *scratch);
    /*
     * Wants that are due before `due` are of no use any more. `is_new_order`: places that
     * earlier wants were due at mean nothing now.
     */
    void (*passed)(void *ctx, uint64_t due, bool is_new_order);
};

/* Into the block cache, or of a mapped archive into the kernel's page cache. ctx: a reader. */
extern const struct fetcher ahead_reader_fetcher;

struct ahead_options {
    const struct index *index;
    uint32_t root;
    uint64_t seed;             /* of shuffles */
    uint64_t window_bytes;     /* 0: fetch nothing */
    uint64_t most_bytes;       /* of memory for each known order */
    struct known_reads *given; /* shared; NULL: none */
    /* Receives a line when an order was recognised or lost. May be NULL. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;

    const struct fetcher *fetcher;
    void *fetcher_ctx;         /* outlives it */
    unsigned fetchers;         /* threads that fetch, at most AHEAD_FETCHERS_MAX */
    struct recorder *recorder; /* taken over; NULL: nothing is recorded */
    /* A thread that spends longer on one fetch counts as stuck and is replaced. 0: never. */
    uint32_t stuck_ms;
    uint64_t (*now_ns)(void);   /* as in clock.h; tests have a clock of their own */
    _Atomic uint64_t *replaced; /* counts the replaced threads; outlives it; may be NULL */
};

/* Any of its threads may call the log. On failure the caller keeps the recorder. */
int ahead_new(const struct ahead_options *options, struct ahead **ret_ahead);

int ahead_observer(struct ahead *ahead, struct observer **ret_observer);

struct ahead_stats {
    enum ahead_kind kind; /* of the last fetch */
    uint64_t requests, bytes;
    uint64_t used, late, unused;
    uint64_t in_order, found;                /* reads in a known order; of these in time */
    uint64_t waiting_bytes;                  /* of a known order */
    uint64_t orders_recognised, orders_lost; /* how many times */
    /* Of the order that is followed; 0: there is none. */
    uint64_t order_files, order_epoch, order_reads; /* reads until it was recognised */
    uint32_t order_directory;
    uint32_t world, local;      /* ranks of the job and of this node; 0: not known */
    uint64_t observations_lost; /* because a ring was full */
};
void ahead_stats(struct ahead *ahead, struct ahead_stats *ret_stats);

/* Change the window, because the budget changed. Neither the old nor the new one may be 0. */
void ahead_set_window(struct ahead *ahead, uint64_t window_bytes);

/* May be called from any thread. */
void ahead_end(struct ahead *ahead);
/*
 * Wait for all threads until `until`. -EBUSY: one is still at a fetch. In any case the record
 * is complete, or *ret_recorded is the error.
 */
int ahead_join(struct ahead *ahead, const struct timespec *until, int *ret_recorded);
void ahead_free(struct ahead *ahead); /* after ahead_join; NULL is fine */

#endif
