/*
 * The two parts of an engine. engine.c begins and ends it and its threads, gives up reads that
 * don't end, and hands out batches. engine_work.c plans and gathers batches, and shares memory
 * and CPUs with others of the job.
 */
#ifndef ONEPOT_ENGINE_PRIVATE_H
#define ONEPOT_ENGINE_PRIVATE_H

#include "engine.h"

struct share;

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

    struct slab *ring[ENGINE_AHEAD_MAX];
    uint64_t head, tail; /* batches taken, batches planned */
    struct slab *open;   /* the last planned batch, while runs of it are left */
    uint32_t busy;       /* threads that work without the lock */

    struct place taken;  /* where the consumer is */
    struct place plan;   /* of the next batch to plan */
    struct order *order; /* of plan.epoch; NULL: not made yet */
    struct order *next;  /* of the epoch after it */
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
    struct engine_device devices[ENGINE_DEVICES_MAX];
    struct share *share;       /* with others of the job; NULL: nothing is shared */
    uint64_t part_bytes;       /* of it, for slabs; UINT64_MAX if nothing is shared */
    uint64_t asked_bytes;      /* the share was asked for so much, */
    bool asking;               /* and has not answered yet */
    bool joining;              /* not known yet whether anything is shared */
    struct onepot_stats stats; /* its counts */
};

/* ---- slabs; under the lock ---- */

/*
 * The list of free slabs, of all devices, and giving up the memory of one of them. The first of
 * a device is used next. On the host that is the latest, which caches may still have; where a
 * device may still read from it, the one that has been free for longest.
 */
void engine_push_free(struct engine *engine, struct slab *slab);
void engine_drop_free(struct engine *engine, struct slab **at);
/* Where the first one of the device is in the list, or NULL. */
struct slab **engine_first_free(struct engine *engine, uint32_t device);

/* The context for `options.memory`. */
static inline void *engine_memory_ctx(const struct engine *engine, const struct slab *slab)
{
    return engine->options.memory_ctx[slab->device];
}

/* Give up free slabs whose memory others of the job are to have, or have the engine's threads
 * do so where that may take long. */
void engine_shed(struct engine *engine);

/* Give up the memory that all slabs come from. */
void engine_close_memory(const struct engine_options *options);

/* The work of a thread until the engine ends. */
void engine_work(struct engine *engine, struct worker *worker);

/* Without the lock. From now on the engine shares with other processes of the job, if it can
 * learn of them. */
void engine_join_others(struct engine *engine);

#endif
