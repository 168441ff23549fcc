/*
 * The part of Writer that is written in C; onepot/_writer.py has the rest.
 */
#include "module.h"

#include <errno.h>

struct py_writer {
    PyObject_HEAD struct onepot_writer *writer; /* NULL: finished, or never opened */
    int busy; /* a thread is inside, without the interpreter's lock */
    int opened;
};

/* Writer(path, options): path is bytes, options a dict. */
static int writer_init(PyObject *self, PyObject *args, PyObject *unused)
{
    static const struct field fields[] = {
        {"zstd", FIELD_SMALL, offsetof(struct onepot_writer_options, zstd)},
        {"block", FIELD_SMALL, offsetof(struct onepot_writer_options, block)},
        {"align", FIELD_SMALL, offsetof(struct onepot_writer_options, align)},
        {"threads", FIELD_SMALL, offsetof(struct onepot_writer_options, threads)},
        {"overwrite", FIELD_FLAG, offsetof(struct onepot_writer_options, overwrite)},
        {"sync", FIELD_NOT, offsetof(struct onepot_writer_options, no_sync)},
        {0}};
    struct py_writer *w = (struct py_writer *)self;
    struct onepot_writer_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_writer *writer;
    PyObject *options;
    const char *path;
    int r;
    (void)unused;
    if (!PyArg_ParseTuple(args, "yO!", &path, &PyDict_Type, &options) ||
        fields_take(fields, options, &o) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_writer_new(path, &o, &error, &writer);
    Py_END_ALLOW_THREADS
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
    object_free(self);
}

/* Claim the writer for one call of this thread; writer_leave() gives it back. */
static struct onepot_writer *writer_enter(struct py_writer *w)
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

/* `ended`: the writer is gone. */
static void writer_leave(struct py_writer *w, int ended)
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
    if (!PyErr_Occurred() && (writer = writer_enter(w))) {
        Py_BEGIN_ALLOW_THREADS
        r = onepot_writer_add(writer, PyBytes_AsString(name), data.buf, (size_t)data.len, &file,
                              &error);
        Py_END_ALLOW_THREADS
        writer_leave(w, 0);
        if (r < 0)
            raise_error(r, &error);
    }
    PyBuffer_Release(&data);
    Py_DECREF(name);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* close() and discard() both end the writer. */
static PyObject *writer_end(PyObject *self, int keep)
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
    struct onepot_writer *writer = writer_enter(w);
    if (!writer)
        return NULL;
    writer_leave(w, 1);
    Py_BEGIN_ALLOW_THREADS
    if (keep)
        r = onepot_writer_finish(writer, &error);
    else
        onepot_writer_discard(writer);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, &error);
    Py_RETURN_NONE;
}

static PyObject *writer_close(PyObject *self, PyObject *unused)
{
    (void)unused;
    return writer_end(self, 1);
}

static PyObject *writer_discard(PyObject *self, PyObject *unused)
{
    (void)unused;
    return writer_end(self, 0);
}

static PyMethodDef writer_methods[] = {
    {"add", (PyCFunction)(void *)writer_add, METH_VARARGS | METH_KEYWORDS,
     "add(name, data, *, mode=0o644, mtime=0): add bytes, or any buffer, as a file. name: its\n"
     "path in the archive. mode: permissions. mtime: seconds since 1970. ValueError: no file "
     "can\n"
     "have this name or time. FileExistsError: the name is taken. OSError: it can't be "
     "written."},
    {"close", writer_close, METH_NOARGS,
     "Write the index and give the archive its name. A second call does nothing."},
    {"discard", writer_discard, METH_NOARGS, "Give up the archive; nothing is left of it."},
    {0}};

static PyType_Slot writer_slots[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)writer_init},
    {Py_tp_dealloc, (void *)writer_dealloc},
    {Py_tp_methods, writer_methods},
    {Py_tp_doc, (void *)"The part of onepot.Writer in C; see there."},
    {0, NULL},
};

PyType_Spec writer_spec = {
    .name = "onepot._core.Writer",
    .basicsize = sizeof(struct py_writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = writer_slots,
};
