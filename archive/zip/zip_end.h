/*
 * Where the central directory of a zip is: what lies at its end is found, checked and read.
 *
 * Threads: any.
 */
#ifndef ONEPOT_ZIP_END_H
#define ONEPOT_ZIP_END_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "source.h"

struct zip_place {
    uint64_t directory; /* where it begins */
    uint64_t directory_bytes;
    uint64_t entries;
    int64_t shift; /* where the zip's 0 is; below 0: in front of the source */
    bool has_64;   /* so that `entries` is the whole number, not its last 16 bits */
};

/*
 * How many volumes has the zip that ends with the source, by that end? 0: it is no zip's. 0 or
 * an error of reading.
 */
int zip_count_volumes(const struct source *source, uint32_t *ret_count);

#endif
