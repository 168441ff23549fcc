/*
 * The list hands the members of an archive, in the order of their bytes, to several threads.
 * Each thread has its own range, so it reads forwards and works in its own folders. A thread
 * that has finished takes half of the longest range that is left. Members in one compressed
 * block stay together, so that the block is decompressed once.
 *
 * A range is handed out in small portions, under one lock. A portion (some files, or about a
 * megabyte) is long enough for the lock not to matter, and short enough for the threads to
 * finish together.
 *
 * If some of the threads can't be started, the others do their work.
 */
#include "workers.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "budget.h"
#include "clock.h"
#include "cpus.h"
#include "numbers.h"
#include "thread.h"
#include "vector.h"

#define PROGRESS_PERIOD_MS 100
#define STACK_BYTES (1u << 20)
#define CACHE_BYTES_MIN (UINT64_C(32) << 20)
#define THREADS_MAX 64u
#define THREADS_AFAR                                                                           \
    16u /* from slowfs (2 ms, 100 MB/s) 1.1 of the wire's time, 2 threads 1.8 */
#define PORTION_ITEMS 64u
#define PORTION_BYTES (1u << 20)

/* ---- the list ---- */

static int compare_items(const void *a, const void *b)
{
    const struct work_item *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

int worklist_add(struct workers *w, struct work_item item)
{
    if (w->items.count && compare_items(&w->items.at[w->items.count - 1], &item) > 0)
        w->is_unsorted = true;
    return vector_push(&w->items, item);
}

/* The first place from `at` on where a block ends. */
static size_t next_border(const struct workers *w, size_t at, size_t end)
{
    while (at > 0 && at < end && w->items.at[at].key == w->items.at[at - 1].key)
        at++;
    return at;
}

/* Sort, and give each thread its range. */
static void worklist_begin(struct workers *w)
{
    size_t at = 0;
    if (w->is_unsorted)
        qsort(w->items.at, w->items.count, sizeof(*w->items.at), compare_items);
    for (unsigned t = 0; t < w->threads; t++) {
        size_t end =
            t + 1 == w->threads ? w->items.count : w->items.count / w->threads * (t + 1);
        end = next_border(w, end > at ? end : at, w->items.count);
        w->at[t].next = at;
        w->at[t].end = at = end;
    }
}

/* Give the thread half of the longest range: false when all are empty. */
static bool worklist_steal(struct workers *w, struct worker *mine)
{
    struct worker *longest = &w->at[0];
    for (unsigned t = 1; t < w->threads; t++)
        if (w->at[t].end - w->at[t].next > longest->end - longest->next)
            longest = &w->at[t];
    size_t left = longest->end - longest->next;
    if (left == 0)
        return false;
    size_t middle = next_border(w, longest->next + left / 2, longest->end);
    if (middle == longest->end)
        middle = longest->next;
    mine->next = middle;
    mine->end = longest->end;
    longest->end = middle;
    return true;
}

static size_t worklist_portion(const struct workers *w, const struct worker *mine)
{
    const struct work_item *first = &w->items.at[mine->next];
    size_t left = mine->end - mine->next, n = 1;
    while (n < left && (first[n].key == first[n - 1].key ||
                        (n < PORTION_ITEMS && first[n].key - first->key < PORTION_BYTES)))
        n++;
    return n;
}

/* Take some items for a thread; 0: nothing is left. */
static size_t worklist_take(struct worker *mine, const struct work_item **ret_items)
{
    struct workers *w = mine->workers;
    size_t n = 0;
    pthread_mutex_lock(&w->list_lock);
    if (mine->next < mine->end || worklist_steal(w, mine)) {
        n = worklist_portion(w, mine);
        *ret_items = &w->items.at[mine->next];
        mine->next += n;
    }
    pthread_mutex_unlock(&w->list_lock);
    return n;
}

uint64_t worklist_near_end(const struct work_item *items, size_t n, size_t at, uint64_t gap)
{
    uint64_t end = 0;
    if (n > at + PORTION_ITEMS)
        n = at + PORTION_ITEMS; /* many in one block: they are read at once anyway */
    while (at + 1 < n && items[at + 1].key - items[at].key <= gap)
        end = items[++at].key;
    return end;
}

uint64_t worklist_key(const struct index *index, uint32_t position, uint64_t offset,
                      uint64_t otherwise)
{
    struct extent e;
    while (index_extent(index, position, offset, &e) == 0) {
        if (e.kind != EXTENT_HOLE)
            return e.source_offset;
        offset += e.length;
    }
    return otherwise;
}

/* ---- the threads ---- */

static int worker_init(struct workers *workers, struct worker *w, unsigned number)
{
    const struct index_info *info = index_info(workers->fileset->index);
    w->workers = workers;
    w->number = number;
    w->buffer = malloc(workers->buffer_bytes);
    int r = w->buffer ? 0 : -ENOMEM;
    if (r == 0 && info->has_some_sums)
        r = checksum_new(info->sum_kind, &w->hash);
    if (r == 0)
        r = content_new(workers->fileset, workers->reader, CONTENT_THREAD_BLOCKS, &w->content);
    return r;
}

static unsigned threads_for(const struct fileset *fileset)
{
    unsigned threads = min_u32(cpus_allowed(), THREADS_MAX);
    return source_is_local(fileset->source) ? threads : max_u32(threads, THREADS_AFAR);
}

/* Memory for blocks: each is used once, so a few for each thread suffice. */
static uint64_t cache_bytes(const struct workers *workers)
{
    uint64_t block_bytes = index_info(workers->fileset->index)->block_bytes;
    uint32_t blocks = max_u32(min_u32(workers->threads * 8, 64), workers->threads * 2);
    uint64_t bytes = max_u64(block_bytes * blocks, CACHE_BYTES_MIN);
    return min_u64(bytes, budget_cache_bytes());
}

int workers_init(struct workers *workers, struct fault *fault)
{
    const unsigned given = workers->options->threads;
    const unsigned threads = workers->threads = given ? given : threads_for(workers->fileset);
    const struct reader_options reading = {.cache_bytes = cache_bytes(workers)};
    pthread_mutex_init(&workers->lock, NULL);
    pthread_mutex_init(&workers->list_lock, NULL);
    pthread_cond_init(&workers->done, NULL);
    workers->at = calloc(threads, sizeof(*workers->at));
    int r = workers->at ? 0 : -ENOMEM;
    if (r == 0)
        r = reader_new(workers->fileset, &reading, fault, &workers->reader);
    for (unsigned i = 0; r == 0 && i < threads; i++)
        r = worker_init(workers, &workers->at[i], i);
    return r;
}

void workers_free(struct workers *workers)
{
    for (unsigned i = 0; workers->at && i < workers->threads; i++) {
        content_free(workers->at[i].content);
        checksum_free(workers->at[i].hash);
        free(workers->at[i].buffer);
    }
    free(workers->at);
    reader_free(workers->reader);
    vector_free(&workers->items);
    pthread_mutex_destroy(&workers->list_lock);
    pthread_cond_destroy(&workers->done);
    pthread_mutex_destroy(&workers->lock);
}

void workers_report(struct workers *workers, const struct fault *fault, bool ends_run)
{
    const struct work_options *o = workers->options;
    struct fault own = *fault;
    if (fileset_is_several(workers->fileset) && own.offset != FAULT_NO_OFFSET)
        fault_set_file(&own, source_name(source_at(workers->fileset->source, &own.offset)));
    pthread_mutex_lock(&workers->lock);
    if (!ends_run) {
        atomic_fetch_add(&workers->problems, 1);
        if (o->report)
            o->report(o->ctx, &own);
    } else if (!workers->error) {
        workers->fault = own;
        atomic_store(&workers->error, -own.err);
    }
    pthread_mutex_unlock(&workers->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct workers *workers = w->workers;
    const struct work_item *items;
    size_t n;
    while (!workers_stopped(workers) && (n = worklist_take(w, &items)) > 0)
        for (size_t i = 0; i < n && !workers_stopped(workers); i++) {
            content_expect(w->content, worklist_near_end(items, n, i, CONTENT_NEAR_BYTES / 4));
            workers->work(w, &items[i]);
        }
    pthread_mutex_lock(&workers->lock);
    workers->running--;
    pthread_cond_signal(&workers->done);
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Show progress until all threads have ended. Called under the lock. */
static void wait_for_workers(struct workers *workers)
{
    const struct work_options *o = workers->options;
    while (workers->running > 0) {
        struct timespec until = clock_in_ms(CLOCK_REALTIME, PROGRESS_PERIOD_MS);
        pthread_cond_timedwait(&workers->done, &workers->lock, &until);
        if (o->progress)
            o->progress(o->ctx, workers->doing, &workers->progress);
    }
}

int workers_run(struct workers *workers)
{
    const unsigned threads = workers->threads;
    unsigned started = 0;
    int r = 0;
    worklist_begin(workers);
    workers->running = threads;
    for (; started < threads && r == 0; started += r == 0)
        r = thread_start(&workers->at[started].thread, STACK_BYTES, worker_main,
                         &workers->at[started]);
    pthread_mutex_lock(&workers->lock);
    workers->running -= threads - started;
    wait_for_workers(workers);
    pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < started; i++)
        pthread_join(workers->at[i].thread, NULL);
    return started > 0 ? 0 : r;
}
