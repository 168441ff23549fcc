/*
 * Archive. One that was pickled is opened anew by its arguments on the
 * other side, and has to have the same digest there.
 */
#include "archive.h"

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
    uint32_t n = 0;
    if (given != Py_None && !take_small(given, &n))
        return -1;
    if (n == ONEPOT_NEVER) {
        PyErr_SetString(PyExc_ValueError, "retries are below 4294967295");
        return -1;
    }
    *ret = given != Py_None && n == 0 ? ONEPOT_NEVER : n;
    return 0;
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
    static char *names[] = {"paths", "filter", "extensions", "root",       "group",
                            "cache", "stage",  "retries",    "hole_bytes", NULL};
    struct py_archive *a = (struct py_archive *)self;
    PyObject *paths, *filter = Py_None, *extensions = Py_None, *retries = Py_None;
    const char *root = NULL, *group = NULL, *stage = NULL;
    unsigned long long cache = 0, holes = 0;
    struct onepot_archive_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_archive *archive = NULL;
    struct texts p = {0}, f = {0}, e = {0};
    int r = -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOzzO&zOO&", names, &paths, &filter,
                                     &extensions, &root, &group, take_count, &cache, &stage,
                                     &retries, take_count, &holes) ||
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
        o.hole_bytes = holes;
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

PyObject *digest_text(const struct onepot_archive *archive)
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

static PyObject *archive_batch_for(PyObject *self, PyObject *args)
{
    struct onepot_archive *archive = archive_of(self);
    unsigned long long bytes;
    uint64_t mean, worst;
    int r;
    if (!archive || !PyArg_ParseTuple(args, "O&", take_count, &bytes))
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
        "        stage=None, retries=None, hole_bytes=0)\n"
        "\n"
        "Samples of archives. paths: an archive, a directory of shards, a pattern\n"
        "('train-*.tar'), or a list of these. filter: globs; extensions: endings ('.jpg').\n"
        "root: the directory whose children are the classes. group: 'file' (each is a\n"
        "sample), 'basename' (as WebDataset), 'directory'. cache: bytes for decompressed\n"
        "blocks and for samples of slow storage; 0: what the job has for this process. stage: "
        "copy archives to this node as they are read, into this directory, or\n"
        "'' for memory, $TMPDIR or /tmp, whichever has room. hole_bytes: samples with more "
        "bytes\n"
        "of holes (0: 64 MiB), and nearly nothing else, are not read as a whole: OSError "
        "(EFBIG).\n"
        "\n"
        "len(archive), archive[i]: a Sample; archive[10:20]: an Archive of these. OSError "
        "names the file that can't be read. Any number of\n"
        "threads may use an archive; it works on after a fork, and pickles by reference.",
};
