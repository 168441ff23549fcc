/*
 * Memory for decompressed blocks. malloc would do, but for two things: with one arena
 * a thread it keeps more than was asked for, which a budget in a job's cgroup can't
 * see; and it gives pages back and faults them in again at each turn of a full cache.
 * Here a buffer that was freed is the next one that is handed out, still in place, up
 * to a bound on such spare memory; beyond it the pages go back to the system at once.
 *
 * Threads: all functions may be called from many threads at once. A lock is held for
 * a push or a pop, and now and then for an mmap.
 */
#ifndef ONEPOT_BUFFER_POOL_H
#define ONEPOT_BUFFER_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer_pool;

/*
 * `spare_bytes`: how much freed memory may stay resident. Buffers of `huge_min` to
 * `huge_max` bytes are laid on huge pages, where the system has them: up to 2 MiB more
 * for each size than is in use, but a tenth of the time to fill them first. A
 * `huge_max` of 0: none. -ENOMEM.
 */
int buffer_pool_new(uint64_t spare_bytes, size_t huge_min, size_t huge_max,
                    struct buffer_pool **ret_pool);
void buffer_pool_free(struct buffer_pool *pool); /* all buffers go with it */

/*
 * Before the first buffer: a forked child shall not have them (MADV_DONTFORK). The kernel
 * then need not copy each page that is filled anew while the child lives.
 */
void buffer_pool_not_for_children(struct buffer_pool *pool);

/* Another bound on the spare memory; what is too much of it goes back to the system now. */
void buffer_pool_set_spare(struct buffer_pool *pool, uint64_t spare_bytes);

/*
 * Give back the addresses, too, of what is not in use, as far as whole mappings are not. False:
 * there were none. For when no more can be had: it takes its time.
 */
bool buffer_pool_unmap_unused(struct buffer_pool *pool);

/*
 * What a buffer for `size` bytes really takes: whole pages, at most a sixteenth
 * more than asked for.
 */
size_t buffer_pool_capacity(const struct buffer_pool *pool, size_t size);

/* A buffer of buffer_pool_capacity(size) bytes, page-aligned, contents undefined. -ENOMEM. */
int buffer_pool_get(struct buffer_pool *pool, size_t size, void **ret_buffer);

/* `size`: as it was asked for, or its capacity. */
void buffer_pool_put(struct buffer_pool *pool, void *buffer, size_t size);

#endif
