/*
 * Counters of a mount beside its answers', which ops.c keeps: files, the block cache, reads
 * of the archive, and the copy on this node.
 *
 * Files that were read, and the ones that were read ahead before a reader came, have marks.
 * These are where processes that read for themselves see them, too (intercept.c), or else here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "bits.h"
#include "core.h"

static int counters_start(struct session *s, void **ret_state)
{
    *ret_state = s;
    if (s->file_marks)
        return 0;
    s->own_marks = calloc(index_info(s->index)->entries / 16 + 1, sizeof(*s->own_marks));
    s->file_marks = s->own_marks;
    return s->file_marks ? 0 : -ENOMEM;
}

static void counters_free(void *state)
{
    struct session *s = state;

    free((void *)s->own_marks);
}

/* A file counts once, as read, as read ahead, or as both. */
static void counters_after_read(void *state, struct read *read)
{
    const struct session *s = state;
    struct counter_slot *slot = read->rq->worker->slot;
    unsigned mark = read->rq->own ? FILE_AHEAD : FILE_READ, had;

    if (read->result < 0)
        return;
    if (read->offset == 0 && !read->rq->own)
        atomic_fetch_add_explicit(&slot->read_starts, 1, memory_order_relaxed);
    if ((had = file_mark(s->file_marks, read->position, mark)) & mark)
        return;
    atomic_fetch_add_explicit(read->rq->own ? &slot->ahead_files : &slot->read_files, 1,
                              memory_order_relaxed);
    if (had)
        atomic_fetch_add_explicit(&slot->foreseen_files, 1, memory_order_relaxed);
}

static void update_stage(struct session *s)
{
    struct counters *c = s->config.counters;
    struct stage_report report;

    stage_get_report(s->config.stage, &report);
    if (report.failure && report.reason[0] && !c->stage_reason[0]) {
        snprintf(c->stage_reason, sizeof(c->stage_reason), "%s", report.reason);
        session_trouble(
            s, TROUBLE_LOST,
            "%s: unpacking it has ended early: %s; what has arrived is served, reads "
            "of the rest fail; mount it anew",
            s->config.fileset->path, report.reason);
    }
    atomic_store(&c->stage_here_bytes, report.bytes_here);
    atomic_store(&c->stage_copied_bytes, report.copied_bytes);
    atomic_store(&c->stage_copying_ns, report.copying_ns);
    atomic_store(&c->stage_demands, report.demands);
    atomic_store(&c->stage_demand_bytes, report.demand_bytes);
    atomic_store(&c->stage_past_bytes, report.past_bytes);
    atomic_store(&c->stage_away, (uint32_t)report.away);
    atomic_store(&c->stage_failure, (uint32_t)report.failure); /* last: see stage_reason */
}

static void counters_update(void *state)
{
    struct session *s = state;
    struct counters *c = s->config.counters;
    struct block_cache_stats stats;
    uint64_t reads, bytes;
    const struct source_requests storage = source_requests();

    reader_stats(s->config.reader, &stats, &reads, &bytes);
    atomic_store(&c->cache_hits, stats.hits);
    atomic_store(&c->cache_misses, stats.misses);
    atomic_store(&c->cache_waits, stats.waits);
    atomic_store(&c->cache_evictions, stats.evictions);
    atomic_store(&c->cache_bytes, stats.bytes);
    atomic_store(&c->prefetched, stats.ahead);
    atomic_store(&c->prefetched_used, stats.ahead_used);
    atomic_store(&c->prefetched_dropped, stats.ahead_dropped);
    atomic_store(&c->source_reads, reads);
    atomic_store(&c->source_bytes, bytes);
    atomic_store(&c->storage_requests, storage.count);
    atomic_store(&c->storage_bytes, storage.bytes);
    if (s->config.stage)
        update_stage(s);
}

const struct feature counters_feature = {
    .start = counters_start,
    .after_read = counters_after_read,
    .update_counters = counters_update,
    .free = counters_free,
};
