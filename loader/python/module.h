/*
 * Shared by the files of the Python module. They know of the library what onepot.h says. What
 * needs no speed is written in Python (onepot/): arguments are checked and completed there.
 *
 * The lock of the interpreter is given up around everything that reads, waits, or walks over
 * many samples.
 *
 * Where there is no such lock (free threading): the handle of an object is set once, by
 * __init__, and a second __init__ is refused; the library's handles may be used by all threads.
 * Everything else that changes is changed and looked at within critical sections of its object,
 * or is atomic. Where there is a lock, critical sections are nothing.
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

extern PyTypeObject archive_type, sample_type, sampler_type, sampler_iterator_type, loader_type,
    loader_iterator_type, batch_type, buffer_type, writer_type;

/* ---- errors ---- */

/* The exception for an error: OSError with its errno, ValueError, MemoryError, IndexError. */
PyObject *raise_error(int err, const struct onepot_error *error);

/* The same with a text for -EINVAL: ValueError. */
PyObject *raise_invalid(int err, const char *text);

/* ---- numbers, and structs of the library as dicts ---- */

/* For O&: what is an integer to Python, of numpy's types, too, and not negative. 0 with an
 * exception. */
int take_count(PyObject *given, void *ret_uint64);
int take_small(PyObject *given, void *ret_uint32); /* below 2^32 */

enum field_kind {
    FIELD_COUNT,   /* uint64_t */
    FIELD_SMALL,   /* uint32_t, or an enum */
    FIELD_SEED,    /* uint64_t, of any sign */
    FIELD_FLAG,    /* bool */
    FIELD_NOT,     /* bool, the other way round */
    FIELD_SECONDS, /* uint64_t: nanoseconds, a float in Python; not for fields_take */
    FIELD_TEXT,    /* const char *, or None; lives as long as the dict */
    FIELD_DIGEST,  /* char[2 * ONEPOT_DIGEST_BYTES + 1] */
};

/* A member of a struct, and its name in Python. A list of them ends with one without a name. */
struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
};

/* Set all of them from a mapping. -1 with an exception: KeyError, TypeError, OverflowError. */
int fields_take(const struct field *fields, PyObject *mapping, void *into);
PyObject *fields_dict(const struct field *fields, const void *from);

/*
 * Rank and world size: as given, or both None: those of the launcher, with a warning where they
 * are not what one may think. -1 with an exception. `world_name` is the argument's name.
 */
int take_rank(PyObject *rank, PyObject *world, const char *world_name, uint64_t *ret_rank,
              uint64_t *ret_world);

/* ---- buffers ---- */

enum item {
    ITEM_BOOL,
    ITEM_INT8,
    ITEM_UINT8,
    ITEM_INT16,
    ITEM_UINT16,
    ITEM_INT32,
    ITEM_UINT32,
    ITEM_INT64,
    ITEM_UINT64,
    ITEM_FLOAT16,
    ITEM_FLOAT32,
    ITEM_FLOAT64,
    ITEM_BFLOAT16, /* only DLPack knows it */
};

struct item_type {
    const char *letter; /* of the struct module: "B", "q" */
    const char *name;   /* numpy's, and bfloat16 */
    const char *npy;    /* in .npy files, behind the byte order; NULL: it is not there */
    Py_ssize_t bytes;
    uint8_t dlpack_code;
};
extern const struct item_type item_types[];

/* Of numpy's "<f4", and of what images are made of. -1: there is none. */
int item_of_npy(const char *type);
enum item item_of_images(enum onepot_float type);

/* "uint8 (16, 3072)" */
PyObject *type_and_shape(enum item item, const Py_ssize_t *shape, int dimensions);

enum buffer_where {
    BUFFER_HOST,
    BUFFER_HOST_DEVICE, /* of the host that plays a device: it may still be on its way */
    BUFFER_CUDA,
};

/*
 * Memory that Python sees, through the buffer protocol and DLPack: what keeps it (owner), its
 * place and its shape. Also the type of the views that batches and samples hand out.
 */
struct py_buffer {
    PyObject_HEAD PyObject *owner;
    void *bytes;
    Py_ssize_t len;
    int read_only;
    enum item item;
    int dimensions;
    Py_ssize_t shape[34], strides[34];
    const struct onepot_batch *batch; /* that it is of, kept by the owner; or NULL */
    enum buffer_where where;
    int device_index;
};

/* `owner` is referred to. With one dimension. */
struct py_buffer *buffer_new(PyObject *owner, void *bytes, Py_ssize_t len, int read_only,
                             enum item item);

/* The same bytes in memory of their own, which may be written to. */
struct py_buffer *buffer_copy(const struct py_buffer *buffer);

/* DLPack. */
PyObject *buffer_dlpack(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused);

/* ---- archives, samples, batches ---- */

struct py_archive {
    PyObject_HEAD struct onepot_archive *archive;
};

/* The archive; NULL with an exception: it was not opened. */
struct onepot_archive *archive_of(PyObject *archive);

/* A sample of an Archive, which exists. */
PyObject *sample_new(PyObject *archive, uint64_t index);
PyObject *sample_name_of(const struct onepot_archive *archive, uint64_t index);

/* Numbers of samples, to be freed with PyMem_Free. Negative ones count from the end, or don't
 * exist. */
uint64_t *take_indices(PyObject *given, uint64_t samples, int from_end, Py_ssize_t *ret_count);

/* Methods of Archive by which the package's datasets make batches in memory of their own:
 * _layout(indices, align=0): (bytes of data, bytes of all);
 * _fill(indices, align, memory[, size]): into a buffer, or into `size` bytes at an address. */
PyObject *archive_layout(PyObject *self, PyObject *args);
PyObject *archive_fill(PyObject *self, PyObject *args);

/* The kind of all batches of a loader. */
struct batch_kind {
    int item; /* of .npy samples, whose type and shape data has; -1: bytes */
    struct onepot_npy npy;
    enum buffer_where where;
    int device_index;
    struct onepot_images images;
};

/* Takes the batch over, also on failure. */
PyObject *batch_new(const struct batch_kind *kind, const struct onepot_batch *batch);

#endif
