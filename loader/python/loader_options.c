/*
 * What a Loader is told: its arguments as options of the library.
 */
#include "loader.h"

#include <limits.h>
#include <string.h>

static int take_up_to(PyObject *given, unsigned long long most, unsigned long long *ret)
{
    PyObject *number = PyNumber_Index(given);
    unsigned long long n = number ? PyLong_AsUnsignedLongLong(number) : 0;
    int is_wrong = PyErr_Occurred() ? PyErr_ExceptionMatches(PyExc_OverflowError) : n > most;
    if (number && is_wrong)
        PyErr_Format(PyExc_OverflowError, "%R is not between 0 and %llu", number, most);
    Py_XDECREF(number);
    if (PyErr_Occurred())
        return 0;
    *ret = n;
    return 1;
}

int take_count(PyObject *given, void *ret)
{
    return take_up_to(given, ULLONG_MAX, ret);
}

int take_small(PyObject *given, void *ret)
{
    unsigned long long n;
    if (!take_up_to(given, UINT32_MAX, &n))
        return 0;
    *(uint32_t *)ret = (uint32_t)n;
    return 1;
}

int take_launcher(uint64_t *ret_rank, uint64_t *ret_world_size)
{
    struct onepot_error note = {0};
    int r = onepot_launcher_rank(ret_rank, ret_world_size, &note);
    if (r < 0)
        raise_error(r, &note);
    return r > 0 ? PyErr_WarnEx(PyExc_RuntimeWarning, note.text, 2) : r;
}

static int parse_rank(PyObject *rank, PyObject *world, struct onepot_loader_options *o)
{
    if ((rank == Py_None) != (world == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "rank and world_size are given both or none");
        return -1;
    }
    if (rank == Py_None)
        return take_launcher(&o->rank, &o->world_size);
    unsigned long long of = 0, all = 0;
    if (!take_count(rank, &of) || !take_count(world, &all))
        return -1;
    o->rank = of;
    o->world_size = all;
    if (!PyErr_Occurred() && o->world_size == 0)
        PyErr_SetString(PyExc_ValueError, "world_size is 0");
    return PyErr_Occurred() ? -1 : 0;
}

/* None is 0: chosen by the library. */
static int take_small_or_none(PyObject *given, void *ret)
{
    return given == Py_None || take_small(given, ret);
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
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(type, types[i]) == 0)
            ret->type = (enum onepot_float)(ONEPOT_FLOAT + i);
    if (strcmp(type, types[ret->type - ONEPOT_FLOAT]) != 0) {
        PyErr_Format(PyExc_ValueError, "images are float32, float16 or bfloat16, not %s", type);
        return -1;
    }
    if (shape == Py_None)
        return 0;
    if (!PyTuple_Check(shape) ||
        !PyArg_ParseTuple(shape, "O&O&O&;images is (height, width, channels)", take_small,
                          &ret->height, take_small, &ret->width, take_small, &ret->channels)) {
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

/*
 * "cuda:0", torch.device("cuda:0") or 0 as the name of a device; "cpu" and None: there is none.
 * *ret_keeps has the text.
 */
static int parse_device(PyObject *given, PyObject **ret_keeps, const char **ret_name)
{
    uint32_t number;
    if (given == Py_None)
        return 0;
    if (!PyIndex_Check(given))
        *ret_keeps = PyObject_Str(given);
    else if (take_small(given, &number))
        *ret_keeps = PyUnicode_FromFormat("cuda:%u", (unsigned)number);
    const char *name = *ret_keeps ? PyUnicode_AsUTF8(*ret_keeps) : NULL;
    *ret_name = name && strcmp(name, "cpu") != 0 ? name : NULL;
    return name ? 0 : -1;
}

/* An Archive as it is, and that of a path. */
static PyObject *take_archive(PyObject *given)
{
    PyObject *archive =
        PyObject_TypeCheck(given, &archive_type)
            ? Py_NewRef(given)
            : PyObject_CallFunctionObjArgs((PyObject *)&archive_type, given, NULL);
    if (archive && !archive_of(archive))
        Py_CLEAR(archive);
    return archive;
}

int loader_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"archive",    "batch_size", "rank",    "world_size",    "seed",
                            "shuffle",    "drop_last",  "threads", "prefetch",      "decode",
                            "epoch",      "memory",     "align",   "skip_errors",   "verify",
                            "npy",        "block",      "window",  "decoded_bytes", "device",
                            "images",     "dtype",      "mean",    "scale",         "gather",
                            "io_timeout", NULL};
    PyObject *archive, *rank = Py_None, *world = Py_None;
    PyObject *decode = Py_None;
    unsigned long long batch_size, epoch = 0, memory = 0, block = 0, window = 0, decoded = 0;
    long long seed = 0;
    int shuffle = 1, drop_last = 0, skip = 0, verify = 0, npy = 0;
    PyObject *device = Py_None, *device_text = NULL;
    const char *device_name = NULL, *type = "float32", *gather = "auto";
    PyObject *shape = Py_None, *mean = Py_None, *scale = Py_None, *timeout = Py_None;
    struct onepot_images images = {0};
    struct onepot_loader_options o = {.size = sizeof(o)};
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "OO&|OOLppO&O&O$O&O&O&pppO&O&O&OOsOOsO", names, &archive,
            take_count, &batch_size, &rank, &world, &seed, &shuffle, &drop_last,
            take_small_or_none, &o.threads, take_small_or_none, &o.prefetch, &decode,
            take_count, &epoch, take_count, &memory, take_small, &o.align, &skip, &verify, &npy,
            take_count, &block, take_count, &window, take_count, &decoded, &device, &shape,
            &type, &mean, &scale, &gather, &timeout) ||
        parse_timeout(timeout, &o.io_timeout_ms) < 0 ||
        parse_images(shape, type, mean, scale, &images) < 0 || parse_gather(gather, &o) < 0 ||
        parse_rank(rank, world, &o) < 0 || parse_decode(decode, decoded, &o) < 0)
        return -1;
    o.batch_size = batch_size;
    o.seed = (uint64_t)seed;
    o.epoch = epoch;
    o.no_shuffle = !shuffle;
    o.drop_last = drop_last;
    o.block = block;
    o.window = window;
    o.memory_bytes = memory;
    o.skip_errors = skip;
    o.verify = verify;
    o.npy = o.npy || npy;
    o.images = images.channels ? &images : NULL;
    archive = take_archive(archive);
    int r = archive ? parse_device(device, &device_text, &device_name) : -1;
    if (r == 0)
        r = loader_open((struct py_loader *)self, archive, device_name, decode, &o);
    Py_XDECREF(device_text);
    Py_XDECREF(archive);
    return r;
}
