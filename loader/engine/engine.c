/*
 * A thread looks for work in this order. First, a run of samples of the batch that is being
 * gathered. Else it plans the next batch. Else it shuffles the order of the next epoch, so that
 * this is there when it is needed; at the latest that happens in the second half of an epoch.
 *
 * Batches are planned in their order, and get their memory then. So the batch that the consumer
 * waits for is never without a slab while a later one has one. If it has none, the consumer
 * holds all memory, and engine_take reports that.
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

#define NO_PLACE UINT32_MAX

static void close_memory(const struct engine_options *o)
{
    for (uint32_t i = 0; i < o->devices; i++)
        o->memory->close(o->memory_ctx[i]);
}

void engine_destroy(struct engine *e)
{
    share_free(e->share);
    pthread_mutex_lock(&e->lock);
    while (e->free_slabs)
        engine_drop_free(e, &e->free_slabs);
    pthread_mutex_unlock(&e->lock);
    close_memory(&e->options);
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

/* ---- planning; under the lock ---- */

/* Go on to the next epoch if this one is planned to its end. */
static void engine_turn_epoch(struct engine *e)
{
    if (e->plan.done < e->options.length)
        return;
    e->plan.epoch++;
    e->plan.done = 0;
    order_free(e->order);
    e->order = e->next;
    e->next = NULL;
    free(e->places);
    e->places = NULL;
    e->next_failed = false;
    for (uint32_t i = 0; i < e->options.devices; i++)
        e->devices[i].most_bytes = 0;
}

/* How many elements after sample i of the planned batch the same sample is read once more. */
static uint64_t comes_again(const struct engine *e, uint64_t i)
{
    uint32_t place = e->places ? e->places[e->indices[i]] : NO_PLACE;
    return place == NO_PLACE ? SLAB_NOT_AGAIN : e->options.length - e->plan.done - i + place;
}

static void engine_label_samples(struct engine *e, struct slab *slab, uint64_t count)
{
    const struct onepot_archive *archive = e->options.fill.archive;
    bool has_parts = archive->dataset->label_part; /* that are read with the sample */
    for (uint64_t i = 0; i < count; i++) {
        bool valid;
        order_at(e->order, e->plan.done + i, &valid);
        slab->valid[i] = valid;
        slab->again[i] = comes_again(e, i);
        slab->labels[i] = has_parts ? -1 : archive_first(archive, e->indices[i])->label;
    }
    memcpy(slab->indices, e->indices, count * sizeof(*slab->indices));
    memcpy(slab->offsets, e->offsets, count * sizeof(*slab->offsets));
    memcpy(slab->sizes, e->sizes, count * sizeof(*slab->sizes));
}

/* The next batch, before it has a slab. */
struct planned {
    uint64_t count, bytes; /* samples, and their data */
    size_t need;           /* bytes of a slab; 0: too many */
    uint32_t device;       /* by its place in the epoch alone: the same after a resume */
};

static void engine_choose_samples(struct engine *e, struct planned *p)
{
    const struct engine_options *o = &e->options;
    bool valid;
    p->count = min_u64(o->length - e->plan.done, o->batch_size);
    for (uint64_t i = 0; i < p->count; i++)
        e->indices[i] = order_at(e->order, e->plan.done + i, &valid);
    p->need = fill_places(&o->fill, e->indices, p->count, e->offsets, e->sizes, &p->bytes)
                  ? slab_bytes(p->count, p->bytes)
                  : 0;
    p->device = (uint32_t)(e->plan.done / o->batch_size % o->devices);
}

/* NULL: there is none now, and the engine notes the lack. */
static struct slab *engine_slab_for(struct engine *e, const struct planned *p)
{
    struct slab *slab;
    int r = p->need ? engine_get_slab(e, p->device, p->need, &slab) : -ENOBUFS;
    if (r == 0 && !e->seeking) {
        e->starved = 0;
        return slab;
    }
    if (r == 0) { /* a seek began while this thread waited for memory */
        engine_push_free(e, slab);
    } else if (r == -EAGAIN || r == -EINPROGRESS) {
        e->wants_settled = r == -EAGAIN;
        e->wanted_device = p->device;
    } else {
        e->starved = r == -ENOMEM ? UINT64_MAX : p->need ? p->need : UINT64_MAX - 1;
        e->starved_device = p->device;
        pthread_cond_broadcast(&e->ready);
    }
    return NULL;
}

/* Plan the next batch into the ring. False: there is no room for it, or no order yet. */
static bool engine_plan_one(struct engine *e)
{
    struct planned p;
    struct slab *slab;
    e->wants_settled = false;
    if (e->seeking || e->tail - e->head == e->options.ahead || e->options.length == 0)
        return false;
    engine_turn_epoch(e);
    if (!e->order)
        return false;
    engine_choose_samples(e, &p);
    slab = engine_slab_for(e, &p);
    if (!slab)
        return false;
    slab_begin(slab, p.count, p.bytes);
    slab->engine = e;
    slab->seed = e->options.order.seed;
    slab->batch.epoch = e->plan.epoch;
    slab->batch.first = e->plan.done;
    slab->batch.stride = e->options.fill.stride;
    engine_label_samples(e, slab, p.count);
    e->plan.done += p.count;
    slab->end = e->plan.done;
    e->ring[e->tail++ % ENGINE_AHEAD_MAX] = slab;
    e->open = slab;
    return true;
}

/* One thread at a time: for memory it may let the lock go. */
static bool engine_plan_batch(struct engine *e)
{
    bool planned;
    if (e->planning) {
        e->plan_again = true;
        return false;
    }
    e->planning = true;
    do {
        e->plan_again = false;
        planned = engine_plan_one(e);
    } while (!planned && e->plan_again);
    e->planning = false;
    return planned;
}

/* A device's memory: see engine_shed. */
static void engine_shed_now(struct engine *e)
{
    if (!e->options.memory->may_wait || e->planning)
        return;
    e->planning = true;
    engine_give_up_surplus(e);
    e->planning = false;
}

/* Is an order needed? The current epoch's, or the next one's shortly before it begins. */
static bool engine_wants_order(const struct engine *e, bool idle, bool *ret_next)
{
    if (e->seeking || e->making || e->options.length == 0 || e->order_err)
        return false;
    *ret_next = e->order;
    if (!e->order)
        return true;
    return !e->next && !e->next_failed &&
           (idle || e->options.fill.foresee || e->plan.done > e->options.length / 2);
}

/* ---- work of threads, done without the lock ---- */

/* The place of each sample in an order; NO_PLACE: it is another rank's. NULL: unknown. */
static uint32_t *engine_find_places(const struct engine *e, const struct order *order)
{
    uint64_t samples = e->options.order.samples, length = e->options.length;
    uint32_t *places = length < NO_PLACE ? malloc(samples * sizeof(*places)) : NULL;
    bool valid;
    if (!places)
        return NULL;
    memset(places, 0xff, samples * sizeof(*places));
    for (uint64_t i = length; i-- > 0;)
        places[order_at(order, i, &valid)] = (uint32_t)i;
    return places;
}

static void engine_make_order(struct engine *e, bool is_next)
{
    struct order_options options = e->options.order;
    struct order *order = NULL;
    uint32_t *places = NULL;
    uint64_t generation = e->generation, epoch = e->plan.epoch + is_next;
    options.seed += epoch;
    e->making = true;
    pthread_mutex_unlock(&e->lock);
    int r = order_new(&options, &order);
    if (r == 0 && is_next && e->options.fill.foresee)
        places = engine_find_places(e, order);
    pthread_mutex_lock(&e->lock);
    e->making = false;
    if (generation != e->generation)
        order_free(order);
    else if (r == 0 && epoch == e->plan.epoch)
        e->order = order;
    else if (r == 0) {
        e->next = order;
        e->places = places;
        places = NULL;
    } else if (epoch == e->plan.epoch)
        e->order_err = r;
    else
        e->next_failed = true;
    free(places);
    pthread_cond_broadcast(&e->work);
    pthread_cond_broadcast(&e->ready);
}

/* All samples of the slab are there. */
static void engine_finish_slab(struct engine *e, struct slab *slab)
{
    if (slab->err == 0) {
        engine_leave(e);
        slab->err = e->options.memory->send(slab, engine_memory_ctx(e, slab));
        engine_come_back(e);
        slab->lost = slab->err < 0;
    }
    slab->whole = true;
}

/* Wait for the wanted device's slab that was released first. False: there is none. */
static bool engine_settle_one(struct engine *e)
{
    struct engine_device *device = &e->devices[e->wanted_device];
    struct slab **oldest = engine_first_free(e, e->wanted_device), *slab;
    if (!e->wants_settled || device->settling || !oldest)
        return false;
    slab = *oldest;
    *oldest = slab->next;
    device->settling = true;
    engine_leave(e);
    e->options.memory->settle(slab, engine_memory_ctx(e, slab));
    engine_come_back(e);
    device->settling = false;
    engine_push_free(e, slab);
    pthread_cond_broadcast(&e->work);
    pthread_cond_broadcast(&e->ready);
    return true;
}

static void engine_gather_run(struct engine *e, struct worker *worker)
{
    struct slab *slab = e->open;
    uint64_t first = slab->claimed, left = slab->batch.samples - first, skipped = 0, bad = 0;
    uint64_t end = first + (left < e->options.run ? left : e->options.run);
    slab->claimed = end;
    if (end == slab->batch.samples)
        e->open = NULL;
    e->busy++;
    worker->slab = slab;
    pthread_mutex_unlock(&e->lock);

    uint64_t start = now_ns();
    e->options.memory->gather(slab, first, end, engine_memory_ctx(e, slab));
    int r = fill_samples(&e->options.fill, &worker->filler, slab, first, end, &skipped, &bad);
    uint64_t took = now_ns() - start;

    pthread_mutex_lock(&e->lock);
    e->stats.gather_ns += took;
    slab->skipped += skipped;
    worker->slab = NULL;
    if (r < 0 && slab->err == 0) {
        slab->err = r;
        slab->bad_record = bad;
        memcpy(slab->why, worker->filler.why, sizeof(slab->why));
    }
    slab->gathered += end - first;
    if (slab->abandoned || worker->lost)
        engine_came_back(e, worker, slab);
    else if (slab->gathered == slab->batch.samples)
        engine_finish_slab(e, slab);
    e->busy--;
    if (slab->whole || (e->seeking && e->busy == 0))
        pthread_cond_broadcast(&e->ready);
}

/* Wait while others of the job need the CPU. Pass on the wake-up that was for this thread. */
static void engine_park(struct engine *e, const struct worker *worker)
{
    while (!e->stop && worker->number >= e->allowed + e->lost) {
        pthread_cond_signal(&e->work);
        pthread_cond_wait(&e->parked, &e->lock);
    }
}

void engine_work(struct engine *e, struct worker *worker)
{
    pthread_mutex_lock(&e->lock);
    while (engine_park(e, worker), !e->stop) {
        bool next;
        engine_shed_now(e);
        if (engine_wants_order(e, false, &next)) {
            engine_make_order(e, next);
        } else if (e->open) {
            engine_gather_run(e, worker);
        } else if (engine_plan_batch(e)) {
            if (e->options.memory->may_wait || e->open->batch.samples > e->options.run)
                pthread_cond_broadcast(&e->work);
        } else if (engine_wants_order(e, true, &next)) {
            engine_make_order(e, next);
        } else if (!engine_settle_one(e)) {
            pthread_cond_wait(&e->work, &e->lock);
        }
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- life ---- */

static void init_locks(struct engine *e)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->parked, NULL);
    pthread_cond_init(&e->ready, &attr);
    pthread_condattr_destroy(&attr);
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

int engine_new(const struct engine_options *options, const struct place *place,
               struct engine **ret_engine)
{
    struct engine *e = calloc(1, sizeof(*e));
    if (!e) {
        close_memory(options);
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
    uint64_t count =
        options->batch_size < options->length ? options->batch_size : options->length;
    e->indices = calloc(count + 1, sizeof(*e->indices));
    e->offsets = calloc(count + 1, sizeof(*e->offsets));
    e->sizes = calloc(count + 1, sizeof(*e->sizes));
    /* As many again, to replace threads that hang in reads. */
    e->thread_room = options->io_timeout_ns ? 2 * options->threads : options->threads;
    e->workers = calloc(e->thread_room, sizeof(*e->workers));
    e->allowed = options->threads;
    e->part_bytes = UINT64_MAX;
    e->joining = options->job_bytes > 0;
    int r =
        e->indices && e->offsets && e->sizes && e->workers ? engine_start_threads(e) : -ENOMEM;
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

void engine_seek(struct engine *engine, const struct place *place, uint64_t seed)
{
    pthread_mutex_lock(&engine->lock);
    engine->generation++;
    engine->seeking = true;
    engine->open = NULL;
    while (engine->busy > 0)
        wait_until_ready(engine, UINT64_MAX);
    engine_empty_ring(engine);
    order_free(engine->order);
    order_free(engine->next);
    engine->order = engine->next = NULL;
    free(engine->places);
    engine->places = NULL;
    engine->next_failed = engine->seeking = false;
    engine->options.order.seed = seed;
    engine->starved = 0;
    engine->order_err = 0;
    engine_set_place(engine, place);
    pthread_cond_broadcast(&engine->work);
    pthread_mutex_unlock(&engine->lock);
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
    const struct onepot_stats *now = &engine->stats;
    if (!engine_is_own(engine))
        return;
    pthread_mutex_lock(&engine->lock);
    stats->batches = now->batches;
    stats->samples = now->samples;
    stats->bytes = now->bytes;
    stats->wait_ns = now->wait_ns;
    stats->gather_ns = now->gather_ns;
    stats->skipped = now->skipped;
    stats->slab_bytes = engine->slab_bytes + engine->beside_bytes;
    stats->part_bytes = engine->options.memory_bytes;
    if (engine->share)
        stats->part_bytes = min_u64(stats->part_bytes, engine->part_bytes);
    stats->threads = engine->allowed;
    pthread_mutex_unlock(&engine->lock);
}
