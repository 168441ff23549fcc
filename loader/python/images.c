/*
 * Images: the options of decoded pictures. onepot/_images.py explains and checks them.
 */
#include "module.h"

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

PyObject *module_images_bytes(PyObject *self, PyObject *given)
{
    struct onepot_images o[ONEPOT_IMAGES_MAX];
    struct onepot_error error = {0};
    uint64_t bytes = 0;
    if (take_images(given, o) < 0)
        return NULL;
    int r = onepot_images_bytes(o, &error, &bytes);
    return r < 0 ? raise_error(r, &error) : PyLong_FromUnsignedLongLong(bytes);
}
