/*
 * The part of Archive that is written in C: opening, other selections of its samples, questions
 * about all of them, and batches in memory that the caller provides: torch tensors in shared
 * memory, or a bytearray. onepot/_archive.py has the rest. A Sample refers to its Archive,
 * where it looks everything up.
 */
#include "module.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define NUMBERS_PACE 4096u /* labels that are read between looks at signals */

PyObject *archive_lease(PyObject *self)
{
    const struct py_archive *a = (struct py_archive *)self;
    PyObject *capsule;
    int is_closed;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_closed = a->is_closed;
    capsule = a->capsule;
    Py_XINCREF(capsule);
    Py_END_CRITICAL_SECTION();
    if (!capsule)
        PyErr_SetString(PyExc_ValueError,
                        is_closed ? "the archive is closed" : "the archive was not opened");
    return capsule;
}

/* ---- batches in the caller's memory ---- */

/*
 * Methods of Archive with which the package's datasets make batches in memory of their own:
 * _layout(indices, align=0, images=None): (bytes of data, bytes of everything);
 * _fill(indices, align, memory, size=0, images=None, seed=0, epoch=0): into a buffer, or into
 * `size` bytes at an address. images: pictures are decoded so (take_images).
 */
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

static PyObject *archive_layout(PyObject *self, PyObject *args)
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

static PyObject *archive_fill(PyObject *self, PyObject *args)
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

/* ---- opening ---- */

/*
 * The texts of a tuple of bytes. They live as long as the tuple; free the array with
 * PyMem_Free.
 */
static char **take_texts(PyObject *tuple, size_t *ret_count)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    char **texts = PyMem_Calloc((size_t)n + 1, sizeof(*texts));
    if (!texts)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; texts && i < n; i++)
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &texts[i], NULL) < 0) {
            PyMem_Free(texts);
            texts = NULL;
        }
    *ret_count = (size_t)n;
    return texts;
}

static void archive_free(PyObject *capsule)
{
    struct onepot_archive *archive = leased(capsule);
    Py_BEGIN_ALLOW_THREADS
    onepot_archive_close(archive);
    Py_END_ALLOW_THREADS
}

/* Give an Archive object its handle, which is taken over. -1 with an exception: it had one. */
static int archive_become(PyObject *self, struct onepot_archive *archive)
{
    struct py_archive *a = (struct py_archive *)self;
    PyObject *capsule = PyCapsule_New(archive, NULL, archive_free);
    int is_first;
    if (!capsule)
        return -1;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_first = !a->capsule && !a->is_closed;
    if (is_first)
        a->capsule = capsule;
    Py_END_CRITICAL_SECTION();
    if (is_first)
        return 0;
    Py_DECREF(capsule);
    PyErr_SetString(PyExc_ValueError, "the archive was initialised already");
    return -1;
}

/* How the opening goes on, for a function of Python. */
struct report {
    PyObject *function, *type, *value, *trace; /* its exception */
    uint64_t last_ns;
};

#define PERIOD_NS UINT64_C(200000000)

static bool report_is_due(struct report *report)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
    if (now - report->last_ns < PERIOD_NS)
        return false;
    report->last_ns = now;
    return true;
}

static int report_show(void *ctx, const char *path, const char *doing, uint64_t bytes,
                       uint64_t total_bytes)
{
    struct report *report = ctx;
    if (report->type || !report_is_due(report))
        return report->type ? -1 : 0;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *name = PyUnicode_DecodeFSDefault(path);
    PyObject *result =
        name ? PyObject_CallFunction(report->function, "OsKK", name, doing,
                                     (unsigned long long)bytes, (unsigned long long)total_bytes)
             : NULL;
    if (!result)
        PyErr_Fetch(&report->type, &report->value, &report->trace);
    Py_XDECREF(result);
    Py_XDECREF(name);
    PyGILState_Release(state);
    return report->type ? -1 : 0;
}

static int archive_open(PyObject *self, char **paths, size_t path_count,
                        const struct onepot_archive_options *o)
{
    struct onepot_error error = {0};
    struct onepot_archive *archive = NULL;
    int r;
    do {
        Py_BEGIN_ALLOW_THREADS
        r = onepot_archive_open((const char *const *)paths, path_count, o, &error, &archive);
        Py_END_ALLOW_THREADS
    } while (r == -EINTR && PyErr_CheckSignals() == 0); /* as PEP 475 has it */
    const struct report *report = o->progress_ctx;
    if (report && report->type) {
        if (r == 0)
            onepot_archive_close(archive);
        PyErr_Restore(report->type, report->value, report->trace);
        return -1;
    }
    if (r < 0 && !PyErr_Occurred())
        raise_error(r, &error);
    return r < 0 ? -1 : archive_become(self, archive);
}

/*
 * Archive(paths, filters, extensions, includes, excludes, parts, folders, options): seven
 * tuples of bytes, of which parts and folders are equally long, and a dict.
 */
static int archive_init(PyObject *self, PyObject *args, PyObject *unused)
{
    static const struct field fields[] = {
        {"root", FIELD_TEXT, offsetof(struct onepot_archive_options, root)},
        {"group", FIELD_SMALL, offsetof(struct onepot_archive_options, group)},
        {"cache", FIELD_COUNT, offsetof(struct onepot_archive_options, cache_bytes)},
        {"stage", FIELD_TEXT, offsetof(struct onepot_archive_options, stage)},
        {"retries", FIELD_SMALL, offsetof(struct onepot_archive_options, retries)},
        {"files_from", FIELD_TEXT, offsetof(struct onepot_archive_options, files_from)},
        {"map", FIELD_TEXT, offsetof(struct onepot_archive_options, map)},
        {"nested", FIELD_TEXT, offsetof(struct onepot_archive_options, nested)},
        {"ignore_zeros", FIELD_FLAG, offsetof(struct onepot_archive_options, ignore_zeros)},
        {"list_name", FIELD_TEXT, offsetof(struct onepot_archive_options, list_name)},
        {"labels", FIELD_TEXT, offsetof(struct onepot_archive_options, label_part)},
        {"hole_bytes", FIELD_COUNT, offsetof(struct onepot_archive_options, hole_bytes)},
        {"allow_empty", FIELD_FLAG, offsetof(struct onepot_archive_options, allow_empty)},
        {"plain", FIELD_FLAG, offsetof(struct onepot_archive_options, plain)},
        {0}};
    PyObject *paths, *texts[6], *options;
    char **arrays[6] = {NULL};
    struct onepot_archive_options o = {.size = sizeof(o)};
    struct report report = {0};
    size_t count = 0;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!", &PyTuple_Type, &paths, &PyTuple_Type,
                          &texts[0], &PyTuple_Type, &texts[1], &PyTuple_Type, &texts[2],
                          &PyTuple_Type, &texts[3], &PyTuple_Type, &texts[4], &PyTuple_Type,
                          &texts[5], &PyDict_Type, &options) ||
        fields_take(fields, options, &o) < 0)
        return -1;
    size_t *const counts[] = {&o.filter_count,  &o.extension_count, &o.include_count,
                              &o.exclude_count, &o.part_count,      &o.part_count};
    char **p = take_texts(paths, &count);
    int r = p ? 0 : -1;
    for (int i = 0; r == 0 && i < 6; i++) {
        arrays[i] = take_texts(texts[i], counts[i]);
        r = arrays[i] ? 0 : -1;
    }
    report.function = PyDict_GetItemString(options, "progress");
    if (report.function && report.function != Py_None) {
        o.progress = report_show;
        o.progress_ctx = &report;
    }
    o.filters = (const char *const *)arrays[0];
    o.extensions = (const char *const *)arrays[1];
    o.includes = (const char *const *)arrays[2];
    o.excludes = (const char *const *)arrays[3];
    o.part_names = (const char *const *)arrays[4];
    o.part_folders = (const char *const *)arrays[5];
    if (r == 0)
        r = archive_open(self, p, count, &o);
    PyMem_Free(p);
    for (int i = 0; i < 6; i++)
        PyMem_Free(arrays[i]);
    return r;
}

static void archive_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_archive *)self)->capsule);
    object_free(self);
}

static PyObject *archive_close(PyObject *self, PyObject *unused)
{
    struct py_archive *a = (struct py_archive *)self;
    PyObject *capsule;
    Py_BEGIN_CRITICAL_SECTION(self);
    capsule = a->capsule;
    a->capsule = NULL;
    a->is_closed = 1;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(capsule);
    Py_RETURN_NONE;
}

static PyObject *archive_closed(PyObject *self, void *unused)
{
    return PyBool_FromLong(((struct py_archive *)self)->is_closed);
}

/* ---- parts: fill an Archive without a handle with a part of another one ---- */

static PyObject *archive_take_split(PyObject *self, PyObject *args)
{
    PyObject *whole;
    double low, high;
    uint64_t seed;
    struct onepot_archive *part;
    int r;
    if (!PyArg_ParseTuple(args, "O!ddO&", archive_type, &whole, &low, &high, take_count, &seed))
        return NULL;
    auto_lease lease = archive_lease(whole);
    struct onepot_archive *archive = leased(lease);
    if (!archive)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_split(archive, low, high, seed, &part);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, NULL);
    return archive_become(self, part) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *archive_take_fold(PyObject *self, PyObject *args)
{
    PyObject *whole;
    uint32_t folds, fold;
    int held_out, stratify, r;
    uint64_t seed;
    struct onepot_archive *part;
    struct onepot_error error = {0};
    if (!PyArg_ParseTuple(args, "O!O&O&pO&p", archive_type, &whole, take_small, &folds,
                          take_small, &fold, &held_out, take_count, &seed, &stratify))
        return NULL;
    auto_lease lease = archive_lease(whole);
    struct onepot_archive *archive = leased(lease);
    if (!archive)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = archive_fold(archive, folds, fold, held_out, seed, stratify, &stop_at_signals, &error,
                     &part);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, &error);
    return archive_become(self, part) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *archive_take_subset(PyObject *self, PyObject *args)
{
    PyObject *whole, *indices;
    struct onepot_archive *part;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "O!O", archive_type, &whole, &indices))
        return NULL;
    auto_lease lease = archive_lease(whole);
    struct onepot_archive *archive = leased(lease);
    if (!archive)
        return NULL;
    uint64_t *samples = take_indices(indices, onepot_archive_samples(archive), 0, &count);
    if (!samples)
        return NULL;
    int r = onepot_archive_subset(archive, samples, (uint64_t)count, &part);
    PyMem_Free(samples);
    if (r < 0)
        return raise_error(r, NULL);
    return archive_become(self, part) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- samples ---- */

static Py_ssize_t archive_length(PyObject *self)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    return archive ? (Py_ssize_t)onepot_archive_samples(archive) : -1;
}

static PyObject *archive_item(PyObject *self, Py_ssize_t i)
{
    Py_ssize_t length = archive_length(self);
    if (length < 0)
        return NULL;
    if (i < 0 || i >= length)
        return PyErr_Format(PyExc_IndexError, "there is no such sample");
    return sample_new(self, (uint64_t)i);
}

static PyObject *archive_find(PyObject *self, PyObject *name)
{
    PyObject *bytes;
    uint64_t found;
    int r;
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive || !PyUnicode_FSConverter(name, &bytes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_find(archive, PyBytes_AsString(bytes), &found);
    Py_END_ALLOW_THREADS
    Py_DECREF(bytes);
    if (r == -ENOENT) {
        PyErr_SetObject(PyExc_KeyError, name);
        return NULL;
    }
    return r < 0 ? raise_error(r, NULL) : PyLong_FromUnsignedLongLong(found);
}

/* The sample of this name. */
static PyObject *archive_named(PyObject *self, PyObject *name)
{
    PyObject *number = archive_find(self, name);
    PyObject *sample = number ? archive_item(self, PyLong_AsSsize_t(number)) : NULL;
    Py_XDECREF(number);
    return sample;
}

static PyObject *archive_subscript(PyObject *self, PyObject *key)
{
    if (PySlice_Check(key))
        return PyObject_CallMethod(self, "_slice", "O", key);
    if (PyUnicode_Check(key) || PyBytes_Check(key) || PyObject_HasAttrString(key, "__fspath__"))
        return archive_named(self, key);
    if (!PyIndex_Check(key))
        return PyErr_Format(PyExc_TypeError,
                            "samples are found by a number, a slice or a name, not by %R; "
                            "subset() takes several numbers",
                            Py_TYPE(key));
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return NULL;
    return archive_item(self, i < 0 ? i + archive_length(self) : i);
}

static PyObject *archive_name(PyObject *self, PyObject *key)
{
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t length = (Py_ssize_t)onepot_archive_samples(archive);
    i = i < 0 ? i + length : i;
    if (i < 0 || i >= length)
        return PyErr_Format(PyExc_IndexError, "there is no such sample");
    return sample_name_of(archive, (uint64_t)i);
}

static PyObject *archive_batch_for(PyObject *self, PyObject *args)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    uint64_t bytes, mean, worst;
    int r;
    if (!archive || !PyArg_ParseTuple(args, "O&", take_count, &bytes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_archive_batch_for(archive, bytes, 0, &mean, &worst);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, NULL);
    return Py_BuildValue("(KK)", (unsigned long long)mean, (unsigned long long)worst);
}

/* ---- all samples together ---- */

static PyObject *archive_classes(PyObject *self, void *unused)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive)
        return NULL;
    uint32_t n = onepot_archive_classes(archive);
    PyObject *classes = PyList_New(n);
    for (uint32_t i = 0; classes && i < n; i++) {
        PyObject *name = PyUnicode_DecodeFSDefault(onepot_archive_class(archive, i));
        if (!name)
            Py_CLEAR(classes);
        else
            PyList_SetItem(classes, i, name);
    }
    return classes;
}

/* int64 for each sample: its size, or its label if the closure is not NULL. */
static PyObject *archive_numbers(PyObject *self, void *labels)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive)
        return NULL;
    uint64_t n = onepot_archive_samples(archive);
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(8 * n));
    if (!memory)
        return NULL;
    int64_t *numbers = (int64_t *)(void *)PyByteArray_AsString(memory);
    struct onepot_error error = {0};
    int r = 0;
    for (uint64_t i = 0, end; r == 0 && i < n && PyErr_CheckSignals() == 0; i = end) {
        end = n - i < NUMBERS_PACE ? n : i + NUMBERS_PACE;
        Py_BEGIN_ALLOW_THREADS
        for (uint64_t at = i; r == 0 && at < end; at++)
            r = labels ? onepot_archive_label(archive, at, &error, &numbers[at])
                       : onepot_archive_size(archive, at, (uint64_t *)&numbers[at]);
        Py_END_ALLOW_THREADS
    }
    PyObject *result =
        PyErr_Occurred() ? NULL
        : r < 0          ? raise_error(r, &error)
                : (PyObject *)buffer_of_bytes(memory, numbers, 8 * (uint64_t)n, 0, ITEM_INT64);
    Py_DECREF(memory);
    return result;
}

/* Called by the thread that wants the digest, and without the interpreter. */
static int digest_goes_on(void *ctx, const char *path, const char *doing, uint64_t bytes,
                          uint64_t total_bytes)
{
    struct report *report = ctx;
    if (!report_is_due(report))
        return 0;
    PyGILState_STATE state = PyGILState_Ensure();
    int r = PyErr_CheckSignals();
    PyGILState_Release(state);
    return r;
}

/* `selection`: of the chosen samples, cheaply; NULL: of the data, which may have to be read. */
static PyObject *archive_digest(PyObject *self, void *selection)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    struct report report = {0};
    const struct onepot_archive_options watch = {
        .size = sizeof(watch), .progress = digest_goes_on, .progress_ctx = &report};
    uint8_t digest[ONEPOT_DIGEST_BYTES];
    char hex[2 * ONEPOT_DIGEST_BYTES + 1];
    struct onepot_error error = {0};
    int r;
    if (!archive)
        return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS
        r = selection ? onepot_archive_digest(archive, digest)
                      : onepot_archive_data_digest(archive, &watch, &error, digest);
        Py_END_ALLOW_THREADS
    } while (r == -EINTR && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred())
        return NULL;
    if (r < 0)
        return raise_error(r, selection ? NULL : &error);
    for (unsigned i = 0; i < ONEPOT_DIGEST_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return PyUnicode_FromString(hex);
}

static PyObject *archive_common_size(PyObject *self, void *unused)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    uint64_t size;
    if (!archive)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    size = onepot_archive_common_size(archive);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(size);
}

static PyObject *archive_left_out(PyObject *self, void *unused)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    return archive ? PyLong_FromUnsignedLongLong(onepot_archive_left_out(archive)) : NULL;
}

/*
 * The number of links that lead nowhere, or if the closure is not NULL of files without a
 * partner; and the path of the first, or None.
 */
static PyObject *archive_passed_over(PyObject *self, void *unpaired)
{
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    const char *first;
    if (!archive)
        return NULL;
    uint64_t count = unpaired ? onepot_archive_unpaired(archive, &first)
                              : onepot_archive_passed_over(archive, &first);
    PyObject *name = first ? PyUnicode_DecodeFSDefault(first) : Py_NewRef(Py_None);
    return name ? Py_BuildValue("(KN)", (unsigned long long)count, name) : NULL;
}

static PyGetSetDef archive_fields[] = {
    {"classes", archive_classes, NULL, "Names of the classes, sorted: list of str.", NULL},
    {"common_size", archive_common_size, NULL,
     "Size of every sample in bytes, if all have the same size; else 0.", NULL},
    {"left_out", archive_left_out, NULL,
     "Number of members that can't be shown and are no samples; 'onepot verify' lists them.",
     NULL},
    {"_passed_over", archive_passed_over, NULL, "(passed_over, path of the first)", NULL},
    {"_unpaired", archive_passed_over, NULL, "(unpaired, path of the first)", archive_fields},
    {"labels", archive_numbers, NULL,
     "Label of each sample, or -1: Buffer, int64 [samples]. Reads them if they are parts.",
     archive_fields},
    {"sizes", archive_numbers, NULL, "Size of each sample in bytes: Buffer, int64 [samples].",
     NULL},
    {"closed", archive_closed, NULL, "Was it closed?", NULL},
    {"digest", archive_digest, NULL,
     "Digest of the whole archive's names, types, modes and contents, the same in any format: "
     "32\n"
     "hexadecimal digits, as 'onepot info --digest' prints them. Of archives that are no one\n"
     "tree (two have one name, or parts are shown of several), a hash of their digests. The\n"
     "first use reads all files where the index can't make it: 'onepot index --digest' does\n"
     "that ahead of time.",
     NULL},
    {"_selection", archive_digest, NULL, "Identifies this selection of samples.",
     archive_fields},
    {0}};

static PyMethodDef archive_methods[] = {
    {"_take_split", archive_take_split, METH_VARARGS, "(whole, low, high, seed)"},
    {"_take_fold", archive_take_fold, METH_VARARGS,
     "(whole, folds, fold, held_out, seed, stratify)"},
    {"_take_subset", archive_take_subset, METH_VARARGS, "(whole, indices)"},
    {"_name", archive_name, METH_O, "The name of the sample with this number."},
    {"find", archive_find, METH_O,
     "find(name): the index of the first sample with this name. KeyError: there is none."},
    {"batch_for", archive_batch_for, METH_VARARGS,
     "batch_for(bytes): how many samples fit into so many bytes: (on average, at worst)."},
    {"close", archive_close, METH_NOARGS,
     "Give up files and memory, as at the end of a 'with' block. Later uses of the archive and "
     "its\nsamples are a ValueError. Buffers keep their bytes; its parts and running loaders "
     "go "
     "on."},
    {"_layout", archive_layout, METH_VARARGS, "For the datasets of the package."},
    {"_fill", archive_fill, METH_VARARGS, "For the datasets of the package."},
    {0}};

static PyType_Slot archive_slots[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)archive_init},
    {Py_tp_dealloc, (void *)archive_dealloc},
    {Py_tp_iter, (void *)PySeqIter_New},
    {Py_sq_length, (void *)archive_length},
    {Py_sq_item, (void *)archive_item},
    {Py_mp_length, (void *)archive_length},
    {Py_mp_subscript, (void *)archive_subscript},
    {Py_tp_methods, archive_methods},
    {Py_tp_getset, archive_fields},
    {Py_tp_doc, (void *)"The part of onepot.Archive in C; see there."},
    {0, NULL},
};

PyType_Spec archive_spec = {
    .name = "onepot._core.Archive",
    .basicsize = sizeof(struct py_archive),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = archive_slots,
};
