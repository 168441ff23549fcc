/*
 * A thread looks for work in this order. First, a run of samples of the batch that is being
 * gathered. Else it plans the next batch. Else it shuffles the order of the next epoch, so that
 * this is there when it is needed; at the latest that happens in the second half of an epoch.
 *
 * Batches are planned in their order, and get their memory then. So the batch that the consumer
 * waits for is never without a slab while a later one has one. If it has none, the consumer
 * holds all memory, and engine_take reports that.
 *
 * An engine always gets the few slabs without which nothing moves. It asks others of the job
 * for more in steps, and the share's thread grants them or not (engine_told_part). Slabs that
 * the consumer has are never taken away, but slabs that come back while there are too many are
 * given up. Threads are parked if others leave too few CPUs for them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cpus.h"
#include "engine_private.h"
#include "epoch.h"
#include "numbers.h"
#include "share.h"

#define NO_PLACE UINT32_MAX
#define SLAB_ROUND_BYTES (64u << 10)
/* One that the consumer has, one that it is about to take, and two being gathered. */
#define SLABS_LEAST 4u
/* Of each of several devices: one that the consumer has, and the next one. */
#define SLABS_LEAST_OF_EACH 2u

/* The share of memory_bytes that a slab of this capacity takes. */
static uint64_t slab_takes(const struct engine *e, uint32_t device, size_t capacity)
{
    return capacity + e->options.memory->beside(capacity, e->options.memory_ctx[device]);
}

/* The rest of the device's part. */
static uint64_t engine_room(const struct engine *e, uint32_t device)
{
    const struct engine_device *d = &e->devices[device];
    return e->options.memory_bytes / e->options.devices - d->slab_bytes - d->beside_bytes;
}

/* Around calls of the slabs' memory that may wait for a device: the lock is let go if they may.
 * Nobody else can see or use the slab meanwhile. */
static void engine_leave(struct engine *e)
{
    e->busy++;
    if (e->options.memory->may_wait)
        pthread_mutex_unlock(&e->lock);
}

static void engine_come_back(struct engine *e)
{
    if (e->options.memory->may_wait)
        pthread_mutex_lock(&e->lock);
    e->busy--;
    if (e->seeking && e->busy == 0)
        pthread_cond_broadcast(&e->ready);
}

/* `more`: 1 or, in unsigned arithmetic, -1. */
static void count_slabs(struct engine *e, uint32_t device, size_t capacity, uint64_t more)
{
    struct engine_device *d = &e->devices[device];
    uint64_t beside = slab_takes(e, device, capacity) - capacity;
    e->slab_bytes += more * capacity;
    e->beside_bytes += more * beside;
    d->slab_bytes += more * capacity;
    d->beside_bytes += more * beside;
    d->slab_count += more;
}

static void give_memory_back(struct engine *e, struct slab *slab)
{
    size_t capacity = slab->capacity;
    if (!slab->memory)
        return;
    engine_leave(e);
    e->options.memory->release(slab, engine_memory_ctx(e, slab));
    engine_come_back(e);
    slab->memory = NULL;
    slab->capacity = 0;
    count_slabs(e, slab->device, capacity, -UINT64_C(1));
}

void engine_push_free(struct engine *e, struct slab *slab)
{
    struct slab **at = &e->free_slabs;
    while (*at && e->options.memory->may_wait)
        at = &(*at)->next;
    slab->next = *at;
    *at = slab;
}

struct slab **engine_first_free(struct engine *e, uint32_t device)
{
    struct slab **at = &e->free_slabs;
    while (*at && (*at)->device != device)
        at = &(*at)->next;
    return *at ? at : NULL;
}

void engine_drop_free(struct engine *e, struct slab **at)
{
    struct slab *slab = *at;
    *at = slab->next;
    give_memory_back(e, slab);
    free(slab);
}

static bool slab_is_settled(const struct engine *e, struct slab *slab)
{
    return e->options.memory->is_settled(slab, engine_memory_ctx(e, slab));
}

/*
 * A free slab that is large enough, else any free one, else none. -EAGAIN: the device still
 * reads from all that are free. To wait for one is better than to have ever more of them.
 */
static int engine_take_free(struct engine *e, uint32_t device, size_t bytes,
                            struct slab **ret_slab)
{
    struct slab **best = NULL;
    bool unsettled = e->devices[device].settling;
    for (struct slab **s = &e->free_slabs; *s; s = &(*s)->next) {
        if ((*s)->device != device)
            continue;
        if (!slab_is_settled(e, *s)) {
            unsettled = true;
            continue;
        }
        if (!best || (*s)->capacity >= bytes)
            best = s;
        if ((*s)->capacity >= bytes)
            break;
    }
    if (!best && unsettled)
        return -EAGAIN;
    *ret_slab = best ? *best : NULL;
    if (best)
        *best = (*best)->next;
    return 0;
}

/* Make room by dropping free slabs of the device that are not needed now. */
static void engine_make_free_room(struct engine *e, uint32_t device, uint64_t room)
{
    struct slab **at;
    while (room > engine_room(e, device) && (at = engine_first_free(e, device)))
        engine_drop_free(e, at);
}

/* A little more than asked for, so that the next batch fits, too. */
static size_t capacity_for(size_t bytes)
{
    size_t generous = bytes + bytes / 8 + SLAB_ROUND_BYTES;
    return generous & ~(size_t)(SLAB_ROUND_BYTES - 1);
}

/* -EINPROGRESS: the share was asked; -ENOBUFS: others of the job have the rest. */
static int engine_within_part(struct engine *e, uint64_t bytes)
{
    if (e->joining)
        return -EINPROGRESS;
    if (!e->share || bytes <= e->part_bytes)
        return 0;
    if (e->asking)
        return -EINPROGRESS;
    if (bytes <= e->asked_bytes)
        return -ENOBUFS;
    e->asked_bytes = bytes + bytes / 2;
    e->asking = true;
    share_want(e->share, e->asked_bytes);
    return -EINPROGRESS;
}

/* For each device. */
static uint64_t slabs_least(const struct engine *e)
{
    uint32_t least = e->options.devices > 1 ? SLABS_LEAST_OF_EACH : SLABS_LEAST;
    return e->options.ahead + 2 < least ? e->options.ahead + 2 : least;
}

/*
 * The few slabs without which nothing moves are always allowed. Up to the ring, the batch that
 * the consumer works on, and the one that it is about to take, they have to fit in our part.
 * Beyond that, they may only use memory that nobody of the job uses.
 */
static int engine_may_grow(struct engine *e, uint32_t device, size_t capacity)
{
    const struct engine_device *d = &e->devices[device];
    if (d->slab_bytes / capacity < slabs_least(e) || d->slab_count < slabs_least(e))
        return 0;
    if (d->most_bytes && d->slab_bytes + capacity > d->most_bytes)
        return -ENOBUFS;
    int r = engine_within_part(e, e->slab_bytes + capacity);
    if (r < 0 || !e->options.free_bytes || e->slab_bytes / capacity < e->options.ahead + 2)
        return r;
    uint64_t unused = e->options.free_bytes();
    bool fits = unused > e->options.left_bytes && capacity <= unused - e->options.left_bytes;
    return fits ? 0 : -ENOBUFS;
}

/* A free slab of a device that has more than it needs to move at all. NULL: there is none. */
static struct slab **engine_surplus(struct engine *e)
{
    struct slab **at = &e->free_slabs;
    for (uint64_t least = slabs_least(e); *at; at = &(*at)->next) {
        const struct engine_device *d = &e->devices[(*at)->device];
        size_t capacity = (*at)->capacity;
        if (d->slab_count > least && d->slab_bytes - capacity >= least * capacity)
            return at;
    }
    return NULL;
}

/* Make room, also by dropping free slabs of other sizes, and what other devices can spare. */
static int engine_make_room(struct engine *e, uint32_t device, size_t capacity)
{
    struct slab **at;
    int r = engine_may_grow(e, device, capacity);
    while (r == -ENOBUFS && ((at = engine_first_free(e, device)) || (at = engine_surplus(e)))) {
        engine_drop_free(e, at);
        r = engine_may_grow(e, device, capacity);
    }
    return r;
}

/* Give up free slabs whose memory others of the job are to have. The lock is let go meanwhile
 * where that may take long. */
static void engine_give_up_surplus(struct engine *e)
{
    bool did = false;
    struct slab **at;
    while (e->slab_bytes > e->part_bytes && (at = engine_surplus(e)) &&
           slab_is_settled(e, *at)) {
        engine_drop_free(e, at);
        did = true;
    }
    if (did && e->share)
        share_look(e->share);
}

void engine_shed(struct engine *e)
{
    if (e->options.memory->may_wait)
        pthread_cond_broadcast(&e->work);
    else
        engine_give_up_surplus(e);
}

/* The share's answer, see struct share_options. */
static uint64_t engine_told_part(void *ctx, const struct share_part *part)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->part_bytes = part->bytes;
    e->asking = e->asking && part->most_bytes < e->asked_bytes;
    e->starved = 0; /* if memory is still short, that is noticed again */
    engine_shed(e);
    if (e->options.cpus) {
        uint32_t fair = e->options.cpus / (part->processes + 1);
        fair = fair > 0 ? fair : 1;
        e->allowed = fair < e->options.threads ? fair : e->options.threads;
        pthread_cond_broadcast(&e->parked);
    }
    pthread_cond_broadcast(&e->work);
    uint64_t used = e->slab_bytes > e->part_bytes ? e->slab_bytes : e->part_bytes;
    pthread_mutex_unlock(&e->lock);
    return used;
}

/* Report to others the memory that is used without asking. */
static void engine_report_use(struct engine *e)
{
    if (!e->share || e->slab_bytes <= e->part_bytes)
        return;
    if (e->asked_bytes < e->slab_bytes)
        e->asked_bytes = e->slab_bytes;
    share_want(e->share, e->asked_bytes);
}

/* Give a slab without memory some, as far as its device may have more. */
static int engine_give_memory(struct engine *e, struct slab *slab, size_t bytes)
{
    uint32_t device = slab->device;
    size_t capacity = capacity_for(bytes);
    engine_make_free_room(e, device, slab_takes(e, device, capacity));
    if (slab_takes(e, device, capacity) > engine_room(e, device))
        capacity = (bytes + 4095) & ~(size_t)4095;
    int r = slab_takes(e, device, capacity) > engine_room(e, device)
                ? -ENOBUFS
                : engine_make_room(e, device, capacity);
    if (r < 0)
        return e->devices[device].settling ? -EAGAIN : r; /* what settles may be dropped then */
    count_slabs(e, device, capacity, 1);
    engine_leave(e);
    r = e->options.memory->allocate(slab, capacity, engine_memory_ctx(e, slab));
    engine_come_back(e);
    if (r < 0) {
        struct engine_device *d = &e->devices[device];
        count_slabs(e, device, capacity, -UINT64_C(1));
        if (d->slab_count < slabs_least(e))
            return -ENOMEM;
        d->most_bytes = d->slab_bytes;
        return -ENOBUFS;
    }
    slab->capacity = capacity;
    engine_report_use(e);
    return 0;
}

/*
 * A slab of this device, of at least `bytes`. -EAGAIN: the device will let go of one soon;
 * -EINPROGRESS: others of the job are asked, and `work` is broadcast with their answer;
 * -ENOBUFS: beyond the budget; -ENOMEM.
 */
static int engine_get_slab(struct engine *e, uint32_t device, size_t bytes,
                           struct slab **ret_slab)
{
    struct slab *slab;
    int r = engine_take_free(e, device, bytes, &slab);
    if (r < 0)
        return r;
    if (!slab && !(slab = calloc(1, sizeof(*slab))))
        return -ENOMEM;
    slab->device = device;
    if (slab->capacity < bytes) {
        give_memory_back(e, slab);
        r = engine_give_memory(e, slab, bytes);
        if (r < 0) {
            free(slab);
            return r;
        }
    }
    *ret_slab = slab;
    return 0;
}

void engine_join_others(struct engine *e)
{
    const struct share_options options = {
        .claim = {.total_bytes = e->options.job_bytes,
                  .fixed_bytes = e->options.is_fixed ? e->options.memory_bytes : 0,
                  .most_bytes = 1, /* the least; more is asked for when needed */
                  .cpus_key = e->options.cpus > 0 ? cpus_key() : 0,
                  .unwatched = true},
        .told = engine_told_part,
        .ctx = e,
    };
    struct share *share = NULL;
    if (!options.claim.total_bytes)
        return;
    int r = share_new(&options, &share);
    pthread_mutex_lock(&e->lock);
    e->share = share;
    e->joining = false;
    if (r < 0) {
        e->part_bytes = UINT64_MAX;
        e->allowed = e->options.threads;
    }
    engine_report_use(e);
    pthread_cond_broadcast(&e->parked);
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
}

void engine_close_memory(const struct engine_options *o)
{
    for (uint32_t i = 0; i < o->devices; i++)
        o->memory->close(o->memory_ctx[i]);
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
