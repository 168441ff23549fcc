/*
 * Handles failing storage for a source: which errors are worth a retry, how long to wait
 * before it, and how to replace a stale handle. Used by source.c alone; source.h documents
 * what callers see.
 *
 *     struct source_attempt attempt = source_guard_begin(guard);
 *     while ((r = read it) < 0 && source_guard_again(guard, &attempt, r, offset))
 *         ;
 *     if (r == 0)
 *         source_guard_succeeded(guard);
 *
 * Any number of threads may use it at once.
 */
#ifndef ONEPOT_SOURCE_GUARD_H
#define ONEPOT_SOURCE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "source.h"

struct source_guard;

/* One read, with all its tries. */
struct source_attempt {
    unsigned made;    /* failed tries */
    uint64_t since;   /* time of the first failure, CLOCK_MONOTONIC nanoseconds */
    uint32_t opening; /* which opening of the file the last try used */
};

/*
 * For the open file `fd`, which the caller still owns. The file is opened again by the path
 * that the kernel knows; a file without one (a memory file) can't be opened again.
 */
int source_guard_new(int fd, const struct source_identity *identity,
                     struct source_guard **ret_guard);
void source_guard_free(struct source_guard *guard); /* NULL is fine */

struct source_attempt source_guard_begin(const struct source_guard *guard);

/*
 * Handle a try that failed with -errno `err` at `offset` of the file. True: try again now. It
 * may have waited, and opened the file again behind the same descriptor.
 */
bool source_guard_again(struct source_guard *guard, struct source_attempt *attempt, int err,
                        uint64_t offset);
void source_guard_succeeded(struct source_guard *guard);

/* May this storage error pass? */
bool source_error_may_pass(int err);

void source_guard_set_retries(struct source_guard *guard, unsigned retries);
/* Use POSIX_FADV_RANDOM for the file, also after it is opened again. */
void source_guard_use_at_random(struct source_guard *guard);
void source_guard_cancel(struct source_guard *guard);
void source_guard_on_trouble(struct source_guard *guard, source_trouble_hook *hook, void *ctx);
void source_guard_troubles(struct source_guard *guard, struct source_troubles *ret_troubles);

#endif
