/*
 * Archive, which several files make: archive.c opens, pickles and has the type, archive_parts.c
 * makes others of it, archive_fields.c has what it says of all its samples.
 */
#ifndef ONEPOT_PYTHON_ARCHIVE_H
#define ONEPOT_PYTHON_ARCHIVE_H

#include "gather.h"

/* Methods: see their documentation in archive.c. */
PyObject *archive_split(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *archive_fold(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *archive_subset(PyObject *self, PyObject *indices);

/* archive[10:20], a part of it. */
PyObject *archive_slice(PyObject *self, PyObject *slice);

extern PyGetSetDef archive_fields[];

/* Its digest, as a str of hexadecimal digits. */
PyObject *digest_text(const struct onepot_archive *archive);

#endif
