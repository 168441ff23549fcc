/*
 * The order of DistributedSampler; onepot/_sampler.py makes a drop-in for torch's of it.
 */
#include "module.h"

#include <errno.h>

struct py_sampler {
    PyObject_HEAD struct onepot_sampler *sampler;
    PyObject *keeps;   /* of an iterator: the sampler that it walks over; else NULL */
    uint64_t at, skip; /* iterator: next element; sampler: where the next iterator begins */
    uint64_t length;
};

static int sampler_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"dataset", "num_replicas", "rank",   "shuffle", "seed", "drop_last",
                            "block",   "window",       "worker", "workers", NULL};
    struct py_sampler *s = (struct py_sampler *)self;
    PyObject *dataset, *replicas = Py_None, *rank = Py_None;
    int shuffle = 1, drop_last = 0;
    long long seed = 0;
    struct onepot_sampler_options o = {.size = sizeof(o)};
    struct onepot_error error = {0};
    unsigned long long block = 0, window = 0, worker = 0, workers = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|OOpLp$O&O&O&O&", names, &dataset,
                                     &replicas, &rank, &shuffle, &seed, &drop_last, take_count,
                                     &block, take_count, &window, take_count, &worker,
                                     take_count, &workers))
        return -1;
    Py_ssize_t n = PyLong_Check(dataset) ? PyLong_AsSsize_t(dataset) : PyObject_Size(dataset);
    if (n < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a negative number of samples");
        return -1;
    }
    o.samples = (uint64_t)n;
    unsigned long long all = 0, of = 0;
    if ((replicas != Py_None && !take_count(replicas, &all)) ||
        (rank != Py_None && !take_count(rank, &of)))
        return -1;
    o.world_size = all;
    o.rank = of;
    if ((replicas == Py_None) != (rank == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "num_replicas and rank are given both or none");
        return -1;
    }
    if (replicas == Py_None && take_launcher(&o.rank, &o.world_size) < 0)
        return -1;
    if (replicas != Py_None && o.world_size == 0) {
        PyErr_SetString(PyExc_ValueError, "num_replicas is 0");
        return -1;
    }
    o.seed = (uint64_t)seed;
    o.no_shuffle = !shuffle;
    o.drop_last = drop_last;
    o.block = block;
    o.window = window;
    o.worker = worker;
    o.workers = workers;
    struct onepot_sampler *sampler;
    int r;
    Py_BEGIN_ALLOW_THREADS r = onepot_sampler_new(&o, &error, &sampler);
    Py_END_ALLOW_THREADS if (r < 0)
    {
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
    Py_TYPE(self)->tp_free(self);
}

/* NULL with an exception: a subclass may ask before it has called our __init__. */
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
    struct py_sampler *i = PyObject_New(struct py_sampler, &sampler_iterator_type);
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

static PyObject *iterator_next(PyObject *self)
{
    struct py_sampler *i = (struct py_sampler *)self;
    struct py_sampler *s = (struct py_sampler *)i->keeps;
    uint64_t index;
    int got;
    Py_BEGIN_CRITICAL_SECTION2(self, i->keeps);
    got = i->at < i->length && onepot_sampler_get(s->sampler, i->at, 1, &index, NULL) == 0;
    i->at += (uint64_t)got;
    Py_END_CRITICAL_SECTION2();
    return got ? PyLong_FromUnsignedLongLong(index) : NULL;
}

PyTypeObject sampler_iterator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot.SamplerIterator",
    .tp_basicsize = sizeof(struct py_sampler),
    .tp_dealloc = sampler_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = iterator_next,
};

static PyObject *sampler_set_epoch(PyObject *self, PyObject *epoch)
{
    struct onepot_sampler *sampler = sampler_of(self);
    unsigned long long e;
    int r;
    if (!sampler || !take_count(epoch, &e))
        return NULL;
    /* The interpreter's lock is kept: an iterator may look at the order that goes. */
    Py_BEGIN_CRITICAL_SECTION(self);
    r = onepot_sampler_set_epoch(sampler, e);
    Py_END_CRITICAL_SECTION();
    if (r < 0)
        return raise_error(r, NULL);
    Py_RETURN_NONE;
}

static PyObject *sampler_state_dict(PyObject *self, PyObject *unused)
{
    struct onepot_sampler *sampler = sampler_of(self);
    (void)unused;
    unsigned long long at, skip;
    if (!sampler)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(self);
    at = onepot_sampler_epoch(sampler);
    skip = ((struct py_sampler *)self)->skip;
    Py_END_CRITICAL_SECTION();
    return Py_BuildValue("{sKsK}", "epoch", at, "yielded", skip);
}

static PyObject *sampler_load_state_dict(PyObject *self, PyObject *state)
{
    struct py_sampler *s = (struct py_sampler *)self;
    PyObject *epoch = PyMapping_GetItemString(state, "epoch");
    PyObject *yielded = epoch ? PyMapping_GetItemString(state, "yielded") : NULL;
    PyObject *done = NULL;
    if (yielded) {
        unsigned long long skip;
        int is_one = take_count(yielded, &skip);
        Py_BEGIN_CRITICAL_SECTION(self);
        if (is_one && (done = sampler_set_epoch(self, epoch)))
            s->skip = skip;
        Py_END_CRITICAL_SECTION();
    }
    Py_XDECREF(epoch);
    Py_XDECREF(yielded);
    return done;
}

static PyObject *get_epoch(PyObject *self, void *unused)
{
    struct onepot_sampler *sampler = sampler_of(self);
    uint64_t epoch;
    (void)unused;
    if (!sampler)
        return NULL;
    Py_BEGIN_CRITICAL_SECTION(self);
    epoch = onepot_sampler_epoch(sampler);
    Py_END_CRITICAL_SECTION();
    return PyLong_FromUnsignedLongLong(epoch);
}

static PyObject *get_rank(PyObject *self, void *unused)
{
    struct onepot_sampler *sampler = sampler_of(self);
    (void)unused;
    return sampler ? PyLong_FromUnsignedLongLong(onepot_sampler_rank(sampler)) : NULL;
}

static PyObject *get_replicas(PyObject *self, void *unused)
{
    struct onepot_sampler *sampler = sampler_of(self);
    (void)unused;
    return sampler ? PyLong_FromUnsignedLongLong(onepot_sampler_world_size(sampler)) : NULL;
}

static PyGetSetDef sampler_fields[] = {
    {"epoch", get_epoch, NULL, "The epoch, as set_epoch() chose it.", NULL},
    {"rank", get_rank, NULL, "Which of num_replicas this is.", NULL},
    {"num_replicas", get_replicas, NULL, "The number of ranks.", NULL},
    {0}};

static PyMethodDef sampler_methods[] = {
    {"set_epoch", sampler_set_epoch, METH_O, "Shuffle for an epoch."},
    {"state_dict", sampler_state_dict, METH_NOARGS, "The epoch, and where in it to begin."},
    {"load_state_dict", sampler_load_state_dict, METH_O,
     "Begin where a state says: 'epoch', and 'yielded', the elements to pass over."},
    {0}};

static PySequenceMethods sampler_sequence = {.sq_length = sampler_length};

PyTypeObject sampler_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "onepot._core.DistributedSampler",
    .tp_basicsize = sizeof(struct py_sampler),
    .tp_new = PyType_GenericNew,
    .tp_init = sampler_init,
    .tp_dealloc = sampler_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_iter = sampler_iter,
    .tp_as_sequence = &sampler_sequence,
    .tp_methods = sampler_methods,
    .tp_getset = sampler_fields,
    .tp_doc = "What onepot.DistributedSampler does; see there.",
};
