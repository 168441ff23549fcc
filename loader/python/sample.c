/*
 * Sample, and Names: what an Archive hands out. Both refer to it, and look up what they are
 * asked for.
 */
#include "gather.h"

#include <errno.h>
#include <string.h>

#define NAME_ROOM 65536

struct py_sample {
    PyObject_HEAD PyObject *archive;
    uint64_t index;
};

static PyObject *name_of(const struct onepot_archive *archive, uint64_t index)
{
    char *buf = PyMem_Malloc(NAME_ROOM);
    size_t len;
    if (!buf)
        return PyErr_NoMemory();
    int r = onepot_archive_name(archive, index, buf, NAME_ROOM, &len);
    PyObject *name =
        r < 0 ? raise_error(r, NULL) : PyUnicode_DecodeFSDefaultAndSize(buf, (Py_ssize_t)len);
    PyMem_Free(buf);
    return name;
}

/* ---- all names ---- */

/* A sequence that is never made. */
struct py_names {
    PyObject_HEAD PyObject *archive;
};

PyObject *names_new(PyObject *archive)
{
    struct py_names *names = PyObject_New(struct py_names, &names_type);
    if (names)
        names->archive = Py_NewRef(archive);
    return (PyObject *)names;
}

static void names_dealloc(PyObject *self)
{
    Py_DECREF(((struct py_names *)self)->archive);
    PyObject_Free(self);
}

static Py_ssize_t names_length(PyObject *self)
{
    return PyObject_Size(((struct py_names *)self)->archive);
}

static PyObject *names_item(PyObject *self, Py_ssize_t i)
{
    struct onepot_archive *archive = archive_of(((struct py_names *)self)->archive);
    if (!archive)
        return NULL;
    if (i < 0 || (uint64_t)i >= onepot_archive_samples(archive)) {
        PyErr_SetString(PyExc_IndexError, "there is no such sample");
        return NULL;
    }
    return name_of(archive, (uint64_t)i);
}

static PyObject *names_slice(PyObject *self, PyObject *slice)
{
    Py_ssize_t start, stop, step, length = names_length(self);
    if (length < 0 || PySlice_Unpack(slice, &start, &stop, &step) < 0)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(length, &start, &stop, step);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++, start += step) {
        PyObject *name = names_item(self, start);
        if (name)
            PyList_SET_ITEM(list, i, name);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *names_subscript(PyObject *self, PyObject *key)
{
    if (PySlice_Check(key))
        return names_slice(self, key);
    Py_ssize_t length = names_length(self), i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (length < 0 || (i == -1 && PyErr_Occurred()))
        return NULL;
    return names_item(self, i < 0 ? i + length : i);
}

static PyObject *names_index(PyObject *self, PyObject *name)
{
    Py_ssize_t i = PySequence_Index(self, name);
    return i < 0 ? NULL : PyLong_FromSsize_t(i);
}

static PyObject *names_count(PyObject *self, PyObject *name)
{
    Py_ssize_t n = PySequence_Count(self, name);
    return n < 0 ? NULL : PyLong_FromSsize_t(n);
}

/* By its archive. */
static PyObject *names_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *builtins = PyImport_ImportModule("builtins");
    PyObject *take = builtins ? PyObject_GetAttrString(builtins, "getattr") : NULL;
    Py_XDECREF(builtins);
    return take ? Py_BuildValue("(N(Os))", take, ((struct py_names *)self)->archive, "names")
                : NULL;
}

static PyObject *names_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<onepot.Names of %R>", ((struct py_names *)self)->archive);
}

static PyMethodDef names_methods[] = {
    {"index", names_index, METH_O, "index(name): of the first sample so called; ValueError."},
    {"count", names_count, METH_O, "count(name): how many samples are called so."},
    {"__reduce__", names_reduce, METH_NOARGS, "Pickled by its archive."},
    {0}};

static PySequenceMethods names_sequence = {.sq_length = names_length, .sq_item = names_item};

static PyMappingMethods names_mapping = {.mp_length = names_length,
                                         .mp_subscript = names_subscript};

PyTypeObject names_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Names",
    .tp_basicsize = sizeof(struct py_names),
    .tp_dealloc = names_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_repr = names_repr,
    .tp_as_sequence = &names_sequence,
    .tp_as_mapping = &names_mapping,
    .tp_methods = names_methods,
    .tp_doc = "Names of an archive's samples, looked up when they are asked for.",
};

/* ---- one sample ---- */

PyObject *sample_new(PyObject *archive, uint64_t index)
{
    struct py_sample *sample = PyObject_New(struct py_sample, &sample_type);
    if (!sample)
        return NULL;
    sample->archive = Py_NewRef(archive);
    sample->index = index;
    return (PyObject *)sample;
}

static struct onepot_archive *owner(PyObject *self)
{
    return ((struct py_archive *)((struct py_sample *)self)->archive)->archive;
}

static void sample_dealloc(PyObject *self)
{
    Py_DECREF(((struct py_sample *)self)->archive);
    PyObject_Free(self);
}

static PyObject *sample_name(PyObject *self, void *unused)
{
    (void)unused;
    return name_of(owner(self), ((struct py_sample *)self)->index);
}

static PyObject *sample_label(PyObject *self, void *unused)
{
    int64_t label = -1;
    (void)unused;
    onepot_archive_label(owner(self), ((struct py_sample *)self)->index, &label);
    return PyLong_FromLongLong(label);
}

static PyObject *sample_index(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct py_sample *)self)->index);
}

static Py_ssize_t sample_length(PyObject *self)
{
    uint64_t bytes = 0;
    onepot_archive_size(owner(self), ((struct py_sample *)self)->index, &bytes);
    return (Py_ssize_t)bytes;
}

static PyObject *sample_size(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(sample_length(self));
}

/*
 * `size` bytes from `offset` on, which exist. Those that are copied from the mapped archive,
 * for half the cost of a system call that reads a small sample, count if it is whole behind
 * that, too.
 */
static int read_range(PyObject *self, uint64_t offset, char *to, Py_ssize_t size)
{
    uint64_t len, index = ((struct py_sample *)self)->index;
    struct onepot_error error = {0};
    const void *bytes;
    size_t got;
    int r;
    Py_BEGIN_ALLOW_THREADS r = onepot_archive_bytes(owner(self), index, &bytes, &len);
    if (r == 0) {
        memcpy(to, (const char *)bytes + offset, (size_t)size);
        r = onepot_archive_bytes(owner(self), index, &bytes, &len);
    }
    if (r < 0)
        r = onepot_archive_read(owner(self), index, offset, to, (size_t)size, &error, &got);
    Py_END_ALLOW_THREADS if (r < 0) raise_error(r, &error);
    return r;
}

/* The same in memory of its own. */
static struct py_buffer *read_buffer(PyObject *self, uint64_t offset, Py_ssize_t size)
{
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, size);
    struct py_buffer *b = NULL;
    if (memory && read_range(self, offset, PyByteArray_AS_STRING(memory), size) == 0)
        b = buffer_new(memory, PyByteArray_AS_STRING(memory), size, 0, "B", 1);
    Py_XDECREF(memory);
    return b;
}

/* All of it, if it is nearly all holes. */
static int is_refused(PyObject *self)
{
    struct onepot_error error = {0};
    int r = onepot_archive_check(owner(self), ((struct py_sample *)self)->index, &error);
    if (r < 0)
        raise_error(r, &error);
    return r < 0;
}

static PyObject *sample_read(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"offset", "size", NULL};
    Py_ssize_t all = sample_length(self), offset = 0, size = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|nn", names, &offset, &size))
        return NULL;
    if (offset < 0 || size < 0) {
        PyErr_SetString(PyExc_ValueError, "offset and size are not negative");
        return NULL;
    }
    if (size == PY_SSIZE_T_MAX && is_refused(self))
        return NULL;
    offset = offset < all ? offset : all;
    return (PyObject *)read_buffer(self, (uint64_t)offset,
                                   size < all - offset ? size : all - offset);
}

static PyObject *sample_data(PyObject *self, void *unused)
{
    struct py_sample *s = (struct py_sample *)self;
    const void *bytes;
    uint64_t len;
    int r;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS r = onepot_archive_bytes(owner(self), s->index, &bytes, &len);
    Py_END_ALLOW_THREADS if (r == 0) return (PyObject *)buffer_new(
        s->archive, (void *)(uintptr_t)bytes, (Py_ssize_t)len, 1, "B", 1);
    if (is_refused(self))
        return NULL;
    struct py_buffer *b = read_buffer(self, 0, sample_length(self));
    if (b)
        b->read_only = 1; /* as where it is the archive: code that writes fails everywhere */
    return (PyObject *)b;
}

static PyObject *sample_parts(PyObject *self, void *unused)
{
    uint64_t count, index = ((struct py_sample *)self)->index;
    PyObject *data = sample_data(self, unused);
    PyObject *parts = data ? PyDict_New() : NULL;
    if (parts && onepot_archive_parts(owner(self), index, &count) < 0)
        count = 0;
    for (uint64_t i = 0; parts && i < count; i++) {
        struct onepot_part part = {.size = sizeof(part)};
        struct py_buffer *whole = (struct py_buffer *)data;
        int r = onepot_archive_part(owner(self), index, i, &part);
        if (r < 0) {
            raise_error(r, NULL);
            Py_CLEAR(parts);
            break;
        }
        PyObject *name = PyUnicode_DecodeFSDefaultAndSize(part.name, (Py_ssize_t)part.name_len);
        struct py_buffer *b = buffer_new(whole->owner, (char *)whole->bytes + part.offset,
                                         (Py_ssize_t)part.bytes, whole->read_only, "B", 1);
        if (!name || !b || PyDict_SetItem(parts, name, (PyObject *)b) < 0)
            Py_CLEAR(parts);
        Py_XDECREF(name);
        Py_XDECREF(b);
    }
    Py_XDECREF(data);
    return parts;
}

static PyObject *sample_bytes(PyObject *self, PyObject *unused)
{
    Py_ssize_t size = sample_length(self);
    (void)unused;
    PyObject *bytes = is_refused(self) ? NULL : PyBytes_FromStringAndSize(NULL, size);
    if (bytes && read_range(self, 0, PyBytes_AS_STRING(bytes), size) < 0)
        Py_CLEAR(bytes);
    return bytes;
}

static PyObject *sample_repr(PyObject *self)
{
    PyObject *name = sample_name(self, NULL);
    PyObject *text =
        name ? PyUnicode_FromFormat("<onepot.Sample %llu: %U>",
                                    (unsigned long long)((struct py_sample *)self)->index, name)
             : NULL;
    Py_XDECREF(name);
    return text;
}

/* By its archive and its number. */
static PyObject *sample_reduce(PyObject *self, PyObject *unused)
{
    struct py_sample *s = (struct py_sample *)self;
    (void)unused;
    PyObject *take = PyObject_GetAttrString(s->archive, "__getitem__");
    return take ? Py_BuildValue("(N(K))", take, (unsigned long long)s->index) : NULL;
}

static PyMethodDef sample_methods[] = {
    {"read", (PyCFunction)(void *)sample_read, METH_VARARGS | METH_KEYWORDS,
     "read(offset=0, size=all): its bytes in memory of their own, a writable Buffer, uint8.\n"
     "OSError names what can't be read."},
    {"__bytes__", sample_bytes, METH_NOARGS, "A copy of the data."},
    {"__reduce__", sample_reduce, METH_NOARGS, "Pickled by its archive and its number."},
    {0}};

static PyGetSetDef sample_fields[] = {
    {"name", sample_name, NULL, "Path in the archive.", NULL},
    {"label", sample_label, NULL, "Number of its class, or -1.", NULL},
    {"index", sample_index, NULL, "Its number in the archive.", NULL},
    {"size", sample_size, NULL, "Bytes.", NULL},
    {"data", sample_data, NULL,
     "Its bytes: a read-only Buffer, uint8 [size]. Where they are stored it shows the archive\n"
     "itself, else a new copy. read() gives bytes that may be written to. OSError names what\n"
     "can't be read.",
     NULL},
    {"parts", sample_parts, NULL, "Of a group: dict of part name to Buffer.", NULL},
    {0}};

static PySequenceMethods sample_sequence = {.sq_length = sample_length};

PyTypeObject sample_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Sample",
    .tp_basicsize = sizeof(struct py_sample),
    .tp_dealloc = sample_dealloc,
    .tp_repr = sample_repr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_as_sequence = &sample_sequence,
    .tp_methods = sample_methods,
    .tp_getset = sample_fields,
    .tp_doc = "One sample of an archive; len() is its size in bytes.",
};
