/*
 * Shared by the files of the Python module. They use what onepot.h offers, python_api.h and
 * sampler.h. What needs no speed is written in Python (onepot/), arguments checks included.
 *
 * The interpreter's lock is given up around everything that reads, waits, or walks over many
 * samples.
 *
 * With free threading there is no such lock. Then an object's handle is set once, by __init__,
 * and a second __init__ is refused; all threads may use the library's handles. Everything else
 * that changes is used only within critical sections of its object. With the lock, critical
 * sections do nothing.
 */
#ifndef ONEPOT_PYTHON_MODULE_H
#define ONEPOT_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include "stable.h"

#include "onepot.h"
#include "onepot_device.h"
#include "python_api.h"

/* The types, and the specifications that the first import makes them from. */
extern PyTypeObject *archive_type, *sample_type, *buffer_type, *epoch_type;
extern PyType_Spec archive_spec, sample_spec, batch_spec, buffer_spec, epoch_spec;

/*
 * Functions on handles: a loader, a sampler or a writer of the library in a capsule, which the
 * package's classes keep. A call holds a reference, so that a class may give its own up at any
 * time: the last one frees the handle.
 */
extern PyMethodDef loader_functions[], sampler_functions[], writer_functions[];

/* The last step of a dealloc: give up the memory, and the type. */
void object_free(PyObject *self);

/* tp_new of types whose objects only this module makes: a TypeError. */
PyObject *object_refuse_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* ---- errors ---- */

/*
 * The exception for an error: OSError with its errno, ValueError, MemoryError, IndexError. None
 * for -ECANCELED, if a signal's handler raised one.
 */
PyObject *raise_error(int err, const struct onepot_error *error);

/* Work of the library goes on as long as no signal's handler raises an exception. */
extern const struct permutation_stop stop_at_signals;

/* ---- numbers, and the library's structs as dicts ---- */

/*
 * Converters for O&: anything that Python takes for an integer, numpy's types included, and
 * that is not negative. They return 0 with an exception set on failure.
 */
int take_count(PyObject *given, void *ret_uint64);
int take_small(PyObject *given, void *ret_uint32); /* below 2^32 */

enum field_kind {
    FIELD_COUNT,   /* uint64_t */
    FIELD_SMALL,   /* uint32_t, or an enum */
    FIELD_SEED,    /* uint64_t, of any sign */
    FIELD_FLAG,    /* bool */
    FIELD_NOT,     /* bool, negated */
    FIELD_SECONDS, /* uint64_t: nanoseconds, a float in Python; not for fields_take */
    FIELD_TEXT,    /* const char *, or None; lives as long as the dict */
    FIELD_DIGEST,  /* char[2 * ONEPOT_DIGEST_BYTES + 1] */
};

/*
 * A member of a struct, and its name in Python. A list of them ends with an entry without a
 * name.
 */
struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
};

/* Set all fields from a mapping. -1 with an exception: KeyError, TypeError, OverflowError. */
int fields_take(const struct field *fields, PyObject *mapping, void *into);
PyObject *fields_dict(const struct field *fields, const void *from);

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
    ITEM_BFLOAT16, /* known to DLPack only */
};

struct item_type {
    const char *letter; /* code of the struct module: "B", "q" */
    const char *name;   /* numpy's name, or "bfloat16" */
    const char *npy;    /* code in .npy files after the byte order; NULL: there is none */
    Py_ssize_t bytes;
    uint8_t dlpack_code;
};
extern const struct item_type item_types[];

/* "uint8 (16, 3072)" */
PyObject *type_and_shape(enum item item, const Py_ssize_t *shape, int dimensions);

/* numpy's 32, the samples of a batch, and one to spare. */
#define BUFFER_DIMENSIONS 34

enum buffer_where {
    BUFFER_HOST,
    BUFFER_HOST_DEVICE, /* memory of the host device; it may still be on its way */
    BUFFER_CUDA,
};

/*
 * Memory that Python sees through the buffer protocol and DLPack: its owner, which keeps it
 * alive, its address and its shape. Batches and samples hand out views of this type.
 */
struct py_buffer {
    PyObject_HEAD PyObject *owner;
    void *bytes;
    Py_ssize_t len;  /* of the elements: it follows from the shape */
    Py_ssize_t room; /* of the owner's bytes from `bytes` on; at least as far as elements lie */
    int read_only;
    enum item item;
    int dimensions;
    Py_ssize_t shape[BUFFER_DIMENSIONS], strides[BUFFER_DIMENSIONS];
    /* the batch it belongs to, which the owner keeps; or NULL */
    const struct onepot_batch *batch;
    enum buffer_where where;
    int device_index;
};

/* `len` bytes, or the elements that they hold, in one dimension. */
struct py_buffer *buffer_of_bytes(PyObject *owner, void *bytes, uint64_t len, int read_only,
                                  enum item item);

/* ---- archives, samples, batches ---- */

/*
 * An Archive's handle of the library lies in a capsule. Each call, each Buffer that shows the
 * archive's bytes, holds a reference to it, so that close() takes nothing away from another
 * thread or a Buffer: the last reference frees the handle.
 */
struct py_archive {
    PyObject_HEAD PyObject *capsule; /* NULL: there is none yet, or it was closed */
    int is_closed;
};

/* A reference to the capsule. NULL with an exception: there is no handle, or none any more. */
PyObject *archive_lease(PyObject *archive);

/* Ends with its scope. */
#define auto_lease __attribute__((cleanup(lease_endp))) PyObject *

static inline void lease_endp(PyObject **reference)
{
    Py_XDECREF(*reference);
}

/* The handle, or NULL. */
static inline void *leased(PyObject *reference)
{
    return reference ? PyCapsule_GetPointer(reference, NULL) : NULL;
}

/* A sample of an Archive; the sample must exist. */
PyObject *sample_new(PyObject *archive, uint64_t index);
PyObject *sample_name_of(const struct onepot_archive *archive, uint64_t index);

/*
 * Sample numbers, to be freed with PyMem_Free. With `from_end`, negative numbers count from the
 * end; otherwise they are an error.
 */
uint64_t *take_indices(PyObject *given, uint64_t samples, int from_end, Py_ssize_t *ret_count);

/*
 * The options of pictures, as onepot/_images.py gives them: a tuple, or a list of pairs (name
 * of a part as bytes, tuple), which the names live as long as. Writes ONEPOT_IMAGES_MAX structs
 * at most.
 */
int take_images(PyObject *given, struct onepot_images *ret_images);

/*
 * Memory for a batch: an address, as torch gives it, whose *size was given, or any writable
 * buffer, which is to be released if view->obj is set.
 */
int take_memory(PyObject *given, unsigned long long *size, Py_buffer *view, void **ret_address);

/* The kind of a loader's batches. */
struct batch_kind {
    int item; /* type of .npy samples; -1: bytes */
    struct onepot_npy npy;
    enum buffer_where where;
    struct {
        enum item item;
        uint64_t shape[3]; /* channels first, or last */
        uint64_t at;       /* where it begins in a sample's place */
    } images[ONEPOT_IMAGES_MAX];
    unsigned image_count;
    PyObject *image_names; /* a tuple: of the parts that they are made of; or NULL */
    PyObject *archive;     /* the lease of the archive whose samples these are */
};

/* An object of `type`, a class of Batch. Takes the batch over, also on failure. */
PyObject *batch_new(PyTypeObject *type, const struct batch_kind *kind,
                    const struct onepot_batch *batch);

#endif
