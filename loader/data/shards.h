/*
 * From what a caller names (archives, directories of shards, patterns) to opened archives.
 */
#ifndef ONEPOT_SHARDS_H
#define ONEPOT_SHARDS_H

#include <stddef.h>
#include <stdint.h>

#include "onepot.h"
#include "pot.h"

/* The archives (staged, if `stage` is not NULL: onepot_archive_options), in the order of their
 * names where one path stands for several. *ret_pots is allocated, as is each of them. */
int shards_open(const char *const *paths, size_t count, uint64_t memory_bytes,
                const char *stage, struct onepot_error *error, struct pot ***ret_pots,
                size_t *ret_count);

#endif
