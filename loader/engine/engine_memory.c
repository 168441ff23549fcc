/*
 * The memory of slabs, and what others of the job leave of it.
 *
 * What slabs may have beyond the few without which nothing moves is asked for, in steps, and
 * granted or not by the share's thread (`told`). What is lent to the consumer is never taken
 * back, but what comes back while there is too much is given up. Threads beyond what others
 * leave of the CPUs are parked.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine_private.h"
#include "share.h"

#define SLAB_ROUND_BYTES (64u << 10)
/* What the consumer has, what it is about to take, and two that are being gathered. */
#define SLABS_LEAST 4u

static void give_memory_back(struct engine *e, struct slab *slab)
{
    if (slab->memory)
        e->options.memory->release(slab, e->options.memory_ctx);
    e->slab_count -= slab->memory != NULL;
    e->slab_bytes -= slab->capacity;
    slab->memory = NULL;
    slab->capacity = 0;
}

void engine_free_slab(struct engine *e, struct slab *slab)
{
    give_memory_back(e, slab);
    free(slab);
}

static bool is_settled(const struct engine *e, struct slab *slab)
{
    const struct slab_memory *memory = e->options.memory;
    return !memory->is_settled || memory->is_settled(slab, e->options.memory_ctx);
}

/*
 * A free slab that is large enough, else any, else none; -EAGAIN if there are only ones that
 * a device still reads from: waiting for one is better than having ever more of them.
 */
static int take_free(struct engine *e, size_t bytes, struct slab **ret_slab)
{
    struct slab **best = NULL;
    bool unsettled = e->settling;
    for (struct slab **s = &e->free_slabs; *s; s = &(*s)->next) {
        if (!is_settled(e, *s)) {
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

/* What is free and not needed now makes room. */
static void drop_free(struct engine *e, uint64_t room)
{
    while (e->free_slabs && room > e->options.memory_bytes - e->slab_bytes) {
        struct slab *slab = e->free_slabs;
        e->free_slabs = slab->next;
        engine_free_slab(e, slab);
    }
}

/* A little more than asked for, so that the next batch fits too. */
static size_t capacity_for(size_t bytes)
{
    size_t generous = bytes + bytes / 8 + SLAB_ROUND_BYTES;
    return generous & ~(size_t)(SLAB_ROUND_BYTES - 1);
}

/* -EINPROGRESS: it is asked for; -ENOBUFS: others of the job have the rest. */
static int within_part(struct engine *e, uint64_t bytes)
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

static uint64_t slabs_least(const struct engine *e)
{
    return e->options.ahead + 2 < SLABS_LEAST ? e->options.ahead + 2 : SLABS_LEAST;
}

/*
 * Always the few without which nothing moves; then those of the ring, the batch that the
 * consumer works on, and the one that it is about to take, within the part that is ours; and
 * more only where nobody of the job uses that memory.
 */
static int may_grow(struct engine *e, size_t capacity)
{
    uint64_t slabs = e->slab_bytes / capacity;
    if (slabs < slabs_least(e) || e->slab_count < slabs_least(e))
        return 0;
    int r = within_part(e, e->slab_bytes + capacity);
    if (r < 0 || !e->options.free_bytes || slabs < e->options.ahead + 2)
        return r;
    uint64_t unused = e->options.free_bytes();
    bool fits = unused > e->options.left_bytes && capacity <= unused - e->options.left_bytes;
    return fits ? 0 : -ENOBUFS;
}

/* What is free and of another size makes room as well. */
static int make_room(struct engine *e, size_t capacity)
{
    int r = may_grow(e, capacity);
    while (r == -ENOBUFS && e->free_slabs) {
        struct slab *slab = e->free_slabs;
        e->free_slabs = slab->next;
        engine_free_slab(e, slab);
        r = may_grow(e, capacity);
    }
    return r;
}

/* More than its part, and more than it can't do without? */
static bool has_too_much(const struct engine *e)
{
    return e->slab_bytes > e->part_bytes && e->free_slabs && e->slab_count > slabs_least(e) &&
           e->slab_bytes - e->free_slabs->capacity >= slabs_least(e) * e->free_slabs->capacity;
}

void engine_give_up_surplus(struct engine *e)
{
    bool did = false;
    while (has_too_much(e) && is_settled(e, e->free_slabs)) {
        struct slab *slab = e->free_slabs;
        e->free_slabs = slab->next;
        engine_free_slab(e, slab);
        did = true;
    }
    if (did && e->share)
        share_look(e->share);
}

/* See struct share_options. */
static uint64_t told(void *ctx, const struct share_part *part)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->part_bytes = part->bytes;
    e->asking = e->asking && part->most_bytes < e->asked_bytes;
    e->starved = 0; /* else it is found again */
    engine_give_up_surplus(e);
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

/* What is used without asking, others have to know. */
static void say_so(struct engine *e)
{
    if (!e->share || e->slab_bytes <= e->part_bytes)
        return;
    if (e->asked_bytes < e->slab_bytes)
        e->asked_bytes = e->slab_bytes;
    share_want(e->share, e->asked_bytes);
}

int engine_get_slab(struct engine *e, size_t bytes, struct slab **ret_slab)
{
    struct slab *slab;
    int r = take_free(e, bytes, &slab);
    if (r < 0)
        return r;
    if (!slab && !(slab = calloc(1, sizeof(*slab))))
        return -ENOMEM;
    if (slab->capacity < bytes) {
        give_memory_back(e, slab);
        size_t capacity = capacity_for(bytes);
        drop_free(e, capacity);
        if (capacity > e->options.memory_bytes - e->slab_bytes)
            capacity = (bytes + 4095) & ~(size_t)4095;
        r = capacity > e->options.memory_bytes - e->slab_bytes ? -ENOBUFS
                                                               : make_room(e, capacity);
        if (r < 0) {
            free(slab);
            return e->settling ? -EAGAIN : r; /* that one may be dropped then */
        }
        r = e->options.memory->allocate(slab, capacity, e->options.memory_ctx);
        if (r < 0) {
            free(slab);
            return -ENOMEM;
        }
        slab->capacity = capacity;
        e->slab_bytes += capacity;
        e->slab_count++;
        say_so(e);
    }
    *ret_slab = slab;
    return 0;
}

void engine_join_others(struct engine *e)
{
    const struct share_options options = {
        .total_bytes = e->options.job_bytes,
        .fixed_bytes = e->options.is_fixed ? e->options.memory_bytes : 0,
        .most_bytes = 1, /* the least; more is asked for when it is needed */
        .works = e->options.cpus > 0,
        .is_brief = true,
        .told = told,
        .ctx = e,
    };
    struct share *share = NULL;
    if (!options.total_bytes)
        return;
    int r = share_new(&options, &share);
    pthread_mutex_lock(&e->lock);
    e->share = share;
    e->joining = false;
    if (r < 0) {
        e->part_bytes = UINT64_MAX;
        e->allowed = e->options.threads;
    }
    say_so(e);
    pthread_cond_broadcast(&e->parked);
    pthread_cond_broadcast(&e->work);
    pthread_mutex_unlock(&e->lock);
}
