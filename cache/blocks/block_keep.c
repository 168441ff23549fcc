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
#include <errno.h>
#include <stdlib.h>

#include "block_cache_private.h"
#include "numbers.h"

#define RING_BLOCKS 4u /* at least, so that the ring bridges the reads of one block */
#define RING_ENOUGH (64u << 20)
#define RING_PART 64u
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

uint64_t keep_spare_bytes(uint64_t budget_bytes)
{
    return min_u64(budget_bytes / SPARE_PART, SPARE_MAX);
}

/*
 * The ring's part of the budget: small, but with room for a few blocks. For these it may take
 * half of a small budget, and all of an even smaller one.
 */
static uint64_t ring_part(uint64_t usable, uint64_t block_bytes)
{
    uint64_t block = keep_cost_of(block_bytes + block_bytes / 8);
    uint64_t wanted = max_u64(min_u64(usable / RING_PART, RING_ENOUGH), RING_BLOCKS * block);
    return min_u64(usable, min_u64(wanted, max_u64(usable / 2, 2 * block)));
}

/* Memory that huge pages take beyond the bytes in use. */
static uint64_t huge_part(const struct block_cache_options *o)
{
    if (!o->huge_pages || o->budget_bytes < HUGE_BUDGET)
        return 0;
    return o->budget_bytes < HUGE_ALL_BUDGET ? 2u << 20 : 64u << 20;
}

uint64_t keep_budget_for(const struct block_cache *cache, uint64_t bytes)
{
    return bytes ? bytes + bytes / (SPARE_PART - 1) + huge_part(&cache->options) : 0;
}

void keep_set_budget(struct block_cache *cache, uint64_t budget_bytes)
{
    uint64_t taken = keep_spare_bytes(budget_bytes) + huge_part(&cache->options);
    uint64_t usable = budget_bytes > taken ? budget_bytes - taken : 0;
    uint64_t recent = ring_part(usable, min_u64(cache->options.block_bytes, BLOCK_MAX));
    atomic_store(&cache->budget, budget_bytes);
    atomic_store(&cache->recent.limit, recent);
    atomic_store(&cache->held.limit, usable - recent);
    keep_within(cache);
}

void keep_used(struct block_cache *cache, struct shard *shard, struct entry *entry)
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

void keep_place(struct block_cache *cache, struct entry *entry)
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

int keep_reserve(struct block_cache *cache, struct entry *entry)
{
    if (entry->due == BLOCK_DUE_UNKNOWN)
        return reserve_recent_or_held(cache, entry) ? 0 : -ENOBUFS;
    if (!make_room(cache, block_shard_of(cache, entry->key), keep_cost(entry), entry->due))
        return -ENOBUFS;
    entry->reserved = PLACE_AHEAD;
    return 0;
}

void keep_unreserve(struct block_cache *cache, struct entry *entry)
{
    if (entry->reserved != PLACE_NOWHERE)
        keep_subtract(&account_of(cache, entry->reserved)->used, keep_cost(entry));
    entry->reserved = PLACE_NOWHERE;
}

void keep_shrink_reserved(struct block_cache *cache, struct entry *entry, size_t capacity)
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

void block_cache_forget_order(struct block_cache *cache)
{
    release_everywhere(cache, BLOCK_DUE_UNKNOWN);
}

void block_cache_passed(struct block_cache *cache, uint64_t due)
{
    uint64_t last = keep_peek(&cache->passed);
    uint64_t blocks = keep_peek(&cache->blocks);
    if (due >= last && due - last < PASSED_STEP + blocks / PASSED_PART)
        return;
    atomic_store_explicit(&cache->passed, due, memory_order_relaxed);
    if (due > last)
        release_everywhere(cache, due);
}
