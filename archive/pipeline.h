/*
 * From a tree of folders to a writer: many threads read, and the order of what is
 * written is that of one.
 *
 * Threads: pipeline_run starts its own, and returns when they ended.
 */
#ifndef ONEPOT_PIPELINE_H
#define ONEPOT_PIPELINE_H

#include "folder.h"
#include "pack.h"
#include "writer.h"

/*
 * Write all that is below `root`, a folder without a descriptor whose names are the
 * sources: `source_fds` (all of them taken) has the directory of each. Counts problems
 * and sockets in *result. No more than `max_threads` threads (1 to PACK_THREADS_MAX)
 * will run, however many the options ask for. Errors: of the writer, -EINTR, -ENOMEM, with
 * `strict` the first problem's.
 */
int pipeline_run(const struct pack_options *options, struct writer *writer,
                 struct folder_set *set, struct folder *root, int *source_fds,
                 unsigned max_threads, struct pack_result *result, struct fault *fault);

#endif
