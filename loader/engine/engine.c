/*
 * The life of an engine, its threads, and its consumer's side: batches are taken in the ring's
 * order, and given back. Threads that look for work (engine_work.c) fill the ring.
 *
 * Some reads do not end. Nobody can call back a thread that is in the kernel. So each thread
 * notes since when it reads. The consumer, which waits for that data, looks at these times when
 * one may be up. Then it gives the batch up and has another thread take over, up to as many
 * again. A thread that comes back from such a read drops the data and goes on as before. The
 * memory that it read into is not used until then.
 *
 * At the end, threads that read get a second. A thread that still hangs is left behind: it
 * holds the engine until its read ends, and the process can end without it if the kernel lets
 * it.
 */
#include "engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "epoch.h"
#include "loader_clock.h"
#include "numbers.h"
#include "share.h"
#include "thread.h"

#define STACK_BYTES (512u << 10)
#define GRACE_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(20000000)

/* ---- threads ---- */

/* Called for the last user, see users. */
static void engine_destroy(struct engine *e)
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

static int engine_start_threads(struct engine *e)
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

/* Under the lock. Wait for `ready` until that time (CLOCK_MONOTONIC ns; UINT64_MAX: as long as
 * it takes). False: the time is up. */
static bool engine_wait_ready(struct engine *e, uint64_t until_ns)
{
    const struct loader_clock *clock = e->dataset->clock;
    struct timespec until = clock_timespec(until_ns);
    if (clock)
        return clock->wait(clock->ctx, &e->ready, &e->lock, until_ns);
    if (until_ns == UINT64_MAX)
        return pthread_cond_wait(&e->ready, &e->lock) == 0;
    return pthread_cond_timedwait(&e->ready, &e->lock, &until) != ETIMEDOUT;
}

/* Without the lock, once `stop` is set. Threads that are left behind have become users. */
static void engine_end_threads(struct engine *e)
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

/*
 * Under the lock. Give up reads that have taken too long. Their batches become whole, with an
 * error, and other threads replace the readers.
 */
static void engine_give_up_stalled(struct engine *e)
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

/* When a read may next have to be given up (CLOCK_MONOTONIC ns); UINT64_MAX: never. */
static uint64_t engine_next_stall(const struct engine *e)
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

/* Is every possible thread in a read that was given up? One of them reads *ret_record. */
static bool engine_is_stuck(const struct engine *e, uint64_t *ret_record)
{
    if (e->lost == 0 || e->lost < e->thread_count)
        return false;
    *ret_record = atomic_load(&e->workers[0].filler.record);
    return true;
}

/* ---- life ---- */

static void init_locks(struct engine *e)
{
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->parked, NULL);
    thread_cond_init(&e->ready);
}

/* Plan batches from `place` on. The end of an epoch is the start of the next one. */
static void engine_set_place(struct engine *e, const struct place *place)
{
    e->taken = e->plan = *place;
    if (e->plan.done >= e->options.length) {
        e->plan.epoch++;
        e->plan.done = 0;
    }
}

/* For planning batches of an epoch with so many elements. False: no memory. */
static bool engine_make_scratch(struct engine *e, uint64_t length)
{
    uint64_t count = min_u64(e->options.batch_size, length) + 1;
    uint64_t *indices = calloc(count, sizeof(*indices));
    uint64_t *offsets = calloc(count, sizeof(*offsets)), *sizes = calloc(count, sizeof(*sizes));
    if (!indices || !offsets || !sizes) {
        free(indices);
        free(offsets);
        free(sizes);
        return false;
    }
    free(e->indices);
    free(e->offsets);
    free(e->sizes);
    e->indices = indices;
    e->offsets = offsets;
    e->sizes = sizes;
    return true;
}

int engine_new(const struct engine_options *options, const struct place *place,
               struct engine **ret_engine)
{
    struct engine *e = calloc(1, sizeof(*e));
    if (!e) {
        engine_close_memory(options);
        return -ENOMEM;
    }
    e->options = *options;
    e->options.devices += !options->devices;
    e->pid = getpid();
    e->users = 1;
    e->dataset = options->fill.archive->dataset;
    atomic_fetch_add(&e->dataset->users, 1);
    engine_set_place(e, place);
    init_locks(e);
    bool has_scratch = engine_make_scratch(e, options->length);
    /* As many again, to replace threads that hang in reads. */
    e->thread_room = options->io_timeout_ns ? 2 * options->threads : options->threads;
    e->workers = calloc(e->thread_room, sizeof(*e->workers));
    e->allowed = options->threads;
    e->part_bytes = UINT64_MAX;
    e->joining = options->job_bytes > 0;
    int r = has_scratch && e->workers ? engine_start_threads(e) : -ENOMEM;
    if (r < 0) {
        engine_destroy(e);
        return r;
    }
    engine_join_others(e);
    *ret_engine = e;
    return 0;
}

bool engine_is_own(const struct engine *engine)
{
    return engine->pid == getpid();
}

/* Put the ring's slabs back into the free list. Only lost threads may still work on them. */
static void engine_empty_ring(struct engine *e)
{
    for (; e->head < e->tail; e->head++) {
        struct slab *slab = e->ring[e->head % ENGINE_AHEAD_MAX];
        if (slab->gathered < slab->claimed) {
            slab->abandoned = slab->released = true;
            continue;
        }
        engine_push_free(e, slab);
    }
    e->open = NULL;
}

void engine_free(struct engine *engine)
{
    if (!engine || !engine_is_own(engine))
        return; /* the threads and the lock are the parent's */
    pthread_mutex_lock(&engine->lock);
    engine->stop = true;
    pthread_cond_broadcast(&engine->work);
    pthread_cond_broadcast(&engine->parked);
    pthread_mutex_unlock(&engine->lock);
    engine_end_threads(engine);
    pthread_mutex_lock(&engine->lock);
    engine_empty_ring(engine);
    bool last = --engine->users == 0;
    pthread_mutex_unlock(&engine->lock);
    if (last)
        engine_destroy(engine);
}

/* Wait until something happened, the time is up, or a read was given up. */
static void wait_until_ready(struct engine *e, uint64_t deadline_ns)
{
    uint64_t stall_ns = engine_next_stall(e);
    if (!engine_wait_ready(e, min_u64(deadline_ns, stall_ns)))
        engine_give_up_stalled(e);
}

int engine_seek(struct engine *engine, const struct place *place,
                const struct order_options *order, uint64_t length)
{
    int r = 0;
    pthread_mutex_lock(&engine->lock);
    engine->generation++;
    engine->seeking = true;
    engine->open = NULL;
    while (engine->busy > 0 || engine->planning)
        wait_until_ready(engine, UINT64_MAX);
    engine_empty_ring(engine);
    order_free(engine->order);
    order_free(engine->next);
    engine->order = engine->next = NULL;
    free(engine->places);
    engine->places = NULL;
    engine->next_failed = engine->seeking = false;
    engine->starved = 0;
    engine->order_err = 0;
    if (length > engine->options.length && !engine_make_scratch(engine, length)) {
        struct place now = engine->taken;
        engine_set_place(engine, &now);
        r = -ENOMEM;
    } else {
        engine->options.order = *order;
        engine->options.length = length;
        engine_set_place(engine, place);
    }
    pthread_cond_broadcast(&engine->work);
    pthread_cond_broadcast(&engine->ready); /* there may be no batch here to wait for */
    pthread_mutex_unlock(&engine->lock);
    return r;
}

void engine_place(const struct engine *engine, struct place *ret_place)
{
    struct engine *e = (struct engine *)(uintptr_t)engine;
    bool own = engine_is_own(e); /* else no thread uses it, and its lock may be held */
    if (own)
        pthread_mutex_lock(&e->lock);
    *ret_place = e->taken;
    if (own)
        pthread_mutex_unlock(&e->lock);
}

/* ---- counts of samples ---- */

/* Two bijections of 64 bits with good mixing (Stafford's variants 13 and 4 of MurmurHash3's
 * finaliser). There are two sums, so that an exchange of samples can't go unnoticed. */
static uint64_t mix_a(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t mix_b(uint64_t x)
{
    x = (x ^ x >> 33) * UINT64_C(0x62a9d9ed799705f5);
    x = (x ^ x >> 28) * UINT64_C(0xcb24d0a5c88c35b3);
    return x ^ x >> 32;
}

void engine_delivered_count(struct onepot_delivered *delivered, uint64_t index)
{
    delivered->samples++;
    delivered->sum_a += mix_a(index + 1);
    delivered->sum_b += mix_b(index + 1);
}

/* ---- the consumer's side ---- */

/* A slab that came back while a batch found no memory. It is used, or given up for a larger
 * one. */
static bool engine_has_free(struct engine *e, uint32_t device)
{
    return e->devices[device].settling || engine_first_free(e, device);
}

/* 1: the next batch is there; 0: the end of an epoch; -EAGAIN: wait. Another consumer may take
 * batches meanwhile, so every look starts anew. */
static int engine_look(struct engine *e, uint64_t epoch, struct engine_need *ret_need)
{
    if (epoch != ANY_EPOCH && epoch != e->taken.epoch)
        return 0;
    if (e->taken.done >= e->options.length) {
        e->taken.epoch++;
        e->taken.done = 0;
        return 0;
    }
    if (e->options.order.list && e->options.order.list_epoch != e->taken.epoch)
        return -ENODATA;
    if (e->head < e->tail) {
        const struct slab *slab = e->ring[e->head % ENGINE_AHEAD_MAX];
        return slab->whole ? 1 : -EAGAIN;
    }
    if (e->order_err) {
        int r = e->order_err;
        e->order_err = 0; /* the next call tries again */
        pthread_cond_broadcast(&e->work);
        return r;
    }
    if (e->starved) {
        int r = e->starved == UINT64_MAX ? -ENOMEM : -ENOBUFS;
        ret_need->bytes = e->starved;
        ret_need->device = e->starved_device;
        e->starved = 0;
        pthread_cond_broadcast(&e->work);
        return engine_has_free(e, e->starved_device) ? -EAGAIN : r;
    }
    return -EAGAIN;
}

static int engine_wait_for_batch(struct engine *e, uint64_t epoch, uint64_t deadline_ns,
                                 struct engine_need *ret_need)
{
    int r = engine_look(e, epoch, ret_need);
    if (r != -EAGAIN)
        return r;
    uint64_t start = loader_now_ns(e->dataset), now = start;
    while (r == -EAGAIN && now < deadline_ns) {
        if (engine_is_stuck(e, &ret_need->record)) {
            r = -ETIME;
            break;
        }
        wait_until_ready(e, deadline_ns);
        r = engine_look(e, epoch, ret_need);
        now = loader_now_ns(e->dataset);
    }
    e->stats.wait_ns += loader_now_ns(e->dataset) - start;
    return r == -EAGAIN ? -ETIMEDOUT : r;
}

/* The consumer has got past this batch. */
static void engine_count_batch(struct engine *e, const struct slab *slab)
{
    const struct onepot_batch *batch = &slab->batch;
    if (batch->epoch != e->taken.epoch || batch->first == 0)
        e->taken.delivered = (struct onepot_delivered){0};
    e->taken.epoch = batch->epoch;
    e->taken.done = slab->end;
    if (slab->err)
        return;
    for (uint64_t i = 0; i < batch->samples; i++)
        if (batch->valid[i])
            engine_delivered_count(&e->taken.delivered, batch->indices[i]);
    e->stats.batches++;
    e->stats.samples += batch->samples;
    e->stats.bytes += batch->bytes;
    e->stats.skipped += slab->skipped;
}

int engine_take(struct engine *engine, uint64_t epoch, uint64_t deadline_ns,
                struct engine_need *ret_need, struct slab **ret_slab)
{
    pthread_mutex_lock(&engine->lock);
    int r = engine_wait_for_batch(engine, epoch, deadline_ns, ret_need);
    if (r == 1) {
        struct slab *slab = engine->ring[engine->head++ % ENGINE_AHEAD_MAX];
        engine_count_batch(engine, slab);
        engine->users++;
        slab->users = 1;
        *ret_slab = slab;
        if (engine->taken.done >= engine->options.length)
            pthread_cond_broadcast(&engine->ready); /* nothing will come for others that wait */
    }
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    return r;
}

void engine_release(struct slab *slab)
{
    struct engine *e = slab->engine;
    if (!engine_is_own(e))
        return; /* a child's copy of what its parent had: it goes with the child */
    e->options.memory->retire(slab, engine_memory_ctx(e, slab));
    pthread_mutex_lock(&e->lock);
    if (slab->gathered < slab->claimed) {
        slab->released = true;
    } else {
        engine_push_free(e, slab);
    }
    e->starved = 0;
    engine_shed(e);
    bool last = --e->users == 0;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    if (last)
        engine_destroy(e);
}

void engine_stats(struct engine *engine, struct onepot_stats *stats)
{
    if (!engine_is_own(engine))
        return;
    pthread_mutex_lock(&engine->lock);
    *stats = engine->stats;
    stats->slab_bytes = engine->slab_bytes + engine->beside_bytes;
    stats->part_bytes = engine->options.memory_bytes;
    if (engine->share)
        stats->part_bytes = min_u64(stats->part_bytes, engine->part_bytes);
    stats->threads = engine->allowed;
    pthread_mutex_unlock(&engine->lock);
}
