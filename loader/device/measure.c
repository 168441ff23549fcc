/*
 * Measures a device: the peak of its link, how fast it gathers, and how many samples a batch
 * for it may have.
 *
 * To measure gathering, samples are taken that lie apart, and others each time, so that no
 * cache has them. The first run warms up, since a kernel is loaded at its first launch. Then
 * more and more of the device takes part. Other kernels need the rest of the device, so of the
 * widths that are equally fast the least is the best.
 */
#include "measure.h"

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "error.h"

/* ---- a stream, two events in it, and memory on both sides ---- */

struct bench {
    const struct device_type *type;
    void *device, *stream, *begun, *ended;
    void *host, *memory; /* page-locked; the device's */
    size_t bytes;        /* of either */
};

static int bench_make(struct bench *b, const struct onepot_device *device, size_t bytes,
                      struct onepot_error *error)
{
    *b = (struct bench){.type = device->type, .device = device->device, .bytes = bytes};
    int r = b->type->stream_new(b->device, false, error, &b->stream);
    if (r == 0)
        r = b->type->event_new(b->device, true, error, &b->begun);
    if (r == 0)
        r = b->type->event_new(b->device, true, error, &b->ended);
    if (r == 0)
        r = b->type->allocate(b->device, DEVICE_MEMORY_LOCKED, bytes, error, &b->host);
    if (r == 0)
        r = b->type->allocate(b->device, DEVICE_MEMORY_OWN, bytes, error, &b->memory);
    return r;
}

/* Also of one that was made in part. What is queued is waited for, even if that failed. */
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
        b->type->release(b->device, DEVICE_MEMORY_LOCKED, b->host, b->bytes);
    if (b->memory)
        b->type->release(b->device, DEVICE_MEMORY_OWN, b->memory, b->bytes);
}

static int bench_begin(struct bench *b, struct onepot_error *error)
{
    return b->type->record(b->device, b->begun, b->stream, error);
}

/* How long the device took since bench_begin, if the last call returned 0. */
static int bench_end(struct bench *b, int r, struct onepot_error *error, uint64_t *ret_ns)
{
    if (r == 0)
        r = b->type->record(b->device, b->ended, b->stream, error);
    if (r == 0)
        r = b->type->stream_wait(b->device, b->stream, error);
    return r < 0 ? r : b->type->elapsed(b->device, b->begun, b->ended, error, ret_ns);
}

static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
    return (uint64_t)((double)bytes * 1e9 / (double)(ns ? ns : 1));
}

/* ---- the peak of the link ---- */

#define PEAK_BYTES (32u << 20)
#define PEAK_COPIES 8u
#define PEAK_ROUNDS 3u /* an idle link is slow at first */

/* One copy to warm up, then PEAK_COPIES between two events. */
static int run_copies(struct bench *b, struct onepot_error *error, uint64_t *ret_ns)
{
    int r = b->type->copy(b->device, b->stream, b->memory, b->host, PEAK_BYTES, error);
    if (r == 0)
        r = bench_begin(b, error);
    for (unsigned i = 0; i < PEAK_COPIES && r == 0; i++)
        r = b->type->copy(b->device, b->stream, b->memory, b->host, PEAK_BYTES, error);
    return bench_end(b, r, error, ret_ns);
}

int onepot_device_peak(struct onepot_device *device, struct onepot_error *error,
                       uint64_t *ret_bytes_per_second)
{
    uint64_t ns = UINT64_MAX, took = 0;
    *ret_bytes_per_second = atomic_load(&device->peak);
    if (*ret_bytes_per_second)
        return 0;
    struct bench b;
    int r = bench_make(&b, device, PEAK_BYTES, error);
    if (r == 0)
        memset(b.host, 1, PEAK_BYTES); /* so that the pages exist */
    for (unsigned i = 0; i < PEAK_ROUNDS && r == 0; i++) {
        r = run_copies(&b, error, &took);
        ns = took < ns ? took : ns;
    }
    bench_free(&b);
    if (r < 0)
        return r;
    *ret_bytes_per_second = rate_of((uint64_t)PEAK_BYTES * PEAK_COPIES, ns);
    atomic_store(&device->peak, *ret_bytes_per_second);
    return 0;
}

/* ---- gathering ---- */

#define TRIAL_BYTES (16u << 20)
#define SAMPLES 4096u
#define STEP 7919u       /* a prime, so that samples lie apart; */
#define OTHER_STEP 7907u /* another one, if the first divides their count */
#define ALIGN 64u
#define NEARLY 0.97 /* as fast as the fastest */
#define WON 0.8     /* of the host's speed is enough */

const uint32_t measure_widths[MEASURE_WIDTHS] = {4, 8, 16, 32, 64, 128, 256};

struct table {
    uint64_t from[SAMPLES], offsets[SAMPLES], sizes[SAMPLES];
};

/* Both sides of the bench's memory have data first, then the table. */
struct trial {
    struct bench bench;
    const uint64_t *bases;
    const struct onepot_archive *archive;
    struct table *table; /* the host's, of what is gathered now */
    uint64_t next;       /* sample */
    uint64_t count, bytes;
};

static const struct record *trial_sample(const struct trial *t, uint64_t i)
{
    uint64_t count = t->archive->count, step = count % STEP ? STEP : OTHER_STEP;
    return archive_first(t->archive, (t->next + i) * step % count);
}

/* Choose as many samples as there is room for. */
static int trial_choose(struct trial *t, struct onepot_error *error)
{
    uint64_t at = 0;
    t->count = t->bytes = 0;
    while (t->count < SAMPLES && t->count < t->archive->count) {
        const struct record *record = trial_sample(t, t->count);
        if (at > TRIAL_BYTES || record->size_bytes > TRIAL_BYTES - at)
            break;
        t->table->from[t->count] = t->bases[record_archive(record)] + record_offset(record);
        t->table->offsets[t->count] = at;
        t->table->sizes[t->count] = record->size_bytes;
        at = (at + record->size_bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
        t->bytes += record->size_bytes;
        t->count++;
    }
    return t->bytes ? 0 : error_set(error, -ENOTSUP, "there is nothing to gather");
}

/* Gather on the device. */
static int trial_run(struct trial *t, uint32_t width, struct onepot_error *error,
                     uint64_t *ret_rate)
{
    struct bench *b = &t->bench;
    uint8_t *memory = b->memory;
    const struct table *table = (const struct table *)(void *)(memory + TRIAL_BYTES);
    struct device_gather gather = {.to = memory,
                                   .bytes = t->table->offsets[t->count - 1] +
                                            t->table->sizes[t->count - 1],
                                   .count = t->count,
                                   .from = table->from,
                                   .offsets = table->offsets,
                                   .sizes = table->sizes,
                                   .width = width};
    uint64_t ns = 0;
    int r = b->type->copy(b->device, b->stream, memory + TRIAL_BYTES, t->table,
                          sizeof(*t->table), error);
    if (r == 0)
        r = bench_begin(b, error);
    if (r == 0)
        r = b->type->gather(b->device, b->stream, &gather, error);
    r = bench_end(b, r, error, &ns);
    if (r == 0)
        *ret_rate = rate_of(t->bytes, ns);
    return r;
}

/* Gather on this thread, from the mapping. */
static uint64_t trial_run_here(const struct trial *t)
{
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < t->count; i++) {
        const struct record *record = trial_sample(t, i);
        const uint8_t *map = t->archive->dataset->maps[record_archive(record)];
        memcpy((uint8_t *)t->bench.host + t->table->offsets[i], map + record_offset(record),
               record->size_bytes);
    }
    return rate_of(t->bytes, now_ns() - start);
}

static int trial_run_all(struct trial *t, struct onepot_error *error,
                         struct measure_result *ret)
{
    struct measure_result found = {0};
    uint64_t unseen, best = 0;
    int r = trial_choose(t, error);
    if (r == 0)
        r = trial_run(t, 0, error, &unseen);
    for (unsigned i = 0; i < MEASURE_WIDTHS && r == 0; i++) {
        t->next += t->count;
        r = trial_choose(t, error);
        if (r == 0)
            r = trial_run(t, measure_widths[i], error, &found.rates[i]);
        if (r == 0 && found.rates[i] > best)
            best = found.rates[i];
    }
    if (r < 0)
        return r;
    unsigned least = 0;
    while ((double)found.rates[least] < NEARLY * (double)best)
        least++;
    t->next += t->count;
    r = trial_choose(t, error);
    if (r < 0)
        return r;
    found.device_rate = found.rates[least];
    found.thread_rate = trial_run_here(t);
    found.width = measure_widths[least];
    *ret = found;
    return 0;
}

int measure_gathering(struct onepot_device *device, const uint64_t *bases,
                      const struct onepot_archive *archive, struct onepot_error *error,
                      struct measure_result *ret)
{
    struct trial t = {.bases = bases, .archive = archive};
    int r = bench_make(&t.bench, device, TRIAL_BYTES + sizeof(struct table), error);
    if (r == 0) {
        t.table = (struct table *)(void *)((uint8_t *)t.bench.host + TRIAL_BYTES);
        r = trial_run_all(&t, error, ret);
    }
    bench_free(&t.bench);
    return r;
}

bool measure_device_wins(const struct measure_result *result, uint64_t peak, uint32_t threads)
{
    double host = (double)result->thread_rate * threads;
    host = host < (double)peak ? host : (double)peak;
    return (double)result->device_rate >= WON * host;
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
