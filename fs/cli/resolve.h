/*
 * Finds a path within an archive and follows symbolic links, as a person expects on the command
 * line. (For a mount the kernel does this itself.)
 */
#ifndef ONEPOT_RESOLVE_H
#define ONEPOT_RESOLVE_H

#include <stdint.h>

#include "index.h"

/*
 * The entry that `path` leads to, from the root; leading slashes are ignored. "." and ".." have
 * their usual meaning. -ENOENT, -ENOTDIR, -ELOOP (over 40 links), -EXDEV (a link or ".." leads
 * out of the archive; links to absolute paths do), -ENOMEM, -EUCLEAN.
 */
int resolve_path(const struct index *index, const char *path, uint32_t *ret_position);

/* The meaning of an error of resolve_path, for a message; NULL if it is the usual one. */
const char *resolve_error(int err);

#endif
