/*
 * The header of a .npy file (numpy's format, versions 1 to 3): a dict of three entries in
 * the syntax of Python, which numpy writes in one way only. What is no such header is
 * refused; arrays of objects too.
 */
#ifndef ONEPOT_NPY_H
#define ONEPOT_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "onepot.h"

/*
 * From the first `len` bytes of a file: the array that it holds (its size in bytes included),
 * and where the data begins. -EAGAIN: the header is longer than `len`; -EUCLEAN: it is none.
 */
int npy_parse(const void *bytes, size_t len, struct onepot_npy *ret_npy, size_t *ret_data);

/* Do they hold the same type and shape? */
int npy_same(const struct onepot_npy *a, const struct onepot_npy *b);

#endif
