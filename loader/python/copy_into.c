/*
 * Copies of a batch into memory that stays where it is: a CUDA graph reads the same memory each
 * time, and compiled code wants one shape.
 */
#include "module.h"

#include <stdarg.h>
#include <string.h>

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

PyObject *buffer_copy_into(PyObject *self, PyObject *args, PyObject *keywords)
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
