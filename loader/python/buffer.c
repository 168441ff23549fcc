/*
 * Buffer: memory of a batch or a sample as Python sees it, and its element types.
 */
#include "module.h"

#include <stdarg.h>
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

/* Unsigned, as a shape that is too large may wrap here: shape_measure refuses it. */
void shape_set(struct shape *shape, int first, int count, const uint64_t *lengths,
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

struct py_buffer *buffer_new(PyObject *owner, void *bytes, uint64_t room, int read_only,
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

struct py_buffer *buffer_copy(const struct py_buffer *buffer)
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

PyObject *copy_call(const char *function, const char *format, ...)
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
