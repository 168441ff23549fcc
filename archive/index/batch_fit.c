/*
 * The average is the memory divided by the mean size. The worst case takes the largest samples
 * first.
 */
#include "batch_fit.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cleanup.h"

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

int batch_fit_index(const struct index *index, uint64_t bytes, uint64_t *ret_mean,
                    uint64_t *ret_worst)
{
    uint32_t entries = index_info(index)->entries;
    size_t count = 0;
    auto_free uint64_t *sizes = calloc((size_t)entries + 1, sizeof(*sizes));
    if (!sizes)
        return -ENOMEM;
    for (uint32_t i = 0; i < entries; i++) {
        struct node node;
        int r = index_node(index, i, &node);
        if (r < 0)
            return r;
        if (S_ISREG(node.mode))
            sizes[count++] = node.size_bytes;
    }
    batch_fit(sizes, count, bytes, BATCH_FIT_ALIGN, ret_mean, ret_worst);
    return 0;
}
