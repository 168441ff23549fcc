/*
 * What this process may use of its job, before others are asked: by its share of the ranks on
 * the node, where the launcher says how many there are.
 */
#ifndef ONEPOT_PORTION_H
#define ONEPOT_PORTION_H

#include <stdint.h>

/* Ranks on this node; 1 where nobody says so. */
uint32_t portion_ranks(void);

/* CPUs: of those that the job has, unless each rank was bound to some of its own. */
uint32_t portion_cpus(void);

/* Memory of batches: a quarter of the job's, by ranks. */
uint64_t portion_bytes(void);

#endif
