/*
 * Where a Loader is, as a dict that can be stored, and what it has done.
 */
#include "loader.h"

#include <string.h>

typedef unsigned long long ull;

PyObject *loader_state_dict(PyObject *self, PyObject *unused)
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
    unsigned long long n = 0;
    int is_one = take_count(value, &n);
    Py_DECREF(value);
    *ret = n;
    return is_one ? 0 : -1;
}

PyObject *loader_load_state_dict(PyObject *self, PyObject *state)
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

PyObject *loader_stats(PyObject *self, void *unused)
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

PyObject *loader_transfer(PyObject *self, PyObject *args, PyObject *keywords)
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

PyObject *loader_delivered(PyObject *self, void *unused)
{
    struct onepot_delivered d;
    (void)unused;
    if (!loader_of(self))
        return NULL;
    onepot_loader_delivered(loader_of(self), &d);
    return Py_BuildValue("(KKK)", (ull)d.samples, (ull)d.sum_a, (ull)d.sum_b);
}
