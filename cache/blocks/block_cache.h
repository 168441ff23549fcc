/*
 * Blocks of archives, decompressed or as they are stored, shared by all threads of a process,
 * within a budget of bytes.
 *
 * Single flight: if several threads want a block that is not there, one fills it and the others
 * wait for that one. Sharded: two blocks in different shards have no lock in common, and no
 * library function is called under a lock.
 *
 * When the budget is full, held blocks stay, and newcomers pass through a small ring of recent
 * blocks. An epoch that touches everything once in random order then hits in a share of
 * budget/data, where least-recently-used eviction would hit almost never. To let the cache
 * follow a job that turns to other data, one newcomer in 32 may take the place of a held block.
 * That block must have been unused for much longer than blocks that are used again usually are.
 *
 * Blocks may be brought in ahead of their use, with a place in a known order ("due"). They take
 * the room of used blocks, and then of blocks that are due later than themselves. Without a
 * known place they take the room of newcomers, which grows with them at the cost of used
 * blocks: to a quarter of the budget (half of a small one, up to 16 MiB), 64 MiB at most.
 *
 * One block at a time, filled by a function:
 *
 *     block_cache_get(cache, key, size, fill, wait, ctx, &block); ... block_cache_put(...)
 *
 * Several at once, filled by one read of the archive:
 *
 *     for each block:       block_cache_begin(cache, key, size, &block)
 *     for each BLOCK_MINE:  read it, then block_cache_end(cache, block, ...)
 *     for each BLOCK_LOADING:  block_cache_wait(cache, block, ...)
 *
 * End all blocks that are MINE before waiting for one, or two threads could wait for each
 * other.
 */
#ifndef ONEPOT_BLOCK_CACHE_H
#define ONEPOT_BLOCK_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block_cache;

/* A block in use: its bytes stay in place until block_cache_put. */
struct block {
    const uint8_t *bytes;
    size_t len;
};

/*
 * Fills the block called `key` (block_buffer, capacity `size`). Called in the thread that
 * asked, without any lock held. Returns 0 and the length, or -errno, which goes to every thread
 * that waits for this block; nothing is cached then.
 */
typedef int block_fill(void *ctx, uint64_t key, struct block *block, size_t size,
                       size_t *ret_len);

/*
 * Called, without any lock held, in a thread that is about to sleep until another one has
 * filled the block that both want. Called again, with `unpacks`, when that one has said so
 * (block_cache_unpacks). May be NULL.
 */
typedef void block_wait(void *ctx, bool unpacks);

struct block_cache_options {
    /*
     * Limits the memory of held blocks, recent blocks and spare buffers. Blocks in use, and
     * blocks being filled for a reader, may exceed it while they are. With a budget of 0, only
     * those are kept.
     */
    uint64_t budget_bytes;
    size_t block_bytes;    /* size of most blocks, or of the largest */
    bool huge_pages;       /* pays if most blocks have the same size */
    bool not_for_children; /* a forked child won't have the blocks (MADV_DONTFORK) */
    /*
     * A fill that takes longer counts as stuck: no thread waits for it any more, and the next
     * one that wants the block fills it anew. 0: no limit.
     */
    uint32_t stuck_ms;
};

int block_cache_new(const struct block_cache_options *options, struct block_cache **ret_cache);
void block_cache_free(struct block_cache *cache); /* no block may be in use */

/* Changes the budget of a cache in use. Drops any excess before it returns. */
void block_cache_set_budget(struct block_cache *cache, uint64_t budget_bytes);

/* The caller's next step for a block that was begun. */
enum block_begun {
    BLOCK_READY,    /* the block is there, as from block_cache_get */
    BLOCK_FORESEEN, /* as READY, but it was filled ahead and this is its first use */
    BLOCK_MINE,     /* fill block_buffer(block), then block_cache_end */
    BLOCK_LOADING,  /* another thread fills it: block_cache_wait, later */
};

/*
 * The block called `key` if it is there: BLOCK_READY or BLOCK_FORESEEN, counted as a hit.
 * Otherwise -EAGAIN, at once, for callers with something to do before they wait. Takes the lock
 * of one shard for a moment.
 */
int block_cache_try(struct block_cache *cache, uint64_t key, struct block **ret_block);

/* Is the block there, or on its way? Does not count as a use and moves nothing. */
bool block_cache_has(struct block_cache *cache, uint64_t key);

/*
 * Gets the block called `key` (unique within the cache, never UINT64_MAX) of at most `size`
 * bytes, and fills it if it is not there. Errors: the fill's, or -ENOMEM.
 */
int block_cache_get(struct block_cache *cache, uint64_t key, size_t size, block_fill *fill,
                    block_wait *wait, void *ctx, struct block **ret_block);
void block_cache_put(struct block_cache *cache, struct block *block);

/*
 * Nobody will want this block of the caller soon: it does not stay, and when its users have put
 * it the next block takes over its memory, which is still in the CPU's caches.
 */
void block_cache_let_go(struct block_cache *cache, struct block *block);

/*
 * The block called `key` may be wrong: the next thread that wants it fills it anew, also if a
 * thread fills it at the moment. Threads that have it, or wait for it already, are not told.
 */
void block_cache_forget(struct block_cache *cache, uint64_t key);

/* Returns a block and a value of enum block_begun (>= 0), or -ENOMEM. */
int block_cache_begin(struct block_cache *cache, uint64_t key, size_t size,
                      struct block **ret_block);

/* No place in an order is known. */
#define BLOCK_DUE_UNKNOWN UINT64_MAX

/*
 * As block_cache_begin, for a block that nobody asked for yet, and that will be read as number
 * `due` of an order (earlier reads have smaller numbers). BLOCK_MINE: fill it, end it, put it.
 * -EEXIST: the block is there or being loaded; its `due` is noted. -ENOBUFS: no room can be
 * made, because all held blocks will be used earlier. Then keep this block, and all that are
 * due later, waiting until some were used.
 */
int block_cache_begin_ahead(struct block_cache *cache, uint64_t key, size_t size, uint64_t due,
                            struct block **ret_block);

/*
 * Notes that a block that is there will be used (again) as number `due`. It takes the room of
 * used blocks, and then of blocks that are due later. Does nothing if the block is not there.
 */
void block_cache_note_due(struct block_cache *cache, uint64_t key, uint64_t due);

/*
 * Readers have passed number `due` of the order: unused blocks that were due before it may be
 * evicted like used ones. Call it often: it looks for such blocks only when there may be many.
 * `is_new_order`: the order before turned out to be wrong, so that all blocks that wait for
 * their use lose their place.
 */
void block_cache_passed(struct block_cache *cache, uint64_t due, bool is_new_order);

/*
 * All bytes for a block that is MINE were read: from now on its fill takes CPU time only, and
 * so it is not stuck however long it takes.
 */
void block_cache_unpacks(struct block_cache *cache, struct block *block);

/* The buffer of a block that is MINE, as large as the `size` it was begun with. */
void *block_buffer(struct block *block);

/*
 * Ends the fill of a block that is MINE. `result` is 0, and `len` its length; or it is -errno,
 * which goes to every thread that waits for the block. Returns the result (-EUCLEAN for a `len`
 * beyond its size); if that is negative the block is put as well.
 */
int block_cache_end(struct block_cache *cache, struct block *block, int result, size_t len);

/*
 * Waits for a block that was LOADING. If the result is negative, the block is put: -EAGAIN if
 * the fill is stuck (begin anew), otherwise the error of the fill.
 */
int block_cache_wait(struct block_cache *cache, struct block *block, block_wait *wait,
                     void *ctx);

struct block_cache_stats {
    uint64_t hits, misses, waits; /* `waits`: another thread was filling the block already */
    uint64_t evictions;
    uint64_t bytes, blocks; /* held now, bookkeeping included; never above the budget */
    uint64_t budget_bytes;
    /* Blocks that were filled ahead: all, used since, dropped before any use. */
    uint64_t ahead, ahead_used, ahead_dropped;
    uint64_t ahead_bytes; /* bytes that wait now for their use in a known order */
};
void block_cache_stats(const struct block_cache *cache, struct block_cache_stats *ret_stats);

#endif
