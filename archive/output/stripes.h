/*
 * The stripes of a file on Lustre: on how many storage targets its bytes lie. A file on one
 * target is read no faster than that target, however many nodes read it. Lustre's own program,
 * lfs, reads and sets them. It is run without a shell, in the file's folder, within ten
 * seconds.
 *
 *     stripes_of(path, &count)                of a file
 *     stripes_make(folder, name, 8, said)     a new, empty file
 */
#ifndef ONEPOT_STRIPES_H
#define ONEPOT_STRIPES_H

#include <stdbool.h>
#include <stdint.h>

#define STRIPES_MAX 2000u    /* of a file, says Lustre */
#define STRIPES_ADVISED 8u   /* enough for a node's network on most systems */
#define STRIPES_SAID_MAX 256 /* the first line that lfs wrote */

/* Is a file of so many bytes worth more stripes: on one, and larger than 1 GiB? */
bool stripes_are_few(unsigned count, uint64_t bytes);

/*
 * The stripes of an existing file; where the layout grows with it, the ones that have its
 * bytes. -ENOTSUP: it is not on Lustre, or there is no lfs; -EIO: lfs failed; -ETIMEDOUT.
 * Follows symbolic links.
 */
int stripes_of(const char *path, unsigned *ret_count);

/*
 * The same of a file of that name that is about to be made: its folder's layout. 0: the
 * filesystem's default, which is one; UINT_MAX: all targets.
 */
int stripes_of_new(const char *path, unsigned *ret_count);

/*
 * Create an empty file with so many stripes. Errors as of stripes_of, and `said` tells why.
 */
int stripes_make(int folder_fd, const char *name, unsigned count, char said[STRIPES_SAID_MAX]);

#endif
