/*
 * Methods of Archive by which the package's datasets make batches in memory of their own.
 */
#ifndef ONEPOT_PYTHON_GATHER_H
#define ONEPOT_PYTHON_GATHER_H

#include "module.h"

/* _layout(indices, align=0): (bytes of data, bytes of all). */
PyObject *archive_layout(PyObject *self, PyObject *args);

/* _fill(indices, align, memory[, size]): into a buffer, or into `size` bytes at an address. */
PyObject *archive_fill(PyObject *self, PyObject *args);

#endif
