/*
 * Archive. One that was pickled is opened anew by its arguments on the
 * other side, and has to have the same digest there.
 */
#include "gather.h"

#include <errno.h>
#include <string.h>

struct onepot_archive *archive_of(PyObject *self)
{
    struct onepot_archive *archive = ((struct py_archive *)self)->archive;
    if (!archive)
        PyErr_SetString(PyExc_ValueError, "the archive was not opened");
    return archive;
}

/* ---- opening ---- */

/* A str, bytes or path, or a sequence of them: their UTF-8 or raw bytes, kept by *ret_keep. */
static const char **text_list(PyObject *given, size_t *ret_count, PyObject **ret_keep)
{
    int single = PyUnicode_Check(given) || PyBytes_Check(given) ||
                 PyObject_HasAttrString(given, "__fspath__");
    PyObject *list = single ? Py_BuildValue("[O]", given) : PySequence_List(given);
    if (!list)
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(list);
    const char **texts = PyMem_Calloc((size_t)n + 1, sizeof(*texts));
    for (Py_ssize_t i = 0; texts && i < n; i++) {
        PyObject *bytes = NULL;
        if (!PyUnicode_FSConverter(PyList_GET_ITEM(list, i), &bytes)) {
            PyMem_Free(texts);
            Py_DECREF(list);
            return NULL;
        }
        texts[i] = PyBytes_AS_STRING(bytes);
        PyList_SetItem(list, i, bytes);
    }
    if (!texts) {
        Py_DECREF(list);
        PyErr_NoMemory();
        return NULL;
    }
    *ret_count = (size_t)n;
    *ret_keep = list;
    return texts;
}

static int parse_group(const char *group, enum onepot_group *ret_group)
{
    static const char *const names[] = {"file", "basename", "directory"};
    *ret_group = ONEPOT_GROUP_NONE;
    for (int i = 0; group && i < 3; i++)
        if (strcmp(group, names[i]) == 0) {
            *ret_group = (enum onepot_group)i;
            return 0;
        }
    if (group)
        PyErr_SetString(PyExc_ValueError, "group is 'file', 'basename' or 'directory'");
    return group ? -1 : 0;
}

/* None is 0, the default; 0 is never. */
static int parse_retries(PyObject *given, uint32_t *ret)
{
    unsigned long n = given == Py_None ? 0 : PyLong_AsUnsignedLong(given);
    if (!PyErr_Occurred() && n >= ONEPOT_NEVER)
        PyErr_SetString(PyExc_ValueError, "retries are too many");
    *ret = given != Py_None && n == 0 ? ONEPOT_NEVER : (uint32_t)n;
    return PyErr_Occurred() ? -1 : 0;
}

struct texts {
    const char **texts;
    size_t count;
    PyObject *keep;
};

static int take_texts(PyObject *given, struct texts *t)
{
    if (given == Py_None)
        return 0;
    t->texts = text_list(given, &t->count, &t->keep);
    return t->texts ? 0 : -1;
}

static void drop_texts(struct texts *t)
{
    PyMem_Free(t->texts);
    Py_XDECREF(t->keep);
}

static int archive_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"paths", "filter", "extensions", "root", "group",
                            "cache", "stage",  "retries",    NULL};
    struct py_archive *a = (struct py_archive *)self;
    PyObject *paths, *filter = Py_None, *extensions = Py_None, *retries = Py_None;
    const char *root = NULL, *group = NULL, *stage = NULL;
    unsigned long long cache = 0;
    struct onepot_archive_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_archive *archive = NULL;
    struct texts p = {0}, f = {0}, e = {0};
    int r = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOzzKzO", names, &paths, &filter,
                                     &extensions, &root, &group, &cache, &stage, &retries) ||
        parse_group(group, &o.group) < 0 || parse_retries(retries, &o.retries) < 0)
        return -1;
    if (take_texts(paths, &p) == 0 && take_texts(filter, &f) == 0 &&
        take_texts(extensions, &e) == 0) {
        o.filters = f.texts;
        o.filter_count = f.count;
        o.extensions = e.texts;
        o.extension_count = e.count;
        o.root = root;
        o.cache_bytes = cache;
        o.stage = stage;
        do {
            Py_BEGIN_ALLOW_THREADS r =
                onepot_archive_open(p.texts, p.count, &o, &error, &archive);
            Py_END_ALLOW_THREADS
        } while (r == -EINTR && PyErr_CheckSignals() == 0); /* as PEP 475 has it */
        if (r < 0 && !PyErr_Occurred())
            raise_error(r, &error);
    }
    drop_texts(&p);
    drop_texts(&f);
    drop_texts(&e);
    if (r < 0)
        return -1;
    PyObject *arguments = Py_BuildValue("(OO())", args, keywords ? keywords : Py_None);
    int is_first;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_first = arguments && !a->archive;
    if (is_first) {
        a->arguments = arguments;
        a->archive = archive;
    }
    Py_END_CRITICAL_SECTION();
    if (is_first)
        return 0;
    onepot_archive_close(archive);
    Py_XDECREF(arguments);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the archive is open already");
    return -1;
}

static void archive_dealloc(PyObject *self)
{
    struct py_archive *a = (struct py_archive *)self;
    onepot_archive_close(a->archive);
    Py_XDECREF(a->arguments);
    Py_TYPE(self)->tp_free(self);
}

/* ---- pickling ---- */

static PyObject *digest_text(const struct onepot_archive *archive)
{
    uint8_t digest[ONEPOT_DIGEST_BYTES];
    char hex[2 * ONEPOT_DIGEST_BYTES + 1];
    int r;
    Py_BEGIN_ALLOW_THREADS r = onepot_archive_digest(archive, digest);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, NULL);
    for (unsigned i = 0; i < ONEPOT_DIGEST_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return PyUnicode_FromString(hex);
}

static PyObject *archive_reduce(PyObject *self, PyObject *unused)
{
    struct py_archive *a = (struct py_archive *)self;
    (void)unused;
    PyObject *digest = archive_of(self) ? digest_text(a->archive) : NULL;
    PyObject *reopen =
        digest ? PyObject_GetAttrString((PyObject *)Py_TYPE(self), "_reopen") : NULL;
    if (!reopen) {
        Py_XDECREF(digest);
        return NULL;
    }
    return Py_BuildValue("(N(ON))", reopen, a->arguments, digest);
}

/* Open by arguments, take the same steps, compare. */
static PyObject *archive_reopen(PyObject *type, PyObject *args)
{
    PyObject *open_args, *keywords, *steps, *digest;
    if (!PyArg_ParseTuple(args, "(OOO)O", &open_args, &keywords, &steps, &digest))
        return NULL;
    PyObject *archive = PyObject_Call(type, open_args, keywords == Py_None ? NULL : keywords);
    for (Py_ssize_t i = 0; archive && i < PyTuple_Size(steps); i++) {
        const char *method;
        PyObject *step_args;
        if (!PyArg_ParseTuple(PyTuple_GetItem(steps, i), "sO", &method, &step_args)) {
            Py_CLEAR(archive);
            break;
        }
        PyObject *bound = PyObject_GetAttrString(archive, method);
        Py_SETREF(archive, bound ? PyObject_CallObject(bound, step_args) : NULL);
        Py_XDECREF(bound);
    }
    PyObject *now = archive ? digest_text(((struct py_archive *)archive)->archive) : NULL;
    int same = now ? PyObject_RichCompareBool(now, digest, Py_EQ) : -1;
    if (same == 0)
        PyErr_SetString(PyExc_ValueError,
                        "the archive is not the one that was pickled: its digest differs");
    Py_XDECREF(now);
    if (same != 1)
        Py_CLEAR(archive);
    return archive;
}

/* A view as an Archive, which remembers how it came about. Takes the view over. */
static PyObject *wrap_view(PyObject *parent, struct onepot_archive *view, const char *method,
                           PyObject *args)
{
    PyObject *open_args, *keywords, *steps;
    PyArg_ParseTuple(((struct py_archive *)parent)->arguments, "OOO", &open_args, &keywords,
                     &steps);
    PyObject *step = args ? Py_BuildValue("((sN))", method, args) : NULL;
    PyObject *more = step ? PySequence_Concat(steps, step) : NULL;
    PyObject *self = more ? archive_type.tp_alloc(&archive_type, 0) : NULL;
    Py_XDECREF(step);
    if (!self) {
        Py_XDECREF(more);
        onepot_archive_close(view);
        return NULL;
    }
    struct py_archive *a = (struct py_archive *)self;
    a->archive = view;
    a->arguments = Py_BuildValue("(OON)", open_args, keywords, more);
    return self;
}

/* ---- parts ---- */

static PyObject *archive_split(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"low", "high", "seed", NULL};
    double low, high;
    unsigned long long seed = 0;
    struct onepot_archive *view;
    int r;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "dd|K", names, &low, &high, &seed) ||
        !archive_of(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = onepot_archive_split(archive_of(self), low, high, seed, &view);
    Py_END_ALLOW_THREADS if (r == -EINVAL) return PyErr_Format(
        PyExc_ValueError, "fractions are 0 <= low <= high <= 1");
    if (r < 0)
        return raise_error(r, NULL);
    return wrap_view(self, view, "split", Py_BuildValue("(ddK)", low, high, seed));
}

static PyObject *archive_fold(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"folds", "fold", "held_out", "seed", NULL};
    unsigned folds, fold;
    int held_out = 0, r;
    unsigned long long seed = 0;
    struct onepot_archive *view;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "II|pK", names, &folds, &fold, &held_out,
                                     &seed) ||
        !archive_of(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r =
        onepot_archive_fold(archive_of(self), folds, fold, held_out, seed, &view);
    Py_END_ALLOW_THREADS if (r == -EINVAL) return PyErr_Format(
        PyExc_ValueError, "there are at least 2 folds, counted from 0");
    if (r < 0)
        return raise_error(r, NULL);
    return wrap_view(self, view, "fold", Py_BuildValue("(IIiK)", folds, fold, held_out, seed));
}

static PyObject *archive_subset(PyObject *self, PyObject *indices)
{
    PyObject *list = archive_of(self) ? PySequence_Tuple(indices) : NULL;
    if (!list)
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(list);
    uint64_t *samples = PyMem_Calloc((size_t)n + 1, sizeof(*samples));
    struct onepot_archive *view;
    for (Py_ssize_t i = 0; samples && i < n && !PyErr_Occurred(); i++) {
        PyObject *number = PyNumber_Index(PyTuple_GET_ITEM(list, i));
        samples[i] = number ? PyLong_AsUnsignedLongLong(number) : 0;
        Py_XDECREF(number);
    }
    int r = samples ? 0 : -ENOMEM;
    if (!PyErr_Occurred() && r == 0)
        r = onepot_archive_subset(archive_of(self), samples, (uint64_t)n, &view);
    PyMem_Free(samples);
    if (PyErr_Occurred() || r < 0) {
        Py_DECREF(list);
        return PyErr_Occurred() ? NULL : raise_error(r, NULL);
    }
    return wrap_view(self, view, "subset", Py_BuildValue("(N)", list));
}

/* ---- samples ---- */

static Py_ssize_t archive_length(PyObject *self)
{
    struct onepot_archive *archive = archive_of(self);
    return archive ? (Py_ssize_t)onepot_archive_samples(archive) : -1;
}

static PyObject *archive_item(PyObject *self, Py_ssize_t i)
{
    struct onepot_archive *archive = archive_of(self);
    if (!archive)
        return NULL;
    if (i < 0 || (uint64_t)i >= onepot_archive_samples(archive)) {
        PyErr_SetString(PyExc_IndexError, "there is no such sample");
        return NULL;
    }
    return sample_new(self, (uint64_t)i);
}

/* archive[10:20], a part of it. */
static PyObject *archive_slice(PyObject *self, PyObject *slice)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0)
        return NULL;
    PySlice_AdjustIndices(archive_length(self), &start, &stop, step);
    PyObject *range =
        PyObject_CallFunction((PyObject *)&PyRange_Type, "nnn", start, stop, step);
    PyObject *part = range ? archive_subset(self, range) : NULL;
    Py_XDECREF(range);
    return part;
}

static PyObject *archive_subscript(PyObject *self, PyObject *key)
{
    if (PySlice_Check(key))
        return archive_of(self) ? archive_slice(self, key) : NULL;
    Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return NULL;
    return archive_item(self, i < 0 ? i + archive_length(self) : i);
}

/* With what it was opened: the first of the arguments. */
static PyObject *archive_repr(PyObject *self)
{
    struct py_archive *a = (struct py_archive *)self;
    PyObject *args = a->arguments ? PyTuple_GET_ITEM(a->arguments, 0) : NULL;
    if (!a->archive || !args)
        return PyUnicode_FromString("<onepot.Archive, not opened>");
    unsigned long long samples = onepot_archive_samples(a->archive);
    unsigned classes = onepot_archive_classes(a->archive);
    if (PyTuple_GET_SIZE(args) == 0) /* paths= was a keyword */
        return PyUnicode_FromFormat("<onepot.Archive: %llu samples, %u classes>", samples,
                                    classes);
    return PyUnicode_FromFormat("<onepot.Archive %R: %llu samples, %u classes>",
                                PyTuple_GET_ITEM(args, 0), samples, classes);
}

static PyObject *get_names(PyObject *self, void *unused)
{
    (void)unused;
    return archive_of(self) ? names_new(self) : NULL;
}

static PyObject *archive_find(PyObject *self, PyObject *name)
{
    PyObject *bytes;
    uint64_t found;
    if (!archive_of(self) || !PyUnicode_FSConverter(name, &bytes))
        return NULL;
    int r;
    Py_BEGIN_ALLOW_THREADS r =
        onepot_archive_find(archive_of(self), PyBytes_AS_STRING(bytes), &found);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (r == -ENOENT) {
        PyErr_SetObject(PyExc_KeyError, name);
        return NULL;
    }
    return r < 0 ? raise_error(r, NULL) : PyLong_FromUnsignedLongLong(found);
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

static PyObject *archive_batch_for(PyObject *self, PyObject *args)
{
    struct onepot_archive *archive = archive_of(self);
    unsigned long long bytes;
    uint64_t mean, worst;
    int r;
    if (!archive || !PyArg_ParseTuple(args, "K", &bytes))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = onepot_archive_batch_for(archive, bytes, 0, &mean, &worst);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, NULL);
    return Py_BuildValue("(KK)", (unsigned long long)mean, (unsigned long long)worst);
}

static PyMethodDef archive_methods[] = {
    {"split", (PyCFunction)(void *)archive_split, METH_VARARGS | METH_KEYWORDS,
     "split(low, high, seed=0): samples whose name's hash lies in [low, high) of [0, 1)."},
    {"fold", (PyCFunction)(void *)archive_fold, METH_VARARGS | METH_KEYWORDS,
     "fold(folds, fold, held_out=False, seed=0): all samples but those of one fold, or\n"
     "(held_out) these alone."},
    {"subset", archive_subset, METH_O, "subset(indices): these samples, in this order."},
    {"find", archive_find, METH_O, "find(name): the index of a sample; KeyError."},
    {"batch_for", archive_batch_for, METH_VARARGS,
     "batch_for(bytes): how many samples fit on average, and in the worst case: (int, int)."},
    {"_layout", archive_layout, METH_VARARGS, "For the datasets of the package."},
    {"_fill", archive_fill, METH_VARARGS, "For the datasets of the package."},
    {"__reduce__", archive_reduce, METH_NOARGS, "Pickled by its arguments and its digest."},
    {"_reopen", archive_reopen, METH_VARARGS | METH_CLASS, "For pickle."},
    {0}};

static PyGetSetDef archive_fields[] = {
    {"classes", get_classes, NULL, "Names of the classes, sorted: list of str.", NULL},
    {"class_to_idx", get_class_to_idx, NULL, "Label of each class: dict.", NULL},
    {"names", get_names, NULL, "Name of each sample: a lazy sequence of str.", NULL},
    {"common_size", get_common_size, NULL, "Bytes of each sample if all have the same; else 0.",
     NULL},
    {"labels", get_labels, NULL, "Label of each sample, -1 without: Buffer of int64.", NULL},
    {"sizes", get_sizes, NULL, "Bytes of each sample: Buffer of int64.", NULL},
    {"digest", get_digest, NULL, "Names this selection of samples: 32 hexadecimal digits.",
     NULL},
    {0}};

static PySequenceMethods archive_sequence = {.sq_length = archive_length,
                                             .sq_item = archive_item};

static PyMappingMethods archive_mapping = {.mp_length = archive_length,
                                           .mp_subscript = archive_subscript};

PyTypeObject archive_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Archive",
    .tp_basicsize = sizeof(struct py_archive),
    .tp_new = PyType_GenericNew,
    .tp_init = archive_init,
    .tp_dealloc = archive_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_repr = archive_repr,
    .tp_as_sequence = &archive_sequence,
    .tp_as_mapping = &archive_mapping,
    .tp_methods = archive_methods,
    .tp_getset = archive_fields,
    .tp_doc =
        "Archive(paths, *, filter=None, extensions=None, root=None, group=None, cache=0,\n"
        "        stage=None, retries=None)\n"
        "\n"
        "Samples of archives. paths: an archive, a directory of shards, a pattern\n"
        "('train-*.tar'), or a list of these. filter: globs; extensions: endings ('.jpg').\n"
        "root: the directory whose children are the classes. group: 'file' (each is a\n"
        "sample), 'basename' (as WebDataset), 'directory'. cache: bytes for decompressed\n"
        "blocks and for samples of slow storage; 0: what the job has for this process. stage: "
        "copy archives to this node as they are read, into this directory, or\n"
        "'' for memory, $TMPDIR or /tmp, whichever has room.\n"
        "\n"
        "len(archive), archive[i]: a Sample; archive[10:20]: an Archive of these. OSError "
        "names the file that can't be read. Any number of\n"
        "threads may use an archive; it works on after a fork, and pickles by reference.",
};
