/*
 * What an engine is made of. engine.c plans, gathers and hands out; engine_memory.c has the
 * slabs, and regard to others of the job.
 */
#ifndef ONEPOT_ENGINE_PRIVATE_H
#define ONEPOT_ENGINE_PRIVATE_H

#include "engine.h"

struct share;

struct worker {
    struct engine *engine;
    pthread_t thread;
    uint32_t number;
};

struct engine {
    struct engine_options options;
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t work;   /* for threads: something may be there to do */
    pthread_cond_t ready;  /* for the consumer */
    pthread_cond_t parked; /* for threads that have to leave the CPUs to others */
    struct worker *workers;
    uint32_t thread_count;
    uint32_t allowed; /* of them */
    bool stop;
    unsigned users; /* the loader, and each slab that is out */

    struct slab *ring[ENGINE_AHEAD_MAX];
    uint64_t head, tail; /* batches taken, batches planned */
    struct slab *open;   /* the last planned one, while runs of it are left */
    uint32_t busy;       /* threads that work without the lock */

    struct place taken;  /* where the consumer is */
    struct place plan;   /* of the next batch to be planned */
    struct order *order; /* of plan.epoch; NULL: not made yet */
    struct order *next;  /* of the epoch after it */
    bool making;         /* a thread shuffles */
    bool next_failed;    /* there was no memory for the next one in advance */
    bool seeking;        /* nothing is begun */
    uint64_t generation; /* grows with each seek */
    int order_err;       /* making plan.epoch's order failed */
    uint64_t starved;    /* bytes of a planned batch that found no memory, or 0 */
    uint64_t *indices;   /* scratch for planning: batch_size each */
    uint64_t *offsets, *sizes;

    struct slab *free_slabs;
    bool wants_settled;   /* a batch can't be planned before one of them is settled */
    bool settling;        /* a thread waits for one of them, which is not in the list */
    uint64_t slab_bytes;  /* of all slabs */
    struct share *share;  /* with others of the job; NULL: with nobody */
    uint64_t part_bytes;  /* of it, for slabs; UINT64_MAX where nothing is shared */
    uint64_t asked_bytes; /* for so much, */
    bool asking;          /* without an answer yet */
    struct engine_stats stats;
};

/* ---- memory; under the lock ---- */

/*
 * One of at least `bytes`. -EAGAIN: a device will let go of one soon; -EINPROGRESS: others of
 * the job are asked, and `work` is broadcast with their answer; -ENOBUFS: beyond the budget;
 * -ENOMEM.
 */
int engine_get_slab(struct engine *engine, size_t bytes, struct slab **ret_slab);
void engine_free_slab(struct engine *engine, struct slab *slab);

/* Of what is free: what others of the job are to have. */
void engine_give_up_surplus(struct engine *engine);

/* Without the lock: from now on with regard to others of the job, if there is a way to know of
 * them. */
void engine_join_others(struct engine *engine);

#endif
