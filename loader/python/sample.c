/*
 * Sample: refers to its Archive, where it looks everything up.
 */
#include "module.h"

#include <errno.h>
#include <string.h>

#define NAME_ROOM 65536

struct py_sample {
    PyObject_HEAD PyObject *archive;
    uint64_t index;
};

PyObject *sample_name_of(const struct onepot_archive *archive, uint64_t index)
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

PyObject *sample_new(PyObject *archive, uint64_t index)
{
    struct py_sample *sample = PyObject_New(struct py_sample, sample_type);
    if (!sample)
        return NULL;
    sample->archive = Py_NewRef(archive);
    sample->index = index;
    return (PyObject *)sample;
}

static PyObject *sample_lease(PyObject *self)
{
    return archive_lease(((struct py_sample *)self)->archive);
}

static void sample_dealloc(PyObject *self)
{
    Py_DECREF(((struct py_sample *)self)->archive);
    object_free(self);
}

static PyObject *sample_name(PyObject *self, void *unused)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    return archive ? sample_name_of(archive, ((struct py_sample *)self)->index) : NULL;
}

static PyObject *sample_label(PyObject *self, void *unused)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    struct onepot_error error = {0};
    int64_t label = -1;
    int r;
    if (!archive)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_label(archive, ((struct py_sample *)self)->index, &error, &label);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : PyLong_FromLongLong(label);
}

static PyObject *sample_index(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(((struct py_sample *)self)->index);
}

static Py_ssize_t sample_length(PyObject *self)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    uint64_t bytes = 0;
    if (!archive)
        return -1;
    onepot_archive_size(archive, ((struct py_sample *)self)->index, &bytes);
    return (Py_ssize_t)bytes;
}

static PyObject *sample_size(PyObject *self, void *unused)
{
    Py_ssize_t size = sample_length(self);
    return size < 0 ? NULL : PyLong_FromSsize_t(size);
}

/*
 * Read `size` bytes from `offset` on, all of which must exist. Copying a small sample from the
 * mapped archive costs half as much as a system call. Such a copy counts only if the archive is
 * still intact afterwards.
 */
static int sample_read_range(PyObject *self, uint64_t offset, char *to, Py_ssize_t size)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    uint64_t len, index = ((struct py_sample *)self)->index;
    struct onepot_error error = {0};
    const void *bytes;
    size_t got;
    int r;
    if (!archive)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_bytes(archive, index, &bytes, &len);
    if (r == 0) {
        memcpy(to, (const char *)bytes + offset, (size_t)size);
        r = onepot_archive_bytes(archive, index, &bytes, &len);
    }
    if (r < 0)
        r = onepot_archive_read(archive, index, offset, to, (size_t)size, &error, &got);
    Py_END_ALLOW_THREADS
    if (r < 0)
        raise_error(r, &error);
    return r;
}

/* The same bytes in new memory. */
static struct py_buffer *sample_read_buffer(PyObject *self, uint64_t offset, Py_ssize_t size)
{
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, size);
    struct py_buffer *b = NULL;
    if (memory && sample_read_range(self, offset, PyByteArray_AsString(memory), size) == 0)
        b = buffer_of_bytes(memory, PyByteArray_AsString(memory), (uint64_t)size, 0,
                            ITEM_UINT8);
    Py_XDECREF(memory);
    return b;
}

/* Is the sample refused because nearly all of it is holes? */
static int sample_is_refused(PyObject *self)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    struct onepot_error error = {0};
    if (!archive)
        return 1;
    int r = onepot_archive_check(archive, ((struct py_sample *)self)->index, &error);
    if (r < 0)
        raise_error(r, &error);
    return r < 0;
}

static PyObject *sample_read(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"offset", "size", NULL};
    Py_ssize_t all = sample_length(self), offset = 0, size = PY_SSIZE_T_MAX;
    if (all < 0 || !PyArg_ParseTupleAndKeywords(args, keywords, "|nn", names, &offset, &size))
        return NULL;
    if (offset < 0 || size < 0)
        return PyErr_Format(PyExc_ValueError, "offset and size are not negative");
    if (size == PY_SSIZE_T_MAX && sample_is_refused(self))
        return NULL;
    offset = offset < all ? offset : all;
    return (PyObject *)sample_read_buffer(self, (uint64_t)offset,
                                          size < all - offset ? size : all - offset);
}

static PyObject *sample_data(PyObject *self, void *unused)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    struct py_sample *s = (struct py_sample *)self;
    const void *bytes;
    uint64_t len;
    int r;
    if (!archive)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_bytes(archive, s->index, &bytes, &len);
    Py_END_ALLOW_THREADS
    if (r == 0)
        return (PyObject *)buffer_of_bytes(lease, (void *)(uintptr_t)bytes, len, 1, ITEM_UINT8);
    if (sample_is_refused(self))
        return NULL;
    struct py_buffer *b = sample_read_buffer(self, 0, sample_length(self));
    if (b)
        /* as in the mapped archive, so that code that writes fails in all cases */
        b->read_only = 1;
    return (PyObject *)b;
}

/* Bytes [offset, offset + len) of a Buffer of bytes; shares its owner. */
static struct py_buffer *buffer_part(const struct py_buffer *whole, uint64_t offset,
                                     uint64_t len)
{
    uint64_t all = (uint64_t)whole->len;
    if (offset > all || len > all - offset) {
        PyErr_SetString(PyExc_BufferError, "a part that lies outside of its sample");
        return NULL;
    }
    return buffer_of_bytes(whole->owner, (char *)whole->bytes + offset, len, whole->read_only,
                           ITEM_UINT8);
}

static PyObject *sample_parts(PyObject *self, void *unused)
{
    auto_lease lease = sample_lease(self);
    struct onepot_archive *archive = leased(lease);
    uint64_t count, index = ((struct py_sample *)self)->index;
    PyObject *data = archive ? sample_data(self, unused) : NULL;
    PyObject *parts = data ? PyDict_New() : NULL;
    if (parts && onepot_archive_parts(archive, index, &count) < 0)
        count = 0;
    for (uint64_t i = 0; parts && i < count; i++) {
        struct onepot_part part = {.size = sizeof(part)};
        struct py_buffer *whole = (struct py_buffer *)data;
        int r = onepot_archive_part(archive, index, i, &part);
        if (r < 0) {
            raise_error(r, NULL);
            Py_CLEAR(parts);
            break;
        }
        PyObject *name = PyUnicode_DecodeFSDefaultAndSize(part.name, (Py_ssize_t)part.name_len);
        struct py_buffer *b = buffer_part(whole, part.offset, part.bytes);
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
    PyObject *bytes =
        size < 0 || sample_is_refused(self) ? NULL : PyBytes_FromStringAndSize(NULL, size);
    if (bytes && sample_read_range(self, 0, PyBytes_AsString(bytes), size) < 0)
        Py_CLEAR(bytes);
    return bytes;
}

static PyObject *sample_repr(PyObject *self)
{
    const struct py_sample *s = (struct py_sample *)self;
    PyObject *name = sample_name(self, NULL);
    if (!name && PyErr_ExceptionMatches(PyExc_ValueError)) { /* it is closed */
        PyErr_Clear();
        return PyUnicode_FromFormat("<onepot.Sample %llu of a closed archive>",
                                    (unsigned long long)s->index);
    }
    PyObject *text = name ? PyUnicode_FromFormat("<onepot.Sample %llu: %U>",
                                                 (unsigned long long)s->index, name)
                          : NULL;
    Py_XDECREF(name);
    return text;
}

/* The same sample of the same Archive. */
static PyObject *sample_compare(PyObject *self, PyObject *other, int operation)
{
    const struct py_sample *a = (struct py_sample *)self, *b = (struct py_sample *)other;
    if (Py_TYPE(other) != sample_type || (operation != Py_EQ && operation != Py_NE))
        return Py_NewRef(Py_NotImplemented);
    bool is_same = a->archive == b->archive && a->index == b->index;
    return PyBool_FromLong(is_same == (operation == Py_EQ));
}

static Py_hash_t sample_hash(PyObject *self)
{
    const struct py_sample *s = (struct py_sample *)self;
    return (Py_hash_t)(((uintptr_t)s->archive >> 4) + s->index) & PY_SSIZE_T_MAX;
}

static PyObject *sample_archive(PyObject *self, void *unused)
{
    return Py_NewRef(((struct py_sample *)self)->archive);
}

/* Pickled by its archive and its number. */
static PyObject *sample_reduce(PyObject *self, PyObject *unused)
{
    struct py_sample *s = (struct py_sample *)self;
    PyObject *take = PyObject_GetAttrString(s->archive, "__getitem__");
    return take ? Py_BuildValue("(N(K))", take, (unsigned long long)s->index) : NULL;
}

static PyMethodDef sample_methods[] = {
    {"read", (PyCFunction)(void *)sample_read, METH_VARARGS | METH_KEYWORDS,
     "read(offset=0, size=all): a copy of its bytes as a writable Buffer, uint8 [size].\n"
     "OSError names archive and member that can't be read."},
    {"__bytes__", sample_bytes, METH_NOARGS, "A copy of the data."},
    {"__reduce__", sample_reduce, METH_NOARGS, "Pickled by its archive and its number."},
    {0}};

static PyGetSetDef sample_fields[] = {
    {"name", sample_name, NULL, "Path in the archive.", NULL},
    {"label", sample_label, NULL, "The number of its class, or its label, or -1.", NULL},
    {"archive", sample_archive, NULL, "The Archive that it was taken from.", NULL},
    {"index", sample_index, NULL, "Its number in the archive.", NULL},
    {"size", sample_size, NULL, "Its size in bytes.", NULL},
    {"data", sample_data, NULL,
     "Its bytes: a read-only Buffer, uint8 [size]. It shows the mapped archive if the bytes "
     "are\n"
     "stored there in one piece, else a new copy. read() returns writable bytes. OSError "
     "names\n"
     "archive and member that can't be read.",
     NULL},
    {"parts", sample_parts, NULL,
     "The parts of a group: dict from a part's name to its Buffer.", NULL},
    {0}};

static PyType_Slot sample_slots[] = {
    {Py_tp_dealloc, (void *)sample_dealloc},
    {Py_tp_repr, (void *)sample_repr},
    {Py_tp_richcompare, (void *)sample_compare},
    {Py_tp_hash, (void *)sample_hash},
    {Py_sq_length, (void *)sample_length},
    {Py_tp_methods, sample_methods},
    {Py_tp_getset, sample_fields},
    {Py_tp_doc,
     (void *)"One sample of an archive; len() is its size in bytes. Any thread may use it."},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec sample_spec = {
    .name = "onepot.Sample",
    .basicsize = sizeof(struct py_sample),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = sample_slots,
};
