/*
 * Readers as training has them: ranks of a DistributedSampler, each with a few DataLoader
 * workers that take turns at batches. Which file is read next, and by whom.
 */
#ifndef ONEPOT_TRAINING_H
#define ONEPOT_TRAINING_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>

#include "permutation.h"
#include "suite.h"

#define TRAINING_READERS_MAX 512

struct training {
    uint64_t n;
    unsigned world, first_rank, ranks; /* here; of `world` in all */
    unsigned workers, batch;           /* of each rank */
    uint64_t seed;

    struct permutation *permutation;
    uint64_t samples; /* of each rank */
    struct training_reader {
        uint64_t batch, in_batch;
    } readers[TRAINING_READERS_MAX];
    unsigned seed_of_turns;
};

struct training_read {
    uint32_t number;
    uint32_t task;
};

static inline void training_epoch(struct training *t, uint64_t epoch)
{
    permutation_free(t->permutation);
    ck_assert_int_eq(permutation_new(t->n, t->seed + epoch, NULL, &t->permutation), 0);
    ck_assert_uint_le(t->ranks * t->workers, TRAINING_READERS_MAX);
    t->samples = (t->n + t->world - 1) / t->world;
    for (unsigned i = 0; i < t->ranks * t->workers; i++)
        t->readers[i] = (struct training_reader){.batch = i % t->workers};
}

/* The next sample of one reader. False when it has none left. */
static inline bool training_step(struct training *t, unsigned i, struct training_read *ret_read)
{
    struct training_reader *reader = &t->readers[i];
    uint64_t sample = reader->batch * t->batch + reader->in_batch;
    uint64_t rank = t->first_rank + i / t->workers;

    if (sample >= t->samples)
        return false;
    ret_read->number =
        (uint32_t)permutation_at(t->permutation, (rank + sample * t->world) % t->n);
    ret_read->task = 1000 + i;
    if (++reader->in_batch == t->batch) {
        reader->in_batch = 0;
        reader->batch += t->workers;
    }
    return true;
}

/* A read of any of the readers: whose batch is furthest behind, more or less. */
static inline bool training_next(struct training *t, struct training_read *ret_read)
{
    unsigned count = t->ranks * t->workers, best = count;
    uint64_t least = UINT64_MAX;

    for (unsigned tries = 0; tries < 4; tries++) {
        unsigned i = (unsigned)rand_r(&t->seed_of_turns) % count;
        if (t->readers[i].batch < least &&
            t->readers[i].batch * t->batch + t->readers[i].in_batch < t->samples) {
            least = t->readers[i].batch;
            best = i;
        }
    }
    for (unsigned i = 0; best == count && i < count; i++)
        if (t->readers[i].batch * t->batch + t->readers[i].in_batch < t->samples)
            best = i;
    return best < count && training_step(t, best, ret_read);
}

#endif
