/*
 * The packer makes one onepot archive, or several (shards), from directories and archives.
 *
 *     struct pack_options options = {.sources = paths, .source_count = n,
 *                                    .output = "train.onepot.tar", .report = say};
 *     r = pack_run(&options, &fault, &result);
 *
 * The content of a single source is the root of the archive. Several sources are folders of the
 * root, called by their base names (an archive's without ".tar" and the like). Members lie
 * depth first, names in byte order. The same input gives the same bytes, whatever the number of
 * threads, and whether it is a directory or an archive of that directory.
 *
 * A problem with a single file does not stop the run. The file is reported and left out (or
 * cut, or filled up with zeros, if it changed while it was read), and the archive is complete
 * otherwise; result.problems counts these files. A problem with the archive itself stops the
 * run, and no archive is made: it appears under its name only when all of it was written.
 * Shards appear together, or the old ones stay: see output.h.
 */
#ifndef ONEPOT_PACK_H
#define ONEPOT_PACK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"
#include "file_id.h"
#include "input.h"
#include "output.h"
#include "vector.h"
#include "writer.h"

#define PACK_THREADS_MAX 256u

enum pack_report {
    PACK_NOTE,    /* nothing is wrong: a socket was left out */
    PACK_PROBLEM, /* the archive lacks something from the source */
};

struct pack_options {
    const char *const *sources; /* paths of directories; a symbolic link is followed */
    size_t source_count;
    const struct input *const *inputs; /* NULL; or for each source its archive, or NULL */

    /*
     * Files to leave out: see selection.h. Files to pack: names in a file ("-": standard
     * input), if the only source is a directory; see selection.h.
     */
    const char *const *excludes;
    size_t exclude_count;
    const char *files_from;
    bool files_from_nul; /* NUL bytes separate the names; false: this is detected */

    const char *output; /* with shards: see output.h */
    uint32_t shards;    /* number of archives; 0: one, not a shard */
    uint32_t rank;      /* this process writes shards with number % world == rank */
    uint32_t world;     /* 0: 1 */
    /*
     * The shards of all ranks get their names together, when the last of them is complete.
     * Ranks belong together if they have the same options and the same number here.
     */
    uint64_t start;
    bool overwrite;
    /*
     * After `stop` the archives so far are kept, each complete in itself. `kept` is what an
     * earlier run left so (NULL: nothing): files that it has with the same path, size, mode,
     * owner and time are taken from there, if they and the directories that lead to them have
     * not changed since `kept_since`. Files with these ids are no members.
     */
    bool resume;
    const struct input *kept;
    int64_t kept_since; /* when the first of the runs that left it began, as time(2) */
    const struct file_id *kept_ids;
    size_t kept_count;
    bool dereference; /* of directories: pack what symbolic links lead to, not the links */
    bool is_nfc; /* names become Unicode NFC, see selection_compose; links in the tree follow */
    bool ignores_zeros; /* of a tar that is a stream: read on behind end-of-archive marks */
    bool no_sync;       /* don't wait until the archive is on the disk */
    bool strict;        /* the first problem is an error */
    unsigned stripes;   /* of each archive, see output_open; 0: as its folder has them */

    /* Without a pool. As many threads read as compress; 0: a few, more if reads are slow. */
    struct writer_options writer;

    /* Called for one file at a time, in the order of the archive. May be NULL. */
    void (*report)(void *ctx, enum pack_report kind, const struct fault *what);
    /* Called now and then, never while `report` runs. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;

    /*
     * Set it, from a signal handler for example, to end the run soon with -EINTR. May be NULL.
     */
    const _Atomic int *stop;
};

struct pack_result {
    struct writer_totals totals;
    uint64_t problems;
    bool waits; /* the shards are ready, but have no names until other ranks are */
    bool keeps; /* after -EINTR: what was written is kept */
};

/*
 * Packs. On failure no archive is made. The fault's member names a source, a file in it, a
 * shard or the list of names; a fault without a member is about the output.
 */
int pack_run(const struct pack_options *options, struct fault *fault,
             struct pack_result *ret_result);

/*
 * `found` of struct leftovers: reports what a killed run left. `options` is the struct
 * pack_options.
 */
void pack_report_leftover(void *options, enum leftover what, const char *name);

/* The share of a source, or of a folder in it with all below. */
struct pack_share {
    char *name; /* one of several sources, or the path of a folder in the only one */
    uint64_t files;
    uint64_t bytes;  /* of files' data */
    uint64_t inodes; /* files and folders; a file of several names is one */
};

struct pack_survey {
    struct pack_share all;
    VECTOR(struct pack_share) shares;
    uint64_t members;
    uint64_t archive_bytes; /* of an archive that is not compressed, about */
    uint64_t problems;
};

/*
 * Finds what there is to pack, and how large the archive will be, without reading a file or
 * writing anything. Sources are directories (-EINVAL: one is an archive), without a list of
 * names. Files that can't be looked at are reported and counted. The caller frees the survey,
 * also on failure.
 */
int pack_survey(const struct pack_options *options, struct fault *fault,
                struct pack_survey *ret_survey);
void pack_survey_free(struct pack_survey *survey);

/*
 * "NAME.onepot.tar" in the current directory, for a directory NAME or an archive NAME.tar.gz.
 * The caller frees it.
 */
int pack_default_output(const char *source, bool is_archive, char **ret_name);

#endif
