/*
 * The engine of a loader: its threads, the ring of batches ahead, and the slabs. It belongs to
 * one process; a child makes its own.
 *
 * One lock guards all of it. It is taken once for a run of samples, not for each sample. A
 * batch is planned under the lock (which samples, how large, into which slab), but copied
 * without it.
 */
#ifndef ONEPOT_ENGINE_H
#define ONEPOT_ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fill.h"
#include "sampler.h"
#include "slab.h"

#define ENGINE_AHEAD_MAX 1024u
#define ENGINE_THREADS_MAX 1024u
#define ENGINE_DEVICES_MAX ONEPOT_DEVICES_MAX

struct engine_options {
    struct order_options order; /* its seed is epoch 0's */
    struct fill_plan fill;
    uint64_t batch_size;
    uint64_t length; /* elements of an epoch that are delivered */
    uint32_t threads;
    uint32_t ahead; /* batches */
    uint64_t run;   /* samples that a thread takes at a time */
    /* The same once the archives are mapped, which staged ones are when their copies are whole;
     * 0: nothing changes then. */
    uint32_t mapped_threads;
    uint64_t mapped_run;
    uint64_t io_timeout_ns; /* when a read is given up; 0: never */
    /* If not 0, threads keep this many CPUs busy, but yield them to others of the job. */
    uint32_t cpus;
    uint64_t memory_bytes;
    uint64_t job_bytes; /* for this and other processes of the job */
    bool is_fixed;      /* memory_bytes applies, whatever others have */
    /*
     * free_bytes returns the memory that nobody of the job uses; left_bytes of it are left to
     * others. There are more slabs than the ring and its consumer need only if both allow it.
     * NULL: slabs may take all of memory_bytes.
     */
    uint64_t (*free_bytes)(void);
    uint64_t left_bytes;
    const struct slab_memory *memory;
    /*
     * One for each device; batch i of an epoch goes to device i modulo their number, whichever
     * batch is the first. The engine closes them, also if engine_new fails. Each device may
     * have the same part of memory_bytes.
     */
    void *memory_ctx[ENGINE_DEVICES_MAX];
    uint32_t devices; /* 0: one */
};

/* A place in the stream of all epochs. */
struct place {
    uint64_t epoch;
    uint64_t done;                     /* elements of it that this rank is done with */
    struct onepot_delivered delivered; /* since the epoch was entered */
};

/* Room that a batch waits for; see engine_take. */
struct engine_need {
    uint64_t bytes, record;
    uint32_t device;
};

/*
 * Make an engine that delivers from `place` on. The options are copied. What they point to must
 * outlive the engine. -ENOMEM, -EAGAIN (no thread).
 */
int engine_new(const struct engine_options *options, const struct place *place,
               struct engine **ret_engine);

/* Does it belong to this process? */
bool engine_is_own(const struct engine *engine);

/*
 * Stop the threads. A thread that reads gets one second, and is then left behind. The last slab
 * that is out, or the last thread that is left, frees the rest.
 */
void engine_free(struct engine *engine);

/*
 * Drop all prepared batches and go on from another place, in another order with so many
 * elements that are delivered. Afterwards nobody uses the earlier order's list. -ENOMEM:
 * nothing changed.
 */
int engine_seek(struct engine *engine, const struct place *place,
                const struct order_options *order, uint64_t length);

/*
 * Returns 1 and the next batch. Returns 0 once at the end of an epoch, and also if the consumer
 * is in another epoch than `epoch` (unless that is ANY_EPOCH). Errors: -ETIMEDOUT after
 * `deadline_ns` (of CLOCK_MONOTONIC; UINT64_MAX: never); -ENODATA: the caller gives the orders,
 * and has given none for this epoch; -ENOBUFS with the bytes of the batch
 * that has no room, and its device; -ENOMEM with the device; -ETIME, when all threads are in
 * reads that stall, with the record of one such read. A batch with an error is handed out as
 * well.
 */
int engine_take(struct engine *engine, uint64_t epoch, uint64_t deadline_ns,
                struct engine_need *ret_need, struct slab **ret_slab);

void engine_release(struct slab *slab);

/* Where the consumer is. Works on the parent's engine, too. */
void engine_place(const struct engine *engine, struct place *ret_place);

/* Count one sample. */
void engine_delivered_count(struct onepot_delivered *delivered, uint64_t index);

/* The figures of the engine; the others are 0. In a forked child *stats stays as it is. */
void engine_stats(struct engine *engine, struct onepot_stats *stats);

#endif
