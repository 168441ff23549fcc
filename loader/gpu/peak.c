/* The peak of a device's link, and how many samples a batch for the device may have. */
#include <errno.h>
#include <string.h>

#include "device.h"
#include "error.h"

#define PEAK_BYTES (32u << 20)
#define PEAK_COPIES 8u
#define PEAK_ROUNDS 3u /* an idle link is slow at first */

/* ---- the peak ---- */

/* A stream, two events in it, and memory on both sides. */
struct bench {
    const struct device_type *type;
    void *device, *stream, *begun, *ended;
    void *host, *memory; /* page-locked; the device's */
};

static int bench_make(struct bench *b, const struct onepot_device *device,
                      struct onepot_error *error)
{
    *b = (struct bench){.type = device->type, .device = device->device};
    int r = b->type->stream_new(b->device, false, error, &b->stream);
    if (r == 0)
        r = b->type->event_new(b->device, true, error, &b->begun);
    if (r == 0)
        r = b->type->event_new(b->device, true, error, &b->ended);
    if (r == 0)
        r = b->type->allocate(b->device, DEVICE_MEMORY_LOCKED, PEAK_BYTES, error, &b->host);
    if (r == 0)
        r = b->type->allocate(b->device, DEVICE_MEMORY_OWN, PEAK_BYTES, error, &b->memory);
    if (r == 0)
        memset(b->host, 1, PEAK_BYTES); /* so that the pages exist */
    return r;
}

/* Frees also a bench that was made in part, after its queued copies, even if one failed. */
static void bench_free(struct bench *b)
{
    if (b->stream) {
        b->type->stream_wait(b->device, b->stream, NULL);
        b->type->stream_free(b->device, b->stream);
    }
    if (b->begun)
        b->type->event_free(b->device, b->begun);
    if (b->ended)
        b->type->event_free(b->device, b->ended);
    if (b->host)
        b->type->release(b->device, DEVICE_MEMORY_LOCKED, b->host, PEAK_BYTES);
    if (b->memory)
        b->type->release(b->device, DEVICE_MEMORY_OWN, b->memory, PEAK_BYTES);
}

/* One copy to warm up, then PEAK_COPIES between two events. */
static int run_copies(struct bench *b, struct onepot_error *error, uint64_t *ret_ns)
{
    int r = b->type->copy(b->device, b->stream, b->memory, b->host, PEAK_BYTES, error);
    if (r == 0)
        r = b->type->record(b->device, b->begun, b->stream, error);
    for (unsigned i = 0; i < PEAK_COPIES && r == 0; i++)
        r = b->type->copy(b->device, b->stream, b->memory, b->host, PEAK_BYTES, error);
    if (r == 0)
        r = b->type->record(b->device, b->ended, b->stream, error);
    if (r == 0)
        r = b->type->stream_wait(b->device, b->stream, error);
    return r < 0 ? r : b->type->elapsed(b->device, b->begun, b->ended, error, ret_ns);
}

int onepot_device_peak(struct onepot_device *device, struct onepot_error *error,
                       uint64_t *ret_bytes_per_second)
{
    uint64_t ns = UINT64_MAX, took = 0;
    *ret_bytes_per_second = atomic_load(&device->peak);
    if (*ret_bytes_per_second)
        return 0;
    struct bench b;
    int r = bench_make(&b, device, error);
    for (unsigned i = 0; i < PEAK_ROUNDS && r == 0; i++) {
        r = run_copies(&b, error, &took);
        ns = took < ns ? took : ns;
    }
    bench_free(&b);
    if (r < 0)
        return r;
    *ret_bytes_per_second =
        (uint64_t)((double)PEAK_BYTES * PEAK_COPIES * 1e9 / (double)(ns ? ns : 1));
    atomic_store(&device->peak, *ret_bytes_per_second);
    return 0;
}

/* ---- the size of a batch ---- */

int onepot_device_batch_size(struct onepot_device *device, const struct onepot_archive *archive,
                             struct onepot_error *error, uint64_t *ret_samples)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    uint64_t mean, worst;
    int r = onepot_device_info(device, error, &info);
    if (r < 0)
        return r;
    r = onepot_archive_batch_for(archive, info.free_bytes / ONEPOT_DEVICE_BATCHES, 0, &mean,
                                 &worst);
    if (r < 0)
        return error_set(error, r, "no memory for the sizes of samples");
    *ret_samples = worst > 8 ? worst & ~UINT64_C(7) : worst;
    return 0;
}
