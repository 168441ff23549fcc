/*
 * From what a caller names (archives, folders of shards, patterns, lists) to opened archives.
 */
#ifndef ONEPOT_SHARDS_H
#define ONEPOT_SHARDS_H

#include <stddef.h>
#include <stdint.h>

#include "onepot.h"
#include "pot.h"

/*
 * Open all archives: staged, and as a view, as the options say. Where one path stands
 * for several files, they come in the order of their names. *ret_pots and each of its members
 * are allocated.
 */
int shards_open(const char *const *paths, size_t count,
                const struct onepot_archive_options *options, struct onepot_error *error,
                struct pot ***ret_pots, size_t *ret_count);

#endif
