/*
 * Stores past the caches in the host's gather for a device (copy_past.h): samples in a
 * shuffled order, from memory to batches that are not read here, beside memcpy in turns.
 *
 * Usage: past [ROUNDS]
 *
 * Prints, for samples of 4 to 110 KB, gigabytes in a second of the thread's CPU time (the
 * median of the rounds), and the median of the pairs' ratios.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define COPY_PAST_LEAST 1u
#include "copy_past.h"

#define SOURCE_BYTES ((size_t)1 << 30)
#define SLAB_BYTES ((size_t)64 << 20)
#define SLABS 4u
#define ROUNDS_MAX 99u

static uint8_t *memory_of(size_t bytes, int value)
{
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("past");
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, value, bytes);
    return p;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The multiplier has no factor in common with any number of samples that there may be. */
static size_t shuffled(size_t i, size_t samples)
{
    return (size_t)((unsigned __int128)i * 2654435761u % samples);
}

/* Gigabytes a second. */
static double gather(const uint8_t *from, uint8_t *slabs, size_t sample_bytes, int past)
{
    size_t samples = SOURCE_BYTES / sample_bytes, at = 0;
    double began = cpu_seconds();
    for (size_t i = 0; i < samples; i++) {
        const uint8_t *sample = from + shuffled(i, samples) * sample_bytes;
        if (past)
            copy_past(slabs + at, sample, sample_bytes);
        else
            memcpy(slabs + at, sample, sample_bytes);
        at += sample_bytes;
        if (at + sample_bytes > SLABS * SLAB_BYTES)
            at = 0;
    }
    return 1e-9 * (double)(samples * sample_bytes) / (cpu_seconds() - began);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof(*values), by_value);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4099, 8009, 12011, 16007, 20011, 110017};
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 9;
    double usual[ROUNDS_MAX], past[ROUNDS_MAX], ratios[ROUNDS_MAX];
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: past [1-%u]\n", ROUNDS_MAX);
        return 2;
    }
    uint8_t *from = memory_of(SOURCE_BYTES, 1), *slabs = memory_of(SLABS * SLAB_BYTES, 2);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (unsigned i = 0; i < rounds; i++) {
            usual[i] = gather(from, slabs, sizes[s], 0);
            past[i] = gather(from, slabs, sizes[s], 1);
            ratios[i] = past[i] / usual[i];
        }
        printf("samples of %zu bytes: memcpy %.1f, past the caches %.1f GB/s: %.2f of it\n",
               sizes[s], median(usual, rounds), median(past, rounds), median(ratios, rounds));
    }
    return 0;
}
