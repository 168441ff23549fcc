/*
 * Pictures a second, beside the least that decoding can cost: the same blocks of the same files
 * decoded by libjpeg-turbo alone, which throws the pixels away.
 *
 * Usage: bench-loader-images ARCHIVE [THREADS [ROUNDS]]
 *
 * The archive holds JPEG files. Both sides take turns, and each decodes all samples with random
 * crops in one round. Prints images for each second of CPU, best of the rounds, and the ratio.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <jpeglib.h>

#include "images.h"
#include "picture.h"
#include "onepot.h"

#define SEED 5
#define BATCH 64

struct job {
    struct onepot_archive *archive;
    uint64_t samples, epoch;
    _Atomic uint64_t next;
};

static void check(int r, const char *what)
{
    if (r < 0) {
        fprintf(stderr, "bench-loader-images: %s: %s\n", what, strerror(-r));
        exit(1);
    }
}

/* Decode what the crop of this sample needs, as loader/images/jpeg.c asks for it. */
static void bare_one(const struct job *job, const struct images_plan *plan, uint64_t sample,
                     uint8_t *row)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    const void *bytes;
    uint64_t len;
    struct axis to_x, to_y;
    check(onepot_archive_bytes(job->archive, sample, &bytes, &len), "bytes");
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, bytes, len);
    jpeg_read_header(&jpeg, TRUE);
    unsigned shrinks = crop_plan(&plan->o, &(struct images_place){SEED, job->epoch, sample},
                                 jpeg.image_width, jpeg.image_height, true, &to_x, &to_y);
    jpeg.scale_num = 8 / shrinks;
    jpeg.scale_denom = 8;
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    JDIMENSION x = to_x.low, width = to_x.high - to_x.low;
    jpeg_crop_scanline(&jpeg, &x, &width);
    jpeg_skip_scanlines(&jpeg, to_y.low);
    while (jpeg.output_scanline < to_y.high)
        jpeg_read_scanlines(&jpeg, &row, 1);
    jpeg_abort_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
}

static void *bare_run(void *arg)
{
    struct job *job = arg;
    struct images_plan plan;
    uint8_t *row = malloc(65536 * 3);
    check(
        images_plan(&(struct onepot_images){.size = sizeof(struct onepot_images)}, NULL, &plan),
        "plan");
    for (uint64_t i; (i = atomic_fetch_add(&job->next, 1)) < job->samples;)
        bare_one(job, &plan, i, row);
    free(row);
    return NULL;
}

static void bare(struct job *job, unsigned threads)
{
    pthread_t ids[64];
    job->next = 0;
    for (unsigned i = 0; i < threads; i++)
        check(-pthread_create(&ids[i], NULL, bare_run, job), "thread");
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

static void loader(struct job *job, unsigned threads)
{
    static const struct onepot_images images = {.size = sizeof(images)};
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = BATCH,
                                            .world_size = 1,
                                            .no_shuffle = true,
                                            .threads = threads,
                                            .prefetch = 2,
                                            .seed = SEED,
                                            .epoch = job->epoch,
                                            .images = &images};
    struct onepot_loader *l;
    struct onepot_error error;
    const struct onepot_batch *batch;
    int r = onepot_loader_new(job->archive, &options, &error, &l);
    while (r >= 0 && (r = onepot_loader_next(l, -1, &error, &batch)) > 0)
        onepot_batch_release(batch);
    if (r < 0) {
        fprintf(stderr, "bench-loader-images: %s\n", error.text);
        exit(1);
    }
    onepot_loader_free(l);
}

static double cpu_seconds(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* Images for each second of CPU. */
static double rate(struct job *job, unsigned threads, void (*run)(struct job *, unsigned))
{
    double before = cpu_seconds();
    run(job, threads);
    return (double)job->samples / (cpu_seconds() - before);
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 3;
    struct job job = {0};
    double best[2] = {0};
    if (argc < 2 || threads < 1 || threads > 64) {
        fputs("Usage: bench-loader-images ARCHIVE [THREADS [ROUNDS]]\n", stderr);
        return 2;
    }
    check(onepot_archive_open((const char *const *)&argv[1], 1, NULL, NULL, &job.archive),
          argv[1]);
    job.samples = onepot_archive_samples(job.archive);
    for (unsigned i = 0; i < rounds; i++) {
        double now[] = {rate(&job, threads, bare), rate(&job, threads, loader)};
        for (unsigned k = 0; k < 2; k++)
            best[k] = now[k] > best[k] ? now[k] : best[k];
        job.epoch++;
    }
    printf("{\"threads\": %u, \"bare\": %.0f, \"loader\": %.0f, \"ratio\": %.3f}\n", threads,
           best[0], best[1], best[1] / best[0]);
    onepot_archive_close(job.archive);
    return 0;
}
