/*
 * Parts of an Archive: splits, folds, subsets. Each is an Archive that remembers how it came
 * about, so that another process can take the same steps.
 */
#include "archive.h"

#include <errno.h>

/* A view as an Archive, which remembers how it came about. Takes the view over. */
static PyObject *wrap_view(PyObject *parent, struct onepot_archive *view, const char *method,
                           PyObject *args)
{
    PyObject *open_args, *keywords, *steps;
    PyArg_ParseTuple(((struct py_archive *)parent)->arguments, "OOO", &open_args, &keywords,
                     &steps);
    PyObject *step = args ? Py_BuildValue("((sN))", method, args) : NULL;
    PyObject *more = step ? PySequence_Concat(steps, step) : NULL;
    PyObject *self = more ? archive_type.tp_alloc(&archive_type, 0) : NULL;
    Py_XDECREF(step);
    if (!self) {
        Py_XDECREF(more);
        onepot_archive_close(view);
        return NULL;
    }
    struct py_archive *a = (struct py_archive *)self;
    a->archive = view;
    a->arguments = Py_BuildValue("(OON)", open_args, keywords, more);
    return self;
}

PyObject *archive_split(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"low", "high", "seed", NULL};
    double low, high;
    unsigned long long seed = 0;
    struct onepot_archive *view;
    int r;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "dd|O&", names, &low, &high, take_count,
                                     &seed) ||
        !archive_of(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = onepot_archive_split(archive_of(self), low, high, seed, &view);
    Py_END_ALLOW_THREADS if (r == -EINVAL) return PyErr_Format(
        PyExc_ValueError, "fractions are 0 <= low <= high <= 1");
    if (r < 0)
        return raise_error(r, NULL);
    return wrap_view(self, view, "split", Py_BuildValue("(ddK)", low, high, seed));
}

PyObject *archive_fold(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"folds", "fold", "held_out", "seed", NULL};
    uint32_t folds, fold;
    int held_out = 0, r;
    unsigned long long seed = 0;
    struct onepot_archive *view;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&|pO&", names, take_small, &folds,
                                     take_small, &fold, &held_out, take_count, &seed) ||
        !archive_of(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r =
        onepot_archive_fold(archive_of(self), folds, fold, held_out, seed, &view);
    Py_END_ALLOW_THREADS if (r == -EINVAL) return PyErr_Format(
        PyExc_ValueError, "there are at least 2 folds, counted from 0");
    if (r < 0)
        return raise_error(r, NULL);
    return wrap_view(self, view, "fold", Py_BuildValue("(IIiK)", folds, fold, held_out, seed));
}

PyObject *archive_subset(PyObject *self, PyObject *indices)
{
    PyObject *list = archive_of(self) ? PySequence_Tuple(indices) : NULL;
    if (!list)
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(list);
    uint64_t *samples = PyMem_Calloc((size_t)n + 1, sizeof(*samples));
    struct onepot_archive *view;
    for (Py_ssize_t i = 0; samples && i < n && !PyErr_Occurred(); i++) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(list, i));
        samples[i] = number ? PyLong_AsUnsignedLongLong(number) : 0;
        Py_XDECREF(number);
    }
    int r = samples ? 0 : -ENOMEM;
    if (!PyErr_Occurred() && r == 0)
        r = onepot_archive_subset(archive_of(self), samples, (uint64_t)n, &view);
    PyMem_Free(samples);
    if (PyErr_Occurred() || r < 0) {
        Py_DECREF(list);
        return PyErr_Occurred() ? NULL : raise_error(r, NULL);
    }
    return wrap_view(self, view, "subset", Py_BuildValue("(N)", list));
}

PyObject *archive_slice(PyObject *self, PyObject *slice)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0)
        return NULL;
    PySlice_AdjustIndices(PyObject_Length(self), &start, &stop, step);
    PyObject *range =
        PyObject_CallFunction((PyObject *)&PyRange_Type, "nnn", start, stop, step);
    PyObject *part = range ? archive_subset(self, range) : NULL;
    Py_XDECREF(range);
    return part;
}
