/*
 * The devices of a loader, and their tasks: the table that the loader calls (accelerator.h).
 * Devices that gather share the locked archives, and either all of them gather or none.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "accelerator.h"
#include "budget.h"
#include "error.h"
#include "rank_share.h"
#include "upload.h"

/* Batches: with the one in use and the next, eight (onepot_device.h). */
#define AHEAD_DEVICE 6u
/* Of each of several devices: one has arrived while the other is on its way. */
#define AHEAD_OF_EACH 2u

struct loader_devices {
    struct onepot_device *device[ONEPOT_DEVICES_MAX];
    struct upload *upload[ONEPOT_DEVICES_MAX]; /* the engine's memory */
    uint32_t count;
    struct onepot_conversion convert; /* 0 channels: nothing is converted */
    bool gathers;                     /* from locked archives */
};

static int devices_check_images(const struct onepot_conversion *images,
                                const struct fill_plan *fill, struct onepot_error *error)
{
    int r = convert_check(images, error);
    if (r < 0)
        return r;
    uint64_t bytes = convert_bytes_of_one(images);
    if (fill->stride != bytes)
        return error_set(error, -EINVAL,
                         "images have %" PRIu64 " bytes each, samples %" PRIu64
                         " (0: not all the same)",
                         bytes, fill->stride);
    return 0;
}

/*
 * Decode pictures to bytes, which the device turns into floats: they take a half or a quarter
 * of the floats' way.
 */
static int devices_convert_there(struct loader_devices *d, struct images_plan *images,
                                 struct fill_plan *fill, struct onepot_error *error)
{
    struct onepot_images o = images->o;
    struct onepot_conversion *convert = &d->convert;
    if (!o.type || o.channels_last || images->next)
        return 0;
    o.part = images->part;
    *convert = (struct onepot_conversion){.size = sizeof(*convert),
                                          .height = o.height,
                                          .width = o.width,
                                          .channels = 3,
                                          .type = o.type};
    for (unsigned c = 0; c < 3; c++) {
        convert->mean[c] = images_mean(&o, c);
        convert->scale[c] = images_scale(&o, c);
        o.mean[c] = 0;
        o.std[c] = 1;
    }
    o.type = 0;
    o.channels_last = true;
    int r = images_plan(&o, error, images);
    fill->stride = images->bytes;
    return r;
}

/* ---- which devices ---- */

/* Each is there once, and all are of one kind. */
static int devices_check(const struct loader_devices *d, const struct onepot_device *device,
                         struct onepot_error *error)
{
    for (uint32_t i = 0; i < d->count; i++) {
        const struct onepot_device *other = d->device[i];
        if (other->type != device->type)
            return error_set(error, -EINVAL, "%s and %s: devices of one loader are of one kind",
                             other->name, device->name);
        if (other->index == device->index)
            return error_set(error, -EINVAL, "%s is there twice among the loader's devices",
                             device->name);
    }
    return 0;
}

static int devices_add(struct loader_devices *d, struct onepot_device *device,
                       struct onepot_error *error)
{
    int r = device ? devices_check(d, device, error)
                   : error_set(error, -EINVAL, "one of the loader's devices is NULL");
    if (r == 0)
        r = device_share(device, error, &d->device[d->count]);
    d->count += r == 0;
    return r;
}

/* Of `device` or `devices`. */
static int devices_take(struct loader_devices *d, const struct onepot_loader_options *given,
                        struct onepot_error *error)
{
    int r = 0;
    if (given->device && (given->devices || given->device_count))
        return error_set(error, -EINVAL, "device and devices exclude each other");
    if (given->device)
        return devices_add(d, given->device, error);
    if (!given->devices != !given->device_count)
        return error_set(error, -EINVAL, "no devices are named: at least one is needed");
    if (given->device_count > ONEPOT_DEVICES_MAX)
        return error_set(error, -EINVAL, "more than %u devices", ONEPOT_DEVICES_MAX);
    for (uint32_t i = 0; i < given->device_count && r == 0; i++)
        r = devices_add(d, given->devices[i], error);
    return r;
}

/* ---- what they have to do ---- */

/* Abilities that all of them have, and the least memory that one of them has free. */
static int devices_look(const struct loader_devices *d, bool needs_kernels,
                        struct onepot_error *error, struct onepot_device_info *ret_info)
{
    for (uint32_t i = 0; i < d->count; i++) {
        struct onepot_device_info info = {.size = sizeof(info)};
        int r = onepot_device_info(d->device[i], error, &info);
        if (r < 0)
            return r;
        if (needs_kernels && !info.kernels)
            return error_set(
                error, -ENOTSUP,
                "%s: this libonepot-cuda.so has no kernels for it (built without nvcc, or for "
                "other GPUs): it makes no images and gathers nothing",
                info.name);
        if (i == 0)
            *ret_info = info;
        ret_info->kernels &= info.kernels;
        if (info.free_bytes < ret_info->free_bytes)
            ret_info->free_bytes = info.free_bytes;
    }
    return 0;
}

static uint32_t devices_ahead(const struct loader_devices *d, uint32_t ahead)
{
    uint32_t each = AHEAD_OF_EACH * d->count;
    ahead = ahead < AHEAD_DEVICE ? ahead : AHEAD_DEVICE;
    return d->count > 1 && ahead < each ? each : ahead;
}

static int devices_check_tasks(const struct loader_devices *d,
                               const struct onepot_loader_options *given,
                               const struct fill_plan *fill, struct onepot_error *error)
{
    if (d->gathers && (fill->npy || fill->decode || fill->images || fill->verify))
        return error_set(error, -EINVAL,
                         "a device gathers bytes as they are, without npy, decode, images or "
                         "verify");
    if (given->convert && given->images)
        return error_set(error, -EINVAL, "convert and images exclude each other");
    return 0;
}

static int devices_plan_tasks(struct loader_devices *d,
                              const struct onepot_loader_options *given,
                              struct engine_options *o, struct images_plan *images,
                              struct onepot_error *error)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    d->gathers = given->gather == ONEPOT_GATHER_DEVICE;
    int r = devices_check_tasks(d, given, &o->fill, error);
    if (r == 0 && given->convert) {
        r = options_read(&d->convert, sizeof(d->convert), given->convert, error);
        if (r == 0)
            r = devices_check_images(&d->convert, &o->fill, error);
    }
    if (r == 0)
        r = devices_look(d, given->convert || d->gathers, error, &info);
    if (r == 0 && images && info.kernels)
        r = devices_convert_there(d, images, &o->fill, error);
    if (r < 0)
        return r;
    o->memory = &upload_memory;
    o->devices = d->count;
    o->fill.past = !info.is_host && !o->fill.verify;
    if (!given->prefetch)
        o->ahead = devices_ahead(d, o->ahead);
    uint64_t most = info.free_bytes / 4 * d->count;
    if (!given->memory_bytes && most < o->memory_bytes)
        o->memory_bytes = most;
    return 0;
}

static void devices_close(struct loader_devices *d, bool is_started)
{
    for (uint32_t i = 0; d && i < d->count; i++) {
        if (is_started)
            upload_close(d->upload[i]);
        onepot_device_close(d->device[i]);
    }
    free(d);
}

static int devices_plan(const struct onepot_loader_options *given, struct engine_options *o,
                        struct images_plan *images, struct onepot_error *error,
                        struct loader_devices **ret_devices)
{
    struct loader_devices *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(error, -ENOMEM, "no memory for a loader");
    int r = devices_take(d, given, error);
    if (r == 0)
        r = devices_plan_tasks(d, given, o, images, error);
    if (r < 0) {
        devices_close(d, false);
        return r;
    }
    *ret_devices = d;
    return 0;
}

/* ---- gathering by the devices ---- */

static int devices_lock(struct loader_devices *d, const struct onepot_archive *archive,
                        struct onepot_error *error)
{
    struct locked *locked = NULL;
    uint64_t room = budget_memory_bytes("") / 2 / rank_share_ranks();
    int r = locked_new(d->device[0], archive, room, error, &locked);
    for (uint32_t i = 0; i < d->count && r == 0; i++)
        r = upload_gather(d->upload[i], locked, error);
    locked_free(locked);
    return r;
}

/* ---- uploads ---- */

/* After a fork the device is the parent's: replace it by one of our own. */
static int devices_own(struct loader_devices *d, uint32_t i, struct onepot_error *error)
{
    struct onepot_device *own;
    int r = device_share(d->device[i], error, &own);
    if (r < 0)
        return r;
    onepot_device_close(d->device[i]);
    d->device[i] = own;
    return 0;
}

static int devices_start_upload(struct loader_devices *d, uint32_t i, uint64_t batch_size,
                                struct onepot_error *error)
{
    const struct onepot_conversion *images = d->convert.channels ? &d->convert : NULL;
    int r = devices_own(d, i, error);
    return r < 0 ? r : upload_new(d->device[i], images, batch_size, error, &d->upload[i]);
}

static int devices_start(struct loader_devices *d, struct engine_options *o,
                         struct onepot_error *error)
{
    int r = 0;
    for (uint32_t i = 0; i < d->count; i++)
        d->upload[i] = NULL; /* after a fork they are the parent's */
    for (uint32_t i = 0; i < d->count && r == 0; i++)
        r = devices_start_upload(d, i, o->batch_size, error);
    if (r == 0 && d->gathers)
        r = devices_lock(d, o->fill.archive, error);
    for (uint32_t i = 0; i < d->count; i++) {
        if (r < 0) {
            upload_close(d->upload[i]);
            d->upload[i] = NULL;
            continue;
        }
        upload_keep(d->upload[i]);
        o->memory_ctx[i] = d->upload[i];
    }
    return r;
}

/* ---- measurements and errors ---- */

static void devices_wait(const struct loader_devices *d)
{
    d->device[0]->type->range("onepot wait");
}

static void devices_waited(struct loader_devices *d, bool counts, uint64_t epoch, uint64_t ns)
{
    d->device[0]->type->range(NULL);
    for (uint32_t i = 0; i < d->count && counts; i++)
        upload_waited(d->upload[i], epoch, i ? 0 : ns);
}

static int devices_error(struct loader_devices *d, uint32_t device, struct onepot_error *error)
{
    return upload_error(d->upload[device], error);
}

static const char *devices_name(const struct loader_devices *d, uint32_t device)
{
    return d->device[device]->name;
}

static void add_transfer(struct onepot_transfer *to, const struct onepot_transfer *more)
{
    to->wait_ns += more->wait_ns;
    to->batches += more->batches;
    to->copy_bytes += more->copy_bytes;
    to->copy_ns += more->copy_ns;
}

/* If training has all the memory, that is no reason to fail. */
static int slowest_peak(const struct loader_devices *d, struct onepot_error *error,
                        uint64_t *ret_peak)
{
    *ret_peak = UINT64_MAX;
    for (uint32_t i = 0; i < d->count; i++) {
        uint64_t peak = 0;
        int r = onepot_device_peak(d->device[i], error, &peak);
        if (r < 0 && r != -ENOMEM)
            return r;
        *ret_peak = peak < *ret_peak ? peak : *ret_peak;
    }
    return 0;
}

static int devices_transfer(struct loader_devices *d, bool previous, struct onepot_error *error,
                            struct onepot_transfer *ret_transfer)
{
    struct onepot_transfer transfer, more;
    uint64_t peak;
    int r = slowest_peak(d, error, &peak);
    if (r < 0)
        return r;
    upload_transfer(d->upload[0], previous, &transfer);
    for (uint32_t i = 1; i < d->count; i++) {
        upload_transfer(d->upload[i], previous, &more);
        add_transfer(&transfer, &more);
    }
    transfer.peak_bytes_per_second = peak;
    return result_write(ret_transfer, &transfer, sizeof(transfer), error);
}

static const struct accelerator devices = {
    .plan = devices_plan,
    .start = devices_start,
    .wait = devices_wait,
    .waited = devices_waited,
    .error = devices_error,
    .name = devices_name,
    .transfer = devices_transfer,
    .close = devices_close,
};

const struct accelerator *const loader_accelerator = &devices;
