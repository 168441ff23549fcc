/*
 * The part of its job's resources that this process may use, before it asks others: its share
 * as one of the ranks on the node, where the launcher says how many there are.
 */
#ifndef ONEPOT_PORTION_H
#define ONEPOT_PORTION_H

#include <stdint.h>

/* Ranks on this node; 1 where the launcher does not say. */
uint32_t portion_ranks(void);

/* CPUs: a share of those that the job has, or all of its own if each rank was bound to some. */
uint32_t portion_cpus(void);

/* Bytes of memory for batches: this rank's share of a quarter of the job's memory. */
uint64_t portion_bytes(void);

#endif
