/*
 * From a tree of folders to archives. Many threads read; the output has the order that one
 * thread would give it.
 *
 * Threads: pipeline_run starts its own, and returns when they have ended.
 */
#ifndef ONEPOT_PIPELINE_H
#define ONEPOT_PIPELINE_H

#include "pack.h"
#include "selection.h"

struct pack_source {
    char *name; /* in the archive; "" for the only source */
    const char *path;
    int fd; /* its directory, which the pipeline takes; -1: `input` is the source */
    const struct input *input;
};

/* Everything that a run of the packer needs, from its options. */
struct packing {
    const struct pack_options *options;
    struct pack_source *sources; /* sorted by name */
    struct selection selection;
    struct name_list *names; /* of `selection`, or NULL */
    struct shard_names shard_names;
    unsigned most_folders;    /* open at once; as many threads may read */
    struct progress progress; /* with totals as far as they are known */
    struct pack_result result;
};

/*
 * Writes everything that is selected from the sources: one archive, or this process's part of
 * the shards, in which a file's path decides to which it goes, with the directories that lead
 * to it. They are compressed in `pool`, which is NULL without compression. The shards of all
 * processes of one run have the same `letters` (PARTIAL_LETTER_COUNT) while they wait for each
 * other. Fills run->result. Errors: the writers', -EINTR, -ENOMEM, and with `strict` the first
 * problem's. Then there is no archive, but what run->result.keeps tells of.
 */
int pipeline_run(struct packing *run, const char *letters, struct compress_pool *pool,
                 struct fault *fault);

#endif
