/*
 * Which part of a shuffled order is read on this node. Rank r of W reads the places r, r + W,
 * r + 2W, ...; ranks on other nodes are not seen, and what they read must not be fetched.
 *
 * How W is found. Whoever reads (a rank, or one of its DataLoader workers) reads places of
 * one residue modulo W alone: between two reads of the same thread lies a multiple of W, and
 * within a batch it is W itself. So W is the largest number that divides nearly all of these
 * distances. A number that is wrong divides a distance with a probability of at most one half,
 * and nine in ten of WORLD_DISTANCES_MIN or more by less than one chance in a thousand for 2,
 * and by next to none from 4 on; being wrong by a factor costs nothing where all residues are
 * read here. (Batches of one sample make it W times the number of workers: then each worker
 * counts as a rank, and the places are the same.)
 *
 * What is local. The residues of the places that were read here, twice at least: one stray
 * read adds none. A rank that starts late is added when it reads.
 *
 * Before there are enough distances, nothing can be said: a single rank whose workers have
 * each begun a batch reads the same places as the ranks of one node of many.
 */
#ifndef ONEPOT_WORLD_H
#define ONEPOT_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#define WORLD_MAX 4096u
#define WORLD_DISTANCES_MIN 16u
#define WORLD_READS_MAX 512u

struct world {
    uint32_t size;                 /* W; 0: not known */
    uint32_t local;                /* residues that are read here */
    uint64_t bits[WORLD_MAX / 64]; /* which */
};

struct world_read {
    uint64_t place;
    uint32_t task; /* the thread that reads */
};

/* Everything is read here. */
void world_all(struct world *world);

/* From the last reads (at most WORLD_READS_MAX are looked at), the oldest first. -EAGAIN. */
int world_infer(const struct world_read *reads, unsigned count, struct world *ret_world);

static inline bool world_reads(const struct world *world, uint64_t place)
{
    uint32_t rest = (uint32_t)(place % world->size);

    return world->bits[rest / 64] >> (rest % 64) & 1;
}

/* All that is local in `other` is so in `world`, too (of the same size). */
bool world_holds(const struct world *world, const struct world *other);

#endif
