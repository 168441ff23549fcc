/*
 * Batch: what a loader hands out. It goes back to the loader when it and the last view of it
 * are gone. Of a loader with a device, all views are of the device's memory.
 */
#include "module.h"

#include <errno.h>
#include <string.h>

struct py_batch {
    PyObject_HEAD const struct onepot_batch *batch;
    struct batch_kind kind;
    struct onepot_device_batch there; /* where it is, on a device or here */
};

PyObject *batch_new(const struct batch_kind *kind, const struct onepot_batch *batch)
{
    struct py_batch *b = PyObject_New(struct py_batch, &batch_type);
    if (!b) {
        onepot_batch_release(batch);
        return NULL;
    }
    b->batch = batch;
    b->kind = *kind;
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

/* A view of its memory. */
static struct py_buffer *view_new(struct py_batch *self, const void *bytes, Py_ssize_t len,
                                  const char *format, Py_ssize_t item_bytes)
{
    struct py_buffer *b =
        buffer_new((PyObject *)self, (void *)(uintptr_t)bytes, len, 0, format, item_bytes);
    if (!b)
        return NULL;
    b->batch = self->batch;
    b->where = self->kind.where;
    b->device_index = self->kind.device_index;
    return b;
}

static void batch_dealloc(PyObject *self)
{
    onepot_batch_release(((struct py_batch *)self)->batch);
    PyObject_Free(self);
}

static Py_ssize_t batch_length(PyObject *self)
{
    return (Py_ssize_t)((struct py_batch *)self)->batch->samples;
}

const char *npy_format(const char *type, Py_ssize_t *ret_item)
{
    static const struct {
        const char *type, *letter;
        Py_ssize_t bytes;
    } known[] = {{"b1", "?", 1}, {"i1", "b", 1}, {"u1", "B", 1}, {"i2", "h", 2},
                 {"u2", "H", 2}, {"i4", "i", 4}, {"u4", "I", 4}, {"i8", "q", 8},
                 {"u8", "Q", 8}, {"f2", "e", 2}, {"f4", "f", 4}, {"f8", "d", 8}};
    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (type[0] != '>' && strcmp(type + 1, known[i].type) == 0) {
            *ret_item = known[i].bytes;
            return known[i].letter;
        }
    return NULL;
}

/* Give a buffer the shape of one sample, behind `first` dimensions that it has. */
static void shape_sample(struct py_buffer *b, const struct onepot_npy *npy, int first)
{
    Py_ssize_t step = b->item_bytes;
    b->dimensions = first + (int)npy->dimensions;
    for (uint32_t i = 0; i < npy->dimensions; i++)
        b->shape[first + (int)i] = (Py_ssize_t)npy->shape[i];
    for (uint32_t i = 0; i < npy->dimensions; i++) {
        uint32_t at = npy->fortran_order ? i : npy->dimensions - 1 - i;
        b->strides[first + (int)at] = step;
        step *= (Py_ssize_t)npy->shape[at];
    }
}

/* Samples [first, first + count) with a dimension for them, or the one sample alone. */
static PyObject *batch_view(struct py_batch *self, uint64_t first, uint64_t count, int alone)
{
    const struct onepot_batch *batch = self->batch;
    Py_ssize_t item = 1, len = (Py_ssize_t)batch->bytes;
    uint8_t *bytes = self->there.data;
    const char *format = self->kind.shaped ? npy_format(self->kind.npy.type, &item) : NULL;
    if (alone) {
        bytes += batch->offsets[first];
        len = (Py_ssize_t)batch->sizes[first];
    }
    struct py_buffer *b = view_new(self, bytes, len, format ? format : "B", format ? item : 1);
    if (!b || !batch->stride || (alone && !format))
        return (PyObject *)b;
    if (!alone) {
        b->dimensions = 2;
        b->shape[0] = (Py_ssize_t)count;
        b->strides[0] = (Py_ssize_t)batch->stride;
        b->shape[1] = (Py_ssize_t)batch->stride / b->item_bytes;
        b->strides[1] = b->item_bytes;
    }
    if (format)
        shape_sample(b, &self->kind.npy, alone ? 0 : 1);
    return (PyObject *)b;
}

static PyObject *batch_data(PyObject *self, void *unused)
{
    struct py_batch *b = (struct py_batch *)self;
    (void)unused;
    return batch_view(b, 0, b->batch->samples, 0);
}

static PyObject *batch_item(PyObject *self, Py_ssize_t i)
{
    struct py_batch *b = (struct py_batch *)self;
    if (i < 0 || (uint64_t)i >= b->batch->samples) {
        PyErr_SetString(PyExc_IndexError, "there is no such sample in the batch");
        return NULL;
    }
    return batch_view(b, (uint64_t)i, 1, 1);
}

static PyObject *batch_tensors(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PySequence_List(self);
}

static PyObject *table(PyObject *self, const void *numbers, const char *format, int bytes)
{
    struct py_batch *b = (struct py_batch *)self;
    Py_ssize_t len = (Py_ssize_t)(b->batch->samples * (uint64_t)bytes);
    return (PyObject *)view_new(b, numbers, len, format, bytes);
}

static PyObject *batch_offsets(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->there.offsets, "q", 8);
}

static PyObject *batch_sizes(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->there.sizes, "q", 8);
}

static PyObject *batch_labels(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->there.labels, "q", 8);
}

static PyObject *batch_indices(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->there.indices, "q", 8);
}

static PyObject *batch_valid(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->there.valid, "?", 1);
}

static PyObject *batch_epoch(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct py_batch *)self)->batch->epoch);
}

static PyObject *batch_first(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct py_batch *)self)->batch->first);
}

/* ---- on a device ---- */

const char *images_format(enum onepot_float type)
{
    static const char *const formats[] = {"", "f", "e", BUFFER_BFLOAT16};
    return formats[type];
}

static PyObject *batch_images(PyObject *self, void *unused)
{
    struct py_batch *s = (struct py_batch *)self;
    const struct onepot_images *images = &s->kind.images;
    Py_ssize_t item = images->type == ONEPOT_FLOAT ? 4 : 2;
    (void)unused;
    if (!s->there.images)
        Py_RETURN_NONE;
    struct py_buffer *b = view_new(s, s->there.images, (Py_ssize_t)s->there.image_bytes,
                                   images_format(images->type), item);
    if (!b)
        return NULL;
    const Py_ssize_t shape[] = {(Py_ssize_t)s->batch->samples, images->channels, images->height,
                                images->width};
    b->dimensions = 4;
    for (int i = 3; i >= 0; i--) {
        b->shape[i] = shape[i];
        b->strides[i] = i == 3 ? item : b->strides[i + 1] * shape[i + 1];
    }
    return (PyObject *)b;
}

/* A number, or what torch (cuda_stream) and cupy (ptr) call a stream. */
static PyObject *stream_number(PyObject *stream)
{
    static const char *const names[] = {"cuda_stream", "ptr"};
    for (unsigned i = 0; i < 2 && !PyLong_Check(stream); i++) {
        PyObject *number = PyObject_GetAttrString(stream, names[i]);
        if (number)
            return number;
        PyErr_Clear();
    }
    if (!PyLong_Check(stream)) {
        PyErr_SetString(PyExc_TypeError, "a stream is a number, or has cuda_stream or ptr");
        return NULL;
    }
    return Py_NewRef(stream);
}

static PyObject *batch_record_stream(PyObject *self, PyObject *stream)
{
    struct py_batch *b = (struct py_batch *)self;
    struct onepot_error error = {0};
    PyObject *number = stream_number(stream);
    if (!number)
        return NULL;
    void *handle = PyLong_AsVoidPtr(number);
    Py_DECREF(number);
    if (PyErr_Occurred())
        return NULL;
    int r;
    Py_BEGIN_ALLOW_THREADS r = onepot_batch_use(b->batch, handle, &error);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, &error);
    Py_RETURN_NONE;
}

static PyObject *batch_wait(PyObject *self, PyObject *unused)
{
    struct py_batch *b = (struct py_batch *)self;
    struct onepot_error error = {0};
    int r;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS r = onepot_batch_wait(b->batch, &error);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, &error);
    Py_RETURN_NONE;
}

/* Of the images, where there are some, else of the data. */
static PyObject *batch_main(PyObject *self)
{
    struct py_batch *b = (struct py_batch *)self;
    return b->there.images ? batch_images(self, NULL) : batch_data(self, NULL);
}

static PyObject *batch_repr(PyObject *self)
{
    const struct onepot_batch *batch = ((struct py_batch *)self)->batch;
    struct py_buffer *b = (struct py_buffer *)batch_main(self);
    PyObject *what = b ? type_and_shape(b->format, b->shape, b->dimensions) : NULL;
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
    {"tensors", batch_tensors, METH_NOARGS, "A list of Buffers, one a sample; no copies."},
    {"record_stream", batch_record_stream, METH_O,
     "A stream that reads the batch, and that no __dlpack__() was told of: it waits for the\n"
     "batch, and the memory is not used again before what it will have been given by then\n"
     "is done. A number, torch.cuda.Stream or cupy.cuda.Stream. __dlpack__() with a stream\n"
     "that was told before takes it for the only one of that consumer."},
    {"wait", batch_wait, METH_NOARGS, "Until the batch is on its device."},
    {"__dlpack__", (PyCFunction)(void *)batch_dlpack, METH_VARARGS | METH_KEYWORDS,
     "Of images, where the loader makes some, else of data."},
    {"__dlpack_device__", batch_dlpack_device, METH_NOARGS, "(1, 0): the CPU; (2, N): CUDA."},
    {0}};

static PyGetSetDef batch_fields[] = {
    {"data", batch_data, NULL,
     "All bytes: a writable Buffer, uint8 [bytes]; [samples, bytes of one] where all samples\n"
     "have one size; of .npy samples [samples, *shape] in their type.",
     NULL},
    {"images", batch_images, NULL,
     "What the device made of the data: [samples, channels, height, width], or None.", NULL},
    {"offsets", batch_offsets, NULL, "Where each sample begins: int64 [samples], bytes.", NULL},
    {"sizes", batch_sizes, NULL, "int64 [samples], bytes.", NULL},
    {"labels", batch_labels, NULL, "Classes, or -1: int64 [samples].", NULL},
    {"indices", batch_indices, NULL, "Numbers in the archive: int64 [samples].", NULL},
    {"valid", batch_valid, NULL, "False for padding and for what was skipped: bool [samples].",
     NULL},
    {"epoch", batch_epoch, NULL, "The epoch that it is of.", NULL},
    {"first", batch_first, NULL, "Which element of the rank's epoch its first one is.", NULL},
    {0}};

static PySequenceMethods batch_sequence = {.sq_length = batch_length, .sq_item = batch_item};

PyTypeObject batch_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Batch",
    .tp_basicsize = sizeof(struct py_batch),
    .tp_dealloc = batch_dealloc,
    .tp_repr = batch_repr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_as_sequence = &batch_sequence,
    .tp_methods = batch_methods,
    .tp_getset = batch_fields,
    .tp_doc = "Samples in one piece of memory; len(batch), batch[i].\n"
              "The memory is used again once the batch and all views of it are gone.",
};
