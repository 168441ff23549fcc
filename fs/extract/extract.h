/*
 * Extraction: turns an archive, or a part of it, back into files.
 *
 *     struct extract_options options = {.work = {.threads = 2, .report = say},
 *                                       .directory = "/dev/shm/data"};
 *     r = extract_run(fileset, &options, &fault, &result);
 *
 * There are four steps. First folders, from the root downwards; they stay closed to other users
 * (mode 0700) until the end. Then files, symbolic links and special files by several threads,
 * in the order of their bytes in the archive. Then hard links. Last the owner, mode, attributes
 * and time of the folders, the deepest first.
 *
 * Nothing outside of the directory is followed or written: every step uses a descriptor of the
 * folder and a single name, and symbolic links are not followed. A file that exists already is
 * an error. With `overwrite` it is removed and made anew, so its other names, and processes
 * that have it open, keep the old file. An existing folder is used, and gets the archive's
 * attributes; only the directory itself keeps its own, unless it is new.
 *
 * A file that could not be written whole, or whose bytes do not match the sum that they were
 * packed with, is removed. So is every unfinished one when the run is stopped.
 */
#ifndef ONEPOT_EXTRACT_H
#define ONEPOT_EXTRACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "fileset.h"
#include "workers.h"

#define EXTRACT_THREADS_MAX 256u

struct extract_options {
    struct work_options work; /* `report` tells of members that could not be extracted */
    const char *directory;    /* made if missing; a symbolic link to it is followed */
    bool is_new;              /* the caller has just made it, for nothing else */
    const char *const *paths; /* in the archive; symbolic links are not followed */
    size_t path_count;        /* 0: everything */
    bool *path_found;         /* set for each path that is in the archive */
    bool overwrite;           /* replace existing entries other than folders */
    bool exact_modes;         /* sticky bits too, whatever the umask */
    bool privileged;          /* set-id bits, devices, security attributes: what gives rights */
    bool owners;              /* restore the archive's uid and gid */
};

struct extract_result {
    uint64_t files; /* regular files, with their further names */
    uint64_t bytes; /* written */
    uint64_t problems;
    uint64_t lost_xattrs;  /* files whose attributes the filesystem rejects */
    uint64_t unprivileged; /* members that lack what only `privileged` restores */
};

/*
 * A problem with one member is reported and counted, and the rest continues. A problem that
 * would affect every member (a full disk, no memory) ends the run with an error and a fault.
 * *ret_result is filled in any case.
 */
int extract_run(struct fileset *fileset, const struct extract_options *options,
                struct fault *fault, struct extract_result *ret_result);

#endif
