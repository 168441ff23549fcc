/*
 * Decompressed blocks, shared by all threads of a process, within a budget of bytes.
 *
 * Single flight: of several threads that want a block that is not there, one
 * decompresses it and the others wait for that one. Sharded: two blocks in different
 * shards have no lock in common, and nothing of a library is called under a lock.
 *
 * When the budget is full, what is held is kept and newcomers pass through a small
 * ring of recent blocks: an epoch that touches everything once in random order then
 * hits in a share of budget/data, where least-recently-used eviction would hit
 * almost never. One newcomer in 32 takes the place of a held block at random, so that
 * the cache follows a job that turns to other data.
 */
#ifndef ONEPOT_BLOCK_CACHE_H
#define ONEPOT_BLOCK_CACHE_H

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

/*
 * The budget bounds the memory of the blocks that are held, of the recent ones, and of
 * spare buffers. Blocks in use and blocks being filled may exceed it for as long as
 * they are; a budget of 0 keeps nothing else. `block_bytes` is what most blocks have.
 */
int block_cache_new(uint64_t budget_bytes, size_t block_bytes, struct block_cache **ret_cache);
/* Before the first block: see buffer_pool.h. */
void block_cache_not_for_children(struct block_cache *cache);
void block_cache_free(struct block_cache *cache); /* no block may be in use */

/*
 * The block called `key`, if it is there: a hit. Else -EAGAIN, at once: for callers
 * that have something to do before they wait. Takes the lock of one shard for a moment.
 */
int block_cache_try(struct block_cache *cache, uint64_t key, struct block **ret_block);

/*
 * The block called `key` (unique within the cache), of at most `size` bytes, filled if
 * it is not there. Errors: the fill's, or -ENOMEM.
 */
int block_cache_get(struct block_cache *cache, uint64_t key, size_t size, block_fill *fill,
                    block_wait *wait, void *ctx, struct block **ret_block);
void block_cache_put(struct block_cache *cache, struct block *block);

struct block_cache_stats {
    uint64_t hits, misses, waits; /* waits: another thread was already at it */
    uint64_t evictions;
    uint64_t bytes, blocks; /* held now, bookkeeping included; never above the budget */
    uint64_t budget_bytes;
};
void block_cache_stats(const struct block_cache *cache, struct block_cache_stats *ret_stats);

#endif
