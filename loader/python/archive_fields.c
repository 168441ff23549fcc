/*
 * What an Archive says of all its samples.
 */
#include "archive.h"

static PyObject *get_names(PyObject *self, void *unused)
{
    (void)unused;
    return archive_of(self) ? names_new(self) : NULL;
}

static PyObject *get_classes(PyObject *self, void *unused)
{
    struct onepot_archive *archive = archive_of(self);
    (void)unused;
    if (!archive)
        return NULL;
    uint32_t n = onepot_archive_classes(archive);
    PyObject *classes = PyList_New(n);
    for (uint32_t i = 0; classes && i < n; i++) {
        PyObject *name = PyUnicode_DecodeFSDefault(onepot_archive_class(archive, i));
        if (!name)
            Py_CLEAR(classes);
        else
            PyList_SET_ITEM(classes, i, name);
    }
    return classes;
}

static PyObject *get_class_to_idx(PyObject *self, void *unused)
{
    PyObject *classes = get_classes(self, unused), *numbers = PyDict_New();
    for (Py_ssize_t i = 0; classes && numbers && i < PyList_GET_SIZE(classes); i++) {
        PyObject *number = PyLong_FromSsize_t(i);
        if (!number || PyDict_SetItem(numbers, PyList_GET_ITEM(classes, i), number) < 0)
            Py_CLEAR(numbers);
        Py_XDECREF(number);
    }
    if (!classes)
        Py_CLEAR(numbers);
    Py_XDECREF(classes);
    return numbers;
}

/* int64 of each sample: by one function of the library. */
static PyObject *all_numbers(PyObject *self, int labels)
{
    struct onepot_archive *archive = archive_of(self);
    if (!archive)
        return NULL;
    uint64_t n = onepot_archive_samples(archive);
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(8 * n));
    if (!memory)
        return NULL;
    int64_t *numbers = (int64_t *)(void *)PyByteArray_AS_STRING(memory);
    Py_BEGIN_ALLOW_THREADS for (uint64_t i = 0; i < n; i++) if (labels)
        onepot_archive_label(archive, i, &numbers[i]);
    else onepot_archive_size(archive, i, (uint64_t *)&numbers[i]);
    Py_END_ALLOW_THREADS struct py_buffer *b =
        buffer_new(memory, numbers, (Py_ssize_t)(8 * n), 0, "q", 8);
    Py_DECREF(memory);
    return (PyObject *)b;
}

static PyObject *get_labels(PyObject *self, void *unused)
{
    (void)unused;
    return all_numbers(self, 1);
}

static PyObject *get_sizes(PyObject *self, void *unused)
{
    (void)unused;
    return all_numbers(self, 0);
}

static PyObject *get_digest(PyObject *self, void *unused)
{
    (void)unused;
    return archive_of(self) ? digest_text(archive_of(self)) : NULL;
}

static PyObject *get_common_size(PyObject *self, void *unused)
{
    struct onepot_archive *archive = archive_of(self);
    uint64_t size;
    (void)unused;
    if (!archive)
        return NULL;
    Py_BEGIN_ALLOW_THREADS size = onepot_archive_common_size(archive);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong(size);
}

static PyObject *get_left_out(PyObject *self, void *unused)
{
    struct onepot_archive *archive = archive_of(self);
    (void)unused;
    return archive ? PyLong_FromUnsignedLongLong(onepot_archive_left_out(archive)) : NULL;
}

PyGetSetDef archive_fields[] = {
    {"classes", get_classes, NULL, "Names of the classes, sorted: list of str.", NULL},
    {"class_to_idx", get_class_to_idx, NULL, "Label of each class: dict.", NULL},
    {"names", get_names, NULL, "Name of each sample: a lazy sequence of str.", NULL},
    {"common_size", get_common_size, NULL, "Bytes of each sample if all have the same; else 0.",
     NULL},
    {"left_out", get_left_out, NULL,
     "Members that can't be shown, and are no samples: 'onepot verify' lists them.", NULL},
    {"labels", get_labels, NULL, "Label of each sample, -1 without: Buffer of int64.", NULL},
    {"sizes", get_sizes, NULL, "Bytes of each sample: Buffer of int64.", NULL},
    {"digest", get_digest, NULL, "Names this selection of samples: 32 hexadecimal digits.",
     NULL},
    {0}};
