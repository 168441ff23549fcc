/*
 * Records the order in which files are read, one path a line, so that a later job can follow it
 * (read_list.h). Until it is finished a record is called PATH.part, and that is what a
 * killed process leaves. Each file is recorded up to RECORDER_TIMES times: a record holds the
 * orders of several epochs, but does not grow for ever. A path with a newline is quoted.
 *
 * Threads: one at a time.
 */
#ifndef ONEPOT_RECORDER_H
#define ONEPOT_RECORDER_H

#include <stdint.h>

#include "index.h"

#define RECORDER_TIMES 8u

struct recorder;

/*
 * `path` is absolute; the paths of files are written relative to `root`. The index must outlive
 * the recorder. Errors of open(2), -ENAMETOOLONG, -ENOMEM.
 */
int recorder_new(const char *path, const struct index *index, uint32_t root,
                 struct recorder **ret_recorder);

void recorder_note(struct recorder *recorder, uint32_t position);

/* Write the reads noted so far. recorder_finish reports errors of write(2). */
void recorder_flush(struct recorder *recorder);

/*
 * Give the record its name, and free the recorder. Returns the first error of all. Where
 * nothing was read, the record of an earlier job stays as it is.
 */
int recorder_finish(struct recorder *recorder);

/* Free it; another process has the record. NULL is fine. */
void recorder_forget(struct recorder *recorder);

/* Free it and remove what was written, since it was never used. NULL is fine. */
void recorder_abandon(struct recorder *recorder);

#endif
