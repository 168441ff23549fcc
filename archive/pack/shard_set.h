/*
 * The archives that a run of the packer writes: one, or this process's share of the
 * shards. A shard has the files that their paths' hash puts there, and the directories
 * that lead to them; a directory is besides in the shard of its own path, so that an empty
 * one is somewhere; and the root is in each.
 *
 * Threads: none; one at a time.
 */
#ifndef ONEPOT_SHARD_SET_H
#define ONEPOT_SHARD_SET_H

#include "folder.h"
#include "gather.h"
#include "selection.h"
#include "shard_name.h"
#include "writer.h"

struct shard_set;

/*
 * Create all archives of this process: selection->outputs, or one that is called `output`. The
 * shards of all processes of one run have the same `letters` (PARTIAL_LETTER_COUNT) while they
 * wait for each other. Where several files are possible a fault's member is the one.
 */
int shard_set_open(const char *output, const char *letters, const struct selection *selection,
                   const struct writer_options *options, struct fault *fault,
                   struct shard_set **ret_shards);

/* Is it an archive that is being written, or one that will be replaced? */
bool shard_set_is_output(const struct shard_set *shards, uint64_t dev, uint64_t ino);

/* As writer_add and writer_data; `folder` is the one that the member is in. */
int shard_set_add(struct shard_set *shards, uint32_t shard, const struct folder *folder,
                  const struct pax_member *member, struct pax_buffer *header,
                  const uint64_t *sum, struct fault *fault);
int shard_set_data(struct shard_set *shards, uint32_t shard, void *bytes, size_t len,
                   struct fault *fault);

/*
 * Add a directory, which is in `folder`: to its own shard now, to others before the first
 * member in it. For that it is kept with `below`, its content (NULL: there is none); *g is
 * empty then.
 */
int shard_set_add_folder(struct shard_set *shards, const struct folder *folder,
                         struct folder *below, struct gathered *g, struct fault *fault);

/* Bytes written or about to be, by all. */
uint64_t shard_set_offset(const struct shard_set *shards);

/*
 * All archives get their names, together with those of other processes, which the last one that
 * comes here does (1); 0: others are to come. On failure none of this process's is left; nor
 * when `stop` (may be NULL) is set meanwhile: -EINTR. But once the exchange has begun, the new
 * set is there, and what an error kept from being renamed is by the next run. The sum of the
 * totals. Frees it in any case.
 */
int shard_set_close(struct shard_set *shards, const _Atomic int *stop, struct fault *fault,
                    struct writer_totals *ret_totals);
void shard_set_discard(struct shard_set *shards); /* NULL is fine */

#endif
