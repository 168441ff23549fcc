/*
 * The module, its errors, and the conversion of numbers, memory, images and structs from
 * Python. onepot/_images.py explains and checks the options of images.
 */
#include "module.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#define SIGNALS_PACE 65536u /* indices between looks at signals */

/* ---- errors ---- */

PyObject *raise_error(int err, const struct onepot_error *error)
{
    const struct {
        int err;
        PyObject *type;
    } types[] = {{ENOMEM, PyExc_MemoryError}, {ERANGE, PyExc_IndexError},
                 {EINVAL, PyExc_ValueError},  {ESTALE, PyExc_ValueError},
                 {E2BIG, PyExc_ValueError},   {EPROTOTYPE, PyExc_ValueError},
                 {ENOBUFS, PyExc_BufferError}};
    const char *text = error && error->code ? error->text : strerror(-err);
    if (err == -ECANCELED && PyErr_Occurred())
        return NULL;
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].err == -err) {
            PyErr_SetString(types[i].type, text);
            return NULL;
        }
    /*
     * OSError chooses its subclass (FileNotFoundError...) by the number. The object is made
     * here because before Python 3.12 'except' looks at the type that was set.
     */
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *raised =
        message ? PyObject_CallFunction(PyExc_OSError, "iN", -err, message) : NULL;
    if (raised) {
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
        Py_DECREF(raised);
    }
    return NULL;
}

static bool no_signal_raises(void *unused)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int r = PyErr_CheckSignals();
    PyGILState_Release(state);
    return r == 0;
}

const struct permutation_stop stop_at_signals = {.is_wanted = no_signal_raises};

/* ---- numbers ---- */

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
    unsigned long long n;
    if (!take_up_to(given, ULLONG_MAX, &n))
        return 0;
    *(uint64_t *)ret = n;
    return 1;
}

int take_small(PyObject *given, void *ret)
{
    unsigned long long n;
    if (!take_up_to(given, UINT32_MAX, &n))
        return 0;
    *(uint32_t *)ret = (uint32_t)n;
    return 1;
}

/* One index. -1 with an exception. */
static int take_index(PyObject *given, uint64_t samples, int from_end, uint64_t *ret)
{
    PyObject *number = PyNumber_Index(given);
    int64_t index = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
        index = INT64_MIN; /* there is no such sample, either */
    }
    *ret = (uint64_t)(index < 0 && from_end ? index + (int64_t)samples : index);
    if (*ret < samples)
        return 0;
    PyErr_SetString(PyExc_IndexError, "there is no such sample");
    return -1;
}

static int module_grow_indices(uint64_t **indices, size_t *room)
{
    size_t more = *room ? 2 * *room : 64;
    uint64_t *moved = more > PY_SSIZE_T_MAX / sizeof(**indices)
                          ? NULL
                          : PyMem_Realloc(*indices, more * sizeof(**indices));
    if (!moved) {
        PyErr_NoMemory();
        return -1;
    }
    *indices = moved;
    *room = more;
    return 0;
}

/* One by one, so that the first one that is wrong ends it, however many follow. */
uint64_t *take_indices(PyObject *given, uint64_t samples, int from_end, Py_ssize_t *ret_count)
{
    PyObject *items = PyObject_GetIter(given), *item;
    uint64_t *indices = NULL;
    size_t count = 0, room = 0;
    int r = items ? module_grow_indices(&indices, &room) : -1;
    while (r == 0 && (item = PyIter_Next(items))) {
        r = count == room ? module_grow_indices(&indices, &room) : 0;
        if (r == 0)
            r = take_index(item, samples, from_end, &indices[count++]);
        Py_DECREF(item);
        if (r == 0 && count % SIGNALS_PACE == 0)
            r = PyErr_CheckSignals();
    }
    Py_XDECREF(items);
    if (PyErr_Occurred()) {
        PyMem_Free(indices);
        return NULL;
    }
    *ret_count = (Py_ssize_t)count;
    return indices;
}

/* ---- memory ---- */

int take_memory(PyObject *given, unsigned long long *size, Py_buffer *view, void **ret_address)
{
    if (PyLong_Check(given)) {
        *ret_address = PyLong_AsVoidPtr(given);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (PyObject_GetBuffer(given, view, PyBUF_WRITABLE) < 0)
        return -1;
    *ret_address = view->buf;
    *size = (unsigned long long)view->len;
    return 0;
}

/* ---- images ---- */

static int take_one(PyObject *given, struct onepot_images *o)
{
    int crop, interpolation, type, on_error, flip, last, exact;
    *o = (struct onepot_images){.size = sizeof(*o)};
    if (!PyArg_ParseTuple(given, "O&O&i(ff)(ff)pO&ii(fff)(fff)ppiO&O&O&", take_small,
                          &o->height, take_small, &o->width, &crop, &o->scale[0], &o->scale[1],
                          &o->ratio[0], &o->ratio[1], &flip, take_small, &o->resize,
                          &interpolation, &type, &o->mean[0], &o->mean[1], &o->mean[2],
                          &o->std[0], &o->std[1], &o->std[2], &last, &exact, &on_error,
                          take_small, &o->raw_height, take_small, &o->raw_width, take_small,
                          &o->raw_channels))
        return -1;
    o->crop = (enum onepot_crop)crop;
    o->no_flip = !flip;
    o->interpolation = (enum onepot_interpolation)interpolation;
    o->type = (enum onepot_float)type;
    o->channels_last = last;
    o->exact = exact;
    o->on_error = (enum onepot_on_error)on_error;
    return 0;
}

int take_images(PyObject *given, struct onepot_images *o)
{
    Py_ssize_t count = PyList_Check(given) ? PyList_Size(given) : 0;
    if (!PyList_Check(given))
        return take_one(given, o);
    if (count < 1 || count > (Py_ssize_t)ONEPOT_IMAGES_MAX) {
        PyErr_Format(PyExc_ValueError, "images of 1 to %u parts", ONEPOT_IMAGES_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *name;
        PyObject *one;
        if (!PyArg_ParseTuple(PyList_GetItem(given, i), "yO", &name, &one) ||
            take_one(one, &o[i]) < 0)
            return -1;
        o[i].part = name;
        o[i].next = i + 1 < count ? &o[i + 1] : NULL;
    }
    return 0;
}

/* ---- structs as dicts ---- */

static void take_text(PyObject *value, const char *name, const char **ret)
{
    Py_ssize_t len = 0;
    if (value != Py_None && !PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be str or None, not %R", name, Py_TYPE(value));
        *ret = NULL;
        return;
    }
    *ret = value == Py_None ? NULL : PyUnicode_AsUTF8AndSize(value, &len);
    if (*ret && strlen(*ret) != (size_t)len)
        PyErr_SetString(PyExc_ValueError, "embedded null character");
}

static void take_field(const struct field *field, PyObject *value, void *at)
{
    int is_true;
    const char *text;
    switch (field->kind) {
    case FIELD_COUNT:
        take_count(value, at);
        break;
    case FIELD_SMALL:
        take_small(value, at);
        break;
    case FIELD_SEED:
        *(uint64_t *)at = (uint64_t)PyLong_AsLongLong(value);
        break;
    case FIELD_FLAG:
    case FIELD_NOT:
        is_true = PyObject_IsTrue(value);
        *(bool *)at = is_true == (field->kind == FIELD_FLAG);
        break;
    case FIELD_TEXT:
        take_text(value, field->name, at);
        break;
    default:
        text = PyUnicode_AsUTF8AndSize(value, NULL);
        if (text)
            strncpy(at, text, 2 * ONEPOT_DIGEST_BYTES);
    }
}

int fields_take(const struct field *fields, PyObject *mapping, void *into)
{
    for (const struct field *f = fields; f->name; f++) {
        PyObject *value = PyMapping_GetItemString(mapping, f->name);
        if (value)
            take_field(f, value, (char *)into + f->offset);
        Py_XDECREF(value);
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *field_value(const struct field *field, const void *at)
{
    switch (field->kind) {
    case FIELD_SMALL:
        return PyLong_FromUnsignedLong(*(const uint32_t *)at);
    case FIELD_SECONDS:
        return PyFloat_FromDouble((double)*(const uint64_t *)at * 1e-9);
    case FIELD_DIGEST:
        return PyUnicode_FromString(at);
    default:
        return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    }
}

PyObject *fields_dict(const struct field *fields, const void *from)
{
    PyObject *dict = PyDict_New();
    for (const struct field *f = fields; dict && f->name; f++) {
        PyObject *value = field_value(f, (const char *)from + f->offset);
        if (!value || PyDict_SetItemString(dict, f->name, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

/* ---- module ---- */

PyTypeObject *archive_type, *sample_type, *buffer_type, *epoch_type;

void object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

PyObject *object_refuse_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyErr_SetString(PyExc_TypeError, "objects of this type are made by onepot alone");
    return NULL;
}

/* All interpreters of a process share the types. */
static int module_add_type(PyObject *module, const char *name, PyType_Spec *spec,
                           PyTypeObject **type)
{
    if (!*type)
        *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? PyObject_SetAttrString(module, name, (PyObject *)*type) : -1;
}

static int module_exec(PyObject *module)
{
    static PyTypeObject *batch_type;
    if (module_add_type(module, "Archive", &archive_spec, &archive_type) < 0 ||
        module_add_type(module, "Sample", &sample_spec, &sample_type) < 0 ||
        module_add_type(module, "Batch", &batch_spec, &batch_type) < 0 ||
        module_add_type(module, "Buffer", &buffer_spec, &buffer_type) < 0 ||
        module_add_type(module, "Epoch", &epoch_spec, &epoch_type) < 0 ||
        PyModule_AddFunctions(module, loader_functions) < 0 ||
        PyModule_AddFunctions(module, sampler_functions) < 0 ||
        PyModule_AddFunctions(module, writer_functions) < 0 ||
        PyModule_AddIntConstant(module, "NEVER", (long)ONEPOT_NEVER) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "__version__", onepot_version());
}

/* Memory that another object keeps alive; for the package's own use. */
static PyObject *module_view(PyObject *self, PyObject *args)
{
    PyObject *owner;
    unsigned long long address;
    Py_ssize_t size;
    int is_kept;
    if (!PyArg_ParseTuple(args, "OKnp", &owner, &address, &size, &is_kept))
        return NULL;
    return (PyObject *)buffer_of_bytes(is_kept ? owner : NULL, (void *)(uintptr_t)address,
                                       (uint64_t)size, 0, ITEM_UINT8);
}

static PyObject *module_images_bytes(PyObject *self, PyObject *given)
{
    struct onepot_images o[ONEPOT_IMAGES_MAX];
    struct onepot_error error = {0};
    uint64_t bytes = 0;
    if (take_images(given, o) < 0)
        return NULL;
    int r = onepot_images_bytes(o, &error, &bytes);
    return r < 0 ? raise_error(r, &error) : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *module_launcher_rank(PyObject *self, PyObject *unused)
{
    struct onepot_error note = {0};
    uint64_t rank, world;
    int r = onepot_launcher_rank(&rank, &world, &note);
    return r < 0 ? raise_error(r, &note)
                 : Py_BuildValue("(KKz)", (unsigned long long)rank, (unsigned long long)world,
                                 r ? note.text : NULL);
}

static PyMethodDef functions[] = {
    {"launcher_rank", module_launcher_rank, METH_NOARGS,
     "(): rank and world size of the launcher, and what may surprise about them, or None."},
    {"_images_bytes", module_images_bytes, METH_O,
     "_images_bytes(images): the bytes of one image."},
    {"_view", module_view, METH_VARARGS,
     "_view(owner, address, size, is_kept): a Buffer; is_kept: it keeps its owner alive."},
    {0}};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
                                   {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                   {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "onepot._core",
    .m_doc = "The part of the package onepot that is written in C. Use it through onepot.",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
