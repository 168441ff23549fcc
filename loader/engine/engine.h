/*
 * The engine of a loader: threads, the ring of batches ahead, and the slabs. It belongs to
 * one process; a child makes its own.
 *
 * One lock guards all of it. It is taken once for a run of samples, not for each: planning a
 * batch happens under it (which samples, how large, into which slab), copying does not.
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

struct engine_options {
    struct order_options order; /* its seed is that of epoch 0 */
    struct fill_plan fill;
    uint64_t batch_size;
    uint64_t length; /* elements of an epoch that are delivered */
    uint32_t threads;
    uint32_t ahead;         /* batches */
    uint64_t run;           /* samples that a thread takes at a time */
    uint64_t io_timeout_ns; /* a read that takes longer is given up; 0: never */
    /* If not 0, threads are meant to keep as many CPUs busy, which others of the job may use.
     */
    uint32_t cpus;
    uint64_t memory_bytes;
    uint64_t job_bytes; /* for this and others of the job; */
    bool is_fixed;      /* memory_bytes count, whatever others have */
    /*
     * What nobody of the job uses, and how much of that is left to others: only where both
     * allow it there are more slabs than the ring and its consumer need. NULL: they may have
     * all of memory_bytes.
     */
    uint64_t (*free_bytes)(void);
    uint64_t left_bytes;
    const struct slab_memory *memory;
    void *memory_ctx; /* the engine closes it, also if it can't be made */
};

/* A place in the stream of all epochs. */
struct place {
    uint64_t epoch;
    uint64_t done;                     /* elements of it, of this rank */
    struct onepot_delivered delivered; /* since it was entered */
};

struct engine_stats {
    uint64_t batches, samples, bytes;
    uint64_t wait_ns, gather_ns, skipped, slab_bytes;
    uint64_t part_bytes; /* that slabs may have now, with regard to others of the job */
    uint32_t threads;    /* that may work now */
};

/*
 * An engine that is about to deliver from `place` on. The options are copied; what they
 * point to must live as long as the engine. -ENOMEM, -EAGAIN (no thread).
 */
int engine_new(const struct engine_options *options, const struct place *place,
               struct engine **ret_engine);

/* Is it this process's? */
bool engine_is_own(const struct engine *engine);

/*
 * Stop the threads. One that reads is waited for for a second, and left behind then. The rest
 * goes with the last slab that is out, and the last thread that is still there.
 */
void engine_free(struct engine *engine);

/* Throw away what was prepared, and go on from another place, maybe with another seed. */
void engine_seek(struct engine *engine, const struct place *place, uint64_t seed);

/*
 * 1 and the next batch; 0 at the end of an epoch, once, and where the consumer is in another
 * epoch than `epoch` (unless that is any); -ETIMEDOUT after `deadline_ns` (of
 * CLOCK_MONOTONIC; UINT64_MAX: never); -ENOBUFS with *ret_need, the bytes of the batch that
 * has no room; -ENOMEM; -ETIME with *ret_need, the record of a read that stalls, when all
 * threads are in such reads. A batch with an error is handed out as well.
 */
int engine_take(struct engine *engine, uint64_t epoch, uint64_t deadline_ns, uint64_t *ret_need,
                struct slab **ret_slab);

void engine_release(struct slab *slab);

/* Where the consumer is; also of an engine that is the parent's. */
void engine_place(const struct engine *engine, struct place *ret_place);

/* Count one sample. */
void delivered_count(struct onepot_delivered *delivered, uint64_t index);

void engine_stats(struct engine *engine, struct engine_stats *ret_stats);

#endif
