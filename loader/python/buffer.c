/*
 * Buffer: memory of a batch or a sample as Python sees it, and its element types; and the part
 * of Batch that is written in C, of which onepot/_batch.py has the rest. A batch returns to the
 * loader when the object and the last view of it are gone. If the loader has a device, all
 * views show the device's memory.
 *
 * DLPack shows a Buffer to torch, numpy and cupy without a copy. The structs are as in DLPack's
 * header. All consumers take version 0.8 (a capsule "dltensor"). Version 1 ("versioned") is for
 * consumers that ask for it; it can tell that memory is read-only.
 *
 * The parts of a batch that a consumer holds are counted in C. So any thread can give the batch
 * back, without the interpreter, even while that is ending.
 *
 * On a device the consumer's stream waits for the batch. DLPack does not tell whether the
 * consumer also reads in that stream: it may have other streams. So the batch is lent
 * (onepot_batch_lend), except to a default stream, which is shared by all.
 */
#include "module.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- element types ---- */

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

const struct item_type item_types[] = {
    [ITEM_BOOL] = {"?", "bool", "b1", 1, DL_BOOL},
    [ITEM_INT8] = {"b", "int8", "i1", 1, DL_INT},
    [ITEM_UINT8] = {"B", "uint8", "u1", 1, DL_UINT},
    [ITEM_INT16] = {"h", "int16", "i2", 2, DL_INT},
    [ITEM_UINT16] = {"H", "uint16", "u2", 2, DL_UINT},
    [ITEM_INT32] = {"i", "int32", "i4", 4, DL_INT},
    [ITEM_UINT32] = {"I", "uint32", "u4", 4, DL_UINT},
    [ITEM_INT64] = {"q", "int64", "i8", 8, DL_INT},
    [ITEM_UINT64] = {"Q", "uint64", "u8", 8, DL_UINT},
    [ITEM_FLOAT16] = {"e", "float16", "f2", 2, DL_FLOAT},
    [ITEM_FLOAT32] = {"f", "float32", "f4", 4, DL_FLOAT},
    [ITEM_FLOAT64] = {"d", "float64", "f8", 8, DL_FLOAT},
    [ITEM_BFLOAT16] = {"bf", "bfloat16", NULL, 2, DL_BFLOAT},
};

/* ---- making buffers ---- */

/*
 * The shape of a view: lengths in elements, and strides in bytes from one to the next. Only the
 * first `dimensions` of each are set.
 */
struct shape {
    enum item item;
    int dimensions;
    Py_ssize_t lengths[BUFFER_DIMENSIONS], strides[BUFFER_DIMENSIONS];
};

/*
 * Set the dimensions from number `first` on to these lengths, without gaps. Unsigned, as a
 * shape that is too large may wrap here: shape_measure refuses it.
 */
static void shape_set(struct shape *shape, int first, int count, const uint64_t *lengths,
                      bool fortran_order)
{
    uint64_t step = (uint64_t)item_types[shape->item].bytes;
    shape->dimensions = first + count;
    for (int i = 0; i < count; i++) {
        int at = fortran_order ? i : count - 1 - i;
        shape->lengths[first + at] = (Py_ssize_t)lengths[at];
        shape->strides[first + at] = (Py_ssize_t)step;
        step *= lengths[at];
    }
}

/*
 * The bytes of all elements, and the bytes from the first element's to the last one's end. With
 * a length of 0 the other lengths must still make a size that exists: consumers multiply them.
 */
static bool shape_measure(const struct shape *shape, Py_ssize_t *ret_len, Py_ssize_t *ret_reach)
{
    Py_ssize_t len = item_types[shape->item].bytes, reach = len, step;
    bool is_empty = false;
    for (int d = 0; d < shape->dimensions; d++) {
        Py_ssize_t length = shape->lengths[d];
        if (length < 0 || shape->strides[d] < 0)
            return false;
        if (length == 0)
            is_empty = true;
        else if (__builtin_mul_overflow(len, length, &len) ||
                 __builtin_mul_overflow(length - 1, shape->strides[d], &step) ||
                 __builtin_add_overflow(reach, step, &reach))
            return false;
    }
    *ret_len = is_empty ? 0 : len;
    *ret_reach = is_empty ? 0 : reach;
    return true;
}

/*
 * A view of the `room` bytes at `bytes`. All Buffers are made here, so a Buffer's length and
 * shape agree. BufferError: some of the elements are not within these bytes. Takes a reference
 * to `owner`.
 */
static struct py_buffer *buffer_new(PyObject *owner, void *bytes, uint64_t room, int read_only,
                                    const struct shape *shape)
{
    size_t dimensions = (size_t)shape->dimensions;
    Py_ssize_t len, reach;
    if (room > PY_SSIZE_T_MAX || !shape_measure(shape, &len, &reach) ||
        (uint64_t)reach > room) {
        PyErr_SetString(PyExc_BufferError,
                        "the array's shape does not fit into the memory that holds it");
        return NULL;
    }
    struct py_buffer *b = PyObject_New(struct py_buffer, buffer_type);
    if (!b)
        return NULL;
    b->owner = owner;
    Py_XINCREF(owner);
    b->bytes = bytes;
    b->len = len;
    b->room = (Py_ssize_t)room;
    b->read_only = read_only;
    b->item = shape->item;
    b->dimensions = shape->dimensions;
    memcpy(b->shape, shape->lengths, dimensions * sizeof(*b->shape));
    memcpy(b->strides, shape->strides, dimensions * sizeof(*b->strides));
    b->batch = NULL;
    b->where = BUFFER_HOST;
    b->device_index = 0;
    return b;
}

struct py_buffer *buffer_of_bytes(PyObject *owner, void *bytes, uint64_t len, int read_only,
                                  enum item item)
{
    const uint64_t count = len / (uint64_t)item_types[item].bytes;
    struct shape shape;
    shape.item = item;
    shape_set(&shape, 0, 1, &count, false);
    return buffer_new(owner, bytes, len, read_only, &shape);
}

static bool buffer_is_dense(const struct py_buffer *b)
{
    Py_ssize_t step = item_types[b->item].bytes;
    for (int d = b->dimensions - 1; d >= 0 && b->len; d--) {
        if (b->shape[d] > 1 && b->strides[d] != step)
            return false;
        step *= b->shape[d];
    }
    return true;
}

/* The elements from dimension `d` on. Returns where the next ones are written. */
static char *write_elements(const struct py_buffer *b, int d, const char *from, char *to)
{
    size_t item = (size_t)item_types[b->item].bytes;
    if (d == b->dimensions) {
        memcpy(to, from, item);
        return to + item;
    }
    for (Py_ssize_t i = 0; i < b->shape[d]; i++)
        to = write_elements(b, d + 1, from + i * b->strides[d], to);
    return to;
}

static void buffer_write(const struct py_buffer *b, void *to)
{
    if (b->len && buffer_is_dense(b))
        memcpy(to, b->bytes, (size_t)b->len);
    else if (b->len)
        write_elements(b, 0, b->bytes, to);
}

/* A writable copy of the elements, in C order. */
static struct py_buffer *buffer_copy(const struct py_buffer *buffer)
{
    uint64_t lengths[BUFFER_DIMENSIONS];
    struct shape shape;
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, buffer->len);
    if (!memory)
        return NULL;
    for (int d = 0; d < buffer->dimensions; d++)
        lengths[d] = (uint64_t)buffer->shape[d];
    shape.item = buffer->item;
    shape_set(&shape, 0, buffer->dimensions, lengths, false);
    buffer_write(buffer, PyByteArray_AsString(memory));
    struct py_buffer *b =
        buffer_new(memory, PyByteArray_AsString(memory), (uint64_t)buffer->len, 0, &shape);
    Py_DECREF(memory);
    return b;
}

/* ---- the batch that a Buffer belongs to ---- */

struct py_batch {
    PyObject_HEAD const struct onepot_batch *batch;
    struct batch_kind kind;
    struct onepot_device_batch there; /* where it is, on a device or here */
    PyObject *streams; /* a list, see batch_streams; NULL: it is in the host's memory */
};

/*
 * PyGILState_Check, which the stable ABI lacks. A thread of a subinterpreter is not recognised,
 * and keeps its references.
 */
static bool holds_interpreter(void)
{
    static _Atomic(void *) found;
    PyThreadState *(*current)(void), *own = PyGILState_GetThisThreadState();
    void *function = atomic_load(&found);
    if (!function) {
        function = dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked"); /* from 3.13 on */
        if (!function)
            function = dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
        atomic_store(&found, function);
    }
    memcpy(&current, &function, sizeof(current));
    return own && current && current() == own;
}

/*
 * Give a batch back, and a copy of one. Either may wait for streams, which may wait for a
 * function that wants the interpreter: a thread that holds the interpreter lets go of it
 * meanwhile. Any thread may call this, also while the interpreter ends.
 */
static void batch_let_go(const struct onepot_batch *batch, struct onepot_duplicate *copy)
{
    PyThreadState *state = (batch || copy) && holds_interpreter() ? PyEval_SaveThread() : NULL;
    onepot_batch_release(batch);
    onepot_duplicate_free(copy);
    if (state)
        PyEval_RestoreThread(state);
}

/* Wait until it is there. Negative with an exception. */
static int batch_await(const struct onepot_batch *batch)
{
    struct onepot_error error = {0};
    int r;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_batch_wait(batch, &error);
    Py_END_ALLOW_THREADS
    if (r < 0)
        raise_error(r, &error);
    return r;
}

/* Call a function of onepot/_copy.py, which knows foreign arrays and streams. */
static PyObject *copy_call(const char *function, const char *format, ...)
{
    PyObject *module = PyImport_ImportModule("onepot._copy");
    PyObject *callable = module ? PyObject_GetAttrString(module, function) : NULL;
    va_list list;
    va_start(list, format);
    PyObject *args = callable ? Py_VaBuildValue(format, list) : NULL;
    va_end(list);
    PyObject *result = args ? PyObject_CallObject(callable, args) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(callable);
    Py_XDECREF(module);
    return result;
}

/* The handle in a number, or in another program's stream. -1 with an exception. */
static int take_stream(PyObject *stream, void **ret_handle)
{
    PyObject *number =
        PyLong_Check(stream) ? Py_NewRef(stream) : copy_call("stream_number", "(O)", stream);
    if (!number)
        return -1;
    *ret_handle = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/*
 * A stream that is an object must not be destroyed while its batch may still name it: the batch
 * and each consumer of its memory hold one list of such objects. NULL: the batch of this view
 * is in the host's memory. keep_stream adds a stream, unless that is a number. -1 with an
 * exception.
 */
static PyObject *batch_streams(const struct py_buffer *view)
{
    PyObject *owner = view->owner;
    while (Py_TYPE(owner) == buffer_type)
        owner = ((struct py_buffer *)owner)->owner;
    return ((struct py_batch *)owner)->streams;
}

static int keep_stream(PyObject *streams, PyObject *stream)
{
    return !streams || stream == Py_None || PyLong_Check(stream)
               ? 0
               : PyList_Append(streams, stream);
}

/* ---- the buffer protocol ---- */

static void buffer_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_buffer *)self)->owner);
    object_free(self);
}

/* Is it host memory, and has it arrived? */
static int buffer_check_readable(const struct py_buffer *b)
{
    if (b->where == BUFFER_CUDA)
        PyErr_SetString(PyExc_BufferError,
                        "the bytes are in a GPU's memory; from_dlpack() of torch or cupy shows "
                        "them");
    else if (b->item == ITEM_BFLOAT16)
        PyErr_SetString(PyExc_BufferError, "only DLPack knows the type bfloat16");
    if (PyErr_Occurred())
        return -1;
    return b->where == BUFFER_HOST_DEVICE ? batch_await(b->batch) : 0;
}

/* The order that a consumer assumes; 0: it looks at the strides. */
static char buffer_order_for(int flags)
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
    view->obj = NULL;
    if (buffer_check_readable(b) < 0)
        return -1;
    if (b->read_only && flags & PyBUF_WRITABLE) {
        PyErr_SetString(
            PyExc_BufferError,
            "the bytes of an archive can't be written to; Sample.read() makes a copy");
        return -1;
    }
    *view =
        (Py_buffer){.buf = b->bytes,
                    .obj = Py_NewRef(self),
                    .len = b->len,
                    .itemsize = item_types[b->item].bytes,
                    .readonly = b->read_only,
                    .ndim = b->dimensions,
                    .format = flags & PyBUF_FORMAT ? (char *)item_types[b->item].letter : NULL,
                    .shape = b->shape,
                    .strides = b->strides};
    char order = buffer_order_for(flags);
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

static Py_ssize_t buffer_length(PyObject *self)
{
    struct py_buffer *b = (struct py_buffer *)self;
    return b->dimensions ? b->shape[0] : 0;
}

/* Of a Buffer with several dimensions: the part with this first index, as a Buffer. */
static PyObject *buffer_row(PyObject *self, Py_ssize_t i)
{
    struct py_buffer *b = (struct py_buffer *)self;
    Py_ssize_t at = b->len ? i * b->strides[0] : 0; /* else strides say nothing */
    struct shape shape;
    shape.item = b->item;
    shape.dimensions = b->dimensions - 1;
    memcpy(shape.lengths, b->shape + 1, (size_t)shape.dimensions * sizeof(*shape.lengths));
    memcpy(shape.strides, b->strides + 1, (size_t)shape.dimensions * sizeof(*shape.strides));
    struct py_buffer *row =
        buffer_new(self, (char *)b->bytes + at, (uint64_t)(b->room - at), b->read_only, &shape);
    if (!row)
        return NULL;
    row->batch = b->batch;
    row->where = b->where;
    row->device_index = b->device_index;
    return (PyObject *)row;
}

/* Like a memoryview, but with rows of several dimensions, which a memoryview can't return. */
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
    if (i < 0 || i >= buffer_length(self))
        return PyErr_Format(PyExc_IndexError, "there is no such element");
    if (((struct py_buffer *)self)->dimensions > 1)
        return buffer_row(self, i);
    PyObject *key = PyLong_FromSsize_t(i), *item = key ? buffer_subscript(self, key) : NULL;
    Py_XDECREF(key);
    return item;
}

/* ---- shape and type ---- */

static PyObject *shape_tuple(const Py_ssize_t *shape, int dimensions)
{
    PyObject *tuple = PyTuple_New(dimensions);
    for (int i = 0; tuple && i < dimensions; i++) {
        PyObject *number = PyLong_FromSsize_t(shape[i]);
        if (number)
            PyTuple_SetItem(tuple, i, number);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *type_and_shape(enum item item, const Py_ssize_t *shape, int dimensions)
{
    PyObject *tuple = shape_tuple(shape, dimensions);
    PyObject *text = tuple ? PyUnicode_FromFormat("%s %R", item_types[item].name, tuple) : NULL;
    Py_XDECREF(tuple);
    return text;
}

static PyObject *buffer_repr(PyObject *self)
{
    struct py_buffer *b = (struct py_buffer *)self;
    PyObject *what = type_and_shape(b->item, b->shape, b->dimensions);
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
    return shape_tuple(((struct py_buffer *)self)->shape,
                       ((struct py_buffer *)self)->dimensions);
}

static PyObject *buffer_dtype(PyObject *self, void *unused)
{
    return PyUnicode_FromString(item_types[((struct py_buffer *)self)->item].name);
}

/* ---- array interfaces ---- */

/* The dict of either interface. `stream` is left out if it is NULL. Takes nothing over. */
static PyObject *buffer_interface(const struct py_buffer *b, PyObject *stream)
{
    const char *type = item_types[b->item].npy;
    PyObject *shape = shape_tuple(b->shape, b->dimensions);
    PyObject *strides = shape_tuple(b->strides, b->dimensions);
    PyObject *dict =
        shape && strides
            ? Py_BuildValue(
                  "{s:O,s:O,s:N,s:(KO),s:i}", "shape", shape, "strides", strides, "typestr",
                  PyUnicode_FromFormat("%c%s", item_types[b->item].bytes > 1 ? '<' : '|', type),
                  "data", (unsigned long long)(uintptr_t)b->bytes,
                  b->read_only ? Py_True : Py_False, "version", 3)
            : NULL;
    if (dict && stream && PyDict_SetItemString(dict, "stream", stream) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return dict;
}

static PyObject *buffer_refuse_interface(const struct py_buffer *b)
{
    PyErr_SetString(PyExc_AttributeError,
                    b->item == ITEM_BFLOAT16 ? "only DLPack knows the type bfloat16"
                    : b->where == BUFFER_CUDA
                        ? "the bytes are in a GPU's memory: __cuda_array_interface__"
                        : "the bytes are in the host's memory: __array_interface__");
    return NULL;
}

static PyObject *buffer_array_interface(PyObject *self, void *unused)
{
    struct py_buffer *b = (struct py_buffer *)self;
    if (b->where == BUFFER_CUDA || b->item == ITEM_BFLOAT16)
        return buffer_refuse_interface(b);
    return buffer_check_readable(b) < 0 ? NULL : buffer_interface(b, NULL);
}

/*
 * The interface has no word for the consumer's stream. So the batch is waited for here, which
 * needs no stream, and is lent as to a consumer that may read in any.
 */
static PyObject *buffer_cuda_interface(PyObject *self, void *unused)
{
    struct py_buffer *b = (struct py_buffer *)self;
    struct onepot_error error = {0};
    int r;
    if (b->where != BUFFER_CUDA || b->item == ITEM_BFLOAT16)
        return buffer_refuse_interface(b);
    Py_BEGIN_ALLOW_THREADS
    r = onepot_batch_lend(b->batch, ONEPOT_NO_STREAM, &error);
    if (r == 0)
        r = onepot_batch_wait(b->batch, &error);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : buffer_interface(b, Py_None);
}

static PyGetSetDef buffer_fields[] = {
    {"__array_interface__", buffer_array_interface, NULL,
     "numpy's array interface, of memory of the host.", NULL},
    {"__cuda_array_interface__", buffer_cuda_interface, NULL,
     "numba's and cupy's, of memory of a GPU. It is there when this returns.", NULL},
    {"shape", buffer_shape, NULL, "Length of each dimension: tuple of int.", NULL},
    {"dtype", buffer_dtype, NULL, "Type of the elements: numpy's name as a str, or 'bfloat16'.",
     NULL},
    {0}};

/* ---- copies into memory that stays where it is: a CUDA graph reads the same memory each time,
 * and compiled code wants one shape ---- */

/* Memory of the host, or of a host that plays a device: it is done at the return. */
static int copy_on_host(const struct py_buffer *b, void *to, size_t room)
{
    if (b->where == BUFFER_HOST_DEVICE && batch_await(b->batch) < 0)
        return -1;
    buffer_write(b, to);
    memset((char *)to + b->len, 0, room - (size_t)b->len);
    return 0;
}

static int copy_there(const struct py_buffer *b, PyObject *stream, void *to, size_t room)
{
    struct onepot_error error = {0};
    void *handle = NULL;
    int r;
    if (take_stream(stream, &handle) < 0 || keep_stream(batch_streams(b), stream) < 0)
        return -1;
    if (!buffer_is_dense(b)) {
        PyErr_SetString(PyExc_BufferError,
                        "a GPU copies arrays in C order; this view has gaps or another order");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    r = onepot_batch_copy(b->batch, handle, to, room, b->bytes, (size_t)b->len, &error);
    Py_END_ALLOW_THREADS
    if (r < 0)
        raise_error(r, &error);
    return r;
}

/* copy_into(to, stream=None) of a Buffer. */
static PyObject *buffer_copy_into(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"to", "stream", NULL};
    const struct py_buffer *b = (struct py_buffer *)self;
    PyObject *to, *stream = Py_None, *memory;
    unsigned long long room = 0;
    Py_buffer view = {0};
    void *address = NULL;
    int r = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O", names, &to, &stream))
        return NULL;
    PyObject *target = copy_call("target", "(OOO)", self, to, stream);
    bool is_found = target && PyArg_ParseTuple(target, "OKO", &memory, &room, &stream) &&
                    take_memory(memory, &room, &view, &address) == 0;
    if (is_found && (unsigned long long)b->len > room)
        PyErr_Format(PyExc_ValueError, "%zd bytes are copied, and there is room for %llu",
                     b->len, room);
    else if (is_found)
        r = b->where == BUFFER_CUDA ? copy_there(b, stream, address, room)
                                    : copy_on_host(b, address, room);
    if (view.obj)
        PyBuffer_Release(&view);
    Py_XDECREF(target);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- DLPack ---- */

enum { DL_CPU = 1, DL_CUDA = 2 };
enum { DL_FLAG_READ_ONLY = 1, DL_FLAG_IS_COPIED = 2 };

/* Streams of CUDA with fixed numbers. */
#define STREAM_LEGACY ((void *)1)
#define STREAM_PER_THREAD ((void *)2)

struct dl_device {
    int32_t type, id;
};

struct dl_tensor {
    void *data;
    struct dl_device device;
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
};

struct dl_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct dl_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* A DLPack tensor of either version, and the object that keeps its memory. */
struct export
{
    union {
        struct dl_managed managed;
        struct dl_versioned versioned;
    };
    const struct onepot_batch *batch; /* or */
    struct onepot_duplicate *copy;    /* or */
    PyObject *owner;                  /* or, beside the batch, the list of its streams */
    int64_t shape[BUFFER_DIMENSIONS], strides[BUFFER_DIMENSIONS];
};

static void export_free(struct export *e)
{
    batch_let_go(e->batch, e->copy);
    if (e->owner && Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(e->owner);
        PyGILState_Release(state);
    }
    free(e);
}

static void delete_managed(struct dl_managed *self)
{
    export_free(self->context);
}

static void delete_versioned(struct dl_versioned *self)
{
    export_free(self->context);
}

/* Nobody took the capsule if it still has its first name. */
static void capsule_free(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (name && (strcmp(name, "dltensor") == 0 || strcmp(name, "dltensor_versioned") == 0))
        export_free(PyCapsule_GetPointer(capsule, name));
}

static struct dl_device device_of(const struct py_buffer *b)
{
    int cuda = b->where == BUFFER_CUDA;
    return (struct dl_device){cuda ? DL_CUDA : DL_CPU, cuda ? b->device_index : 0};
}

static void fill_tensor(const struct py_buffer *b, struct export *e, struct dl_tensor *tensor)
{
    const struct item_type *type = &item_types[b->item];
    tensor->data = b->bytes;
    tensor->device = device_of(b);
    tensor->dimensions = b->dimensions;
    tensor->type.code = type->dlpack_code;
    tensor->type.bits = (uint8_t)(8 * type->bytes);
    tensor->type.lanes = 1;
    for (int i = 0; i < b->dimensions; i++) {
        e->shape[i] = b->shape[i];
        e->strides[i] = b->strides[i] / type->bytes;
    }
    tensor->shape = e->shape;
    tensor->strides = e->strides;
}

/* ---- the consumer's request ---- */

/* A pair of numbers. */
static int parse_pair(PyObject *given, const char *name, int *ret_first, int *ret_second)
{
    if (PyTuple_Check(given) && PyArg_ParseTuple(given, "ii", ret_first, ret_second))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s is a pair of numbers", name);
    return -1;
}

/*
 * Without a stream, the default stream is assumed, but the consumer may read in another. An
 * object says which stream it is, also where that has the number 0.
 */
static int parse_stream(PyObject *given, void **ret_stream)
{
    void *handle = NULL;
    *ret_stream = STREAM_LEGACY;
    if (given == Py_None)
        return 0;
    if (!PyLong_Check(given)) {
        int r = take_stream(given, &handle);
        *ret_stream = handle ? handle : STREAM_LEGACY;
        return r;
    }
    long long n = PyLong_AsLongLong(given);
    if (PyErr_Occurred())
        return -1;
    if (n == 0 || n < -1) {
        PyErr_SetString(PyExc_BufferError,
                        "stream 0 may be two things; 1 is the default stream");
        return -1;
    }
    *ret_stream = n == -1 ? ONEPOT_NO_STREAM : (void *)(intptr_t)n;
    return 0;
}

/* Make the consumer's stream follow the batch. Without streams, wait until it has arrived. */
static int buffer_synchronise(const struct py_buffer *b, PyObject *given)
{
    struct onepot_error error = {0};
    void *stream;
    int r;
    if (b->where == BUFFER_HOST)
        return 0;
    if (parse_stream(given, &stream) < 0 || keep_stream(batch_streams(b), given) < 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    if (given == Py_None && b->where == BUFFER_HOST_DEVICE)
        r = onepot_batch_wait(b->batch, &error);
    else if (given != Py_None && (stream == STREAM_LEGACY || stream == STREAM_PER_THREAD))
        r = onepot_batch_use(b->batch, stream, &error);
    else
        r = onepot_batch_lend(b->batch, stream, &error);
    Py_END_ALLOW_THREADS
    if (r < 0)
        raise_error(r, &error);
    return r;
}

/* e: with what keeps the memory; freed if that fails. */
static PyObject *export_capsule(struct export *e, int versioned, uint64_t flags)
{
    if (versioned) {
        e->versioned.version.major = 1;
        e->versioned.context = e;
        e->versioned.deleter = delete_versioned;
        e->versioned.flags = flags;
    } else {
        e->managed.context = e;
        e->managed.deleter = delete_managed;
    }
    PyObject *capsule =
        PyCapsule_New(e, versioned ? "dltensor_versioned" : "dltensor", capsule_free);
    if (!capsule)
        export_free(e);
    return capsule;
}

static PyObject *buffer_export(struct py_buffer *b, int versioned, uint64_t flags)
{
    struct export *e = calloc(1, sizeof(*e));
    if (!e)
        return PyErr_NoMemory();
    fill_tensor(b, e, versioned ? &e->versioned.tensor : &e->managed.tensor);
    if (b->batch)
        onepot_batch_keep(e->batch = b->batch);
    PyObject *owner = b->batch ? batch_streams(b) : (PyObject *)b;
    e->owner = owner ? Py_NewRef(owner) : NULL;
    return export_capsule(e, versioned, flags);
}

/* The bytes from the first element to the end of the last one. */
static size_t buffer_reach(const struct py_buffer *b)
{
    Py_ssize_t reach = item_types[b->item].bytes;
    for (int d = 0; d < b->dimensions; d++)
        reach += (b->shape[d] - 1) * b->strides[d];
    return b->len ? (size_t)reach : 0;
}

/* A copy of a GPU's memory, gaps between elements included, on the consumer's stream. */
static PyObject *buffer_export_duplicate(const struct py_buffer *b, PyObject *given,
                                         bool is_versioned, bool to_host)
{
    struct onepot_error error = {0};
    void *stream;
    if (parse_stream(given, &stream) < 0)
        return NULL;
    struct export *e = calloc(1, sizeof(*e));
    if (!e)
        return PyErr_NoMemory();
    struct dl_tensor *tensor = is_versioned ? &e->versioned.tensor : &e->managed.tensor;
    fill_tensor(b, e, tensor);
    if (to_host)
        tensor->device = (struct dl_device){DL_CPU, 0};
    PyThreadState *state = PyEval_SaveThread();
    int r = onepot_batch_duplicate(b->batch, to_host, stream, b->bytes, buffer_reach(b), &error,
                                   &e->copy, &tensor->data);
    PyEval_RestoreThread(state);
    if (r == 0)
        return export_capsule(e, is_versioned, DL_FLAG_IS_COPIED);
    export_free(e);
    return raise_error(r, &error);
}

/* A capsule of a copy, in memory of the host. */
static PyObject *buffer_export_copy(const struct py_buffer *b, int versioned)
{
    if (b->where == BUFFER_HOST_DEVICE && batch_await(b->batch) < 0)
        return NULL;
    struct py_buffer *copy = buffer_copy(b);
    PyObject *capsule = copy ? buffer_export(copy, versioned, DL_FLAG_IS_COPIED) : NULL;
    Py_XDECREF((PyObject *)copy);
    return capsule;
}

static PyObject *buffer_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    struct py_buffer *b = (struct py_buffer *)self;
    struct dl_device own = device_of(b), wanted = own;
    int major = 0, minor, copies = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO", names, &stream, &version,
                                     &device, &copy) ||
        (version != Py_None && parse_pair(version, names[1], &major, &minor) < 0) ||
        (device != Py_None && parse_pair(device, names[2], &wanted.type, &wanted.id) < 0) ||
        (copy != Py_None && (copies = PyObject_IsTrue(copy)) < 0))
        return NULL;
    bool is_there = wanted.type == own.type && wanted.id == own.id, is_versioned = major >= 1;
    if (!is_there && (own.type != DL_CUDA || wanted.type != DL_CPU || copy == Py_False))
        return PyErr_Format(PyExc_BufferError, "the memory is on another device");
    if (!is_there && stream != Py_None)
        return PyErr_Format(PyExc_BufferError, "the host's memory has no streams");
    copies |= !is_there;
    if (copies && b->where == BUFFER_CUDA)
        return buffer_export_duplicate(b, stream, is_versioned, !is_there);
    /* A consumer that can't learn that the memory is read-only gets a copy. */
    if (copies || (b->read_only && !is_versioned)) {
        if (copy != Py_False)
            return buffer_export_copy(b, is_versioned);
        PyErr_SetString(PyExc_BufferError,
                        "DLPack before version 1 can't tell that it may not be written to");
        return NULL;
    }
    if (buffer_synchronise(b, stream) < 0)
        return NULL;
    return buffer_export(b, is_versioned, b->read_only ? DL_FLAG_READ_ONLY : 0);
}

static PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused)
{
    struct dl_device device = device_of((struct py_buffer *)self);
    return Py_BuildValue("(ii)", device.type, device.id);
}

/* ---- methods ---- */

static PyObject *buffer_tolist(PyObject *self, PyObject *unused)
{
    PyObject *view = PyMemoryView_FromObject(self);
    PyObject *list = view ? PyObject_CallMethod(view, "tolist", NULL) : NULL;
    Py_XDECREF(view);
    return list;
}

/* torch calls this of its functions, and of methods of tensors, that are given a Buffer. */
static PyObject *buffer_torch_function(PyObject *type, PyObject *args, PyObject *unused)
{
    PyObject *function, *types, *given = NULL, *keywords = NULL;
    if (!PyArg_ParseTuple(args, "OO|O!O!", &function, &types, &PyTuple_Type, &given,
                          &PyDict_Type, &keywords))
        return NULL;
    return given ? copy_call("torch_function", "(OO)", function, given)
                 : copy_call("torch_function", "(O())", function);
}

static PyMethodDef buffer_methods[] = {
    {"tolist", buffer_tolist, METH_NOARGS, "Its numbers, as lists of lists."},
    {"copy_into", (PyCFunction)(void *)buffer_copy_into, METH_VARARGS | METH_KEYWORDS,
     "copy_into(to, stream=None): copy it into memory that stays, such as the input of a CUDA\n"
     "graph. The rest of `to` becomes 0. On a GPU: a tensor of torch, or an array of cupy or\n"
     "numba, on the same GPU; the copy is queued in `stream` (as for record_stream; None:\n"
     "torch's current stream, or the default one), behind the batch's arrival, and the batch\n"
     "may go at once. OSError EBUSY: the stream captures; copy before that."},
    {"__dlpack__", (PyCFunction)(void *)buffer_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A capsule for from_dlpack() of torch, numpy and others; no copy."},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS, "(1, 0): the CPU; (2, N): CUDA."},
    {"__torch_function__", (PyCFunction)(void *)buffer_torch_function,
     METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "A TypeError that says how a Buffer becomes a tensor."},
    {0}};

static PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, (void *)buffer_dealloc},
    {Py_bf_getbuffer, (void *)buffer_get},
    {Py_tp_iter, (void *)PySeqIter_New},
    {Py_sq_length, (void *)buffer_length},
    {Py_sq_item, (void *)buffer_item},
    {Py_mp_length, (void *)buffer_length},
    {Py_mp_subscript, (void *)buffer_subscript},
    {Py_tp_repr, (void *)buffer_repr},
    {Py_tp_getset, buffer_fields},
    {Py_tp_methods, buffer_methods},
    {Py_tp_doc,
     (void
          *)"Memory of a batch or a sample. numpy.asarray(), memoryview(), torch.from_dlpack() "
            "and\n"
            "torch.frombuffer() show it without a copy, and keep it alive. It is a sequence "
            "of\n"
            "numbers, or, with more than one dimension, of Buffers. Sample.data is read-only, "
            "which\n"
            "torch can't express: torch warns, and a write ends the process; use "
            "Sample.read()."},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec buffer_spec = {
    .name = "onepot.Buffer",
    .basicsize = sizeof(struct py_buffer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = buffer_slots,
};

/* ---- Batch ---- */

PyObject *batch_new(PyTypeObject *type, const struct batch_kind *kind,
                    const struct onepot_batch *batch)
{
    PyObject *streams = kind->where == BUFFER_HOST ? NULL : PyList_New(0);
    struct py_batch *b = streams || kind->where == BUFFER_HOST
                             ? (struct py_batch *)PyType_GenericAlloc(type, 0)
                             : NULL;
    if (!b) {
        Py_XDECREF(streams);
        batch_let_go(batch, NULL);
        return NULL;
    }
    b->batch = batch;
    b->kind = *kind;
    Py_XINCREF(kind->image_names);
    Py_INCREF(kind->archive);
    b->streams = streams;
    b->there = (struct onepot_device_batch){.size = sizeof(b->there)};
    if (onepot_batch_on_device(batch, &b->there) < 0)
        b->there = (struct onepot_device_batch){.size = sizeof(b->there),
                                                .data = batch->data,
                                                .bytes = batch->bytes,
                                                .offsets = batch->offsets,
                                                .sizes = batch->sizes,
                                                .indices = batch->indices,
                                                .labels = batch->labels,
                                                .valid = batch->valid};
    return (PyObject *)b;
}

/* A view in `room` bytes of the batch's memory. */
static struct py_buffer *batch_view_new(struct py_batch *self, const void *bytes, uint64_t room,
                                        const struct shape *shape)
{
    struct py_buffer *b =
        buffer_new((PyObject *)self, (void *)(uintptr_t)bytes, room, 0, shape);
    if (!b)
        return NULL;
    b->batch = self->batch;
    b->where = self->kind.where;
    b->device_index = (int)self->there.index;
    return b;
}

static void batch_dealloc(PyObject *self)
{
    batch_let_go(((struct py_batch *)self)->batch, NULL);
    Py_XDECREF(((struct py_batch *)self)->streams);
    Py_XDECREF(((struct py_batch *)self)->kind.image_names);
    Py_DECREF(((struct py_batch *)self)->kind.archive);
    object_free(self);
}

static Py_ssize_t batch_length(PyObject *self)
{
    return (Py_ssize_t)((struct py_batch *)self)->batch->samples;
}

/* The shape of one sample, as dimensions from number `first` on of one of these `bytes`. */
static void shape_sample(const struct py_batch *self, int first, uint64_t bytes,
                         struct shape *shape)
{
    const struct onepot_npy *npy = &self->kind.npy;
    if (self->kind.item >= 0)
        shape_set(shape, first, (int)npy->dimensions, npy->shape, npy->fortran_order);
    else
        shape_set(shape, first, 1, &bytes, false);
}

/*
 * One sample; .npy samples have the shape of their array, also a skipped one, whose place holds
 * zeros. Anybody may have written to the tables, so the place is checked against the data.
 */
static PyObject *batch_view_one(struct py_batch *self, uint64_t i)
{
    const struct onepot_batch *batch = self->batch;
    uint64_t at = batch->offsets[i] < batch->bytes ? batch->offsets[i] : batch->bytes;
    struct shape shape;
    shape.item = self->kind.item >= 0 ? (enum item)self->kind.item : ITEM_UINT8;
    shape_sample(self, 0, batch->sizes[i], &shape);
    return (PyObject *)batch_view_new(self, self->there.data + at, batch->bytes - at, &shape);
}

/* All samples; if they have one size, they are rows. */
static PyObject *batch_view_all(struct py_batch *self)
{
    const struct onepot_batch *batch = self->batch;
    bool is_array = self->kind.item >= 0, has_rows = is_array || batch->stride;
    struct shape shape;
    shape.item = is_array ? (enum item)self->kind.item : ITEM_UINT8;
    shape.lengths[0] = (Py_ssize_t)batch->samples;
    shape.strides[0] = (Py_ssize_t)batch->stride;
    shape_sample(self, has_rows, has_rows ? batch->stride : batch->bytes, &shape);
    return (PyObject *)batch_view_new(self, self->there.data, batch->bytes, &shape);
}

static PyObject *batch_data(PyObject *self, void *unused)
{
    return batch_view_all((struct py_batch *)self);
}

static PyObject *batch_item(PyObject *self, Py_ssize_t i)
{
    struct py_batch *b = (struct py_batch *)self;
    if (i < 0 || (uint64_t)i >= b->batch->samples)
        return PyErr_Format(PyExc_IndexError, "there is no such sample in the batch");
    return batch_view_one(b, (uint64_t)i);
}

/* A table with an element for each sample; the offset of its pointer in b->there. */
static PyObject *batch_table(PyObject *self, void *offset)
{
    struct py_batch *b = (struct py_batch *)self;
    const char *table = (const char *)&b->there + (uintptr_t)offset;
    bool is_valid = (uintptr_t)offset == offsetof(struct onepot_device_batch, valid);
    struct shape shape;
    shape.item = is_valid ? ITEM_BOOL : ITEM_INT64;
    shape_set(&shape, 0, 1, &b->batch->samples, false);
    return (PyObject *)batch_view_new(
        b, *(void *const *)(const void *)table,
        b->batch->samples * (uint64_t)item_types[shape.item].bytes, &shape);
}

static PyObject *batch_names(PyObject *self, void *unused)
{
    const struct py_batch *b = (struct py_batch *)self;
    const struct onepot_archive *archive = leased(b->kind.archive);
    PyObject *names = PyList_New((Py_ssize_t)b->batch->samples);
    for (uint64_t i = 0; names && i < b->batch->samples; i++) {
        PyObject *name = sample_name_of(archive, b->batch->indices[i]);
        if (!name)
            Py_CLEAR(names);
        else
            PyList_SetItem(names, (Py_ssize_t)i, name);
    }
    return names;
}

/*
 * For to(): data and tables as one Buffer, bytes of data, stride, the images ([(type, shape,
 * where each begins in a sample's place)]), and whether a device made these, so that they lie
 * elsewhere.
 */
static PyObject *batch_slab(PyObject *self, PyObject *unused)
{
    struct py_batch *b = (struct py_batch *)self;
    const struct onepot_batch *batch = b->batch;
    const uint8_t *from = b->there.data ? b->there.data : (const uint8_t *)b->there.offsets;
    uint64_t bytes = (uint64_t)(b->there.valid - from) + batch->samples;
    struct shape shape = {.item = ITEM_UINT8};
    shape_set(&shape, 0, 1, &bytes, false);
    PyObject *images = PyList_New(0);
    for (unsigned i = 0; images && i < b->kind.image_count; i++) {
        const uint64_t *s = b->kind.images[i].shape;
        PyObject *one =
            Py_BuildValue("(s(KKK)K)", item_types[b->kind.images[i].item].name,
                          (unsigned long long)s[0], (unsigned long long)s[1],
                          (unsigned long long)s[2], (unsigned long long)b->kind.images[i].at);
        if (!one || PyList_Append(images, one) < 0)
            Py_CLEAR(images);
        Py_XDECREF(one);
    }
    struct py_buffer *view = images ? batch_view_new(b, from, bytes, &shape) : NULL;
    PyObject *result =
        view ? Py_BuildValue("(OKKOi)", view, (unsigned long long)batch->bytes,
                             (unsigned long long)batch->stride, images, b->there.images != NULL)
             : NULL;
    Py_XDECREF(view);
    Py_XDECREF(images);
    return result;
}

/* A number in struct onepot_batch, at this offset. */
static PyObject *batch_number(PyObject *self, void *offset)
{
    const char *batch = (const char *)((struct py_batch *)self)->batch;
    return PyLong_FromUnsignedLongLong(
        *(const uint64_t *)(const void *)(batch + (uintptr_t)offset));
}

/* ---- on a device ---- */

static PyObject *batch_device(PyObject *self, void *unused)
{
    const struct py_batch *b = (struct py_batch *)self;
    if (b->kind.where == BUFFER_HOST)
        return PyUnicode_FromString("cpu");
    return PyUnicode_FromFormat("%s:%u", b->kind.where == BUFFER_CUDA ? "cuda" : "host",
                                b->there.index);
}

/* Images that a device made of the data, or that were decoded, and lie in each sample's place.
 */
static PyObject *batch_view_images(struct py_batch *s, unsigned number)
{
    const uint64_t *one = s->kind.images[number].shape;
    const uint64_t shape[] = {s->batch->samples, one[0], one[1], one[2]};
    struct shape view;
    view.item = s->kind.images[number].item;
    shape_set(&view, 0, 4, shape, false);
    if (s->there.images) {
        uint64_t bytes = (uint64_t)item_types[view.item].bytes;
        for (unsigned i = 0; i < 4; i++)
            bytes *= shape[i];
        return (PyObject *)batch_view_new(s, s->there.images, bytes, &view);
    }
    uint64_t at = s->kind.images[number].at;
    view.strides[0] = (Py_ssize_t)s->batch->stride;
    return (PyObject *)batch_view_new(s, s->there.data + at, s->batch->bytes - at, &view);
}

static PyObject *batch_images(PyObject *self, void *unused)
{
    struct py_batch *s = (struct py_batch *)self;
    if (!s->kind.image_count)
        Py_RETURN_NONE;
    if (!s->kind.image_names)
        return batch_view_images(s, 0);
    PyObject *images = PyDict_New();
    for (unsigned i = 0; images && i < s->kind.image_count; i++) {
        PyObject *one = batch_view_images(s, i);
        if (!one || PyDict_SetItem(images, PyTuple_GetItem(s->kind.image_names, i), one) < 0)
            Py_CLEAR(images);
        Py_XDECREF(one);
    }
    return images;
}

static PyObject *batch_record_stream(PyObject *self, PyObject *stream)
{
    struct py_batch *b = (struct py_batch *)self;
    struct onepot_error error = {0};
    void *handle;
    int r;
    if (take_stream(stream, &handle) < 0 || keep_stream(b->streams, stream) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_batch_use(b->batch, handle, &error);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : Py_NewRef(Py_None);
}

static PyObject *batch_wait(PyObject *self, PyObject *unused)
{
    return batch_await(((struct py_batch *)self)->batch) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef batch_methods[] = {
    {"record_stream", batch_record_stream, METH_O,
     "record_stream(stream): call it for each stream that reads the batch, unless "
     "__dlpack__()\n"
     "was given that stream. The stream waits for the batch, and the memory is not used again\n"
     "before the stream has done all it was given until the batch was released. stream: a\n"
     "number, torch.cuda.Stream or cupy.cuda.Stream. A later __dlpack__() with this stream\n"
     "assumes that its consumer reads in no other. OSError: the device's errors."},
    {"_slab", batch_slab, METH_NOARGS, "For to()."},
    {"wait", batch_wait, METH_NOARGS,
     "Wait on the host until the batch has arrived on its device."},
    {0}};

static PyGetSetDef batch_fields[] = {
    {"data", batch_data, NULL,
     "All samples: a writable Buffer, uint8 [bytes]; uint8 [samples, size] if all samples "
     "have\n"
     "one size; [samples, *shape] in their own type for .npy samples.",
     NULL},
    {"images", batch_images, NULL,
     "Images that were decoded, or that the device made of data: Buffer [samples, channels,\n"
     "height, width] (or channels last); of several parts of each sample, a dict of these by "
     "the\n"
     "parts' names; or None.",
     NULL},
    {"offsets", batch_table, NULL,
     "Where each sample begins in data, in bytes: int64 [samples].",
     (void *)offsetof(struct onepot_device_batch, offsets)},
    {"sizes", batch_table, NULL, "Size of each sample in bytes: int64 [samples].",
     (void *)offsetof(struct onepot_device_batch, sizes)},
    {"labels", batch_table, NULL, "Class of each sample, or -1: int64 [samples].",
     (void *)offsetof(struct onepot_device_batch, labels)},
    {"indices", batch_table, NULL, "Each sample's number in the archive: int64 [samples].",
     (void *)offsetof(struct onepot_device_batch, indices)},
    {"valid", batch_table, NULL, "False for padding and for skipped samples: bool [samples].",
     (void *)offsetof(struct onepot_device_batch, valid)},
    {"names", batch_names, NULL,
     "The name of each sample: list of str. Also where the loader or its archive is closed.",
     NULL},
    {"device", batch_device, NULL,
     "Where it is: 'cuda:1', 'host:0' (the host plays a device) or 'cpu'.", NULL},
    {"epoch", batch_number, NULL, "The epoch that the batch belongs to.",
     (void *)offsetof(struct onepot_batch, epoch)},
    {"first", batch_number, NULL,
     "Position of its first sample among the rank's elements of the epoch.",
     (void *)offsetof(struct onepot_batch, first)},
    {0}};

static PyType_Slot batch_slots[] = {
    {Py_tp_dealloc, (void *)batch_dealloc},
    {Py_sq_length, (void *)batch_length},
    {Py_sq_item, (void *)batch_item},
    {Py_tp_methods, batch_methods},
    {Py_tp_getset, batch_fields},
    {Py_tp_doc, (void *)"The part of onepot.Batch in C; see there."},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec batch_spec = {
    .name = "onepot._core.Batch",
    .basicsize = sizeof(struct py_batch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = batch_slots,
};
