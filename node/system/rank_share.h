/*
 * The part of its job's resources that this process may use before it asks others: the share of
 * one rank on the node, if the launcher tells how many ranks there are.
 */
#ifndef ONEPOT_RANK_SHARE_H
#define ONEPOT_RANK_SHARE_H

#include <stdint.h>

/* Ranks on this node; 1 if the launcher does not tell. */
uint32_t rank_share_ranks(void);

/* CPUs for this rank: all that it is bound to, else its share of the job's. */
uint32_t rank_share_cpus(void);

/* Bytes of memory for batches: this rank's share of a quarter of the job's memory. */
uint64_t rank_share_bytes(void);

#endif
