/*
 * Loader: its life, and its iterators.
 */
#include "loader.h"

#include <errno.h>

#include "epoch.h"

#define POLL_MS 100 /* how long Ctrl-C may have to wait */

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

int loader_open(struct py_loader *l, PyObject *archive, const char *device_name,
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
        l->batch_size = o->batch_size;
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

static void loader_dealloc(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    Py_BEGIN_ALLOW_THREADS onepot_loader_free(l->loader);
    Py_END_ALLOW_THREADS Py_XDECREF(l->archive);
    Py_XDECREF(l->decode);
    Py_TYPE(self)->tp_free(self);
}

struct onepot_loader *loader_of(PyObject *self)
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

static PyObject *next_of(PyObject *self, uint64_t epoch)
{
    struct onepot_loader *loader = loader_of(self);
    const struct onepot_batch *batch = NULL;
    struct onepot_error error = {0};
    int r;
    if (!loader)
        return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS r = loader_next_of(loader, epoch, POLL_MS, &error, &batch);
        Py_END_ALLOW_THREADS
    } while (r == -ETIMEDOUT && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred())
        return NULL;
    if (r < 0)
        return raise_error(r, &error);
    return r ? batch_new(&((struct py_loader *)self)->kind, batch) : NULL;
}

static PyObject *loader_next(PyObject *self)
{
    return next_of(self, ANY_EPOCH);
}

/* ---- an epoch ---- */

/*
 * What iter() gives. It is not the loader itself: iter() of an iterator has to be without
 * effect (some versions of Python call it twice for a comprehension), that of a loader begins
 * an epoch. It ends with its epoch, also where others take batches of it, or of the next.
 */
struct py_loader_iterator {
    PyObject_HEAD PyObject *loader;
    uint64_t epoch;
    _Atomic int ended;
};

static PyObject *iterator_new(PyObject *loader, uint64_t epoch)
{
    PyObject *self = loader_iterator_type.tp_alloc(&loader_iterator_type, 0);
    if (self) {
        ((struct py_loader_iterator *)self)->loader = Py_NewRef(loader);
        ((struct py_loader_iterator *)self)->epoch = epoch;
    }
    return self;
}

static void iterator_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_loader_iterator *)self)->loader);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *iterator_next(PyObject *self)
{
    struct py_loader_iterator *iterator = (struct py_loader_iterator *)self;
    if (iterator->ended)
        return NULL;
    PyObject *batch = next_of(iterator->loader, iterator->epoch);
    if (!batch && !PyErr_Occurred())
        iterator->ended = 1;
    return batch;
}

PyTypeObject loader_iterator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot._core.LoaderIterator",
    .tp_basicsize = sizeof(struct py_loader_iterator),
    .tp_dealloc = iterator_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iterator_next,
    .tp_doc = "The batches of a Loader from where it is to the end of the epoch. One of an "
              "epoch that\n"
              "the loader has left is at its end.",
};

/* An epoch that was left in its middle is over: the next one begins. */
static PyObject *loader_iter(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    uint64_t done;
    if (!loader_of(self))
        return NULL;
    uint64_t epoch = onepot_loader_epoch(l->loader, &done);
    int resumes = atomic_exchange(&l->resumes, 0);
    if (done > 0 && !resumes && go_to_epoch(l->loader, ++epoch) < 0)
        return NULL;
    return iterator_new(self, epoch);
}

static PyObject *loader_set_epoch(PyObject *self, PyObject *epoch)
{
    unsigned long long e;
    if (!take_count(epoch, &e) || !loader_of(self) || go_to_epoch(loader_of(self), e) < 0)
        return NULL;
    ((struct py_loader *)self)->resumes = 0;
    Py_RETURN_NONE;
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

/* What each sample is: "float32 (3, 5)". */
static PyObject *kind_text(const struct batch_kind *kind)
{
    Py_ssize_t shape[32] = {kind->images.channels, kind->images.height, kind->images.width},
               item;
    if (kind->images.channels)
        return type_and_shape(images_format(kind->images.type), shape, 3);
    const char *format = kind->shaped ? npy_format(kind->npy.type, &item) : NULL;
    for (uint32_t i = 0; format && i < kind->npy.dimensions; i++)
        shape[i] = (Py_ssize_t)kind->npy.shape[i];
    return format ? type_and_shape(format, shape, (int)kind->npy.dimensions)
                  : PyUnicode_FromString("uint8");
}

static PyObject *loader_repr(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    if (!l->loader)
        return PyUnicode_FromString("<onepot.Loader, not initialised>");
    PyObject *what = kind_text(&l->kind);
    PyObject *text =
        what
            ? PyUnicode_FromFormat("<onepot.Loader of %R: %zd batches of %llu, %U, epoch %llu>",
                                   l->archive, loader_length(self),
                                   (unsigned long long)l->batch_size, what,
                                   (unsigned long long)onepot_loader_epoch(l->loader, NULL))
            : NULL;
    Py_XDECREF(what);
    return text;
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
    .tp_repr = loader_repr,
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
        "Batches of the samples of an archive (an Archive, or its path) in the order of\n"
        "DistributedSampler, gathered ahead\n"
        "by threads that need no interpreter. Each iteration is the next epoch. Rank and\n"
        "world size come from the launcher where they are not given. memory: bytes that\n"
        "batches, kept ones included, may have; BufferError beyond that.\n"
        "decode: 'npy' (as npy=True: dense arrays of .npy files), or a capsule "
        "'onepot.decode'\n"
        "of an onepot_decode function (onepot.h), which is called on the loader's threads "
        "with\n"
        "decoded_bytes of room for each sample.\n"
        "device: 'cuda:0', 0, torch.device('cuda:0'), 'cuda' (by the local rank) or 'host' "
        "(the\n"
        "host playing a GPU): "
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
        "OSError or ValueError names a sample that can't be read; next() of the same\n"
        "iterator goes on with the next batch. Any thread may take batches. In a forked child\n"
        "the loader goes on by itself.",
};
