/*
 * The layout of slabs, and their memory on a host. New memory costs a fault for each page at
 * its first write, which takes longer than the copy into it. Hence huge pages where there are
 * any, and slabs that are used again.
 */
#include "slab.h"

#include <errno.h>
#include <sys/mman.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* of the table's functions */

#define HUGE_BYTES (2u << 20)
#define SLAB_ALIGN 64u /* tables begin at multiples of it */

static int slab_host_allocate(struct slab *slab, size_t bytes, void *ctx)
{
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
    munmap(slab->memory, slab->capacity);
}

static size_t slab_host_beside(size_t capacity, void *ctx)
{
    return 0;
}

static void slab_host_gather(struct slab *slab, uint64_t first, uint64_t end, void *ctx) {}

static int slab_host_send(struct slab *slab, void *ctx)
{
    return 0;
}

static bool slab_host_is_settled(struct slab *slab, void *ctx)
{
    return true;
}

/* For retire and settle. */
static void slab_host_nothing(struct slab *slab, void *ctx) {}

static void slab_host_close(void *ctx) {}

const struct slab_memory slab_host_memory = {.allocate = slab_host_allocate,
                                             .release = slab_host_release,
                                             .beside = slab_host_beside,
                                             .gather = slab_host_gather,
                                             .send = slab_host_send,
                                             .retire = slab_host_nothing,
                                             .is_settled = slab_host_is_settled,
                                             .settle = slab_host_nothing,
                                             .close = slab_host_close};

static uint64_t slab_rounded(uint64_t bytes)
{
    return (bytes + SLAB_ALIGN - 1) & ~(uint64_t)(SLAB_ALIGN - 1);
}

/* Five tables of 8 bytes a sample and one of 1 byte, each rounded up. */
static size_t slab_tables_bytes(uint64_t samples)
{
    return samples * 41 + 6 * SLAB_ALIGN;
}

size_t slab_bytes(uint64_t samples, uint64_t data_bytes, uint64_t *ret_batch)
{
    size_t bytes;
    if (samples > UINT32_MAX || data_bytes > SIZE_MAX / 2 ||
        __builtin_add_overflow(slab_rounded(data_bytes), slab_tables_bytes(samples), &bytes))
        return 0;
    if (ret_batch)
        *ret_batch = slab_rounded(data_bytes) + 4 * slab_rounded(samples * sizeof(uint64_t)) +
                     slab_rounded(samples);
    return bytes;
}

void slab_begin(struct slab *slab, uint64_t samples, uint64_t data_bytes)
{
    bool has_data = !slab->tables_only;
    uint8_t *at = slab->memory + (has_data ? slab_rounded(data_bytes) : 0);
    uint64_t table = slab_rounded(samples * sizeof(uint64_t));
    *slab = (struct slab){
        .device = slab->device,
        .memory = slab->memory,
        .capacity = slab->capacity,
        .tables_only = slab->tables_only,
        .device_at = has_data ? 0 : slab_rounded(data_bytes),
        .device_slab = slab->device_slab,
        .offsets = (uint64_t *)(void *)at,
        .sizes = (uint64_t *)(void *)(at + table),
        .labels = (int64_t *)(void *)(at + 2 * table),
        .indices = (uint64_t *)(void *)(at + 3 * table),
        .valid = at + 4 * table,
        .sources = (uint64_t *)(void *)(at + 4 * table + slab_rounded(samples)),
    };
    slab->batch = (struct onepot_batch){.size = sizeof(slab->batch),
                                        .samples = samples,
                                        .data = has_data ? slab->memory : NULL,
                                        .bytes = data_bytes,
                                        .offsets = slab->offsets,
                                        .sizes = slab->sizes,
                                        .labels = slab->labels,
                                        .indices = slab->indices,
                                        .valid = slab->valid};
}
