/*
 * Finds and fills blocks. An entry is in the table (block_table.c) already while its block is
 * being filled, so that others find it and wait. Only the shard's lock guards an entry. A block
 * that is dropped while in use leaves the table and the accounts at once, and its last user
 * frees it. block_keep.c decides which blocks stay.
 */
#include "block_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "block_cache_private.h"
#include "clock.h"
#include "thread.h"

#define FIRST_BUCKETS 16u

static int pool_new(const struct block_cache_options *o, struct buffer_pool **ret_pool)
{
    bool huge = o->huge_pages && o->budget_bytes >= HUGE_BUDGET;
    return buffer_pool_new(keep_spare_bytes(o->budget_bytes),
                           o->budget_bytes < HUGE_ALL_BUDGET ? o->block_bytes : 1,
                           huge ? o->block_bytes : 0, o->not_for_children, ret_pool);
}

int block_cache_new(const struct block_cache_options *options, struct block_cache **ret_cache)
{
    struct block_cache *cache = aligned_alloc(128, sizeof(*cache));
    if (!cache)
        return -ENOMEM;
    memset(cache, 0, sizeof(*cache));
    cache->options = *options;
    int r = pool_new(options, &cache->pool);
    for (unsigned i = 0; i < RING_SLOTS; i++)
        atomic_init(&cache->ring[i], NO_KEY);
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shards[i];
        pthread_mutex_init(&shard->lock, NULL);
        thread_cond_init(&shard->loaded);
        shard->random = block_hash(i + 1);
        shard->bucket_mask = FIRST_BUCKETS - 1;
        shard->buckets = calloc(FIRST_BUCKETS, sizeof(*shard->buckets));
        if (!shard->buckets)
            r = -ENOMEM;
    }
    if (r < 0) {
        block_cache_free(cache);
        return r;
    }
    keep_set_budget(cache, options->budget_bytes);
    *ret_cache = cache;
    return 0;
}

void block_cache_free(struct block_cache *cache)
{
    if (!cache)
        return;
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shards[i];
        for (size_t b = 0; shard->buckets && b <= shard->bucket_mask; b++) {
            struct entry *next;
            for (struct entry *entry = shard->buckets[b]; entry; entry = next) {
                next = entry->next;
                free(entry);
            }
        }
        free(shard->buckets);
        vector_free(&shard->held);
        vector_free(&shard->ahead);
        pthread_cond_destroy(&shard->loaded);
        pthread_mutex_destroy(&shard->lock);
    }
    buffer_pool_free(cache->pool);
    free(cache);
}

void block_cache_set_budget(struct block_cache *cache, uint64_t budget_bytes)
{
    buffer_pool_set_spare(cache->pool, keep_spare_bytes(budget_bytes));
    keep_set_budget(cache, budget_bytes);
}

/* ---- entries ---- */

/* A new entry, LOADING, with one user. */
static struct entry *block_entry_new(struct block_cache *cache, uint64_t key, size_t size)
{
    struct entry *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return NULL;
    entry->key = key;
    entry->users = 1;
    entry->block.len = size; /* until it is filled */
    entry->capacity = buffer_pool_capacity(cache->pool, size);
    if (cache->options.stuck_ms)
        entry->began_ns = now_ns();
    return entry;
}

/*
 * Stops using an entry. If this was its last user and nothing keeps the entry, returns it, to
 * be freed without the lock.
 */
static struct entry *block_entry_leave(struct shard *shard, struct entry *entry)
{
    if (--entry->users > 0 || entry->place != PLACE_NOWHERE)
        return NULL;
    block_table_unlink(shard, entry);
    return entry;
}

/* Puts the entry in the table. If its key is there already, returns the entry with that key. */
static struct entry *block_entry_link(struct shard *shard, struct entry *fresh)
{
    struct entry *entry = block_table_find(shard, fresh->key);
    if (!entry)
        block_table_link(shard, fresh);
    return entry;
}

/* Moves a block that is much smaller than its buffer to one that fits. */
static void block_trim(struct block_cache *cache, struct entry *entry)
{
    size_t old = entry->capacity, fitting = buffer_pool_capacity(cache->pool, entry->block.len);
    void *bytes;
    if (fitting > old - old / 4 || buffer_pool_get(cache->pool, fitting, &bytes) < 0)
        return;
    memcpy(bytes, entry->block.bytes, entry->block.len);
    buffer_pool_put(cache->pool, (void *)(uintptr_t)entry->block.bytes, old);
    entry->block.bytes = bytes;
    entry->capacity = fitting;
    keep_shrink_reserved(cache, entry, old);
}

/*
 * Ends the fill and wakes the waiting threads. False: they took the fill for stuck, and left.
 */
static bool block_publish(struct shard *shard, struct entry *entry, int err)
{
    pthread_mutex_lock(&shard->lock);
    if (entry->state != LOADING) {
        pthread_mutex_unlock(&shard->lock);
        return false;
    }
    entry->state = err < 0 ? FAILED : READY;
    entry->err = err;
    if (err < 0)
        block_table_unlink(shard, entry); /* the next thread that asks tries again */
    pthread_cond_broadcast(&shard->loaded);
    pthread_mutex_unlock(&shard->lock);
    return true;
}

void *block_buffer(struct block *block)
{
    return (void *)(uintptr_t)block->bytes;
}

int block_cache_end(struct block_cache *cache, struct block *block, int result, size_t len)
{
    struct entry *entry = (struct entry *)block;
    if (result == 0 && len > block->len)
        result = -EUCLEAN;
    if (result == 0) {
        block->len = len;
        block_trim(cache, entry);
    } else {
        keep_unreserve(cache, entry);
    }
    bool wanted = block_publish(block_shard_of(cache, entry->key), entry, result);
    if (!wanted)
        keep_unreserve(cache, entry); /* another thread fills it in its place */
    else if (result == 0)
        keep_place(cache, entry);
    if (result < 0)
        block_cache_put(cache, block);
    return result;
}

void block_cache_unpacks(struct block_cache *cache, struct block *block)
{
    struct entry *entry = (struct entry *)block;
    struct shard *shard = block_shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    entry->unpacks = true;
    pthread_cond_broadcast(&shard->loaded);
    pthread_mutex_unlock(&shard->lock);
}

/* Sleeps until the entry is no longer LOADING, or unpacks, or is stuck; with the lock. */
static void wait_for_bytes(const struct block_cache *cache, struct shard *shard,
                           struct entry *entry)
{
    struct timespec until =
        clock_timespec(entry->began_ns + cache->options.stuck_ms * UINT64_C(1000000));
    int r = 0;

    while (entry->state == LOADING && !entry->unpacks && r != ETIMEDOUT) {
        if (cache->options.stuck_ms)
            r = pthread_cond_timedwait(&shard->loaded, &shard->lock, &until);
        else
            pthread_cond_wait(&shard->loaded, &shard->lock);
    }
}

/* With the lock, which it leaves for `wait`. */
static void wait_for_unpacking(struct shard *shard, struct entry *entry, block_wait *wait,
                               void *ctx)
{
    if (wait) {
        pthread_mutex_unlock(&shard->lock);
        wait(ctx, true);
        pthread_mutex_lock(&shard->lock);
    }
    while (entry->state == LOADING)
        pthread_cond_wait(&shard->loaded, &shard->lock);
}

/*
 * Sleeps until the entry is no longer LOADING; with the lock. If the fill turns out to be
 * stuck, the entry leaves the table so that another can take its place, and all threads that
 * wait for it find it FAILED.
 */
static void wait_loaded(const struct block_cache *cache, struct shard *shard,
                        struct entry *entry, block_wait *wait, void *ctx)
{
    wait_for_bytes(cache, shard, entry);
    if (entry->state == LOADING && entry->unpacks)
        wait_for_unpacking(shard, entry, wait, ctx);
    if (entry->state != LOADING)
        return;
    entry->state = FAILED;
    entry->err = -EAGAIN;
    block_table_unlink(shard, entry);
    pthread_cond_broadcast(&shard->loaded);
}

/*
 * Memory or addresses (ulimit -v) ran out: unmaps unused memory. If that was done already, the
 * budget is too large for this process, so it is cut to keep three quarters of the blocks.
 * False: nothing is left to give back.
 */
static bool give_back(struct block_cache *cache, unsigned tried)
{
    struct block_cache_stats before, after;
    if (tried == 0 && buffer_pool_unmap_unused(cache->pool))
        return true;
    block_cache_stats(cache, &before);
    if (before.bytes == 0)
        return false; /* a budget of nothing would help nobody */
    block_cache_set_budget(cache, keep_budget_for(cache, before.bytes / 4 * 3));
    block_cache_stats(cache, &after);
    buffer_pool_unmap_unused(cache->pool);
    return after.bytes < before.bytes;
}

/* Gets a buffer for an entry that is LOADING and in the table. */
static int begin_mine(struct block_cache *cache, struct entry *entry, struct block **ret_block)
{
    void *bytes;
    int r;
    unsigned tried = 0;
    do { /* a block filled ahead drops no others */
        r = buffer_pool_get(cache->pool, entry->block.len, &bytes);
    } while (r == -ENOMEM && !entry->unused && give_back(cache, tried++));
    if (r < 0)
        return block_cache_end(cache, &entry->block, r, 0);
    entry->block.bytes = bytes;
    *ret_block = &entry->block;
    return BLOCK_MINE;
}

/* ---- for readers ---- */

/* Uses an entry of the table. With the lock. */
static enum block_begun block_join(struct block_cache *cache, struct shard *shard,
                                   struct entry *entry)
{
    bool foreseen = entry->unused;

    entry->users++;
    keep_used(cache, shard, entry);
    if (entry->state == LOADING) {
        shard->waits++;
        return BLOCK_LOADING;
    }
    shard->hits++;
    return foreseen ? BLOCK_FORESEEN : BLOCK_READY;
}

int block_cache_try(struct block_cache *cache, uint64_t key, struct block **ret_block)
{
    struct shard *shard = block_shard_of(cache, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_table_find(shard, key);
    int begun = -EAGAIN;
    if (entry && entry->state == READY) {
        begun = block_join(cache, shard, entry);
        *ret_block = &entry->block;
    }
    pthread_mutex_unlock(&shard->lock);
    return begun;
}

bool block_cache_has(struct block_cache *cache, uint64_t key)
{
    struct shard *shard = block_shard_of(cache, key);
    pthread_mutex_lock(&shard->lock);
    bool has = block_table_find(shard, key) != NULL;
    pthread_mutex_unlock(&shard->lock);
    return has;
}

int block_cache_begin(struct block_cache *cache, uint64_t key, size_t size,
                      struct block **ret_block)
{
    int begun = block_cache_try(cache, key, ret_block);
    if (begun >= 0)
        return begun;
    /* Allocated before the lock is taken; a second look then shows whether it is needed. */
    struct entry *fresh = block_entry_new(cache, key, size);
    if (!fresh)
        return -ENOMEM;
    struct shard *shard = block_shard_of(cache, key);
    begun = BLOCK_MINE;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_entry_link(shard, fresh);
    if (entry) {
        begun = block_join(cache, shard, entry);
    } else {
        shard->misses++;
        keep_used(cache, shard, fresh);
    }
    pthread_mutex_unlock(&shard->lock);
    if (begun == BLOCK_MINE)
        return begin_mine(cache, fresh, ret_block);
    free(fresh);
    *ret_block = &entry->block;
    return begun;
}

int block_cache_wait(struct block_cache *cache, struct block *block, block_wait *wait,
                     void *ctx)
{
    struct entry *entry = (struct entry *)block, *gone = NULL;
    struct shard *shard = block_shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    if (wait && entry->state == LOADING) {
        pthread_mutex_unlock(&shard->lock);
        wait(ctx, false);
        pthread_mutex_lock(&shard->lock);
    }
    wait_loaded(cache, shard, entry, wait, ctx);
    int r = entry->state == FAILED ? entry->err : 0;
    if (r < 0)
        gone = block_entry_leave(shard, entry);
    pthread_mutex_unlock(&shard->lock);
    block_entry_free(cache, gone);
    return r;
}

int block_cache_get(struct block_cache *cache, uint64_t key, size_t size, block_fill *fill,
                    block_wait *wait, void *ctx, struct block **ret_block)
{
    struct block *block = NULL;
    unsigned tried = 0;
    size_t len = 0;
    int r;
    do {     /* retry with a smaller cache if there is no memory */
        do { /* retry with another filler if one is stuck */
            r = block_cache_begin(cache, key, size, &block);
            if (r == BLOCK_LOADING)
                r = block_cache_wait(cache, block, wait, ctx);
        } while (r == -EAGAIN);
        if (r == BLOCK_MINE) {
            r = fill(ctx, key, block, size, &len);
            r = block_cache_end(cache, block, r, len);
        }
    } while (r == -ENOMEM && give_back(cache, tried++));
    if (r < 0)
        return r;
    *ret_block = block;
    return 0;
}

void block_cache_put(struct block_cache *cache, struct block *block)
{
    struct entry *entry = (struct entry *)block;
    struct shard *shard = block_shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    struct entry *gone = block_entry_leave(shard, entry);
    pthread_mutex_unlock(&shard->lock);
    block_entry_free(cache, gone);
}

/* ---- ahead of readers ---- */

int block_cache_begin_ahead(struct block_cache *cache, uint64_t key, size_t size, uint64_t due,
                            struct block **ret_block)
{
    if (block_cache_has(cache, key)) {
        block_cache_note_due(cache, key, due);
        return -EEXIST;
    }
    struct entry *fresh = block_entry_new(cache, key, size);
    if (!fresh)
        return -ENOMEM;
    fresh->due = due;
    fresh->unused = true;
    int r = keep_reserve(cache, fresh);
    if (r < 0) {
        free(fresh);
        return r;
    }
    struct shard *shard = block_shard_of(cache, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_entry_link(shard, fresh);
    pthread_mutex_unlock(&shard->lock);
    if (!entry)
        return begin_mine(cache, fresh, ret_block);
    keep_unreserve(cache, fresh);
    free(fresh);
    return -EEXIST;
}

void block_cache_stats(const struct block_cache *cache, struct block_cache_stats *ret_stats)
{
    struct block_cache_stats stats = {.budget_bytes = atomic_load(&cache->budget)};
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = (struct shard *)(uintptr_t)&cache->shards[i];
        pthread_mutex_lock(&shard->lock);
        stats.hits += shard->hits;
        stats.misses += shard->misses;
        stats.waits += shard->waits;
        stats.evictions += shard->evictions;
        stats.ahead += shard->ahead_filled;
        stats.ahead_used += shard->ahead_used;
        stats.ahead_dropped += shard->ahead_dropped;
        pthread_mutex_unlock(&shard->lock);
    }
    stats.bytes = atomic_load_explicit(&cache->held.used, memory_order_relaxed) +
                  atomic_load_explicit(&cache->recent.used, memory_order_relaxed);
    stats.ahead_bytes = atomic_load_explicit(&cache->ahead_bytes, memory_order_relaxed);
    stats.blocks = atomic_load_explicit(&cache->blocks, memory_order_relaxed);
    *ret_stats = stats;
}
