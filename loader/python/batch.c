/*
 * Batch: what a loader hands out. It returns to the loader when the object and the last view of
 * it are gone. If the loader has a device, all views show the device's memory.
 */
#include "module.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

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

void batch_let_go(const struct onepot_batch *batch, struct onepot_duplicate *copy)
{
    PyThreadState *state = (batch || copy) && holds_interpreter() ? PyEval_SaveThread() : NULL;
    onepot_batch_release(batch);
    onepot_duplicate_free(copy);
    if (state)
        PyEval_RestoreThread(state);
}

PyObject *batch_new(const struct batch_kind *kind, const struct onepot_batch *batch)
{
    PyObject *streams = kind->where == BUFFER_HOST ? NULL : PyList_New(0);
    struct py_batch *b = streams || kind->where == BUFFER_HOST
                             ? PyObject_New(struct py_batch, batch_type)
                             : NULL;
    if (!b) {
        Py_XDECREF(streams);
        batch_let_go(batch, NULL);
        return NULL;
    }
    b->batch = batch;
    b->kind = *kind;
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
    (void)unused;
    return batch_view_all((struct py_batch *)self);
}

static PyObject *batch_item(PyObject *self, Py_ssize_t i)
{
    struct py_batch *b = (struct py_batch *)self;
    if (i < 0 || (uint64_t)i >= b->batch->samples)
        return PyErr_Format(PyExc_IndexError, "there is no such sample in the batch");
    return batch_view_one(b, (uint64_t)i);
}

/* A table with an element for each sample. */
struct table {
    size_t offset; /* of its pointer in struct onepot_device_batch */
    enum item item;
};

static struct table table_offsets = {offsetof(struct onepot_device_batch, offsets), ITEM_INT64},
                    table_sizes = {offsetof(struct onepot_device_batch, sizes), ITEM_INT64},
                    table_labels = {offsetof(struct onepot_device_batch, labels), ITEM_INT64},
                    table_indices = {offsetof(struct onepot_device_batch, indices), ITEM_INT64},
                    table_valid = {offsetof(struct onepot_device_batch, valid), ITEM_BOOL};

static PyObject *batch_table(PyObject *self, void *table)
{
    struct py_batch *b = (struct py_batch *)self;
    const struct table *t = table;
    const void *numbers = *(void *const *)(const void *)((const char *)&b->there + t->offset);
    struct shape shape;
    shape.item = t->item;
    shape_set(&shape, 0, 1, &b->batch->samples, false);
    return (PyObject *)batch_view_new(
        b, numbers, b->batch->samples * (uint64_t)item_types[t->item].bytes, &shape);
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
    (void)unused;
    if (b->kind.where == BUFFER_HOST)
        return PyUnicode_FromString("cpu");
    return PyUnicode_FromFormat("%s:%u", b->kind.where == BUFFER_CUDA ? "cuda" : "host",
                                b->there.index);
}

static PyObject *batch_images(PyObject *self, void *unused)
{
    struct py_batch *s = (struct py_batch *)self;
    const uint64_t *one = s->kind.image_shape;
    const uint64_t shape[] = {s->batch->samples, one[0], one[1], one[2]};
    (void)unused;
    if (!s->kind.has_images)
        Py_RETURN_NONE;
    uint64_t bytes = (uint64_t)item_types[s->kind.image_item].bytes;
    for (unsigned i = 0; i < 4; i++)
        bytes *= shape[i];
    struct shape view;
    view.item = s->kind.image_item;
    shape_set(&view, 0, 4, shape, false);
    /* A device made them of the data, or they were decoded and are the data. */
    return (PyObject *)(s->there.images
                            ? batch_view_new(s, s->there.images, bytes, &view)
                            : batch_view_new(s, s->there.data, s->batch->bytes, &view));
}

/* NULL without an exception: there is none. */
static PyObject *attribute_of(PyObject *object, const char *name)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (!value && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return value;
}

/* A pair (version, handle), which a method returns, or an attribute is. */
static PyObject *protocol_number(PyObject *shown)
{
    PyObject *pair =
        PyCallable_Check(shown) ? PyObject_CallFunctionObjArgs(shown, NULL) : Py_NewRef(shown);
    long version = 0;
    PyObject *number = NULL;
    if (!pair)
        return NULL;
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "lO", &version, &number)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "__cuda_stream__ is not (version, handle)");
    } else if (version != 0) {
        PyErr_Format(PyExc_ValueError, "__cuda_stream__ of version %ld, and only 0 is known",
                     version);
    }
    number = PyErr_Occurred() ? NULL : Py_NewRef(number);
    Py_DECREF(pair);
    return number;
}

/* By the protocol of cuda.core and others, or of older torch (cuda_stream) or cupy (ptr). */
static PyObject *stream_number(PyObject *stream)
{
    static const char *const names[] = {"cuda_stream", "ptr"};
    if (PyLong_Check(stream))
        return Py_NewRef(stream);
    PyObject *shown = attribute_of(stream, "__cuda_stream__"), *number = NULL;
    if (shown) {
        number = protocol_number(shown);
        Py_DECREF(shown);
        return number;
    }
    for (unsigned i = 0; i < 2 && !number && !PyErr_Occurred(); i++)
        number = attribute_of(stream, names[i]);
    if (!number && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError,
                        "a stream is a number, or has __cuda_stream__, cuda_stream or ptr");
    return number;
}

int take_stream(PyObject *stream, void **ret_handle)
{
    PyObject *number = stream_number(stream);
    if (!number)
        return -1;
    *ret_handle = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *batch_streams(const struct py_buffer *view)
{
    PyObject *owner = view->owner;
    while (Py_TYPE(owner) == buffer_type)
        owner = ((struct py_buffer *)owner)->owner;
    return ((struct py_batch *)owner)->streams;
}

int keep_stream(PyObject *streams, PyObject *stream)
{
    return !streams || stream == Py_None || PyLong_Check(stream)
               ? 0
               : PyList_Append(streams, stream);
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
    if (r < 0)
        return raise_error(r, &error);
    Py_RETURN_NONE;
}

static PyObject *batch_wait(PyObject *self, PyObject *unused)
{
    struct py_batch *b = (struct py_batch *)self;
    struct onepot_error error = {0};
    int r;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_batch_wait(b->batch, &error);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, &error);
    Py_RETURN_NONE;
}

/* The images if there are some, else the data. */
static PyObject *batch_main(PyObject *self)
{
    struct py_batch *b = (struct py_batch *)self;
    return b->kind.has_images ? batch_images(self, NULL) : batch_data(self, NULL);
}

static PyObject *batch_repr(PyObject *self)
{
    const struct onepot_batch *batch = ((struct py_batch *)self)->batch;
    struct py_buffer *b = (struct py_buffer *)batch_main(self);
    PyObject *what = b ? type_and_shape(b->item, b->shape, b->dimensions) : NULL;
    PyObject *text =
        what ? PyUnicode_FromFormat(
                   "<onepot.Batch of %zd samples: %U, from element %llu of epoch %llu>",
                   batch_length(self), what, (unsigned long long)batch->first,
                   (unsigned long long)batch->epoch)
             : NULL;
    Py_XDECREF(what);
    Py_XDECREF(b);
    return text;
}

/* The buffer as a tensor, if torch is loaded. Takes a reference to it. */
static PyObject *batch_as_tensor(PyObject *buffer)
{
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    PyObject *tensor = buffer;
    if (buffer && torch && PyObject_HasAttrString(torch, "from_dlpack")) {
        tensor = PyObject_CallMethod(torch, "from_dlpack", "O", buffer);
        Py_DECREF(buffer);
    }
    return tensor;
}

static PyObject *batch_tensors(PyObject *self, PyObject *unused)
{
    if (((struct py_batch *)self)->kind.has_images)
        return batch_as_tensor(batch_images(self, unused));
    return PySequence_List(self);
}

static PyObject *batch_copy_into(PyObject *self, PyObject *args, PyObject *keywords)
{
    PyObject *buffer = batch_main(self);
    PyObject *none = buffer ? buffer_copy_into(buffer, args, keywords) : NULL;
    Py_XDECREF(buffer);
    return none;
}

static PyObject *batch_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    PyObject *buffer = batch_main(self);
    PyObject *capsule = buffer ? buffer_dlpack(buffer, args, keywords) : NULL;
    Py_XDECREF(buffer);
    return capsule;
}

static PyObject *batch_dlpack_device(PyObject *self, PyObject *unused)
{
    PyObject *buffer = batch_main(self);
    PyObject *device = buffer ? buffer_dlpack_device(buffer, unused) : NULL;
    Py_XDECREF(buffer);
    return device;
}

static PyMethodDef batch_methods[] = {
    {"tensors", batch_tensors, METH_NOARGS,
     "Of images: all of them, [samples, *shape], as a tensor if torch is loaded, else a "
     "Buffer.\n"
     "Of other samples: a list of Buffers, uint8 [size]. No copies."},
    {"record_stream", batch_record_stream, METH_O,
     "record_stream(stream): call it for each stream that reads the batch, unless "
     "__dlpack__()\n"
     "was given that stream. The stream waits for the batch, and the memory is not used again\n"
     "before the stream has done all it was given until the batch was released. stream: a\n"
     "number, torch.cuda.Stream or cupy.cuda.Stream. A later __dlpack__() with this stream\n"
     "assumes that its consumer reads in no other. OSError: the device's errors."},
    {"wait", batch_wait, METH_NOARGS,
     "Wait on the host until the batch has arrived on its device."},
    {"copy_into", (PyCFunction)(void *)batch_copy_into, METH_VARARGS | METH_KEYWORDS,
     "copy_into(to, stream=None): as Buffer.copy_into, of images if the loader makes some, "
     "else of data."},
    {"__dlpack__", (PyCFunction)(void *)batch_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A DLPack capsule of images if the loader makes some, else of data."},
    {"__dlpack_device__", batch_dlpack_device, METH_NOARGS, "(1, 0): the CPU; (2, N): CUDA."},
    {0}};

static PyGetSetDef batch_fields[] = {
    {"data", batch_data, NULL,
     "All samples: a writable Buffer, uint8 [bytes]; uint8 [samples, size] if all samples "
     "have\n"
     "one size; [samples, *shape] in their own type for .npy samples.",
     NULL},
    {"images", batch_images, NULL,
     "Images that were decoded, or that the device made of data: Buffer [samples, channels,\n"
     "height, width] (or channels last), or None.",
     NULL},
    {"offsets", batch_table, NULL,
     "Where each sample begins in data, in bytes: int64 [samples].", &table_offsets},
    {"sizes", batch_table, NULL, "Size of each sample in bytes: int64 [samples].",
     &table_sizes},
    {"labels", batch_table, NULL, "Class of each sample, or -1: int64 [samples].",
     &table_labels},
    {"indices", batch_table, NULL, "Each sample's number in the archive: int64 [samples].",
     &table_indices},
    {"valid", batch_table, NULL, "False for padding and for skipped samples: bool [samples].",
     &table_valid},
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
    {Py_tp_repr, (void *)batch_repr},
    {Py_sq_length, (void *)batch_length},
    {Py_sq_item, (void *)batch_item},
    {Py_tp_methods, batch_methods},
    {Py_tp_getset, batch_fields},
    {Py_tp_doc,
     (void *)"The samples of one batch in one piece of memory; len(batch), batch[i].\n"
             "The memory is used again when the batch and all views of it are gone.\n"
             "Any number of threads may use a batch."},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec batch_spec = {
    .name = "onepot.Batch",
    .basicsize = sizeof(struct py_batch),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = batch_slots,
};
