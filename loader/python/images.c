/*
 * Images: the options of decoded pictures, and pictures decoded into memory of the caller.
 * onepot/_images.py explains and checks the options.
 */
#include "module.h"

#include <errno.h>

int take_images(PyObject *given, struct onepot_images *o)
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

PyObject *module_images_bytes(PyObject *self, PyObject *given)
{
    struct onepot_images o;
    struct onepot_error error = {0};
    uint64_t bytes = 0;
    if (take_images(given, &o) < 0)
        return NULL;
    int r = onepot_images_bytes(&o, &error, &bytes);
    return r < 0 ? raise_error(r, &error) : PyLong_FromUnsignedLongLong(bytes);
}

/* ---- batches in memory of the caller ---- */

struct pictures {
    struct onepot_images options;
    unsigned long long seed, epoch, size;
    uint8_t *memory;
};

static int write_all(const struct onepot_archive *archive, const struct pictures *p,
                     const uint64_t *indices, uint64_t count, struct onepot_error *error)
{
    uint64_t one = 0;
    uint8_t *valid;
    int r = onepot_images_bytes(&p->options, error, &one);
    if (r == 0 && batch_bytes(count, one * count) > p->size)
        r = -EINVAL;
    if (r == 0)
        r = batch_tables(archive, indices, count, one, p->memory, error, &valid);
    return r < 0 ? r
                 : onepot_archive_images(archive, indices, count, &p->options, p->seed,
                                         p->epoch, p->memory, one * count, valid, error);
}

static int decode_into(const struct onepot_archive *archive, const struct pictures *p,
                       PyObject *given)
{
    struct onepot_error error = {0};
    Py_ssize_t count;
    int r;
    uint64_t *indices = take_indices(given, onepot_archive_samples(archive), 1, &count);
    if (!indices)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    r = write_all(archive, p, indices, (uint64_t)count, &error);
    Py_END_ALLOW_THREADS
    PyMem_Free(indices);
    if (r < 0)
        raise_error(r, &error);
    return r;
}

PyObject *archive_decode(PyObject *self, PyObject *args)
{
    PyObject *given, *images, *memory;
    struct pictures p = {0};
    Py_buffer view = {0};
    void *address = NULL;
    auto_lease lease = archive_lease(self);
    struct onepot_archive *archive = leased(lease);
    if (!archive || !PyArg_ParseTuple(args, "OO!KKO|K", &given, &PyTuple_Type, &images, &p.seed,
                                      &p.epoch, &memory, &p.size))
        return NULL;
    if (take_images(images, &p.options) < 0 ||
        take_memory(memory, &p.size, &view, &address) < 0)
        return NULL;
    p.memory = address;
    int r = decode_into(archive, &p, given);
    if (view.obj)
        PyBuffer_Release(&view);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}
