/*
 * The memory of slabs, and sharing it with others of the job.
 *
 * An engine always gets the few slabs without which nothing moves. It asks for more in steps,
 * and the share's thread grants them or not (engine_told_part). Slabs that the consumer has are
 * never taken away, but slabs that come back while there are too many are given up. Threads are
 * parked if others leave too few CPUs for them.
 */
#include <errno.h>
#include <stdlib.h>

#include "cpus.h"
#include "engine_private.h"
#include "share.h"

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

void engine_leave(struct engine *e)
{
    e->busy++;
    if (e->options.memory->may_wait)
        pthread_mutex_unlock(&e->lock);
}

void engine_come_back(struct engine *e)
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

void engine_give_up_surplus(struct engine *e)
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

int engine_get_slab(struct engine *e, uint32_t device, size_t bytes, struct slab **ret_slab)
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
