/*
 * Verification: checks every bound and every checksum of an archive.
 *
 *     struct work_options work = {.threads = 2, .report = say};
 *     r = verify_run(fileset, &work, trailer_is_good, &fault, &result);
 *
 * The tree: each entry of the index is decoded, and each name, link, attribute and extent
 * checked. The data: each file is read, decompressed if needed, and compared with its sum if
 * the archive has sums. The rest: in an onepot archive all other bytes are checked too, so that
 * the whole file was compared with some sum.
 */
#ifndef ONEPOT_VERIFY_H
#define ONEPOT_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "fileset.h"
#include "workers.h"

#define VERIFY_THREADS_MAX 256u

struct verify_result {
    uint64_t files;     /* files read, each inode once */
    uint64_t bytes;     /* bytes of these files */
    uint64_t links_out; /* symbolic links that lead out of the tree: no problem */
    struct fileset_sums sums;
    bool whole; /* every file has a sum, and so have all bytes outside of files */
    uint64_t problems;
};

/*
 * Problems of the archive are reported and counted; an error means that the run itself failed.
 * `trailer_is_good`: verify_trailer found nothing, or fileset->was_reindexed makes up for its
 * findings. Without this, the archive's end is not looked at.
 */
int verify_run(struct fileset *fileset, const struct work_options *work, bool trailer_is_good,
               struct fault *fault, struct verify_result *ret_result);

/*
 * Does this file end in a worthless trailer? Call it before fileset_open, which would then take
 * the archive for the plain format without it. 0: there is no trailer, or it is good enough to
 * find the index. -ESTALE: it is older than the archive's bytes. Other errors. Each has a
 * fault.
 */
int verify_trailer(const char *path, uint64_t offset, struct fault *fault);

#endif
