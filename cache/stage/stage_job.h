/*
 * The nodes of a job make their copies of an archive together, so that storage gives each byte
 * once. Each node reads a part, and an engine outside of this library (MPI, torch.distributed)
 * hands the parts round:
 *
 *     stage_job_begin(stage, 0, rank, size, run, &job);
 *     for (group = 0; !over; group++) {
 *         stage_job_read(job, group, mine);      what this node owes of the group
 *         ... all nodes exchange their blocks of stage_job_block_bytes(run) ...
 *         for each node:
 *             over = stage_job_take(job, group, node, block);
 *             stage_job_keep(job, group, node, block);
 *     }
 *     stage_job_end(job, &fault);
 *
 * A group is size times `run` consecutive chunks; node r owes the r-th run of it. A block holds
 * the run, the sum of each chunk, and a head that names archive and chunks. The nodes need not
 * trust the way of a block: a chunk with another sum is left to storage, as is one that its
 * node could not read. A chunk that a reader is fetching, or has fetched, is dropped on
 * arrival.
 *
 * All nodes see the same heads, so that all stop at the same group: after the last one, or
 * after the first in which a node has another archive or finds that it was changed. They go on
 * without the share of a node whose process has ended. Whatever is missing then, the stage's
 * own copier reads from storage (stage_start), slowly if all nodes may lack the same. It waits
 * as long as the job makes progress, and no longer than STAGE_JOB_SILENT_S after that: a
 * process that hangs in the engine, or was stopped or killed, holds up nobody. If the engine
 * loses a node, those that are left may begin another job of the same copies, with ranks anew
 * and from the first chunk that one of them lacks.
 *
 * Memory: an engine that gathers blocks while it hands round the next ones needs 2 (size + 1)
 * blocks. stage_job_run says which `run` fits. Where none does, it sends one node's block at a
 * time to all (broadcast), with as many on their way as fit: stage_job_take takes them one by
 * one.
 *
 * Threads: one may read, which starts others for the time of the call. Meanwhile one may take,
 * and any number may keep blocks that were taken.
 */
#ifndef ONEPOT_STAGE_JOB_H
#define ONEPOT_STAGE_JOB_H

#include "stage.h"

#define STAGE_JOB_SILENT_S 20
#define STAGE_JOB_RUN_MAX 16u

struct stage_job;

/* The longest run for so many nodes within so much memory; 0: not even one chunk fits. */
unsigned stage_job_run(unsigned size, uint64_t memory_bytes);

/* Bytes of every block. */
size_t stage_job_block_bytes(unsigned run);

/* How many groups an archive of so many bytes has. */
uint64_t stage_job_groups(uint64_t bytes, unsigned size, unsigned run);

/*
 * All nodes begin at chunk `first`, and leave what lies before it to the copier. -EINVAL: no
 * such rank, size or run; -ENOTSUP: the archive is compressed in one piece.
 */
int stage_job_begin(struct stage *stage, uint64_t first, unsigned rank, unsigned size,
                    unsigned run, struct stage_job **ret_job);

/* Fill this node's block of a group. Never fails: the head says which chunks are missing. */
void stage_job_read(struct stage_job *job, uint64_t group, void *block);

/*
 * Judge a node's block, in the order of groups and ranks. True, at the last block of a group:
 * the job is over.
 */
bool stage_job_take(struct stage_job *job, uint64_t group, unsigned rank, const void *block);

/* Keep the chunks of a block that was taken, in any order. All that takes time is here. */
void stage_job_keep(struct stage_job *job, uint64_t group, unsigned rank, const void *block);

/*
 * End and free the job, whether it is over or not. -ESTALE: nodes have other archives, and the
 * fault names them. Otherwise 0: missing chunks come from storage.
 */
int stage_job_end(struct stage_job *job, struct fault *fault);

#endif
