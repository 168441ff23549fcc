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
        return PyErr_NoMemory();
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
        PyObject *args = message ? Py_BuildValue("(iN)", -err, message) : NULL;
        if (args) {
            PyErr_SetObject(PyExc_OSError, args);
            Py_DECREF(args);
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
    return b;
}

static void buffer_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_buffer *)self)->owner);
    PyObject_Free(self);
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags)
{
    struct py_buffer *b = (struct py_buffer *)self;
    if (b->read_only && flags & PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError, "the bytes of an archive can't be written to");
        view->obj = NULL;
        return -1;
    }
    int shaped = (flags & PyBUF_ND) == PyBUF_ND;
    *view =
        (Py_buffer){.buf = b->bytes,
                    .obj = Py_NewRef(self),
                    .len = b->len,
                    .itemsize = b->item_bytes,
                    .readonly = b->read_only,
                    .ndim = shaped ? b->dimensions : 1,
                    .format = flags & PyBUF_FORMAT ? b->format : NULL,
                    .shape = shaped ? b->shape : NULL,
                    .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? b->strides : NULL};
    return 0;
}

static PyBufferProcs buffer_procs = {.bf_getbuffer = buffer_get};

static Py_ssize_t buffer_length(PyObject *self)
{
    struct py_buffer *b = (struct py_buffer *)self;
    return b->dimensions ? b->shape[0] : 0;
}

/* One element, or a row, of what memoryview makes of it. */
static PyObject *buffer_item(PyObject *self, PyObject *key)
{
    PyObject *view = PyMemoryView_FromObject(self);
    PyObject *item = view ? PyObject_GetItem(view, key) : NULL;
    Py_XDECREF(view);
    return item;
}

static PyMappingMethods buffer_mapping = {.mp_length = buffer_length,
                                          .mp_subscript = buffer_item};

/* DLPack, as its header has it (version 0.8: what all consumers take). */
struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t dimensions;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
    int64_t shape[34], strides[34];
};

enum { DL_CPU = 1 };

/* May be called by any thread, and when the interpreter is about to end. */
static void dl_delete(struct dl_managed *managed)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)managed->context);
        PyGILState_Release(state);
    }
    free(managed);
}

/* Nobody took the capsule. */
static void dl_capsule_free(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        struct dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    }
}

static int dl_type(const struct py_buffer *b, struct dl_tensor *tensor)
{
    static const struct {
        const char *formats;
        uint8_t code;
    } codes[] = {{"bhilq", 0}, {"BHILQ", 1}, {"efd", 2}, {"?", 6}};
    for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (b->format[0] && !b->format[1] && strchr(codes[i].formats, b->format[0])) {
            tensor->type.code = codes[i].code;
            tensor->type.bits = (uint8_t)(8 * b->item_bytes);
            tensor->type.lanes = 1;
            return 0;
        }
    PyErr_Format(PyExc_BufferError, "DLPack has no type for '%s'", b->format);
    return -1;
}

static PyObject *buffer_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    struct py_buffer *b = (struct py_buffer *)self;
    (void)args, (void)keywords; /* streams are of no meaning on a CPU */
    struct dl_managed *managed = calloc(1, sizeof(*managed));
    if (!managed)
        return PyErr_NoMemory();
    if (b->read_only) {
        PyErr_SetString(PyExc_BufferError, "DLPack can't tell that it may not be written to");
        free(managed);
        return NULL;
    }
    if (dl_type(b, &managed->tensor) < 0) {
        free(managed);
        return NULL;
    }
    managed->tensor.data = b->bytes;
    managed->tensor.device.type = DL_CPU;
    managed->tensor.dimensions = b->dimensions;
    for (int i = 0; i < b->dimensions; i++) {
        managed->shape[i] = b->shape[i];
        managed->strides[i] = b->strides[i] / b->item_bytes;
    }
    managed->tensor.shape = managed->shape;
    managed->tensor.strides = managed->strides;
    managed->context = Py_NewRef(self);
    managed->deleter = dl_delete;
    PyObject *capsule = PyCapsule_New(managed, "dltensor", dl_capsule_free);
    if (!capsule)
        dl_delete(managed);
    return capsule;
}

static PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return Py_BuildValue("(ii)", DL_CPU, 0);
}

static PyMethodDef buffer_methods[] = {
    {"__dlpack__", (PyCFunction)(void *)buffer_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A capsule for from_dlpack() of torch, numpy and others; no copy."},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS, "(1, 0): the CPU."},
    {0}};

PyTypeObject buffer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Buffer",
    .tp_basicsize = sizeof(struct py_buffer),
    .tp_dealloc = buffer_dealloc,
    .tp_as_buffer = &buffer_procs,
    .tp_as_mapping = &buffer_mapping,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = buffer_methods,
    .tp_doc =
        "Memory of a batch or a sample: numpy.asarray(), memoryview(), torch.from_dlpack(),\n"
        "torch.frombuffer() show it without a copy, and keep it alive.",
};

/* ---- module ---- */

static PyTypeObject *const types[] = {&archive_type, &sample_type, &sampler_type, &loader_type,
                                      &batch_type,   &buffer_type, &names_type,   &writer_type};
static const char *const type_names[] = {
    "Archive", "Sample", "DistributedSampler", "Loader", "Batch", "Buffer", "Names", "Writer"};

static int module_exec(PyObject *module)
{
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (PyType_Ready(types[i]) < 0)
            return -1;
        Py_INCREF(types[i]);
        if (PyModule_AddObject(module, type_names[i], (PyObject *)types[i]) < 0) {
            Py_DECREF(types[i]);
            return -1;
        }
    }
    Py_INCREF(&sampler_type);
    if (PyModule_AddObject(module, "Sampler", (PyObject *)&sampler_type) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "__version__", onepot_version());
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "onepot._core",
    .m_doc = "What of the package onepot is written in C; use it by way of onepot.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
