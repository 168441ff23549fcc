/*
 * How a program gets the short circuit: by the path of libonepot-io.so in LD_PRELOAD. The
 * program carries the library, so that it is complete without any other file, and always has
 * the one that belongs to it.
 *
 * An environment outlives the mount, and goes to other users and nodes. So the path lies where
 * nobody but root or this user can ever put a file (place.h): the installed library, if it has
 * the same bytes; else a copy with the hash of its bytes in its name, in /var/cache/onepot for
 * root, else in the user's cache folder. A copy stays when the mount ends. One that was not
 * used for ninety days goes when another version writes its own.
 *
 * ONEPOT_PRELOAD has the same path. The library takes itself out of the LD_PRELOAD of a process
 * that has it, and puts itself back at each exec where the new program can load it
 * (interpose.c). A process without ONEPOT_PRELOAD is left as it is.
 */
#ifndef ONEPOT_PRELOAD_H
#define ONEPOT_PRELOAD_H

#include <limits.h>
#include <stddef.h>

#define PRELOAD_VARIABLE "ONEPOT_PRELOAD"
/* The mount below a layer: struct intercept_id as seconds, nanoseconds, key and name. */
#define LAYER_VARIABLE "ONEPOT_LAYER"
#define PRELOAD_PATH_BYTES 512 /* a longer one is refused */

/* The library's bytes, and the name that a copy has. */
extern const unsigned char preload_library[];
extern const size_t preload_library_bytes;
extern const char preload_library_name[];

/*
 * The path of the library: the installed one, or a copy, written if need be. Errors: no folder
 * is fit for it, and `ret_why` says why the last one is not, as one line.
 */
#define PRELOAD_WHY_MAX (PATH_MAX + 256)
int preload_find(char ret_path[PATH_MAX], char ret_why[PRELOAD_WHY_MAX]);

/*
 * The value that LD_PRELOAD should have, for free(3): behind its present libraries, so that
 * other libraries of this kind see all calls. Libraries of ours in `now` are left out. NULL as
 * library: none. `ret_unsafe` is the first library left out because another user could put a
 * file there, for free(3), or NULL. -ENOMEM.
 */
int preload_value(const char *library, const char *now, char **ret_value, char **ret_unsafe);

#endif
