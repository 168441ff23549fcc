/*
 * Writes down in which order files are read, one path a line, for a later job with the same
 * order (read_order_parse). While it is written it is called PATH.part; that is what is left if
 * the process is killed. A file is written down up to RECORDER_TIMES times, so that a record
 * holds the orders of several epochs, and ends. A path with a newline is quoted
 * (order_paths.h).
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
 * `path` is absolute; paths of files are written relative to `root`. The index is used until
 * the end. Errors of open(2), -ENAMETOOLONG, -ENOMEM.
 */
int recorder_new(const char *path, const struct index *index, uint32_t root,
                 struct recorder **ret_recorder);

void recorder_note(struct recorder *recorder, uint32_t position);

/* Have what was noted written. Errors of write(2) are kept for the end. */
void recorder_flush(struct recorder *recorder);

/*
 * Give it its name, and free it. The first error of all. Where nothing was read, a record of
 * an earlier job stays as it is.
 */
int recorder_finish(struct recorder *recorder);

/* Free it; another process has it. NULL is fine. */
void recorder_forget(struct recorder *recorder);

/* Free it and remove what was written: it never came to be used. NULL is fine. */
void recorder_abandon(struct recorder *recorder);

#endif
