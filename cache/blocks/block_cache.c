/*
 * Finds and fills blocks, and has the memory that they lie in. An entry is in the table already
 * while its block is being filled, so that others find it and wait. Only the shard's lock
 * guards an entry. A block that is dropped while in use leaves the table and the accounts at
 * once, and its last user frees it.
 */
#include "block_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "block_cache_private.h"
#include "clock.h"
#include "numbers.h"
#include "thread.h"

/* ---- buffers ---- */

/*
 * Buffers in classes of nearly equal size: each power of two and fifteen steps up to the next,
 * in whole pages. Each class carves its buffers out of larger mappings and keeps two stacks of
 * free ones: warm (pages in place) and cold (pages given back). While the pool lives, addresses
 * are unmapped only when they run out. The number of mappings of a process is limited, and
 * unmapping stops all other threads.
 */

#define STEPS 16u /* classes between two powers of two */
#define STEPS_LOG 4u
#define CLASS_COUNT 512u /* enough for SIZE_LIMIT in pages of 4 KiB */
#define SIZE_LIMIT ((size_t)1 << 40)
#define HUGE_BYTES ((size_t)2 << 20) /* nothing is lost if they are larger or unknown */
#define CARVE_BYTES (4u << 20)
#define CARVE_SCARCE_BYTES (64u << 10) /* if addresses are scarce */

struct size_class {
    pthread_mutex_t lock;
    VECTOR(void *) warm, cold;
    size_t capacity; /* set with the first buffer */
    size_t total;    /* buffers carved so far: each stack has room for all */
    struct mapping *mappings;
};

struct mapping {
    struct mapping *next;
    void *start;
    size_t len;
    size_t count; /* of buffers */
};

struct buffer_pool {
    size_t page;
    size_t huge_min, huge_max; /* capacities that may lie on huge pages */
    bool not_for_children;
    bool scarce;          /* addresses are limited */
    struct account spare; /* bytes of warm buffers */
    struct size_class classes[CLASS_COUNT];
};

/*
 * The class of a size and its capacity, in pages. Up to STEPS pages, each count is a class of
 * its own; above, a power of two is cut in STEPS steps.
 */
static unsigned class_of(const struct buffer_pool *pool, size_t size, size_t *ret_capacity)
{
    size_t pages = size / pool->page + (size % pool->page != 0);
    if (pages <= STEPS) {
        pages += pages == 0;
        *ret_capacity = pages * pool->page;
        return (unsigned)pages - 1;
    }
    unsigned log = 63u - (unsigned)__builtin_clzll(pages - 1); /* 2^log < pages <= 2^(log+1) */
    size_t step = ((size_t)1 << log) / STEPS;
    size_t steps = (pages - ((size_t)1 << log) + step - 1) / step; /* 1 to STEPS */
    *ret_capacity = (((size_t)1 << log) + steps * step) * pool->page;
    return STEPS + (log - STEPS_LOG) * STEPS + (unsigned)steps - 1;
}

size_t buffer_pool_capacity(const struct buffer_pool *pool, size_t size)
{
    size_t capacity;
    class_of(pool, size, &capacity);
    return capacity;
}

/*
 * Are addresses or data limited (ulimit -v, -d)? Then memory is mapped and unmapped in small
 * pieces.
 */
static bool is_limited(int resource)
{
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)resource, &limit) == 0 &&
           limit.rlim_cur != RLIM_INFINITY;
}

int buffer_pool_new(uint64_t spare_bytes, size_t huge_min, size_t huge_max,
                    bool not_for_children, struct buffer_pool **ret_pool)
{
    struct buffer_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return -ENOMEM;
    pool->page = (size_t)sysconf(_SC_PAGESIZE);
    pool->not_for_children = not_for_children;
    pool->spare.limit = spare_bytes;
    pool->scarce = is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA);
    if (huge_max > 0) {
        pool->huge_min = buffer_pool_capacity(pool, huge_min);
        pool->huge_max = buffer_pool_capacity(pool, huge_max);
    }
    for (unsigned i = 0; i < CLASS_COUNT; i++)
        pthread_mutex_init(&pool->classes[i].lock, NULL);
    *ret_pool = pool;
    return 0;
}

void buffer_pool_free(struct buffer_pool *pool)
{
    if (!pool)
        return;
    for (unsigned i = 0; i < CLASS_COUNT; i++) {
        struct size_class *class = &pool->classes[i];
        while (class->mappings) {
            struct mapping *mapping = class->mappings;
            class->mappings = mapping->next;
            munmap(mapping->start, mapping->len);
            free(mapping);
        }
        vector_free(&class->warm);
        vector_free(&class->cold);
        pthread_mutex_destroy(&class->lock);
    }
    free(pool);
}

/*
 * Maps whole huge pages if wanted. They are filled buffer by buffer, and one fault instead of
 * 512 pays more than anything else here. Otherwise none, and none for the first buffers of a
 * class: a huge page would be charged for one buffer, in as many classes as blocks have sizes.
 */
static int pool_map(const struct buffer_pool *pool, bool huge, size_t len,
                    struct mapping *mapping, char **ret_start)
{
    mapping->len = huge ? len + HUGE_BYTES : len; /* room for alignment */
    mapping->start = mmap(NULL, mapping->len, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping->start == MAP_FAILED)
        return -ENOMEM;
    madvise(mapping->start, mapping->len, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (pool->not_for_children)
        madvise(mapping->start, mapping->len, MADV_DONTFORK);
    uintptr_t start = (uintptr_t)mapping->start;
    *ret_start = (char *)(huge ? (start + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1) : start);
    return 0;
}

/* Maps more buffers for a class whose stacks are empty. With its lock. */
static int pool_carve(const struct buffer_pool *pool, struct size_class *class, size_t capacity)
{
    size_t bytes = pool->scarce ? CARVE_SCARCE_BYTES : CARVE_BYTES;
    size_t count = bytes / capacity + (capacity > bytes);
    /* Room for all, so that giving a buffer back can't fail. */
    if (vector_reserve(&class->warm, class->total + count - class->warm.count) < 0 ||
        vector_reserve(&class->cold, class->total + count - class->cold.count) < 0)
        return -ENOMEM;
    struct mapping *mapping = malloc(sizeof(*mapping));
    if (!mapping)
        return -ENOMEM;
    char *start;
    const bool huge = class->total > 0 && capacity >= pool->huge_min &&
                      capacity <= pool->huge_max && !pool->scarce;
    if (pool_map(pool, huge, count * capacity, mapping, &start) < 0) {
        free(mapping);
        return -ENOMEM;
    }
    mapping->count = count;
    mapping->next = class->mappings;
    class->mappings = mapping;
    class->total += count;
    class->capacity = capacity;
    for (size_t i = count; i-- > 0;)
        class->cold.at[class->cold.count++] = start + i * capacity;
    return 0;
}

int buffer_pool_get(struct buffer_pool *pool, size_t size, void **ret_buffer)
{
    if (size > SIZE_LIMIT)
        return -ENOMEM;
    size_t capacity;
    struct size_class *class = &pool->classes[class_of(pool, size, &capacity)];
    int r = 0;
    pthread_mutex_lock(&class->lock);
    if (class->warm.count > 0) {
        *ret_buffer = class->warm.at[--class->warm.count];
        atomic_fetch_sub_explicit(&pool->spare.used, capacity, memory_order_relaxed);
    } else {
        if (class->cold.count == 0)
            r = pool_carve(pool, class, capacity);
        if (r == 0)
            *ret_buffer = class->cold.at[--class->cold.count];
    }
    pthread_mutex_unlock(&class->lock);
    return r;
}

void buffer_pool_put(struct buffer_pool *pool, void *buffer, size_t size)
{
    size_t capacity;
    struct size_class *class = &pool->classes[class_of(pool, size, &capacity)];
    bool warm = account_take(&pool->spare, capacity);
    if (!warm)
        madvise(buffer, capacity, MADV_DONTNEED);
    pthread_mutex_lock(&class->lock);
    if (warm)
        class->warm.at[class->warm.count++] = buffer;
    else
        class->cold.at[class->cold.count++] = buffer;
    pthread_mutex_unlock(&class->lock);
}

/* Gives back warm buffers of a class while there is too much spare memory. */
static void pool_cool(struct buffer_pool *pool, struct size_class *class)
{
    pthread_mutex_lock(&class->lock);
    while (class->warm.count > 0 &&
           atomic_load(&pool->spare.used) > atomic_load(&pool->spare.limit)) {
        void *buffer = class->warm.at[--class->warm.count];
        madvise(buffer, class->capacity, MADV_DONTNEED);
        atomic_fetch_sub_explicit(&pool->spare.used, class->capacity, memory_order_relaxed);
        class->cold.at[class->cold.count++] = buffer;
    }
    pthread_mutex_unlock(&class->lock);
}

static bool is_in(const struct mapping *mapping, const void *buffer)
{
    return (uintptr_t)buffer - (uintptr_t)mapping->start < mapping->len;
}

static size_t count_in(void *const *buffers, size_t count, const struct mapping *mapping)
{
    size_t inside = 0;
    for (size_t i = 0; i < count; i++)
        inside += is_in(mapping, buffers[i]);
    return inside;
}

/* Takes the buffers of a mapping off a stack; returns how many are left. */
static size_t remove_from(void **buffers, size_t count, const struct mapping *mapping)
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++)
        if (!is_in(mapping, buffers[i]))
            buffers[left++] = buffers[i];
    return left;
}

/* Unmaps the mappings of a class without a buffer in use. */
static bool unmap_unused(struct buffer_pool *pool, struct size_class *class)
{
    bool any = false;
    pthread_mutex_lock(&class->lock);
    for (struct mapping **link = &class->mappings; *link;) {
        struct mapping *mapping = *link;
        if (count_in(class->warm.at, class->warm.count, mapping) +
                count_in(class->cold.at, class->cold.count, mapping) <
            mapping->count) {
            link = &mapping->next;
            continue;
        }
        size_t warm = class->warm.count;
        class->warm.count = remove_from(class->warm.at, warm, mapping);
        class->cold.count = remove_from(class->cold.at, class->cold.count, mapping);
        atomic_fetch_sub(&pool->spare.used, (warm - class->warm.count) * class->capacity);
        class->total -= mapping->count;
        *link = mapping->next;
        munmap(mapping->start, mapping->len);
        free(mapping);
        any = true;
    }
    pthread_mutex_unlock(&class->lock);
    return any;
}

/*
 * Unmaps mappings of which no buffer is in use, and so gives back their addresses. False: there
 * were none. Slow: for when no more addresses can be had.
 */
static bool buffer_pool_unmap_unused(struct buffer_pool *pool)
{
    bool any = false;
    for (unsigned i = 0; i < CLASS_COUNT; i++)
        any |= unmap_unused(pool, &pool->classes[i]);
    return any;
}

/* Changes the limit on spare memory; any excess goes back to the system now. */
static void buffer_pool_set_spare(struct buffer_pool *pool, uint64_t spare_bytes)
{
    atomic_store(&pool->spare.limit, spare_bytes);
    for (unsigned i = 0; i < CLASS_COUNT; i++)
        pool_cool(pool, &pool->classes[i]);
}

/* ---- tables ---- */

/*
 * The hash tables of the shards, and the end of an entry. Functions of a table need its shard's
 * lock.
 */

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

static void block_table_unlink(struct shard *shard, struct entry *entry)
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

static void block_entry_free(struct block_cache *cache, struct entry *entry)
{
    if (!entry)
        return;
    if (entry->block.bytes)
        buffer_pool_put(cache->pool, (void *)(uintptr_t)entry->block.bytes, entry->capacity);
    free(entry);
}

/*
 * Decides which blocks stay. The place of a filled block is decided once: among the held (until
 * they fill their part of the budget), in the ring of recent ones, or nowhere, so that it is
 * freed when its last user puts it.
 *
 * The ring is an array of keys with one hand that writes and one that evicts. Slots are swapped
 * atomically, and the thread that swaps a key out drops its block. The ring has keys, not
 * pointers: a key that is no longer in the table is ignored.
 *
 * Held blocks lie in a list of their shard. The one to drop is the best of a few taken at
 * random: see choose_held(). Blocks with a place in a known order lie in a heap of their shard,
 * the last due on top. They move to the held when they are used, or when all readers have
 * passed their place. Other threads see without a lock which shard has the last due block of
 * all, and which shards have held blocks.
 */

#define RING_BLOCKS 4u /* at least, so that the ring bridges the reads of one block */
#define RING_ENOUGH (64u << 20)
#define RING_PART 64u
/* For what comes ahead of readers of large files: twice their windows (cache/ahead/plan.c). */
#define RING_AHEAD (64u << 20)
#define RING_AHEAD_LEAST (16u << 20) /* or half of the budget */
#define RING_AHEAD_PART 4u
#define SPARE_PART 128u
#define SPARE_MAX (8u << 20)
#define BLOCK_MAX (1u << 30) /* keeps sums from overflowing */
#define REPLACE_ONE_IN 32u
#define REPLACE_TRIES 4u
#define ROOM_TRIES 4096u
#define SAMPLE 8u
/*
 * In uses of the shard: how long a block is left alone, after a use for the next part of it,
 * and after it was filled ahead for its first use.
 */
#define LEAVE_ALONE 4u
#define LEAVE_UNUSED 256u
/*
 * Between two looks for blocks that readers left behind, this many numbers of the order must
 * pass, plus this part of the number of blocks. So many reads share the cost of a look.
 */
#define PASSED_STEP 128u
#define PASSED_PART 16u

#define keep_peek(counter) atomic_load_explicit(counter, memory_order_relaxed)

static struct account *account_of(struct block_cache *cache, enum entry_place place)
{
    return place == PLACE_RECENT ? &cache->recent : &cache->held;
}

static void keep_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void keep_subtract(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_sub_explicit(counter, n, memory_order_relaxed);
}

/* ---- lists of a shard; all need its lock ---- */

static void list_set(struct entry_list *list, size_t slot, struct entry *entry)
{
    list->at[slot] = entry;
    entry->slot = (uint32_t)slot;
}

static void keep_show(struct shard *shard)
{
    const struct entry_list *ahead = &shard->ahead;
    atomic_store_explicit(&shard->held_count, (uint32_t)shard->held.count,
                          memory_order_relaxed);
    atomic_store_explicit(&shard->last_due, ahead->count ? ahead->at[0]->due + 1 : 0,
                          memory_order_relaxed);
}

static void heap_up(struct entry_list *heap, struct entry *entry)
{
    uint32_t slot = entry->slot;
    for (; slot > 0 && heap->at[(slot - 1) / 2]->due < entry->due; slot = (slot - 1) / 2)
        list_set(heap, slot, heap->at[(slot - 1) / 2]);
    list_set(heap, slot, entry);
}

static void heap_down(struct entry_list *heap, struct entry *entry)
{
    uint32_t slot = entry->slot;
    for (;;) {
        uint32_t child = 2 * slot + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && heap->at[child + 1]->due > heap->at[child]->due)
            child++;
        if (heap->at[child]->due <= entry->due)
            break;
        list_set(heap, slot, heap->at[child]);
        slot = child;
    }
    list_set(heap, slot, entry);
}

/* Adds to the heap, and makes sure that the entry can move to `held` later. */
static bool heap_add(struct shard *shard, struct entry *entry)
{
    if (vector_reserve(&shard->ahead, 1) < 0 ||
        vector_reserve(&shard->held, shard->ahead.count + 1) < 0)
        return false;
    list_set(&shard->ahead, shard->ahead.count++, entry);
    heap_up(&shard->ahead, entry);
    return true;
}

static void heap_moved(struct entry_list *heap, struct entry *entry)
{
    heap_up(heap, entry);
    heap_down(heap, entry);
}

static void list_remove(struct shard *shard, struct entry *entry)
{
    struct entry_list *list = entry->place == PLACE_AHEAD ? &shard->ahead : &shard->held;
    struct entry *last = list->at[--list->count];
    if (last == entry)
        return;
    list_set(list, entry->slot, last);
    if (list == &shard->ahead)
        heap_moved(list, last);
}

static bool held_add(struct shard *shard, struct entry *entry)
{
    /* Entries in `ahead` will move here later. */
    if (vector_reserve(&shard->held, shard->ahead.count + 1) < 0)
        return false;
    list_set(&shard->held, shard->held.count++, entry);
    return true;
}

static void ahead_to_held(struct block_cache *cache, struct shard *shard, struct entry *entry)
{
    list_remove(shard, entry);
    entry->place = PLACE_HELD;
    held_add(shard, entry);
    keep_subtract(&cache->ahead_bytes, keep_cost(entry));
    keep_show(shard);
}

/* Takes its place from an entry, which leaves the table, too. Its last user frees it. */
static void displace(struct block_cache *cache, struct shard *shard, struct entry *entry)
{
    keep_subtract(&account_of(cache, entry->place)->used, keep_cost(entry));
    if (entry->place != PLACE_RECENT) {
        list_remove(shard, entry);
        if (entry->place == PLACE_AHEAD)
            keep_subtract(&cache->ahead_bytes, keep_cost(entry));
        keep_show(shard);
    }
    keep_subtract(&cache->blocks, 1);
    entry->place = PLACE_NOWHERE;
    block_table_unlink(shard, entry);
}

/* Drops an entry that has a place. Returns it if nobody uses it, to be freed without the lock.
 */
static struct entry *keep_evict(struct block_cache *cache, struct shard *shard,
                                struct entry *entry)
{
    displace(cache, shard, entry);
    shard->evictions++;
    shard->ahead_dropped += entry->unused;
    return entry->users == 0 ? entry : NULL;
}

void block_cache_let_go(struct block_cache *cache, struct block *block)
{
    struct entry *entry = (struct entry *)block;
    struct shard *shard = block_shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    if (entry->place != PLACE_NOWHERE)
        displace(cache, shard, entry);
    pthread_mutex_unlock(&shard->lock);
}

void block_cache_forget(struct block_cache *cache, uint64_t key)
{
    struct shard *shard = block_shard_of(cache, key);
    struct entry *gone = NULL;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_table_find(shard, key);
    if (entry && entry->place != PLACE_NOWHERE)
        gone = keep_evict(cache, shard, entry);
    else if (entry)
        block_table_unlink(shard, entry); /* and so it gets no place: see set_place */
    pthread_mutex_unlock(&shard->lock);
    block_entry_free(cache, gone);
}

/* ---- the ring ---- */

static void ring_write(struct block_cache *cache, uint64_t key);

/*
 * Drops the recent block called `key`, which was just taken out of the ring. Or writes it once
 * more, if it was filled ahead of its use and `may_spare` is set.
 */
static void ring_drop(struct block_cache *cache, uint64_t key, bool may_spare)
{
    struct shard *shard = block_shard_of(cache, key);
    struct entry *gone = NULL;
    bool spare = false;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_table_find(shard, key);
    if (entry && entry->place == PLACE_RECENT) {
        spare = may_spare && entry->unused && !entry->spared;
        if (spare)
            entry->spared = true;
        else
            gone = keep_evict(cache, shard, entry);
    }
    pthread_mutex_unlock(&shard->lock);
    block_entry_free(cache, gone);
    if (spare)
        ring_write(cache, key);
}

static void ring_write(struct block_cache *cache, uint64_t key)
{
    uint64_t slot = atomic_fetch_add(&cache->ring_head, 1) % RING_SLOTS;
    uint64_t old = atomic_exchange(&cache->ring[slot], key);
    if (old != NO_KEY)
        ring_drop(cache, old, false);
}

/* Drops the oldest block of the ring, or spares it once. False if the ring is empty. */
static bool ring_evict(struct block_cache *cache)
{
    for (unsigned i = 0; i < RING_SLOTS; i++) {
        uint64_t slot = atomic_fetch_add(&cache->ring_hand, 1) % RING_SLOTS;
        uint64_t key = atomic_exchange(&cache->ring[slot], NO_KEY);
        if (key != NO_KEY) {
            ring_drop(cache, key, true);
            return true;
        }
    }
    return false;
}

static bool ring_reserve(struct block_cache *cache, uint64_t bytes)
{
    if (bytes > keep_peek(&cache->recent.limit))
        return false;
    while (!account_take(&cache->recent, bytes))
        if (!ring_evict(cache))
            return false;
    return true;
}

/* ---- eviction ---- */

static uint64_t next_random(struct shard *shard)
{
    shard->random ^= shard->random << 13;
    shard->random ^= shard->random >> 7;
    shard->random ^= shard->random << 17;
    return shard->random;
}

/*
 * Chooses a held entry to drop, or NULL. From a few at random, it takes the one unused for
 * longest, if that is twice as long as any block waited that was used again. Otherwise the data
 * is still in use; if it is read in epochs, the block used last is due last. Then the choice is
 * that block, or none with `only_disused`. With the lock.
 */
static struct entry *choose_held(struct shard *shard, bool only_disused)
{
    const struct entry_list *list = &shard->held;
    struct entry *oldest = NULL, *newest = NULL, *any = NULL;
    uint32_t longest = 0, shortest = UINT32_MAX;
    for (unsigned i = 0; i < SAMPLE && list->count > 0; i++) {
        struct entry *entry = list->at[next_random(shard) % list->count];
        uint32_t age = shard->clock - entry->used_at;
        any = entry;
        if (entry->users > 0 || (entry->unused && age < LEAVE_UNUSED))
            continue;
        if (!oldest || age > longest) {
            oldest = entry;
            longest = age;
        }
        if (age >= LEAVE_ALONE && age < shortest) {
            newest = entry;
            shortest = age;
        }
    }
    if (oldest && longest / 2 > shard->longest_interval)
        return oldest;
    if (only_disused)
        return NULL;
    return newest ? newest : oldest ? oldest : any;
}

/* Drops a held block of the shard; see choose_held. */
static bool drop_held_of(struct block_cache *cache, struct shard *shard, bool only_disused)
{
    struct entry *gone = NULL;
    pthread_mutex_lock(&shard->lock);
    struct entry *victim = choose_held(shard, only_disused);
    if (victim)
        gone = keep_evict(cache, shard, victim);
    pthread_mutex_unlock(&shard->lock);
    block_entry_free(cache, gone);
    return victim;
}

/* Drops a held block, of this shard if it has any. */
static bool drop_held(struct block_cache *cache, struct shard *shard)
{
    size_t first = (size_t)(shard - cache->shards);
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *next = &cache->shards[(first + i) % SHARDS];
        if (keep_peek(&next->held_count) > 0 && drop_held_of(cache, next, false))
            return true;
    }
    return false;
}

/* Drops the block that is due last, if that is number `first` of the order or later. */
static bool drop_due_from(struct block_cache *cache, uint64_t first)
{
    struct shard *shard = NULL;
    uint64_t last = first;
    for (unsigned i = 0; i < SHARDS; i++) {
        uint64_t here = keep_peek(&cache->shards[i].last_due);
        if (here > last) {
            last = here;
            shard = &cache->shards[i];
        }
    }
    if (!shard)
        return false;
    struct entry *gone = NULL;
    pthread_mutex_lock(&shard->lock);
    struct entry *top = shard->ahead.count ? shard->ahead.at[0] : NULL;
    if (top && top->due >= first)
        gone = keep_evict(cache, shard, top);
    pthread_mutex_unlock(&shard->lock);
    block_entry_free(cache, gone);
    return true; /* or it was used meanwhile: the caller looks again */
}

/* Reserves room among the held for a block with number `due`. */
static bool make_room(struct block_cache *cache, struct shard *shard, uint64_t bytes,
                      uint64_t due)
{
    if (bytes > keep_peek(&cache->held.limit))
        return false;
    for (unsigned i = 0; i < ROOM_TRIES; i++) {
        if (account_take(&cache->held, bytes))
            return true;
        if (!drop_held(cache, shard) && !drop_due_from(cache, due + 1))
            return false;
    }
    return false;
}

/*
 * Lets one newcomer in 32 take the place of held blocks of its shard that are no longer used.
 * During an epoch there are none, and all held blocks stay.
 */
static bool replace_held(struct block_cache *cache, uint64_t key, uint64_t bytes)
{
    uint64_t turn = atomic_fetch_add_explicit(&cache->newcomers, 1, memory_order_relaxed);
    if (turn % REPLACE_ONE_IN != REPLACE_ONE_IN - 1 || bytes > keep_peek(&cache->held.limit))
        return false;
    struct shard *shard = block_shard_of(cache, key);
    for (unsigned i = 0; i < REPLACE_TRIES; i++) {
        bool none_held = keep_peek(&shard->held_count) == 0;
        if (!drop_held_of(cache, shard, true) && !(none_held && drop_due_from(cache, 0)))
            return false;
        if (account_take(&cache->held, bytes))
            return true;
    }
    return false;
}

/* Drops what exceeds a budget that shrank. */
static void keep_within(struct block_cache *cache)
{
    while (keep_peek(&cache->held.used) > keep_peek(&cache->held.limit))
        if (!drop_held(cache, cache->shards) && !drop_due_from(cache, 0))
            return;
    while (keep_peek(&cache->recent.used) > keep_peek(&cache->recent.limit))
        if (!ring_evict(cache))
            return;
}

/* ---- for block_cache.c ---- */

/* How much of the budget may stay in freed buffers. */
static uint64_t keep_spare_bytes(uint64_t budget_bytes)
{
    return min_u64(budget_bytes / SPARE_PART, SPARE_MAX);
}

/* Memory that huge pages take beyond the bytes in use. */
static uint64_t huge_part(const struct block_cache_options *o)
{
    if (!o->huge_pages || o->budget_bytes < HUGE_BUDGET)
        return 0;
    return o->budget_bytes < HUGE_ALL_BUDGET ? 2u << 20 : 64u << 20;
}

/* The budget that leaves `bytes` for blocks. */
static uint64_t keep_budget_for(const struct block_cache *cache, uint64_t bytes)
{
    return bytes ? bytes + bytes / (SPARE_PART - 1) + huge_part(&cache->options) : 0;
}

/*
 * Divides the budget into its parts, and drops any excess. The ring's part is small, but has
 * room for a few blocks. For these it may take half of a small budget, and all of an even
 * smaller one.
 */
static void keep_set_budget(struct block_cache *cache, uint64_t budget_bytes)
{
    uint64_t taken = keep_spare_bytes(budget_bytes) + huge_part(&cache->options);
    uint64_t usable = budget_bytes > taken ? budget_bytes - taken : 0;
    uint64_t bytes = min_u64(cache->options.block_bytes, BLOCK_MAX);
    uint64_t block = keep_cost_of(bytes + bytes / 8);
    uint64_t wanted = max_u64(min_u64(usable / RING_PART, RING_ENOUGH), RING_BLOCKS * block);
    uint64_t recent = min_u64(usable, min_u64(wanted, max_u64(usable / 2, 2 * block)));
    atomic_store(&cache->budget, budget_bytes);
    atomic_store(&cache->recent.limit, recent);
    atomic_store(&cache->held.limit, usable - recent);
    keep_within(cache);
}

/* Notes a use: the entry was found, or its filler wants it. With the lock. */
static void keep_used(struct block_cache *cache, struct shard *shard, struct entry *entry)
{
    shard->clock++;
    shard->ahead_used += entry->unused;
    entry->unused = false;
    if (entry->place == PLACE_AHEAD) {
        ahead_to_held(cache, shard, entry);
    } else if (entry->place == PLACE_HELD) {
        uint32_t interval = shard->clock - entry->used_at;
        if (interval > shard->longest_interval)
            shard->longest_interval = interval;
        else
            shard->longest_interval -= shard->longest_interval / 1024; /* slowly forgotten */
    }
    entry->used_at = shard->clock;
}

/* Gives the entry a place for which it has room, unless it was forgotten meanwhile. */
static void set_place(struct block_cache *cache, struct entry *entry, enum entry_place place)
{
    struct shard *shard = block_shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    bool placed = entry->linked;
    shard->ahead_filled += entry->reserved != PLACE_NOWHERE;
    if (place == PLACE_AHEAD && !entry->unused)
        place = PLACE_HELD; /* it was wanted meanwhile */
    if (placed && place == PLACE_AHEAD)
        placed = heap_add(shard, entry);
    else if (placed && place == PLACE_HELD)
        placed = held_add(shard, entry);
    if (placed) {
        entry->place = place;
        keep_add(&cache->blocks, 1);
        if (place == PLACE_AHEAD)
            keep_add(&cache->ahead_bytes, keep_cost(entry));
        keep_show(shard);
    } else {
        keep_subtract(&account_of(cache, place)->used, keep_cost(entry));
    }
    pthread_mutex_unlock(&shard->lock);
    /* Set its place first: the thread that takes the key out of the ring must find it so. */
    if (placed && place == PLACE_RECENT)
        ring_write(cache, entry->key);
}

/* Decides where a filled block stays. Its filler still counts as a user. */
static void keep_place(struct block_cache *cache, struct entry *entry)
{
    uint64_t bytes = keep_cost(entry);
    if (entry->reserved != PLACE_NOWHERE)
        set_place(cache, entry, entry->reserved);
    else if (account_take(&cache->held, bytes) || replace_held(cache, entry->key, bytes))
        set_place(cache, entry, PLACE_HELD);
    else if (ring_reserve(cache, bytes))
        set_place(cache, entry, PLACE_RECENT);
    keep_within(cache);
}

static bool reserve_recent_or_held(struct block_cache *cache, struct entry *entry)
{
    if (account_take(&cache->held, keep_cost(entry)))
        entry->reserved = PLACE_HELD;
    else if (ring_reserve(cache, keep_cost(entry)))
        entry->reserved = PLACE_RECENT;
    return entry->reserved != PLACE_NOWHERE;
}

/* Reserves room for a block of known capacity that is filled ahead; -ENOBUFS. */
static int keep_reserve(struct block_cache *cache, struct entry *entry)
{
    if (entry->due == BLOCK_DUE_UNKNOWN)
        return reserve_recent_or_held(cache, entry) ? 0 : -ENOBUFS;
    if (!make_room(cache, block_shard_of(cache, entry->key), keep_cost(entry), entry->due))
        return -ENOBUFS;
    entry->reserved = PLACE_AHEAD;
    return 0;
}

/* Gives back the reserved room, or the part of it not needed; `capacity` is the old one. */
static void keep_unreserve(struct block_cache *cache, struct entry *entry)
{
    if (entry->reserved != PLACE_NOWHERE)
        keep_subtract(&account_of(cache, entry->reserved)->used, keep_cost(entry));
    entry->reserved = PLACE_NOWHERE;
}

static void keep_shrink_reserved(struct block_cache *cache, struct entry *entry,
                                 size_t capacity)
{
    if (entry->reserved != PLACE_NOWHERE)
        keep_subtract(&account_of(cache, entry->reserved)->used,
                      keep_cost_of(capacity) - keep_cost(entry));
}

/* Gives a held or recent entry a place in the order; its bytes count as held. */
static bool to_ahead(struct block_cache *cache, struct shard *shard, struct entry *entry,
                     uint64_t due)
{
    entry->due = due;
    if (entry->place == PLACE_HELD)
        list_remove(shard, entry);
    bool moved = heap_add(shard, entry);
    if (moved) {
        entry->place = PLACE_AHEAD;
        keep_add(&cache->ahead_bytes, keep_cost(entry));
    } else if (entry->place == PLACE_HELD) {
        held_add(shard, entry); /* back to its place: there is room */
    }
    keep_show(shard);
    return moved;
}

/* Moves a block out of the ring, which first needs room among the held. */
static void keep_promote(struct block_cache *cache, uint64_t key, uint64_t due, uint64_t bytes)
{
    struct shard *shard = block_shard_of(cache, key);
    if (!make_room(cache, shard, bytes, due))
        return;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_table_find(shard, key);
    bool moved = entry && entry->place == PLACE_RECENT && keep_cost(entry) == bytes &&
                 to_ahead(cache, shard, entry, due);
    pthread_mutex_unlock(&shard->lock);
    keep_subtract(moved ? &cache->recent.used : &cache->held.used, bytes);
}

void block_cache_note_due(struct block_cache *cache, uint64_t key, uint64_t due)
{
    struct shard *shard = block_shard_of(cache, key);
    uint64_t recent_bytes = 0;
    if (due == BLOCK_DUE_UNKNOWN)
        return;
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = block_table_find(shard, key);
    if (entry && entry->place == PLACE_AHEAD) {
        entry->due = due;
        heap_moved(&shard->ahead, entry);
        keep_show(shard);
    } else if (entry && entry->place == PLACE_HELD) {
        to_ahead(cache, shard, entry, due);
    } else if (entry && entry->place == PLACE_RECENT) {
        recent_bytes = keep_cost(entry);
    }
    pthread_mutex_unlock(&shard->lock);
    if (recent_bytes)
        keep_promote(cache, key, due, recent_bytes);
}

/*
 * Moves all entries that were due before `due` from the heap to the held; the rest becomes a
 * heap again.
 */
static void release_passed(struct block_cache *cache, struct shard *shard, uint64_t due)
{
    struct entry_list *ahead = &shard->ahead;
    size_t kept = 0;
    for (size_t i = 0; i < ahead->count; i++) {
        struct entry *entry = ahead->at[i];
        if (entry->due >= due) {
            list_set(ahead, kept++, entry);
            continue;
        }
        entry->place = PLACE_HELD;
        entry->used_at = shard->clock - LEAVE_UNUSED;
        list_set(&shard->held, shard->held.count++, entry); /* heap_add made room for it */
        keep_subtract(&cache->ahead_bytes, keep_cost(entry));
    }
    ahead->count = kept;
    for (size_t i = kept / 2; i-- > 0;)
        heap_down(ahead, ahead->at[i]);
    keep_show(shard);
}

static void release_everywhere(struct block_cache *cache, uint64_t due)
{
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *shard = &cache->shards[i];
        pthread_mutex_lock(&shard->lock);
        release_passed(cache, shard, due);
        pthread_mutex_unlock(&shard->lock);
    }
}

void block_cache_passed(struct block_cache *cache, uint64_t due, bool is_new_order)
{
    if (is_new_order)
        release_everywhere(cache, BLOCK_DUE_UNKNOWN);
    uint64_t last = keep_peek(&cache->passed);
    uint64_t blocks = keep_peek(&cache->blocks);
    if (due >= last && due - last < PASSED_STEP + blocks / PASSED_PART)
        return;
    atomic_store_explicit(&cache->passed, due, memory_order_relaxed);
    if (due > last)
        release_everywhere(cache, due);
}

#define FIRST_BUCKETS 16u

int block_cache_new(const struct block_cache_options *options, struct block_cache **ret_cache)
{
    struct block_cache *cache = aligned_alloc(128, sizeof(*cache));
    if (!cache)
        return -ENOMEM;
    memset(cache, 0, sizeof(*cache));
    cache->options = *options;
    const bool huge = options->huge_pages && options->budget_bytes >= HUGE_BUDGET;
    int r = buffer_pool_new(keep_spare_bytes(options->budget_bytes),
                            options->budget_bytes < HUGE_ALL_BUDGET ? options->block_bytes : 1,
                            huge ? options->block_bytes : 0, options->not_for_children,
                            &cache->pool);
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
    if (entry)
        return entry;
    if (shard->entries > shard->bucket_mask)
        block_table_grow(shard);
    struct entry **bucket = block_table_bucket_of(shard, fresh->key);
    fresh->next = *bucket;
    *bucket = fresh;
    fresh->linked = true;
    shard->entries++;
    return NULL;
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
    struct shard *shard = block_shard_of(cache, entry->key);
    pthread_mutex_lock(&shard->lock);
    bool wanted = entry->state == LOADING;
    if (wanted) {
        entry->state = result < 0 ? FAILED : READY;
        entry->err = result;
        if (result < 0)
            block_table_unlink(shard, entry); /* the next thread that asks tries again */
        pthread_cond_broadcast(&shard->loaded);
    }
    pthread_mutex_unlock(&shard->lock);
    if (!wanted)
        keep_unreserve(cache, entry); /* it seemed stuck: another thread fills it instead */
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

/*
 * Blocks without a known place pass through the ring, and more of them are on their way than a
 * small one holds. It grows at the cost of used blocks, but not of those that wait for their
 * use.
 */
static void ring_grow(struct block_cache *cache, uint64_t key, uint64_t bytes)
{
    const uint64_t budget = atomic_load(&cache->budget);
    const uint64_t most = max_u64(min_u64(budget / RING_AHEAD_PART, RING_AHEAD),
                                  min_u64(budget / 2, RING_AHEAD_LEAST));
    bool has_room = true;
    if (keep_peek(&cache->recent.limit) >= most || keep_peek(&cache->held.limit) < bytes)
        return;
    keep_subtract(&cache->held.limit, bytes);
    while (has_room && keep_peek(&cache->held.used) > keep_peek(&cache->held.limit))
        has_room = drop_held(cache, block_shard_of(cache, key));
    keep_add(has_room ? &cache->recent.limit : &cache->held.limit, bytes);
}

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
    if (due == BLOCK_DUE_UNKNOWN)
        ring_grow(cache, key, keep_cost(fresh));
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
