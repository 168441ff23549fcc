/*
 * The records of an index as they are on disk (index_format.h), for those who walk over very
 * many of them. Only the sums of their pages are checked: a caller checks every value that it
 * uses. All others ask index.h.
 */
#ifndef ONEPOT_INDEX_RECORDS_H
#define ONEPOT_INDEX_RECORDS_H

#include "index.h"
#include "index_format.h"

/* How long a section is. 0: it is empty, or there is none. */
uint64_t index_section_bytes(const struct index *index, enum disk_section_id id);

/* `len` (> 0) bytes at `offset` of a section. NULL: it does not have them, or is damaged. */
const void *index_records(const struct index *index, enum disk_section_id id, uint64_t offset,
                          uint64_t len);

#endif
