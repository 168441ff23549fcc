/*
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

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

struct request {
    PyObject *stream; /* or None */
    int versioned, never_copy, copies;
    bool to_host; /* from a GPU */
};

/* A pair of numbers. */
static int parse_pair(PyObject *given, const char *name, int *ret_first, int *ret_second)
{
    if (PyTuple_Check(given) && PyArg_ParseTuple(given, "ii", ret_first, ret_second))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s is a pair of numbers", name);
    return -1;
}

static int parse_request(const struct py_buffer *b, PyObject *args, PyObject *keywords,
                         struct request *ret)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    struct dl_device own = device_of(b), wanted = own;
    int major = 0, minor;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO", names, &stream, &version,
                                     &device, &copy) ||
        (version != Py_None && parse_pair(version, names[1], &major, &minor) < 0) ||
        (device != Py_None && parse_pair(device, names[2], &wanted.type, &wanted.id) < 0))
        return -1;
    bool is_there = wanted.type == own.type && wanted.id == own.id;
    int copies = copy != Py_None ? PyObject_IsTrue(copy) : 0;
    *ret = (struct request){.stream = stream,
                            .versioned = major >= 1,
                            .never_copy = copy == Py_False,
                            .copies = copies > 0 || !is_there,
                            .to_host = !is_there};
    if (copies >= 0 && !is_there &&
        (own.type != DL_CUDA || wanted.type != DL_CPU || ret->never_copy))
        PyErr_SetString(PyExc_BufferError, "the memory is on another device");
    else if (copies >= 0 && !is_there && stream != Py_None)
        PyErr_SetString(PyExc_BufferError, "the host's memory has no streams");
    return PyErr_Occurred() ? -1 : 0;
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
static PyObject *buffer_export_duplicate(const struct py_buffer *b,
                                         const struct request *request)
{
    struct onepot_error error = {0};
    void *stream;
    if (parse_stream(request->stream, &stream) < 0)
        return NULL;
    struct export *e = calloc(1, sizeof(*e));
    if (!e)
        return PyErr_NoMemory();
    struct dl_tensor *tensor = request->versioned ? &e->versioned.tensor : &e->managed.tensor;
    fill_tensor(b, e, tensor);
    if (request->to_host)
        tensor->device = (struct dl_device){DL_CPU, 0};
    PyThreadState *state = PyEval_SaveThread();
    int r = onepot_batch_duplicate(b->batch, request->to_host, stream, b->bytes,
                                   buffer_reach(b), &error, &e->copy, &tensor->data);
    PyEval_RestoreThread(state);
    if (r == 0)
        return export_capsule(e, request->versioned, DL_FLAG_IS_COPIED);
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

PyObject *buffer_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    struct py_buffer *b = (struct py_buffer *)self;
    struct request request;
    if (parse_request(b, args, keywords, &request) < 0)
        return NULL;
    if (request.copies && b->where == BUFFER_CUDA)
        return buffer_export_duplicate(b, &request);
    /* A consumer that can't learn that the memory is read-only gets a copy. */
    if (request.copies || (b->read_only && !request.versioned)) {
        if (!request.never_copy)
            return buffer_export_copy(b, request.versioned);
        PyErr_SetString(PyExc_BufferError,
                        "DLPack before version 1 can't tell that it may not be written to");
        return NULL;
    }
    if (buffer_synchronise(b, request.stream) < 0)
        return NULL;
    return buffer_export(b, request.versioned, b->read_only ? DL_FLAG_READ_ONLY : 0);
}

PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused)
{
    struct dl_device device = device_of((struct py_buffer *)self);
    return Py_BuildValue("(ii)", device.type, device.id);
}
