/*
 * Extraction: what an archive holds becomes files again, all of it or a part.
 *
 *     struct extract_options options = {.directory = "/dev/shm/data", .threads = 2,
 *                                       .report = say};
 *     r = extract_run(pot, reader, &options, &fault, &result);
 *
 * Four steps. Folders, from the root downwards, open to nobody else (mode 0700) until
 * the end. Files, links and special files by several threads, in the order in which
 * their bytes lie in the archive. Hard links. Then owner, mode, attributes and time of
 * the folders, the deepest first.
 *
 * Nothing is ever followed or written outside of the directory: every step goes by a
 * descriptor of the folder and one name, and symbolic links are not followed. A file
 * that is there already is an error, or with `overwrite` removed and made anew: what
 * was another name of it, or was open, stays as it is. A folder that is there is used,
 * and gets the archive's attributes; only the directory itself keeps its own, unless it
 * was made here.
 *
 * A file that could not be written whole, or whose bytes do not have the sum that they
 * were packed with, is removed. So is every unfinished one when the run is stopped.
 */
#ifndef ONEPOT_EXTRACT_H
#define ONEPOT_EXTRACT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "pot.h"
#include "reader.h"

#define EXTRACT_THREADS_MAX 256u

struct extract_options {
    const char *directory;    /* made if it is not there; a symbolic link to it is followed */
    const char *const *paths; /* in the archive; links in them are not followed */
    size_t path_count;        /* 0: everything */
    bool *path_found;         /* set for each of them that is in this archive */
    bool overwrite;           /* replace what is there, but for folders */
    bool exact_modes;         /* sticky bits too, whatever the umask */
    bool privileged;          /* what gives rights: set-id bits, devices, security attributes */
    bool owners;              /* uid and gid of the archive */
    bool directory_is_ours;   /* made by a run before: it gets the archive's attributes */
    unsigned threads;

    /* Called for one member at a time that could not be extracted. May be NULL. */
    void (*report)(void *ctx, const struct fault *what);
    /* Called now and then, by the caller's thread, never while `report` is. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;

    /* Set to end the run soon, from a signal handler maybe: -EINTR. May be NULL. */
    const _Atomic int *stop;
};

struct extract_result {
    uint64_t files; /* regular, further names of them included */
    uint64_t directories;
    uint64_t others; /* symbolic links, fifos, devices, sockets */
    uint64_t bytes;  /* written */
    uint64_t problems;
    bool made_directory;   /* that of the options */
    uint64_t lost_xattrs;  /* files whose attributes the filesystem does not take */
    uint64_t unprivileged; /* members that lack what only `privileged` restores */
};

/*
 * What goes wrong with one member is reported and counted, and the rest goes on. What
 * would go wrong with every one (a full disk, no memory) ends the run: an error, with a
 * fault. *ret_result is filled in any case.
 */
int extract_run(struct pot *pot, struct reader *reader, const struct extract_options *options,
                struct fault *fault, struct extract_result *ret_result);

#endif
