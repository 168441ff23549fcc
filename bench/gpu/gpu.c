/*
 * How fast batches get from an archive in memory to a device, beside what the link can do.
 *
 * Usage: gpu DEVICE ARCHIVE BATCH_BYTES THREADS
 *
 * Prints one row a line, tab-separated: name, GB/s (or seconds), fraction, CPUs busy. The peak
 * is that of a bare loop of copies from page-locked memory. The kernel of the overlap row is a
 * call that sleeps on the consumer's stream for as long as a copy of the batch takes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "onepot_device.h"

#define EPOCHS 3 /* the first is not counted: pages, slabs */

static struct onepot_error error;

static void check(int r)
{
    if (r < 0) {
        fprintf(stderr, "gpu: %s\n", error.text);
        exit(1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

struct job {
    struct onepot_device *device;
    struct onepot_archive *archive;
    struct onepot_loader *loader;
    void *stream;
    uint64_t batch, bytes; /* samples of a batch; bytes of an epoch */
    uint32_t threads;
    double peak; /* bytes a second */
};

static void make_loader(struct job *j, enum onepot_gather gather)
{
    struct onepot_loader_options o = {.size = sizeof(o),
                                      .batch_size = j->batch,
                                      .world_size = 1,
                                      .threads = j->threads,
                                      .prefetch = 4,
                                      .device = j->device,
                                      .gather = gather};
    check(onepot_loader_new(j->archive, &o, &error, &j->loader));
}

static void nap(void *ctx)
{
    uint64_t ns = *(const uint64_t *)ctx;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                                 .tv_nsec = (long)(ns % 1000000000u)},
              NULL);
}

/* One epoch; every batch is followed by a nap of so long on the stream. */
static double run_epoch(struct job *j, uint64_t *nap_ns)
{
    const struct onepot_batch *batch;
    double start = now();
    int r;
    while ((r = onepot_loader_next(j->loader, -1, &error, &batch)) > 0) {
        check(onepot_batch_use(batch, j->stream, &error));
        if (*nap_ns)
            check(onepot_device_call(j->device, j->stream, nap, nap_ns, &error));
        onepot_batch_release(batch);
    }
    check(r);
    check(onepot_device_stream_wait(j->device, j->stream, &error));
    return now() - start;
}

/* End to end, and of that the copies alone. */
static void row(struct job *j, const char *name, enum onepot_gather gather)
{
    struct onepot_transfer t = {.size = sizeof(t)};
    uint64_t none = 0;
    make_loader(j, gather);
    run_epoch(j, &none);
    double cpu = cpu_seconds(), took = 0, copied = 0;
    for (int i = 1; i < EPOCHS; i++) {
        took += run_epoch(j, &none);
        check(onepot_loader_transfer(j->loader, false, &error, &t));
        if (t.copy_ns)
            copied = (double)t.copy_bytes * 1e9 / (double)t.copy_ns;
    }
    double rate = (double)j->bytes * (EPOCHS - 1) / took;
    printf("%s, end to end\t%.2f GB/s\t%.2f of the peak\t%.2f CPUs\n", name, rate / 1e9,
           rate / j->peak, (cpu_seconds() - cpu) / took);
    printf("%s, the copies alone\t%.2f GB/s\t%.2f of the peak\t\n", name, copied / 1e9,
           copied / j->peak);
    onepot_loader_free(j->loader);
}

static void overlap(struct job *j)
{
    struct onepot_transfer t = {.size = sizeof(t)};
    uint64_t nap_ns = 0;
    make_loader(j, ONEPOT_GATHER_HOST);
    run_epoch(j, &nap_ns);
    double alone = run_epoch(j, &nap_ns);
    check(onepot_loader_transfer(j->loader, false, &error, &t));
    nap_ns = t.batches ? t.copy_ns / t.batches : 0;
    double both = run_epoch(j, &nap_ns);
    double naps = (double)nap_ns * 1e-9 * (double)onepot_loader_batches(j->loader);
    double larger = alone > naps ? alone : naps;
    printf("a kernel as long as the copy\t%.3f s\t%.2f of the larger of both\t\n", both,
           both / larger);
    onepot_loader_free(j->loader);
}

int main(int argc, char **argv)
{
    struct job j = {0};
    uint64_t peak, batch_bytes, size;
    if (argc != 5) {
        fprintf(stderr, "Usage: gpu DEVICE ARCHIVE BATCH_BYTES THREADS\n");
        return 2;
    }
    const char *const paths[] = {argv[2]};
    check(onepot_device_open(argv[1], &error, &j.device));
    check(onepot_archive_open(paths, 1, NULL, &error, &j.archive));
    check(onepot_device_stream_new(j.device, &error, &j.stream));
    check(onepot_device_peak(j.device, &error, &peak));
    batch_bytes = strtoull(argv[3], NULL, 10);
    j.threads = (uint32_t)strtoul(argv[4], NULL, 10);
    j.peak = (double)peak;
    for (uint64_t i = 0; i < onepot_archive_samples(j.archive); i++)
        if (onepot_archive_size(j.archive, i, &size) == 0)
            j.bytes += size;
    j.batch = batch_bytes * onepot_archive_samples(j.archive) / (j.bytes ? j.bytes : 1);
    if (j.batch == 0)
        j.batch = 1;
    printf("peak of bare copies\t%.2f GB/s\t\t\n", j.peak / 1e9);
    row(&j, "slabs", ONEPOT_GATHER_HOST);
    row(&j, "gathered by the device", ONEPOT_GATHER_DEVICE);
    overlap(&j);
    onepot_device_stream_free(j.device, j.stream);
    onepot_archive_close(j.archive);
    onepot_device_close(j.device);
    return 0;
}
