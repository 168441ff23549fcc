/*
 * How it works. An entry is found through the hash table of its shard; while its
 * block is being filled it is already there, so that others find it and wait. Nothing
 * but the shard's lock guards an entry, and no two locks are ever held together.
 *
 * Where a filled block stays is decided once: among the held (until they fill their
 * part of the budget), in the ring of recent ones, or nowhere: then it goes when its
 * last user puts it. The ring is an array of keys with a hand that writes and a hand
 * that evicts; slots are swapped atomically, and whoever swaps a key out drops its
 * block. Keys, not pointers: a key that is no longer in the table is simply ignored.
 * A block that is dropped while it is used leaves the table and the accounts at once
 * and is freed by its last user.
 */
#include "block_cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "buffer_pool.h"

#define SHARDS 64u
#define FIRST_BUCKETS 16u
#define RING_SLOTS 1024u
#define RING_BLOCKS 4u /* in the ring at least, so that it bridges the reads of one block */
#define RING_ENOUGH (64u << 20)
#define SPARE_MAX (8u << 20)
#define BLOCK_MAX (1u << 30) /* for sums that can't overflow */
/* From here on, blocks of the usual size lie on huge pages; and smaller ones as well. */
#define HUGE_BUDGET (64u << 20)
#define HUGE_ALL_BUDGET (1024u << 20)
#define NO_KEY UINT64_MAX
#define REPLACE_ONE_IN 32u
#define REPLACE_TRIES 4u

enum entry_state { LOADING, READY, FAILED };
enum entry_place { PLACE_NOWHERE, PLACE_HELD, PLACE_RECENT };

struct entry {
    struct block block; /* the first member: what callers have is the entry */
    uint64_t key;
    struct entry *next; /* in its bucket */
    size_t capacity;
    uint32_t users; /* threads that fill, wait or read */
    int err;
    enum entry_state state;
    enum entry_place place;
    bool linked; /* in the table */
};

struct shard {
    _Alignas(128) pthread_mutex_t lock;
    pthread_cond_t loaded; /* some entry of the shard is no longer LOADING */
    struct entry **buckets;
    size_t bucket_mask;
    size_t entries;
    uint64_t random;
    uint64_t hits, misses, waits, evictions;
};

struct block_cache {
    uint64_t budget, held_limit, recent_limit;
    struct buffer_pool *pool;
    _Alignas(128) _Atomic uint64_t held_bytes;
    _Atomic uint64_t recent_bytes;
    _Atomic uint64_t blocks; /* held and recent */
    _Atomic uint64_t newcomers;
    _Atomic uint64_t ring_head, ring_hand; /* write and evict here next */
    _Atomic uint64_t ring[RING_SLOTS];
    struct shard shards[SHARDS];
};

/* Keys are offsets, which share their low bits: mix them (the finaliser of MurmurHash3). */
static uint64_t hash(uint64_t key)
{
    key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdu;
    key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53u;
    return key ^ (key >> 33);
}

static struct shard *shard_of(struct block_cache *cache, uint64_t key)
{
    return &cache->shards[hash(key) >> 58]; /* 6 bits: SHARDS */
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/*
 * The ring's part: a sixteenth, but room for a few blocks, for which it may take half
 * of a small budget, and all of one that is smaller still.
 */
static uint64_t ring_part(uint64_t usable, uint64_t block_bytes)
{
    uint64_t block = block_bytes + block_bytes / 8 + sizeof(struct entry);
    uint64_t wanted = most(least(usable / 16, RING_ENOUGH), RING_BLOCKS * block);
    return least(usable, least(wanted, most(usable / 2, 2 * block)));
}

/* What huge pages take that is not in use. */
static uint64_t huge_part(uint64_t budget_bytes)
{
    if (budget_bytes < HUGE_BUDGET)
        return 0;
    return budget_bytes < HUGE_ALL_BUDGET ? 2u << 20 : 64u << 20;
}

int block_cache_new(uint64_t budget_bytes, size_t block_bytes, struct block_cache **ret_cache)
{
    struct block_cache *cache = aligned_alloc(128, sizeof(*cache));
    if (!cache)
        return -ENOMEM;
    memset(cache, 0, sizeof(*cache));
    block_bytes = least(block_bytes, BLOCK_MAX);
    uint64_t spare = least(budget_bytes / 16, SPARE_MAX);
    uint64_t usable = budget_bytes - spare - huge_part(budget_bytes);
    uint64_t recent = ring_part(usable, block_bytes);
    cache->budget = budget_bytes;
    cache->recent_limit = recent;
    cache->held_limit = usable - recent;
    int r = buffer_pool_new(spare, budget_bytes < HUGE_ALL_BUDGET ? block_bytes : 1,
                            budget_bytes < HUGE_BUDGET ? 0 : block_bytes, &cache->pool);
    for (unsigned i = 0; i < RING_SLOTS; i++)
        atomic_init(&cache->ring[i], NO_KEY);
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shards[i];
        pthread_mutex_init(&shard->lock, NULL);
        pthread_cond_init(&shard->loaded, NULL);
        shard->random = hash(i + 1);
        shard->bucket_mask = FIRST_BUCKETS - 1;
        shard->buckets = calloc(FIRST_BUCKETS, sizeof(*shard->buckets));
        if (!shard->buckets)
            r = -ENOMEM;
    }
    if (r < 0) {
        block_cache_free(cache);
        return r;
    }
    *ret_cache = cache;
    return 0;
}

void block_cache_not_for_children(struct block_cache *cache)
{
    buffer_pool_not_for_children(cache->pool);
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
        pthread_cond_destroy(&shard->loaded);
        pthread_mutex_destroy(&shard->lock);
    }
    buffer_pool_free(cache->pool);
    free(cache);
}

/* What a block costs: its buffer and its entry. */
static uint64_t cost(const struct entry *entry)
{
    return entry->capacity + sizeof(*entry);
}

/* Take `bytes` of what is left below `limit`. */
static bool reserve(_Atomic uint64_t *used, uint64_t limit, uint64_t bytes)
{
    uint64_t now = atomic_load_explicit(used, memory_order_relaxed);
    do {
        if (bytes > limit || now > limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(
        used, &now, now + bytes, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* The hash table of a shard; all with its lock held. */

static struct entry **bucket_of(struct shard *shard, uint64_t key)
{
    return &shard->buckets[hash(key) & shard->bucket_mask];
}

static struct entry *table_find(struct shard *shard, uint64_t key)
{
    struct entry *entry = *bucket_of(shard, key);
    while (entry && entry->key != key)
        entry = entry->next;
    return entry;
}

/* Twice the buckets. Without memory for them the chains get longer, that is all. */
static void table_grow(struct shard *shard)
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
            struct entry **bucket = bucket_of(shard, entry->key);
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    free(old);
}

static void table_link(struct shard *shard, struct entry *entry)
{
    if (shard->entries > shard->bucket_mask)
        table_grow(shard);
    struct entry **bucket = bucket_of(shard, entry->key);
    entry->next = *bucket;
    *bucket = entry;
    entry->linked = true;
    shard->entries++;
}

static void table_unlink(struct shard *shard, struct entry *entry)
{
    if (!entry->linked)
        return;
    struct entry **link = bucket_of(shard, entry->key);
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    entry->linked = false;
    shard->entries--;
}

static void entry_free(struct block_cache *cache, struct entry *entry)
{
    if (!entry)
        return;
    if (entry->block.bytes)
        buffer_pool_put(cache->pool, (void *)(uintptr_t)entry->block.bytes, entry->capacity);
    free(entry);
}

/*
 * Stop using an entry. Returns it if that was its last user and nothing keeps it, to
 * be freed without the lock.
 */
static struct entry *entry_leave(struct shard *shard, struct entry *entry)
{
    if (--entry->users > 0 || entry->place != PLACE_NOWHERE)
        return NULL;
    table_unlink(shard, entry);
    return entry;
}

/* Drop a held or recent entry. Returns it if nobody uses it, as entry_leave does. */
static struct entry *entry_evict(struct block_cache *cache, struct shard *shard,
                                 struct entry *entry)
{
    atomic_fetch_sub_explicit(entry->place == PLACE_HELD ? &cache->held_bytes
                                                         : &cache->recent_bytes,
                              cost(entry), memory_order_relaxed);
    atomic_fetch_sub_explicit(&cache->blocks, 1, memory_order_relaxed);
    entry->place = PLACE_NOWHERE;
    shard->evictions++;
    table_unlink(shard, entry);
    return entry->users == 0 ? entry : NULL;
}

static void set_place(struct block_cache *cache, struct entry *entry, enum entry_place place)
{
    struct shard *shard = shard_of(cache, entry->key);
    atomic_fetch_add_explicit(&cache->blocks, 1, memory_order_relaxed);
    pthread_mutex_lock(&shard->lock);
    entry->place = place;
    pthread_mutex_unlock(&shard->lock);
}

/* Drop the recent block called `key`, which was just taken out of the ring. */
static void ring_drop(struct block_cache *cache, uint64_t key)
{
    struct shard *shard = shard_of(cache, key);
    struct entry *gone = NULL;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = table_find(shard, key);
    if (entry && entry->place == PLACE_RECENT)
        gone = entry_evict(cache, shard, entry);
    pthread_mutex_unlock(&shard->lock);
    entry_free(cache, gone);
}

/* Drop the oldest block of the ring. False if the ring is empty. */
static bool ring_evict(struct block_cache *cache)
{
    for (unsigned i = 0; i < RING_SLOTS; i++) {
        uint64_t slot = atomic_fetch_add(&cache->ring_hand, 1) % RING_SLOTS;
        uint64_t key = atomic_exchange(&cache->ring[slot], NO_KEY);
        if (key != NO_KEY) {
            ring_drop(cache, key);
            return true;
        }
    }
    return false;
}

static void ring_add(struct block_cache *cache, struct entry *entry)
{
    if (cost(entry) > cache->recent_limit || entry->key == NO_KEY)
        return;
    while (!reserve(&cache->recent_bytes, cache->recent_limit, cost(entry)))
        if (!ring_evict(cache))
            return;
    /* The place first: whoever takes the key out of the ring has to find it so. */
    set_place(cache, entry, PLACE_RECENT);
    uint64_t slot = atomic_fetch_add(&cache->ring_head, 1) % RING_SLOTS;
    uint64_t old = atomic_exchange(&cache->ring[slot], entry->key);
    if (old != NO_KEY)
        ring_drop(cache, old);
}

/* A held entry of the shard: the first one from a random bucket on. With its lock. */
static struct entry *random_held(struct shard *shard)
{
    shard->random ^= shard->random << 13;
    shard->random ^= shard->random >> 7;
    shard->random ^= shard->random << 17;
    for (size_t i = 0; i <= shard->bucket_mask; i++) {
        struct entry *entry = shard->buckets[(shard->random + i) & shard->bucket_mask];
        for (; entry; entry = entry->next)
            if (entry->place == PLACE_HELD)
                return entry;
    }
    return NULL;
}

/* Make room for a newcomer by dropping held blocks of its shard, and reserve it. */
static bool replace_held(struct block_cache *cache, struct entry *newcomer)
{
    struct shard *shard = shard_of(cache, newcomer->key);
    for (unsigned i = 0; i < REPLACE_TRIES; i++) {
        struct entry *gone = NULL;
        pthread_mutex_lock(&shard->lock);
        struct entry *victim = random_held(shard);
        if (victim)
            gone = entry_evict(cache, shard, victim);
        pthread_mutex_unlock(&shard->lock);
        entry_free(cache, gone);
        if (!victim)
            return false;
        if (reserve(&cache->held_bytes, cache->held_limit, cost(newcomer)))
            return true;
    }
    return false;
}

/* Decide where a filled block stays. Its filler still counts as a user. */
static void place(struct block_cache *cache, struct entry *entry)
{
    if (reserve(&cache->held_bytes, cache->held_limit, cost(entry))) {
        set_place(cache, entry, PLACE_HELD);
        return;
    }
    uint64_t turn = atomic_fetch_add_explicit(&cache->newcomers, 1, memory_order_relaxed);
    if (turn % REPLACE_ONE_IN == REPLACE_ONE_IN - 1 && cost(entry) <= cache->held_limit &&
        replace_held(cache, entry))
        set_place(cache, entry, PLACE_HELD);
    else
        ring_add(cache, entry);
}

/* Move a block that turned out much smaller than its buffer to one that fits. */
static void trim(struct block_cache *cache, struct entry *entry)
{
    size_t fitting = buffer_pool_capacity(cache->pool, entry->block.len);
    void *bytes;
    if (fitting > entry->capacity - entry->capacity / 4 ||
        buffer_pool_get(cache->pool, fitting, &bytes) < 0)
        return;
    memcpy(bytes, entry->block.bytes, entry->block.len);
    buffer_pool_put(cache->pool, (void *)(uintptr_t)entry->block.bytes, entry->capacity);
    entry->block.bytes = bytes;
    entry->capacity = fitting;
}

/* Fill the entry, which is LOADING: nobody else looks at its block until it is not. */
static int load(struct block_cache *cache, struct entry *entry, size_t size, block_fill *fill,
                void *ctx)
{
    void *bytes;
    int r = buffer_pool_get(cache->pool, size, &bytes);
    if (r < 0)
        return r;
    entry->block.bytes = bytes;
    entry->capacity = buffer_pool_capacity(cache->pool, size);
    r = fill(ctx, entry->key, bytes, size, &entry->block.len);
    if (r < 0)
        return r;
    if (entry->block.len > size)
        return -EUCLEAN;
    trim(cache, entry);
    return 0;
}

/* The fill is done: tell those who wait. */
static void publish(struct shard *shard, struct entry *entry, int err)
{
    pthread_mutex_lock(&shard->lock);
    entry->state = err < 0 ? FAILED : READY;
    entry->err = err;
    if (err < 0)
        table_unlink(shard, entry); /* the next one who asks tries again */
    pthread_cond_broadcast(&shard->loaded);
    pthread_mutex_unlock(&shard->lock);
}

static int fill_new(struct block_cache *cache, struct shard *shard, struct entry *entry,
                    size_t size, block_fill *fill, void *ctx, struct block **ret_block)
{
    int r = load(cache, entry, size, fill, ctx);
    publish(shard, entry, r);
    if (r < 0) {
        block_cache_put(cache, &entry->block);
        return r;
    }
    place(cache, entry);
    *ret_block = &entry->block;
    return 0;
}

/*
 * Use an entry that is in the table, once it is no longer LOADING. With the lock, which
 * is released while it waits.
 */
static int join(struct shard *shard, struct entry *entry, block_wait *wait, void *ctx,
                struct entry **ret_gone)
{
    entry->users++;
    if (entry->state == LOADING) {
        shard->waits++;
        if (wait) {
            pthread_mutex_unlock(&shard->lock);
            wait(ctx);
            pthread_mutex_lock(&shard->lock);
        }
        while (entry->state == LOADING)
            pthread_cond_wait(&shard->loaded, &shard->lock);
    } else {
        shard->hits++;
    }
    int r = entry->state == FAILED ? entry->err : 0;
    if (r < 0)
        *ret_gone = entry_leave(shard, entry);
    return r;
}

int block_cache_try(struct block_cache *cache, uint64_t key, struct block **ret_block)
{
    struct shard *shard = shard_of(cache, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = table_find(shard, key);
    bool ready = entry && entry->state == READY;
    if (ready) {
        entry->users++;
        shard->hits++;
        *ret_block = &entry->block;
    }
    pthread_mutex_unlock(&shard->lock);
    return ready ? 0 : -EAGAIN;
}

int block_cache_get(struct block_cache *cache, uint64_t key, size_t size, block_fill *fill,
                    block_wait *wait, void *ctx, struct block **ret_block)
{
    if (block_cache_try(cache, key, ret_block) == 0)
        return 0;
    /* Allocated before the lock is taken; one more look then tells if it is needed. */
    struct entry *fresh = calloc(1, sizeof(*fresh));
    if (!fresh)
        return -ENOMEM;
    fresh->key = key;
    fresh->users = 1;

    struct shard *shard = shard_of(cache, key);
    struct entry *gone = NULL;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = table_find(shard, key);
    if (!entry) {
        shard->misses++;
        table_link(shard, fresh);
        pthread_mutex_unlock(&shard->lock);
        return fill_new(cache, shard, fresh, size, fill, ctx, ret_block);
    }
    int r = join(shard, entry, wait, ctx, &gone);
    pthread_mutex_unlock(&shard->lock);
    free(fresh);
    entry_free(cache, gone);
    if (r == 0)
        *ret_block = &entry->block;
    return r;
}

void block_cache_put(struct block_cache *cache, struct block *block)
{
    struct entry *entry = (struct entry *)block;
    struct shard *shard = shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    struct entry *gone = entry_leave(shard, entry);
    pthread_mutex_unlock(&shard->lock);
    entry_free(cache, gone);
}

void block_cache_stats(const struct block_cache *cache, struct block_cache_stats *ret_stats)
{
    struct block_cache_stats stats = {.budget_bytes = cache->budget};
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = (struct shard *)(uintptr_t)&cache->shards[i];
        pthread_mutex_lock(&shard->lock);
        stats.hits += shard->hits;
        stats.misses += shard->misses;
        stats.waits += shard->waits;
        stats.evictions += shard->evictions;
        pthread_mutex_unlock(&shard->lock);
    }
    stats.bytes = atomic_load_explicit(&cache->held_bytes, memory_order_relaxed) +
                  atomic_load_explicit(&cache->recent_bytes, memory_order_relaxed);
    stats.blocks = atomic_load_explicit(&cache->blocks, memory_order_relaxed);
    *ret_stats = stats;
}
