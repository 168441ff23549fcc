/*
 * The files of an archive in the order in which their bytes lie in it. A program that goes
 * through all of them may read in this order rather than by name.
 */
#ifndef ONEPOT_ARCHIVE_FILES_H
#define ONEPOT_ARCHIVE_FILES_H

#include <stdint.h>

#include "index.h"
#include "known_reads.h"

/* -E2BIG: it would take more than `most_bytes` (16 a name while it is made, then 8). */
int archive_files_new(const struct index *index, uint64_t most_bytes,
                      struct known_reads **ret_order);

/* Where the first byte of a file lies, stored or in a block. -ENXIO: the file has no bytes. */
int archive_files_offset(const struct index *index, uint32_t position, uint64_t *ret_offset);

#endif
