/*
 * The files of an archive in the order in which their bytes lie in it. A program that goes
 * through all of them may read in this order rather than by name.
 *
 * Threads: an archive order never changes once it is made.
 */
#ifndef ONEPOT_ARCHIVE_FILES_H
#define ONEPOT_ARCHIVE_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "index.h"

struct archive_files;

/* -E2BIG: it would take more than `most_bytes` (16 a name while it is made, then 8). */
int archive_files_new(const struct index *index, uint64_t most_bytes,
                      struct archive_files **ret_order);
void archive_files_free(struct archive_files *order); /* NULL is fine */

uint32_t archive_files_count(const struct archive_files *order);
uint32_t archive_files_at(const struct archive_files *order, uint32_t place);
/* -ENOENT: the file has no bytes. */
int archive_files_place(const struct archive_files *order, uint32_t position,
                        uint32_t *ret_place);

/* Where the first byte of a file lies, stored or in a block. -ENXIO: the file has no bytes. */
int archive_files_offset(const struct index *index, uint32_t position, uint64_t *ret_offset);

#endif
