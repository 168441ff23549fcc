/*
 * Computes the sums of an archive's windows while it is written: for each window of
 * INDEX_WINDOW_BYTES, XXH3-64 of its bytes that are not stored data. coverage.h is the reading
 * side.
 *
 * Threads: one at a time.
 */
#ifndef ONEPOT_REST_SUMS_H
#define ONEPOT_REST_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "vector.h"

struct rest_sums {
    void *state;
    uint64_t offset;       /* in the archive: bytes added or skipped so far */
    VECTOR(uint64_t) sums; /* of the complete windows */
};

/* -ENOMEM. */
int rest_sums_init(struct rest_sums *rest);
void rest_sums_free(struct rest_sums *rest);

/*
 * Adds the next `len` bytes of the archive, which no member's sum covers. NULL: they are stored
 * data, which a member's sum covers. -ENOMEM.
 */
int rest_sums_add(struct rest_sums *rest, const void *bytes, size_t len);

/* Ends the archive: completes `sums`. -ENOMEM. */
int rest_sums_end(struct rest_sums *rest);

#endif
