/*
 * The order of DistributedSampler: a sampler of the library in a capsule, and functions that
 * take it. onepot/_sampler.py makes a drop-in for torch's class of it.
 */
#include "module.h"

#include <errno.h>

#include "sampler.h"

#define PACE (UINT64_C(1) << 20) /* elements that are read between looks at signals */

/* With a critical section of the capsule: another thread may go to another epoch. */
static struct onepot_sampler *sampler_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, "onepot.sampler");
}

/* The context are the sampler's options. */
static void sampler_free(PyObject *capsule)
{
    onepot_sampler_free(sampler_of(capsule));
    PyMem_Free(PyCapsule_GetContext(capsule));
}

static PyObject *sampler_open(PyObject *self, PyObject *args)
{
    static const struct field fields[] = {
        {"rank", FIELD_COUNT, offsetof(struct onepot_sampler_options, rank)},
        {"world_size", FIELD_COUNT, offsetof(struct onepot_sampler_options, world_size)},
        {"shuffle", FIELD_NOT, offsetof(struct onepot_sampler_options, no_shuffle)},
        {"seed", FIELD_SEED, offsetof(struct onepot_sampler_options, seed)},
        {"drop_last", FIELD_FLAG, offsetof(struct onepot_sampler_options, drop_last)},
        {"block", FIELD_COUNT, offsetof(struct onepot_sampler_options, block)},
        {"window", FIELD_COUNT, offsetof(struct onepot_sampler_options, window)},
        {"worker", FIELD_COUNT, offsetof(struct onepot_sampler_options, worker)},
        {"workers", FIELD_COUNT, offsetof(struct onepot_sampler_options, workers)},
        {0}};
    PyObject *options;
    struct onepot_sampler_options *o = PyMem_Calloc(1, sizeof(*o));
    struct onepot_error error = {0};
    struct onepot_sampler *sampler = NULL;
    Py_ssize_t samples;
    int r = -EINVAL;
    if (!o)
        return PyErr_NoMemory();
    if (PyArg_ParseTuple(args, "nO!", &samples, &PyDict_Type, &options) &&
        fields_take(fields, options, o) == 0 && samples < 0)
        PyErr_SetString(PyExc_ValueError, "a negative number of samples");
    if (!PyErr_Occurred()) {
        o->samples = (uint64_t)samples;
        Py_BEGIN_ALLOW_THREADS
        r = sampler_new(o, NULL, &stop_at_signals, &error, &sampler);
        Py_END_ALLOW_THREADS
        if (r < 0)
            raise_error(r, &error);
    }
    PyObject *capsule = r == 0 ? PyCapsule_New(sampler, "onepot.sampler", sampler_free) : NULL;
    if (!capsule) {
        onepot_sampler_free(sampler);
        PyMem_Free(o);
    } else {
        PyCapsule_SetContext(capsule, o);
    }
    return capsule;
}

static PyObject *sampler_numbers(PyObject *self, PyObject *capsule)
{
    const struct onepot_sampler *sampler;
    unsigned long long length = 0, rank = 0, world = 0, epoch = 0;
    Py_BEGIN_CRITICAL_SECTION(capsule);
    sampler = sampler_of(capsule);
    if (sampler) {
        length = onepot_sampler_length(sampler);
        rank = onepot_sampler_rank(sampler);
        world = onepot_sampler_world_size(sampler);
        epoch = onepot_sampler_epoch(sampler);
    }
    Py_END_CRITICAL_SECTION();
    return sampler ? Py_BuildValue("(KKKK)", length, rank, world, epoch) : NULL;
}

static PyObject *sampler_set_epoch(PyObject *self, PyObject *args)
{
    struct onepot_error error = {0};
    struct onepot_sampler_options options;
    struct onepot_sampler *sampler;
    PyObject *capsule;
    uint64_t epoch;
    bool is_same = false;
    int r = 0;
    if (!PyArg_ParseTuple(args, "OO&", &capsule, take_count, &epoch))
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(capsule);
    sampler = sampler_of(capsule);
    if (sampler)
        is_same = onepot_sampler_epoch(sampler) == epoch;
    Py_END_CRITICAL_SECTION();
    if (!sampler)
        return NULL;
    if (is_same)
        Py_RETURN_NONE;
    options = *(const struct onepot_sampler_options *)PyCapsule_GetContext(capsule);
    options.epoch = epoch;
    Py_BEGIN_ALLOW_THREADS
    r = sampler_new(&options, NULL, &stop_at_signals, &error, &sampler);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, &error);
    /* Under the lock, because an iterator may be reading the order that goes away. */
    Py_BEGIN_CRITICAL_SECTION(capsule);
    onepot_sampler_free(sampler_of(capsule));
    PyCapsule_SetPointer(capsule, sampler);
    Py_END_CRITICAL_SECTION();
    Py_RETURN_NONE;
}

/* A method of a capsule: its element with this number. */
static PyObject *sampler_get(PyObject *capsule, PyObject *number)
{
    const struct onepot_sampler *sampler;
    uint64_t at = PyLong_AsUnsignedLongLong(number), index = 0;
    int r = 0;
    if ((at == UINT64_MAX && PyErr_Occurred()) ||
        (at % PACE == PACE - 1 && PyErr_CheckSignals() < 0))
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(capsule);
    sampler = sampler_of(capsule);
    if (sampler)
        r = onepot_sampler_get(sampler, at, 1, &index, NULL);
    Py_END_CRITICAL_SECTION();
    if (!sampler)
        return NULL;
    return r < 0 ? raise_error(r, NULL) : PyLong_FromUnsignedLongLong(index);
}

static PyObject *sampler_getter(PyObject *self, PyObject *capsule)
{
    static PyMethodDef get = {"sampler_get", sampler_get, METH_O, NULL};
    bool is_one;
    Py_BEGIN_CRITICAL_SECTION(capsule);
    is_one = sampler_of(capsule) != NULL;
    Py_END_CRITICAL_SECTION();
    return is_one ? PyCFunction_New(&get, capsule) : NULL;
}

PyMethodDef sampler_functions[] = {
    {"sampler_open", sampler_open, METH_VARARGS,
     "(samples, options): the handle of a new sampler."},
    {"sampler_numbers", sampler_numbers, METH_O, "(handle): length, rank, world size, epoch."},
    {"sampler_set_epoch", sampler_set_epoch, METH_VARARGS, "(handle, epoch)"},
    {"sampler_getter", sampler_getter, METH_O,
     "(handle): a function from a number to the element at that place, also after set_epoch."},
    {0}};
