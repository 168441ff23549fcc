/* The block cache: single flight, its budget, what it keeps, and many threads at once. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "block_cache.h"
#include "block_cache_check.h"
#include "sanitizer.h"
#include "suite.h"

#define BLOCK 131072u

/* A fill that counts, fails or blocks as told. */
struct filler {
    _Atomic unsigned calls;
    _Atomic unsigned open;         /* the fill waits until this is not 0 */
    _Atomic int error;             /* what it returns then */
    size_t len;                    /* what it fills, 0: all */
    _Atomic unsigned waits;        /* threads that were told that they would wait */
    _Atomic unsigned unpack_waits; /* or that the other one has all bytes */
    struct block_cache *unpacks;   /* tells this cache that it has */
};

static unsigned char pattern(uint64_t key, size_t i)
{
    return (unsigned char)(key * 31 + i * 7 + (i >> 8));
}

static int fill(void *ctx, uint64_t key, struct block *block, size_t size, size_t *ret_len)
{
    struct filler *filler = ctx;
    if (filler->unpacks)
        block_cache_unpacks(filler->unpacks, block);
    atomic_fetch_add(&filler->calls, 1);
    while (!atomic_load(&filler->open))
        sched_yield();
    if (atomic_load(&filler->error))
        return atomic_load(&filler->error);
    size_t len = filler->len ? filler->len : size;
    unsigned char *bytes = block_buffer(block);
    for (size_t i = 0; i < len && i < size; i += 97)
        bytes[i] = pattern(key, i);
    *ret_len = len;
    return 0;
}

static void count_wait(void *ctx, bool unpacks)
{
    struct filler *filler = ctx;
    atomic_fetch_add(unpacks ? &filler->unpack_waits : &filler->waits, 1);
}

static bool right(const struct block *block, uint64_t key)
{
    for (size_t i = 0; i < block->len; i += 97)
        if (block->bytes[i] != pattern(key, i))
            return false;
    return true;
}

static int new_cache(uint64_t budget, size_t block_bytes, struct block_cache **ret_cache)
{
    struct block_cache_options options = {
        .budget_bytes = budget, .block_bytes = block_bytes, .huge_pages = true};
    return block_cache_new(&options, ret_cache);
}

/* Get and put a block; true if it was there. */
static bool touch(struct block_cache *cache, struct filler *filler, uint64_t key, size_t size)
{
    unsigned before = atomic_load(&filler->calls);
    struct block *block;
    if (block_cache_get(cache, key, size, fill, NULL, filler, &block) < 0 || !right(block, key))
        ck_abort_msg("no block, or not its bytes");
    block_cache_put(cache, block);
    return atomic_load(&filler->calls) == before;
}

static struct block_cache_stats stats_of(const struct block_cache *cache)
{
    struct block_cache_stats stats;
    block_cache_stats(cache, &stats);
    return stats;
}

START_TEST(second_get_is_a_hit)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    ck_assert(!touch(cache, &filler, 42, BLOCK));
    ck_assert(touch(cache, &filler, 42, BLOCK));
    ck_assert(!touch(cache, &filler, 43, BLOCK));
    struct block_cache_stats stats = stats_of(cache);
    ck_assert_uint_eq(stats.hits, 1);
    ck_assert_uint_eq(stats.misses, 2);
    ck_assert_uint_eq(stats.blocks, 2);
    ck_assert_uint_ge(stats.bytes, 2 * BLOCK);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(try_never_fills)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *block;
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_try(cache, 42, &block), -EAGAIN);
    ck_assert_uint_eq(stats_of(cache).misses, 0);
    touch(cache, &filler, 42, BLOCK);
    ck_assert_int_eq(block_cache_try(cache, 42, &block), 0);
    ck_assert(right(block, 42));
    block_cache_put(cache, block);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(without_a_budget_nothing_stays)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *first, *second;
    ck_assert_int_eq(new_cache(0, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, BLOCK, fill, NULL, &filler, &first), 0);
    /* A block in use is shared all the same. */
    ck_assert_int_eq(block_cache_get(cache, 1, BLOCK, fill, NULL, &filler, &second), 0);
    ck_assert_ptr_eq(first, second);
    block_cache_put(cache, first);
    ck_assert(right(second, 1));
    block_cache_put(cache, second);
    ck_assert(!touch(cache, &filler, 1, BLOCK));
    ck_assert_uint_eq(stats_of(cache).bytes, 0);
    ck_assert_uint_eq(stats_of(cache).blocks, 0);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(budget_is_never_exceeded)
{
    static const uint64_t budgets[] = {1, 5000, 200000, 1u << 20, 5u << 20, 33333333};
    unsigned seed = 7;
    for (unsigned b = 0; b < 6; b++) {
        struct block_cache *cache;
        struct filler filler = {.open = 1};
        ck_assert_int_eq(new_cache(budgets[b], 1u << (10 + b * 2), &cache), 0);
        for (unsigned i = 0; i < 2000; i++) {
            uint64_t key = (uint64_t)rand_r(&seed) % 1000;
            touch(cache, &filler, key, 1 + (key * 7919) % (1u << (10 + key % 11)));
            if (stats_of(cache).bytes > budgets[b])
                ck_abort_msg("over the budget");
        }
        block_cache_check_and_free(cache);
    }
}
END_TEST

START_TEST(small_content_of_a_large_block_costs_little)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1, .len = 100};
    ck_assert_int_eq(new_cache(64u << 20, 1u << 20, &cache), 0);
    for (uint64_t key = 0; key < 100; key++)
        touch(cache, &filler, key, 1u << 20);
    ck_assert_uint_eq(stats_of(cache).blocks, 100);
    ck_assert_uint_lt(stats_of(cache).bytes, 100 * 70000);
    for (uint64_t key = 0; key < 100; key++)
        ck_assert(touch(cache, &filler, key, 1u << 20));
    block_cache_check_and_free(cache);
}
END_TEST

/* An order of 0..n-1 that is a function of the epoch. */
static void shuffle(unsigned *order, unsigned n, unsigned epoch)
{
    unsigned seed = epoch * 1000 + 1;
    for (unsigned i = 0; i < n; i++)
        order[i] = i;
    for (unsigned i = n - 1; i > 0; i--) {
        unsigned j = (unsigned)rand_r(&seed) % (i + 1);
        unsigned t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

START_TEST(epochs_hit_in_the_share_that_fits)
{
    enum { BLOCKS = 2000, SIZE = 16384 };
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    unsigned order[BLOCKS];
    ck_assert_int_eq(new_cache((uint64_t)BLOCKS * SIZE / 2, SIZE, &cache), 0);
    for (unsigned epoch = 0; epoch < 4; epoch++) {
        unsigned hits = 0;
        shuffle(order, BLOCKS, epoch);
        for (unsigned i = 0; i < BLOCKS; i++)
            hits += touch(cache, &filler, order[i], SIZE);
        /* Half fits; least-recently-used would hit in 15 %. */
        if (epoch > 0)
            ck_assert_uint_gt(hits, BLOCKS * 40 / 100);
    }
    block_cache_check_and_free(cache);
}
END_TEST

/* Hits of one shuffled epoch. */
static unsigned run_epoch(struct block_cache *cache, struct filler *filler, unsigned *order,
                          unsigned blocks, size_t size, unsigned epoch)
{
    unsigned hits = 0;
    shuffle(order, blocks, epoch);
    for (unsigned i = 0; i < blocks; i++)
        hits += touch(cache, filler, order[i], size);
    return hits;
}

START_TEST(four_times_the_budget_hits_in_nine_tenths_of_what_fits)
{
    enum { SIZE = 20480, BLOCKS = 3200, BUDGET = BLOCKS / 4 * SIZE };
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    unsigned order[BLOCKS];
    ck_assert_int_eq(new_cache(BUDGET, SIZE, &cache), 0);
    for (unsigned epoch = 0; epoch < 5; epoch++) {
        unsigned hits = run_epoch(cache, &filler, order, BLOCKS, SIZE, epoch);
        ck_assert_uint_le(stats_of(cache).bytes, BUDGET);
        if (epoch > 0)
            ck_assert_uint_ge(hits, BLOCKS / 4 * 9 / 10);
    }
    block_cache_check_and_free(cache);
}
END_TEST

/* Bring a block in ahead of its use; what block_cache_begin_ahead said. */
static int ahead(struct block_cache *cache, struct filler *filler, uint64_t key, uint64_t due)
{
    struct block *block;
    size_t len = 0;
    int r = block_cache_begin_ahead(cache, key, BLOCK, due, &block);
    if (r < 0)
        return r;
    r = fill(filler, key, block, BLOCK, &len);
    r = block_cache_end(cache, block, r, len);
    if (r == 0)
        block_cache_put(cache, block);
    return r;
}

/* Fill the room of the held with blocks that are due from 0 on; returns how many that are. */
static unsigned fill_ahead(struct block_cache *cache, struct filler *filler)
{
    unsigned n = 0;
    while (ahead(cache, filler, n, n) == 0)
        n++;
    return n;
}

START_TEST(what_is_due_last_goes_first)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    unsigned n = fill_ahead(cache, &filler);
    ck_assert_uint_gt(n, 100);
    /* Not earlier than the last of them: no room. Earlier: in its place. */
    ck_assert_int_eq(ahead(cache, &filler, 5000, n + 5), -ENOBUFS);
    ck_assert_int_eq(ahead(cache, &filler, 5000, n - 1), -ENOBUFS);
    ck_assert_int_eq(ahead(cache, &filler, 6000, 7), 0);
    ck_assert(!block_cache_has(cache, n - 1));
    ck_assert(block_cache_has(cache, n - 2));
    /* One was used: there is room for one, and what was used has made it. */
    ck_assert(touch(cache, &filler, 0, BLOCK));
    ck_assert_int_eq(ahead(cache, &filler, 5000, n + 5), 0);
    ck_assert(!block_cache_has(cache, 0));
    for (unsigned i = 1; i < n - 1; i++)
        ck_assert(touch(cache, &filler, i, BLOCK));
    struct block_cache_stats stats = stats_of(cache);
    ck_assert_uint_le(stats.bytes, stats.budget_bytes);
    ck_assert_uint_eq(stats.ahead, n + 2);
    ck_assert_uint_eq(stats.ahead_used, n - 1);
    ck_assert_uint_eq(stats.ahead_dropped, 1);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(blocks_ahead_take_the_room_of_used_ones)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    for (uint64_t key = 1000; key < 1500; key++)
        touch(cache, &filler, key, BLOCK);
    unsigned n = fill_ahead(cache, &filler);
    ck_assert_uint_gt(n, 100);
    /* Neither newcomers nor blocks without a place drive them out: but for one in 32, in
       case the order is wrong. */
    for (uint64_t key = 2000; key < 2030; key++) {
        touch(cache, &filler, key, BLOCK);
        ahead(cache, &filler, key + 100, BLOCK_DUE_UNKNOWN);
    }
    unsigned hits = 0;
    for (unsigned i = 0; i < n; i++)
        hits += touch(cache, &filler, i, BLOCK);
    ck_assert_uint_ge(hits, n - 3);
    ck_assert_uint_le(stats_of(cache).bytes, 16u << 20);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(blocks_ahead_without_a_place_stay_until_they_are_used)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    for (uint64_t key = 1000; key < 1500; key++)
        touch(cache, &filler, key, BLOCK);
    for (unsigned at = 0; at < 480; at += 24) { /* a reader follows, 3 MiB behind */
        for (unsigned i = at; i < at + 24; i++)
            ck_assert_int_eq(ahead(cache, &filler, i, BLOCK_DUE_UNKNOWN), 0);
        for (unsigned i = at; at >= 24 && i < at + 24; i++)
            ck_assert(touch(cache, &filler, i - 24, BLOCK) || at < 72);
    }
    ck_assert_uint_le(stats_of(cache).bytes, 16u << 20);
    ck_assert_uint_le(stats_of(cache).ahead_dropped, 24);
    unsigned hits = 0;
    for (uint64_t key = 1000; key < 1500; key++)
        hits += block_cache_has(cache, key);
    ck_assert_uint_gt(hits, 56); /* half of the budget stays with what was held */
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(an_order_that_is_forgotten_holds_nothing)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    unsigned n = fill_ahead(cache, &filler);
    ck_assert_uint_gt(stats_of(cache).ahead_bytes, 0);
    block_cache_passed(cache, 0, true);
    ck_assert_uint_eq(stats_of(cache).ahead_bytes, 0);
    for (uint64_t i = 0; i < n; i++)
        ck_assert_int_eq(ahead(cache, &filler, 10000 + i, n + i), 0);
    ck_assert_uint_eq(stats_of(cache).ahead_dropped, n);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(what_readers_have_passed_makes_room)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    unsigned n = 0;
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    while (ahead(cache, &filler, n, 100 * (uint64_t)n) == 0)
        n++;
    uint64_t bytes = stats_of(cache).ahead_bytes;
    block_cache_passed(cache, 50, false); /* not worth a look */
    ck_assert_int_eq(ahead(cache, &filler, 9999, 1000000), -ENOBUFS);
    block_cache_passed(cache, 100 * (uint64_t)(n / 2), false);
    ck_assert_uint_eq(stats_of(cache).ahead_bytes, bytes / n * (n - n / 2));
    for (uint64_t i = 0; i < n / 2; i++)
        ck_assert_int_eq(ahead(cache, &filler, 10000 + i, 1000000 + i), 0);
    ck_assert_int_eq(ahead(cache, &filler, 9999, 2000000), -ENOBUFS);
    /* What is due is there, and the last of it goes first as before. */
    ck_assert_int_eq(ahead(cache, &filler, 9999, 999999), 0);
    ck_assert(!block_cache_has(cache, 10000 + n / 2 - 1));
    for (unsigned i = n / 2; i < n; i++)
        ck_assert(touch(cache, &filler, i, BLOCK));
    /* Readers that went back have passed nothing. */
    block_cache_passed(cache, 0, false);
    ck_assert_uint_gt(stats_of(cache).ahead_bytes, 0);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(a_block_that_is_there_takes_its_place_in_the_order)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    touch(cache, &filler, 77, BLOCK);
    ck_assert_int_eq(ahead(cache, &filler, 77, 3), -EEXIST);
    ck_assert_uint_gt(stats_of(cache).ahead_bytes, 0);
    for (uint64_t i = 0; i < 500; i++)
        ahead(cache, &filler, 10000 + i, 100 + i);
    ck_assert(block_cache_has(cache, 77));
    ck_assert_int_eq(ahead(cache, &filler, 77, 1000000), -EEXIST);
    ck_assert_int_eq(ahead(cache, &filler, 5, 0), 0);
    ck_assert(!block_cache_has(cache, 77));
    block_cache_check_and_free(cache);
}
END_TEST

/* Keys of one shard, so that its heap and its lists are long. */
static uint64_t key_of_one_shard(struct block_cache *cache, unsigned n)
{
    uint64_t key = 0;
    for (unsigned found = 0; found <= n; key++)
        found += block_shard_of(cache, key) == cache->shards;
    return key - 1;
}

static unsigned next_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33);
}

/* One call of any kind, on any of the keys. */
static void do_anything(struct block_cache *cache, struct filler *filler, const uint64_t *keys,
                        unsigned key_count, uint64_t *state)
{
    uint64_t key = keys[next_number(state) % key_count], due = next_number(state) % 1000;
    size_t size = 1 + next_number(state) % 8192;
    struct block *block;
    atomic_store(&filler->error, next_number(state) % 8 == 0 ? -EIO : 0);
    filler->len = 1 + next_number(state) % size; /* often much less: trimmed */
    switch (next_number(state) % 16) {
    case 0:
        block_cache_passed(cache, 0, true);
        break;
    case 1:
        block_cache_passed(cache, due, false);
        break;
    case 2:
        block_cache_set_budget(cache, next_number(state) % (256u << 10));
        break;
    case 3 ... 6:
        block_cache_note_due(cache, key, due);
        break;
    case 7 ... 10:
        if (block_cache_begin_ahead(cache, key, size, due % 10 ? due : BLOCK_DUE_UNKNOWN,
                                    &block) == BLOCK_MINE) {
            size_t len = 0;
            int r = fill(filler, key, block, size, &len);
            block_cache_check(cache); /* its room is reserved */
            if (block_cache_end(cache, block, r, len) == 0)
                block_cache_put(cache, block);
        }
        break;
    default:
        if (block_cache_get(cache, key, size, fill, NULL, filler, &block) < 0)
            break;
        if (next_number(state) % 8 == 0)
            block_cache_let_go(cache, block);
        block_cache_put(cache, block);
    }
}

START_TEST(accounts_and_heaps_are_right_whatever_is_called)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    uint64_t keys[96], state = (uint64_t)_i + 1;
    ck_assert_int_eq(new_cache(256u << 10, 4096, &cache), 0);
    for (unsigned i = 0; i < 96; i++)
        keys[i] = key_of_one_shard(cache, i);
    for (unsigned i = 0; i < 1500; i++) {
        do_anything(cache, &filler, keys, 96, &state);
        block_cache_check(cache);
    }
    block_cache_check_and_free(cache);
}
END_TEST

/* Also the one that is read first of all. */
START_TEST(budget_that_shrinks_drops_blocks_that_are_due)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(ahead(cache, &filler, i, i), 0);
    block_cache_set_budget(cache, 0);
    ck_assert_uint_eq(stats_of(cache).blocks, 0);
    ck_assert_uint_eq(stats_of(cache).ahead_bytes, 0);
    ck_assert_uint_eq(stats_of(cache).ahead_dropped, 8);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(budget_that_shrinks_is_kept_at_once)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(32u << 20, BLOCK, &cache), 0);
    for (uint64_t key = 0; key < 300; key++)
        touch(cache, &filler, key, BLOCK);
    for (uint64_t key = 1000; key < 1100; key++)
        ahead(cache, &filler, key, key);
    for (uint64_t budget = 32u << 20; budget > 0; budget /= 2) {
        block_cache_set_budget(cache, budget);
        ck_assert_uint_le(stats_of(cache).bytes, budget);
        ck_assert_uint_eq(stats_of(cache).budget_bytes, budget);
    }
    block_cache_set_budget(cache, 0);
    ck_assert_uint_eq(stats_of(cache).bytes, 0);
    block_cache_set_budget(cache, 32u << 20);
    ck_assert(!touch(cache, &filler, 1, BLOCK));
    ck_assert(touch(cache, &filler, 1, BLOCK));
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(reader_who_comes_while_it_is_brought_in_waits_for_it)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *ours, *theirs;
    ck_assert_int_eq(new_cache(16u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_begin_ahead(cache, 9, BLOCK, 0, &ours), BLOCK_MINE);
    ck_assert_int_eq(block_cache_begin_ahead(cache, 9, BLOCK, 0, &theirs), -EEXIST);
    ck_assert_int_eq(block_cache_begin(cache, 9, BLOCK, &theirs), BLOCK_LOADING);
    ck_assert_int_eq(block_cache_end(cache, ours, 0, 0), 0);
    ck_assert_int_eq(block_cache_wait(cache, theirs, NULL, NULL), 0);
    block_cache_put(cache, ours);
    block_cache_put(cache, theirs);
    ck_assert_uint_eq(stats_of(cache).ahead_bytes, 0); /* it was used already */
    ck_assert_uint_eq(stats_of(cache).ahead_used, 1);
    /* And one that can't be read is nobody's. */
    ck_assert_int_eq(block_cache_begin_ahead(cache, 10, BLOCK, 0, &ours), BLOCK_MINE);
    ck_assert_int_eq(block_cache_begin(cache, 10, BLOCK, &theirs), BLOCK_LOADING);
    ck_assert_int_eq(block_cache_end(cache, ours, -EIO, 0), -EIO);
    ck_assert_int_eq(block_cache_wait(cache, theirs, NULL, NULL), -EIO);
    uint64_t bytes = stats_of(cache).bytes;
    ck_assert(!touch(cache, &filler, 10, BLOCK));
    ck_assert_uint_gt(stats_of(cache).bytes, bytes);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(full_cache_still_bridges_the_reads_of_one_block)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache(24u << 20, 1u << 20, &cache), 0);
    for (uint64_t key = 0; key < 100; key++)
        touch(cache, &filler, key, 1u << 20);
    /* Four blocks read side by side, in pieces. */
    atomic_store(&filler.calls, 0);
    for (uint64_t key = 1000; key < 1040; key += 4)
        for (unsigned piece = 0; piece < 8; piece++)
            for (uint64_t k = key; k < key + 3; k++)
                touch(cache, &filler, k, 1u << 20);
    ck_assert_uint_eq(atomic_load(&filler.calls), 30);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(cache_follows_a_job_that_turns_to_other_data)
{
    enum { BLOCKS = 400, SIZE = 16384 };
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    ck_assert_int_eq(new_cache((uint64_t)BLOCKS * SIZE * 2, SIZE, &cache), 0);
    for (uint64_t key = 0; key < 4 * BLOCKS; key++)
        touch(cache, &filler, key, SIZE);
    unsigned hits = 0;
    for (unsigned epoch = 0; epoch < 60; epoch++) {
        hits = 0;
        for (uint64_t key = 0; key < BLOCKS; key++)
            hits += touch(cache, &filler, 1000000 + key, SIZE);
    }
    /* One miss in 32 moved in: after 60 epochs 1 - exp(-60/32) less what they displaced. */
    ck_assert_uint_gt(hits, BLOCKS / 2);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(block_in_use_outlives_its_eviction)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *pinned[8];
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    for (uint64_t key = 0; key < 8; key++)
        ck_assert_int_eq(block_cache_get(cache, key, BLOCK, fill, NULL, &filler, &pinned[key]),
                         0);
    for (uint64_t key = 100; key < 1000; key++)
        touch(cache, &filler, key, BLOCK);
    for (uint64_t key = 0; key < 8; key++)
        ck_assert(right(pinned[key], key));
    ck_assert_uint_le(stats_of(cache).bytes, 1u << 20);
    for (uint64_t key = 0; key < 8; key++)
        block_cache_put(cache, pinned[key]);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(block_let_go_serves_its_users_and_leaves_its_memory_to_the_next)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *first, *again, *next;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, BLOCK, fill, NULL, &filler, &first), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, BLOCK, fill, NULL, &filler, &again), 0);
    ck_assert_ptr_eq(first, again);
    const uint8_t *memory = first->bytes;
    block_cache_let_go(cache, first);
    block_cache_let_go(cache, again);
    ck_assert(!block_cache_has(cache, 1));
    ck_assert_uint_eq(stats_of(cache).blocks, 0);
    ck_assert_uint_eq(stats_of(cache).bytes, 0);
    ck_assert_uint_eq(stats_of(cache).evictions, 0);
    block_cache_put(cache, first);
    ck_assert(right(again, 1));
    block_cache_put(cache, again);
    ck_assert_int_eq(block_cache_get(cache, 2, BLOCK, fill, NULL, &filler, &next), 0);
    ck_assert_ptr_eq(next->bytes, memory);
    block_cache_put(cache, next);
    ck_assert(!touch(cache, &filler, 1, BLOCK));
    ck_assert(touch(cache, &filler, 2, BLOCK));
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(block_that_is_forgotten_is_filled_anew)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *old, *next;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, BLOCK, fill, NULL, &filler, &old), 0);
    block_cache_forget(cache, 1);
    ck_assert(right(old, 1));
    ck_assert_int_eq(block_cache_begin(cache, 1, BLOCK, &next), BLOCK_MINE);
    ck_assert_ptr_ne(old->bytes, next->bytes);
    block_cache_put(cache, old);
    block_cache_forget(cache, 1); /* while it is filled */
    ck_assert(!block_cache_has(cache, 1));
    ck_assert_int_eq(block_cache_end(cache, next, 0, BLOCK), 0);
    ck_assert(!block_cache_has(cache, 1));
    block_cache_put(cache, next);
    ck_assert_int_eq(block_cache_begin_ahead(cache, 1, BLOCK, 7, &next), BLOCK_MINE);
    block_cache_forget(cache, 1);
    ck_assert_int_eq(block_cache_end(cache, next, 0, BLOCK), 0);
    block_cache_put(cache, next);
    block_cache_forget(cache, 2);
    ck_assert_uint_eq(stats_of(cache).blocks, 0);
    ck_assert_uint_eq(stats_of(cache).bytes, 0);
    ck_assert_uint_eq(stats_of(cache).ahead_bytes, 0);
    ck_assert(touch(cache, &filler, 1, BLOCK) == false);
    ck_assert(touch(cache, &filler, 1, BLOCK));
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(failure_is_returned_and_not_kept)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1, .error = -EIO};
    struct block *block = NULL;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, BLOCK, fill, NULL, &filler, &block), -EIO);
    ck_assert_ptr_null(block);
    ck_assert_uint_eq(stats_of(cache).blocks, 0);
    atomic_store(&filler.error, 0);
    ck_assert(!touch(cache, &filler, 1, BLOCK));
    ck_assert(touch(cache, &filler, 1, BLOCK));
    /* Nor does one get it who comes while another has still to hear of it. */
    struct block *theirs, *next;
    ck_assert_int_eq(block_cache_begin(cache, 2, BLOCK, &block), BLOCK_MINE);
    ck_assert_int_eq(block_cache_begin(cache, 2, BLOCK, &theirs), BLOCK_LOADING);
    ck_assert_int_eq(block_cache_end(cache, block, -EIO, 0), -EIO);
    ck_assert_int_eq(block_cache_begin(cache, 2, BLOCK, &next), BLOCK_MINE);
    ck_assert_int_eq(block_cache_wait(cache, theirs, NULL, NULL), -EIO);
    ck_assert_int_eq(block_cache_end(cache, next, 0, BLOCK), 0);
    block_cache_put(cache, next);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(fill_that_claims_too_much_is_refused)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1, .len = 101};
    struct block *block;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, 100, fill, NULL, &filler, &block), -EUCLEAN);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(size_that_cannot_be_had_is_an_error)
{
    struct block_cache *cache;
    struct filler filler = {.open = 1};
    struct block *block;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_int_eq(block_cache_get(cache, 1, SIZE_MAX, fill, NULL, &filler, &block), -ENOMEM);
    ck_assert(!touch(cache, &filler, 1, BLOCK));
    block_cache_check_and_free(cache);
}
END_TEST

struct flight {
    struct block_cache *cache;
    struct filler *filler;
    int result;
    bool right;
};

static void *fly(void *arg)
{
    struct flight *flight = arg;
    struct block *block;
    flight->result =
        block_cache_get(flight->cache, 5, BLOCK, fill, count_wait, flight->filler, &block);
    if (flight->result == 0) {
        flight->right = right(block, 5);
        block_cache_put(flight->cache, block);
    }
    return NULL;
}

/* Several threads want one block while its fill does not end; returns its calls. */
static unsigned fly_together(struct block_cache *cache, int error, int expect)
{
    enum { THREADS = 8 };
    struct filler filler = {.error = error};
    struct flight flights[THREADS];
    pthread_t threads[THREADS];
    uint64_t waits = stats_of(cache).waits;
    for (unsigned i = 0; i < THREADS; i++) {
        flights[i] = (struct flight){.cache = cache, .filler = &filler};
        pthread_create(&threads[i], NULL, fly, &flights[i]);
    }
    /* It counts as one who waits before it looks whether it still has to. */
    while (atomic_load(&filler.waits) < THREADS - 1)
        sched_yield();
    atomic_store(&filler.open, 1);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(flights[i].result, expect);
        ck_assert(flights[i].right == (expect == 0));
    }
    ck_assert_uint_eq(atomic_load(&filler.waits), THREADS - 1);
    ck_assert_uint_eq(stats_of(cache).waits - waits, THREADS - 1);
    return atomic_load(&filler.calls);
}

START_TEST(threads_that_want_one_block_fill_it_once)
{
    struct block_cache *cache;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_uint_eq(fly_together(cache, 0, 0), 1);
    block_cache_check_and_free(cache);
    ck_assert_int_eq(new_cache(0, BLOCK, &cache), 0);
    ck_assert_uint_eq(fly_together(cache, 0, 0), 1);
    block_cache_check_and_free(cache);
}
END_TEST

START_TEST(failed_fill_wakes_everyone_who_waits)
{
    struct block_cache *cache;
    ck_assert_int_eq(new_cache(1u << 20, BLOCK, &cache), 0);
    ck_assert_uint_eq(fly_together(cache, -EUCLEAN, -EUCLEAN), 1);
    ck_assert_uint_eq(stats_of(cache).blocks, 0);
    ck_assert_uint_eq(fly_together(cache, 0, 0), 1);
    block_cache_check_and_free(cache);
}
END_TEST

/* A cache of which a thread fills block 5 and does not get on. */
static void get_stuck(struct filler *filler, struct flight *flight, pthread_t *ret_thread)
{
    struct block_cache_options options = {
        .budget_bytes = 1u << 20, .block_bytes = BLOCK, .stuck_ms = 20};
    ck_assert_int_eq(block_cache_new(&options, &flight->cache), 0);
    flight->filler = filler;
    pthread_create(ret_thread, NULL, fly, flight);
    while (atomic_load(&filler->calls) == 0)
        sched_yield();
}

START_TEST(stuck_fill_is_waited_for_no_more)
{
    struct filler stuck = {0}, other = {.open = 1};
    struct flight flight = {0};
    pthread_t thread;
    get_stuck(&stuck, &flight, &thread);
    ck_assert(!touch(flight.cache, &other, 5, BLOCK));
    ck_assert(touch(flight.cache, &other, 5, BLOCK));
    uint64_t bytes = stats_of(flight.cache).bytes;
    atomic_store(&stuck.open, 1);
    pthread_join(thread, NULL);
    ck_assert(flight.result == 0 && flight.right);
    ck_assert_uint_eq(stats_of(flight.cache).bytes, bytes);
    ck_assert(touch(flight.cache, &other, 5, BLOCK));
    block_cache_check_and_free(flight.cache);
}
END_TEST

/* However little time a fill has before it counts as stuck. */
START_TEST(fill_that_only_unpacks_is_not_stuck)
{
    struct block_cache_options options = {
        .budget_bytes = 1u << 20, .block_bytes = BLOCK, .stuck_ms = 1};
    struct filler filler = {0};
    struct flight flights[2] = {{.filler = &filler}, {.filler = &filler}};
    pthread_t threads[2];
    ck_assert_int_eq(block_cache_new(&options, &filler.unpacks), 0);
    for (unsigned i = 0; i < 2; i++) {
        flights[i].cache = filler.unpacks;
        pthread_create(&threads[i], NULL, fly, &flights[i]);
        while (atomic_load(&filler.calls) == 0)
            sched_yield();
    }
    while (atomic_load(&filler.unpack_waits) + atomic_load(&filler.calls) < 2)
        sched_yield();
    atomic_store(&filler.open, 1);
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(flights[i].result == 0 && flights[i].right);
    }
    ck_assert_uint_eq(atomic_load(&filler.calls), 1);
    ck_assert_uint_eq(atomic_load(&filler.unpack_waits), 1);
    block_cache_check_and_free(filler.unpacks);
}
END_TEST

START_TEST(stuck_fill_that_fails_at_last_fails_alone)
{
    struct filler stuck = {.error = -EIO}, other = {.open = 1};
    struct flight flight = {0};
    pthread_t thread;
    get_stuck(&stuck, &flight, &thread);
    ck_assert(!touch(flight.cache, &other, 5, BLOCK));
    atomic_store(&stuck.open, 1);
    pthread_join(thread, NULL);
    ck_assert_int_eq(flight.result, -EIO);
    ck_assert(touch(flight.cache, &other, 5, BLOCK));
    block_cache_check_and_free(flight.cache);
}
END_TEST

START_TEST(stuck_fill_ahead_gives_its_room_back)
{
    struct block_cache_options options = {
        .budget_bytes = 1u << 20, .block_bytes = BLOCK, .stuck_ms = 20};
    struct filler other = {.open = 1};
    struct block_cache *cache;
    struct block *block;
    ck_assert_int_eq(block_cache_new(&options, &cache), 0);
    ck_assert_int_eq(block_cache_begin_ahead(cache, 5, BLOCK, 0, &block), BLOCK_MINE);
    ck_assert(!touch(cache, &other, 5, BLOCK));
    ck_assert_int_eq(block_cache_end(cache, block, 0, BLOCK), 0);
    block_cache_put(cache, block);
    ck_assert(touch(cache, &other, 5, BLOCK));
    ck_assert_uint_eq(stats_of(cache).blocks, 1);
    ck_assert_uint_lt(stats_of(cache).bytes, 2 * BLOCK);
    block_cache_check_and_free(cache);
}
END_TEST

struct worker {
    struct block_cache *cache;
    unsigned seed;
    uint64_t budget;
    unsigned wrong; /* things that must not happen; asserts are for the main thread */
};

/* Every seventeenth key fails now and then; the others have a size of their own. */
static int moody_fill(void *ctx, uint64_t key, struct block *block, size_t size,
                      size_t *ret_len)
{
    struct worker *worker = ctx;
    struct filler filler = {.open = 1};
    if (key % 17 == 0 && rand_r(&worker->seed) % 2)
        return -EIO;
    return fill(&filler, key, block, size, ret_len);
}

/* What a thread that reads ahead does, with or without a place in an order. */
static void bring_in(struct worker *worker, uint64_t key, uint64_t due)
{
    struct block *block;
    size_t size = 1 + (key * 7919) % 60000, len = 0;
    if (block_cache_begin_ahead(worker->cache, key, size, due % 5 ? due : BLOCK_DUE_UNKNOWN,
                                &block) != BLOCK_MINE)
        return;
    int r = moody_fill(worker, key, block, size, &len);
    if (block_cache_end(worker->cache, block, r, len) == 0)
        block_cache_put(worker->cache, block);
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    struct block *pinned[4] = {NULL};
    uint64_t keys[4];
    for (unsigned i = 0; i < 6000; i++) {
        unsigned slot = i % 4;
        if (pinned[slot]) {
            worker->wrong += !right(pinned[slot], keys[slot]);
            block_cache_put(worker->cache, pinned[slot]);
        }
        pinned[slot] = NULL;
        uint64_t key = (uint64_t)rand_r(&worker->seed) % 300;
        size_t size = 1 + (key * 7919) % 60000;
        if (i % 3 == 0)
            bring_in(worker, (uint64_t)rand_r(&worker->seed) % 300, i);
        if (i % 1000 == 999)
            block_cache_passed(worker->cache, 0, true);
        if (i % 500 == 250)
            block_cache_passed(worker->cache, i - 100, false);
        keys[slot] = key;
        int r =
            block_cache_get(worker->cache, key, size, moody_fill, NULL, worker, &pinned[slot]);
        worker->wrong += r != 0 && !(r == -EIO && key % 17 == 0);
        if (i % 64 == 0)
            worker->wrong += stats_of(worker->cache).bytes > worker->budget;
    }
    for (unsigned slot = 0; slot < 4; slot++)
        if (pinned[slot])
            block_cache_put(worker->cache, pinned[slot]);
    return NULL;
}

START_TEST(many_threads_turn_over_a_small_cache)
{
    static const uint64_t budgets[] = {0, 300000, 6u << 20, 64u << 20, 2048u << 20};
    for (unsigned b = 0; b < 5; b++) {
        struct worker workers[8];
        pthread_t threads[8];
        struct block_cache *cache;
        ck_assert_int_eq(new_cache(budgets[b], 1u << (10 + b * 2), &cache), 0);
        for (unsigned i = 0; i < 8; i++) {
            workers[i] = (struct worker){cache, i + 1, budgets[b], 0};
            pthread_create(&threads[i], NULL, work, &workers[i]);
        }
        for (unsigned i = 0; i < 8; i++) {
            pthread_join(threads[i], NULL);
            ck_assert_uint_eq(workers[i].wrong, 0);
        }
        struct block_cache_stats stats = stats_of(cache);
        ck_assert_uint_le(stats.bytes, budgets[b]);
        ck_assert_uint_eq(stats.hits + stats.misses + stats.waits, 8 * 6000);
        if (budgets[b] == 0)
            ck_assert_uint_eq(stats.blocks, 0);
        block_cache_check_and_free(cache);
    }
}
END_TEST

#if !WITH_SANITIZER /* which has most addresses itself */
/* What a process has of addresses: in pages, the first number. */
static uint64_t addresses_in_use(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int fill_with_memory(void *ctx, uint64_t key, struct block *block, size_t size,
                            size_t *ret_len)
{
    void *needed =
        mmap(NULL, 4u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (needed == MAP_FAILED)
        return -ENOMEM;
    munmap(needed, 4u << 20);
    return fill(ctx, key, block, size, ret_len);
}

START_TEST(cache_that_gets_no_memory_gives_some_back)
{
    struct block_cache *cache;
    struct filler filler = {.open = true};
    struct rlimit limit = {addresses_in_use() + (64u << 20), RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    ck_assert_int_eq(new_cache(1u << 30, 1u << 20, &cache), 0);
    for (unsigned i = 0; i < 1000; i++) { /* of many sizes, which share no buffers */
        struct block *block;
        size_t size = (1u << 20) - (i % 97) * 8192;
        ck_assert_int_eq(
            block_cache_get(cache, i, size, fill_with_memory, NULL, &filler, &block), 0);
        ck_assert(right(block, i));
        block_cache_put(cache, block);
    }
    struct block_cache_stats stats = stats_of(cache);
    ck_assert_uint_lt(stats.budget_bytes, 128u << 20);
    ck_assert_uint_ge(stats.bytes, 16u << 20);
    block_cache_check_and_free(cache);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("block_cache");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, second_get_is_a_hit);
    tcase_add_test(tests, try_never_fills);
    tcase_add_test(tests, without_a_budget_nothing_stays);
    tcase_add_test(tests, budget_is_never_exceeded);
    tcase_add_test(tests, small_content_of_a_large_block_costs_little);
    tcase_add_test(tests, epochs_hit_in_the_share_that_fits);
    tcase_add_test(tests, four_times_the_budget_hits_in_nine_tenths_of_what_fits);
    tcase_add_test(tests, what_is_due_last_goes_first);
    tcase_add_test(tests, blocks_ahead_take_the_room_of_used_ones);
    tcase_add_test(tests, blocks_ahead_without_a_place_stay_until_they_are_used);
    tcase_add_test(tests, an_order_that_is_forgotten_holds_nothing);
    tcase_add_test(tests, what_readers_have_passed_makes_room);
    tcase_add_test(tests, a_block_that_is_there_takes_its_place_in_the_order);
    tcase_add_test(tests, budget_that_shrinks_is_kept_at_once);
    tcase_add_test(tests, budget_that_shrinks_drops_blocks_that_are_due);
    tcase_add_loop_test(tests, accounts_and_heaps_are_right_whatever_is_called, 0, 8);
    tcase_add_test(tests, reader_who_comes_while_it_is_brought_in_waits_for_it);
    tcase_add_test(tests, full_cache_still_bridges_the_reads_of_one_block);
    tcase_add_test(tests, cache_follows_a_job_that_turns_to_other_data);
    tcase_add_test(tests, block_in_use_outlives_its_eviction);
    tcase_add_test(tests, block_let_go_serves_its_users_and_leaves_its_memory_to_the_next);
    tcase_add_test(tests, block_that_is_forgotten_is_filled_anew);
    tcase_add_test(tests, failure_is_returned_and_not_kept);
    tcase_add_test(tests, fill_that_claims_too_much_is_refused);
    tcase_add_test(tests, size_that_cannot_be_had_is_an_error);
    tcase_add_test(tests, threads_that_want_one_block_fill_it_once);
    tcase_add_test(tests, failed_fill_wakes_everyone_who_waits);
    tcase_add_test(tests, stuck_fill_is_waited_for_no_more);
    tcase_add_test(tests, fill_that_only_unpacks_is_not_stuck);
    tcase_add_test(tests, stuck_fill_that_fails_at_last_fails_alone);
    tcase_add_test(tests, stuck_fill_ahead_gives_its_room_back);
    tcase_add_test(tests, many_threads_turn_over_a_small_cache);
#if !WITH_SANITIZER
    tcase_add_test(tests, cache_that_gets_no_memory_gives_some_back);
#endif
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
