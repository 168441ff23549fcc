/*
 * The devices of a loader: what they are asked to do, and which side gathers. The choice may
 * come late: archives are locked, and both ways tried, while the host gathers the first
 * batches. Several devices share what is locked, and either all of them gather or none.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>

#include "budget.h"
#include "error.h"
#include "loader_private.h"
#include "measure.h"
#include "numbers.h"
#include "portion.h"
#include "thread.h"
#include "upload.h"

#define STACK_BYTES (512u << 10)
#define WORKSPACE_BYTES (UINT64_C(256) << 20) /* for decompressing, at most, */
#define WORKSPACE_PART 4u                     /* and of a device's memory for slabs */

/* Batches: with the one in use and the next, eight (onepot_device.h). */
#define AHEAD_DEVICE 6u
/* Of each of several devices: one has arrived while the other is on its way. */
#define AHEAD_OF_EACH 2u

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

/* ---- which devices ---- */

/* Each is there once, and all are of one kind. */
static int loader_check_device(const struct onepot_loader *loader,
                               const struct onepot_device *device, struct onepot_error *error)
{
    for (uint32_t i = 0; i < loader->device_count; i++) {
        const struct onepot_device *other = loader->devices[i];
        if (other->type != device->type)
            return error_set(error, -EINVAL, "%s and %s: devices of one loader are of one kind",
                             other->name, device->name);
        if (other->index == device->index)
            return error_set(error, -EINVAL, "%s is there twice among the loader's devices",
                             device->name);
    }
    return 0;
}

static int loader_add_device(struct onepot_loader *loader, struct onepot_device *device,
                             struct onepot_error *error)
{
    int r = device ? loader_check_device(loader, device, error)
                   : error_set(error, -EINVAL, "one of the loader's devices is NULL");
    if (r == 0)
        r = device_share(device, error, &loader->devices[loader->device_count]);
    loader->device_count += r == 0;
    return r;
}

/* Of `device` or `devices`. */
static int loader_take_devices(struct onepot_loader *loader,
                               const struct onepot_loader_options *given,
                               struct onepot_error *error)
{
    int r = 0;
    if (given->device && (given->devices || given->device_count))
        return error_set(error, -EINVAL, "device and devices exclude each other");
    if (given->device)
        return loader_add_device(loader, given->device, error);
    if (!given->devices != !given->device_count)
        return error_set(error, -EINVAL, "no devices are named: at least one is needed");
    if (given->device_count > ENGINE_DEVICES_MAX)
        return error_set(error, -EINVAL, "more than %u devices", ENGINE_DEVICES_MAX);
    for (uint32_t i = 0; i < given->device_count && r == 0; i++)
        r = loader_add_device(loader, given->devices[i], error);
    return r;
}

/* ---- what they have to do ---- */

/* Abilities that all of them have, and the least memory that one of them has free. */
static int loader_look_at_devices(struct onepot_loader *loader, bool needs_kernels,
                                  struct onepot_error *error,
                                  struct onepot_device_info *ret_info)
{
    for (uint32_t i = 0; i < loader->device_count; i++) {
        struct onepot_device_info info = {.size = sizeof(info)};
        int r = onepot_device_info(loader->devices[i], error, &info);
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

static uint32_t loader_ahead(const struct onepot_loader *loader)
{
    uint32_t ahead = loader->options.ahead, each = AHEAD_OF_EACH * loader->device_count;
    ahead = ahead < AHEAD_DEVICE ? ahead : AHEAD_DEVICE;
    return loader->device_count > 1 && ahead < each ? each : ahead;
}

/* Of blocks that a device may decompress, the largest; 0: there are none. */
static uint64_t largest_block(const struct dataset *d)
{
    uint64_t most = 0;
    for (size_t i = 0; i < d->pot_count; i++) {
        const struct index_info *info = index_info(d->pots[i]->index);
        if (info->codec == CODEC_ZSTD || info->codecs & 1u << CODEC_ZSTD)
            most = info->block_bytes > most ? info->block_bytes : most;
    }
    return most < PROOF_BYTES_MAX ? most : PROOF_BYTES_MAX;
}

static const char *why_not_decompress(const struct onepot_loader *loader,
                                      const struct onepot_loader_options *given)
{
    const struct fill_plan *fill = &loader->options.fill;
    if (!loader->device_count)
        return "there is no device";
    if (fill->npy || fill->decode || fill->images || fill->verify)
        return "a device decompresses bytes as they are, without npy, decode, images or verify";
    if (given->gather == ONEPOT_GATHER_DEVICE)
        return "a device that gathers has samples that are not compressed";
    return loader->block_bytes ? NULL : "the archives have no blocks of zstd";
}

/* May a device decompress, by what was asked for? Whether it can is known when it starts. */
static int loader_plan_decompress(struct onepot_loader *loader,
                                  const struct onepot_loader_options *given,
                                  struct onepot_error *error)
{
    if (given->decompress == ONEPOT_DECOMPRESS_HOST)
        return 0;
    loader->block_bytes = largest_block(loader->archive->dataset);
    const char *why = why_not_decompress(loader, given);
    if (!why)
        loader->decompress = given->decompress;
    else if (given->decompress == ONEPOT_DECOMPRESS_GPU)
        return error_set(error, -EINVAL, "decompress: %s", why);
    else
        error_set(&loader->decompressor, 0, "host: %s", why);
    return 0;
}

int loader_plan_device(struct onepot_loader *loader, const struct onepot_loader_options *given,
                       struct onepot_error *error)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct engine_options *o = &loader->options;
    int r = loader_take_devices(loader, given, error);
    if (r == 0)
        r = loader_plan_decompress(loader, given, error);
    if (r < 0)
        return r;
    if (!loader->device_count) {
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
        r = loader_look_at_devices(
            loader, given->convert || given->gather == ONEPOT_GATHER_DEVICE, error, &info);
    if (r == 0 && loader->images && info.kernels)
        r = loader_convert_there(loader, error);
    if (r < 0)
        return r;
    o->memory = &upload_memory;
    o->devices = loader->device_count;
    o->fill.past = !info.is_host && !o->fill.verify;
    if (!given->prefetch)
        o->ahead = loader_ahead(loader);
    loader->gather = given->gather;
    if (given->gather == ONEPOT_GATHER_AUTO &&
        (info.is_host || !info.kernels || loader->decompress))
        loader->gather = ONEPOT_GATHER_HOST;
    uint64_t most = info.free_bytes / 4 * loader->device_count;
    if (!given->memory_bytes && most < o->memory_bytes)
        o->memory_bytes = most;
    return 0;
}

/* ---- which side gathers ---- */

/* With AUTO: is gathering by this device worth it? And how wide should it be? */
static bool loader_try_gathering(struct onepot_loader *loader, struct onepot_device *device,
                                 struct locked *locked)
{
    struct measure_result result;
    uint64_t peak = 0;
    bool open = loader->gather == ONEPOT_GATHER_AUTO;
    /* Measure the peak first: that wakes the link up. */
    int r = open ? onepot_device_peak(device, NULL, &peak) : 0;
    if (r == 0)
        r = measure_gathering(device, locked_bases(locked), loader->archive, NULL, &result);
    if (r == 0)
        locked_set_width(locked, result.width);
    return !open || (r == 0 && measure_device_wins(&result, peak, loader->options.threads));
}

/* The view of device i, the first of which locks the archives. */
static int loader_lock_for(struct onepot_loader *loader, uint32_t i, struct onepot_error *error,
                           struct locked **locked)
{
    uint64_t part = loader->gather == ONEPOT_GATHER_AUTO ? 8 : 2;
    int r = i ? locked_share(locked[0], loader->devices[i], error, &locked[i])
              : locked_new(loader->devices[0], loader->archive,
                           budget_memory_bytes("") / part / portion_ranks(),
                           &loader->stops_locking, error, &locked[0]);
    if (r < 0)
        return r;
    return loader_try_gathering(loader, loader->devices[i], locked[i]) ? 0 : -ECANCELED;
}

/* Have all devices collect, or none. -ECANCELED: AUTO, and it isn't worth it. */
static int loader_lock_archives(struct onepot_loader *loader, struct onepot_error *error)
{
    struct locked *locked[ENGINE_DEVICES_MAX] = {NULL};
    int r = 0;
    for (uint32_t i = 0; i < loader->device_count && r == 0; i++)
        r = loader_lock_for(loader, i, error, locked);
    for (uint32_t i = 0; i < loader->device_count; i++)
        if (r < 0)
            locked_free(locked[i]);
        else
            upload_gather(loader->uploads[i], locked[i]);
    return r;
}

/* A thread, so that the first batch does not wait for gigabytes that are locked. */
static void *loader_lock_later(void *arg)
{
    loader_lock_archives(arg, NULL);
    return NULL;
}

/* Where the device has to gather, a failure is the caller's, now. Where it may, the host does
 * until the archives are locked. */
static int loader_start_gathering(struct onepot_loader *loader, struct onepot_error *error)
{
    const struct fill_plan *fill = &loader->options.fill;
    bool must = loader->gather == ONEPOT_GATHER_DEVICE;
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
    return loader_lock_archives(loader, error);
}

void loader_end_locking(struct onepot_loader *loader)
{
    if (!loader->locks)
        return;
    atomic_store(&loader->stops_locking, true);
    pthread_join(loader->locking, NULL);
    loader->locks = false;
}

/* ---- uploads ---- */

/* After a fork the device is the parent's: replace it by one of our own. */
static int loader_own_device(struct onepot_loader *loader, uint32_t i,
                             struct onepot_error *error)
{
    struct onepot_device *own;
    int r = device_share(loader->devices[i], error, &own);
    if (r < 0)
        return r;
    onepot_device_close(loader->devices[i]);
    loader->devices[i] = own;
    return 0;
}

/* Pictures as the device makes them: the bytes that the host would put into the slab. */
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

static int loader_start_upload(struct onepot_loader *loader, uint32_t i,
                               const struct device_images *decoded, struct onepot_error *error)
{
    struct upload_options options = {
        .images = loader->convert.channels ? &loader->convert : NULL,
        .batch_size = loader->options.batch_size,
        .decoded = decoded,
        .block_bytes = loader->options.fill.decompress ? loader->block_bytes : 0,
        .workspace_bytes = loader->options.workspace_bytes,
    };
    int r = loader_own_device(loader, i, error);
    options.device = loader->devices[i];
    return r < 0 ? r : upload_new(&options, error, &loader->uploads[i]);
}

/* For all devices, or none. */
static int loader_new_uploads(struct onepot_loader *loader, const struct device_images *decoded,
                              struct onepot_error *error)
{
    int r = 0;
    for (uint32_t i = 0; i < loader->device_count && r == 0; i++)
        r = loader_start_upload(loader, i, decoded, error);
    for (uint32_t i = 0; i < loader->device_count && r < 0; i++) {
        upload_close(loader->uploads[i]);
        loader->uploads[i] = NULL;
    }
    return r;
}

/* With decoders if they are asked for and there, for all devices. Else the host decodes, unless
 * that was ruled out. */
static int loader_choose_uploads(struct onepot_loader *loader, struct onepot_error *error)
{
    const struct images_plan *plan = loader->images;
    enum onepot_decoder asked = plan ? plan->o.decoder : ONEPOT_DECODER_HOST;
    struct onepot_error why = {0};
    loader->options.fill.offers = false;
    error_set(&loader->decoder, 0, "host");
    if (asked == ONEPOT_DECODER_HOST)
        return loader_new_uploads(loader, NULL, error);
    const struct device_images images = decoded_images(plan);
    int r = loader_new_uploads(loader, &images, &why);
    loader->options.fill.offers = r == 0;
    if (r == 0) {
        error_set(&loader->decoder, 0, "%s", upload_decoder(loader->uploads[0]));
        return 0;
    }
    if (asked == ONEPOT_DECODER_GPU)
        return error_set(error, r, "%s", why.text);
    error_set(&loader->decoder, 0, "host: %s", why.text);
    return loader_new_uploads(loader, NULL, error);
}

/* The same for decompressors. */
static int loader_try_decompressors(struct onepot_loader *loader, struct onepot_error *why)
{
    struct engine_options *o = &loader->options;
    const struct dataset *d = loader->archive->dataset;
    int r = 0;
    o->fill.decompress = loader->decompress;
    uint32_t devices = max_u32(loader->device_count, 1);
    o->workspace_bytes = min_u64(o->memory_bytes / devices / WORKSPACE_PART, WORKSPACE_BYTES);
    for (size_t i = 0; i < d->pot_count && r == 0; i++)
        r = proofs_begin(&d->proofs[i], d->pots[i]->index);
    r = r < 0 ? error_set(why, r, "out of memory") : loader_new_uploads(loader, NULL, why);
    if (r == 0)
        error_set(&loader->decompressor, 0, "%s", upload_decoder(loader->uploads[0]));
    return r;
}

static int loader_choose_decompressor(struct onepot_loader *loader, struct onepot_error *error)
{
    struct onepot_error why = {0};
    int r = loader_try_decompressors(loader, &why);
    if (r == 0)
        return 0;
    if (loader->decompress == ONEPOT_DECOMPRESS_GPU)
        return error_set(error, r, "%s", why.text);
    loader->options.fill.decompress = ONEPOT_DECOMPRESS_HOST;
    loader->options.workspace_bytes = 0;
    error_set(&loader->decompressor, 0, "host: %s", why.text);
    return loader_new_uploads(loader, NULL, error);
}

int loader_start_uploads(struct onepot_loader *loader, struct onepot_error *error)
{
    for (uint32_t i = 0; i < loader->device_count; i++)
        loader->uploads[i] = NULL; /* after a fork they are the parent's */
    int r = loader->decompress ? loader_choose_decompressor(loader, error)
                               : loader_choose_uploads(loader, error);
    if (r == 0)
        r = loader_start_gathering(loader, error);
    for (uint32_t i = 0; i < loader->device_count && r == 0; i++) {
        upload_keep(loader->uploads[i]);
        loader->options.memory_ctx[i] = loader->uploads[i];
    }
    return r;
}

void loader_close_uploads(struct onepot_loader *loader)
{
    for (uint32_t i = 0; i < loader->device_count; i++)
        upload_close(loader->uploads[i]);
}

/* ---- measurements ---- */

void loader_waited(struct onepot_loader *loader, uint64_t epoch, uint64_t ns)
{
    for (uint32_t i = 0; i < loader->device_count; i++)
        upload_waited(loader->uploads[i], epoch, i ? 0 : ns);
}

static void add_transfer(struct onepot_transfer *to, const struct onepot_transfer *more)
{
    to->wait_ns += more->wait_ns;
    to->batches += more->batches;
    to->copy_bytes += more->copy_bytes;
    to->copy_ns += more->copy_ns;
}

/* If training has all the memory, that is no reason to fail. */
static int slowest_peak(struct onepot_loader *loader, struct onepot_error *error,
                        uint64_t *ret_peak)
{
    *ret_peak = UINT64_MAX;
    for (uint32_t i = 0; i < loader->device_count; i++) {
        uint64_t peak = 0;
        int r = onepot_device_peak(loader->devices[i], error, &peak);
        if (r < 0 && r != -ENOMEM)
            return r;
        *ret_peak = peak < *ret_peak ? peak : *ret_peak;
    }
    return 0;
}

int onepot_loader_transfer(struct onepot_loader *loader, bool previous,
                           struct onepot_error *error, struct onepot_transfer *ret_transfer)
{
    struct onepot_transfer transfer, more;
    uint64_t peak;
    if (!loader->device_count || !engine_is_own(loader->engine))
        return error_set(error, -ENOTSUP, "the loader has no device");
    int r = slowest_peak(loader, error, &peak);
    if (r < 0)
        return r;
    upload_transfer(loader->uploads[0], previous, &transfer);
    for (uint32_t i = 1; i < loader->device_count; i++) {
        upload_transfer(loader->uploads[i], previous, &more);
        add_transfer(&transfer, &more);
    }
    transfer.peak_bytes_per_second = peak;
    result_write(ret_transfer, &transfer, sizeof(transfer));
    return 0;
}
