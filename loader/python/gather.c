/*
 * Batches in memory that the caller provides: torch tensors in shared memory, or a bytearray.
 */
#include "module.h"

#define SIGNALS_PACE 65536u /* indices between looks at signals */

/* One index. -1 with an exception. */
static int take_index(PyObject *given, uint64_t samples, int from_end, uint64_t *ret)
{
    PyObject *number = PyNumber_Index(given);
    int64_t index = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
        index = INT64_MIN; /* there is no such sample, either */
    }
    *ret = (uint64_t)(index < 0 && from_end ? index + (int64_t)samples : index);
    if (*ret < samples)
        return 0;
    PyErr_SetString(PyExc_IndexError, "there is no such sample");
    return -1;
}

static int grow_indices(uint64_t **indices, size_t *room)
{
    size_t more = *room ? 2 * *room : 64;
    uint64_t *moved = more > PY_SSIZE_T_MAX / sizeof(**indices)
                          ? NULL
                          : PyMem_Realloc(*indices, more * sizeof(**indices));
    if (!moved) {
        PyErr_NoMemory();
        return -1;
    }
    *indices = moved;
    *room = more;
    return 0;
}

/* One by one, so that the first one that is wrong ends it, however many follow. */
uint64_t *take_indices(PyObject *given, uint64_t samples, int from_end, Py_ssize_t *ret_count)
{
    PyObject *items = PyObject_GetIter(given), *item;
    uint64_t *indices = NULL;
    size_t count = 0, room = 0;
    int r = items ? grow_indices(&indices, &room) : -1;
    while (r == 0 && (item = PyIter_Next(items))) {
        r = count == room ? grow_indices(&indices, &room) : 0;
        if (r == 0)
            r = take_index(item, samples, from_end, &indices[count++]);
        Py_DECREF(item);
        if (r == 0 && count % SIGNALS_PACE == 0)
            r = PyErr_CheckSignals();
    }
    Py_XDECREF(items);
    if (PyErr_Occurred()) {
        PyMem_Free(indices);
        return NULL;
    }
    *ret_count = (Py_ssize_t)count;
    return indices;
}

/*
 * Read a batch that is asked for. Its samples are to be freed with PyMem_Free. images: None, or
 * a tuple for take_images, which makes `plans` of it, as many as ONEPOT_IMAGES_MAX.
 */
static int take_batch(const struct onepot_archive *archive, PyObject *samples, PyObject *images,
                      struct onepot_images *plans, struct gather_batch *ret)
{
    Py_ssize_t count;
    if (images != Py_None && take_images(images, plans) < 0)
        return -1;
    uint64_t *numbers = take_indices(samples, onepot_archive_samples(archive), 1, &count);
    if (!numbers)
        return -1;
    ret->archive = archive;
    ret->samples = numbers;
    ret->count = (uint64_t)count;
    ret->images = images != Py_None ? plans : NULL;
    return 0;
}

PyObject *archive_layout(PyObject *self, PyObject *args)
{
    PyObject *samples, *images = Py_None;
    struct onepot_images plans[ONEPOT_IMAGES_MAX];
    struct gather_batch batch = {0};
    struct onepot_error error = {0};
    uint64_t data, all;
    int r;
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive || !PyArg_ParseTuple(args, "O|IO", &samples, &batch.align, &images) ||
        take_batch(archive, samples, images, plans, &batch) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = gather_batch_bytes(&batch, &error, &data, &all);
    Py_END_ALLOW_THREADS
    PyMem_Free((void *)(uintptr_t)batch.samples);
    return r < 0 ? raise_error(r, &error)
                 : Py_BuildValue("(KK)", (unsigned long long)data, (unsigned long long)all);
}

int take_memory(PyObject *given, unsigned long long *size, Py_buffer *view, void **ret_address)
{
    if (PyLong_Check(given)) {
        *ret_address = PyLong_AsVoidPtr(given);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyObject_GetBuffer(given, view, PyBUF_WRITABLE) < 0)
        return -1;
    *ret_address = view->buf;
    *size = (unsigned long long)view->len;
    return 0;
}

PyObject *archive_fill(PyObject *self, PyObject *args)
{
    PyObject *samples, *memory, *images = Py_None;
    struct onepot_images plans[ONEPOT_IMAGES_MAX];
    struct gather_batch batch = {0};
    struct onepot_error error = {0};
    unsigned long long size = 0, seed = 0, epoch = 0;
    Py_buffer view = {0};
    void *address = NULL;
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive ||
        !PyArg_ParseTuple(args, "OIO|KOKK", &samples, &batch.align, &memory, &size, &images,
                          &seed, &epoch) ||
        take_batch(archive, samples, images, plans, &batch) < 0)
        return NULL;
    batch.seed = seed;
    batch.epoch = epoch;
    int r = take_memory(memory, &size, &view, &address);
    if (r == 0) {
        Py_BEGIN_ALLOW_THREADS
        r = gather_batch_fill(&batch, address, size, &error);
        Py_END_ALLOW_THREADS
        if (r < 0)
            raise_error(r, &error);
    }
    if (view.obj)
        PyBuffer_Release(&view);
    PyMem_Free((void *)(uintptr_t)batch.samples);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}
