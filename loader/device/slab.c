/*
 * The layout of slabs, and their memory on a host. New memory costs a fault for each page at
 * its first write, which takes longer than the copy into it. Hence huge pages where there are
 * any, and slabs that are used again.
 */
#include "slab.h"

#include <errno.h>
#include <sys/mman.h>

#define HUGE_BYTES (2u << 20)

static int slab_host_allocate(struct slab *slab, size_t bytes, void *ctx)
{
    (void)ctx;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    if (bytes >= HUGE_BYTES)
        madvise(p, bytes, MADV_HUGEPAGE);
    slab->memory = p;
    return 0;
}

static void slab_host_release(struct slab *slab, void *ctx)
{
    (void)ctx;
    munmap(slab->memory, slab->capacity);
}

const struct slab_memory slab_host_memory = {.allocate = slab_host_allocate,
                                             .release = slab_host_release};

size_t slab_tables_at(uint64_t data_bytes)
{
    return slab_rounded(data_bytes);
}

/* Five tables of 8 bytes a sample and one of 1 byte, each rounded up. */
size_t slab_tables_bytes(uint64_t samples)
{
    return samples * 41 + 6 * SLAB_ALIGN;
}

size_t slab_bytes(uint64_t samples, uint64_t data_bytes)
{
    size_t bytes;
    if (samples > UINT32_MAX || data_bytes > SIZE_MAX / 2 ||
        __builtin_add_overflow(slab_rounded(data_bytes), slab_tables_bytes(samples), &bytes))
        return 0;
    return bytes;
}

void slab_lay_out(struct slab *slab, uint64_t samples, uint64_t data_bytes)
{
    uint8_t *at = slab->memory + (slab->bases ? 0 : slab_rounded(data_bytes));
    uint64_t table = slab_rounded(samples * sizeof(uint64_t));
    slab->offsets = (uint64_t *)(void *)at;
    slab->sizes = (uint64_t *)(void *)(at + table);
    slab->labels = (int64_t *)(void *)(at + 2 * table);
    slab->indices = (uint64_t *)(void *)(at + 3 * table);
    slab->valid = at + 4 * table;
    slab->sources = (uint64_t *)(void *)(slab->valid + slab_rounded(samples));
    struct onepot_batch *batch = &slab->batch;
    batch->size = sizeof(*batch);
    batch->samples = samples;
    batch->data = slab->bases ? NULL : slab->memory;
    batch->bytes = data_bytes;
    batch->offsets = slab->offsets;
    batch->sizes = slab->sizes;
    batch->labels = slab->labels;
    batch->indices = slab->indices;
    batch->valid = slab->valid;
}
