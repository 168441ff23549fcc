/*
 * A thread looks for work in this order. First, a run of samples of the batch that is being
 * gathered. Else it plans the next batch. Else it shuffles the order of the next epoch, so that
 * this is there when it is needed; at the latest that happens in the second half of an epoch.
 *
 * Batches are planned in their order, and get their memory then. So the batch that the consumer
 * waits for is never without a slab while a later one has one. If it has none, the consumer
 * holds all memory, and engine_take reports that.
 */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "engine_private.h"
#include "epoch.h"
#include "numbers.h"

#define NO_PLACE UINT32_MAX

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

/* Elements that only pad the epoch are not valid. */
static void engine_mark_samples(const struct engine *e, struct slab *slab, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        bool valid;
        order_at(e->order, e->plan.done + i, &valid);
        slab->valid[i] = valid;
        slab->again[i] = comes_again(e, i);
    }
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

/* Threads that waited for storage at the same time would only be in each other's way. */
static void engine_look_for_copies(struct engine *e)
{
    struct engine_options *o = &e->options;
    if (!o->mapped_threads || !dataset_is_mapped(e->dataset))
        return;
    o->run = o->mapped_run;
    o->threads = o->mapped_threads;
    e->allowed = min_u32(e->allowed, o->threads);
    o->mapped_threads = 0;
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
    engine_look_for_copies(e);
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
    fill_tables(&e->options.fill, slab, e->indices, e->offsets, e->sizes);
    engine_mark_samples(e, slab, p.count);
    e->plan.done += p.count;
    slab->end = e->plan.done;
    e->ring[e->tail++ % ENGINE_AHEAD_MAX] = slab;
    e->open = slab;
    return true;
}

/* A seek waits until no thread plans, as that uses the order and the scratch. */
static void engine_end_planning(struct engine *e)
{
    e->planning = false;
    if (e->seeking)
        pthread_cond_broadcast(&e->ready);
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
    engine_end_planning(e);
    return planned;
}

/* A device's memory: see engine_shed. */
static void engine_shed_now(struct engine *e)
{
    if (!e->options.memory->may_wait || e->planning)
        return;
    e->planning = true;
    engine_give_up_surplus(e);
    engine_end_planning(e);
}

/* Is an order needed? The current epoch's, or the next one's shortly before it begins. */
static bool engine_wants_order(const struct engine *e, bool idle, bool *ret_next)
{
    const struct order_options *order = &e->options.order;
    if (e->seeking || e->making || e->options.length == 0 || e->order_err ||
        (order->list && (e->order || order->list_epoch != e->plan.epoch)))
        return false;
    *ret_next = e->order;
    if (!e->order)
        return true;
    return !e->next && !e->next_failed &&
           (idle || e->options.fill.foresee || e->plan.done > e->options.length / 2);
}

/* ---- work of threads, done without the lock ---- */

/* The place of each sample in an order; NO_PLACE: it is another rank's. NULL: unknown. */
static uint32_t *engine_find_places(uint64_t samples, uint64_t length,
                                    const struct order *order)
{
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
    uint64_t length = e->options.length;
    options.seed += epoch;
    e->making = true;
    pthread_mutex_unlock(&e->lock);
    int r = order_new(&options, &order);
    if (r == 0 && is_next && e->options.fill.foresee)
        places = engine_find_places(options.samples, length, order);
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

/* A thread is done with its run of a slab that was abandoned, or is no longer lost. */
static void engine_came_back(struct engine *e, struct worker *worker, struct slab *slab)
{
    if (worker->lost) {
        worker->lost = false;
        e->lost--;
        e->busy++; /* like the others, and the caller takes it off again */
        atomic_store(&worker->filler.given_up, e->stop);
    }
    if (slab->gathered < slab->claimed || !slab->released)
        return;
    engine_push_free(e, slab);
    pthread_cond_signal(&e->work);
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
