/*
 * The block cache's share of the job's memory. Other mounts and loaders of the job have theirs,
 * and come and go (share.h). Sharing alone never wakes an idle mount.
 */
#include "share.h"

#include "internal.h"

/* See struct share_options. */
static uint64_t set_budget(void *ctx, const struct share_part *part)
{
    struct session *s = ctx;
    _Atomic uint64_t *budget = &s->config.counters->cache_budget_bytes;
    if (atomic_load(budget) != part->bytes)
        reader_set_budget(s->config.reader, part->bytes);
    atomic_store(budget, part->bytes);
    return part->bytes;
}

int share_start(struct session *s)
{
    const struct session_config *config = &s->config;
    const struct share_options options = {
        .job = config->job ? config->job : "",
        .total_bytes = config->cache_bytes,
        .fixed_bytes = config->cache_is_fixed ? config->cache_bytes : 0,
        .told = set_budget,
        .ctx = s,
    };

    atomic_store(&config->counters->cache_budget_bytes, config->cache_bytes);
    if (config->cache_bytes > 0 && share_new(&options, &s->share) < 0)
        set_budget(
            s,
            &(struct share_part){
                .bytes = config->cache_bytes}); /* no folder for it: then nothing is shared */
    return 0;
}

void share_stop(struct session *s)
{
    share_free(s->share);
    s->share = NULL;
}
