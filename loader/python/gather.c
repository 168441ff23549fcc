/*
 * Batches in memory that the caller provides: torch tensors in shared memory, or a bytearray.
 * The layout is a loader's slab: data, then five tables, each at a multiple of 64 bytes:
 * offsets, sizes, labels, indices (8 bytes a sample), valid (1 byte).
 */
#include "module.h"

#include <errno.h>
#include <string.h>

#define TABLE_ALIGN 64u
#define SIGNALS_PACE 65536u /* indices between looks at signals */

struct layout {
    uint64_t count, data_bytes, table; /* table: bytes from one table to the next */
    uint64_t at;                       /* of the first table */
    uint64_t bytes;                    /* of data and tables */
};

static uint64_t layout_rounded(uint64_t bytes)
{
    return (bytes + TABLE_ALIGN - 1) & ~(uint64_t)(TABLE_ALIGN - 1);
}

static struct layout lay_out(uint64_t count, uint64_t data_bytes)
{
    struct layout l = {
        .count = count, .data_bytes = data_bytes, .table = layout_rounded(8 * count)};
    l.at = layout_rounded(data_bytes);
    l.bytes = l.at + 4 * l.table + layout_rounded(count);
    return l;
}

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

struct request {
    uint64_t *indices, *offsets, *sizes;
    unsigned align;
    struct layout layout;
};

static void request_free(struct request *q)
{
    PyMem_Free(q->indices);
    PyMem_Free(q->offsets);
}

static int request_read(const struct onepot_archive *archive, PyObject *indices, unsigned align,
                        struct request *q)
{
    Py_ssize_t n;
    uint64_t bytes = 0;
    *q = (struct request){.align = align};
    q->indices = take_indices(indices, onepot_archive_samples(archive), 1, &n);
    if (!q->indices)
        return -1;
    q->offsets = PyMem_Calloc(2 * (size_t)n + 1, sizeof(*q->offsets));
    q->sizes = q->offsets ? q->offsets + n : NULL;
    int r = q->offsets ? onepot_archive_places(archive, q->indices, (uint64_t)n, align,
                                               q->offsets, q->sizes, &bytes)
                       : -ENOMEM;
    if (r < 0) {
        struct onepot_error error = {0};
        for (Py_ssize_t i = 0; r == -EFBIG && i < n && !error.code; i++)
            onepot_archive_check(archive, q->indices[i], &error);
        raise_error(r, &error);
        request_free(q);
        return -1;
    }
    q->layout = lay_out((uint64_t)n, bytes);
    return 0;
}

PyObject *archive_layout(PyObject *self, PyObject *args)
{
    PyObject *indices;
    struct request q;
    unsigned align = 0;
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive || !PyArg_ParseTuple(args, "O|I", &indices, &align) ||
        request_read(archive, indices, align, &q) < 0)
        return NULL;
    request_free(&q);
    return Py_BuildValue("(KK)", (unsigned long long)q.layout.data_bytes,
                         (unsigned long long)q.layout.bytes);
}

/* Labels, indices and validity: the last three tables, of which the first begins there. */
static int write_labels(const struct onepot_archive *archive, const uint64_t *indices,
                        const struct layout *l, uint8_t *at, struct onepot_error *error)
{
    for (uint64_t i = 0; i < l->count; i++) {
        int64_t label = -1;
        int r = onepot_archive_label(archive, indices[i], error, &label);
        if (r < 0)
            return r;
        memcpy(at + 8 * i, &label, 8);
    }
    memcpy(at + l->table, indices, 8 * l->count);
    memset(at + 2 * l->table, 1, l->count);
    return 0;
}

static int write_tables(const struct onepot_archive *archive, const struct request *q,
                        uint8_t *memory, struct onepot_error *error)
{
    const struct layout *l = &q->layout;
    uint8_t *at = memory + l->at;
    memcpy(at, q->offsets, 8 * l->count);
    memcpy(at + l->table, q->sizes, 8 * l->count);
    return write_labels(archive, q->indices, l, at + 2 * l->table, error);
}

uint64_t batch_bytes(uint64_t count, uint64_t data_bytes)
{
    return lay_out(count, data_bytes).bytes;
}

int batch_tables(const struct onepot_archive *archive, const uint64_t *indices, uint64_t count,
                 uint64_t stride, uint8_t *memory, struct onepot_error *error,
                 uint8_t **ret_valid)
{
    const struct layout l = lay_out(count, count * stride);
    uint8_t *at = memory + l.at;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t offset = i * stride;
        memcpy(at + 8 * i, &offset, 8);
        memcpy(at + l.table + 8 * i, &stride, 8);
    }
    *ret_valid = at + 4 * l.table;
    return write_labels(archive, indices, &l, at + 2 * l.table, error);
}

static int fill_memory(struct onepot_archive *archive, const struct request *q, uint8_t *memory,
                       uint64_t size)
{
    struct onepot_error error = {0};
    int r;
    if (size < q->layout.bytes) {
        PyErr_SetString(PyExc_ValueError, "the memory is too small for the batch");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_gather(archive, q->indices, q->layout.count, q->align, memory, size,
                              &error);
    if (r == 0)
        r = write_tables(archive, q, memory, &error);
    Py_END_ALLOW_THREADS
    if (r < 0)
        raise_error(r, &error);
    return r;
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
    PyObject *indices, *memory;
    struct request q;
    unsigned align = 0;
    unsigned long long size = 0;
    Py_buffer view = {0};
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive || !PyArg_ParseTuple(args, "OIO|K", &indices, &align, &memory, &size))
        return NULL;
    void *address = NULL;
    if (take_memory(memory, &size, &view, &address) < 0)
        return NULL;
    int r = request_read(archive, indices, align, &q);
    if (r == 0) {
        r = fill_memory(archive, &q, address, size);
        request_free(&q);
    }
    if (view.obj)
        PyBuffer_Release(&view);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}
