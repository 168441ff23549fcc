/*
 * The packer: directories and archives become one onepot archive, or several (shards).
 *
 *     struct pack_options options = {.sources = paths, .source_count = n,
 *                                    .output = "train.onepot.tar", .report = say};
 *     r = pack_run(&options, &fault, &result);
 *
 * One source: its content is the root of the archive. Several: each is a folder of the
 * root, called by its base name (of an archive without ".tar" and the like). Members lie
 * depth first, names in byte order; the same input gives the same bytes, whatever the number
 * of threads, and whether it is a directory or an archive of that.
 *
 * What goes wrong with a single file does not stop it: the file is reported and left
 * out (or cut or filled up with zeros, where it changed while it was read), and the
 * archive is complete otherwise; result.problems counts. What goes wrong with the
 * archive itself does, and then there is none: it appears under its name only when all
 * of it was written. Shards appear together, or the old ones stay: see shard_exchange.h.
 */
#ifndef ONEPOT_PACK_H
#define ONEPOT_PACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"
#include "input.h"
#include "writer.h"

#define PACK_THREADS_MAX 256u

enum pack_report {
    PACK_NOTE,    /* nothing is wrong: a socket was left out */
    PACK_PROBLEM, /* the archive lacks something that the source has */
};

struct pack_options {
    const char *const *sources; /* paths of directories; a symbolic link is followed */
    size_t source_count;
    const struct input *const *inputs; /* NULL, or for each source NULL or its archive */

    /*
     * Files that are left out: see selection.h. And those that are not: names in a file
     * ("-": standard input), of the files in the one source, a directory; see name_list.h.
     */
    const char *const *excludes;
    size_t exclude_count;
    const char *files_from;
    bool files_from_nul; /* names are separated by NUL bytes; else that is found out */

    const char *output; /* with shards: see shard_name.h */
    uint32_t shards;    /* how many archives; 0: one, and no shard */
    uint32_t rank;      /* this process writes those with number % world == rank */
    uint32_t world;     /* 0: 1 */
    /*
     * The shards of all ranks get their names together, when the last of them is complete.
     * Those belong together whose ranks were given the same options, and this number.
     */
    uint64_t start;
    bool overwrite;
    bool no_sync;     /* don't wait until the archive is on the disk */
    bool strict;      /* the first problem is an error */
    unsigned threads; /* that read the sources; 0: a few, and more where reading is slow */

    /* See struct writer_options; with `threads` so many compress, else one a CPU. */
    int zstd_level;
    uint32_t block_bytes;
    uint32_t align_bytes;

    /* Called for one file at a time, in the order of the archive. May be NULL. */
    void (*report)(void *ctx, enum pack_report kind, const struct fault *what);
    /* Called now and then; never while `report` is. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;

    /* Set to end the run soon, from a signal handler maybe: -EINTR. May be NULL. */
    const _Atomic int *stop;
};

struct pack_result {
    struct writer_totals totals;
    uint64_t problems;
    uint64_t sockets; /* left out */
    bool waits;       /* for other ranks: the shards are ready, but have no names yet */
};

/*
 * Pack. On failure there is no archive, and the fault's member names a source, a file in
 * it, a shard or the list of names; without one the fault is about the output.
 */
int pack_run(const struct pack_options *options, struct fault *fault,
             struct pack_result *ret_result);

/*
 * "NAME.onepot.tar" for a directory called NAME, or an archive NAME.tar.gz, in the present
 * directory. Caller frees.
 */
int pack_default_output(const char *source, bool is_archive, char **ret_name);

#endif
