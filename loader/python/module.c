/*
 * The module itself, its errors, and the memory that it shows.
 */
#include "module.h"

#include <errno.h>
#include <string.h>

PyObject *raise_error(int err, const struct onepot_error *error)
{
    const char *text = error && error->code ? error->text : strerror(-err);
    switch (-err) {
    case ENOMEM:
        PyErr_SetString(PyExc_MemoryError, text);
        return NULL;
    case ERANGE:
        PyErr_SetString(PyExc_IndexError, text);
        return NULL;
    case EINVAL:
    case ESTALE:
    case E2BIG:
    case EPROTOTYPE:
        PyErr_SetString(PyExc_ValueError, text);
        return NULL;
    case ENOBUFS:
        PyErr_SetString(PyExc_BufferError, text);
        return NULL;
    default: {
        /* OSError chooses its subclass (FileNotFoundError...) by the number. */
        PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        /* Made here, for before Python 3.12 'except' looks at the type that was set. */
        PyObject *raised =
            message ? PyObject_CallFunction(PyExc_OSError, "iN", -err, message) : NULL;
        if (raised) {
            PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
            Py_DECREF(raised);
        }
        return NULL;
    }
    }
}

/* ---- buffers ---- */

struct py_buffer *buffer_new(PyObject *owner, void *bytes, Py_ssize_t len, int read_only,
                             const char *format, Py_ssize_t item_bytes)
{
    struct py_buffer *b = PyObject_New(struct py_buffer, &buffer_type);
    if (!b)
        return NULL;
    b->owner = owner;
    Py_XINCREF(owner);
    b->bytes = bytes;
    b->len = len;
    b->read_only = read_only;
    strncpy(b->format, format, sizeof(b->format) - 1);
    b->format[sizeof(b->format) - 1] = '\0';
    b->item_bytes = item_bytes;
    b->dimensions = 1;
    b->shape[0] = len / item_bytes;
    b->strides[0] = item_bytes;
    b->batch = NULL;
    b->where = BUFFER_HOST;
    b->device_index = 0;
    return b;
}

struct py_buffer *buffer_copy(const struct py_buffer *buffer)
{
    PyObject *memory = PyByteArray_FromStringAndSize(buffer->bytes, buffer->len);
    struct py_buffer *b = memory
                              ? buffer_new(memory, PyByteArray_AS_STRING(memory), buffer->len,
                                           0, buffer->format, buffer->item_bytes)
                              : NULL;
    if (b) {
        b->dimensions = buffer->dimensions;
        memcpy(b->shape, buffer->shape, sizeof(b->shape));
        memcpy(b->strides, buffer->strides, sizeof(b->strides));
    }
    Py_XDECREF(memory);
    return b;
}

static void buffer_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_buffer *)self)->owner);
    PyObject_Free(self);
}

/* Is it memory of the host, and what it should be by now? */
static int is_readable(const struct py_buffer *b)
{
    struct onepot_error error = {0};
    int r = 0;
    if (b->where == BUFFER_CUDA) {
        PyErr_SetString(PyExc_BufferError,
                        "the bytes are in a GPU's memory; from_dlpack() of torch or cupy shows "
                        "them");
        return -1;
    }
    if (strcmp(b->format, BUFFER_BFLOAT16) == 0) {
        PyErr_SetString(PyExc_BufferError, "only DLPack knows the type bfloat16");
        return -1;
    }
    if (b->where == BUFFER_HOST_DEVICE) {
        Py_BEGIN_ALLOW_THREADS r = onepot_batch_wait(b->batch, &error);
        Py_END_ALLOW_THREADS if (r < 0) raise_error(r, &error);
    }
    return r;
}

/* The order that a consumer takes for granted; 0: it looks at the strides. */
static char order_for(int flags)
{
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES ||
        (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS)
        return 'C';
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS)
        return 'F';
    return (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS ? 'A' : 0;
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags)
{
    struct py_buffer *b = (struct py_buffer *)self;
    if (is_readable(b) < 0) {
        view->obj = NULL;
        return -1;
    }
    if (b->read_only && flags & PyBUF_WRITABLE) {
        PyErr_SetString(
            PyExc_BufferError,
            "the bytes of an archive can't be written to; Sample.read() makes a copy");
        view->obj = NULL;
        return -1;
    }
    *view = (Py_buffer){.buf = b->bytes,
                        .obj = Py_NewRef(self),
                        .len = b->len,
                        .itemsize = b->item_bytes,
                        .readonly = b->read_only,
                        .ndim = b->dimensions,
                        .format = flags & PyBUF_FORMAT ? b->format : NULL,
                        .shape = b->shape,
                        .strides = b->strides};
    char order = order_for(flags);
    if (order && !PyBuffer_IsContiguous(view, order)) {
        PyErr_SetString(PyExc_BufferError, "the array is not in the order that is asked for");
        Py_CLEAR(view->obj);
        return -1;
    }
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES)
        view->strides = NULL;
    if ((flags & PyBUF_ND) != PyBUF_ND) {
        view->shape = NULL;
        view->ndim = 1;
    }
    return 0;
}

static PyBufferProcs buffer_procs = {.bf_getbuffer = buffer_get};

static Py_ssize_t buffer_length(PyObject *self)
{
    struct py_buffer *b = (struct py_buffer *)self;
    return b->dimensions ? b->shape[0] : 0;
}

/* Of several dimensions: what of it has this first index, as a Buffer. */
static PyObject *buffer_row(PyObject *self, Py_ssize_t i)
{
    struct py_buffer *b = (struct py_buffer *)self;
    Py_ssize_t len = b->item_bytes;
    for (int d = 1; d < b->dimensions; d++)
        len *= b->shape[d];
    struct py_buffer *row = buffer_new(self, (char *)b->bytes + i * b->strides[0], len,
                                       b->read_only, b->format, b->item_bytes);
    if (!row)
        return NULL;
    row->dimensions = b->dimensions - 1;
    memcpy(row->shape, b->shape + 1, (size_t)row->dimensions * sizeof(*row->shape));
    memcpy(row->strides, b->strides + 1, (size_t)row->dimensions * sizeof(*row->strides));
    row->batch = b->batch;
    row->where = b->where;
    row->device_index = b->device_index;
    return (PyObject *)row;
}

/* What memoryview makes of it, but for rows, which it does not know. */
static PyObject *buffer_subscript(PyObject *self, PyObject *key)
{
    if (PyIndex_Check(key) && ((struct py_buffer *)self)->dimensions > 1) {
        Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
        return PyErr_Occurred() ? NULL : PySequence_GetItem(self, i);
    }
    PyObject *view = PyMemoryView_FromObject(self);
    PyObject *item = view ? PyObject_GetItem(view, key) : NULL;
    Py_XDECREF(view);
    return item;
}

static PyObject *buffer_item(PyObject *self, Py_ssize_t i)
{
    if (i < 0 || i >= buffer_length(self)) {
        PyErr_SetString(PyExc_IndexError, "there is no such element");
        return NULL;
    }
    if (((struct py_buffer *)self)->dimensions > 1)
        return buffer_row(self, i);
    PyObject *key = PyLong_FromSsize_t(i), *item = key ? buffer_subscript(self, key) : NULL;
    Py_XDECREF(key);
    return item;
}

static PySequenceMethods buffer_sequence = {.sq_length = buffer_length, .sq_item = buffer_item};

/* ---- what it is ---- */

static const char *type_name(const char *format)
{
    static const struct {
        const char *format, *name;
    } names[] = {{"?", "bool"},
                 {"b", "int8"},
                 {"B", "uint8"},
                 {"h", "int16"},
                 {"H", "uint16"},
                 {"i", "int32"},
                 {"I", "uint32"},
                 {"q", "int64"},
                 {"Q", "uint64"},
                 {"e", "float16"},
                 {"f", "float32"},
                 {"d", "float64"},
                 {BUFFER_BFLOAT16, "bfloat16"}};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i].format, format) == 0)
            return names[i].name;
    return format;
}

static PyObject *shape_tuple(const Py_ssize_t *shape, int dimensions)
{
    PyObject *tuple = PyTuple_New(dimensions);
    for (int i = 0; tuple && i < dimensions; i++) {
        PyObject *number = PyLong_FromSsize_t(shape[i]);
        if (number)
            PyTuple_SET_ITEM(tuple, i, number);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *type_and_shape(const char *format, const Py_ssize_t *shape, int dimensions)
{
    PyObject *tuple = shape_tuple(shape, dimensions);
    PyObject *text = tuple ? PyUnicode_FromFormat("%s %R", type_name(format), tuple) : NULL;
    Py_XDECREF(tuple);
    return text;
}

static PyObject *buffer_repr(PyObject *self)
{
    struct py_buffer *b = (struct py_buffer *)self;
    PyObject *what = type_and_shape(b->format, b->shape, b->dimensions);
    PyObject *text = what ? PyUnicode_FromFormat("<onepot.Buffer: %U%s>", what,
                                                 b->read_only              ? ", read-only"
                                                 : b->where == BUFFER_CUDA ? ", on a GPU"
                                                                           : "")
                          : NULL;
    Py_XDECREF(what);
    return text;
}

static PyObject *buffer_shape(PyObject *self, void *unused)
{
    (void)unused;
    return shape_tuple(((struct py_buffer *)self)->shape,
                       ((struct py_buffer *)self)->dimensions);
}

static PyObject *buffer_dtype(PyObject *self, void *unused)
{
    (void)unused;
    return PyUnicode_FromString(type_name(((struct py_buffer *)self)->format));
}

static PyGetSetDef buffer_fields[] = {
    {"shape", buffer_shape, NULL, "Tuple of int.", NULL},
    {"dtype", buffer_dtype, NULL, "numpy's name of its type, as a str; or bfloat16.", NULL},
    {0}};

static PyMappingMethods buffer_mapping = {.mp_length = buffer_length,
                                          .mp_subscript = buffer_subscript};

static PyMethodDef buffer_methods[] = {
    {"__dlpack__", (PyCFunction)(void *)buffer_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A capsule for from_dlpack() of torch, numpy and others; no copy."},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS, "(1, 0): the CPU; (2, N): CUDA."},
    {0}};

PyTypeObject buffer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Buffer",
    .tp_basicsize = sizeof(struct py_buffer),
    .tp_dealloc = buffer_dealloc,
    .tp_as_buffer = &buffer_procs,
    .tp_as_sequence = &buffer_sequence,
    .tp_as_mapping = &buffer_mapping,
    .tp_repr = buffer_repr,
    .tp_getset = buffer_fields,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = buffer_methods,
    .tp_doc =
        "Memory of a batch or a sample: numpy.asarray(), memoryview(), torch.from_dlpack(),\n"
        "torch.frombuffer() show it without a copy, and keep it alive. A sequence: of "
        "numbers,\n"
        "or, with more than one dimension, of Buffers. That of a sample is read-only, which\n"
        "torch does not know of: it warns, and a write ends the process; use Sample.read().",
};

/* ---- module ---- */

static PyTypeObject *const types[] = {&archive_type, &sample_type, &sampler_type, &loader_type,
                                      &batch_type,   &buffer_type, &names_type,   &writer_type};
static const char *const type_names[] = {
    "Archive", "Sample", "DistributedSampler", "Loader", "Batch", "Buffer", "Names", "Writer"};

static int module_exec(PyObject *module)
{
    if (PyType_Ready(&sampler_iterator_type) < 0 || PyType_Ready(&loader_iterator_type) < 0)
        return -1;
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (PyType_Ready(types[i]) < 0)
            return -1;
        Py_INCREF(types[i]);
        if (PyModule_AddObject(module, type_names[i], (PyObject *)types[i]) < 0) {
            Py_DECREF(types[i]);
            return -1;
        }
    }
    return PyModule_AddStringConstant(module, "__version__", onepot_version());
}

/* Memory that another object keeps, for the package's own use. */
static PyObject *module_view(PyObject *self, PyObject *args)
{
    PyObject *owner;
    unsigned long long address;
    Py_ssize_t size;
    int is_kept;
    (void)self;
    if (!PyArg_ParseTuple(args, "OKnp", &owner, &address, &size, &is_kept))
        return NULL;
    return (PyObject *)buffer_new(is_kept ? owner : NULL, (void *)(uintptr_t)address, size, 0,
                                  "B", 1);
}

static PyMethodDef functions[] = {
    {"_view", module_view, METH_VARARGS,
     "_view(owner, address, size, is_kept): a Buffer, which keeps its owner or does not."},
    {0}};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
                                   {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                   {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "onepot._core",
    .m_doc = "What of the package onepot is written in C; use it by way of onepot.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
