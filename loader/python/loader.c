/*
 * The part of Loader that is written in C: its life, iterators, position and statistics.
 * onepot/_loader.py explains the arguments.
 */
#include "module.h"

#include <errno.h>

#include "epoch.h"

#define POLL_MS 100 /* longest delay of Ctrl-C */

struct py_loader {
    PyObject_HEAD struct lease lease;
    PyObject *archive;      /* NULL: it was closed */
    struct batch_kind kind; /* of all batches */
    uint64_t batch_size;
    PyObject *decode; /* kept because of its context */
    /* A state was loaded, so the next iteration continues it and begins no new epoch. */
    _Atomic int resumes;
};

static void kind_of_images(const struct onepot_loader_options *o, struct batch_kind *ret)
{
    bool last = o->images && o->images->channels_last;
    uint64_t channels = o->convert ? o->convert->channels : 3;
    if (!o->convert && !o->images)
        return;
    ret->has_images = true;
    ret->image_item = item_of_images(o->convert ? o->convert->type : o->images->type);
    ret->image_shape[last ? 2 : 0] = channels;
    ret->image_shape[last ? 0 : 1] = o->convert ? o->convert->height : o->images->height;
    ret->image_shape[last ? 1 : 2] = o->convert ? o->convert->width : o->images->width;
}

/* Determine the kind of batches, which their views need. */
static int loader_find_kind(const struct onepot_loader *loader,
                            const struct onepot_loader_options *o, struct batch_kind *ret)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct onepot_error error = {0};
    *ret = (struct batch_kind){.where = BUFFER_HOST};
    ret->npy.size = sizeof(ret->npy);
    ret->item = onepot_loader_npy(loader, &ret->npy) == 0 ? item_of_npy(ret->npy.type) : -1;
    kind_of_images(o, ret);
    if (!o->device_count)
        return 0;
    int r = onepot_device_info(o->devices[0], &error, &info);
    if (r < 0) {
        raise_error(r, &error);
        return -1;
    }
    ret->where = info.is_host ? BUFFER_HOST_DEVICE : BUFFER_CUDA;
    return 0;
}

static void loader_free(PyObject *capsule)
{
    struct onepot_loader *loader = leased(capsule);
    Py_BEGIN_ALLOW_THREADS
    onepot_loader_free(loader);
    Py_END_ALLOW_THREADS
}

/* Devices by their names, while the loader is made. */
struct named {
    const char *names[ONEPOT_DEVICES_MAX];
    struct onepot_device *devices[ONEPOT_DEVICES_MAX];
    uint32_t count;
};

/* A tuple of names. */
static int loader_take_names(PyObject *given, struct named *named)
{
    Py_ssize_t count = PyTuple_Size(given);
    if (count > (Py_ssize_t)ONEPOT_DEVICES_MAX) {
        PyErr_Format(PyExc_ValueError, "more than %u devices", ONEPOT_DEVICES_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(named->names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(given, i), NULL)))
            return -1;
    named->count = (uint32_t)count;
    return 0;
}

static int named_open(struct named *named, struct onepot_error *error)
{
    int r = 0;
    for (uint32_t i = 0; i < named->count && r == 0; i++)
        r = onepot_device_open(named->names[i], error, &named->devices[i]);
    return r;
}

static void named_close(struct named *named)
{
    for (uint32_t i = 0; i < named->count; i++)
        onepot_device_close(named->devices[i]);
}

static int loader_open(struct py_loader *l, PyObject *archive, struct named *named,
                       PyObject *decode, struct onepot_loader_options *o)
{
    struct onepot_error error = {0};
    struct onepot_loader *loader = NULL;
    struct batch_kind kind;
    int r = 0;
    auto_lease lease = archive_lease(archive);
    struct onepot_archive *handle = leased(lease);
    if (!handle)
        return -1;
    o->devices = named->count ? named->devices : NULL;
    o->device_count = named->count;
    Py_BEGIN_ALLOW_THREADS
    r = named_open(named, &error);
    if (r == 0)
        r = onepot_loader_new(handle, o, &error, &loader);
    Py_END_ALLOW_THREADS
    if (r < 0) {
        named_close(named);
        raise_error(r, &error);
        return -1;
    }
    r = loader_find_kind(loader, o, &kind);
    named_close(named); /* the loader has its own references */
    if (r < 0) {
        Py_BEGIN_ALLOW_THREADS
        onepot_loader_free(loader);
        Py_END_ALLOW_THREADS
        return -1;
    }
    Py_BEGIN_CRITICAL_SECTION(l);
    r = lease_begin((PyObject *)l, &l->lease, loader, loader_free, "loader");
    if (r == 0) {
        l->kind = kind;
        l->batch_size = o->batch_size;
        l->archive = Py_NewRef(archive);
        l->decode = Py_NewRef(decode);
    }
    Py_END_CRITICAL_SECTION();
    return r;
}

/* A C function in a capsule "onepot.decode"; the capsule's context is passed to it. */
static int loader_take_decode(PyObject *decode, struct onepot_loader_options *o)
{
    if (decode == Py_None)
        return 0;
    if (!PyCapsule_IsValid(decode, "onepot.decode")) {
        PyErr_SetString(PyExc_TypeError,
                        "decode is 'npy', or a capsule 'onepot.decode' of a function in C");
        return -1;
    }
    o->decode = (onepot_decode *)(uintptr_t)PyCapsule_GetPointer(decode, "onepot.decode");
    o->decode_ctx = PyCapsule_GetContext(decode);
    return 0;
}

/* The loader's options that convert samples, kept by the caller. */
struct made {
    struct onepot_images images;
    struct onepot_conversion conversion;
};

/*
 * None; or (height, width, channels, type, four means, four scales) of pixels that a device
 * converts; or a longer tuple, of pictures that are decoded (take_images).
 */
static int loader_take_images(PyObject *given, struct made *made,
                              struct onepot_loader_options *o)
{
    struct onepot_conversion *images = &made->conversion;
    float *mean = images->mean, *scale = images->scale;
    int type;
    if (given == Py_None)
        return 0;
    if (PyTuple_Check(given) && PyTuple_Size(given) > 6) {
        o->images = &made->images;
        return take_images(given, &made->images);
    }
    if (!PyArg_ParseTuple(given, "O&O&O&i(ffff)(ffff)", take_small, &images->height, take_small,
                          &images->width, take_small, &images->channels, &type, &mean[0],
                          &mean[1], &mean[2], &mean[3], &scale[0], &scale[1], &scale[2],
                          &scale[3]))
        return -1;
    images->size = sizeof(*images);
    images->type = (enum onepot_float)type;
    o->convert = images;
    return 0;
}

/*
 * Loader(given, open, devices, decode, images, rank, world_size, options): open(given) is the
 * archive, opened only once the rest is right; devices is a tuple of str, options a dict.
 */
static int loader_init(PyObject *self, PyObject *args, PyObject *unused)
{
    static const struct field fields[] = {
        {"batch_size", FIELD_COUNT, offsetof(struct onepot_loader_options, batch_size)},
        {"seed", FIELD_SEED, offsetof(struct onepot_loader_options, seed)},
        {"epoch", FIELD_COUNT, offsetof(struct onepot_loader_options, epoch)},
        {"shuffle", FIELD_NOT, offsetof(struct onepot_loader_options, no_shuffle)},
        {"drop_last", FIELD_FLAG, offsetof(struct onepot_loader_options, drop_last)},
        {"block", FIELD_COUNT, offsetof(struct onepot_loader_options, block)},
        {"window", FIELD_COUNT, offsetof(struct onepot_loader_options, window)},
        {"threads", FIELD_SMALL, offsetof(struct onepot_loader_options, threads)},
        {"prefetch", FIELD_SMALL, offsetof(struct onepot_loader_options, prefetch)},
        {"memory", FIELD_COUNT, offsetof(struct onepot_loader_options, memory_bytes)},
        {"align", FIELD_SMALL, offsetof(struct onepot_loader_options, align)},
        {"skip_errors", FIELD_FLAG, offsetof(struct onepot_loader_options, skip_errors)},
        {"verify", FIELD_FLAG, offsetof(struct onepot_loader_options, verify)},
        {"npy", FIELD_FLAG, offsetof(struct onepot_loader_options, npy)},
        {"decoded_bytes", FIELD_COUNT, offsetof(struct onepot_loader_options, decoded_bytes)},
        {"gather", FIELD_SMALL, offsetof(struct onepot_loader_options, gather)},
        {"io_timeout", FIELD_SMALL, offsetof(struct onepot_loader_options, io_timeout_ms)},
        {0}};
    PyObject *given, *open, *names, *decode, *shape, *rank, *world, *options;
    struct named named = {.count = 0};
    struct made made = {0};
    struct onepot_loader_options o = {.size = sizeof(o)};
    (void)unused;
    if (!PyArg_ParseTuple(args, "OOO!OOOOO!", &given, &open, &PyTuple_Type, &names, &decode,
                          &shape, &rank, &world, &PyDict_Type, &options) ||
        loader_take_names(names, &named) < 0 || fields_take(fields, options, &o) < 0 ||
        take_rank(rank, world, "world_size", &o.rank, &o.world_size) < 0 ||
        loader_take_decode(decode, &o) < 0 || loader_take_images(shape, &made, &o) < 0)
        return -1;
    PyObject *archive = PyObject_CallFunctionObjArgs(open, given, NULL);
    int r = -1;
    if (archive && !PyObject_TypeCheck(archive, archive_type))
        PyErr_SetString(PyExc_TypeError, "that is no archive");
    else if (archive)
        r = loader_open((struct py_loader *)self, archive, &named, decode, &o);
    Py_XDECREF(archive);
    return r;
}

static PyObject *loader_close(PyObject *self, PyObject *unused)
{
    struct py_loader *l = (struct py_loader *)self;
    PyObject *archive;
    (void)unused;
    lease_close(self, &l->lease);
    Py_BEGIN_CRITICAL_SECTION(self);
    archive = l->archive;
    l->archive = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(archive);
    Py_RETURN_NONE;
}

static void loader_dealloc(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    Py_XDECREF(l->lease.capsule);
    Py_XDECREF(l->archive);
    Py_XDECREF(l->decode);
    object_free(self);
}

static PyObject *loader_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct py_loader *)self)->lease.is_closed);
}

static PyObject *loader_lease(PyObject *self)
{
    return lease_take(self, &((struct py_loader *)self)->lease, "loader");
}

static Py_ssize_t loader_length(PyObject *self)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    return loader ? (Py_ssize_t)onepot_loader_batches(loader) : -1;
}

static int loader_go_to(struct onepot_loader *loader, uint64_t epoch)
{
    int r;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_set_epoch(loader, epoch);
    Py_END_ALLOW_THREADS
    if (r < 0)
        raise_error(r, NULL);
    return r;
}

static PyObject *loader_take_next(PyObject *self, uint64_t epoch)
{
    struct py_loader *l = (struct py_loader *)self;
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    const struct onepot_batch *batch = NULL;
    struct onepot_error error = {0};
    int r;
    if (!loader)
        return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS
        r = loader_next_of(loader, epoch, POLL_MS, &error, &batch);
        Py_END_ALLOW_THREADS
    } while (r == -ETIMEDOUT && PyErr_CheckSignals() == 0 && !l->lease.is_closed);
    if (r == -ETIMEDOUT && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the loader is closed");
    if (PyErr_Occurred())
        return NULL;
    if (r < 0)
        return raise_error(r, &error);
    return r ? batch_new(&l->kind, batch) : NULL;
}

static PyObject *loader_next(PyObject *self)
{
    return loader_take_next(self, ANY_EPOCH);
}

/* ---- an epoch ---- */

/*
 * The result of iter(). It can't be the loader itself: iter() of an iterator must have no
 * effect (some versions of Python call it twice for a comprehension), while iter() of a loader
 * begins an epoch. The iterator ends with its epoch, even if others take batches of this epoch
 * or the next.
 */
struct py_loader_iterator {
    PyObject_HEAD PyObject *loader;
    uint64_t epoch;
    _Atomic int ended;
};

static PyObject *loader_iterator_new(PyObject *loader, uint64_t epoch)
{
    PyObject *self = PyType_GenericAlloc(loader_iterator_type, 0);
    if (self) {
        ((struct py_loader_iterator *)self)->loader = Py_NewRef(loader);
        ((struct py_loader_iterator *)self)->epoch = epoch;
    }
    return self;
}

static void loader_iterator_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_loader_iterator *)self)->loader);
    object_free(self);
}

static PyObject *loader_iterator_next(PyObject *self)
{
    struct py_loader_iterator *iterator = (struct py_loader_iterator *)self;
    if (iterator->ended)
        return NULL;
    PyObject *batch = loader_take_next(iterator->loader, iterator->epoch);
    if (!batch && !PyErr_Occurred())
        iterator->ended = 1;
    return batch;
}

static PyType_Slot loader_iterator_slots[] = {
    {Py_tp_dealloc, (void *)loader_iterator_dealloc},
    {Py_tp_iter, (void *)PyObject_SelfIter},
    {Py_tp_iternext, (void *)loader_iterator_next},
    {Py_tp_doc,
     (void
          *)"The batches of a Loader, from its position to the end of the epoch. It also ends\n"
            "when the loader goes to another epoch."},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec loader_iterator_spec = {
    .name = "onepot._core.LoaderIterator",
    .basicsize = sizeof(struct py_loader_iterator),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = loader_iterator_slots,
};

/* An epoch that was left halfway is over, so the next one begins. */
static PyObject *loader_iter(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    uint64_t done;
    if (!loader)
        return NULL;
    uint64_t epoch = onepot_loader_epoch(loader, &done);
    int resumes = atomic_exchange(&l->resumes, 0);
    if (done > 0 && !resumes && loader_go_to(loader, ++epoch) < 0)
        return NULL;
    return loader_iterator_new(self, epoch);
}

static PyObject *loader_set_epoch(PyObject *self, PyObject *epoch)
{
    unsigned long long e;
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    if (!loader || !take_count(epoch, &e) || loader_go_to(loader, e) < 0)
        return NULL;
    ((struct py_loader *)self)->resumes = 0;
    Py_RETURN_NONE;
}

static PyObject *loader_epoch(PyObject *self, void *unused)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    (void)unused;
    return loader ? PyLong_FromUnsignedLongLong(onepot_loader_epoch(loader, NULL)) : NULL;
}

static PyObject *loader_sampler(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

/* The type and shape of each sample: "float32 (3, 5)". */
static PyObject *loader_kind_text(const struct batch_kind *kind)
{
    Py_ssize_t shape[32];
    for (unsigned i = 0; i < 3; i++)
        shape[i] = (Py_ssize_t)kind->image_shape[i];
    if (kind->has_images)
        return type_and_shape(kind->image_item, shape, 3);
    if (kind->item < 0)
        return PyUnicode_FromString("uint8");
    for (uint32_t i = 0; i < kind->npy.dimensions; i++)
        shape[i] = (Py_ssize_t)kind->npy.shape[i];
    return type_and_shape((enum item)kind->item, shape, (int)kind->npy.dimensions);
}

static PyObject *loader_repr(PyObject *self)
{
    struct py_loader *l = (struct py_loader *)self;
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    if (!loader) {
        PyErr_Clear();
        return PyUnicode_FromFormat("<onepot.Loader, %s>",
                                    l->lease.is_closed ? "closed" : "not initialised");
    }
    PyObject *what = loader_kind_text(&l->kind);
    PyObject *text =
        what
            ? PyUnicode_FromFormat("<onepot.Loader of %R: %zd batches of %llu, %U, epoch %llu>",
                                   l->archive ? l->archive : Py_None, loader_length(self),
                                   (unsigned long long)l->batch_size, what,
                                   (unsigned long long)onepot_loader_epoch(loader, NULL))
            : NULL;
    Py_XDECREF(what);
    return text;
}

/* ---- position and statistics ---- */

static const struct field state_fields[] = {
    {"version", FIELD_COUNT, offsetof(struct onepot_state, version)},
    {"samples", FIELD_COUNT, offsetof(struct onepot_state, samples)},
    {"seed", FIELD_COUNT, offsetof(struct onepot_state, seed)},
    {"epoch", FIELD_COUNT, offsetof(struct onepot_state, epoch)},
    {"done", FIELD_COUNT, offsetof(struct onepot_state, done)},
    {"shuffle", FIELD_COUNT, offsetof(struct onepot_state, shuffle)},
    {"drop_last", FIELD_COUNT, offsetof(struct onepot_state, drop_last)},
    {"block", FIELD_COUNT, offsetof(struct onepot_state, block)},
    {"window", FIELD_COUNT, offsetof(struct onepot_state, window)},
    {"digest", FIELD_DIGEST, offsetof(struct onepot_state, digest)},
    {0}};

static PyObject *loader_state_dict(PyObject *self, PyObject *unused)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error = {0};
    int r;
    (void)unused;
    if (!loader)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_state(loader, &error, &s);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : fields_dict(state_fields, &s);
}

static PyObject *loader_load_state_dict(PyObject *self, PyObject *state)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error = {0};
    int r;
    if (!loader || fields_take(state_fields, state, &s) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_restore(loader, &s, &error);
    Py_END_ALLOW_THREADS
    if (r < 0)
        return raise_error(r, &error);
    ((struct py_loader *)self)->resumes = 1;
    Py_RETURN_NONE;
}

static PyObject *loader_stats(PyObject *self, void *unused)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    static const struct field fields[] = {
        {"batches", FIELD_COUNT, offsetof(struct onepot_stats, batches)},
        {"samples", FIELD_COUNT, offsetof(struct onepot_stats, samples)},
        {"bytes", FIELD_COUNT, offsetof(struct onepot_stats, bytes)},
        {"wait_seconds", FIELD_SECONDS, offsetof(struct onepot_stats, wait_ns)},
        {"gather_seconds", FIELD_SECONDS, offsetof(struct onepot_stats, gather_ns)},
        {"skipped", FIELD_COUNT, offsetof(struct onepot_stats, skipped)},
        {"slab_bytes", FIELD_COUNT, offsetof(struct onepot_stats, slab_bytes)},
        {"threads", FIELD_SMALL, offsetof(struct onepot_stats, threads)},
        {"prefetch", FIELD_SMALL, offsetof(struct onepot_stats, prefetch)},
        {"memory", FIELD_COUNT, offsetof(struct onepot_stats, memory_bytes)},
        {"part", FIELD_COUNT, offsetof(struct onepot_stats, part_bytes)},
        {"cache_hits", FIELD_COUNT, offsetof(struct onepot_stats, cache_hits)},
        {"cache_misses", FIELD_COUNT, offsetof(struct onepot_stats, cache_misses)},
        {"cache_bytes", FIELD_COUNT, offsetof(struct onepot_stats, cache_bytes)},
        {"cache_part", FIELD_COUNT, offsetof(struct onepot_stats, cache_part_bytes)},
        {"reads", FIELD_COUNT, offsetof(struct onepot_stats, reads)},
        {"read_bytes", FIELD_COUNT, offsetof(struct onepot_stats, read_bytes)},
        {0}};
    struct onepot_stats s = {.size = sizeof(s)};
    (void)unused;
    if (!loader)
        return NULL;
    onepot_loader_stats(loader, &s);
    return fields_dict(fields, &s);
}

static PyObject *loader_transfer(PyObject *self, PyObject *previous)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    static const struct field fields[] = {
        {"epoch", FIELD_COUNT, offsetof(struct onepot_transfer, epoch)},
        {"wait_seconds", FIELD_SECONDS, offsetof(struct onepot_transfer, wait_ns)},
        {"batches", FIELD_COUNT, offsetof(struct onepot_transfer, batches)},
        {"copy_bytes", FIELD_COUNT, offsetof(struct onepot_transfer, copy_bytes)},
        {"copy_seconds", FIELD_SECONDS, offsetof(struct onepot_transfer, copy_ns)},
        {"peak", FIELD_COUNT, offsetof(struct onepot_transfer, peak_bytes_per_second)},
        {"gathers", FIELD_COUNT, offsetof(struct onepot_transfer, gathers)},
        {0}};
    struct onepot_transfer t = {.size = sizeof(t)};
    struct onepot_error error = {0};
    int r, is_previous = PyObject_IsTrue(previous);
    if (is_previous < 0 || !loader)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_transfer(loader, is_previous, &error, &t);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : fields_dict(fields, &t);
}

static PyObject *loader_delivered(PyObject *self, void *unused)
{
    auto_lease lease = loader_lease(self);
    struct onepot_loader *loader = leased(lease);
    struct onepot_delivered d;
    (void)unused;
    if (!loader)
        return NULL;
    onepot_loader_delivered(loader, &d);
    return Py_BuildValue("(KKK)", (unsigned long long)d.samples, (unsigned long long)d.sum_a,
                         (unsigned long long)d.sum_b);
}

static PyMethodDef loader_methods[] = {
    {"set_epoch", loader_set_epoch, METH_O,
     "Go to the start of an epoch. Costs nothing if the loader is there already."},
    {"state_dict", loader_state_dict, METH_NOARGS,
     "The loader's position as a dict of numbers and a digest. Delivered batches count."},
    {"load_state_dict", loader_load_state_dict, METH_O,
     "Go on from a state, even with another world size if the global batch is the same.\n"
     "ValueError: the state belongs to another archive, or these ranks can't continue it."},
    {"close", loader_close, METH_NOARGS,
     "Stop its threads and give up its memory, as at the end of a 'with' block. Later uses are "
     "a\nValueError. Batches keep their bytes. An Archive that was given stays open."},
    {"_transfer", loader_transfer, METH_O, "The raw figures for transfer()."},
    {0}};

static PyGetSetDef loader_fields[] = {
    {"epoch", loader_epoch, NULL, "The epoch of the next batch.", NULL},
    {"closed", loader_closed, NULL, "Was it closed?", NULL},
    {"sampler", loader_sampler, NULL,
     "The loader itself, for loops that call loader.sampler.set_epoch().", NULL},
    {"stats", loader_stats, NULL, "Counts, bytes and seconds of this loader: dict.", NULL},
    {"delivered", loader_delivered, NULL,
     "(samples, sum, sum) of what was delivered in this epoch, padding left out. Added over\n"
     "all ranks modulo 2**64 they are the same for any order with each sample once.",
     NULL},
    {0}};

static PyType_Slot loader_slots[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)loader_init},
    {Py_tp_dealloc, (void *)loader_dealloc},
    {Py_tp_repr, (void *)loader_repr},
    {Py_tp_iter, (void *)loader_iter},
    {Py_tp_iternext, (void *)loader_next},
    {Py_sq_length, (void *)loader_length},
    {Py_tp_methods, loader_methods},
    {Py_tp_getset, loader_fields},
    {Py_tp_doc, (void *)"The part of onepot.Loader in C; see there."},
    {0, NULL},
};

PyType_Spec loader_spec = {
    .name = "onepot._core.Loader",
    .basicsize = sizeof(struct py_loader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = loader_slots,
};
