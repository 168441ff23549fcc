/*
 * How long the sections of an index are on disk (index_format.h), for callers that make a table
 * of their records.
 */
#ifndef ONEPOT_INDEX_RECORDS_H
#define ONEPOT_INDEX_RECORDS_H

#include "index.h"
#include "index_format.h"

/* How long a section is. 0: it is empty, or there is none. */
uint64_t index_section_bytes(const struct index *index, enum disk_section_id id);

#endif
