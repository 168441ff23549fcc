/*
 * Epochs of the loader in C, each when it is told to: so that another process can have its
 * epochs in between, on the same machine in the same minute.
 *
 * Usage: epochs ARCHIVE THREADS [BATCH]
 *
 * For each line on standard input an epoch, and a line with its samples a second. The
 * counterpart in Python is epochs.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "consume.h"
#include "onepot.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const struct onepot_error *error)
{
    fprintf(stderr, "%s\n", error->text);
    exit(1);
}

static double epoch(struct onepot_loader *loader)
{
    const struct onepot_batch *batch;
    struct onepot_error error;
    uint64_t sum = 0, samples = 0;
    double start = now();
    int r;
    while ((r = onepot_loader_next(loader, -1, &error, &batch)) > 0) {
        sum += consume(batch->data, batch->bytes);
        samples += batch->samples;
        onepot_batch_release(batch);
    }
    if (r < 0)
        fail(&error);
    return sum == 1 ? 0 : (double)samples / (now() - start);
}

int main(int argc, char **argv)
{
    const char *const paths[] = {argc > 1 ? argv[1] : ""};
    struct onepot_loader_options o = {.size = sizeof(o), .world_size = 1};
    struct onepot_archive *archive;
    struct onepot_loader *loader;
    struct onepot_error error;
    o.threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    o.batch_size = argc > 3 ? strtoull(argv[3], NULL, 10) : 256;
    if (onepot_archive_open(paths, 1, NULL, &error, &archive) < 0 ||
        onepot_loader_new(archive, &o, &error, &loader) < 0)
        fail(&error);
    while (getchar() == '\n') {
        printf("%.0f\n", epoch(loader));
        fflush(stdout);
    }
    onepot_loader_free(loader);
    onepot_archive_close(archive);
    return 0;
}
