/*
 * From a tree of folders to archives. Many threads read; the output has the order that one
 * thread would give it.
 *
 * Threads: pipeline_run starts its own, and returns when they have ended.
 */
#ifndef ONEPOT_PIPELINE_H
#define ONEPOT_PIPELINE_H

#include "folder.h"
#include "pack.h"
#include "selection.h"
#include "shard_set.h"

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

#endif
