/*
 * Copies of a batch into memory that stays where it is: a CUDA graph reads the same memory each
 * time, and compiled code wants one shape.
 */
#include "module.h"

#include <errno.h>
#include <string.h>

/* Memory of the host, or of a host that plays a device: it is done at the return. */
static int copy_on_host(const struct py_buffer *b, void *to, unsigned long long room,
                        struct onepot_error *error)
{
    int r = 0;
    if (b->where == BUFFER_HOST_DEVICE) {
        Py_BEGIN_ALLOW_THREADS
        r = onepot_batch_wait(b->batch, error);
        Py_END_ALLOW_THREADS
    }
    if (r < 0 || (unsigned long long)b->len > room)
        return r < 0 ? r : -EINVAL;
    buffer_write(b, to);
    memset((char *)to + b->len, 0, room - (size_t)b->len);
    return 0;
}

static int copy_there(const struct py_buffer *b, PyObject *stream, void *to,
                      unsigned long long room, struct onepot_error *error)
{
    void *handle = NULL;
    int r;
    if (take_stream(stream, &handle) < 0 || keep_stream(batch_streams(b), stream) < 0)
        return -EINVAL;
    if (!buffer_is_dense(b)) {
        PyErr_SetString(PyExc_BufferError,
                        "a GPU copies arrays in C order; this view has gaps or another order");
        return -EINVAL;
    }
    Py_BEGIN_ALLOW_THREADS
    r = onepot_batch_copy(b->batch, handle, to, room, b->bytes, (size_t)b->len, error);
    Py_END_ALLOW_THREADS
    return r;
}

/* (memory, bytes, stream) */
static PyObject *find_target(PyObject *self, PyObject *to, PyObject *stream)
{
    PyObject *module = PyImport_ImportModule("onepot._copy");
    PyObject *target =
        module ? PyObject_CallMethod(module, "target", "OOO", self, to, stream) : NULL;
    Py_XDECREF(module);
    return target;
}

PyObject *buffer_copy_into(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"to", "stream", NULL};
    const struct py_buffer *b = (struct py_buffer *)self;
    struct onepot_error error = {0};
    PyObject *to, *stream = Py_None, *memory;
    unsigned long long room = 0;
    Py_buffer view = {0};
    void *address = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O", names, &to, &stream))
        return NULL;
    PyObject *target = find_target(self, to, stream);
    int r = target && PyArg_ParseTuple(target, "OKO", &memory, &room, &stream) ? 0 : -EINVAL;
    if (r == 0 && take_memory(memory, &room, &view, &address) < 0)
        r = -EINVAL;
    if (r == 0)
        r = b->where == BUFFER_CUDA ? copy_there(b, stream, address, room, &error)
                                    : copy_on_host(b, address, room, &error);
    if (view.obj)
        PyBuffer_Release(&view);
    Py_XDECREF(target);
    if (PyErr_Occurred())
        return NULL;
    if (r == -EINVAL && (unsigned long long)b->len > room)
        return PyErr_Format(PyExc_ValueError,
                            "%zd bytes are copied, and there is room for %llu", b->len, room);
    if (r < 0)
        return raise_error(r, &error);
    Py_RETURN_NONE;
}
