/*
 * The archives that a run of the packer writes: one, or this process's part of the shards. A
 * shard has the files that the hash of their paths puts there, and the directories that lead to
 * them. A directory is also in the shard of its path, so that an empty one is somewhere. The
 * root is in every shard.
 *
 * Threads: one at a time.
 */
#ifndef ONEPOT_SHARD_SET_H
#define ONEPOT_SHARD_SET_H

#include "folder.h"
#include "gather.h"
#include "pack.h"
#include "selection.h"
#include "shard_name.h"
#include "writer.h"

struct shard_set;

/*
 * Creates all archives of this process: selection->outputs, or options->output. They are
 * compressed in `pool`, which is NULL without compression. The shards of all processes of one
 * run have the same `letters` (PARTIAL_LETTER_COUNT) while they wait for each other. If there
 * are several archives, the fault's member names the one that failed.
 */
int shard_set_open(const struct pack_options *options, const char *letters,
                   const struct selection *selection, struct compress_pool *pool,
                   struct fault *fault, struct shard_set **ret_shards);

/* Is this an archive being written, or one that will be replaced? */
bool shard_set_is_output(const struct shard_set *shards, struct file_id id);

/* As writer_add and writer_data. `folder` is the folder that the member is in. */
int shard_set_add(struct shard_set *shards, uint32_t shard, const struct folder *folder,
                  const struct pax_member *member, struct pax_buffer *header,
                  const uint64_t *sum, struct fault *fault);
int shard_set_data(struct shard_set *shards, uint32_t shard, void *bytes, size_t len,
                   struct fault *fault);

/*
 * Adds a directory that is in `folder`: to its own shard now, to others before the first member
 * in it. For that it is kept with `below`, its content (NULL: none), and *g becomes empty.
 */
int shard_set_add_folder(struct shard_set *shards, const struct folder *folder,
                         struct folder *below, struct gathered *g, struct fault *fault);

/* Bytes written or queued, in all archives. */
uint64_t shard_set_offset(const struct shard_set *shards);

/*
 * Completes the archives and gives all of them their names, together with other processes'
 * archives. The last process to come here does that and gets 1; 0: other processes are still to
 * come. On failure, or when options->stop is set meanwhile (-EINTR), none of this
 * process's archives is left. But once the exchange has begun the new set is there; archives
 * that an error kept from being renamed are renamed by the next run that may replace them.
 * *ret_totals is the sum over the archives. Frees the set in any case.
 */
int shard_set_close(struct shard_set *shards, struct fault *fault,
                    struct writer_totals *ret_totals);
void shard_set_discard(struct shard_set *shards); /* NULL is fine */

#endif
