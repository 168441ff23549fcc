/*
 * The part of Writer that is written in C: a writer of the library in a capsule, and functions
 * that take it, one thread at a time. onepot/_writer.py has the class.
 */
#include "module.h"

#include <errno.h>

static struct onepot_writer *writer_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, NULL);
}

static void writer_free(PyObject *capsule)
{
    struct onepot_writer *writer = writer_of(capsule);
    Py_BEGIN_ALLOW_THREADS
    onepot_writer_discard(writer);
    Py_END_ALLOW_THREADS
}

static PyObject *writer_open(PyObject *self, PyObject *args)
{
    static const struct field fields[] = {
        {"zstd", FIELD_SMALL, offsetof(struct onepot_writer_options, zstd)},
        {"block", FIELD_SMALL, offsetof(struct onepot_writer_options, block)},
        {"align", FIELD_SMALL, offsetof(struct onepot_writer_options, align)},
        {"threads", FIELD_SMALL, offsetof(struct onepot_writer_options, threads)},
        {"overwrite", FIELD_FLAG, offsetof(struct onepot_writer_options, overwrite)},
        {"sync", FIELD_NOT, offsetof(struct onepot_writer_options, no_sync)},
        {0}};
    struct onepot_writer_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_writer *writer;
    PyObject *options;
    const char *path;
    int r;
    if (!PyArg_ParseTuple(args, "yO!", &path, &PyDict_Type, &options) ||
        fields_take(fields, options, &o) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_writer_new(path, &o, &error, &writer);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : PyCapsule_New(writer, NULL, writer_free);
}

static void set_time(struct onepot_file *file, double mtime)
{
    double whole = mtime >= 0 ? (double)(int64_t)mtime : (double)(int64_t)mtime - 1;
    file->mtime_sec = (int64_t)whole;
    file->mtime_nsec = (uint32_t)((mtime - whole) * 1e9);
    if (file->mtime_nsec > 999999999u)
        file->mtime_nsec = 999999999u;
}

static PyObject *writer_add(PyObject *self, PyObject *args)
{
    struct onepot_file file = {.size = sizeof(file)};
    struct onepot_error error = {0};
    PyObject *capsule;
    const char *name;
    Py_buffer data;
    double mtime;
    int r = -EINVAL;
    if (!PyArg_ParseTuple(args, "Oyy*O&d", &capsule, &name, &data, take_small, &file.mode,
                          &mtime))
        return NULL;
    struct onepot_writer *writer = writer_of(capsule);
    if (!(mtime > -9e18 && mtime < 9e18)) {
        PyErr_SetString(PyExc_ValueError, "there is no such time");
    } else if (writer) {
        set_time(&file, mtime);
        Py_BEGIN_ALLOW_THREADS
        r = onepot_writer_add(writer, name, data.buf, (size_t)data.len, &file, &error);
        Py_END_ALLOW_THREADS
        if (r < 0)
            raise_error(r, &error);
    }
    PyBuffer_Release(&data);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

/* The two ends: afterwards the capsule is of no use. */

static PyObject *writer_discard(PyObject *self, PyObject *capsule)
{
    if (PyCapsule_SetDestructor(capsule, NULL) < 0)
        return NULL;
    writer_free(capsule);
    Py_RETURN_NONE;
}

static PyObject *writer_finish(PyObject *self, PyObject *capsule)
{
    struct onepot_writer *writer = writer_of(capsule);
    struct onepot_error error = {0};
    int r;
    if (!writer || PyCapsule_SetDestructor(capsule, NULL) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_writer_finish(writer, &error);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : Py_NewRef(Py_None);
}

PyMethodDef writer_functions[] = {
    {"writer_open", writer_open, METH_VARARGS,
     "(path, options): the handle of a new writer; its end discards the archive."},
    {"writer_add", writer_add, METH_VARARGS, "(handle, name, data, mode, mtime)"},
    {"writer_finish", writer_finish, METH_O, "(handle)"},
    {"writer_discard", writer_discard, METH_O, "(handle)"},
    {0}};
