/*
 * Blocks of archives, decompressed or as they are stored, shared by all threads of a
 * process, within a budget of bytes.
 *
 * Single flight: of several threads that want a block that is not there, one fills it and
 * the others wait for that one. Sharded: two blocks in different shards have no lock in
 * common, and nothing of a library is called under a lock.
 *
 * What is kept when the budget is full. What is held stays, and newcomers pass through a
 * small ring of recent blocks: an epoch that touches everything once in random order then
 * hits in a share of budget/data, where least-recently-used eviction would hit almost never.
 * One newcomer in 32 may take the place of a held block, so that the cache follows a job that
 * turns to other data: of one that was not used for much longer than those are that are used
 * again.
 *
 * Blocks that are brought in ahead of their use, with a place in a known order ("due"), take
 * the room of blocks that were used already, and then of those that are due later than
 * themselves. Without a known place they take the room of newcomers.
 *
 * Two ways to a block. One block at a time, filled by a function:
 *     block_cache_get(cache, key, size, fill, wait, ctx, &block); ... block_cache_put(...)
 * Several at once, filled by one read of the archive:
 *     for each: block_cache_begin(cache, key, size, &block)
 *     read those for which it said BLOCK_MINE, and for each: block_cache_end(cache, block, ...)
 *     then, for each BLOCK_LOADING: block_cache_wait(cache, block, ...)
 * All blocks that are MINE have to be ended before one is waited for, or two threads could
 * wait for each other.
 */
#ifndef ONEPOT_BLOCK_CACHE_H
#define ONEPOT_BLOCK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block_cache;

/* A block in use: its bytes stay where they are until block_cache_put. */
struct block {
    const uint8_t *bytes;
    size_t len;
};

/*
 * Fill `buf` (capacity `size`) with the block called `key`; called without any lock
 * held, in the thread that asked. 0 and the length, or -errno, which goes to everyone
 * who waits for this block; nothing is cached then.
 */
typedef int block_fill(void *ctx, uint64_t key, void *buf, size_t size, size_t *ret_len);

/*
 * Called, without any lock held, in a thread that is about to sleep until another one
 * has filled the block that it wants. May be NULL.
 */
typedef void block_wait(void *ctx);

struct block_cache_options {
    /*
     * Bounds the memory of the blocks that are held, of the recent ones, and of spare
     * buffers. Blocks in use and blocks being filled for a reader may exceed it for as long
     * as they are; a budget of 0 keeps nothing else.
     */
    uint64_t budget_bytes;
    size_t block_bytes;    /* what most blocks have, or the largest of them */
    bool huge_pages;       /* worth it where most blocks have the same size */
    bool not_for_children; /* see buffer_pool.h */
    /*
     * Who fills a block for longer than that is taken for stuck: nobody waits for it any more,
     * and the next one who wants the block fills it anew. 0: there is no limit.
     */
    uint32_t stuck_ms;
};

int block_cache_new(const struct block_cache_options *options, struct block_cache **ret_cache);
void block_cache_free(struct block_cache *cache); /* no block may be in use */

/* Change the budget while it is used. What is too much is dropped before this returns. */
void block_cache_set_budget(struct block_cache *cache, uint64_t budget_bytes);

/* Who has to do what for a block that was begun. */
enum block_begun {
    BLOCK_READY,    /* it is there: as block_cache_get */
    BLOCK_FORESEEN, /* the same, and it was filled ahead: this is its first use */
    BLOCK_MINE,     /* fill block_buffer(block), then block_cache_end */
    BLOCK_LOADING,  /* another thread is at it: block_cache_wait, later */
};

/*
 * The block called `key`, if it is there: a hit, BLOCK_READY or BLOCK_FORESEEN. Else -EAGAIN,
 * at once: for callers that have something to do before they wait. Takes the lock of one shard
 * for a moment.
 */
int block_cache_try(struct block_cache *cache, uint64_t key, struct block **ret_block);

/* Is it there (or on its way)? Not a use of it: nothing is counted or moved. */
bool block_cache_has(struct block_cache *cache, uint64_t key);

/*
 * The block called `key` (unique within the cache, never UINT64_MAX), of at most `size`
 * bytes, filled if it is not there. Errors: the fill's, or -ENOMEM.
 */
int block_cache_get(struct block_cache *cache, uint64_t key, size_t size, block_fill *fill,
                    block_wait *wait, void *ctx, struct block **ret_block);
void block_cache_put(struct block_cache *cache, struct block *block);

/* >= 0: a value of enum block_begun, and a block. -ENOMEM. */
int block_cache_begin(struct block_cache *cache, uint64_t key, size_t size,
                      struct block **ret_block);

/* No place in an order is known. */
#define BLOCK_DUE_UNKNOWN UINT64_MAX

/*
 * The same for a block that nobody asked for yet and that will be, as number `due` of an
 * order (the reads before it have smaller numbers). A block that is there, or being loaded,
 * is -EEXIST; its `due` is taken note of. -ENOBUFS: there is no room that could be made,
 * since all that is held will be used earlier; wait with this block, and with all that is due
 * later, until some were used. Else BLOCK_MINE: fill it, end it, put it.
 */
int block_cache_begin_ahead(struct block_cache *cache, uint64_t key, size_t size, uint64_t due,
                            struct block **ret_block);

/*
 * A block that is there will be used (again) as number `due`: it takes the room of blocks that
 * were used already, and then of those that are due later. One that is not there is left alone.
 */
void block_cache_note_due(struct block_cache *cache, uint64_t key, uint64_t due);

/*
 * The order turned out to be another one: blocks that wait for their use have no place any
 * more, and may be evicted as if they had been used.
 */
void block_cache_forget_order(struct block_cache *cache);

/*
 * Readers have passed number `due` of the order: blocks that were due before it and that nobody
 * used may be evicted as if they had been used. Tell it often: it looks for them only when
 * there may be many.
 */
void block_cache_passed(struct block_cache *cache, uint64_t due);

/* Where to put the bytes of a block that is MINE: as many as were begun. */
void *block_buffer(struct block *block);

/*
 * A block that is MINE is filled: `result` is 0, and `len` its length, or -errno, which goes
 * to everyone who waits for it. Returns the result (-EUCLEAN for a `len` beyond its size);
 * when it is negative the block is put as well.
 */
int block_cache_end(struct block_cache *cache, struct block *block, int result, size_t len);

/*
 * Wait for a block that was LOADING. Negative, the error of who filled it: it is put.
 * -EAGAIN: who fills it is stuck; begin anew.
 */
int block_cache_wait(struct block_cache *cache, struct block *block, block_wait *wait,
                     void *ctx);

struct block_cache_stats {
    uint64_t hits, misses, waits; /* waits: another thread was already at it */
    uint64_t evictions;
    uint64_t bytes, blocks; /* held now, bookkeeping included; never above the budget */
    uint64_t budget_bytes;
    /* Blocks that were filled ahead: all, those used since, those dropped before any use. */
    uint64_t ahead, ahead_used, ahead_dropped;
    uint64_t ahead_bytes; /* of those that wait for their use in a known order, now */
};
void block_cache_stats(const struct block_cache *cache, struct block_cache_stats *ret_stats);

#endif
