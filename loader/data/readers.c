/*
 * The readers of a process, one for each archive, and their caches. A fork may happen while a
 * thread is inside a reader, with its locks taken. So a child never touches its parent's
 * readers, and makes its own at its first read. The unused ones cost it nothing but address
 * space.
 *
 * The caches hold decompressed blocks, and stored samples of archives that are read from
 * storage. Once a cache is full its content stays, so that the share of reads it answers in
 * each epoch is the share of the data it has room for. With several ranks, a loader also tells
 * which samples this rank reads again in the next epoch (cursor_again), and the cache keeps
 * those. Other mounts and loaders of the job decide how much room there is (share.h). Mapped
 * archives need no cache.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "budget.h"
#include "dataset.h"
#include "error.h"
#include "rank_share.h"
#include "share.h"

/* A cache for a smaller share of the data is not worth a second copy of each sample. */
#define KEEP_LEAST 16u
#define ROOM_BYTES (UINT64_C(4) << 20) /* the cache's minimum */
#define STUCK_MS                                                                               \
    30000u /* after this time nobody waits for another thread's read of a block                \
            */

/*
 * Threads read samples out of turn, so one that became due this recently may still be wanted.
 */
#define CLOCK_LAG 4096u

/* The readers of one process. */
struct readers {
    pid_t pid;
    size_t count;         /* of archives */
    pthread_mutex_t lock; /* over the idle cursors */
    struct cursor *idle;
    struct share *share;          /* of the caches, with others of the job; NULL: with nobody */
    uint64_t *weights;            /* for each archive, the bytes that its cache could hold */
    uint64_t weight;              /* sum of the weights */
    _Atomic uint64_t cache_bytes; /* that all caches may have now */
    _Atomic uint64_t reads, read_bytes; /* of storage, where it is not mapped */
    _Atomic uint64_t clock;             /* samples that loaders have read */
    struct reader *reader[];            /* one for each archive */
};

/* Memory with which one thread reads: scratch for each archive, made when first used. */
struct cursor {
    struct readers *readers;
    struct cursor *next;
    struct reader_scratch *scratch[];
};

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

/* ---- the size of the caches ---- */

static bool needs_cache(const struct dataset *d, size_t archive)
{
    const struct pot *pot = d->pots[archive];
    return index_info(pot->index)->block_bytes > 0 ||
           (!d->maps[archive] && !source_keeps(pot->source));
}

/* The share's answer (claim_set). */
static uint64_t readers_told_part(void *ctx, uint64_t bytes, uint64_t most_bytes,
                                  unsigned processes)
{
    (void)most_bytes, (void)processes;
    struct readers *readers = ctx;
    if (atomic_exchange(&readers->cache_bytes, bytes) == bytes)
        return bytes;
    for (size_t i = 0; i < readers->count; i++) {
        double share =
            readers->weight ? (double)readers->weights[i] / (double)readers->weight : 0;
        reader_set_budget(readers->reader[i], (uint64_t)((double)bytes * share));
    }
    return bytes;
}

/* Ask for as much memory as the data needs. */
static void readers_share_memory(struct readers *readers, const struct dataset *d)
{
    const struct claim_options claim = {
        .total_bytes = budget_cache_bytes(),
        .fixed_bytes = d->cache_bytes,
        .most_bytes = readers->weight + readers->weight / 8 + ROOM_BYTES,
        .unwatched = true,
    };
    if (readers->weight == 0 ||
        share_new(&claim, readers_told_part, readers, &readers->share) == 0)
        return;
    readers->share = NULL;
    readers_told_part(readers,
                      d->cache_bytes ? d->cache_bytes : claim.total_bytes / rank_share_ranks(),
                      0, 0);
}

static int readers_weigh(struct readers *readers, const struct dataset *d)
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

/* Is it worth keeping stored bytes of an archive that is read from storage? */
static bool readers_keep(const struct readers *readers)
{
    return atomic_load_explicit(&readers->cache_bytes, memory_order_relaxed) >=
           readers->weight / KEEP_LEAST;
}

/* ---- making readers ---- */

/*
 * With one rank the kernel need not keep what our cache holds, so pages are dropped after a
 * read. Several ranks of a node that read the same archive share the kernel's cache, so there
 * the pages stay.
 */
static int readers_make(struct dataset *d, struct onepot_error *error, struct readers *readers)
{
    struct reader_options options = {
        .cache_stored = true, .keep_pages = rank_share_ranks() > 1, .stuck_ms = STUCK_MS};
    for (size_t i = 0; i < readers->count; i++) {
        struct fault fault = {0};
        int r = reader_new(d->pots[i], &options, &fault, &readers->reader[i]);
        if (r < 0)
            return error_from_fault(error, r, &fault, d->pots[i]->path);
    }
    int r = readers_weigh(readers, d);
    if (r < 0)
        return error_set(error, r, "out of memory");
    readers_share_memory(readers, d);
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
    int r = readers_make(dataset, error, readers);
    if (r < 0) {
        readers_free(readers);
        return r;
    }
    *ret_readers = readers;
    return 0;
}

/* If two threads make readers at once, one of them keeps its own. */
static int readers_get(struct dataset *dataset, struct onepot_error *error,
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

/* ---- reading; a cursor returns only to the readers of the process that made it ---- */

int cursor_get(struct dataset *dataset, struct onepot_error *error, struct cursor **ret_cursor)
{
    struct readers *readers;
    int r = readers_get(dataset, error, &readers);
    if (r < 0)
        return r;
    pthread_mutex_lock(&readers->lock);
    struct cursor *cursor = readers->idle;
    if (cursor)
        readers->idle = cursor->next;
    pthread_mutex_unlock(&readers->lock);
    if (!cursor) {
        cursor =
            calloc(1, sizeof(*cursor) + dataset->pot_count * sizeof(struct reader_scratch *));
        if (!cursor)
            return error_set(error, -ENOMEM, "out of memory");
        cursor->readers = readers;
    }
    *ret_cursor = cursor;
    return 0;
}

void cursor_put(struct cursor *cursor)
{
    struct readers *readers = cursor->readers;
    if (readers->pid != getpid())
        return; /* made by the parent */
    pthread_mutex_lock(&readers->lock);
    cursor->next = readers->idle;
    readers->idle = cursor;
    pthread_mutex_unlock(&readers->lock);
}

static int read_past_cache(struct readers *readers, const struct source *source, void *buf,
                           size_t len, uint64_t offset)
{
    int r = source_read(source, buf, len, offset);
    atomic_fetch_add_explicit(&readers->reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&readers->read_bytes, len, memory_order_relaxed);
    return r == 0 || r == -ENODATA ? r : -EIO;
}

int cursor_read(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                uint64_t offset, void *buf, size_t len)
{
    uint32_t archive = record_archive(record);
    struct pot *pot = dataset->pots[archive];
    if (len == 0)
        return 0;
    bool in_one_piece = record_offset(record) != RECORD_OFFSET_NONE;
    if (in_one_piece &&
        (source_keeps(pot->source) || dataset->maps[archive] || !readers_keep(cursor->readers)))
        return read_past_cache(cursor->readers, pot->source, buf, len,
                               record_offset(record) + offset);
    struct reader *reader = cursor->readers->reader[archive];
    struct reader_scratch **scratch = &cursor->scratch[archive];
    size_t got;
    int r = *scratch ? 0 : reader_scratch_new(reader, scratch);
    if (r == 0)
        r = reader_copy(reader, *scratch, record_file(dataset, record), offset, buf, len, &got);
    if (r == 0 && got < len)
        r = -EUCLEAN;
    return r;
}

void cursor_again(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                  uint64_t distance)
{
    struct readers *readers = cursor->readers;
    uint32_t archive = record_archive(record);
    if (dataset->maps[archive] || record_offset(record) == RECORD_OFFSET_NONE ||
        !readers_keep(readers))
        return;
    uint64_t now = atomic_load_explicit(&readers->clock, memory_order_relaxed);
    reader_note_due(readers->reader[archive], record_file(dataset, record), now + distance);
}

void cursor_advance(struct cursor *cursor, uint64_t samples)
{
    struct readers *readers = cursor->readers;
    uint64_t now = samples + atomic_fetch_add(&readers->clock, samples);
    for (size_t i = 0; i < readers->count && now > CLOCK_LAG; i++)
        reader_passed(readers->reader[i], now - CLOCK_LAG, false);
}

/* ---- the readers of this process, if it has any ---- */

static struct readers *readers_of(struct dataset *dataset)
{
    struct readers *readers = atomic_load(&dataset->readers);
    return readers && readers->pid == getpid() ? readers : NULL;
}

void dataset_free_readers(struct dataset *dataset)
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
        uint64_t reads, bytes;
        reader_stats(readers->reader[i], &cache, &reads, &bytes);
        stats->cache_hits += cache.hits;
        stats->cache_misses += cache.misses;
        stats->cache_bytes += cache.bytes;
        stats->reads += reads;
        stats->read_bytes += bytes;
    }
}
