/*
 * Pages of a mapped file that are gone because the file was cut short or its storage failed.
 * Reading one raises SIGBUS, which would end the process. In a guarded mapping, zeros replace
 * the page instead and the mapping is marked. A reader checks the mark afterwards; if it is
 * set, none of the data read before can be trusted.
 *
 * The handler is installed with the first guarded mapping. It passes signals for all other
 * addresses to the previous handler; without one, the process ends. A handler that the program
 * installs later must do the same, or the guard fails. Where a file ends within its last page,
 * the rest of that page reads as zeros without any signal; only the file's length shows that.
 *
 * Threads: any thread may call any function except lost_pages_fd and lost_pages_seen.
 */
#ifndef ONEPOT_LOST_PAGES_H
#define ONEPOT_LOST_PAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lost_pages {
    struct lost_pages *next;
    _Atomic uintptr_t start, end; /* end 0: currently of no mapping */
    _Atomic bool is_taken;
    _Atomic bool has_lost;
};

/* Guard a mapping until lost_pages_release, to be called before munmap. NULL: no memory. */
struct lost_pages *lost_pages_guard(const void *start, size_t bytes);
void lost_pages_release(struct lost_pages *guard);

/* Has the mapping lost pages? May be called for an unguarded one (NULL). */
static inline bool lost_pages_any(const struct lost_pages *guard)
{
    return guard && atomic_load_explicit(&guard->has_lost, memory_order_acquire);
}

/* ---- for a daemon ---- */

/* From now on, replace any lost page of the process by zeros. Call once. */
void lost_pages_catch_all(void);

/* Readable when pages were lost since the last lost_pages_seen; -1: no descriptor. */
int lost_pages_fd(void);
void lost_pages_seen(void);

#endif
