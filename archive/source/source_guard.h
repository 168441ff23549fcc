/*
 * What a source does when its storage fails: which errors are worth another try, how long to
 * wait before it, and a handle that went stale. Used by source.c alone; source.h says what
 * callers see of it.
 *
 *     struct source_attempt attempt = source_guard_begin(guard);
 *     while ((r = read it) < 0 && source_guard_again(guard, &attempt, r, offset))
 *         ;
 *     if (r == 0)
 *         source_guard_succeeded(guard);
 *
 * Any number of threads may be in this at once.
 */
#ifndef ONEPOT_SOURCE_GUARD_H
#define ONEPOT_SOURCE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "source.h"

struct source_guard;

/* One read, however often it is tried. */
struct source_attempt {
    unsigned made;    /* tries that failed */
    uint64_t since;   /* the first of them, CLOCK_MONOTONIC nanoseconds */
    uint32_t opening; /* of the file, when the last try was made */
};

/*
 * For the open file `fd`, which stays the caller's. The path by which it can be opened again
 * is the one that the kernel knows; where there is none (a memory file), it never is.
 */
int source_guard_new(int fd, const struct source_identity *identity,
                     struct source_guard **ret_guard);
void source_guard_free(struct source_guard *guard); /* NULL is fine */

struct source_attempt source_guard_begin(const struct source_guard *guard);

/*
 * A try failed with -errno `err` at `offset` of the file. True: try again, now (it may have
 * waited, and opened the file anew behind the same descriptor).
 */
bool source_guard_again(struct source_guard *guard, struct source_attempt *attempt, int err,
                        uint64_t offset);
void source_guard_succeeded(struct source_guard *guard);

/* Is this an error of the storage that may pass? */
bool source_error_may_pass(int err);

void source_guard_set_retries(struct source_guard *guard, unsigned retries);
/* The file is read at random (POSIX_FADV_RANDOM), and when it is opened anew as well. */
void source_guard_use_at_random(struct source_guard *guard);
void source_guard_cancel(struct source_guard *guard);
void source_guard_on_trouble(struct source_guard *guard, source_trouble_hook *hook, void *ctx);
void source_guard_troubles(struct source_guard *guard, struct source_troubles *ret_troubles);

#endif
