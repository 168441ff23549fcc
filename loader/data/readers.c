/*
 * The readers of a process, one an archive, and their caches. Readers hold locks and caches,
 * and a thread of the parent may have been inside one when the process forked; so a child never
 * touches them, and makes its own at its first read. What it leaves alone costs it nothing but
 * address space.
 *
 * Caches. Decompressed blocks, and stored samples of an archive that is read from storage, are
 * kept until the cache is full, and stay: in each epoch as large a share of the reads finds its
 * bytes as there is room for of the data. One rank of several is told which of them it reads
 * again in the next epoch (cursor_again), and those are kept. How much room there is, the job's
 * other mounts and loaders have a say in (share.h). What is mapped needs none of it.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "budget.h"
#include "dataset.h"
#include "error.h"
#include "portion.h"
#include "share.h"

/* Less than that share of the data is not worth a second copy of each sample that is read. */
#define KEEP_LEAST 16u
#define ROOM_BYTES (UINT64_C(4) << 20) /* of what the cache itself needs */
#define STUCK_MS 30000u                /* who reads a block for longer is not waited for */

static void cursor_free(struct cursor *cursor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        reader_scratch_free(cursor->scratch[i]);
    free(cursor);
}

static void readers_free(struct readers *readers)
{
    share_free(readers->share);
    while (readers->idle) {
        struct cursor *cursor = readers->idle;
        readers->idle = cursor->next;
        cursor_free(cursor, readers->count);
    }
    for (size_t i = 0; i < readers->count; i++)
        reader_free(readers->reader[i]);
    pthread_mutex_destroy(&readers->lock);
    free(readers->weights);
    free(readers);
}

/* ---- what the caches may have ---- */

static bool needs_cache(const struct dataset *d, size_t archive)
{
    const struct pot *pot = d->pots[archive];
    return index_info(pot->index)->block_bytes > 0 ||
           (!d->maps[archive] && !source_is_staged(pot->source));
}

/* See struct share_options. */
static uint64_t told(void *ctx, const struct share_part *part)
{
    struct readers *readers = ctx;
    if (atomic_exchange(&readers->cache_bytes, part->bytes) == part->bytes)
        return part->bytes;
    for (size_t i = 0; i < readers->count; i++) {
        double share =
            readers->weight ? (double)readers->weights[i] / (double)readers->weight : 0;
        reader_set_budget(readers->reader[i], (uint64_t)((double)part->bytes * share));
    }
    return part->bytes;
}

/* As much as the data have, if the job has it. */
static void share_memory(struct readers *readers, const struct dataset *d)
{
    const struct share_options options = {
        .total_bytes = budget_cache_bytes(),
        .fixed_bytes = d->cache_bytes,
        .most_bytes = readers->weight + readers->weight / 8 + ROOM_BYTES,
        .is_brief = true,
        .told = told,
        .ctx = readers,
    };
    struct share_part alone = {.bytes = d->cache_bytes};
    if (readers->weight == 0 || share_new(&options, &readers->share) == 0)
        return;
    readers->share = NULL;
    if (!alone.bytes)
        alone.bytes = options.total_bytes / portion_ranks();
    told(readers, &alone);
}

static int weigh(struct readers *readers, const struct dataset *d)
{
    readers->weights = calloc(readers->count + 1, sizeof(*readers->weights));
    if (!readers->weights)
        return -ENOMEM;
    bool any = false;
    for (size_t i = 0; i < readers->count; i++)
        any = any || needs_cache(d, i);
    for (uint64_t i = 0; any && i < d->record_count; i++)
        readers->weights[record_archive(&d->records[i])] += d->records[i].size_bytes;
    for (size_t i = 0; i < readers->count; i++) {
        if (!needs_cache(d, i))
            readers->weights[i] = 0;
        readers->weight += readers->weights[i];
    }
    return 0;
}

bool readers_keep(const struct readers *readers)
{
    return atomic_load_explicit(&readers->cache_bytes, memory_order_relaxed) >=
           readers->weight / KEEP_LEAST;
}

/* ---- making them ---- */

/*
 * Pages of what is read are dropped, since the cache has the bytes; but where several ranks of
 * the node read the same archive, the kernel's cache is the one that they have in common.
 */
static int make_readers(struct dataset *d, struct onepot_error *error, struct readers *readers)
{
    struct reader_options options = {
        .cache_stored = true, .keep_pages = portion_ranks() > 1, .stuck_ms = STUCK_MS};
    for (size_t i = 0; i < readers->count; i++) {
        struct fault fault = {0};
        int r = reader_new(d->pots[i], &options, &fault, &readers->reader[i]);
        if (r < 0)
            return error_from_fault(error, r, &fault, d->pots[i]->path);
    }
    int r = weigh(readers, d);
    if (r < 0)
        return error_set(error, r, "out of memory");
    share_memory(readers, d);
    return 0;
}

static int readers_new(struct dataset *dataset, struct onepot_error *error,
                       struct readers **ret_readers)
{
    size_t count = dataset->pot_count;
    struct readers *readers = calloc(1, sizeof(*readers) + count * sizeof(struct reader *));
    if (!readers)
        return error_set(error, -ENOMEM, "out of memory");
    readers->pid = getpid();
    readers->count = count;
    pthread_mutex_init(&readers->lock, NULL);
    int r = make_readers(dataset, error, readers);
    if (r < 0) {
        readers_free(readers);
        return r;
    }
    *ret_readers = readers;
    return 0;
}

/* Two threads may both make some; one of them keeps its own. */
int readers_get(struct dataset *dataset, struct onepot_error *error,
                struct readers **ret_readers)
{
    struct readers *readers = atomic_load(&dataset->readers);
    if (!readers || readers->pid != getpid()) {
        struct readers *made = NULL;
        int r = readers_new(dataset, error, &made);
        if (r < 0)
            return r;
        if (atomic_compare_exchange_strong(&dataset->readers, &readers, made))
            readers = made;
        else
            readers_free(made);
    }
    *ret_readers = readers;
    return 0;
}

static struct readers *readers_of(struct dataset *dataset)
{
    struct readers *readers = atomic_load(&dataset->readers);
    return readers && readers->pid == getpid() ? readers : NULL;
}

void readers_free_own(struct dataset *dataset)
{
    struct readers *readers = readers_of(dataset);
    if (readers)
        readers_free(readers);
}

void dataset_cache_stats(struct dataset *dataset, struct onepot_stats *stats)
{
    const struct readers *readers = readers_of(dataset);
    if (!readers)
        return;
    stats->reads = atomic_load(&readers->reads);
    stats->read_bytes = atomic_load(&readers->read_bytes);
    stats->cache_part_bytes = atomic_load(&readers->cache_bytes);
    for (size_t i = 0; i < readers->count; i++) {
        struct block_cache_stats cache;
        struct reader_source_stats source;
        reader_cache_stats(readers->reader[i], &cache);
        reader_source_stats(readers->reader[i], &source);
        stats->cache_hits += cache.hits;
        stats->cache_misses += cache.misses;
        stats->cache_bytes += cache.bytes;
        stats->reads += source.reads;
        stats->read_bytes += source.bytes;
    }
}
