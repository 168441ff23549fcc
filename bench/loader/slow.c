/*
 * The loader on slow storage beside the least that it could do: threads that read the same
 * ranges of the archive, in the same order, so many at once, into batches that nobody looks at.
 *
 * Usage: slow ARCHIVE [BATCH [DEPTH [ROUNDS]]]
 *
 * Prints, for each round, thousand samples a second of a whole epoch of both, and their ratio.
 * The loader's threads and batches ahead are its own choice. Samples have to be stored.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "dataset.h"
#include "onepot.h"

struct job {
    const struct onepot_archive *archive;
    const uint64_t *order;
    uint64_t samples;
    size_t room;
    int fd;
    _Atomic uint64_t next;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "slow: %s\n", what);
    exit(1);
}

static void *read_ranges(void *arg)
{
    struct job *job = arg;
    uint8_t *buf = malloc(job->room + 1);
    for (uint64_t i; (i = atomic_fetch_add(&job->next, 1)) < job->samples;) {
        uint64_t first, end;
        archive_records(job->archive, job->order[i], &first, &end);
        const struct record *record = &job->archive->dataset->records[first];
        if (record_offset(record) == RECORD_OFFSET_NONE ||
            pread(job->fd, buf, record->size_bytes, (off_t)record_offset(record)) !=
                (ssize_t)record->size_bytes)
            fail("a range can't be read");
    }
    free(buf);
    return NULL;
}

static double bare(struct job *job, unsigned depth)
{
    pthread_t threads[1024];
    double start = now();
    job->next = 0;
    for (unsigned i = 0; i < depth; i++)
        if (pthread_create(&threads[i], NULL, read_ranges, job) != 0)
            fail("no thread");
    for (unsigned i = 0; i < depth; i++)
        pthread_join(threads[i], NULL);
    return (double)job->samples / (now() - start);
}

static double epoch(struct onepot_loader *loader, uint64_t samples)
{
    const struct onepot_batch *batch;
    struct onepot_error error;
    double start = now();
    int r;
    while ((r = onepot_loader_next(loader, -1, &error, &batch)) > 0)
        onepot_batch_release(batch);
    if (r < 0)
        fail(error.text);
    return (double)samples / (now() - start);
}

/*
 * An archive of its own for each round, since what was read of one is kept: the first epoch,
 * with nothing read ahead, and what the next one gains by that.
 */
static double loaded(const char *path, uint64_t samples, uint64_t batch, double *ret_again)
{
    struct onepot_loader_options o = {.size = sizeof(o), .batch_size = batch, .world_size = 1};
    struct onepot_stats stats = {.size = sizeof(stats)};
    struct onepot_error error;
    struct onepot_archive *archive;
    struct onepot_loader *loader = NULL;
    if (onepot_archive_open(&path, 1, NULL, &error, &archive) < 0 ||
        onepot_loader_new(archive, &o, &error, &loader) < 0)
        fail(error.text);
    double rate = epoch(loader, samples);
    *ret_again = epoch(loader, samples);
    onepot_loader_stats(loader, &stats);
    printf("%u threads, %u batches ahead: ", stats.threads, stats.prefetch);
    onepot_loader_free(loader);
    onepot_archive_close(archive);
    return rate;
}

int main(int argc, char **argv)
{
    struct onepot_archive *archive;
    struct onepot_sampler *sampler;
    struct onepot_error error;
    const char *const paths[] = {argc > 1 ? argv[1] : ""};
    uint64_t batch = argc > 2 ? strtoull(argv[2], NULL, 10) : 256;
    unsigned depth = argc > 3 ? (unsigned)atoi(argv[3]) : 32;
    if (onepot_archive_open(paths, 1, NULL, &error, &archive) < 0)
        fail(error.text);
    struct job job = {.archive = archive,
                      .samples = onepot_archive_samples(archive),
                      .fd = open(paths[0], O_RDONLY | O_CLOEXEC)};
    posix_fadvise(job.fd, 0, 0, POSIX_FADV_RANDOM);
    uint64_t *order = calloc(job.samples, sizeof(*order));
    struct onepot_sampler_options so = {
        .size = sizeof(so), .samples = job.samples, .world_size = 1};
    if (!order || job.fd < 0 || depth > 1024 || onepot_sampler_new(&so, &error, &sampler) < 0)
        fail("can't begin");
    onepot_sampler_get(sampler, 0, job.samples, order, NULL);
    for (uint64_t i = 0; i < job.samples; i++) {
        uint64_t bytes;
        onepot_archive_size(archive, i, &bytes);
        job.room = bytes > job.room ? bytes : job.room;
    }
    job.order = order;
    for (int i = 0; i < (argc > 4 ? atoi(argv[4]) : 3); i++) {
        double again, ours = loaded(paths[0], job.samples, batch, &again);
        double theirs = bare(&job, depth);
        printf("%.2f thousand samples/s, bare %.2f: %.2f of it; the next epoch %.2f\n",
               ours / 1e3, theirs / 1e3, ours / theirs, again / 1e3);
    }
    onepot_sampler_free(sampler);
    onepot_archive_close(archive);
    close(job.fd);
    free(order);
    return 0;
}
