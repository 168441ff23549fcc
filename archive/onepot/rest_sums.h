/*
 * The sums of an archive's windows, taken while it is written: of each piece of
 * INDEX_WINDOW_BYTES, XXH3-64 of those of its bytes that are no stored data. See coverage.h
 * for the reading side.
 *
 * Threads: none; one thread uses it at a time.
 */
#ifndef ONEPOT_REST_SUMS_H
#define ONEPOT_REST_SUMS_H

#include <stddef.h>
#include <stdint.h>

struct rest_sums {
    void *state;
    uint64_t offset; /* in the archive: how much was added or skipped */
    uint64_t *sums;  /* of the windows that are complete */
    size_t count, capacity;
};

/* -ENOMEM. */
int rest_sums_init(struct rest_sums *rest);
void rest_sums_free(struct rest_sums *rest);

/* The next `len` bytes of the archive, which no member's sum covers. -ENOMEM. */
int rest_sums_add(struct rest_sums *rest, const void *bytes, size_t len);

/* The next `len` bytes are stored data. -ENOMEM. */
int rest_sums_skip(struct rest_sums *rest, uint64_t len);

/* The archive ends here: `sums` and `count` are complete. -ENOMEM. */
int rest_sums_end(struct rest_sums *rest);

#endif
