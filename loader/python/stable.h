/*
 * Python's stable ABI: one extension serves all versions from 3.9 on. An interpreter without a
 * global lock has none (before 3.15), and gets an extension built for its version.
 *
 * The stable ABI names the buffer protocol only from 3.11 on. All versions before have it in
 * the same shape, and PyType_FromSpec takes its slots from 3.9 on; so it is declared here.
 */
#ifndef ONEPOT_PYTHON_STABLE_H
#define ONEPOT_PYTHON_STABLE_H

#include <pyconfig.h>

#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x03090000
#endif
#include <Python.h>

#ifdef Py_LIMITED_API

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

PyAPI_FUNC(void *) PyMem_Calloc(size_t count, size_t size);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
PyAPI_FUNC(int) PyBuffer_IsContiguous(const Py_buffer *view, char order);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);
PyAPI_FUNC(const char *) PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *ret_len);

#define PyBUF_WRITABLE 0x0001
#define PyBUF_FORMAT 0x0004
#define PyBUF_ND 0x0008
#define PyBUF_STRIDES (0x0010 | PyBUF_ND)
#define PyBUF_C_CONTIGUOUS (0x0020 | PyBUF_STRIDES)
#define PyBUF_F_CONTIGUOUS (0x0040 | PyBUF_STRIDES)
#define PyBUF_ANY_CONTIGUOUS (0x0080 | PyBUF_STRIDES)
#define Py_bf_getbuffer 1

static inline PyObject *onepot_new_ref(PyObject *object)
{
    Py_INCREF(object);
    return object;
}
#undef Py_NewRef
#define Py_NewRef(object) onepot_new_ref((PyObject *)(object))

#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }

#endif

#endif
