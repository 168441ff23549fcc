/*
 * Gathers samples that lie apart, and others each time, so that no cache has them. The first
 * run warms up, since a kernel is loaded at its first launch. Then more and more of the device
 * takes part. Other kernels need the rest of the device, so of the widths that are equally fast
 * the least is the best.
 */
#include "trial.h"

#include <errno.h>
#include <string.h>

#include "clock.h"
#include "error.h"

#define TRIAL_BYTES (16u << 20)
#define SAMPLES 4096u
#define STEP 7919u       /* a prime, so that samples lie apart; */
#define OTHER_STEP 7907u /* another one, if the first divides their count */
#define ALIGN 64u
#define NEARLY 0.97 /* as fast as the fastest */
#define WON 0.8     /* of the host's speed is enough */

static const uint32_t widths[] = {16, 32, 64, 128, 256};
#define WIDTHS (sizeof(widths) / sizeof(widths[0]))

struct table {
    uint64_t from[SAMPLES], offsets[SAMPLES], sizes[SAMPLES];
};

struct trial {
    struct onepot_device *device;
    const struct device_type *type;
    const uint64_t *bases;
    const struct onepot_archive *archive;
    uint8_t *host;       /* page-locked: data, then its table */
    struct table *table; /* of what is gathered now */
    uint8_t *memory;     /* the device's, with the same layout */
    void *stream, *begun, *ended;
    uint64_t next; /* sample */
    uint64_t count, bytes;
};

#define ROOM (TRIAL_BYTES + sizeof(struct table))

static int make(struct trial *t, struct onepot_error *error)
{
    void *device = t->device->device, *host = NULL, *memory = NULL;
    int r = t->type->stream_new(device, error, &t->stream);
    if (r == 0)
        r = t->type->event_new(device, error, &t->begun);
    if (r == 0)
        r = t->type->event_new(device, error, &t->ended);
    if (r == 0)
        r = t->type->allocate(device, DEVICE_MEMORY_LOCKED, ROOM, error, &host);
    t->host = host;
    if (r == 0)
        r = t->type->allocate(device, DEVICE_MEMORY_OWN, ROOM, error, &memory);
    t->memory = memory;
    if (r == 0)
        t->table = (struct table *)(void *)(t->host + TRIAL_BYTES);
    return r;
}

static void end(struct trial *t)
{
    void *device = t->device->device;
    struct onepot_error unseen;
    if (t->stream) {
        /* If no kernel could be launched, the table is still on its way. */
        t->type->stream_wait(device, t->stream, &unseen);
        t->type->stream_free(device, t->stream);
    }
    if (t->begun)
        t->type->event_free(device, t->begun);
    if (t->ended)
        t->type->event_free(device, t->ended);
    if (t->host)
        t->type->release(device, DEVICE_MEMORY_LOCKED, t->host, ROOM);
    if (t->memory)
        t->type->release(device, DEVICE_MEMORY_OWN, t->memory, ROOM);
}

static const struct record *sample(const struct trial *t, uint64_t i)
{
    uint64_t first, end, count = t->archive->count, step = count % STEP ? STEP : OTHER_STEP;
    archive_records(t->archive, (t->next + i) * step % count, &first, &end);
    return &t->archive->dataset->records[first];
}

/* Choose as many samples as there is room for. */
static int choose(struct trial *t, struct onepot_error *error)
{
    uint64_t at = 0;
    t->count = t->bytes = 0;
    while (t->count < SAMPLES && t->count < t->archive->count) {
        const struct record *record = sample(t, t->count);
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

static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
    return (uint64_t)((double)bytes * 1e9 / (double)(ns ? ns : 1));
}

/* Gather on the device. */
static int run(struct trial *t, uint32_t width, struct onepot_error *error, uint64_t *ret_rate)
{
    void *device = t->device->device;
    const struct table *table = (const struct table *)(void *)(t->memory + TRIAL_BYTES);
    struct device_gather gather = {.to = t->memory,
                                   .bytes = t->table->offsets[t->count - 1] +
                                            t->table->sizes[t->count - 1],
                                   .count = t->count,
                                   .from = table->from,
                                   .offsets = table->offsets,
                                   .sizes = table->sizes,
                                   .width = width};
    uint64_t ns = 0;
    int r = t->type->copy(device, t->stream, t->memory + TRIAL_BYTES, t->table,
                          sizeof(*t->table), error);
    if (r == 0)
        r = t->type->record(device, t->begun, t->stream, error);
    if (r == 0)
        r = t->type->gather(device, t->stream, &gather, error);
    if (r == 0)
        r = t->type->record(device, t->ended, t->stream, error);
    if (r == 0)
        r = t->type->stream_wait(device, t->stream, error);
    if (r == 0)
        r = t->type->elapsed(device, t->begun, t->ended, error, &ns);
    if (r == 0)
        *ret_rate = rate_of(t->bytes, ns);
    return r;
}

/* Gather on this thread, from the mapping. */
static uint64_t run_here(const struct trial *t)
{
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < t->count; i++) {
        const struct record *record = sample(t, i);
        const uint8_t *map = t->archive->dataset->maps[record_archive(record)];
        memcpy(t->host + t->table->offsets[i], map + record_offset(record), record->size_bytes);
    }
    return rate_of(t->bytes, now_ns() - start);
}

static int run_all(struct trial *t, struct onepot_error *error, struct trial_result *ret)
{
    uint64_t rates[WIDTHS] = {0}, unseen, best = 0;
    int r = choose(t, error);
    if (r == 0)
        r = run(t, 0, error, &unseen);
    for (unsigned i = 0; i < WIDTHS && r == 0; i++) {
        t->next += t->count;
        r = choose(t, error);
        if (r == 0)
            r = run(t, widths[i], error, &rates[i]);
        if (r == 0 && rates[i] > best)
            best = rates[i];
    }
    if (r < 0)
        return r;
    unsigned least = 0;
    while ((double)rates[least] < NEARLY * (double)best)
        least++;
    t->next += t->count;
    r = choose(t, error);
    if (r == 0)
        *ret = (struct trial_result){rates[least], run_here(t), widths[least]};
    return r;
}

int trial(struct onepot_device *device, const uint64_t *bases,
          const struct onepot_archive *archive, struct onepot_error *error,
          struct trial_result *ret)
{
    struct trial t = {
        .device = device, .type = device->type, .bases = bases, .archive = archive};
    int r = make(&t, error);
    if (r == 0)
        r = run_all(&t, error, ret);
    end(&t);
    return r;
}

bool trial_is_won(const struct trial_result *result, uint64_t peak, uint32_t threads)
{
    double host = (double)result->thread_rate * threads;
    host = host < (double)peak ? host : (double)peak;
    return (double)result->device_rate >= WON * host;
}
