/*
 * The hash tables of the shards, and the end of an entry. Functions of a table need its shard's
 * lock.
 */
#include <stdlib.h>

#include "block_cache_private.h"

struct shard *block_shard_of(struct block_cache *cache, uint64_t key)
{
    return &cache->shards[block_hash(key) >> 58]; /* 6 bits: SHARDS */
}

static struct entry **block_table_bucket_of(struct shard *shard, uint64_t key)
{
    return &shard->buckets[block_hash(key) & shard->bucket_mask];
}

struct entry *block_table_find(struct shard *shard, uint64_t key)
{
    struct entry *entry = *block_table_bucket_of(shard, key);
    while (entry && entry->key != key)
        entry = entry->next;
    return entry;
}

/* Doubles the buckets. Without memory for that, only the chains get longer. */
static void block_table_grow(struct shard *shard)
{
    size_t old_count = shard->bucket_mask + 1;
    struct entry **old = shard->buckets;
    struct entry **buckets = calloc(old_count * 2, sizeof(struct entry *));
    if (!buckets)
        return;
    shard->buckets = buckets;
    shard->bucket_mask = old_count * 2 - 1;
    for (size_t b = 0; b < old_count; b++) {
        struct entry *next;
        for (struct entry *entry = old[b]; entry; entry = next) {
            next = entry->next;
            struct entry **bucket = block_table_bucket_of(shard, entry->key);
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    free(old);
}

void block_table_link(struct shard *shard, struct entry *entry)
{
    if (shard->entries > shard->bucket_mask)
        block_table_grow(shard);
    struct entry **bucket = block_table_bucket_of(shard, entry->key);
    entry->next = *bucket;
    *bucket = entry;
    entry->linked = true;
    shard->entries++;
}

void block_table_unlink(struct shard *shard, struct entry *entry)
{
    if (!entry->linked)
        return;
    struct entry **link = block_table_bucket_of(shard, entry->key);
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    entry->linked = false;
    shard->entries--;
}

void block_entry_free(struct block_cache *cache, struct entry *entry)
{
    if (!entry)
        return;
    if (entry->block.bytes)
        buffer_pool_put(cache->pool, (void *)(uintptr_t)entry->block.bytes, entry->capacity);
    free(entry);
}
