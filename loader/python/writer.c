/*
 * Writer: a context manager. What is left by an exception leaves no archive.
 */
#include "module.h"

#include <errno.h>

struct py_writer {
    PyObject_HEAD struct onepot_writer *writer; /* NULL: finished, or never opened */
    int busy;                                   /* a thread is inside, without the lock */
    int opened;
};

static int writer_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"path",    "zstd",      "block", "align",
                            "threads", "overwrite", "sync",  NULL};
    struct py_writer *w = (struct py_writer *)self;
    struct onepot_writer_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_writer *writer;
    PyObject *path;
    int overwrite = 0, sync = 1, r;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&|$O&O&O&O&pp", names,
                                     PyUnicode_FSConverter, &path, take_small, &o.zstd,
                                     take_small, &o.block, take_small, &o.align, take_small,
                                     &o.threads, &overwrite, &sync))
        return -1;
    o.overwrite = overwrite;
    o.no_sync = !sync;
    Py_BEGIN_ALLOW_THREADS r = onepot_writer_new(PyBytes_AS_STRING(path), &o, &error, &writer);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    if (r < 0) {
        raise_error(r, &error);
        return -1;
    }
    int is_first;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_first = !w->opened;
    if (is_first) {
        w->opened = 1;
        w->writer = writer;
    }
    Py_END_CRITICAL_SECTION();
    if (is_first)
        return 0;
    onepot_writer_discard(writer);
    PyErr_SetString(PyExc_ValueError, "the writer was opened already");
    return -1;
}

static void writer_dealloc(PyObject *self)
{
    struct py_writer *w = (struct py_writer *)self;
    onepot_writer_discard(w->writer);
    Py_TYPE(self)->tp_free(self);
}

/* The writer for one call of this thread, which ends with leave(). */
static struct onepot_writer *enter(struct py_writer *w)
{
    struct onepot_writer *writer;
    int busy;
    Py_BEGIN_CRITICAL_SECTION(w);
    writer = w->writer;
    busy = w->busy;
    if (writer)
        w->busy = 1;
    Py_END_CRITICAL_SECTION();
    if (!writer)
        PyErr_SetString(PyExc_ValueError, "the archive is closed");
    else if (busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread is writing");
    return busy ? NULL : writer;
}

/* `ended`: it is no more. */
static void leave(struct py_writer *w, int ended)
{
    Py_BEGIN_CRITICAL_SECTION(w);
    w->busy = 0;
    if (ended)
        w->writer = NULL;
    Py_END_CRITICAL_SECTION();
}

static void set_time(struct onepot_file *file, double mtime)
{
    double whole = mtime >= 0 ? (double)(int64_t)mtime : (double)(int64_t)mtime - 1;
    file->mtime_sec = (int64_t)whole;
    file->mtime_nsec = (uint32_t)((mtime - whole) * 1e9);
    if (file->mtime_nsec > 999999999u)
        file->mtime_nsec = 999999999u;
}

static PyObject *writer_add(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "data", "mode", "mtime", NULL};
    struct py_writer *w = (struct py_writer *)self;
    struct onepot_file file = {.size = sizeof(file)};
    struct onepot_error error = {0};
    struct onepot_writer *writer;
    PyObject *name;
    Py_buffer data;
    double mtime = 0;
    int r = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&y*|$O&d", names, PyUnicode_FSConverter,
                                     &name, &data, take_small, &file.mode, &mtime))
        return NULL;
    if (!(mtime > -9e18 && mtime < 9e18))
        PyErr_SetString(PyExc_ValueError, "there is no such time");
    else
        set_time(&file, mtime);
    if (!PyErr_Occurred() && (writer = enter(w))) {
        Py_BEGIN_ALLOW_THREADS r = onepot_writer_add(writer, PyBytes_AS_STRING(name), data.buf,
                                                     (size_t)data.len, &file, &error);
        Py_END_ALLOW_THREADS leave(w, 0);
        if (r < 0)
            raise_error(r, &error);
    }
    PyBuffer_Release(&data);
    Py_DECREF(name);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Both end the writer. */
static PyObject *end_writer(PyObject *self, int keep)
{
    struct py_writer *w = (struct py_writer *)self;
    struct onepot_error error = {0};
    int r = 0;
    int closed;
    Py_BEGIN_CRITICAL_SECTION(self);
    closed = !w->writer;
    Py_END_CRITICAL_SECTION();
    if (closed)
        Py_RETURN_NONE;
    struct onepot_writer *writer = enter(w);
    if (!writer)
        return NULL;
    leave(w, 1);
    Py_BEGIN_ALLOW_THREADS if (keep) r = onepot_writer_finish(writer, &error);
    else onepot_writer_discard(writer);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, &error);
    Py_RETURN_NONE;
}

static PyObject *writer_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    return end_writer(self, 1);
}

static PyObject *writer_discard(PyObject *self, PyObject *unused)
{
    (void)unused;
    return end_writer(self, 0);
}

static PyObject *writer_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *writer_exit(PyObject *self, PyObject *args)
{
    PyObject *type;
    if (!PyArg_ParseTuple(args, "OOO", &type, &(PyObject *){NULL}, &(PyObject *){NULL}))
        return NULL;
    return end_writer(self, type == Py_None);
}

static PyMethodDef writer_methods[] = {
    {"add", (PyCFunction)(void *)writer_add, METH_VARARGS | METH_KEYWORDS,
     "add(name, data, *, mode=0o644, mtime=0): bytes (or any buffer) as a file. name: its "
     "path\n"
     "in the archive. mtime: seconds since 1970. ValueError: no name for a file; OSError."},
    {"close", writer_close, METH_NOARGS,
     "Write the index and give the archive its name. Again: does nothing."},
    {"discard", writer_discard, METH_NOARGS, "Give up: nothing is left of the archive."},
    {"__enter__", writer_enter, METH_NOARGS, NULL},
    {"__exit__", writer_exit, METH_VARARGS, "close(), or discard() after an exception."},
    {0}};

PyTypeObject writer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Writer",
    .tp_basicsize = sizeof(struct py_writer),
    .tp_new = PyType_GenericNew,
    .tp_init = writer_init,
    .tp_dealloc = writer_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_methods = writer_methods,
    .tp_doc =
        "Writer(path, *, zstd=0, block=0, align=0, threads=0, overwrite=False, sync=True)\n"
        "\n"
        "A new archive of files that are in memory:\n"
        "\n"
        "    with onepot.Writer('train.tar') as writer:\n"
        "        writer.add('cat/0001.jpg', data)\n"
        "\n"
        "It gets its name at the end of the block; after an exception nothing is left of it.\n"
        "zstd: level, 1 to 22; block: bytes of a compressed block (0: 1 MiB); align: data\n"
        "begins at multiples of so many bytes; threads: that compress; sync: wait until it is\n"
        "on the disk. FileExistsError without overwrite. One thread at a time.",
};
