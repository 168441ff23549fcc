/*
 * The average is the memory divided by the mean size. The worst case takes the largest samples
 * first.
 */
#include "batch_fit.h"

#include <stdlib.h>

static int larger_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

void batch_fit(uint64_t *sizes, size_t count, uint64_t bytes, uint32_t align,
               uint64_t *ret_mean, uint64_t *ret_worst)
{
    uint64_t mask = (uint64_t)align - 1, worst = 0, left = bytes;
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sizes[i] = ((sizes[i] + mask) & ~mask) + BATCH_FIT_TABLES;
        sum += (double)sizes[i];
    }
    qsort(sizes, count, sizeof(*sizes), larger_first);
    for (; worst < count && sizes[worst] <= left; worst++)
        left -= sizes[worst];
    double mean = count ? (double)bytes / (sum / (double)count) : 0;
    *ret_mean = mean < (double)count ? (uint64_t)mean : count;
    *ret_worst = worst;
}
