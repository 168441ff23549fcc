/*
 * The block cache's share of the job's memory. Other mounts and loaders of the job have theirs,
 * and come and go (share.h). Sharing alone never wakes an idle mount.
 */
#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "core.h"
#include "share.h"

/* claim_set */
static uint64_t memory_share_set(void *ctx, uint64_t bytes, uint64_t most_bytes,
                                 unsigned processes)
{
    (void)most_bytes, (void)processes;
    const struct session_config *config = ctx;
    _Atomic uint64_t *budget = &config->counters->cache_budget_bytes;

    if (atomic_load(budget) != bytes)
        reader_set_budget(config->reader, bytes);
    atomic_store(budget, bytes);
    return bytes;
}

static int memory_share_start(struct session *s, void **ret_state)
{
    struct session_config *config = &s->config;
    const struct claim_options claim = {
        .job = config->job ? config->job : "",
        .total_bytes = config->cache_bytes,
        .fixed_bytes = config->cache_is_fixed ? config->cache_bytes : 0,
    };
    struct share **share; /* NULL: shared with nobody */

    atomic_store(&config->counters->cache_budget_bytes, config->cache_bytes);
    if (config->cache_bytes == 0)
        return 0;
    share = calloc(1, sizeof(struct share *));
    if (!share)
        return -ENOMEM;
    *ret_state = share;
    if (share_new(&claim, memory_share_set, config, share) < 0)
        memory_share_set(config, config->cache_bytes, 0,
                         0); /* no folder for it: then nothing is shared */
    return 0;
}

static void memory_share_leave(void *state)
{
    struct share **share = state;

    share_free(*share);
    *share = NULL;
}

const struct feature memory_share_feature = {
    .start = memory_share_start,
    .leave = memory_share_leave,
    .free = free,
};
