/*
 * Shared by the files of the mounter.
 *
 *   mounter.c         the order of steps, the mount itself, undoing
 *   mounter_request.c the options' paths, resolved; signals meanwhile
 *   mounter_slot.c    a mount to share, or a new slot
 *   mounter_archive.c the archive, its reader and its copy; --order and --record
 *   mounter_daemon.c  the daemon: forked, or this process
 *   mounter_extract.c --extract: plain files in place of a mount
 */
#ifndef ONEPOT_MOUNTER_PRIVATE_H
#define ONEPOT_MOUNTER_PRIVATE_H

#include "mounter.h"

#define ANSWER_LIMIT_MS 10000

/* Resolve the options: paths, job, owner, log. 0, or CLI_FAILED after an error. */
int mounter_prepare(struct mounter *m);

/*
 * Open the archive, its reader and the files of --order and --record, and describe the archive
 * in the counters. 0, or CLI_FAILED.
 */
int mounter_open_archive(struct mounter *m);

/* The error that --at may not be made, and who can help. Returns CLI_FAILED. */
int mounter_refused(const struct mounter *m, const char *at, int err);

/*
 * Find a mount to share (sets m->shared and counts this process among its users), or create a
 * slot, held exclusively. 0, or CLI_FAILED after an error was printed.
 */
int mounter_find_slot(struct mounter *m);

/*
 * Start the daemon for a new mount, and wait until it serves. 0, or CLI_FAILED after an error
 * was printed.
 */
int mounter_start_daemon(struct mounter *m);

/*
 * --extract: is there room for the files? 0, or CLI_FAILED after an error was printed. Then
 * make them, and let others share them. The same.
 */
int mounter_find_room(struct mounter *m);
int mounter_extract(struct mounter *m);

/* Bytes that the files of an archive would take that could not be mounted; 0: they don't fit.
 */
uint64_t mounter_extracted_bytes(const struct mounter *m);

/* Does it show several archives as one tree? */
static inline bool mounter_is_union(const struct mounter *m)
{
    return m->archives.count > 1 || cli_together.each;
}

/* May a `run` mount in a private namespace? */
static inline bool mounter_may_be_private(const struct mounter *m)
{
    return m->for_run && (m->methods & MOUNT_BY_NAMESPACE);
}

/* Let other `run`s join this one's namespace, through its slot. Under the registry's lock. */
void mounter_offer_namespace(const struct mounter *m, struct counters *counters);

/* Undo the count that mounter_find_slot made. */
void mounter_unshare(struct mounter *m);

#endif
