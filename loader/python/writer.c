/*
 * The part of Writer that is written in C: a writer of the library in a capsule, and functions
 * that take it, or None: one that is closed. One thread at a time may be in them, and another
 * is told so. onepot/_writer.py has the class.
 */
#include "module.h"

#include <errno.h>

struct py_writer {
    struct onepot_writer *writer; /* NULL: it has ended */
    bool is_busy;                 /* a thread is inside, without the interpreter's lock */
};

static struct py_writer *writer_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, "onepot.writer");
}

static void writer_free(PyObject *capsule)
{
    struct py_writer *w = writer_of(capsule);
    Py_BEGIN_ALLOW_THREADS
    onepot_writer_discard(w->writer);
    Py_END_ALLOW_THREADS
    PyMem_Free(w);
}

/*
 * Claim the writer for one call of this thread, until writer_leave(); or, with `ends`, for the
 * last one. It is done here because a signal's handler may raise an exception between any two
 * steps in Python. NULL: with an exception, or it has ended, which is none if it is to end.
 */
static struct onepot_writer *writer_enter(PyObject *capsule, bool ends)
{
    struct py_writer *w = capsule == Py_None ? NULL : writer_of(capsule);
    struct onepot_writer *writer = NULL;
    bool is_busy = false;
    if (w) {
        Py_BEGIN_CRITICAL_SECTION(capsule);
        is_busy = w->is_busy;
        writer = is_busy ? NULL : w->writer;
        if (writer && ends)
            w->writer = NULL;
        else if (writer)
            w->is_busy = true;
        Py_END_CRITICAL_SECTION();
    }
    if (is_busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread is writing");
    else if (!writer && !ends && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the archive is closed");
    return writer;
}

static void writer_leave(PyObject *capsule)
{
    Py_BEGIN_CRITICAL_SECTION(capsule);
    writer_of(capsule)->is_busy = false;
    Py_END_CRITICAL_SECTION();
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
    PyObject *options;
    const char *path;
    int r;
    if (!PyArg_ParseTuple(args, "yO!", &path, &PyDict_Type, &options) ||
        fields_take(fields, options, &o) < 0)
        return NULL;
    struct py_writer *w = PyMem_Calloc(1, sizeof(*w));
    PyObject *capsule = w ? PyCapsule_New(w, "onepot.writer", NULL) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(w);
        return NULL;
    }
    PyCapsule_SetDestructor(capsule, writer_free);
    Py_BEGIN_ALLOW_THREADS
    r = onepot_writer_new(path, &o, &error, &w->writer);
    Py_END_ALLOW_THREADS
    if (r == 0)
        return capsule;
    Py_DECREF(capsule);
    return raise_error(r, &error);
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
    struct onepot_writer *writer;
    PyObject *capsule;
    const char *name;
    Py_buffer data;
    double mtime;
    int r = -EINVAL;
    if (!PyArg_ParseTuple(args, "Oyy*O&d", &capsule, &name, &data, take_small, &file.mode,
                          &mtime))
        return NULL;
    if (!(mtime > -9e18 && mtime < 9e18)) {
        PyErr_SetString(PyExc_ValueError, "there is no such time");
    } else if ((writer = writer_enter(capsule, false))) {
        set_time(&file, mtime);
        Py_BEGIN_ALLOW_THREADS
        r = onepot_writer_add(writer, name, data.buf, (size_t)data.len, &file, &error);
        Py_END_ALLOW_THREADS
        writer_leave(capsule);
        if (r < 0)
            raise_error(r, &error);
    }
    PyBuffer_Release(&data);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

/* The two ends: a second one does nothing. */

static PyObject *writer_discard(PyObject *self, PyObject *capsule)
{
    struct onepot_writer *writer = writer_enter(capsule, true);
    Py_BEGIN_ALLOW_THREADS
    onepot_writer_discard(writer);
    Py_END_ALLOW_THREADS
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *writer_finish(PyObject *self, PyObject *capsule)
{
    struct onepot_writer *writer = writer_enter(capsule, true);
    struct onepot_error error = {0};
    int r = 0;
    if (writer) {
        Py_BEGIN_ALLOW_THREADS
        r = onepot_writer_finish(writer, &error);
        Py_END_ALLOW_THREADS
    }
    if (r < 0)
        raise_error(r, &error);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyMethodDef writer_functions[] = {
    {"writer_open", writer_open, METH_VARARGS,
     "(path, options): the handle of a new writer; its end discards the archive."},
    {"writer_add", writer_add, METH_VARARGS, "(handle, name, data, mode, mtime)"},
    {"writer_finish", writer_finish, METH_O, "(handle)"},
    {"writer_discard", writer_discard, METH_O, "(handle)"},
    {0}};
