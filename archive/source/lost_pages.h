/*
 * Pages of a mapped file that are not there any more: the file was cut short, or its storage
 * failed. Reading one raises SIGBUS, which would end the process. In a mapping that is guarded
 * zeros take the place of the page instead, and the mapping is marked; whoever has read from it
 * looks at the mark afterwards, and takes nothing for true that came before.
 *
 * The handler is installed with the first mapping that is guarded, and leaves every other
 * address to the handler that was there before, or to the end of the process. A handler that a
 * program installs later has to do the same, or guards nothing. What a file still has of its
 * last page is followed by zeros without any signal: its length tells of that.
 *
 * Threads: all of it may be called by any, but for lost_pages_fd and lost_pages_count.
 */
#ifndef ONEPOT_LOST_PAGES_H
#define ONEPOT_LOST_PAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lost_pages {
    struct lost_pages *next;
    _Atomic uintptr_t start, end; /* end 0: of no mapping at present */
    _Atomic bool is_taken;
    _Atomic bool has_lost;
};

/* Guard a mapping until lost_pages_release, which comes before munmap. NULL: no memory. */
struct lost_pages *lost_pages_guard(const void *start, size_t bytes);
void lost_pages_release(struct lost_pages *guard); /* NULL is fine */

/* Was anything lost of it? Also asked for what is not guarded (NULL). */
static inline bool lost_pages_any(const struct lost_pages *guard)
{
    return guard && atomic_load_explicit(&guard->has_lost, memory_order_acquire);
}

/* ---- for a daemon ---- */

/* From now on zeros take the place of any page of the process; once. */
void lost_pages_catch_all(void);

/* Readable when pages were lost that lost_pages_count has not told of; -1: no descriptor. */
int lost_pages_fd(void);

/* How many so far. */
unsigned lost_pages_count(void);

#endif
