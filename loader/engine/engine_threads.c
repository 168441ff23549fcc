/*
 * The threads of an engine, and reads that do not end. Nobody can call back a thread that is in
 * the kernel. So each thread notes since when it reads. The consumer, which waits for that
 * data, looks at these times when one may be up. Then it gives the batch up and has another
 * thread take over, up to as many again. A thread that comes back from such a read drops the
 * data and goes on as before. The memory that it read into is not used until then.
 *
 * At the end, threads that read get a second. A thread that still hangs is left behind: it
 * holds the engine until its read ends, and the process can end without it if the kernel lets
 * it.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "engine_private.h"
#include "epoch.h"
#include "loader_clock.h"
#include "share.h"
#include "thread.h"

#define STACK_BYTES (512u << 10)
#define GRACE_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(20000000)

/* ---- threads ---- */

void engine_destroy(struct engine *e)
{
    share_free(e->share);
    pthread_mutex_lock(&e->lock);
    while (e->free_slabs)
        engine_drop_free(e, &e->free_slabs);
    pthread_mutex_unlock(&e->lock);
    engine_close_memory(&e->options);
    order_free(e->order);
    order_free(e->next);
    free(e->places);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->ready);
    pthread_cond_destroy(&e->parked);
    pthread_mutex_destroy(&e->lock);
    free(e->indices);
    free(e->offsets);
    free(e->sizes);
    free(e->workers);
    dataset_free(e->dataset);
    free(e);
}

static void *thread_main(void *arg)
{
    struct worker *worker = arg;
    struct engine *e = worker->engine;
    engine_work(e, worker);
    filler_free(&worker->filler);
    pthread_mutex_lock(&e->lock);
    worker->ended = true;
    pthread_cond_broadcast(&e->ready);
    bool last = worker->left && --e->users == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        engine_destroy(e);
    return NULL;
}

static int start_threads(struct engine *e, uint32_t count)
{
    int r = 0;
    while (e->thread_count < count && r == 0) {
        struct worker *worker = &e->workers[e->thread_count];
        *worker = (struct worker){.engine = e, .number = e->thread_count};
        r = thread_start(&worker->thread, STACK_BYTES, thread_main, worker);
        e->thread_count += r == 0;
    }
    return e->thread_count ? 0 : r;
}

int engine_start_threads(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    int r = start_threads(e, e->options.threads);
    pthread_mutex_unlock(&e->lock);
    return r;
}

static bool is_reading(struct worker *worker)
{
    return atomic_load(&worker->filler.since_ns) != 0;
}

/*
 * Does any thread have to be waited for? A thread that reads is first marked as given up, and
 * looked at after that. So it must see the mark when its read ends, and then it touches nothing
 * of the loader any more.
 */
static bool is_awaited(struct engine *e, bool had_its_time)
{
    bool any = false;
    for (uint32_t i = 0; i < e->thread_count; i++) {
        struct worker *worker = &e->workers[i];
        bool had_enough = had_its_time || worker->lost;
        if (had_enough)
            atomic_store(&worker->filler.given_up, true);
        any = any || (!worker->ended && !(had_enough && is_reading(worker)));
    }
    return any;
}

bool engine_wait_ready(struct engine *e, uint64_t until_ns)
{
    const struct loader_clock *clock = e->dataset->clock;
    struct timespec until = clock_timespec(until_ns);
    if (clock)
        return clock->wait(clock->ctx, &e->ready, &e->lock, until_ns);
    if (until_ns == UINT64_MAX)
        return pthread_cond_wait(&e->ready, &e->lock) == 0;
    return pthread_cond_timedwait(&e->ready, &e->lock, &until) != ETIMEDOUT;
}

void engine_end_threads(struct engine *e)
{
    uint64_t start = loader_now_ns(e->dataset);
    pthread_mutex_lock(&e->lock);
    while (is_awaited(e, loader_now_ns(e->dataset) - start > GRACE_NS))
        engine_wait_ready(e, loader_now_ns(e->dataset) + LOOK_NS);
    for (uint32_t i = 0; i < e->thread_count; i++) {
        struct worker *worker = &e->workers[i];
        worker->left = !worker->ended;
        e->users += worker->left;
        if (worker->left)
            pthread_detach(worker->thread);
    }
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < e->thread_count; i++)
        if (!e->workers[i].left)
            pthread_join(e->workers[i].thread, NULL);
}

/* ---- reads that stall ---- */

static void engine_abandon(struct engine *e, struct slab *slab, uint64_t record,
                           uint64_t age_ns)
{
    if (slab->abandoned)
        return;
    slab->abandoned = slab->whole = true;
    slab->err = -ETIME;
    slab->bad_record = record;
    slab->stalled_ns = age_ns;
    if (e->open == slab)
        e->open = NULL;
}

/* Since when it waits in vain. If a stream is being unpacked, since that last made progress. */
static uint64_t waits_since(const struct engine *e, struct worker *worker)
{
    uint64_t since = atomic_load(&worker->filler.since_ns);
    if (!since)
        return 0;
    const struct record *record = &e->dataset->records[atomic_load(&worker->filler.record)];
    uint64_t further = source_progress_ns(e->dataset->pots[record_archive(record)]->source);
    return further > since ? further : since;
}

void engine_give_up_stalled(struct engine *e)
{
    uint64_t now = loader_now_ns(e->dataset), timeout_ns = e->options.io_timeout_ns;
    uint32_t before = e->lost;
    for (uint32_t i = 0; timeout_ns && i < e->thread_count; i++) {
        struct worker *worker = &e->workers[i];
        uint64_t since = waits_since(e, worker);
        if (worker->lost || !worker->slab || !since || now < since || now - since < timeout_ns)
            continue;
        worker->lost = true;
        e->lost++;
        e->busy--;
        atomic_store(&worker->filler.given_up, true);
        engine_abandon(e, worker->slab, atomic_load(&worker->filler.record), now - since);
    }
    if (e->lost == before)
        return;
    uint32_t wanted = e->options.threads + e->lost;
    start_threads(e, wanted < e->thread_room ? wanted : e->thread_room);
    pthread_cond_broadcast(&e->parked);
    pthread_cond_broadcast(&e->work);
    pthread_cond_broadcast(&e->ready);
}

uint64_t engine_next_stall(const struct engine *e)
{
    uint64_t timeout_ns = e->options.io_timeout_ns, first = loader_now_ns(e->dataset);
    if (!timeout_ns)
        return UINT64_MAX;
    for (uint32_t i = 0; i < e->thread_count; i++) {
        uint64_t since = waits_since(e, &e->workers[i]);
        if (!e->workers[i].lost && since && since < first)
            first = since;
    }
    return first + timeout_ns;
}

bool engine_is_stuck(const struct engine *e, uint64_t *ret_record)
{
    if (e->lost == 0 || e->lost < e->thread_count)
        return false;
    *ret_record = atomic_load(&e->workers[0].filler.record);
    return true;
}
