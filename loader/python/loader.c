/*
 * Loader and Batch. A batch goes back to its loader when it and the last view of it are gone.
 */
#include "module.h"

#include <errno.h>
#include <string.h>

#define POLL_MS 100 /* how long Ctrl-C may have to wait */

struct py_loader {
    PyObject_HEAD struct onepot_loader *loader;
    PyObject *archive;
    PyObject *decode; /* kept, for its context */
    int resumes;      /* a state was loaded: the next iteration goes on, and begins no epoch */
};

struct py_batch {
    PyObject_HEAD const struct onepot_batch *batch;
    int shaped; /* data has the type and shape of .npy samples: */
    struct onepot_npy npy;
};

/* ---- batch ---- */

static PyObject *batch_new(struct py_loader *loader, const struct onepot_batch *batch)
{
    struct py_batch *b = PyObject_New(struct py_batch, &batch_type);
    if (!b) {
        onepot_batch_release(batch);
        return NULL;
    }
    b->batch = batch;
    b->npy = (struct onepot_npy){.size = sizeof(b->npy)};
    b->shaped = onepot_loader_npy(loader->loader, &b->npy) == 0;
    return (PyObject *)b;
}

static void batch_dealloc(PyObject *self)
{
    onepot_batch_release(((struct py_batch *)self)->batch);
    PyObject_Free(self);
}

static Py_ssize_t batch_length(PyObject *self)
{
    return (Py_ssize_t)((struct py_batch *)self)->batch->samples;
}

/* The struct module's letter for numpy's "<f4"; "" where there is none. */
static const char *letter(const char *type, Py_ssize_t *ret_item)
{
    static const struct {
        const char *type, *letter;
        Py_ssize_t bytes;
    } known[] = {{"b1", "?", 1}, {"i1", "b", 1}, {"u1", "B", 1}, {"i2", "h", 2},
                 {"u2", "H", 2}, {"i4", "i", 4}, {"u4", "I", 4}, {"i8", "q", 8},
                 {"u8", "Q", 8}, {"f2", "e", 2}, {"f4", "f", 4}, {"f8", "d", 8}};
    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (type[0] != '>' && strcmp(type + 1, known[i].type) == 0) {
            *ret_item = known[i].bytes;
            return known[i].letter;
        }
    return NULL;
}

/* Give a buffer the shape of one sample, behind `first` dimensions that it has. */
static void shape_sample(struct py_buffer *b, const struct onepot_npy *npy, int first)
{
    Py_ssize_t step = b->item_bytes;
    b->dimensions = first + (int)npy->dimensions;
    for (uint32_t i = 0; i < npy->dimensions; i++)
        b->shape[first + (int)i] = (Py_ssize_t)npy->shape[i];
    for (uint32_t i = 0; i < npy->dimensions; i++) {
        uint32_t at = npy->fortran_order ? i : npy->dimensions - 1 - i;
        b->strides[first + (int)at] = step;
        step *= (Py_ssize_t)npy->shape[at];
    }
}

/* Samples [first, first + count) with a dimension for them, or the one sample alone. */
static PyObject *batch_view(struct py_batch *self, uint64_t first, uint64_t count, int alone)
{
    const struct onepot_batch *batch = self->batch;
    Py_ssize_t item = 1, len = (Py_ssize_t)batch->bytes;
    uint8_t *bytes = batch->data;
    const char *format = self->shaped ? letter(self->npy.type, &item) : NULL;
    if (alone) {
        bytes += batch->offsets[first];
        len = (Py_ssize_t)batch->sizes[first];
    }
    struct py_buffer *b =
        buffer_new((PyObject *)self, bytes, len, 0, format ? format : "B", format ? item : 1);
    if (!b || !batch->stride || (alone && !format))
        return (PyObject *)b;
    if (!alone) {
        b->dimensions = 2;
        b->shape[0] = (Py_ssize_t)count;
        b->strides[0] = (Py_ssize_t)batch->stride;
        b->shape[1] = (Py_ssize_t)batch->stride / b->item_bytes;
        b->strides[1] = b->item_bytes;
    }
    if (format)
        shape_sample(b, &self->npy, alone ? 0 : 1);
    return (PyObject *)b;
}

static PyObject *batch_data(PyObject *self, void *unused)
{
    struct py_batch *b = (struct py_batch *)self;
    (void)unused;
    return batch_view(b, 0, b->batch->samples, 0);
}

static PyObject *batch_item(PyObject *self, Py_ssize_t i)
{
    struct py_batch *b = (struct py_batch *)self;
    if (i < 0 || (uint64_t)i >= b->batch->samples) {
        PyErr_SetString(PyExc_IndexError, "there is no such sample in the batch");
        return NULL;
    }
    return batch_view(b, (uint64_t)i, 1, 1);
}

static PyObject *batch_tensors(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PySequence_List(self);
}

static PyObject *table(PyObject *self, const void *numbers, const char *format, int bytes)
{
    uint64_t n = ((struct py_batch *)self)->batch->samples;
    return (PyObject *)buffer_new(self, (void *)(uintptr_t)numbers,
                                  (Py_ssize_t)(n * (uint64_t)bytes), 0, format, bytes);
}

static PyObject *batch_offsets(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->batch->offsets, "q", 8);
}

static PyObject *batch_sizes(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->batch->sizes, "q", 8);
}

static PyObject *batch_labels(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->batch->labels, "q", 8);
}

static PyObject *batch_indices(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->batch->indices, "q", 8);
}

static PyObject *batch_valid(PyObject *self, void *unused)
{
    (void)unused;
    return table(self, ((struct py_batch *)self)->batch->valid, "?", 1);
}

static PyObject *batch_epoch(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct py_batch *)self)->batch->epoch);
}

static PyObject *batch_first(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct py_batch *)self)->batch->first);
}

static PyMethodDef batch_methods[] = {
    {"tensors", batch_tensors, METH_NOARGS, "A list of Buffers, one a sample; no copies."},
    {0}};

static PyGetSetDef batch_fields[] = {
    {"data", batch_data, NULL,
     "All bytes: a writable Buffer, uint8 [bytes]; [samples, bytes of one] where all samples\n"
     "have one size; of .npy samples [samples, *shape] in their type.",
     NULL},
    {"offsets", batch_offsets, NULL, "Where each sample begins: int64 [samples], bytes.", NULL},
    {"sizes", batch_sizes, NULL, "int64 [samples], bytes.", NULL},
    {"labels", batch_labels, NULL, "Classes, or -1: int64 [samples].", NULL},
    {"indices", batch_indices, NULL, "Numbers in the archive: int64 [samples].", NULL},
    {"valid", batch_valid, NULL, "False for padding and for what was skipped: bool [samples].",
     NULL},
    {"epoch", batch_epoch, NULL, "The epoch that it is of.", NULL},
    {"first", batch_first, NULL, "Which element of the rank's epoch its first one is.", NULL},
    {0}};

static PySequenceMethods batch_sequence = {.sq_length = batch_length, .sq_item = batch_item};

PyTypeObject batch_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Batch",
    .tp_basicsize = sizeof(struct py_batch),
    .tp_dealloc = batch_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_as_sequence = &batch_sequence,
    .tp_methods = batch_methods,
    .tp_getset = batch_fields,
    .tp_doc = "Samples in one piece of memory; len(batch), batch[i].\n"
              "The memory is used again once the batch and all views of it are gone.",
};

/* ---- loader ---- */

static int parse_rank(PyObject *rank, PyObject *world, struct onepot_loader_options *o)
{
    if ((rank == Py_None) != (world == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "rank and world_size are given both or none");
        return -1;
    }
    if (rank == Py_None)
        return 0;
    o->rank = PyLong_AsUnsignedLongLong(rank);
    o->world_size = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(world);
    if (!PyErr_Occurred() && o->world_size == 0)
        PyErr_SetString(PyExc_ValueError, "world_size is 0");
    return PyErr_Occurred() ? -1 : 0;
}

/* None is 0: chosen by the library. */
static int parse_count(PyObject *given, uint32_t *ret)
{
    unsigned long n = given == Py_None ? 0 : PyLong_AsUnsignedLong(given);
    if (!PyErr_Occurred() && n > UINT32_MAX)
        PyErr_SetString(PyExc_ValueError, "a number of threads or batches is too large");
    *ret = (uint32_t)n;
    return PyErr_Occurred() ? -1 : 0;
}

/* "npy", or a function in C: a capsule "onepot.decode", whose context is handed to it. */
static int parse_decode(PyObject *decode, unsigned long long room,
                        struct onepot_loader_options *o)
{
    if (decode == Py_None)
        return 0;
    if (PyUnicode_Check(decode) && PyUnicode_CompareWithASCIIString(decode, "npy") == 0) {
        o->npy = true;
        return 0;
    }
    if (!PyCapsule_IsValid(decode, "onepot.decode")) {
        PyErr_SetString(PyExc_TypeError,
                        "decode is 'npy', or a capsule 'onepot.decode' of a function in C");
        return -1;
    }
    o->decode = (onepot_decode *)(uintptr_t)PyCapsule_GetPointer(decode, "onepot.decode");
    o->decode_ctx = PyCapsule_GetContext(decode);
    o->decoded_bytes = room;
    return 0;
}

static int loader_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"archive", "batch_size", "rank",    "world_size",    "seed",
                            "shuffle", "drop_last",  "threads", "prefetch",      "decode",
                            "epoch",   "memory",     "align",   "skip_errors",   "verify",
                            "npy",     "block",      "window",  "decoded_bytes", NULL};
    struct py_loader *l = (struct py_loader *)self;
    PyObject *archive, *rank = Py_None, *world = Py_None;
    PyObject *threads = Py_None, *prefetch = Py_None, *decode = Py_None;
    unsigned long long batch_size, epoch = 0, memory = 0, block = 0, window = 0, decoded = 0;
    long long seed = 0;
    int shuffle = 1, drop_last = 0, skip = 0, verify = 0, npy = 0;
    unsigned align = 0;
    struct onepot_loader_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_loader *loader;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!K|OOLppOOO$KKIpppKKK", names,
                                     &archive_type, &archive, &batch_size, &rank, &world, &seed,
                                     &shuffle, &drop_last, &threads, &prefetch, &decode, &epoch,
                                     &memory, &align, &skip, &verify, &npy, &block, &window,
                                     &decoded) ||
        parse_rank(rank, world, &o) < 0 || parse_count(threads, &o.threads) < 0 ||
        parse_count(prefetch, &o.prefetch) < 0 || parse_decode(decode, decoded, &o) < 0)
        return -1;
    o.batch_size = batch_size;
    o.seed = (uint64_t)seed;
    o.epoch = epoch;
    o.no_shuffle = !shuffle;
    o.drop_last = drop_last;
    o.block = block;
    o.window = window;
    o.memory_bytes = memory;
    o.align = align;
    o.skip_errors = skip;
    o.verify = verify;
    o.npy = o.npy || npy;
    if (!((struct py_archive *)archive)->archive) {
        PyErr_SetString(PyExc_ValueError, "the archive was not opened");
        return -1;
    }
    int r;
    Py_BEGIN_ALLOW_THREADS r =
        onepot_loader_new(((struct py_archive *)archive)->archive, &o, &error, &loader);
    Py_END_ALLOW_THREADS if (r < 0)
    {
        raise_error(r, &error);
        return -1;
    }
    onepot_loader_free(l->loader);
    l->loader = loader;
    Py_XSETREF(l->archive, Py_NewRef(archive));
    Py_XSETREF(l->decode, Py_NewRef(decode));
    return 0;
}

static void loader_dealloc(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    Py_BEGIN_ALLOW_THREADS onepot_loader_free(l->loader);
    Py_END_ALLOW_THREADS Py_XDECREF(l->archive);
    Py_XDECREF(l->decode);
    Py_TYPE(self)->tp_free(self);
}

static struct onepot_loader *loader_of(PyObject *self)
{
    struct onepot_loader *loader = ((struct py_loader *)self)->loader;
    if (!loader)
        PyErr_SetString(PyExc_ValueError, "the loader was not initialised");
    return loader;
}

static Py_ssize_t loader_length(PyObject *self)
{
    struct onepot_loader *loader = loader_of(self);
    return loader ? (Py_ssize_t)onepot_loader_batches(loader) : -1;
}

static int go_to_epoch(struct onepot_loader *loader, uint64_t epoch)
{
    int r;
    Py_BEGIN_ALLOW_THREADS r = onepot_loader_set_epoch(loader, epoch);
    Py_END_ALLOW_THREADS if (r < 0) raise_error(r, NULL);
    return r;
}

/* An epoch that was left in its middle is over: the next one begins. */
static PyObject *loader_iter(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    uint64_t done;
    if (!loader_of(self))
        return NULL;
    uint64_t epoch = onepot_loader_epoch(l->loader, &done);
    if (done > 0 && !l->resumes && go_to_epoch(l->loader, epoch + 1) < 0)
        return NULL;
    l->resumes = 0;
    return Py_NewRef(self);
}

static PyObject *loader_next(PyObject *self)
{
    struct onepot_loader *loader = loader_of(self);
    const struct onepot_batch *batch = NULL;
    struct onepot_error error = {0};
    int r;
    if (!loader)
        return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS r = onepot_loader_next(loader, POLL_MS, &error, &batch);
        Py_END_ALLOW_THREADS
    } while (r == -ETIMEDOUT && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred())
        return NULL;
    if (r < 0)
        return raise_error(r, &error);
    return r ? batch_new((struct py_loader *)self, batch) : NULL;
}

static PyObject *loader_set_epoch(PyObject *self, PyObject *epoch)
{
    uint64_t e = PyLong_AsUnsignedLongLong(epoch);
    if (PyErr_Occurred() || !loader_of(self) || go_to_epoch(loader_of(self), e) < 0)
        return NULL;
    ((struct py_loader *)self)->resumes = 0;
    Py_RETURN_NONE;
}

typedef unsigned long long ull;

static PyObject *loader_state_dict(PyObject *self, PyObject *unused)
{
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error = {0};
    int r;
    (void)unused;
    if (!loader_of(self))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = onepot_loader_state(loader_of(self), &error, &s);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, &error);
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKss}", "version", (ull)s.version, "samples",
                         (ull)s.samples, "seed", (ull)s.seed, "epoch", (ull)s.epoch, "done",
                         (ull)s.done, "shuffle", (ull)s.shuffle, "drop_last", (ull)s.drop_last,
                         "block", (ull)s.block, "window", (ull)s.window, "digest", s.digest);
}

static int take_number(PyObject *state, const char *name, uint64_t *ret)
{
    PyObject *value = PyMapping_GetItemString(state, name);
    if (!value)
        return -1;
    *ret = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *loader_load_state_dict(PyObject *self, PyObject *state)
{
    struct onepot_state s = {.size = sizeof(s)};
    const struct {
        const char *name;
        uint64_t *value;
    } fields[] = {{"version", &s.version},     {"samples", &s.samples}, {"seed", &s.seed},
                  {"epoch", &s.epoch},         {"done", &s.done},       {"shuffle", &s.shuffle},
                  {"drop_last", &s.drop_last}, {"block", &s.block},     {"window", &s.window}};
    struct onepot_error error = {0};
    if (!loader_of(self))
        return NULL;
    for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (take_number(state, fields[i].name, fields[i].value) < 0)
            return NULL;
    PyObject *digest = PyMapping_GetItemString(state, "digest");
    const char *text = digest ? PyUnicode_AsUTF8(digest) : NULL;
    if (text)
        strncpy(s.digest, text, sizeof(s.digest) - 1);
    Py_XDECREF(digest);
    if (!text)
        return NULL;
    int r;
    Py_BEGIN_ALLOW_THREADS r = onepot_loader_restore(loader_of(self), &s, &error);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, &error);
    ((struct py_loader *)self)->resumes = 1;
    Py_RETURN_NONE;
}

static PyObject *loader_stats(PyObject *self, void *unused)
{
    struct onepot_stats s = {.size = sizeof(s)};
    (void)unused;
    if (!loader_of(self))
        return NULL;
    onepot_loader_stats(loader_of(self), &s);
    return Py_BuildValue("{sKsKsKsdsdsKsKsIsIsK}", "batches", (ull)s.batches, "samples",
                         (ull)s.samples, "bytes", (ull)s.bytes, "wait_seconds",
                         (double)s.wait_ns * 1e-9, "gather_seconds", (double)s.gather_ns * 1e-9,
                         "skipped", (ull)s.skipped, "slab_bytes", (ull)s.slab_bytes, "threads",
                         s.threads, "prefetch", s.prefetch, "memory", (ull)s.memory_bytes);
}

static PyObject *loader_delivered(PyObject *self, void *unused)
{
    struct onepot_delivered d;
    (void)unused;
    if (!loader_of(self))
        return NULL;
    onepot_loader_delivered(loader_of(self), &d);
    return Py_BuildValue("(KKK)", (ull)d.samples, (ull)d.sum_a, (ull)d.sum_b);
}

static PyObject *loader_epoch(PyObject *self, void *unused)
{
    (void)unused;
    return loader_of(self)
               ? PyLong_FromUnsignedLongLong(onepot_loader_epoch(loader_of(self), NULL))
               : NULL;
}

static PyObject *loader_sampler(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyMethodDef loader_methods[] = {
    {"set_epoch", loader_set_epoch, METH_O,
     "Go to the start of an epoch; costs nothing where the loader is there."},
    {"state_dict", loader_state_dict, METH_NOARGS,
     "Where the loader is, as numbers and a digest: what was delivered counts."},
    {"load_state_dict", loader_load_state_dict, METH_O,
     "Go on from a state, also on another world size with the same global batch.\n"
     "ValueError: it is another archive's, or can't be dealt to so many ranks."},
    {0}};

static PyGetSetDef loader_fields[] = {
    {"epoch", loader_epoch, NULL, "The epoch of the next batch.", NULL},
    {"sampler", loader_sampler, NULL, "The loader itself: for loops that call set_epoch on it.",
     NULL},
    {"stats", loader_stats, NULL, "What was delivered and waited for: dict.", NULL},
    {"delivered", loader_delivered, NULL,
     "(samples, sum, sum) of this epoch; the same, added over ranks modulo 2**64, for any\n"
     "order in which each sample came once.",
     NULL},
    {0}};

static PySequenceMethods loader_sequence = {.sq_length = loader_length};

PyTypeObject loader_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.Loader",
    .tp_basicsize = sizeof(struct py_loader),
    .tp_new = PyType_GenericNew,
    .tp_init = loader_init,
    .tp_dealloc = loader_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_iter = loader_iter,
    .tp_iternext = loader_next,
    .tp_as_sequence = &loader_sequence,
    .tp_methods = loader_methods,
    .tp_getset = loader_fields,
    .tp_doc =
        "Loader(archive, batch_size, rank=None, world_size=None, seed=0, shuffle=True,\n"
        "       drop_last=False, threads=None, prefetch=None, decode=None, *, epoch=0,\n"
        "       memory=0, align=0, skip_errors=False, verify=False, npy=False, block=0,\n"
        "       window=0, decoded_bytes=0)\n"
        "\n"
        "Batches of an archive's samples in the order of DistributedSampler, gathered ahead\n"
        "by threads that need no interpreter. Each iteration is the next epoch. Rank and\n"
        "world size come from the launcher where they are not given. memory: bytes that\n"
        "batches, kept ones included, may have; BufferError beyond that.\n"
        "decode: 'npy' (as npy=True: dense arrays of .npy files), or a capsule "
        "'onepot.decode'\n"
        "of an onepot_decode function (onepot.h), which is called on the loader's threads "
        "with\n"
        "decoded_bytes of room for each sample.\n"
        "OSError or ValueError names a sample that can't be read; iterating again after it\n"
        "(next()) goes on with the next batch. Any thread may take batches. In a forked child\n"
        "the loader goes on by itself.",
};
