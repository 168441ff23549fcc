/*
 * A source that retries failed reads: which errors are worth a retry, how long to wait before
 * it, and how to replace a stale handle. It wraps a file; source_open and source_from_fd make
 * one.
 *
 * The settings below belong to the retrying source within `source`, or within each of its
 * members; without one they have no effect. Any number of threads may call them at once.
 */
#ifndef ONEPOT_SOURCE_RETRY_H
#define ONEPOT_SOURCE_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "source.h"

/*
 * Put a retrying source around *source, in its place: 0 or -ENOMEM. A file is opened again by
 * the path that the kernel knows; one without a path (a memory file) can't be, and a local one
 * need not be.
 */
int source_retry(struct source **source);

/* The canonical path of a distant file when it was opened; NULL: it is local, or has none. */
const char *source_real_path(const struct source *source);

/* May this storage error pass? */
bool source_error_may_pass(int err);

/*
 * How often a failing read is tried again: by default four times, within 2.6 s; 0: never. No
 * try begins more than 30 s after the first failure.
 */
#define SOURCE_RETRIES_DEFAULT 4u
void source_set_retries(struct source *source, unsigned retries);

/*
 * Stop all retries, now and later; a read waiting for one returns with its error. For the end
 * of a session.
 */
void source_cancel_retries(struct source *source);

enum source_error {
    SOURCE_RETRIED,  /* a read failed with `err` and is retried; reported once per read */
    SOURCE_REOPENED, /* a stale handle was opened again */
    SOURCE_REPLACED, /* reopening failed, as the path leads to another file; reported once */
    SOURCE_CHANGED,  /* a read failed, as the file is not what it was (source_folder.h) */
};

/*
 * Have `hook(ctx, name, what, err, offset)` called when the storage of the file `name` fails,
 * in the reading thread; calls may run concurrently. Set once; NULL ends further calls, but not
 * one that has begun.
 */
typedef void source_error_hook(void *ctx, const char *name, enum source_error what, int err,
                               uint64_t offset);
void source_on_error(struct source *source, source_error_hook *hook, void *ctx);

struct source_error_counts {
    uint64_t retried;  /* tries after the first one of each read */
    uint64_t failed;   /* reads given up */
    uint64_t reopened; /* stale handles opened again */
};
struct source_error_counts source_error_counts(const struct source *source);

/* For tests: time is *clock_ns, which pauses advance. Before any read. */
void source_retry_test_clock(struct source *source, _Atomic uint64_t *clock_ns);

#endif
