/*
 * The device of a loader: what it is asked to do, and which side gathers. The choice may come
 * late: archives are locked, and both ways tried, while the host gathers the first batches.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "budget.h"
#include "error.h"
#include "loader_private.h"
#include "measure.h"
#include "portion.h"
#include "thread.h"
#include "upload.h"

#define STACK_BYTES (512u << 10)

/* Batches: with the one in use and the next, eight (onepot_device.h). */
#define AHEAD_DEVICE 6u

static int loader_check_images(const struct onepot_conversion *images,
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
static int loader_convert_there(struct onepot_loader *loader, struct onepot_error *error)
{
    struct onepot_images o = loader->images->o;
    struct onepot_conversion *convert = &loader->convert;
    if (!o.type || o.channels_last)
        return 0;
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
    int r = images_plan(&o, error, loader->images);
    loader->options.fill.stride = loader->images->bytes;
    return r;
}

/* The device, and what it has to do. */
int loader_plan_device(struct onepot_loader *loader, const struct onepot_loader_options *given,
                       struct onepot_error *error)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct engine_options *o = &loader->options;
    int r = 0;
    if (!given->device) {
        if (loader->images && loader->images->o.decoder == ONEPOT_DECODER_GPU)
            return error_set(error, -EINVAL,
                             "images: a GPU decodes for a loader with a device");
        if (given->convert || given->gather == ONEPOT_GATHER_DEVICE)
            return error_set(error, -EINVAL, "images and gathering need a device");
        return 0;
    }
    if (given->convert && given->images)
        return error_set(error, -EINVAL, "convert and images exclude each other");
    if (given->convert) {
        r = options_read(&loader->convert, sizeof(loader->convert), given->convert, error);
        if (r == 0)
            r = loader_check_images(&loader->convert, &o->fill, error);
    }
    if (r == 0)
        r = device_share(given->device, error, &loader->device);
    if (r == 0)
        r = onepot_device_info(loader->device, error, &info);
    if (r < 0)
        return r;
    if (!info.kernels && (given->convert || given->gather == ONEPOT_GATHER_DEVICE))
        return error_set(
            error, -ENOTSUP,
            "%s: this libonepot-cuda.so has no kernels for it (built without nvcc, or for "
            "other GPUs): it makes no images and gathers nothing",
            info.name);
    if (loader->images && info.kernels)
        r = loader_convert_there(loader, error);
    if (r < 0)
        return r;
    o->memory = &upload_memory;
    o->fill.past = !info.is_host && !o->fill.verify;
    if (!given->prefetch)
        o->ahead = o->ahead < AHEAD_DEVICE ? o->ahead : AHEAD_DEVICE;
    loader->gather = given->gather;
    if (given->gather == ONEPOT_GATHER_AUTO && (info.is_host || !info.kernels))
        loader->gather = ONEPOT_GATHER_HOST;
    if (!given->memory_bytes && info.free_bytes / 4 < o->memory_bytes)
        o->memory_bytes = info.free_bytes / 4;
    return 0;
}

/* With AUTO: is gathering by the device worth it? And how wide should it be? */
static bool loader_try_gathering(struct onepot_loader *loader, struct locked *locked)
{
    struct measure_result result;
    uint64_t peak = 0;
    bool open = loader->gather == ONEPOT_GATHER_AUTO;
    /* Measure the peak first: that wakes the link up. */
    int r = open ? onepot_device_peak(loader->device, NULL, &peak) : 0;
    if (r == 0)
        r = measure_gathering(loader->device, locked_bases(locked), loader->archive, NULL,
                              &result);
    if (r == 0)
        locked_set_width(locked, result.width);
    return !open || (r == 0 && measure_device_wins(&result, peak, loader->options.threads));
}

/* Lock the archives that the device collects from. -ECANCELED: AUTO, and it isn't worth it. */
static int loader_lock_archives(struct onepot_loader *loader, struct onepot_error *error,
                                struct locked **ret_locked)
{
    uint64_t part = loader->gather == ONEPOT_GATHER_AUTO ? 8 : 2;
    int r = locked_new(loader->device, loader->archive,
                       budget_memory_bytes("") / part / portion_ranks(), &loader->stops_locking,
                       error, ret_locked);
    if (r < 0 || loader_try_gathering(loader, *ret_locked))
        return r;
    locked_free(*ret_locked);
    return -ECANCELED;
}

/* A thread, so that the first batch does not wait for gigabytes that are locked. */
static void *loader_lock_later(void *arg)
{
    struct onepot_loader *loader = arg;
    struct locked *locked;
    if (loader_lock_archives(loader, NULL, &locked) == 0)
        upload_gather(loader->upload, locked);
    return NULL;
}

/* Where the device has to gather, a failure is the caller's, now. Where it may, the host does
 * until the archives are locked. */
static int loader_start_gathering(struct onepot_loader *loader, struct onepot_error *error)
{
    const struct fill_plan *fill = &loader->options.fill;
    bool must = loader->gather == ONEPOT_GATHER_DEVICE;
    struct locked *locked;
    if (loader->gather == ONEPOT_GATHER_HOST)
        return 0;
    if (fill->npy || fill->decode || fill->images || fill->verify)
        return must ? error_set(error, -EINVAL,
                                "a device gathers bytes as they are, without npy, decode, "
                                "images or verify")
                    : 0;
    atomic_store(&loader->stops_locking, false);
    if (!must) {
        loader->locks =
            thread_start(&loader->locking, STACK_BYTES, loader_lock_later, loader) == 0;
        return 0;
    }
    int r = loader_lock_archives(loader, error, &locked);
    if (r == 0)
        upload_gather(loader->upload, locked);
    return r;
}

void loader_end_locking(struct onepot_loader *loader)
{
    if (!loader->locks)
        return;
    atomic_store(&loader->stops_locking, true);
    pthread_join(loader->locking, NULL);
    loader->locks = false;
}

/* After a fork the device is the parent's: replace it by one of our own. */
static int loader_own_device(struct onepot_loader *loader, struct onepot_error *error)
{
    struct onepot_device *own;
    int r = device_share(loader->device, error, &own);
    if (r < 0)
        return r;
    onepot_device_close(loader->device);
    loader->device = own;
    return 0;
}

/* What the device makes of pictures: the bytes that the host would put into the slab. */
static struct device_images decoded_images(const struct images_plan *plan)
{
    const struct onepot_images *o = &plan->o;
    struct device_images images = {.height = o->height,
                                   .width = o->width,
                                   .interpolation = o->interpolation,
                                   .type = o->type,
                                   .channels_last = o->channels_last};
    for (unsigned c = 0; c < 3; c++) {
        images.mean[c] = images_mean(o, c);
        images.scale[c] = images_scale(o, c);
    }
    return images;
}

/* With a decoder if one is asked for and there. Else the host decodes, unless that was ruled
 * out. */
static int loader_new_upload(struct onepot_loader *loader, const struct upload_options *options,
                             struct onepot_error *error)
{
    const struct images_plan *plan = loader->images;
    enum onepot_decoder asked = plan ? plan->o.decoder : ONEPOT_DECODER_HOST;
    struct upload_options decoding = *options;
    struct onepot_error why = {0};
    loader->options.fill.offers = false;
    error_set(&loader->decoder, 0, "host");
    if (asked == ONEPOT_DECODER_HOST)
        return upload_new(options, error, &loader->upload);
    const struct device_images images = decoded_images(plan);
    decoding.decoded = &images;
    int r = upload_new(&decoding, &why, &loader->upload);
    loader->options.fill.offers = r == 0;
    if (r == 0) {
        error_set(&loader->decoder, 0, "%s", upload_decoder(loader->upload));
        return 0;
    }
    if (asked == ONEPOT_DECODER_GPU)
        return error_set(error, r, "%s", why.text);
    error_set(&loader->decoder, 0, "host: %s", why.text);
    return upload_new(options, error, &loader->upload);
}

/* A new upload each time, since after a fork the old one is the parent's. */
int loader_start_upload(struct onepot_loader *loader, struct onepot_error *error)
{
    struct upload_options options = {
        .images = loader->convert.channels ? &loader->convert : NULL,
        .batch_size = loader->options.batch_size,
    };
    int r = loader_own_device(loader, error);
    options.device = loader->device;
    if (r == 0)
        r = loader_new_upload(loader, &options, error);
    if (r < 0)
        return r;
    r = loader_start_gathering(loader, error);
    if (r < 0)
        return r;
    upload_keep(loader->upload);
    loader->options.memory_ctx = loader->upload;
    return 0;
}
