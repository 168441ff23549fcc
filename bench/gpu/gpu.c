/*
 * How fast batches get from an archive in memory to a device, beside what the link can do.
 *
 * Usage: gpu DEVICE ARCHIVE BATCH_BYTES THREADS
 *
 * Prints one row a line, tab-separated: name, GB/s (or seconds), fraction, CPUs busy. The peak
 * is that of a bare loop of copies from page-locked memory.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "gpu.h"
#include "upload.h"

#define SECONDS 0.5 /* of epochs after the first, which finds neither pages nor slabs there */

struct onepot_error error;

void check(int r)
{
    if (r < 0) {
        fprintf(stderr, "gpu: %s\n", error.text);
        exit(1);
    }
}

double now(void)
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

void make_loader(struct job *j, enum onepot_gather gather)
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

/* One epoch; every batch is followed by so much work on the consumer's stream. */
static double run_epoch(struct job *j, struct work *work, unsigned times)
{
    const struct onepot_batch *batch;
    double start = now();
    int r;
    while ((r = onepot_loader_next(j->loader, -1, &error, &batch)) > 0) {
        check(onepot_batch_use(batch, j->stream, &error));
        work_queue(j, work, times);
        onepot_batch_release(batch);
    }
    check(r);
    check(onepot_device_stream_wait(j->device, j->stream, &error));
    return now() - start;
}

/* End to end beside `most`, and of that the copies alone beside the peak. */
static void row(struct job *j, const char *name, enum onepot_gather gather, double most,
                const char *of_what)
{
    struct onepot_transfer t = {.size = sizeof(t)};
    make_loader(j, gather);
    run_epoch(j, NULL, 0);
    double cpu = cpu_seconds(), took = 0, copied = 0;
    int epochs = 0;
    for (; took < SECONDS; epochs++) {
        took += run_epoch(j, NULL, 0);
        check(onepot_loader_transfer(j->loader, false, &error, &t));
        if (t.copy_ns)
            copied = (double)t.copy_bytes * 1e9 / (double)t.copy_ns;
    }
    cpu = cpu_seconds() - cpu;
    double rate = (double)j->bytes * epochs / took;
    printf("%s, end to end\t%.2f GB/s\t%.2f of %s\t%.2f CPUs\n", name, rate / 1e9, rate / most,
           of_what, cpu / took);
    printf("%s, the copies alone\t%.2f GB/s\t%.2f of the peak\t\n", name, copied / 1e9,
           copied / j->peak);
    onepot_loader_free(j->loader);
}

/* How many threads it takes. */
static void rows_by_threads(struct job *j)
{
    uint32_t all = j->threads;
    char name[64];
    for (uint32_t n = 1; n < all; n *= 2) {
        snprintf(name, sizeof(name), "slabs by %u thread%s", n, n > 1 ? "s" : "");
        j->threads = n;
        row(j, name, ONEPOT_GATHER_HOST, j->peak, "the peak");
    }
    j->threads = all;
}

static bool can_gather(const struct job *j)
{
    struct locked *locked = NULL;
    int r = locked_new(j->device, j->archive, UINT64_MAX, &error, &locked);
    locked_free(locked);
    if (r < 0)
        printf("gathered by the device\tleft out: %s\t\t\n", error.text);
    return r == 0;
}

/* With kernels that take as long as the copies: alone, the one and the other, and both. */
static void overlap(struct job *j, const char *name, enum onepot_gather gather,
                    struct work *work, double seconds)
{
    struct onepot_transfer t = {.size = sizeof(t)};
    make_loader(j, gather);
    run_epoch(j, work, 0);
    double copies = run_epoch(j, work, 0);
    check(onepot_loader_transfer(j->loader, false, &error, &t));
    uint64_t batches = onepot_loader_batches(j->loader);
    double wanted = copies / (double)batches / seconds;
    unsigned times = wanted < 1 ? 1 : (unsigned)(wanted + 0.5);
    double start = now();
    for (uint64_t i = 0; i < batches; i++)
        work_queue(j, work, times);
    check(onepot_device_stream_wait(j->device, j->stream, &error));
    double kernels = now() - start, both = run_epoch(j, work, times);
    double larger = copies > kernels ? copies : kernels;
    printf("%s, with kernels as long\t%.4f s\t%.2f of the larger of %.4f (copies) and %.4f "
           "(kernels)\t\n",
           name, both, both / larger, copies, kernels);
    onepot_loader_free(j->loader);
}

static void open_all(struct job *j, char **argv)
{
    const char *const paths[] = {argv[2]};
    uint64_t size, batch_bytes = strtoull(argv[3], NULL, 10);
    check(onepot_device_open(argv[1], &error, &j->device));
    check(onepot_archive_open(paths, 1, NULL, &error, &j->archive));
    check(onepot_device_stream_new(j->device, &error, &j->stream));
    uint64_t samples = onepot_archive_samples(j->archive);
    for (uint64_t i = 0; i < samples; i++)
        if (onepot_archive_size(j->archive, i, &size) == 0)
            j->bytes += size;
    j->batch = batch_bytes * samples / (j->bytes ? j->bytes : 1);
    j->batch = j->batch ? j->batch : 1;
    j->threads = (uint32_t)strtoul(argv[4], NULL, 10);
    j->threads = j->threads ? j->threads : 1;
}

static void rows(struct job *j)
{
    uint64_t peak;
    check(onepot_device_peak(j->device, &error, &peak));
    j->peak = (double)peak;
    j->bound = copy_bound(j);
    printf("peak of bare copies to the device\t%.2f GB/s\t\t\n", j->peak / 1e9);
    printf("what %u threads copy on the host\t%.2f GB/s\t\t\n", j->threads, j->bound / 1e9);
    bool link = j->peak < j->bound;
    row(j, "slabs", ONEPOT_GATHER_HOST, link ? j->peak : j->bound,
        link ? "the peak" : "what the threads copy");
    rows_by_threads(j);
    bool gathers = can_gather(j);
    if (gathers)
        row(j, "gathered by the device", ONEPOT_GATHER_DEVICE, j->peak, "the peak");
    struct work *work = work_new(j);
    double seconds = work_seconds(j, work);
    overlap(j, "slabs", ONEPOT_GATHER_HOST, work, seconds);
    if (gathers)
        overlap(j, "gathered by the device", ONEPOT_GATHER_DEVICE, work, seconds);
    work_free(j, work);
}

int main(int argc, char **argv)
{
    struct job j = {0};
    if (argc != 5) {
        fprintf(stderr, "Usage: gpu DEVICE ARCHIVE BATCH_BYTES THREADS\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* rows that are done are seen whatever comes then */
    open_all(&j, argv);
    rows(&j);
    onepot_device_stream_free(j.device, j.stream);
    onepot_archive_close(j.archive);
    onepot_device_close(j.device);
    return 0;
}
