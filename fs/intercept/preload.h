/*
 * How a program gets the short circuit: by the name of libonepot-io.so in LD_PRELOAD. The
 * program carries the library, so that it is complete without any other file, and always has
 * the one that belongs to it. The installed one is named if it is the same; else a copy is
 * written beside the state of a mount, and removed with it (state.h).
 */
#ifndef ONEPOT_PRELOAD_H
#define ONEPOT_PRELOAD_H

#include <limits.h>
#include <stddef.h>

/* The library's bytes. */
extern const unsigned char preload_library[];
extern const size_t preload_library_bytes;

/*
 * The path of the library: the installed one, or a copy made at `path`. -ENOTSUP: there is
 * none for this kind of CPU, or a path with spaces or colons can't be named there; -ENOEXEC:
 * its filesystem allows no programs; or what writing says.
 */
int preload_find(const char *path, char ret_path[PATH_MAX]);

/*
 * The value that LD_PRELOAD should have, for free(3): behind what it has now, so that other
 * libraries of this kind see all calls. -ENOMEM.
 */
int preload_value(const char *library, const char *now, char **ret_value);

#endif
