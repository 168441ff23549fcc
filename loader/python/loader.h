/*
 * Loader, which several files make: loader_options.c what it is told, loader.c its life and its
 * iterators, loader_state.c where it is and what it has done.
 */
#ifndef ONEPOT_PYTHON_LOADER_H
#define ONEPOT_PYTHON_LOADER_H

#include "module.h"

struct py_loader {
    PyObject_HEAD struct onepot_loader *loader;
    PyObject *archive;
    struct batch_kind kind; /* of all its batches */
    uint64_t batch_size;
    PyObject *decode; /* kept, for its context */
    /* A state was loaded: the next iteration goes on, and begins no epoch. */
    _Atomic int resumes;
};

/* What it is about; NULL with an exception: it was not initialised. */
struct onepot_loader *loader_of(PyObject *self);

/* __init__; and its second half, when the options are known. -1 with an exception. */
int loader_init(PyObject *self, PyObject *args, PyObject *keywords);
int loader_open(struct py_loader *self, PyObject *archive, const char *device_name,
                PyObject *decode, struct onepot_loader_options *options);

/* Methods and fields: see their documentation in loader.c. */
PyObject *loader_state_dict(PyObject *self, PyObject *unused);
PyObject *loader_load_state_dict(PyObject *self, PyObject *state);
PyObject *loader_transfer(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *loader_stats(PyObject *self, void *unused);
PyObject *loader_delivered(PyObject *self, void *unused);

#endif
