/*
 * Counts the names that the kernel received with their attributes. Each such entry of a listing
 * makes an inode and a dentry, which stay. They are worth it, since they save a look-up, but a
 * listing of many millions would fill the memory of the job with them. So listings carry
 * attributes while these fit a part of the budget, and only names from then on (an entry of
 * READDIRPLUS with node id 0).
 *
 * An entry counts once, however often it is listed: there is a bit for each.
 */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

#define ENTRY_BYTES 1100u /* an inode and a dentry, as measured */
#define BUDGET_PART 8u

struct told {
    uint64_t limit;
    _Atomic uint64_t count;
    uint32_t entries;
    _Atomic uint64_t bits[];
};

int told_start(struct session *s)
{
    uint32_t entries = index_info(s->index)->entries;
    struct told *told =
        calloc(1, sizeof(*told) + ((size_t)entries / 64 + 1) * sizeof(uint64_t));
    if (!told)
        return -ENOMEM;
    told->entries = entries;
    told->limit = s->config.cache_bytes / BUDGET_PART / ENTRY_BYTES;
    s->told = told;
    return 0;
}

bool told_may_more(const struct session *s)
{
    return atomic_load_explicit(&s->told->count, memory_order_relaxed) < s->told->limit;
}

void told_note(const struct session *s, uint32_t from, uint32_t to)
{
    struct told *told = s->told;
    uint64_t fresh = 0;
    for (uint32_t i = from; i < to && i < told->entries; i++) {
        uint64_t bit = UINT64_C(1) << (i % 64);
        if (!(atomic_load_explicit(&told->bits[i / 64], memory_order_relaxed) & bit))
            fresh += !(
                atomic_fetch_or_explicit(&told->bits[i / 64], bit, memory_order_relaxed) & bit);
    }
    if (fresh > 0)
        atomic_fetch_add_explicit(&told->count, fresh, memory_order_relaxed);
}

void told_free(struct told *told)
{
    free(told);
}
