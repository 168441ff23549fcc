/*
 * Which part of a shuffled order this node reads. Rank r of W reads the places r, r + W,
 * r + 2W, ... Ranks on other nodes are not seen here, and their samples must not be fetched.
 *
 * How W is found. A reader (a rank, or one of its DataLoader workers) reads places of only one
 * residue modulo W. So between two reads of a thread lies a multiple of W, and within a batch W
 * itself. W is the largest number that divides nearly all of these distances. A wrong number
 * divides a distance with a probability of at most one half. With WORLD_DISTANCES_MIN distances
 * or more, it divides nine in ten by less than one chance in a thousand if it is 2, and by next
 * to none from 4 on. Being wrong by a factor costs nothing where all residues are read here.
 * (Batches of one sample make the result W times the number of workers. Then each worker counts
 * as a rank, and the places are the same.)
 *
 * A residue is local if its places were read here at least twice, so that one stray read adds
 * none. A rank that starts late is added when it reads.
 *
 * Too few distances prove nothing: a single rank whose workers have each begun a batch reads
 * the same places as the ranks of one node among many.
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
    uint32_t local;                /* residues read here, */
    uint64_t bits[WORLD_MAX / 64]; /* and which */
};

struct world_read {
    uint64_t place;
    uint32_t task; /* the thread that reads */
};

/* All places are read here. */
void world_all(struct world *world);

/* Infer it from the last reads, oldest first, at most WORLD_READS_MAX. -EAGAIN: too few. */
int world_infer(const struct world_read *reads, unsigned count, struct world *ret_world);

static inline bool world_reads(const struct world *world, uint64_t place)
{
    uint32_t rest = (uint32_t)(place % world->size);

    return world->bits[rest / 64] >> (rest % 64) & 1;
}

/* All residues that are local in `other` are local in `world`, too (of the same size). */
bool world_holds(const struct world *world, const struct world *other);

#endif
