/*
 * Reads the header of a .npy file (numpy's format, versions 1 to 3): a Python dict of three
 * entries. Anything else is refused, and so are arrays of objects.
 */
#ifndef ONEPOT_NPY_H
#define ONEPOT_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "onepot.h"

/* Bytes of a header at most, with what goes before it. */
#define NPY_HEADER_MAX (12u + 65536u)

/*
 * Read the header in the first `len` bytes of a file: type, shape and size in bytes of its
 * array, and where the data begins. -EAGAIN: the header is longer than `len`. -EUCLEAN: there
 * is no such header.
 */
int npy_parse(const void *bytes, size_t len, struct onepot_npy *ret_npy, size_t *ret_data);

/* Do both have the same type and shape? */
int npy_same(const struct onepot_npy *a, const struct onepot_npy *b);

#endif
