/*
 * The public functions for batches on a device, and two figures of a device: how fast copies
 * can be, and how many samples fit in a batch.
 */
#include <errno.h>
#include <string.h>

#include "error.h"
#include "upload.h"

#define PEAK_BYTES (32u << 20)
#define PEAK_COPIES 8u
#define PEAK_ROUNDS 3u /* an idle link is slow at first */

/* ---- batches ---- */

int onepot_batch_on_device(const struct onepot_batch *batch,
                           struct onepot_device_batch *ret_where)
{
    const struct slab *slab = slab_of(batch);
    if (!slab->twin)
        return -ENOTSUP;
    upload_where(slab, ret_where);
    return 0;
}

int onepot_batch_use(const struct onepot_batch *batch, void *stream, struct onepot_error *error)
{
    struct onepot_error unseen;
    struct slab *slab = slab_of(batch);
    return slab->twin ? upload_use(slab, stream, error ? error : &unseen) : 0;
}

int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                      struct onepot_error *error)
{
    struct onepot_error unseen;
    struct slab *slab = slab_of(batch);
    return slab->twin ? upload_lend(slab, stream, error ? error : &unseen) : 0;
}

int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error)
{
    struct onepot_error unseen;
    struct slab *slab = slab_of(batch);
    return slab->twin ? upload_wait(slab, error ? error : &unseen) : 0;
}

/* ---- the peak ---- */

struct probe {
    const struct device_type *type;
    void *device, *stream, *begun, *ended, *host, *memory;
};

static int make_probe(struct probe *p, struct onepot_error *error)
{
    int r = p->type->stream_new(p->device, error, &p->stream);
    if (r == 0)
        r = p->type->event_new(p->device, error, &p->begun);
    if (r == 0)
        r = p->type->event_new(p->device, error, &p->ended);
    if (r == 0)
        r = p->type->allocate(p->device, DEVICE_MEMORY_LOCKED, PEAK_BYTES, error, &p->host);
    if (r == 0)
        r = p->type->allocate(p->device, DEVICE_MEMORY_OWN, PEAK_BYTES, error, &p->memory);
    return r;
}

static void free_probe(struct probe *p)
{
    if (p->stream)
        p->type->stream_free(p->device, p->stream);
    if (p->begun)
        p->type->event_free(p->device, p->begun);
    if (p->ended)
        p->type->event_free(p->device, p->ended);
    if (p->host)
        p->type->release(p->device, DEVICE_MEMORY_LOCKED, p->host, PEAK_BYTES);
    if (p->memory)
        p->type->release(p->device, DEVICE_MEMORY_OWN, p->memory, PEAK_BYTES);
}

/* One copy to warm up, then PEAK_COPIES between two events. */
static int run_probe(struct probe *p, struct onepot_error *error, uint64_t *ret_ns)
{
    int r = p->type->copy(p->device, p->stream, p->memory, p->host, PEAK_BYTES, error);
    if (r == 0)
        r = p->type->record(p->device, p->begun, p->stream, error);
    for (unsigned i = 0; i < PEAK_COPIES && r == 0; i++)
        r = p->type->copy(p->device, p->stream, p->memory, p->host, PEAK_BYTES, error);
    if (r == 0)
        r = p->type->record(p->device, p->ended, p->stream, error);
    if (r == 0)
        r = p->type->stream_wait(p->device, p->stream, error);
    return r < 0 ? r : p->type->elapsed(p->device, p->begun, p->ended, error, ret_ns);
}

int onepot_device_peak(struct onepot_device *device, struct onepot_error *error,
                       uint64_t *ret_bytes_per_second)
{
    struct onepot_error unseen;
    struct probe p = {.type = device->type, .device = device->device};
    uint64_t peak = atomic_load(&device->peak), ns = 0;
    if (!error)
        error = &unseen;
    if (!peak) {
        int r = make_probe(&p, error);
        if (r == 0)
            memset(p.host, 1, PEAK_BYTES); /* so that the pages exist */
        for (unsigned i = 0; i < PEAK_ROUNDS && r == 0; i++) {
            uint64_t took = 0;
            r = run_probe(&p, error, &took);
            ns = i == 0 || took < ns ? took : ns;
        }
        free_probe(&p);
        if (r < 0)
            return r;
        peak = (uint64_t)((double)PEAK_BYTES * PEAK_COPIES * 1e9 / (double)(ns ? ns : 1));
        atomic_store(&device->peak, peak);
    }
    *ret_bytes_per_second = peak;
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
