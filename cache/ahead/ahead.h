/*
 * Reading ahead: observed reads go in, the next reads come out, and a fetcher brings them in.
 *
 *     observe (observer.h)  ->  plan (plan.h)  ->  fetch (struct fetcher)
 *
 * A thread that answers readers notes an *observation* of each read, listing and look-up. One
 * thread takes these and gives them to the plan, whose choosers (chooser.h) answer with
 * *wants*: parts of files or of directories, and the order in which they are *due* where that
 * is known. Two fetchers bring them in: one into the block cache, and one, on this node's
 * storage, through the mount itself into the kernel's cache of it, where they cost a reader no
 * request. Data that was fetched and not read yet *waits*; no more than a *window* of bytes
 * waits at a time. When its reader comes it is *used*, or *late* if the fetch has not ended.
 * When all readers have *passed* it, it stays *unused*.
 *
 * The plan follows a known order (chooser.h), which was given or recognised (recognise.h).
 * Reads outside of it may be sequences (chooser.h). The values of `onepot stat` come from
 * struct ahead_stats: "foreseen" counts planned bytes, "prefetched" the block cache's.
 *
 *     ahead_new(&options, &ahead);
 *     ahead_observer(ahead, &observer);        once in each thread that answers readers
 *     observer_note(observer, &observation);   there, before the answer
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

struct ahead;

#define AHEAD_FETCHERS_MAX 32u
#define AHEAD_MOUNT_FETCHERS_MAX 2u

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
     * no room, so those with a known place in the order come again later. Through a mount, a
     * want's position may be a directory, `offset` its first entry that is to be listed, and
     * `len` how many; and the call may return while its wants are still being fetched, with the
     * result of the call before. -ENOTCONN: there is nothing more to be had.
     */
    int (*fetch)(void *ctx, void *scratch, const struct reader_want *wants, size_t count);
    void (*end)(void *scratch);
    /*
     * Wants that are due before `due` are of no use any more. `is_new_order`: places that
     * earlier wants were due at mean nothing now. NULL: it does not need to know.
     */
    void (*passed)(void *ctx, uint64_t due, bool is_new_order);
};

/* Into the block cache, or of a mapped archive into the kernel's page cache. ctx: a reader. */
extern const struct fetcher ahead_reader_fetcher;

struct ahead_options {
    const struct index *index;
    uint32_t root;
    uint64_t seed;             /* of shuffles */
    uint64_t window_bytes;     /* 0: nothing comes into the block cache */
    uint64_t most_bytes;       /* of memory for each known order */
    struct known_reads *given; /* shared; NULL: none */
    /* Receives a line when an order was recognised or lost. May be NULL. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;

    const struct fetcher *fetcher;
    void *fetcher_ctx; /* outlives it */
    unsigned fetchers; /* threads that fetch, at most AHEAD_FETCHERS_MAX */
    /* The way through the mount. NULL: there is none. */
    const struct fetcher *mount;
    void *mount_ctx;
    unsigned mount_fetchers; /* at most AHEAD_MOUNT_FETCHERS_MAX */
    bool walks;              /* directories of walks through the tree are fetched */
    bool names;              /* names around the ones that are looked up are fetched, */
    bool all_names;          /* and all of them, while nobody asks for one */
    uint64_t nearby_bytes;   /* of files near the ones that are read; 0: none */
    /* The memory that is free for that; 0: nothing may be fetched now. */
    uint64_t (*room_bytes)(void *ctx);
    void *room_ctx;

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
    /* The order that is followed; 0: there is none. */
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
