/*
 * How many names the kernel may receive with their attributes. Each such entry of a listing
 * makes an inode and a dentry, which stay. They are worth it, since they save a look-up, but a
 * listing of many millions would fill the memory of the job with them. So listings carry
 * attributes while these fit a part of the budget, and only names from then on (an entry of
 * READDIRPLUS with node id 0).
 *
 * An entry counts once, however often it is listed: there is a bit for each. From any thread.
 */
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

uint64_t listing_budget_entries(const struct session *s)
{
    return s->config.cache_bytes / BUDGET_PART / ENTRY_BYTES;
}

static int listing_budget_start(struct session *s, void **ret_state)
{
    const uint32_t entries = index_info(s->index)->entries;
    struct listing_budget *b =
        calloc(1, sizeof(*b) + ((size_t)entries / 64 + 1) * sizeof(uint64_t));
    if (!b)
        return -ENOMEM;
    b->entries = entries;
    b->limit = listing_budget_entries(s);
    *ret_state = b;
    return 0;
}

static void listing_budget_before_listing(void *state, bool *attributes)
{
    const struct listing_budget *b = state;

    *attributes = atomic_load_explicit(&b->count, memory_order_relaxed) < b->limit;
}

static void listing_budget_after_listing(void *state, const struct request *rq, uint32_t from,
                                         uint32_t to, bool attributes)
{
    struct listing_budget *b = state;
    uint64_t fresh = 0;

    (void)rq;
    for (uint32_t i = from; attributes && i < to && i < b->entries; i++)
        fresh += bit_take(b->bits, i);
    if (fresh > 0)
        atomic_fetch_add_explicit(&b->count, fresh, memory_order_relaxed);
}

const struct feature listing_budget_feature = {
    .start = listing_budget_start,
    .before_listing = listing_budget_before_listing,
    .after_listing = listing_budget_after_listing,
    .free = free,
};
