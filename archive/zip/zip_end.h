/*
 * The end of a zip, as far as it tells in how many files the zip lies.
 *
 * Threads: any.
 */
#ifndef ONEPOT_ZIP_END_H
#define ONEPOT_ZIP_END_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "source.h"

/*
 * How many volumes has the zip that ends with the source, by that end? 0: it is no zip's. 0 or
 * an error of reading.
 */
int zip_count_volumes(const struct source *source, uint32_t *ret_count);

#endif
