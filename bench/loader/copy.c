/*
 * How fast the loader is beside the least that it could do: threads that copy the same
 * ranges of the mapped archive, in the same order, into batches that are read once.
 *
 * Usage: copy ARCHIVE [BATCH [EPOCHS]]
 *
 * Prints, for 1 and 2 threads, thousand samples a second of both, and their ratio. The first
 * epoch (page faults) is shown by itself. Samples have to be stored.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "consume.h"
#include "onepot.h"

struct job {
    const struct onepot_archive *archive;
    const uint64_t *order;
    uint64_t samples, batch, batches;
    _Atomic uint64_t next;
    _Atomic uint64_t sum;
    size_t room;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *copy_batches(void *arg)
{
    struct job *job = arg;
    uint8_t *slab = mmap(NULL, job->room, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    for (uint64_t b; (b = atomic_fetch_add(&job->next, 1)) < job->batches;) {
        uint64_t at = 0, end = (b + 1) * job->batch;
        for (uint64_t i = b * job->batch; i < end && i < job->samples; i++) {
            const void *bytes;
            uint64_t len;
            if (onepot_archive_bytes(job->archive, job->order[i], &bytes, &len) < 0)
                exit(1);
            memcpy(slab + at, bytes, len);
            at += len;
        }
        atomic_fetch_add(&job->sum, consume(slab, at));
    }
    munmap(slab, job->room);
    return NULL;
}

static double bare(struct job *job, unsigned threads)
{
    pthread_t ids[64];
    double start = now();
    job->next = 0;
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, copy_batches, job);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    return (double)job->samples / (now() - start);
}

static double epoch(struct onepot_loader *loader, uint64_t samples)
{
    const struct onepot_batch *batch;
    struct onepot_error error;
    uint64_t sum = 0;
    double start = now();
    int r;
    while ((r = onepot_loader_next(loader, -1, &error, &batch)) > 0) {
        sum += consume(batch->data, batch->bytes);
        onepot_batch_release(batch);
    }
    if (r < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    return sum == 1 ? 0 : (double)samples / (now() - start);
}

static double best(double a, double b)
{
    return a > b ? a : b;
}

static void compare(struct job *job, unsigned threads, unsigned epochs)
{
    struct onepot_loader_options o = {
        .size = sizeof(o), .batch_size = job->batch, .world_size = 1, .threads = threads};
    struct onepot_error error;
    struct onepot_loader *loader;
    if (onepot_loader_new(job->archive, &o, &error, &loader) < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    double first = epoch(loader, job->samples), bare_first = bare(job, threads);
    double ours = 0, theirs = 0;
    for (unsigned i = 0; i < epochs; i++) { /* in turns, so that both have the same machine */
        ours = best(ours, epoch(loader, job->samples));
        theirs = best(theirs, bare(job, threads));
    }
    printf("%u threads: first %.0f (bare after it %.0f), then %.0f, bare %.0f: %.2f of it\n",
           threads, first / 1e3, bare_first / 1e3, ours / 1e3, theirs / 1e3, ours / theirs);
    onepot_loader_free(loader);
}

int main(int argc, char **argv)
{
    struct onepot_archive *archive;
    struct onepot_sampler *sampler;
    struct onepot_error error;
    const char *const paths[] = {argc > 1 ? argv[1] : ""};
    if (onepot_archive_open(paths, 1, NULL, &error, &archive) < 0) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    struct job job = {.archive = archive, .samples = onepot_archive_samples(archive)};
    job.batch = argc > 2 ? strtoull(argv[2], NULL, 10) : 256;
    job.batches = (job.samples + job.batch - 1) / job.batch;
    uint64_t *order = calloc(job.samples, sizeof(*order)), largest = 0;
    struct onepot_sampler_options so = {
        .size = sizeof(so), .samples = job.samples, .world_size = 1};
    if (!order || onepot_sampler_new(&so, &error, &sampler) < 0)
        return 1;
    onepot_sampler_get(sampler, 0, job.samples, order, NULL);
    for (uint64_t i = 0; i < job.samples; i++) {
        uint64_t bytes;
        onepot_archive_size(archive, i, &bytes);
        largest = bytes > largest ? bytes : largest;
    }
    job.order = order;
    job.room = largest * job.batch;
    for (unsigned threads = 1; threads <= 2; threads++)
        compare(&job, threads, argc > 3 ? (unsigned)atoi(argv[3]) : 5);
    onepot_sampler_free(sampler);
    onepot_archive_close(archive);
    free(order);
    return 0;
}
