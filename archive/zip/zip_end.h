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
 * Find the directory. Bytes in front of the zip and behind it are passed over, and so is an end
 * that leads to no directory, such as one in a comment.
 *
 * The members of a source are the zip's volumes, if it has several.
 *
 * 0, -EUCLEAN where there is none, -EINVAL for one volume of several, or an error of reading;
 * all with a fault.
 */
int zip_find_directory(const struct source *source, struct zip_place *ret_place,
                       struct fault *fault);

/* Where volume `number` (from 0 on) begins in the source. False: it is not there. */
bool zip_volume_base(const struct source *source, uint32_t number, uint64_t *ret_base);

/*
 * How many volumes has the zip that ends with the source, by that end? 0: it is no zip's. 0 or
 * an error of reading.
 */
int zip_count_volumes(const struct source *source, uint32_t *ret_count);

/*
 * Find where a zip with members begins that ends with the source: 1, 0 (there is none), or
 * -errno. Bytes at 0 are not looked at, so they may be damaged.
 */
int zip_find_begin(const struct source *source, uint64_t *ret_begin);

/* -EUCLEAN, with what to do about a damaged zip. */
int zip_fault_damaged(struct fault *fault, const char *member, uint64_t offset,
                      const char *what);

#endif
