/*
 * The module, its errors, and the conversion of numbers and structs from Python.
 */
#include "module.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

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
