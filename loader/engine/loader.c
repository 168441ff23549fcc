/*
 * The public loader: its options, checked and completed from the archive and the job's
 * resources; its engine, which has the threads, the ring of batches ahead and the slabs; its
 * batches, and the words of its errors; its position, as numbers from which a later loader goes
 * on, and what was delivered.
 *
 * An engine belongs to one process; a child makes its own. One lock guards all of it. It is
 * taken once for a run of samples, not for each sample. A batch is planned under the lock
 * (which samples, how large, into which slab), but copied without it.
 *
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
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "accelerator.h"
#include "batch_fit.h"
#include "budget.h"
#include "clock.h"
#include "cpus.h"
#include "dataset.h"
#include "error.h"
#include "numbers.h"
#include "onepot_device.h"
#include "python_api.h"
#include "rank_share.h"
#include "share.h"
#include "thread.h"

#define AHEAD_MAX 1024u
#define THREADS_MAX 1024u
#define STACK_BYTES (512u << 10)
#define GRACE_NS UINT64_C(1000000000)
#define LOOK_NS UINT64_C(20000000)
#define NO_PLACE UINT32_MAX
#define SLAB_ROUND_BYTES (64u << 10)
/* One that the consumer has, one that it is about to take, and two being gathered. */
#define SLABS_LEAST 4u
/* Of each of several devices: one that the consumer has, and the next one. */
#define SLABS_LEAST_OF_EACH 2u

#define RUN_MAPPED 64u   /* samples that a thread takes at a time, */
#define RUN_READ 4u      /* and where each may wait for a device, or is decoded */
#define THREADS_READ 32u /* reads in flight that suit slow storage */
#define AHEAD_LEAST 4u
#define IO_TIMEOUT_MS 60000u

/* A place in the stream of all epochs. */
struct place {
    uint64_t epoch;
    uint64_t done;                     /* elements of it that this rank is done with */
    struct onepot_delivered delivered; /* since the epoch was entered */
};

struct worker {
    struct engine *engine;
    pthread_t thread;
    uint32_t number;
    struct filler filler;
    struct slab *slab; /* the one that it gathers a run of */
    bool lost;         /* it is in a read that was given up */
    bool ended;
    bool left; /* nobody waits for it: it ends by itself, and counts as a user */
};

/* The slabs with the memory of one device. */
struct engine_device {
    uint64_t slab_bytes;   /* of all, */
    uint64_t beside_bytes; /* and of the device's results */
    uint64_t slab_count;
    uint64_t
        most_bytes; /* of slabs: beyond that an allocation failed in this epoch; 0: none did */
    bool settling;  /* a thread waits for one of them, which is not in the list of free ones */
};

struct engine {
    struct engine_options options;
    struct dataset *dataset; /* kept for threads that are left behind */
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t work;   /* for threads: there may be something to do */
    pthread_cond_t ready;  /* for the consumer */
    pthread_cond_t parked; /* for threads that must leave the CPUs to others */
    struct worker *workers;
    uint32_t thread_count;
    uint32_t thread_room;
    uint32_t allowed; /* threads that may work */
    uint32_t lost;    /* threads; for each of these another one may work */
    bool stop;
    unsigned users; /* the loader, each slab that is out, each thread left behind */

    struct slab *ring[AHEAD_MAX];
    uint64_t head, tail; /* batches taken, batches planned */
    struct slab *open;   /* the last planned batch, while runs of it are left */
    uint32_t busy;       /* threads that work without the lock */

    struct place taken;           /* where the consumer is */
    struct place plan;            /* of the next batch to plan */
    struct onepot_sampler *order; /* of plan.epoch; NULL: not made yet */
    struct onepot_sampler *next;  /* of the epoch after it */
    uint32_t *places;    /* of each sample in `next`; NULL: not needed (fill.foresee) */
    bool making;         /* a thread shuffles an order */
    bool next_failed;    /* no memory to make `next` in advance */
    bool seeking;        /* no work is begun */
    uint64_t generation; /* grows with each seek */
    int order_err;       /* of making plan.epoch's order */
    uint64_t starved;    /* bytes of a planned batch that found no memory, or 0; */
    uint32_t starved_device;
    uint64_t *indices; /* scratch for planning: batch_size elements each */
    uint64_t *offsets, *sizes;

    struct slab *free_slabs;
    bool planning;          /* a thread plans or sheds, at times without the lock, */
    bool plan_again;        /* and another had reason to */
    bool wants_settled;     /* no batch can be planned until a free slab is settled, */
    uint32_t wanted_device; /* of this device */
    uint64_t slab_bytes;    /* of all devices' slabs, */
    uint64_t beside_bytes;  /* and of what they make of them */
    struct engine_device devices[ONEPOT_DEVICES_MAX];
    struct share *share;       /* with others of the job; NULL: nothing is shared */
    uint64_t part_bytes;       /* of it, for slabs; UINT64_MAX if nothing is shared */
    uint64_t asked_bytes;      /* the share was asked for so much, */
    bool asking;               /* and has not answered yet */
    bool joining;              /* not known yet whether anything is shared */
    struct onepot_stats stats; /* its counts */
};

struct onepot_loader {
    struct onepot_archive *archive; /* its own handle */
    struct engine_options options;
    _Atomic(struct engine *) engine;
    _Atomic int owner;    /* the process that has the engine, or is about to make one */
    pthread_mutex_t lock; /* for seeks, and what changes with them: seed and digest */
    struct loader_devices *devices; /* NULL: batches are for the host (accelerator.h) */
    struct images_plan *images;     /* or NULL */
    struct images_budget budget;    /* of pictures that are decoded */
    uint64_t seed;
    _Atomic uint64_t length; /* as options.length, which the lock guards */
    uint64_t *list;          /* the caller's order of an epoch, or NULL; */
    uint64_t list_hash;      /* and what tells it from others, not 0 */
    bool has_digest;
    uint8_t digest[ONEPOT_DIGEST_BYTES];
};

/* ---- slabs; under the lock ---- */

/* The context for `options.memory`. */
static void *engine_memory_ctx(const struct engine *engine, const struct slab *slab)
{
    return engine->options.memory_ctx[slab->device];
}

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

/*
 * The list of free slabs, of all devices, and giving up the memory of one of them. The first of
 * a device is used next. On the host that is the latest, which caches may still have; where a
 * device may still read from it, the one that has been free for longest.
 */
static void engine_push_free(struct engine *e, struct slab *slab)
{
    struct slab **at = &e->free_slabs;
    while (*at && e->options.memory->may_wait)
        at = &(*at)->next;
    slab->next = *at;
    *at = slab;
}

/* Where the first one of the device is in the list, or NULL. */
static struct slab **engine_first_free(struct engine *e, uint32_t device)
{
    struct slab **at = &e->free_slabs;
    while (*at && (*at)->device != device)
        at = &(*at)->next;
    return *at ? at : NULL;
}

static void engine_drop_free(struct engine *e, struct slab **at)
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
        share_want(e->share, 0);
}

/* Give up free slabs whose memory others of the job are to have, or have the engine's threads
 * do so where that may take long. */
static void engine_shed(struct engine *e)
{
    if (e->options.memory->may_wait)
        pthread_cond_broadcast(&e->work);
    else
        engine_give_up_surplus(e);
}

/* The share's answer (claim_set). */
static uint64_t engine_told_part(void *ctx, uint64_t bytes, uint64_t most_bytes,
                                 unsigned processes)
{
    struct engine *e = ctx;
    pthread_mutex_lock(&e->lock);
    e->part_bytes = bytes;
    e->asking = e->asking && most_bytes < e->asked_bytes;
    e->starved = 0; /* if memory is still short, that is noticed again */
    engine_shed(e);
    if (e->options.cpus) {
        uint32_t fair = e->options.cpus / (processes + 1);
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

/* Without the lock. From now on the engine shares with other processes of the job, if it can
 * learn of them. */
static void engine_join_others(struct engine *e)
{
    const struct claim_options claim = {
        .total_bytes = e->options.job_bytes,
        .fixed_bytes = e->options.is_fixed ? e->options.memory_bytes : 0,
        .most_bytes = 1, /* the least; more is asked for when needed */
        .cpus_key = e->options.cpus > 0 ? cpus_key() : 0,
        .unwatched = true,
    };
    struct share *share = NULL;
    if (!claim.total_bytes)
        return;
    int r = share_new(&claim, engine_told_part, e, &share);
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

/* Give up the memory that all slabs come from. */
static void engine_close_memory(const struct engine_options *o)
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
    onepot_sampler_free(e->order);
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
    onepot_sampler_get(e->order, e->plan.done, count, slab->indices, slab->valid);
    for (uint64_t i = 0; i < count; i++)
        slab->again[i] = comes_again(e, i);
}

/*
 * Choose the next batch's samples, which have so many bytes of data, and the slab that it
 * needs. 0: they are too many.
 */
static size_t engine_choose_samples(struct engine *e, uint64_t *ret_count, uint64_t *ret_bytes)
{
    const struct engine_options *o = &e->options;
    uint64_t count = min_u64(o->length - e->plan.done, o->batch_size);
    onepot_sampler_get(e->order, e->plan.done, count, e->indices, NULL);
    *ret_count = count;
    return fill_places(&o->fill, e->indices, count, e->offsets, e->sizes, ret_bytes)
               ? slab_bytes(count, *ret_bytes, NULL)
               : 0;
}

/* NULL: there is none now, and the engine notes the lack. */
static struct slab *engine_slab_for(struct engine *e, size_t need)
{
    struct slab *slab;
    /* The device follows from the place in the epoch alone: it is the same after a resume. */
    uint32_t device = (uint32_t)(e->plan.done / e->options.batch_size % e->options.devices);
    int r = need ? engine_get_slab(e, device, need, &slab) : -ENOBUFS;
    if (r == 0 && !e->seeking) {
        e->starved = 0;
        return slab;
    }
    if (r == 0) { /* a seek began while this thread waited for memory */
        engine_push_free(e, slab);
    } else if (r == -EAGAIN || r == -EINPROGRESS) {
        e->wants_settled = r == -EAGAIN;
        e->wanted_device = device;
    } else {
        e->starved = r == -ENOMEM ? UINT64_MAX : need ? need : UINT64_MAX - 1;
        e->starved_device = device;
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
    uint64_t count, bytes;
    e->wants_settled = false;
    if (e->seeking || e->tail - e->head == e->options.ahead || e->options.length == 0)
        return false;
    engine_turn_epoch(e);
    if (!e->order)
        return false;
    engine_look_for_copies(e);
    size_t need = engine_choose_samples(e, &count, &bytes);
    struct slab *slab = engine_slab_for(e, need);
    if (!slab)
        return false;
    slab_begin(slab, count, bytes);
    slab->engine = e;
    slab->seed = e->options.order.seed;
    slab->batch.epoch = e->plan.epoch;
    slab->batch.first = e->plan.done;
    slab->batch.stride = e->options.fill.stride;
    fill_tables(&e->options.fill, slab, e->indices, e->offsets, e->sizes);
    engine_mark_samples(e, slab, count);
    e->plan.done += count;
    slab->end = e->plan.done;
    e->ring[e->tail++ % AHEAD_MAX] = slab;
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

/* Has the caller still to give the order of this epoch? */
static bool engine_lacks_list(const struct engine *e, uint64_t epoch)
{
    return e->options.is_listed && (!e->options.list || e->options.list_epoch != epoch);
}

/* Is an order needed? The current epoch's, or the next one's shortly before it begins. */
static bool engine_wants_order(const struct engine *e, bool idle, bool *ret_next)
{
    if (e->seeking || e->making || e->options.length == 0 || e->order_err ||
        (e->options.is_listed && (e->order || engine_lacks_list(e, e->plan.epoch))))
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
                                    const struct onepot_sampler *order)
{
    uint32_t *places = length < NO_PLACE ? malloc(samples * sizeof(*places)) : NULL;
    if (!places)
        return NULL;
    memset(places, 0xff, samples * sizeof(*places));
    for (uint64_t i = length, sample; i-- > 0;)
        if (onepot_sampler_get(order, i, 1, &sample, NULL) == 0)
            places[sample] = (uint32_t)i;
    return places;
}

static void engine_make_order(struct engine *e, bool is_next)
{
    struct onepot_sampler_options options = e->options.order;
    const uint64_t *list = e->options.list;
    struct onepot_sampler *order = NULL;
    uint32_t *places = NULL;
    uint64_t generation = e->generation, epoch = e->plan.epoch + is_next;
    uint64_t length = e->options.length;
    options.epoch = epoch;
    e->making = true;
    pthread_mutex_unlock(&e->lock);
    int r = sampler_new(&options, list, NULL, NULL, &order);
    if (r == 0 && is_next && e->options.fill.foresee)
        places = engine_find_places(options.samples, length, order);
    pthread_mutex_lock(&e->lock);
    e->making = false;
    if (generation != e->generation)
        onepot_sampler_free(order);
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

/* The work of a thread until the engine ends. */
static void engine_work(struct engine *e, struct worker *worker)
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
    onepot_sampler_free(e->order);
    onepot_sampler_free(e->next);
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
    struct timespec until = clock_timespec(until_ns);
    if (e->dataset->wait)
        return e->dataset->wait(&e->ready, &e->lock, until_ns, e->busy + e->lost);
    if (until_ns == UINT64_MAX)
        return pthread_cond_wait(&e->ready, &e->lock) == 0;
    return pthread_cond_timedwait(&e->ready, &e->lock, &until) != ETIMEDOUT;
}

/* Without the lock, once `stop` is set. Threads that are left behind have become users. */
static void engine_end_threads(struct engine *e)
{
    uint64_t start = dataset_now_ns(e->dataset);
    pthread_mutex_lock(&e->lock);
    while (is_awaited(e, dataset_now_ns(e->dataset) - start > GRACE_NS))
        engine_wait_ready(e, dataset_now_ns(e->dataset) + LOOK_NS);
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
    uint64_t further = source_progress_ns(e->dataset->filesets[record_archive(record)]->source);
    return further > since ? further : since;
}

/*
 * Under the lock. Give up reads that have taken too long. Their batches become whole, with an
 * error, and other threads replace the readers.
 */
static void engine_give_up_stalled(struct engine *e)
{
    uint64_t now = dataset_now_ns(e->dataset), timeout_ns = e->options.io_timeout_ns;
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
    uint64_t timeout_ns = e->options.io_timeout_ns, first = dataset_now_ns(e->dataset);
    if (!timeout_ns)
        return UINT64_MAX;
    for (uint32_t i = 0; i < e->thread_count; i++) {
        uint64_t since = waits_since(e, &e->workers[i]);
        if (!e->workers[i].lost && since && since < first)
            first = since;
    }
    return first + timeout_ns;
}

/* ---- the life of an engine ---- */

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

/*
 * Make an engine that delivers from `place` on. The options are copied. What they point to must
 * outlive the engine. -ENOMEM, -EAGAIN (no thread).
 */
static int engine_new(const struct engine_options *options, const struct place *place,
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

/* Does it belong to this process? */
static bool engine_is_own(const struct engine *engine)
{
    return engine->pid == getpid();
}

/* Put the ring's slabs back into the free list. Only lost threads may still work on them. */
static void engine_empty_ring(struct engine *e)
{
    for (; e->head < e->tail; e->head++) {
        struct slab *slab = e->ring[e->head % AHEAD_MAX];
        if (slab->gathered < slab->claimed) {
            slab->abandoned = slab->released = true;
            continue;
        }
        engine_push_free(e, slab);
    }
    e->open = NULL;
}

/*
 * Stop the threads. A thread that reads gets one second, and is then left behind. The last slab
 * that is out, or the last thread that is left, frees the rest.
 */
static void engine_free(struct engine *engine)
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

/*
 * Drop all prepared batches and go on from another place, in the order of these options and
 * with their length. Afterwards nobody uses the earlier order's list. -ENOMEM: nothing changed.
 */
static int engine_seek(struct engine *engine, const struct place *place,
                       const struct engine_options *options)
{
    int r = 0;
    pthread_mutex_lock(&engine->lock);
    engine->generation++;
    engine->seeking = true;
    engine->open = NULL;
    while (engine->busy > 0 || engine->planning)
        wait_until_ready(engine, UINT64_MAX);
    engine_empty_ring(engine);
    onepot_sampler_free(engine->order);
    onepot_sampler_free(engine->next);
    engine->order = engine->next = NULL;
    free(engine->places);
    engine->places = NULL;
    engine->next_failed = engine->seeking = false;
    engine->starved = 0;
    engine->order_err = 0;
    if (options->length > engine->options.length &&
        !engine_make_scratch(engine, options->length)) {
        struct place now = engine->taken;
        engine_set_place(engine, &now);
        r = -ENOMEM;
    } else {
        engine->options.order = options->order;
        engine->options.is_listed = options->is_listed;
        engine->options.list = options->list;
        engine->options.list_epoch = options->list_epoch;
        engine->options.length = options->length;
        engine_set_place(engine, place);
    }
    pthread_cond_broadcast(&engine->work);
    pthread_cond_broadcast(&engine->ready); /* there may be no batch here to wait for */
    pthread_mutex_unlock(&engine->lock);
    return r;
}

/* Where the consumer is. Works on the parent's engine, too. */
static void engine_place(const struct engine *engine, struct place *ret_place)
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

/* Count one sample. */
static void engine_delivered_count(struct onepot_delivered *delivered, uint64_t index)
{
    delivered->samples++;
    delivered->sum_a += mix_a(index + 1);
    delivered->sum_b += mix_b(index + 1);
}

/* ---- the consumer of an engine ---- */

/* A slab that came back while a batch found no memory. It is used, or given up for a larger
 * one. */
static bool engine_has_free(struct engine *e, uint32_t device)
{
    return e->devices[device].settling || engine_first_free(e, device);
}

/* 1: the next batch is there; 0: the end of an epoch; -EAGAIN: wait. Another consumer may take
 * batches meanwhile, so every look starts anew. */
static int engine_look(struct engine *e, uint64_t epoch, uint64_t *ret_about,
                       uint32_t *ret_device)
{
    if (epoch != ANY_EPOCH && epoch != e->taken.epoch)
        return 0;
    if (e->taken.done >= e->options.length) {
        e->taken.epoch++;
        e->taken.done = 0;
        return 0;
    }
    if (engine_lacks_list(e, e->taken.epoch))
        return -ENODATA;
    if (e->head < e->tail) {
        const struct slab *slab = e->ring[e->head % AHEAD_MAX];
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
        *ret_about = e->starved;
        *ret_device = e->starved_device;
        e->starved = 0;
        pthread_cond_broadcast(&e->work);
        return engine_has_free(e, e->starved_device) ? -EAGAIN : r;
    }
    return -EAGAIN;
}

static int engine_wait_for_batch(struct engine *e, uint64_t epoch, uint64_t deadline_ns,
                                 uint64_t *ret_about, uint32_t *ret_device)
{
    int r = engine_look(e, epoch, ret_about, ret_device);
    if (r != -EAGAIN)
        return r;
    uint64_t start = dataset_now_ns(e->dataset), now = start;
    while (r == -EAGAIN && now < deadline_ns) {
        if (e->lost > 0 &&
            e->lost >= e->thread_count) { /* each is in a read that was given up */
            *ret_about = atomic_load(&e->workers[0].filler.record);
            r = -ETIME;
            break;
        }
        wait_until_ready(e, deadline_ns);
        r = engine_look(e, epoch, ret_about, ret_device);
        now = dataset_now_ns(e->dataset);
    }
    e->stats.wait_ns += dataset_now_ns(e->dataset) - start;
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

/*
 * Returns 1 and the next batch. Returns 0 once at the end of an epoch, and also if the consumer
 * is in another epoch than `epoch` (unless that is ANY_EPOCH). Errors: -ETIMEDOUT after
 * `deadline_ns` (of CLOCK_MONOTONIC; UINT64_MAX: never); -ENODATA: the caller gives the orders,
 * and has given none for this epoch; -ENOBUFS about the bytes of the batch that has no room,
 * and with its device; -ENOMEM with the device; -ETIME, when all threads are in reads that
 * stall, about the record of one such read. A batch with an error is handed out as well.
 */
static int engine_take(struct engine *engine, uint64_t epoch, uint64_t deadline_ns,
                       uint64_t *ret_about, uint32_t *ret_device, struct slab **ret_slab)
{
    pthread_mutex_lock(&engine->lock);
    int r = engine_wait_for_batch(engine, epoch, deadline_ns, ret_about, ret_device);
    if (r == 1) {
        struct slab *slab = engine->ring[engine->head++ % AHEAD_MAX];
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

static void engine_release(struct slab *slab)
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

/* The figures of the engine; the others are 0. In a forked child *stats stays as it is. */
static void engine_stats(struct engine *engine, struct onepot_stats *stats)
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

/* ---- defaults ---- */

static uint64_t free_bytes(void)
{
    return budget_free_bytes("");
}

/* How many batches to have ahead: enough for two runs for every thread. */
static uint32_t ahead_for(const struct engine_options *o)
{
    uint64_t samples = 2 * o->run * o->threads;
    uint64_t ahead = samples / o->batch_size + 2;
    return (uint32_t)min_u64(max_u64(ahead, AHEAD_LEAST), AHEAD_MAX);
}

static void choose_threads(const struct onepot_loader_options *given, struct engine_options *o)
{
    bool mapped = dataset_is_mapped(o->fill.archive->dataset);
    o->threads = given->threads ? given->threads : rank_share_cpus();
    o->run = o->fill.images ? RUN_READ : RUN_MAPPED;
    o->cpus = given->threads || !mapped ? 0 : cpus_allowed();
    if (!mapped) {
        o->mapped_threads = o->threads;
        o->mapped_run = o->run;
        o->threads = given->threads ? given->threads : max_u32(o->threads, THREADS_READ);
        o->run = RUN_READ;
    }
    o->ahead = given->prefetch ? given->prefetch : ahead_for(o);
}

/* ---- options ---- */

static int loader_check_options(const struct onepot_loader_options *o,
                                struct onepot_error *error)
{
    if (o->batch_size == 0 || o->batch_size > UINT32_MAX)
        return error_set(error, -EINVAL, "a batch has 1 to %" PRIu32 " samples", UINT32_MAX);
    if (o->threads > THREADS_MAX)
        return error_set(error, -EINVAL, "more than %u threads", THREADS_MAX);
    if (o->prefetch > AHEAD_MAX)
        return error_set(error, -EINVAL, "more than %u batches ahead", AHEAD_MAX);
    if ((o->npy != 0) + (o->decode != NULL) + (o->images != NULL) > 1)
        return error_set(error, -EINVAL, "npy, images and a decoder exclude each other");
    if (o->decode && o->decoded_bytes == 0)
        return error_set(error, -EINVAL,
                         "the room for what is decoded is missing (decoded_bytes)");
    return fill_check_align(o->align, error);
}

static int plan_fill(const struct onepot_loader_options *given, struct fill_plan *fill,
                     struct onepot_error *error)
{
    fill->align = given->align ? given->align : BATCH_FIT_ALIGN;
    fill->verify = given->verify;
    fill->skip_errors = given->skip_errors;
    /* A single rank reads all samples again in the next epoch, and no order lets a cache keep
     * more for its start than fits. With several ranks, each epoch wants another part. */
    fill->foresee = given->world_size > 1 && !dataset_is_mapped(fill->archive->dataset);
    fill->npy = given->npy;
    fill->decode = given->decode;
    fill->decode_ctx = given->decode_ctx;
    if (fill->npy)
        return fill_npy_kind(fill, error);
    if (fill->images) {
        fill->stride = fill->images->all_bytes;
        return 0;
    }
    fill->stride =
        fill->decode ? given->decoded_bytes : onepot_archive_common_size(fill->archive);
    return 0;
}

/* Find rank and world size, if they are not given, and how many elements are delivered: they
 * are the same without a shuffle. */
static int loader_plan_length(struct engine_options *o, struct onepot_error *error)
{
    struct onepot_sampler_options plain = o->order;
    struct onepot_sampler *sampler;
    plain.no_shuffle = true;
    int r = sampler_new(&plain, NULL, NULL, error, &sampler);
    if (r < 0)
        return r;
    o->order.rank = onepot_sampler_rank(sampler);
    o->order.world_size = onepot_sampler_world_size(sampler);
    o->length = onepot_sampler_length(sampler);
    if (o->order.drop_last)
        o->length -= o->length % o->batch_size;
    onepot_sampler_free(sampler);
    return 0;
}

static int plan_order(struct onepot_loader_options *given, struct engine_options *o,
                      struct onepot_error *error)
{
    o->order = (struct onepot_sampler_options){
        .samples = o->fill.archive->count,
        .rank = given->rank,
        .world_size = given->world_size,
        .seed = given->seed,
        .no_shuffle = given->no_shuffle,
        .drop_last = given->drop_last,
        .block = given->block,
        .window = given->window ? given->window : SAMPLER_WINDOW,
    };
    o->batch_size = given->batch_size;
    int r = loader_plan_length(o, error);
    given->rank = o->order.rank;
    given->world_size = o->order.world_size;
    return r;
}

/*
 * Complete the options of an engine, whose `fill.archive` is set, from the caller's options and
 * the job's resources. Writes rank and world size to `given`.
 */
static int loader_plan(struct onepot_loader_options *given, struct engine_options *o,
                       struct onepot_error *error)
{
    int r = loader_check_options(given, error);
    if (r == 0)
        r = plan_order(given, o, error);
    if (r == 0)
        r = plan_fill(given, &o->fill, error);
    if (r < 0)
        return r;
    choose_threads(given, o);
    uint32_t timeout_ms = given->io_timeout_ms ? given->io_timeout_ms : IO_TIMEOUT_MS;
    if (timeout_ms != ONEPOT_NEVER)
        o->io_timeout_ns = timeout_ms * UINT64_C(1000000);
    o->memory_bytes = given->memory_bytes;
    o->job_bytes = budget_cache_bytes();
    o->is_fixed = given->memory_bytes > 0;
    if (!given->memory_bytes) {
        o->memory_bytes = rank_share_bytes();
        o->free_bytes = free_bytes;
        o->left_bytes = budget_memory_bytes("") / 8;
    }
    o->memory = &slab_host_memory;
    return 0;
}

/* ---- the life of a loader ---- */

static int loader_start(struct onepot_loader *loader, const struct place *place,
                        struct onepot_error *error)
{
    int r = loader->devices
                ? loader_accelerator->start(loader->devices, &loader->options, error)
                : 0;
    if (r < 0)
        return r;
    images_budget_init(&loader->budget, loader->options.memory_bytes, loader->options.threads);
    loader->options.fill.budget = &loader->budget;
    struct engine *engine;
    r = engine_new(&loader->options, place, &engine);
    if (r == -EAGAIN)
        return error_set(error, r, "no thread can be started: the limit is reached");
    if (r < 0)
        return error_set(error, r, "no memory for a loader");
    atomic_store(&loader->engine, engine);
    return 0;
}

static int loader_plan_images(struct onepot_loader *loader,
                              const struct onepot_loader_options *given,
                              struct onepot_error *error)
{
    if (!given->images)
        return 0;
    int r = images_plan_all(given->images, error, &loader->images);
    loader->options.fill.images = loader->images;
    return r;
}

static int loader_plan_devices(struct onepot_loader *loader,
                               const struct onepot_loader_options *given,
                               struct onepot_error *error)
{
    if (!given->device && !given->devices && !given->device_count) {
        if (given->convert || given->gather == ONEPOT_GATHER_DEVICE)
            return error_set(error, -EINVAL, "images and gathering need a device");
        return 0;
    }
    if (!loader_accelerator)
        return error_set(error, -ENODEV, "this onepot was built without devices");
    return loader_accelerator->plan(given, &loader->options, loader->images, error,
                                    &loader->devices);
}

int loader_new(const struct onepot_archive *archive,
               const struct onepot_loader_options *options, bool awaits_order,
               struct onepot_error *error, struct onepot_loader **ret_loader)
{
    struct onepot_loader_options given = {0};
    int r = options_read(&given, sizeof(given), options, error);
    if (r < 0)
        return r;
    struct onepot_loader *loader = calloc(1, sizeof(*loader));
    if (!loader || !(loader->archive = archive_share(archive))) {
        free(loader);
        return error_set(error, -ENOMEM, "no memory for a loader");
    }
    pthread_mutex_init(&loader->lock, NULL);
    atomic_init(&loader->owner, (int)getpid());
    loader->options.fill.archive = loader->archive;
    loader->options.is_listed = awaits_order;
    loader->seed = given.seed;
    r = loader_plan_images(loader, &given, error);
    if (r == 0)
        r = loader_plan(&given, &loader->options, error);
    if (r == 0)
        r = loader_plan_devices(loader, &given, error);
    atomic_init(&loader->length, loader->options.length);
    if (r == 0)
        r = loader_start(loader, &(struct place){.epoch = given.epoch}, error);
    if (r < 0) {
        onepot_loader_free(loader);
        return r;
    }
    *ret_loader = loader;
    return 0;
}

int onepot_loader_new(const struct onepot_archive *archive,
                      const struct onepot_loader_options *options, struct onepot_error *error,
                      struct onepot_loader **ret_loader)
{
    return loader_new(archive, options, false, error, ret_loader);
}

void onepot_loader_free(struct onepot_loader *loader)
{
    if (!loader)
        return;
    struct engine *engine = loader->engine;
    bool own = engine && engine_is_own(engine);
    engine_free(engine);
    if (loader->devices)
        loader_accelerator->close(loader->devices, own || !engine);
    if (loader->owner == (int)getpid())
        pthread_mutex_destroy(&loader->lock);
    onepot_archive_close(loader->archive);
    free(loader->list);
    free(loader->images);
    free(loader);
}

/* Makes a new lock, since a thread of the parent may have held the old one at the fork. */
static int loader_start_as_child(struct onepot_loader *loader, struct onepot_error *error)
{
    struct place place;
    pthread_mutex_init(&loader->lock, NULL);
    engine_place(loader->engine, &place);
    int r = loader_start(loader, &place, error);
    if (r < 0)
        atomic_store(&loader->owner, 0);
    return r;
}

/* In a child, the first thread makes a new engine, where the parent's was. */
static int loader_own_engine(struct onepot_loader *loader, struct onepot_error *error)
{
    while (!engine_is_own(loader->engine)) {
        int pid = (int)getpid(), owner = atomic_load(&loader->owner);
        if (owner != pid && atomic_compare_exchange_strong(&loader->owner, &owner, pid))
            return loader_start_as_child(loader, error);
        sched_yield();
    }
    return 0;
}

/* ---- batches ---- */

static int loader_say_full(const struct onepot_loader *loader, uint64_t bytes, uint32_t device,
                           struct onepot_error *error)
{
    struct onepot_stats stats = {0};
    char where[40] = "", parts[80] = "";
    engine_stats(loader->engine, &stats);
    if (loader->options.devices > 1) {
        snprintf(where, sizeof(where), " on %s",
                 loader_accelerator->name(loader->devices, device));
        snprintf(parts, sizeof(parts), ", of which each of %u devices may have the same part",
                 loader->options.devices);
    }
    return error_set(error, -ENOBUFS,
                     "the next batch needs %" PRIu64 " bytes%s, but batches that are kept have "
                     "%" PRIu64 " of %" PRIu64
                     "%s, or the job has no more for this process; release some, or allow more "
                     "(memory_bytes)",
                     bytes, where, stats.slab_bytes, stats.part_bytes, parts);
}

/* Says how long a read of the record has been waiting. Returns -ETIME. */
static int loader_say_stalled(const struct dataset *d, uint64_t record, uint64_t age_ns,
                              struct onepot_error *error)
{
    char words[64];
    snprintf(words, sizeof(words), "a read has been waiting for %.1f s", (double)age_ns / 1e9);
    return dataset_error_because(error, -ETIME, d, &d->records[record], words);
}

/* A batch with an error is released at once. */
static int loader_fail_batch(struct onepot_loader *loader, struct slab *slab,
                             struct onepot_error *error)
{
    const struct dataset *d = loader->archive->dataset;
    int r = slab->err;
    if (slab->lost)
        loader_accelerator->error(loader->devices, slab->device, error);
    else if (slab->abandoned)
        loader_say_stalled(d, slab->bad_record, slab->stalled_ns, error);
    else
        fill_error(error, r, d, slab->bad_record, slab->why);
    engine_release(slab);
    return r;
}

int loader_next_of(struct onepot_loader *loader, uint64_t epoch, int timeout_ms,
                   struct onepot_error *error, const struct onepot_batch **ret_batch)
{
    uint64_t deadline = UINT64_MAX;
    uint64_t about = 0;
    uint32_t device = 0;
    struct slab *slab = NULL;
    int r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    if (timeout_ms >= 0)
        deadline = dataset_now_ns(loader->archive->dataset) + (uint64_t)timeout_ms * 1000000u;
    uint64_t start_ns = dataset_now_ns(loader->archive->dataset);
    if (loader->devices)
        loader_accelerator->wait(loader->devices);
    r = engine_take(loader->engine, epoch, deadline, &about, &device, &slab);
    if (loader->devices)
        loader_accelerator->waited(loader->devices, r == 1 || r == -ETIMEDOUT,
                                   onepot_loader_epoch(loader, NULL),
                                   dataset_now_ns(loader->archive->dataset) - start_ns);
    if (r == -ENOBUFS)
        return loader_say_full(loader, about, device, error);
    if (r == -ETIME)
        return loader_say_stalled(loader->archive->dataset, about,
                                  loader->options.io_timeout_ns, error);
    if (r == -ETIMEDOUT)
        return error_set(error, r, "no batch was ready in time");
    if (r == -ENODATA)
        return error_set(error, r, "this epoch has no order yet");
    if (r < 0) { /* the device may have failed, which is more than a lack of memory */
        int why =
            loader->devices ? loader_accelerator->error(loader->devices, device, error) : 0;
        return why < 0 ? why : error_set(error, r, "no memory for the next batch");
    }
    if (r == 0)
        return r;
    if (slab->err)
        return loader_fail_batch(loader, slab, error);
    *ret_batch = &slab->batch;
    return 1;
}

int onepot_loader_next(struct onepot_loader *loader, int timeout_ms, struct onepot_error *error,
                       const struct onepot_batch **ret_batch)
{
    return loader_next_of(loader, ANY_EPOCH, timeout_ms, error, ret_batch);
}

void onepot_batch_release(const struct onepot_batch *batch)
{
    if (batch && atomic_fetch_sub(&slab_of(batch)->users, 1) == 1)
        engine_release(slab_of(batch));
}

void onepot_batch_keep(const struct onepot_batch *batch)
{
    atomic_fetch_add(&slab_of(batch)->users, 1);
}

uint64_t onepot_loader_batches(const struct onepot_loader *loader)
{
    uint64_t length = atomic_load(&loader->length), size = loader->options.batch_size;
    return length / size + (length % size != 0);
}

uint64_t onepot_loader_samples(const struct onepot_loader *loader)
{
    return atomic_load(&loader->length);
}

uint64_t onepot_loader_epoch(const struct onepot_loader *loader, uint64_t *ret_done)
{
    struct place place;
    engine_place(loader->engine, &place);
    if (ret_done)
        *ret_done = place.done;
    return place.epoch;
}

int onepot_loader_set_epoch(struct onepot_loader *loader, uint64_t epoch)
{
    struct place place;
    int r = loader_own_engine(loader, NULL);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    engine_place(loader->engine, &place);
    if (place.epoch != epoch || place.done != 0)
        r = engine_seek(loader->engine, &(struct place){.epoch = epoch}, &loader->options);
    pthread_mutex_unlock(&loader->lock);
    return r;
}

/* With the lock. Takes the list over, also on failure. -EINVAL: too many. */
static int loader_take_list(struct onepot_loader *loader, uint64_t epoch, uint64_t *list,
                            uint64_t count)
{
    struct engine_options o = loader->options;
    o.order.samples = count;
    o.order.no_shuffle = true;
    o.is_listed = true;
    o.list = list;
    o.list_epoch = epoch;
    int r = loader_plan_length(&o, NULL);
    if (r == 0)
        r = engine_seek(loader->engine, &(struct place){.epoch = epoch}, &o);
    uint64_t *old = r < 0 ? list : loader->list;
    if (r == 0) {
        loader->list = list;
        loader->list_hash = XXH3_64bits(list, count * sizeof(*list)) | 1;
        /* Other threads read the other options meanwhile, without the lock. */
        loader->options.order = o.order;
        loader->options.is_listed = true;
        loader->options.list = list;
        loader->options.list_epoch = epoch;
        loader->options.length = o.length;
        atomic_store(&loader->length, o.length);
    }
    free(old);
    return r;
}

int onepot_loader_order(struct onepot_loader *loader, uint64_t epoch, const uint64_t *samples,
                        uint64_t count, struct onepot_error *error)
{
    uint64_t bytes;
    for (uint64_t i = 0; i < count; i++)
        if (samples[i] >= loader->archive->count)
            return error_set(error, -ERANGE, "there is no sample %" PRIu64, samples[i]);
    int r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    if (__builtin_mul_overflow(count + 1, sizeof(*samples), &bytes))
        return error_set(error, -EINVAL, "too many samples for an order");
    uint64_t *list = malloc(bytes);
    if (!list)
        return error_set(error, -ENOMEM, "no memory for an order");
    if (count)
        memcpy(list, samples, count * sizeof(*list));
    pthread_mutex_lock(&loader->lock);
    r = loader_take_list(loader, epoch, list, count);
    pthread_mutex_unlock(&loader->lock);
    return r == 0 ? 0
                  : error_set(error, r, "%s for an order",
                              r == -EINVAL ? "too many samples" : "no memory");
}

int onepot_loader_npy(const struct onepot_loader *loader, struct onepot_npy *ret_npy)
{
    if (!loader->options.fill.npy)
        return -ENOTSUP;
    return result_write(ret_npy, &loader->options.fill.kind, sizeof(*ret_npy), NULL);
}

int onepot_loader_stats(struct onepot_loader *loader, struct onepot_stats *ret_stats)
{
    struct onepot_stats stats = {0};
    engine_stats(loader->engine, &stats);
    stats.prefetch = loader->options.ahead;
    stats.memory_bytes = loader->options.memory_bytes;
    dataset_cache_stats(loader->archive->dataset, &stats);
    return result_write(ret_stats, &stats, sizeof(stats), NULL);
}

int onepot_loader_transfer(struct onepot_loader *loader, bool previous,
                           struct onepot_error *error, struct onepot_transfer *ret_transfer)
{
    if (!loader->devices || !engine_is_own(loader->engine))
        return error_set(error, -ENOTSUP, "the loader has no device");
    return loader_accelerator->transfer(loader->devices, previous, error, ret_transfer);
}

/* ---- position ---- */

static int find_digest(struct onepot_loader *loader, struct onepot_error *error, char *hex)
{
    if (!loader->has_digest) {
        int r = onepot_archive_digest(loader->archive, loader->digest);
        if (r < 0)
            return error_errno(error, r, loader->archive->dataset->filesets[0]->path);
        loader->has_digest = true;
    }
    for (unsigned i = 0; i < ONEPOT_DIGEST_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", loader->digest[i]);
    return 0;
}

/* With the lock: of the list that the caller gave for this epoch; 0: of none. */
static uint64_t loader_list_hash(const struct onepot_loader *loader, uint64_t epoch)
{
    const struct engine_options *o = &loader->options;
    return o->list && o->list_epoch == epoch ? loader->list_hash : 0;
}

/* With the lock. */
static int present_state(struct onepot_loader *loader, struct onepot_error *error,
                         struct onepot_state *state)
{
    const struct onepot_sampler_options *o = &loader->options.order;
    struct place place;
    engine_place(loader->engine, &place);
    *state = (struct onepot_state){
        .size = sizeof(*state),
        .version = 1,
        .samples = loader->archive->count,
        .seed = loader->seed,
        .epoch = place.epoch,
        .done = place.done * o->world_size,
        .shuffle = !o->no_shuffle,
        .drop_last = o->drop_last,
        .block = o->block,
        .window = o->block ? o->window : 0,
        .order = loader_list_hash(loader, place.epoch),
    };
    return find_digest(loader, error, state->digest);
}

int onepot_loader_state(struct onepot_loader *loader, struct onepot_error *error,
                        struct onepot_state *ret_state)
{
    struct onepot_state state;
    int r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    r = present_state(loader, error, &state);
    pthread_mutex_unlock(&loader->lock);
    return r == 0 ? result_write(ret_state, &state, sizeof(state), error) : r;
}

/* With the lock. */
static int loader_restore_locked(struct onepot_loader *loader, const struct onepot_state *state,
                                 struct onepot_error *error)
{
    struct onepot_state now;
    uint64_t world = loader->options.order.world_size;
    int r = present_state(loader, error, &now);
    if (r < 0)
        return r;
    if (state->version != 1)
        return error_set(error, -EINVAL, "a state of version %" PRIu64 " is not known",
                         state->version);
    if (memcmp(state->digest, now.digest, sizeof(now.digest)) != 0 ||
        state->samples != now.samples)
        return error_set(
            error, -ESTALE,
            "the state belongs to another archive (digest %.32s, here %.32s) or to "
            "another selection of its samples",
            state->digest, now.digest);
    uint64_t hash = loader_list_hash(loader, state->epoch);
    if (state->order != hash && (state->order || state->done))
        return error_set(error, -EINVAL,
                         "the state was made with another order of epoch %" PRIu64,
                         state->epoch);
    if (state->shuffle != now.shuffle || state->drop_last != now.drop_last ||
        state->block != now.block || state->window != now.window)
        return error_set(error, -EINVAL, "the state was made with other options of the order");
    /* The end of an epoch is the same for any number of ranks, whatever their padding. */
    bool ended = !state->drop_last && state->done >= loader->options.order.samples;
    if (!ended && state->done % world != 0)
        return error_set(error, -EINVAL,
                         "%" PRIu64 " elements that are done can't be dealt to %" PRIu64
                         " ranks: the global batch must be the same",
                         state->done, world);
    loader->seed = loader->options.order.seed = state->seed;
    return engine_seek(
        loader->engine,
        &(struct place){.epoch = state->epoch,
                        .done = ended ? loader->options.length : state->done / world},
        &loader->options);
}

int onepot_loader_restore(struct onepot_loader *loader, const struct onepot_state *state,
                          struct onepot_error *error)
{
    struct onepot_state then = {0};
    int r = options_read(&then, sizeof(then), state, error);
    if (r == 0)
        r = loader_own_engine(loader, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&loader->lock);
    r = loader_restore_locked(loader, &then, error);
    pthread_mutex_unlock(&loader->lock);
    return r;
}

/* ---- what was delivered ---- */

void onepot_loader_delivered(struct onepot_loader *loader,
                             struct onepot_delivered *ret_delivered)
{
    struct place place;
    engine_place(loader->engine, &place);
    *ret_delivered = place.delivered;
}

void onepot_archive_all(const struct onepot_archive *archive,
                        struct onepot_delivered *ret_delivered)
{
    *ret_delivered = (struct onepot_delivered){0};
    for (uint64_t i = 0; i < archive->count; i++)
        engine_delivered_count(ret_delivered, i);
}

void onepot_delivered_add(struct onepot_delivered *to, const struct onepot_delivered *more)
{
    to->samples += more->samples;
    to->sum_a += more->sum_a;
    to->sum_b += more->sum_b;
}
