/*
 * From a tree of folders to archives: many threads read, and the order of what is
 * written is that of one.
 *
 * Threads: pipeline_run starts its own, and returns when they ended.
 */
#ifndef ONEPOT_PIPELINE_H
#define ONEPOT_PIPELINE_H

#include "folder.h"
#include "pack.h"
#include "selection.h"
#include "shard_set.h"

struct pipeline_sources {
    struct folder *root;         /* has no descriptor; its names are the sources */
    int *fds;                    /* the directory of each, taken; -1: it is an archive, */
    const struct input **inputs; /* this one; else NULL */
    uint64_t total_bytes;        /* of files' data, where that is known; else 0 */
    uint64_t total_members;      /* or these */
};

/*
 * Write all that is selected of the sources. Counts problems and sockets in *result. No
 * more than `max_threads` threads (1 to PACK_THREADS_MAX) will run, however many the options
 * ask for. Errors: of the writers, -EINTR, -ENOMEM, with `strict` the first problem's.
 */
int pipeline_run(const struct pack_options *options, const struct pipeline_sources *sources,
                 const struct selection *selection, struct shard_set *shards,
                 struct folder_set *set, unsigned max_threads, struct pack_result *result,
                 struct fault *fault);

#endif
