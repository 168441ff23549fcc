/*
 * From a tree of folders to archives. Many threads read; the output has the order that one
 * thread would give it.
 *
 * Threads: pipeline_run starts its own, and returns when they have ended.
 */
#ifndef ONEPOT_PIPELINE_H
#define ONEPOT_PIPELINE_H

#include "folder.h"
#include "gather.h"
#include "pack.h"
#include "selection.h"
#include "shard_exchange.h"
#include "writer.h"

struct shard_set;

struct pack_source {
    char *name; /* in the archive; "" for the only source */
    const char *path;
    int fd; /* its directory, which the pipeline takes; -1: `input` is the source */
    const struct input *input;
};

struct pipeline_sources {
    struct folder *root;    /* has no descriptor; its names are the sources' */
    struct pack_source *at; /* in the same order */
    uint64_t total_bytes;   /* of files' data, if known; else 0 */
    uint64_t total_members; /* number of members, if known; else 0 */
};

/*
 * Writes everything that is selected from the sources. Counts problems in *result.
 * Runs no more than `max_threads` threads (1 to PACK_THREADS_MAX), whatever the options ask
 * for. Errors: the writers', -EINTR, -ENOMEM, and with `strict` the first problem's.
 */
int pipeline_run(const struct pack_options *options, const struct pipeline_sources *sources,
                 const struct selection *selection, struct shard_set *shards,
                 struct folder_set *set, unsigned max_threads, struct pack_result *result,
                 struct fault *fault);

/*
 * The archives that a run of the packer writes: one, or this process's part of the shards. A
 * shard has the files that the hash of their paths puts there, and the directories that lead to
 * them. A directory is also in the shard of its path, so that an empty one is somewhere. The
 * root is in every shard.
 *
 * Threads: one at a time.
 */

/*
 * Creates all archives of this process: selection->outputs, or options->output. They are
 * compressed in `pool`, which is NULL without compression. The shards of all processes of one
 * run have the same `letters` (PARTIAL_LETTER_COUNT) while they wait for each other. If there
 * are several archives, the fault's member names the one that failed.
 */
int shard_set_open(const struct pack_options *options, const char *letters,
                   const struct selection *selection, struct compress_pool *pool,
                   struct fault *fault, struct shard_set **ret_shards);

/*
 * Completes the archives and gives all of them their names, together with other processes'
 * archives. The last process to come here does that and gets 1; 0: other processes are still to
 * come. On failure, or when options->stop is set meanwhile (-EINTR), shard_set_discard leaves
 * none of this process's archives. But once the exchange has begun the new set is there;
 * archives that an error kept from being renamed are renamed by the next run that may replace
 * them. *ret_totals is the sum over the archives.
 */
int shard_set_close(struct shard_set *shards, struct fault *fault,
                    struct writer_totals *ret_totals);
void shard_set_discard(struct shard_set *shards); /* NULL is fine */

/*
 * Completes the archives as far as they are, and keeps them for a later run (output_keep), but
 * for those with a file that differs from its source: that is reported. No member may lack
 * data. Returns whether there are any. Also after shard_set_close: complete shards stay ready.
 */
bool shard_set_keep(struct shard_set *shards);

#endif
