/*
 * What holds in a block cache whenever no thread is inside one of its functions: the tables
 * find their entries, the heaps are heaps, and the accounts are the sums over the entries.
 */
#ifndef ONEPOT_BLOCK_CACHE_CHECK_H
#define ONEPOT_BLOCK_CACHE_CHECK_H

#include "block_cache_private.h"
#include "suite.h"

/* Counted anew, over all entries. */
struct cache_sums {
    uint64_t held_bytes, ahead_bytes, recent_bytes, blocks;
};

static bool is_in_ring(struct block_cache *cache, uint64_t key)
{
    for (unsigned i = 0; i < RING_SLOTS; i++)
        if (atomic_load(&cache->ring[i]) == key)
            return true;
    return false;
}

/* Blocks that are being filled ahead have their room, but no place. */
static void check_place(struct block_cache *cache, struct shard *shard, struct entry *entry,
                        struct cache_sums *sums)
{
    enum entry_place counts = entry->place == PLACE_NOWHERE ? entry->reserved : entry->place;
    uint64_t cost = keep_cost(entry);
    sums->blocks += entry->place != PLACE_NOWHERE;
    sums->ahead_bytes += entry->place == PLACE_AHEAD ? cost : 0;
    sums->held_bytes += counts == PLACE_HELD || counts == PLACE_AHEAD ? cost : 0;
    sums->recent_bytes += counts == PLACE_RECENT ? cost : 0;
    if (entry->place == PLACE_HELD)
        ck_assert_ptr_eq(shard->held.at[entry->slot], entry);
    else if (entry->place == PLACE_AHEAD)
        ck_assert_ptr_eq(shard->ahead.at[entry->slot], entry);
    else if (entry->place == PLACE_RECENT)
        ck_assert(is_in_ring(cache, entry->key));
    else
        ck_assert_uint_gt(entry->users, 0);
    ck_assert(entry->place == PLACE_NOWHERE || entry->state == READY);
}

static void check_table(struct block_cache *cache, struct shard *shard, struct cache_sums *sums)
{
    size_t entries = 0, held = 0, ahead = 0;
    for (size_t b = 0; b <= shard->bucket_mask; b++) {
        for (struct entry *entry = shard->buckets[b]; entry; entry = entry->next) {
            ck_assert_ptr_eq(block_shard_of(cache, entry->key), shard);
            ck_assert_ptr_eq(block_table_find(shard, entry->key), entry);
            ck_assert(entry->linked);
            check_place(cache, shard, entry, sums);
            held += entry->place == PLACE_HELD;
            ahead += entry->place == PLACE_AHEAD;
            entries++;
        }
    }
    ck_assert_uint_eq(entries, shard->entries);
    ck_assert_uint_le(entries, shard->bucket_mask + 1); /* so that chains are short */
    ck_assert_uint_eq(held, shard->held.count);
    ck_assert_uint_eq(ahead, shard->ahead.count);
}

static void check_lists(struct shard *shard)
{
    const struct entry_list *heap = &shard->ahead;
    for (uint32_t i = 1; i < heap->count; i++)
        ck_assert_uint_ge(heap->at[(i - 1) / 2]->due, heap->at[i]->due);
    ck_assert_uint_le(heap->count, heap->capacity);
    /* The others move there when they are used, which must not fail. */
    ck_assert_uint_le(shard->held.count + heap->count, shard->held.capacity);
    ck_assert_uint_eq(atomic_load(&shard->held_count), shard->held.count);
    ck_assert_uint_eq(atomic_load(&shard->last_due), heap->count ? heap->at[0]->due + 1 : 0);
}

static void block_cache_check(struct block_cache *cache)
{
    struct cache_sums sums = {0};
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shards[i];
        pthread_mutex_lock(&shard->lock);
        check_table(cache, shard, &sums);
        check_lists(shard);
        pthread_mutex_unlock(&shard->lock);
    }
    ck_assert_uint_eq(atomic_load(&cache->held.used), sums.held_bytes);
    ck_assert_uint_eq(atomic_load(&cache->ahead_bytes), sums.ahead_bytes);
    ck_assert_uint_eq(atomic_load(&cache->recent.used), sums.recent_bytes);
    ck_assert_uint_eq(atomic_load(&cache->blocks), sums.blocks);
    ck_assert_uint_le(sums.held_bytes, atomic_load(&cache->held.limit));
    ck_assert_uint_le(sums.recent_bytes, atomic_load(&cache->recent.limit));
    ck_assert_uint_le(sums.held_bytes + sums.recent_bytes, atomic_load(&cache->budget));
}

/* Frees a cache of which no block is in use: all is right, and nothing is left of what is
 * dropped. */
static void block_cache_check_and_free(struct block_cache *cache)
{
    block_cache_check(cache);
    block_cache_set_budget(cache, 0);
    block_cache_check(cache);
    ck_assert_uint_eq(atomic_load(&cache->blocks), 0);
    for (unsigned i = 0; i < SHARDS; i++)
        ck_assert_uint_eq(cache->shards[i].entries, 0);
    block_cache_free(cache);
}

#endif
