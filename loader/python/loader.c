/*
 * Loader, and the options that it takes.
 */
#include "module.h"

#include <errno.h>
#include <string.h>

#define POLL_MS 100 /* how long Ctrl-C may have to wait */

struct py_loader {
    PyObject_HEAD struct onepot_loader *loader;
    PyObject *archive;
    struct batch_kind kind; /* of all its batches */
    PyObject *decode;       /* kept, for its context */
    /* A state was loaded: the next iteration goes on, and begins no epoch. */
    _Atomic int resumes;
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

/* (height, width, channels), and a number for each channel or one for all. */
static int parse_channels(PyObject *given, const char *what, float fallback, uint32_t channels,
                          float *ret)
{
    if (given != Py_None && PySequence_Check(given) &&
        PySequence_Size(given) != (Py_ssize_t)channels) {
        PyErr_Format(PyExc_ValueError, "%s is one number, or one for each channel", what);
        return -1;
    }
    for (uint32_t i = 0; i < channels; i++) {
        PyObject *one = given == Py_None          ? PyFloat_FromDouble(fallback)
                        : PySequence_Check(given) ? PySequence_GetItem(given, i)
                                                  : Py_NewRef(given);
        ret[i] = one ? (float)PyFloat_AsDouble(one) : 0;
        Py_XDECREF(one);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static int parse_images(PyObject *shape, const char *type, PyObject *mean, PyObject *scale,
                        struct onepot_images *ret)
{
    static const char *const types[] = {"float32", "float16", "bfloat16"};
    ret->size = sizeof(*ret);
    ret->type = ONEPOT_FLOAT;
    if (shape == Py_None)
        return 0;
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(type, types[i]) == 0)
            ret->type = (enum onepot_float)(ONEPOT_FLOAT + i);
    if (strcmp(type, types[ret->type - ONEPOT_FLOAT]) != 0) {
        PyErr_Format(PyExc_ValueError, "images are float32, float16 or bfloat16, not %s", type);
        return -1;
    }
    if (!PyTuple_Check(shape) ||
        !PyArg_ParseTuple(shape, "III;images is (height, width, channels)", &ret->height,
                          &ret->width, &ret->channels)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "images is (height, width, channels)");
        return -1;
    }
    if (ret->channels < 1 || ret->channels > 4) {
        PyErr_SetString(PyExc_ValueError, "images have 1 to 4 channels");
        return -1;
    }
    return parse_channels(mean, "mean", 0, ret->channels, ret->mean) < 0 ||
                   parse_channels(scale, "scale", 1, ret->channels, ret->scale) < 0
               ? -1
               : 0;
}

static int parse_gather(const char *name, struct onepot_loader_options *o)
{
    static const char *const names[] = {"auto", "host", "device"};
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            o->gather = (enum onepot_gather)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "gather is 'auto', 'host' or 'device', not '%s'", name);
    return -1;
}

/* Seconds; None is 0, the default; 0 is never. */
static int parse_timeout(PyObject *given, uint32_t *ret)
{
    double seconds = given == Py_None ? 0 : PyFloat_AsDouble(given);
    if (PyErr_Occurred())
        return -1;
    if (!(seconds >= 0 && seconds < 4e6)) {
        PyErr_SetString(PyExc_ValueError, "io_timeout is a number of seconds, or 0: never");
        return -1;
    }
    *ret = (uint32_t)(seconds * 1000);
    if (given != Py_None && *ret == 0)
        *ret = seconds > 0 ? 1 : ONEPOT_NEVER;
    return 0;
}

/* What batches will be, for their views. */
static int find_kind(const struct onepot_loader *loader, const struct onepot_loader_options *o,
                     struct batch_kind *ret)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct onepot_error error = {0};
    *ret = (struct batch_kind){.where = BUFFER_HOST};
    ret->npy.size = sizeof(ret->npy);
    ret->shaped = onepot_loader_npy(loader, &ret->npy) == 0;
    if (o->images)
        ret->images = *o->images;
    if (!o->device)
        return 0;
    int r = onepot_device_info(o->device, &error, &info);
    if (r < 0) {
        raise_error(r, &error);
        return -1;
    }
    ret->where = info.is_host ? BUFFER_HOST_DEVICE : BUFFER_CUDA;
    ret->device_index = (int)info.index;
    return 0;
}

static int new_loader(struct py_loader *l, PyObject *archive, const char *device_name,
                      PyObject *decode, struct onepot_loader_options *o)
{
    struct onepot_error error = {0};
    struct onepot_loader *loader = NULL;
    struct batch_kind kind;
    int r = 0, is_first;
    Py_BEGIN_ALLOW_THREADS if (device_name) r =
        onepot_device_open(device_name, &error, &o->device);
    if (r == 0)
        r = onepot_loader_new(((struct py_archive *)archive)->archive, o, &error, &loader);
    Py_END_ALLOW_THREADS if (r < 0)
    {
        onepot_device_close(o->device);
        raise_error(r, &error);
        return -1;
    }
    r = find_kind(loader, o, &kind);
    onepot_device_close(o->device); /* the loader has its own use of it */
    Py_BEGIN_CRITICAL_SECTION(l);
    is_first = r == 0 && !l->loader;
    if (is_first) {
        l->kind = kind;
        l->archive = Py_NewRef(archive);
        l->decode = Py_NewRef(decode);
        l->loader = loader;
    }
    Py_END_CRITICAL_SECTION();
    if (is_first)
        return 0;
    Py_BEGIN_ALLOW_THREADS onepot_loader_free(loader);
    Py_END_ALLOW_THREADS if (r == 0)
        PyErr_SetString(PyExc_ValueError, "the loader was initialised already");
    return -1;
}

static int loader_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"archive",    "batch_size", "rank",    "world_size",    "seed",
                            "shuffle",    "drop_last",  "threads", "prefetch",      "decode",
                            "epoch",      "memory",     "align",   "skip_errors",   "verify",
                            "npy",        "block",      "window",  "decoded_bytes", "device",
                            "images",     "dtype",      "mean",    "scale",         "gather",
                            "io_timeout", NULL};
    struct py_loader *l = (struct py_loader *)self;
    PyObject *archive, *rank = Py_None, *world = Py_None;
    PyObject *threads = Py_None, *prefetch = Py_None, *decode = Py_None;
    unsigned long long batch_size, epoch = 0, memory = 0, block = 0, window = 0, decoded = 0;
    long long seed = 0;
    int shuffle = 1, drop_last = 0, skip = 0, verify = 0, npy = 0;
    unsigned align = 0;
    const char *device = NULL, *type = "float32", *gather = "auto";
    PyObject *shape = Py_None, *mean = Py_None, *scale = Py_None, *timeout = Py_None;
    struct onepot_images images = {0};
    struct onepot_loader_options o = {.size = sizeof(o)};
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "O!K|OOLppOOO$KKIpppKKKzOsOOsO", names, &archive_type, &archive,
            &batch_size, &rank, &world, &seed, &shuffle, &drop_last, &threads, &prefetch,
            &decode, &epoch, &memory, &align, &skip, &verify, &npy, &block, &window, &decoded,
            &device, &shape, &type, &mean, &scale, &gather, &timeout) ||
        parse_timeout(timeout, &o.io_timeout_ms) < 0 ||
        parse_images(shape, type, mean, scale, &images) < 0 || parse_gather(gather, &o) < 0 ||
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
    o.images = images.channels ? &images : NULL;
    return new_loader(l, archive, device, decode, &o);
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
    int resumes = atomic_exchange(&l->resumes, 0);
    if (done > 0 && !resumes && go_to_epoch(l->loader, epoch + 1) < 0)
        return NULL;
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
    return r ? batch_new(&((struct py_loader *)self)->kind, batch) : NULL;
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
    return Py_BuildValue(
        "{sKsKsKsdsdsKsKsIsIsKsKsKsKsKsKsKsK}", "batches", (ull)s.batches, "samples",
        (ull)s.samples, "bytes", (ull)s.bytes, "wait_seconds", (double)s.wait_ns * 1e-9,
        "gather_seconds", (double)s.gather_ns * 1e-9, "skipped", (ull)s.skipped, "slab_bytes",
        (ull)s.slab_bytes, "threads", s.threads, "prefetch", s.prefetch, "memory",
        (ull)s.memory_bytes, "part", (ull)s.part_bytes, "cache_hits", (ull)s.cache_hits,
        "cache_misses", (ull)s.cache_misses, "cache_bytes", (ull)s.cache_bytes, "cache_part",
        (ull)s.cache_part_bytes, "reads", (ull)s.reads, "read_bytes", (ull)s.read_bytes);
}

static PyObject *loader_transfer(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"previous", NULL};
    struct onepot_transfer t = {.size = sizeof(t)};
    struct onepot_error error = {0};
    int previous = 0, r;
    if (!loader_of(self) ||
        !PyArg_ParseTupleAndKeywords(args, keywords, "|p", names, &previous))
        return NULL;
    Py_BEGIN_ALLOW_THREADS r = onepot_loader_transfer(loader_of(self), previous, &error, &t);
    Py_END_ALLOW_THREADS if (r < 0) return raise_error(r, &error);
    double seconds = (double)t.copy_ns * 1e-9, peak = (double)t.peak_bytes_per_second;
    double rate = t.copy_ns ? (double)t.copy_bytes / seconds : 0;
    return Py_BuildValue(
        "{sKsdsKsKsdsdsdsdsO}", "epoch", (ull)t.epoch, "wait_seconds", (double)t.wait_ns * 1e-9,
        "batches", (ull)t.batches, "copy_bytes", (ull)t.copy_bytes, "copy_seconds", seconds,
        "bytes_per_second", rate, "peak_bytes_per_second", peak, "fraction_of_peak",
        peak > 0 ? rate / peak : 0, "gathered_by_device", t.gathers ? Py_True : Py_False);
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
    {"transfer", (PyCFunction)(void *)loader_transfer, METH_VARARGS | METH_KEYWORDS,
     "transfer(previous=False): of this epoch, or of the one before, what was waited for, and\n"
     "what was copied to the device how fast: dict. The first call measures the link's peak."},
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
        "       window=0, decoded_bytes=0, device=None, images=None, dtype='float32',\n"
        "       mean=None, scale=None, gather='auto', io_timeout=None)\n"
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
        "device: 'cuda:0', 'cuda' (by the local rank) or 'host' (the host playing a GPU): "
        "batches "
        "go\n"
        "over in one copy each, ahead of their use. images=(height, width, channels): samples "
        "are\n"
        "bytes by rows, of which the device makes (byte - mean) * scale, channels first.\n"
        "gather: 'device' lets the GPU collect the samples from the page-locked archive, "
        "'host' "
        "the\n"
        "CPU; 'auto' measures.\n"
        "io_timeout: seconds after which a read of the storage is given up (None: 60; 0: "
        "never).\n"
        "OSError or ValueError names a sample that can't be read; iterating again after it\n"
        "(next()) goes on with the next batch. Any thread may take batches. In a forked child\n"
        "the loader goes on by itself.",
};
