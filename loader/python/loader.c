/*
 * The part of Loader that is written in C: a loader of the library in a capsule, and functions
 * that take it. onepot/_loader.py has the class, and explains the arguments.
 */
#include "module.h"

#include <errno.h>
#include <stdatomic.h>

#define POLL_MS 100 /* longest delay of Ctrl-C */

struct py_loader {
    struct onepot_loader *loader;
    struct batch_kind kind; /* of all batches */
    PyTypeObject *batch_type;
    PyObject *decode; /* kept because of its context */
};

static enum item item_of_images(enum onepot_float type)
{
    if (!type)
        return ITEM_UINT8;
    return type == ONEPOT_FLOAT  ? ITEM_FLOAT32
           : type == ONEPOT_HALF ? ITEM_FLOAT16
                                 : ITEM_BFLOAT16;
}

static void kind_of_one(struct batch_kind *ret, enum onepot_float type, bool last,
                        uint64_t channels, uint64_t height, uint64_t width)
{
    unsigned i = ret->image_count++;
    ret->images[i].item = item_of_images(type);
    ret->images[i].shape[last ? 2 : 0] = channels;
    ret->images[i].shape[last ? 0 : 1] = height;
    ret->images[i].shape[last ? 1 : 2] = width;
}

static int kind_of_images(const struct onepot_loader_options *o, struct batch_kind *ret)
{
    const struct onepot_conversion *c = o->convert;
    const struct onepot_images *images = o->images;
    uint64_t count = 0, bytes = 0;
    if (c)
        kind_of_one(ret, c->type, false, c->channels, c->height, c->width);
    for (const struct onepot_images *i = images; i; i = i->next, count++) {
        struct onepot_images one = *i;
        one.next = NULL;
        ret->images[count].at = bytes = (bytes + 63) / 64 * 64;
        kind_of_one(ret, i->type, i->channels_last, 3, i->height, i->width);
        uint64_t more = 0;
        onepot_images_bytes(&one, NULL, &more);
        bytes += more;
    }
    if (!images || !images->part)
        return 0;
    ret->image_names = PyTuple_New((Py_ssize_t)count);
    for (Py_ssize_t i = 0; ret->image_names && images; i++, images = images->next) {
        PyObject *name = PyUnicode_DecodeFSDefault(images->part);
        if (!name || PyTuple_SetItem(ret->image_names, i, name) < 0)
            Py_CLEAR(ret->image_names);
    }
    return ret->image_names ? 0 : -1;
}

/* The item of a type as in .npy files ("<f4"). -1: there is none. */
static int item_of_npy(const char *type)
{
    for (int i = 0; type[0] != '>' && item_types[i].npy; i++)
        if (strcmp(type + 1, item_types[i].npy) == 0)
            return i;
    return -1;
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
    if (kind_of_images(o, ret) < 0)
        return -1;
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

static struct py_loader *loader_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, "onepot.loader");
}

/* A converter for O&. None: another thread has closed it. */
static int take_loader(PyObject *capsule, void *ret_loader)
{
    struct py_loader *l = NULL;
    if (capsule == Py_None)
        PyErr_SetString(PyExc_ValueError, "the loader is closed");
    else
        l = loader_of(capsule);
    *(struct py_loader **)ret_loader = l;
    return l != NULL;
}

static void loader_free(PyObject *capsule)
{
    struct py_loader *l = loader_of(capsule);
    Py_BEGIN_ALLOW_THREADS
    onepot_loader_free(l->loader);
    Py_END_ALLOW_THREADS
    Py_DECREF(l->batch_type);
    Py_DECREF(l->decode);
    Py_XDECREF(l->kind.image_names);
    Py_DECREF(l->kind.archive);
    PyMem_Free(l);
}

/* The options of a loader that is made, and what they point to. */
struct loader_given {
    struct onepot_loader_options o;
    bool awaits_order;
    const char *names[ONEPOT_DEVICES_MAX]; /* of the devices */
    struct onepot_device *devices[ONEPOT_DEVICES_MAX];
    uint32_t device_count;
    struct onepot_images images[ONEPOT_IMAGES_MAX];
    struct onepot_conversion conversion;
};

/* A tuple of names. */
static int loader_take_names(PyObject *names, struct loader_given *given)
{
    Py_ssize_t count = PyTuple_Size(names);
    if (count > (Py_ssize_t)ONEPOT_DEVICES_MAX) {
        PyErr_Format(PyExc_ValueError, "more than %u devices", ONEPOT_DEVICES_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(given->names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), NULL)))
            return -1;
    given->device_count = (uint32_t)count;
    return 0;
}

static int devices_open(struct loader_given *given, struct onepot_error *error)
{
    int r = 0;
    for (uint32_t i = 0; i < given->device_count && r == 0; i++)
        r = onepot_device_open(given->names[i], error, &given->devices[i]);
    return r;
}

static void devices_close(struct loader_given *given)
{
    for (uint32_t i = 0; i < given->device_count; i++)
        onepot_device_close(given->devices[i]);
}

/* Takes `loader` over, also on failure; archive: its lease. */
static PyObject *loader_capsule(struct onepot_loader *loader,
                                const struct onepot_loader_options *o, PyObject *archive,
                                PyTypeObject *batch_type, PyObject *decode)
{
    struct py_loader *l = PyMem_Calloc(1, sizeof(*l));
    PyObject *capsule = l ? PyCapsule_New(l, "onepot.loader", NULL) : PyErr_NoMemory();
    if (!capsule || loader_find_kind(loader, o, &l->kind) < 0) {
        Py_BEGIN_ALLOW_THREADS
        onepot_loader_free(loader);
        Py_END_ALLOW_THREADS
        if (l)
            Py_XDECREF(l->kind.image_names);
        PyMem_Free(l);
        Py_CLEAR(capsule);
        return NULL;
    }
    l->loader = loader;
    l->kind.archive = Py_NewRef(archive);
    l->batch_type = (PyTypeObject *)Py_NewRef(batch_type);
    l->decode = Py_NewRef(decode);
    PyCapsule_SetDestructor(capsule, loader_free);
    return capsule;
}

static PyObject *loader_make(PyObject *archive, struct loader_given *given,
                             PyTypeObject *batch_type, PyObject *decode)
{
    struct onepot_error error = {0};
    struct onepot_loader *loader = NULL;
    int r;
    auto_lease lease = archive_lease(archive);
    struct onepot_archive *handle = leased(lease);
    if (!handle)
        return NULL;
    given->o.devices = given->device_count ? given->devices : NULL;
    given->o.device_count = given->device_count;
    Py_BEGIN_ALLOW_THREADS
    r = devices_open(given, &error);
    if (r == 0)
        r = loader_new(handle, &given->o, given->awaits_order, &error, &loader);
    Py_END_ALLOW_THREADS
    PyObject *capsule = r < 0 ? raise_error(r, &error)
                              : loader_capsule(loader, &given->o, lease, batch_type, decode);
    devices_close(given); /* the loader has its own references */
    return capsule;
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

/*
 * None; or (height, width, channels, type, four means, four scales) of pixels that a device
 * converts; or a longer tuple, or a list, of pictures that are decoded (take_images).
 */
static int loader_take_images(PyObject *shape, struct loader_given *given)
{
    struct onepot_conversion *images = &given->conversion;
    float *mean = images->mean, *scale = images->scale;
    int type;
    if (shape == Py_None)
        return 0;
    if (PyList_Check(shape) || (PyTuple_Check(shape) && PyTuple_Size(shape) > 6)) {
        given->o.images = given->images;
        return take_images(shape, given->images);
    }
    if (!PyArg_ParseTuple(shape, "O&O&O&i(ffff)(ffff)", take_small, &images->height, take_small,
                          &images->width, take_small, &images->channels, &type, &mean[0],
                          &mean[1], &mean[2], &mean[3], &scale[0], &scale[1], &scale[2],
                          &scale[3]))
        return -1;
    images->size = sizeof(*images);
    images->type = (enum onepot_float)type;
    given->o.convert = images;
    return 0;
}

/*
 * open(given) is the archive, opened only once the rest is right; devices is a tuple of str,
 * options a dict.
 */
static PyObject *loader_open(PyObject *self, PyObject *args)
{
    static const struct field fields[] = {
        {"batch_size", FIELD_COUNT, offsetof(struct onepot_loader_options, batch_size)},
        {"rank", FIELD_COUNT, offsetof(struct onepot_loader_options, rank)},
        {"world_size", FIELD_COUNT, offsetof(struct onepot_loader_options, world_size)},
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
    PyObject *archived, *open, *names, *decode, *shape, *options;
    PyTypeObject *batch_type;
    int awaits_order;
    struct loader_given given = {.o = {.size = sizeof(given.o)}};
    if (!PyArg_ParseTuple(args, "OOO!OOO!O!p", &archived, &open, &PyTuple_Type, &names, &decode,
                          &shape, &PyDict_Type, &options, &PyType_Type, &batch_type,
                          &awaits_order) ||
        loader_take_names(names, &given) < 0 || fields_take(fields, options, &given.o) < 0 ||
        loader_take_decode(decode, &given.o) < 0 || loader_take_images(shape, &given) < 0)
        return NULL;
    given.awaits_order = awaits_order;
    PyObject *archive = PyObject_CallFunctionObjArgs(open, archived, NULL), *loader = NULL;
    if (archive && !PyObject_TypeCheck(archive, archive_type))
        PyErr_SetString(PyExc_TypeError, "that is no archive");
    else if (archive)
        loader = loader_make(archive, &given, batch_type, decode);
    PyObject *both = loader ? Py_BuildValue("(OO)", loader, archive) : NULL;
    Py_XDECREF(loader);
    Py_XDECREF(archive);
    return both;
}

static PyObject *loader_batches(PyObject *self, PyObject *capsule)
{
    const struct py_loader *l = loader_of(capsule);
    return l ? PyLong_FromUnsignedLongLong(onepot_loader_batches(l->loader)) : NULL;
}

static PyObject *loader_epoch(PyObject *self, PyObject *capsule)
{
    const struct py_loader *l = loader_of(capsule);
    uint64_t done;
    if (!l)
        return NULL;
    unsigned long long epoch = onepot_loader_epoch(l->loader, &done);
    return Py_BuildValue("(KK)", epoch, (unsigned long long)done);
}

static PyObject *loader_set_epoch(PyObject *self, PyObject *args)
{
    struct py_loader *l;
    uint64_t epoch;
    int r;
    if (!PyArg_ParseTuple(args, "O&O&", take_loader, &l, take_count, &epoch))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_set_epoch(l->loader, epoch);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, NULL) : Py_NewRef(Py_None);
}

/* positions: an iterable of numbers below `samples`. */
static PyObject *loader_order(PyObject *self, PyObject *args)
{
    struct onepot_error error = {0};
    struct py_loader *l;
    PyObject *positions;
    Py_ssize_t count;
    uint64_t epoch, samples;
    int r;
    if (!PyArg_ParseTuple(args, "O&O&OO&", take_loader, &l, take_count, &epoch, &positions,
                          take_count, &samples))
        return NULL;
    uint64_t *numbers = take_indices(positions, samples, 0, &count);
    if (!numbers)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_order(l->loader, epoch, numbers, (uint64_t)count, &error);
    Py_END_ALLOW_THREADS
    PyMem_Free(numbers);
    return r < 0 ? raise_error(r, &error) : Py_NewRef(Py_None);
}

/* handle: the name of the loader's attribute. */
static PyObject *loader_take(PyObject *loader, PyObject *handle, uint64_t epoch)
{
    PyObject *capsule, *taken = NULL;
    struct onepot_error error = {0};
    int r = -ETIMEDOUT;
    while (r == -ETIMEDOUT && PyErr_CheckSignals() == 0 &&
           (capsule = PyObject_GetAttr(loader, handle))) {
        const struct onepot_batch *batch = NULL;
        struct py_loader *l;
        r = take_loader(capsule, &l) ? 0 : -EINVAL;
        if (r == 0) {
            Py_BEGIN_ALLOW_THREADS
            r = loader_next_of(l->loader, epoch, POLL_MS, &error, &batch);
            Py_END_ALLOW_THREADS
            if (r > 0)
                taken = batch_new(l->batch_type, &l->kind, batch);
            else if (r < 0 && r != -ETIMEDOUT)
                raise_error(r, &error);
        }
        Py_DECREF(capsule);
    }
    return taken;
}

/*
 * The batches of a Loader, from its position to the end of the epoch. It is in C because a
 * signal's handler may raise an exception between any two steps in Python: a batch would count
 * as delivered, and nobody have it.
 */
struct py_epoch {
    PyObject_HEAD PyObject *loader, *handle;
    uint64_t epoch;
    _Atomic bool has_ended;
};

static PyObject *epoch_next(PyObject *self)
{
    struct py_epoch *e = (struct py_epoch *)self;
    PyObject *batch = e->has_ended ? NULL : loader_take(e->loader, e->handle, e->epoch);
    if (!batch && !PyErr_Occurred())
        e->has_ended = true;
    return batch;
}

static void epoch_dealloc(PyObject *self)
{
    Py_XDECREF(((struct py_epoch *)self)->loader);
    Py_XDECREF(((struct py_epoch *)self)->handle);
    object_free(self);
}

static PyType_Slot epoch_slots[] = {
    {Py_tp_dealloc, (void *)epoch_dealloc},
    {Py_tp_iter, (void *)PyObject_SelfIter},
    {Py_tp_iternext, (void *)epoch_next},
    {Py_tp_doc,
     (void *)"The batches of a Loader. It also ends when the loader goes to another\n"
             "epoch, even if other threads take batches of this one or the next."},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec epoch_spec = {
    .name = "onepot._core.Epoch",
    .basicsize = sizeof(struct py_epoch),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = epoch_slots,
};

static PyObject *loader_iterate(PyObject *self, PyObject *args)
{
    PyObject *loader, *handle;
    uint64_t epoch;
    if (!PyArg_ParseTuple(args, "OO&", &loader, take_count, &epoch) ||
        !(handle = PyUnicode_InternFromString("_handle")))
        return NULL;
    struct py_epoch *e = (struct py_epoch *)PyType_GenericAlloc(epoch_type, 0);
    if (!e) {
        Py_DECREF(handle);
        return NULL;
    }
    e->loader = Py_NewRef(loader);
    e->handle = handle; /* interned, for the interpreter's cache of attributes */
    e->epoch = epoch;
    return (PyObject *)e;
}

/* The type and shape of each sample: "float32 (3, 5)". */
static PyObject *loader_kind(PyObject *self, PyObject *capsule)
{
    const struct py_loader *l = loader_of(capsule);
    Py_ssize_t shape[32];
    if (!l)
        return NULL;
    const struct batch_kind *kind = &l->kind;
    PyObject *text = NULL;
    for (unsigned n = 0; n < kind->image_count && (n == 0 || text); n++) {
        for (unsigned i = 0; i < 3; i++)
            shape[i] = (Py_ssize_t)kind->images[n].shape[i];
        PyObject *one = type_and_shape(kind->images[n].item, shape, 3), *before = text;
        text = one && before ? PyUnicode_FromFormat("%U, %U", before, one) : one;
        if (before) {
            Py_DECREF(before);
            Py_XDECREF(one);
        }
    }
    if (kind->image_count)
        return text;
    if (kind->item < 0)
        return PyUnicode_FromString("uint8");
    for (uint32_t i = 0; i < kind->npy.dimensions; i++)
        shape[i] = (Py_ssize_t)kind->npy.shape[i];
    return type_and_shape((enum item)kind->item, shape, (int)kind->npy.dimensions);
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
    {"order", FIELD_COUNT, offsetof(struct onepot_state, order)},
    {0}};

static PyObject *loader_state(PyObject *self, PyObject *capsule)
{
    const struct py_loader *l = loader_of(capsule);
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error = {0};
    int r;
    if (!l)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_state(l->loader, &error, &s);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : fields_dict(state_fields, &s);
}

static PyObject *loader_restore(PyObject *self, PyObject *args)
{
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error = {0};
    struct py_loader *l;
    PyObject *state;
    int r;
    if (!PyArg_ParseTuple(args, "O&O", take_loader, &l, &state) ||
        fields_take(state_fields, state, &s) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_restore(l->loader, &s, &error);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : Py_NewRef(Py_None);
}

static PyObject *loader_stats(PyObject *self, PyObject *capsule)
{
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
    const struct py_loader *l = loader_of(capsule);
    struct onepot_stats s = {.size = sizeof(s)};
    if (!l)
        return NULL;
    onepot_loader_stats(l->loader, &s);
    return fields_dict(fields, &s);
}

static PyObject *loader_transfer(PyObject *self, PyObject *args)
{
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
    struct py_loader *l;
    int r, is_previous;
    if (!PyArg_ParseTuple(args, "O&p", take_loader, &l, &is_previous))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    r = onepot_loader_transfer(l->loader, is_previous, &error, &t);
    Py_END_ALLOW_THREADS
    return r < 0 ? raise_error(r, &error) : fields_dict(fields, &t);
}

static PyObject *loader_delivered(PyObject *self, PyObject *capsule)
{
    const struct py_loader *l = loader_of(capsule);
    struct onepot_delivered d;
    if (!l)
        return NULL;
    onepot_loader_delivered(l->loader, &d);
    return Py_BuildValue("(KKK)", (unsigned long long)d.samples, (unsigned long long)d.sum_a,
                         (unsigned long long)d.sum_b);
}

PyMethodDef loader_functions[] = {
    {"loader_open", loader_open, METH_VARARGS,
     "(given, open, devices, decode, images, options, Batch, awaits_order): the handle of a\n"
     "new loader, and its archive, open(given)."},
    {"loader_batches", loader_batches, METH_O, "(handle): how many batches an epoch has."},
    {"loader_epoch", loader_epoch, METH_O, "(handle): the epoch, and how much of it is done."},
    {"loader_set_epoch", loader_set_epoch, METH_VARARGS, "(handle, epoch)"},
    {"loader_order", loader_order, METH_VARARGS,
     "(handle, epoch, positions, samples): the order of this epoch, and to its start."},
    {"loader_iterate", loader_iterate, METH_VARARGS,
     "(loader, epoch): an iterator of Batches, by loader._handle."},
    {"loader_kind", loader_kind, METH_O, "(handle): type and shape of each sample, as a str."},
    {"loader_state", loader_state, METH_O, "(handle): the position, as a dict."},
    {"loader_restore", loader_restore, METH_VARARGS, "(handle, state)"},
    {"loader_stats", loader_stats, METH_O, "(handle): a dict."},
    {"loader_transfer", loader_transfer, METH_VARARGS, "(handle, previous): a dict."},
    {"loader_delivered", loader_delivered, METH_O, "(handle): a tuple of three numbers."},
    {0}};
