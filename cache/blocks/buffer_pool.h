/*
 * Memory for decompressed blocks. malloc has two drawbacks here. With one arena for each thread
 * it keeps more than was asked for, which a budget in a job's cgroup can't see. And it gives
 * pages back and faults them in again at each turn of a full cache. Here a freed buffer is the
 * next one handed out, still in place, up to a limit on such spare memory. Beyond it the pages
 * go back to the system at once.
 *
 * Threads: many threads may call all functions at once. A lock is held for a push or a pop, and
 * now and then for an mmap.
 */
#ifndef ONEPOT_BUFFER_POOL_H
#define ONEPOT_BUFFER_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer_pool;

/* Bytes in use, and their limit. */
struct account {
    _Atomic uint64_t used, limit;
};

/* Takes `bytes` from the room below the limit. */
static inline bool account_take(struct account *account, uint64_t bytes)
{
    uint64_t limit = atomic_load_explicit(&account->limit, memory_order_relaxed);
    uint64_t now = atomic_load_explicit(&account->used, memory_order_relaxed);
    do {
        if (bytes > limit || now > limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(
        &account->used, &now, now + bytes, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/*
 * `spare_bytes`: how much freed memory may stay resident. Buffers of `huge_min` to `huge_max`
 * bytes lie on huge pages, if the system has them and 4 MiB of that size are in use already.
 * That takes up to 2 MiB for each such size beyond the bytes in use, but filling them first
 * takes a tenth of the time. `huge_max` 0: no huge pages. `not_for_children`: a forked child
 * won't have the buffers (MADV_DONTFORK), so that the kernel need not copy each page that is
 * filled anew while the child lives. -ENOMEM.
 */
int buffer_pool_new(uint64_t spare_bytes, size_t huge_min, size_t huge_max,
                    bool not_for_children, struct buffer_pool **ret_pool);
void buffer_pool_free(struct buffer_pool *pool); /* frees all its buffers */

/* Changes the limit on spare memory; any excess goes back to the system now. */
void buffer_pool_set_spare(struct buffer_pool *pool, uint64_t spare_bytes);

/*
 * Unmaps mappings of which no buffer is in use, and so gives back their addresses. False: there
 * were none. Slow: for when no more addresses can be had.
 */
bool buffer_pool_unmap_unused(struct buffer_pool *pool);

/*
 * The real size of a buffer for `size` bytes: whole pages, at most a sixteenth more than asked
 * for.
 */
size_t buffer_pool_capacity(const struct buffer_pool *pool, size_t size);

/* A buffer of buffer_pool_capacity(size) bytes, page-aligned, contents undefined. -ENOMEM. */
int buffer_pool_get(struct buffer_pool *pool, size_t size, void **ret_buffer);

/* `size`: the size that was asked for, or the capacity. */
void buffer_pool_put(struct buffer_pool *pool, void *buffer, size_t size);

#endif
