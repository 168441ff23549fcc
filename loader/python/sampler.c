/*
 * The order of DistributedSampler. onepot/_sampler.py makes a drop-in for torch's class of it.
 */
#include "module.h"

#include <errno.h>

#include "sampler.h"

#define PACE                                                                                   \
    (UINT64_C(1) << 20) /* elements that an iterator gives between looks at signals            \
                         */

struct py_sampler {
    PyObject_HEAD struct onepot_sampler *sampler;
    PyObject *keeps;   /* of an iterator: its sampler; else NULL */
    uint64_t at, skip; /* iterator: next element; sampler: where the next iterator begins */
    uint64_t length;
};

/* A shuffle goes on as long as no signal's handler raises an exception. */
static bool sampler_is_wanted(void *unused)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int r = PyErr_CheckSignals();
    (void)unused;
    PyGILState_Release(state);
    return r == 0;
}

static const struct permutation_stop sampler_stop = {.is_wanted = sampler_is_wanted};

/* Sampler(samples, rank, world_size, options): options is a dict. */
static int sampler_init(PyObject *self, PyObject *args, PyObject *unused)
{
    static const struct field fields[] = {
        {"shuffle", FIELD_NOT, offsetof(struct onepot_sampler_options, no_shuffle)},
        {"seed", FIELD_SEED, offsetof(struct onepot_sampler_options, seed)},
        {"drop_last", FIELD_FLAG, offsetof(struct onepot_sampler_options, drop_last)},
        {"block", FIELD_COUNT, offsetof(struct onepot_sampler_options, block)},
        {"window", FIELD_COUNT, offsetof(struct onepot_sampler_options, window)},
        {"worker", FIELD_COUNT, offsetof(struct onepot_sampler_options, worker)},
        {"workers", FIELD_COUNT, offsetof(struct onepot_sampler_options, workers)},
        {0}};
    struct py_sampler *s = (struct py_sampler *)self;
    PyObject *rank, *world, *options;
    struct onepot_sampler_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    struct onepot_sampler *sampler;
    Py_ssize_t samples;
    (void)unused;
    if (!PyArg_ParseTuple(args, "nOOO!", &samples, &rank, &world, &PyDict_Type, &options) ||
        fields_take(fields, options, &o) < 0)
        return -1;
    if (samples < 0) {
        PyErr_SetString(PyExc_ValueError, "a negative number of samples");
        return -1;
    }
    o.samples = (uint64_t)samples;
    if (take_rank(rank, world, "num_replicas", &o.rank, &o.world_size) < 0)
        return -1;
    int r;
    Py_BEGIN_ALLOW_THREADS
    r = sampler_new(&o, &sampler_stop, &error, &sampler);
    Py_END_ALLOW_THREADS
    if (r < 0) {
        if (!PyErr_Occurred())
            raise_error(r, &error);
        return -1;
    }
    int is_first;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_first = !s->sampler;
    if (is_first) {
        s->length = onepot_sampler_length(sampler);
        s->sampler = sampler;
    }
    Py_END_CRITICAL_SECTION();
    if (is_first)
        return 0;
    onepot_sampler_free(sampler);
    PyErr_SetString(PyExc_ValueError, "the sampler was initialised already");
    return -1;
}

static void sampler_dealloc(PyObject *self)
{
    struct py_sampler *s = (struct py_sampler *)self;
    if (s->keeps)
        Py_DECREF(s->keeps);
    else
        onepot_sampler_free(s->sampler);
    object_free(self);
}

/* NULL with an exception: a subclass may call a method before our __init__. */
static struct onepot_sampler *sampler_of(PyObject *self)
{
    struct py_sampler *s = (struct py_sampler *)self;
    if (!s->sampler)
        PyErr_SetString(PyExc_ValueError, "the sampler was not initialised");
    return s->sampler;
}

static Py_ssize_t sampler_length(PyObject *self)
{
    return (Py_ssize_t)((struct py_sampler *)self)->length;
}

static PyObject *sampler_iter(PyObject *self)
{
    struct py_sampler *s = (struct py_sampler *)self;
    if (!sampler_of(self))
        return NULL;
    struct py_sampler *i = PyObject_New(struct py_sampler, sampler_iterator_type);
    if (!i)
        return NULL;
    i->sampler = s->sampler;
    i->keeps = Py_NewRef(self);
    i->length = s->length;
    Py_BEGIN_CRITICAL_SECTION(self);
    i->at = s->skip;
    s->skip = 0;
    Py_END_CRITICAL_SECTION();
    return (PyObject *)i;
}

static PyObject *sampler_iterator_next(PyObject *self)
{
    struct py_sampler *i = (struct py_sampler *)self;
    struct py_sampler *s = (struct py_sampler *)i->keeps;
    uint64_t index;
    int got;
    if (i->at % PACE == PACE - 1 && PyErr_CheckSignals() < 0)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION2(self, i->keeps);
    got = i->at < i->length && onepot_sampler_get(s->sampler, i->at, 1, &index, NULL) == 0;
    i->at += (uint64_t)got;
    Py_END_CRITICAL_SECTION2();
    return got ? PyLong_FromUnsignedLongLong(index) : NULL;
}

static PyType_Slot sampler_iterator_slots[] = {
    {Py_tp_dealloc, (void *)sampler_dealloc},
    {Py_tp_iter, (void *)PyObject_SelfIter},
    {Py_tp_iternext, (void *)sampler_iterator_next},
    {Py_tp_new, (void *)object_refuse_new},
    {0, NULL},
};

PyType_Spec sampler_iterator_spec = {
    .name = "onepot.SamplerIterator",
    .basicsize = sizeof(struct py_sampler),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = sampler_iterator_slots,
};

/* `skip`: how many elements the next iterator passes over. NULL: as before. */
static PyObject *sampler_go_to(PyObject *self, uint64_t epoch, const uint64_t *skip)
{
    struct onepot_sampler *sampler = sampler_of(self);
    struct onepot_error error = {0};
    struct order_options options;
    struct order *order = NULL;
    bool is_same;
    int r = 0;
    if (!sampler)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(self);
    is_same = onepot_sampler_epoch(sampler) == epoch;
    sampler_options_of(sampler, epoch, &options);
    Py_END_CRITICAL_SECTION();
    options.stop = &sampler_stop;
    if (!is_same) {
        Py_BEGIN_ALLOW_THREADS
        r = order_new(&options, &order);
        Py_END_ALLOW_THREADS
    }
    if (r < 0 && !PyErr_Occurred())
        order_error(&error, r, &options);
    if (r < 0)
        return PyErr_Occurred() ? NULL : raise_error(r, &error);
    /* Under the lock, because an iterator may be reading the order that goes away. */
    Py_BEGIN_CRITICAL_SECTION(self);
    if (!is_same)
        sampler_switch(sampler, epoch, order);
    if (skip)
        ((struct py_sampler *)self)->skip = *skip;
    Py_END_CRITICAL_SECTION();
    Py_RETURN_NONE;
}

static PyObject *sampler_set_epoch(PyObject *self, PyObject *epoch)
{
    uint64_t e;
    return take_count(epoch, &e) ? sampler_go_to(self, e, NULL) : NULL;
}

/* A sampler's state, and its fields. */
struct state {
    uint64_t epoch, yielded;
};

static const struct field state_fields[] = {
    {"epoch", FIELD_COUNT, offsetof(struct state, epoch)},
    {"yielded", FIELD_COUNT, offsetof(struct state, yielded)},
    {0}};

static PyObject *sampler_state_dict(PyObject *self, PyObject *unused)
{
    struct onepot_sampler *sampler = sampler_of(self);
    struct state state;
    (void)unused;
    if (!sampler)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(self);
    state.epoch = onepot_sampler_epoch(sampler);
    state.yielded = ((struct py_sampler *)self)->skip;
    Py_END_CRITICAL_SECTION();
    return fields_dict(state_fields, &state);
}

static PyObject *sampler_load_state_dict(PyObject *self, PyObject *dict)
{
    struct state state;
    if (fields_take(state_fields, dict, &state) < 0)
        return NULL;
    return sampler_go_to(self, state.epoch, &state.yielded);
}

/* Calls one function of the library, given as the closure. */
static PyObject *sampler_number(PyObject *self, void *function)
{
    struct onepot_sampler *sampler = sampler_of(self);
    uint64_t (*number)(const struct onepot_sampler *) =
        *(uint64_t(**)(const struct onepot_sampler *))function;
    uint64_t n;
    if (!sampler)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(self);
    n = number(sampler);
    Py_END_CRITICAL_SECTION();
    return PyLong_FromUnsignedLongLong(n);
}

static uint64_t (*number_epoch)(const struct onepot_sampler *) = onepot_sampler_epoch;
static uint64_t (*number_rank)(const struct onepot_sampler *) = onepot_sampler_rank;
static uint64_t (*number_world)(const struct onepot_sampler *) = onepot_sampler_world_size;

static PyGetSetDef sampler_fields[] = {
    {"epoch", sampler_number, NULL, "The epoch that set_epoch() chose.", &number_epoch},
    {"rank", sampler_number, NULL, "The number of this rank, below num_replicas.",
     &number_rank},
    {"num_replicas", sampler_number, NULL, "The number of ranks.", &number_world},
    {0}};

static PyMethodDef sampler_methods[] = {
    {"set_epoch", sampler_set_epoch, METH_O, "Shuffle for another epoch."},
    {"state_dict", sampler_state_dict, METH_NOARGS,
     "The epoch and the position in it, as a dict."},
    {"load_state_dict", sampler_load_state_dict, METH_O,
     "Go to the position of a state: 'epoch', and 'yielded', the elements to pass over."},
    {0}};

static PyType_Slot sampler_slots[] = {
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)sampler_init},
    {Py_tp_dealloc, (void *)sampler_dealloc},
    {Py_tp_iter, (void *)sampler_iter},
    {Py_sq_length, (void *)sampler_length},
    {Py_tp_methods, sampler_methods},
    {Py_tp_getset, sampler_fields},
    {Py_tp_doc, (void *)"The part of onepot.DistributedSampler in C; see there."},
    {0, NULL},
};

PyType_Spec sampler_spec = {
    .name = "onepot._core.Sampler",
    .basicsize = sizeof(struct py_sampler),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = sampler_slots,
};
