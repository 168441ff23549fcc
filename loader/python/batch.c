/*
 * The part of Batch that is written in C; onepot/_batch.py has the rest. A batch returns to the
 * loader when the object and the last view of it are gone. If the loader has a device, all
 * views show the device's memory.
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

int batch_await(const struct onepot_batch *batch)
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

int take_stream(PyObject *stream, void **ret_handle)
{
    PyObject *number =
        PyLong_Check(stream) ? Py_NewRef(stream) : copy_call("stream_number", "(O)", stream);
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
