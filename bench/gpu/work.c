/*
 * Kernels for the row of the overlap, images of bytes made floats; where the part for CUDA has
 * none, calls that sleep. And what threads of the host copy, which is the bound of slabs.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu.h"

#define WORK_BYTES (12u << 20)
#define NAP_NS 100000
#define ROUNDS 3

struct work {
    void *from, *to; /* memory of the device; NULL: it sleeps */
    struct onepot_conversion images;
    uint64_t count;
};

static void nap(void *ctx)
{
    (void)ctx;
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

struct work *work_new(struct job *j)
{
    struct onepot_device_info info = {.size = sizeof(info)};
    struct onepot_device *d = j->device;
    struct work *w = calloc(1, sizeof(*w));
    if (!w)
        exit(1);
    w->images = (struct onepot_conversion){.size = sizeof(w->images),
                                           .height = 64,
                                           .width = 64,
                                           .channels = 3,
                                           .type = ONEPOT_FLOAT,
                                           .scale = {1, 1, 1}};
    w->count = WORK_BYTES / (64 * 64 * 3);
    check(onepot_device_info(d, &error, &info));
    if (!info.kernels)
        return w;
    check(d->type->allocate(d->device, DEVICE_MEMORY_OWN, WORK_BYTES, &error, &w->from));
    check(d->type->allocate(d->device, DEVICE_MEMORY_OWN, 4 * WORK_BYTES, &error, &w->to));
    return w;
}

void work_free(struct job *j, struct work *w)
{
    struct onepot_device *d = j->device;
    if (w->from) {
        d->type->release(d->device, DEVICE_MEMORY_OWN, w->from, WORK_BYTES);
        d->type->release(d->device, DEVICE_MEMORY_OWN, w->to, 4 * WORK_BYTES);
    }
    free(w);
}

void work_queue(struct job *j, struct work *w, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        check(w->from ? onepot_device_convert(j->device, j->stream, &w->images, w->count,
                                              w->from, w->to, &error)
                      : onepot_device_call(j->device, j->stream, nap, NULL, &error));
}

/* The first one is not counted; of what is fast, many are. */
double work_seconds(struct job *j, struct work *w)
{
    double took = 0;
    for (unsigned times = 1; times <= 64 && took < 0.005; times *= 4) {
        work_queue(j, w, 1);
        check(onepot_device_stream_wait(j->device, j->stream, &error));
        double start = now();
        work_queue(j, w, times);
        check(onepot_device_stream_wait(j->device, j->stream, &error));
        took = now() - start;
        if (times == 64 || took >= 0.005)
            return took / times;
    }
    return took;
}

/* ---- the host's threads ---- */

#define ROOM (64u << 20)

struct copier {
    const struct job *job;
    uint32_t number;
    uint8_t *to; /* ROOM bytes, written before */
    uint64_t bytes;
};

/* Samples that lie apart, into memory that is there, as a slab is. */
static void *copy_some(void *ctx)
{
    struct copier *c = ctx;
    const uint64_t samples = onepot_archive_samples(c->job->archive);
    uint64_t at = 0, len;
    const void *from;
    c->bytes = 0;
    for (uint64_t i = c->number; i < samples; i += c->job->threads) {
        check(onepot_archive_bytes(c->job->archive, i * 7919 % samples, &from, &len));
        len = len < ROOM ? len : ROOM;
        at = at + len > ROOM ? 0 : at;
        memcpy(c->to + at, from, len);
        at += len;
        c->bytes += len;
    }
    return NULL;
}

static double copy_once(struct copier *c, pthread_t *threads, uint32_t count)
{
    uint64_t bytes = 0;
    double start = now();
    for (uint32_t i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, copy_some, &c[i]) != 0)
            exit(1);
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        bytes += c[i].bytes;
    }
    return (double)bytes / (now() - start);
}

double copy_bound(const struct job *j)
{
    struct copier *c = calloc(j->threads, sizeof(*c));
    pthread_t *threads = calloc(j->threads, sizeof(*threads));
    double best = 0;
    if (!c || !threads)
        exit(1);
    for (uint32_t i = 0; i < j->threads; i++) {
        c[i] = (struct copier){.job = j, .number = i, .to = malloc(ROOM)};
        if (!c[i].to)
            exit(1);
        memset(c[i].to, 1, ROOM);
    }
    for (int i = 0; i < ROUNDS; i++) {
        double rate = copy_once(c, threads, j->threads);
        best = rate > best ? rate : best;
    }
    for (uint32_t i = 0; i < j->threads; i++)
        free(c[i].to);
    free(c);
    free(threads);
    return best;
}
