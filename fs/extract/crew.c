/*
 * If some of the threads can't be started, the others do their work.
 */
#include "crew.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "budget.h"
#include "numbers.h"
#include "thread.h"

#define PROGRESS_PERIOD_MS 100
#define STACK_BYTES (1u << 20)
#define CACHE_BYTES_MIN (UINT64_C(32) << 20)

static int worker_init(struct crew *crew, struct worker *w, unsigned number)
{
    const struct index_info *info = index_info(crew->pot->index);
    w->crew = crew;
    w->number = number;
    w->buffer = malloc(crew->buffer_bytes);
    int r = w->buffer ? 0 : -ENOMEM;
    if (r == 0 && info->has_some_sums)
        r = checksum_new(info->sum_kind, &w->hash);
    if (r == 0)
        r = content_new(crew->pot, crew->reader, CONTENT_OWN_BLOCKS, &w->content);
    return r;
}

int crew_init(struct crew *crew)
{
    pthread_cond_init(&crew->done, NULL);
    crew->workers = calloc(crew->threads, sizeof(*crew->workers));
    int r = crew->workers ? 0 : -ENOMEM;
    for (unsigned i = 0; r == 0 && i < crew->threads; i++)
        r = worker_init(crew, &crew->workers[i], i);
    return r;
}

void crew_free(struct crew *crew)
{
    for (unsigned i = 0; crew->workers && i < crew->threads; i++) {
        content_free(crew->workers[i].content);
        checksum_free(crew->workers[i].hash);
        free(crew->workers[i].buffer);
    }
    free(crew->workers);
    pthread_cond_destroy(&crew->done);
}

static void *crew_worker_main(void *arg)
{
    struct worker *w = arg;
    struct crew *crew = w->crew;
    const struct work_item *items;
    size_t n;
    while (!crew->is_stopped(crew->job) &&
           (n = worklist_take(crew->list, w->number, &items)) > 0)
        for (size_t i = 0; i < n && !crew->is_stopped(crew->job); i++) {
            content_expect(w->content, worklist_near_end(items, n, i, CONTENT_NEAR_BYTES / 4));
            crew->work(w, &items[i]);
        }
    pthread_mutex_lock(crew->lock);
    crew->running--;
    pthread_cond_signal(&crew->done);
    pthread_mutex_unlock(crew->lock);
    return NULL;
}

/* Show progress until all threads have ended. Called under the lock. */
static void wait_for_workers(struct crew *crew)
{
    while (crew->running > 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PROGRESS_PERIOD_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&crew->done, crew->lock, &until);
        if (crew->show)
            crew->show(crew->ctx, crew->doing, crew->progress);
    }
}

int crew_run(struct crew *crew)
{
    unsigned started = 0;
    int r = worklist_begin(crew->list, crew->threads);
    if (r < 0)
        return r;
    crew->running = crew->threads;
    for (; started < crew->threads && r == 0; started += r == 0)
        r = thread_start(&crew->workers[started].thread, STACK_BYTES, crew_worker_main,
                         &crew->workers[started]);
    pthread_mutex_lock(crew->lock);
    crew->running -= crew->threads - started;
    wait_for_workers(crew);
    pthread_mutex_unlock(crew->lock);
    for (unsigned i = 0; i < started; i++)
        pthread_join(crew->workers[i].thread, NULL);
    return started > 0 ? 0 : r;
}

uint64_t crew_cache_bytes(const struct pot *pot, unsigned threads)
{
    uint64_t bytes = (uint64_t)index_info(pot->index)->block_bytes * threads * 8;
    return min_u64(max_u64(bytes, CACHE_BYTES_MIN), budget_cache_bytes());
}
