/*
 * A part of a source in memory, for a reader who goes through it in small steps: straight from
 * the source's mapping, or read some way ahead of the reader.
 *
 * Threads: a window belongs to one thread.
 */
#ifndef ONEPOT_SOURCE_WINDOW_H
#define ONEPOT_SOURCE_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "source.h"

struct source_window {
    struct source *source;
    const uint8_t *map; /* of the whole source; NULL: not local */
    uint8_t *buf;
    size_t ahead_bytes, capacity, len;
    uint64_t offset;
};

/* The source must outlive it. `ahead_bytes`: how much to read at once. -ENOMEM. */
int source_window_open(struct source_window *window, struct source *source, size_t ahead_bytes);
void source_window_close(struct source_window *window); /* one that is all zero is fine */

/*
 * `len` bytes at `offset`, or the rest of the source from there: *ret_len may be less. Valid
 * until the next call, and not set where *ret_len is 0. Errors of source_read; -ENOMEM.
 */
int source_window_get(struct source_window *window, uint64_t offset, size_t len,
                      const uint8_t **ret_bytes, size_t *ret_len);

#endif
