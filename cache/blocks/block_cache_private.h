/*
 * The parts of block_cache.c that its suite checks.
 *
 * Locks: a shard's lock guards its table, its lists and all fields of its entries except the
 * block's bytes. No two locks are ever held together.
 */
#ifndef ONEPOT_BLOCK_CACHE_PRIVATE_H
#define ONEPOT_BLOCK_CACHE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "block_cache.h"
#include "vector.h"

/* ---- buffers ---- */

/*
 * Memory for decompressed blocks. malloc has two drawbacks here. With one arena for each thread
 * it keeps more than was asked for, which a budget in a job's cgroup can't see. And it gives
 * pages back and faults them in again at each turn of a full cache. Here a freed buffer is the
 * next one handed out, still in place, up to a limit on such spare memory. Beyond it the pages
 * go back to the system at once.
 *
 * Threads: many threads may call all functions at once. A lock is held for a push or a pop, and
 * now and then for an mmap.
 */

struct buffer_pool;

/* Bytes in use, and their limit. */
struct account {
    _Atomic uint64_t used, limit;
};

/* Takes `bytes` from the room below the limit. */
static inline bool account_take(struct account *account, uint64_t bytes)
{
    uint64_t limit = atomic_load_explicit(&account->limit, memory_order_relaxed);
    uint64_t now = atomic_load_explicit(&account->used, memory_order_relaxed);
    do {
        if (bytes > limit || now > limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(
        &account->used, &now, now + bytes, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/*
 * `spare_bytes`: how much freed memory may stay resident. Buffers of `huge_min` to `huge_max`
 * bytes lie on huge pages, if the system has them and 4 MiB of that size are in use already.
 * That takes up to 2 MiB for each such size beyond the bytes in use, but filling them first
 * takes a tenth of the time. `huge_max` 0: no huge pages. `not_for_children`: a forked child
 * won't have the buffers (MADV_DONTFORK), so that the kernel need not copy each page that is
 * filled anew while the child lives. -ENOMEM.
 */
int buffer_pool_new(uint64_t spare_bytes, size_t huge_min, size_t huge_max,
                    bool not_for_children, struct buffer_pool **ret_pool);
void buffer_pool_free(struct buffer_pool *pool); /* frees all its buffers */

/*
 * The real size of a buffer for `size` bytes: whole pages, at most a sixteenth more than asked
 * for.
 */
size_t buffer_pool_capacity(const struct buffer_pool *pool, size_t size);

/* A buffer of buffer_pool_capacity(size) bytes, page-aligned, contents undefined. -ENOMEM. */
int buffer_pool_get(struct buffer_pool *pool, size_t size, void **ret_buffer);

/* `size`: the size that was asked for, or the capacity. */
void buffer_pool_put(struct buffer_pool *pool, void *buffer, size_t size);

/* ---- the cache ---- */

#define SHARDS 64u
#define RING_SLOTS 4096u
#define NO_KEY UINT64_MAX
/* From these budgets on, blocks of the usual size lie on huge pages, and smaller ones, too. */
#define HUGE_BUDGET (64u << 20)
#define HUGE_ALL_BUDGET (1024u << 20)

enum entry_state { LOADING, READY, FAILED };

enum entry_place {
    PLACE_NOWHERE, /* freed when its last user puts it */
    PLACE_HELD,    /* in `held` of its shard */
    PLACE_AHEAD,   /* in `ahead` of its shard: not used yet, with a known place in the order */
    PLACE_RECENT,  /* its key is in the ring */
};

struct entry {
    struct block block; /* must be first: callers' pointers to it are pointers to the entry */
    uint64_t key;
    uint64_t due;       /* only AHEAD */
    struct entry *next; /* in its bucket */
    size_t capacity;
    uint32_t slot;     /* HELD, AHEAD: index in the list */
    uint32_t users;    /* threads that fill, wait or read */
    uint32_t used_at;  /* the shard's clock at its last use */
    uint64_t began_ns; /* CLOCK_MONOTONIC; set only with stuck_ms */
    int err;
    enum entry_state state;
    enum entry_place place;
    enum entry_place reserved; /* the place where it already has room, before it is filled */
    bool linked;               /* in the table */
    bool unused;               /* filled ahead, and not wanted so far */
    bool unpacks;              /* LOADING: its fill takes CPU time only */
    bool spared;               /* RECENT: the ring's hand has spared it once */
};

/* Entries in an array: HELD ones in no order, AHEAD ones as a heap with the last due on top. */
struct entry_list {
    struct entry **at;
    size_t count, capacity;
};

struct shard {
    _Alignas(128) pthread_mutex_t lock;
    pthread_cond_t loaded; /* some entry of the shard is no longer LOADING */
    struct entry **buckets;
    size_t bucket_mask;
    size_t entries;
    struct entry_list held, ahead;
    uint64_t random;
    uint32_t clock;            /* uses of blocks of this shard, whether found or not */
    uint32_t longest_interval; /* recently, between two uses of a held block */
    uint64_t hits, misses, waits, evictions;
    uint64_t ahead_filled, ahead_used, ahead_dropped;
    /* Readable by other threads without the lock. */
    _Atomic uint32_t held_count;
    _Atomic uint64_t last_due; /* the last `due` in `ahead`, plus one; 0: none */
};

struct block_cache {
    struct block_cache_options options;
    struct buffer_pool *pool;
    _Atomic uint64_t budget;
    _Alignas(128) struct account held; /* HELD and AHEAD, bookkeeping included */
    struct account recent;
    _Atomic uint64_t ahead_bytes;
    _Atomic uint64_t blocks; /* held, ahead and recent */
    _Atomic uint64_t newcomers;
    _Atomic uint64_t passed; /* number in the order at the last look for unused blocks */
    _Atomic uint64_t ring_head, ring_hand; /* next slots to write and to evict */
    _Atomic uint64_t ring[RING_SLOTS];
    struct shard shards[SHARDS];
};

/* The cost of a block: its buffer, its entry, its place in a bucket and in lists. */
static inline uint64_t keep_cost_of(size_t capacity)
{
    return capacity + sizeof(struct entry) + 4 * sizeof(void *);
}

static inline uint64_t keep_cost(const struct entry *entry)
{
    return keep_cost_of(entry->capacity);
}

/* Keys are offsets, which share their low bits: mix them (the finaliser of MurmurHash3). */
static inline uint64_t block_hash(uint64_t key)
{
    key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdu;
    key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53u;
    return key ^ (key >> 33);
}

struct shard *block_shard_of(struct block_cache *cache, uint64_t key);
struct entry *block_table_find(struct shard *shard, uint64_t key);

#endif
