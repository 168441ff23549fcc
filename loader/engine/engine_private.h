/*
 * What an engine is made of. engine.c plans, gathers and hands out; engine_memory.c has the
 * slabs, and regard to others of the job; engine_stall.c the threads, and reads that don't end.
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
    struct slab *slab; /* of which it gathers a run */
    bool lost;         /* in a read that was given up */
    bool ended;
    bool left; /* it is not waited for: it goes by itself, and counts as a user */
};

struct engine {
    struct engine_options options;
    struct dataset *dataset; /* kept for threads that are left behind */
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t work;   /* for threads: something may be there to do */
    pthread_cond_t ready;  /* for the consumer */
    pthread_cond_t parked; /* for threads that have to leave the CPUs to others */
    struct worker *workers;
    uint32_t thread_count;
    uint32_t thread_room;
    uint32_t allowed; /* of them */
    uint32_t lost;    /* for each of these another one may work */
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
    uint32_t *places;    /* where that one has each sample; NULL: nobody asks (fill.foresee) */
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
    uint64_t slab_bytes;  /* of all slabs, */
    uint64_t slab_count;  /* which are so many */
    struct share *share;  /* with others of the job; NULL: with nobody */
    uint64_t part_bytes;  /* of it, for slabs; UINT64_MAX where nothing is shared */
    uint64_t asked_bytes; /* for so much, */
    bool asking;          /* without an answer yet */
    bool joining;         /* it is not known yet whether anything is shared */
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

/* ---- threads; engine_stall.c ---- */

/* What they do until the engine ends; engine.c. */
void engine_work(struct engine *engine, struct worker *worker);
/* Of the last user: see users. engine.c */
void engine_destroy(struct engine *engine);

int engine_start_threads(struct engine *engine);
/* Without the lock, when `stop` is set. What is left behind has become a user. */
void engine_end_threads(struct engine *engine);

/*
 * Under the lock. Reads that have taken too long are given up: their batches are whole, with an
 * error, and other threads take the places of those that read.
 */
void engine_give_up_stalled(struct engine *engine);

/* When it may be time for that, in nanoseconds of CLOCK_MONOTONIC; UINT64_MAX: never. */
uint64_t engine_next_stall(const struct engine *engine);

/* Every thread that there may be is in a read that was given up: *ret_record is read by one. */
bool engine_is_stuck(const struct engine *engine, uint64_t *ret_record);

/* A thread has come back with its run of a slab that was abandoned, or from being lost. */
void engine_came_back(struct engine *engine, struct worker *worker, struct slab *slab);

/* Without the lock: from now on with regard to others of the job, if there is a way to know of
 * them. */
void engine_join_others(struct engine *engine);

#endif
