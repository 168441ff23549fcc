/*
 * A path within an archive, symbolic links followed: what a person means by a path on
 * the command line. (The kernel does this itself for a mount.)
 */
#ifndef ONEPOT_RESOLVE_H
#define ONEPOT_RESOLVE_H

#include <stdint.h>

#include "index.h"

/*
 * The entry that `path` leads to, from the root; slashes in front are ignored. "." and
 * ".." mean what they mean everywhere. -ENOENT, -ENOTDIR, -ELOOP (over 40 links),
 * -EXDEV (a link or ".." that leads out of the archive: links to absolute paths do),
 * -ENOMEM, -EUCLEAN.
 */
int resolve_path(const struct index *index, const char *path, uint32_t *ret_position);

/* What resolve_path's errors mean, for a message; NULL for those with no special sense. */
const char *resolve_error(int err);

#endif
