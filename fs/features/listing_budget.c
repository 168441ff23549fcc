#include "listing_budget.h"

#include <errno.h>
#include <stdlib.h>

#include "bits.h"
#include "core.h"

#define ENTRY_BYTES 1100u /* an inode and a dentry, as measured */
#define BUDGET_PART 8u

struct listing_budget {
    uint64_t limit;
    _Atomic uint64_t count;
    uint32_t entries;
    _Atomic uint64_t bits[];
};

int listing_budget_new(uint32_t entries, uint64_t memory_bytes,
                       struct listing_budget **ret_budget)
{
    struct listing_budget *b =
        calloc(1, sizeof(*b) + ((size_t)entries / 64 + 1) * sizeof(uint64_t));
    if (!b)
        return -ENOMEM;
    b->entries = entries;
    b->limit = memory_bytes / BUDGET_PART / ENTRY_BYTES;
    *ret_budget = b;
    return 0;
}

bool listing_budget_is_left(const struct listing_budget *b)
{
    return atomic_load_explicit(&b->count, memory_order_relaxed) < b->limit;
}

void listing_budget_spend(struct listing_budget *b, uint32_t from, uint32_t to)
{
    uint64_t fresh = 0;

    for (uint32_t i = from; i < to && i < b->entries; i++)
        fresh += bit_take(b->bits, i);
    if (fresh > 0)
        atomic_fetch_add_explicit(&b->count, fresh, memory_order_relaxed);
}

static int listing_budget_start(struct session *s, void **ret_state)
{
    return listing_budget_new(index_info(s->index)->entries, s->config.cache_bytes,
                              (struct listing_budget **)ret_state);
}

static void listing_budget_before_listing(void *state, bool *attributes)
{
    *attributes = listing_budget_is_left(state);
}

static void listing_budget_after_listing(void *state, const struct listed *listed)
{
    if (listed->attributes)
        listing_budget_spend(state, listed->from, listed->to);
}

const struct feature listing_budget_feature = {
    .start = listing_budget_start,
    .before_listing = listing_budget_before_listing,
    .after_listing = listing_budget_after_listing,
    .free = free,
};
