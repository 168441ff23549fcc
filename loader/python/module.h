/*
 * What the files of the Python module share. They know of the library what onepot.h says.
 *
 * The lock of the interpreter is given up around everything that reads, waits, or walks over
 * many samples.
 *
 * Where there is no such lock (free threading): what an object is about is set once, by
 * __init__, and a second __init__ is refused; the library's handles may be used by all threads.
 * What else changes is changed and looked at within critical sections of its object, or is
 * atomic. Where there is one, they are nothing.
 */
#ifndef ONEPOT_PYTHON_MODULE_H
#define ONEPOT_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>

#include "onepot.h"
#include "onepot_device.h"

#if PY_VERSION_HEX < 0x030a0000
static inline PyObject *onepot_new_ref(PyObject *object)
{
    Py_INCREF(object);
    return object;
}
#define Py_NewRef(object) onepot_new_ref((PyObject *)(object))
#endif

#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#define Py_BEGIN_CRITICAL_SECTION2(one, two) {
#define Py_END_CRITICAL_SECTION2() }
#endif

/* For O&: what is an integer to Python, of numpy's types, too, and not negative. 0 with an
 * exception. */
int take_count(PyObject *given, void *ret_unsigned_long_long);
int take_small(PyObject *given, void *ret_uint32); /* below 2^32 */

extern PyTypeObject archive_type, names_type, sample_type, sampler_type, sampler_iterator_type,
    loader_type, loader_iterator_type, batch_type, buffer_type, writer_type;

struct py_archive {
    PyObject_HEAD struct onepot_archive *archive;
    PyObject *arguments; /* by which another process opens the same: see __reduce__ */
};

enum buffer_where {
    BUFFER_HOST,
    BUFFER_HOST_DEVICE, /* of the host that plays a device: it may still be on its way */
    BUFFER_CUDA,
};

/* The format of a type that the struct module has no letter for. */
#define BUFFER_BFLOAT16 "bf"

/*
 * Memory that Python sees, through the buffer protocol and DLPack: what keeps it (owner), its
 * place and its shape. Also the type of the views that batches and samples hand out.
 */
struct py_buffer {
    PyObject_HEAD PyObject *owner;
    void *bytes;
    Py_ssize_t len;
    int read_only;
    char format[4]; /* of the struct module: "B", "q" */
    Py_ssize_t item_bytes;
    int dimensions;
    Py_ssize_t shape[34], strides[34];
    const struct onepot_batch *batch; /* that it is of, kept by the owner; or NULL */
    enum buffer_where where;
    int device_index;
};

/* `owner` is referred to. With one dimension of len / item_bytes. */
struct py_buffer *buffer_new(PyObject *owner, void *bytes, Py_ssize_t len, int read_only,
                             const char *format, Py_ssize_t item_bytes);

/* The same bytes in memory of their own, which may be written to. */
struct py_buffer *buffer_copy(const struct py_buffer *buffer);

/* DLPack. */
PyObject *buffer_dlpack(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused);

/* "uint8 (16, 3072)", of a letter of the struct module. */
PyObject *type_and_shape(const char *format, const Py_ssize_t *shape, int dimensions);

/* That letter for numpy's "<f4", and for what images are; NULL where there is none. */
const char *npy_format(const char *type, Py_ssize_t *ret_item_bytes);
const char *images_format(enum onepot_float type);

/* What all batches of a loader are. */
struct batch_kind {
    int shaped; /* data has the type and shape of .npy samples: */
    struct onepot_npy npy;
    enum buffer_where where;
    int device_index;
    struct onepot_images images;
};

/* Takes the batch over, also on failure. */
PyObject *batch_new(const struct batch_kind *kind, const struct onepot_batch *batch);

/* A sample of an Archive, which exists; its names. */
PyObject *sample_new(PyObject *archive, uint64_t index);
PyObject *names_new(PyObject *archive);

/* Rank and world size of the launcher, with a warning where they are not what one may think. */
int take_launcher(uint64_t *ret_rank, uint64_t *ret_world_size);

/* What it is about; NULL with an exception: it was not opened. */
struct onepot_archive *archive_of(PyObject *archive);

/* The exception for an error: OSError with its errno, ValueError, MemoryError, IndexError. */
PyObject *raise_error(int err, const struct onepot_error *error);

#endif
