/*
 * If some of the threads can't be started, the others do their work.
 */
#include "workers.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "budget.h"
#include "clock.h"
#include "cpus.h"
#include "numbers.h"
#include "thread.h"

#define PROGRESS_PERIOD_MS 100
#define STACK_BYTES (1u << 20)
#define CACHE_BYTES_MIN (UINT64_C(32) << 20)
#define THREADS_MAX 64u
#define THREADS_AFAR                                                                           \
    16u /* from slowfs (2 ms, 100 MB/s) 1.1 of the wire's time, 2 threads 1.8 */

static int worker_init(struct workers *workers, struct worker *w, unsigned number)
{
    const struct index_info *info = index_info(workers->pot->index);
    w->workers = workers;
    w->number = number;
    w->buffer = malloc(workers->buffer_bytes);
    int r = w->buffer ? 0 : -ENOMEM;
    if (r == 0 && info->has_some_sums)
        r = checksum_new(info->sum_kind, &w->hash);
    if (r == 0)
        r = content_new(workers->pot, workers->reader, CONTENT_THREAD_BLOCKS, &w->content);
    return r;
}

static unsigned threads_for(const struct pot *pot)
{
    unsigned threads = min_u32(cpus_allowed(), THREADS_MAX);
    return source_is_local(pot->source) ? threads : max_u32(threads, THREADS_AFAR);
}

/* Memory for blocks: each is used once, so a few for each thread suffice. */
static uint64_t cache_bytes(const struct workers *workers)
{
    uint64_t block_bytes = index_info(workers->pot->index)->block_bytes;
    uint32_t blocks = max_u32(min_u32(workers->threads * 8, 64), workers->threads * 2);
    uint64_t bytes = max_u64(block_bytes * blocks, CACHE_BYTES_MIN);
    return min_u64(bytes, budget_cache_bytes());
}

int workers_init(struct workers *workers, struct fault *fault)
{
    const unsigned given = workers->options->threads;
    const unsigned threads = workers->threads = given ? given : threads_for(workers->pot);
    const struct reader_options reading = {.cache_bytes = cache_bytes(workers)};
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->done, NULL);
    workers->at = calloc(threads, sizeof(*workers->at));
    int r = workers->at ? worklist_new(&workers->list) : -ENOMEM;
    if (r == 0)
        r = reader_new(workers->pot, &reading, fault, &workers->reader);
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
    worklist_free(workers->list);
    pthread_cond_destroy(&workers->done);
    pthread_mutex_destroy(&workers->lock);
}

void workers_report(struct workers *workers, const struct fault *fault, bool ends_run)
{
    const struct work_options *o = workers->options;
    struct fault own = *fault;
    if (pot_is_several(workers->pot) && own.offset != FAULT_NO_OFFSET)
        fault_set_file(&own, source_name(source_at(workers->pot->source, &own.offset)));
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
    while (!workers_stopped(workers) &&
           (n = worklist_take(workers->list, w->number, &items)) > 0)
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
    int r = worklist_begin(workers->list, threads);
    if (r < 0)
        return r;
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
