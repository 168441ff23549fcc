/*
 * nvCOMP played by the host: the calls that nvcomp.h names, with the declarations of its
 * documentation, over libzstd. Frames are read and decompressed when their stream comes to
 * them. It ends the process where a frame is damaged: what the real one does then is undefined.
 */
#include "nvcomp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "played.h"

#define SHOWN __attribute__((visibility("default")))
#define CANNOT_DECOMPRESS 12
#define CUDA_ERROR 1000
#define ALIGN 8u

static struct played *gpu;

static void forbid(const char *what)
{
    fprintf(stderr, "nvCOMP, played: %s\n", what);
    abort();
}

SHOWN int nvcompGetProperties(struct nvcomp_version *ret_version);
SHOWN int nvcompBatchedZstdDecompressGetTempSizeAsync(size_t chunks, size_t chunk_bytes,
                                                      struct nvcomp_options options,
                                                      size_t *ret_bytes, size_t all_bytes);
SHOWN int nvcompBatchedZstdDecompressGetTempSize(size_t chunks, size_t chunk_bytes,
                                                 struct nvcomp_options options,
                                                 size_t *ret_bytes, size_t all_bytes,
                                                 cudaStream_t stream);
SHOWN int nvcompBatchedZstdDecompressAsync(const void *const *packed,
                                           const size_t *packed_bytes, const size_t *room_bytes,
                                           size_t *ret_bytes, size_t chunks, void *temp,
                                           size_t temp_bytes, void *const *to,
                                           struct nvcomp_options options, int *ret_statuses,
                                           cudaStream_t stream);

static int version(void)
{
    return gpu->nvcomp_version ? gpu->nvcomp_version : 5300;
}

int nvcompGetProperties(struct nvcomp_version *ret_version)
{
    gpu = played_find();
    if (!gpu)
        forbid("without the tests' driver");
    *ret_version = (struct nvcomp_version){(uint32_t)version(), 12080};
    return NVCOMP_SUCCESS;
}

static void need_defaults(const struct nvcomp_options *options)
{
    static const struct nvcomp_options defaults;
    if (memcmp(options, &defaults, sizeof(defaults)) != 0)
        forbid("options that nobody passes");
}

static int need_temp(int major, size_t chunks, size_t chunk_bytes,
                     const struct nvcomp_options *options, size_t *ret_bytes, size_t all_bytes)
{
    need_defaults(options);
    if (NVCOMP_MAJOR(version()) != major)
        forbid("a call of another version");
    if (all_bytes != chunks * chunk_bytes)
        forbid("more or less than all chunks");
    *ret_bytes = gpu->nvcomp_temp ? gpu->nvcomp_temp : chunks * 100 + all_bytes / 4;
    return NVCOMP_SUCCESS;
}

int nvcompBatchedZstdDecompressGetTempSizeAsync(size_t chunks, size_t chunk_bytes,
                                                struct nvcomp_options options,
                                                size_t *ret_bytes, size_t all_bytes)
{
    return need_temp(5, chunks, chunk_bytes, &options, ret_bytes, all_bytes);
}

int nvcompBatchedZstdDecompressGetTempSize(size_t chunks, size_t chunk_bytes,
                                           struct nvcomp_options options, size_t *ret_bytes,
                                           size_t all_bytes, cudaStream_t stream)
{
    (void)stream;
    return need_temp(6, chunks, chunk_bytes, &options, ret_bytes, all_bytes);
}

struct work {
    const void *const *packed;
    const size_t *packed_bytes, *room_bytes;
    size_t *ret_bytes, chunks, temp_bytes;
    void *temp, *const *to;
    int *ret_statuses;
};

static void *of_device(const void *memory, size_t bytes)
{
    if ((uintptr_t)memory % ALIGN)
        forbid("memory that is not aligned");
    return gpu->at(memory, bytes);
}

static int decompress_one(void *to, size_t room, const void *from, size_t bytes, size_t number,
                          size_t *ret_bytes)
{
    size_t got = ZSTD_decompress(to, room, from, bytes);
    if (ZSTD_isError(got))
        forbid("a damaged frame");
    if (number == gpu->nvcomp_refuses) {
        memset(to, 0x55, got);
        return CANNOT_DECOMPRESS;
    }
    if (number == gpu->nvcomp_spoils)
        ((unsigned char *)to)[got / 2] ^= 1;
    *ret_bytes = got - (number == gpu->nvcomp_shortens);
    return NVCOMP_SUCCESS;
}

static void decompress_all(void *ctx)
{
    struct work *w = ctx;
    const void *const *packed = of_device(w->packed, w->chunks * sizeof(*packed));
    const size_t *bytes = of_device(w->packed_bytes, w->chunks * sizeof(*bytes));
    const size_t *room = of_device(w->room_bytes, w->chunks * sizeof(*room));
    size_t *got = of_device(w->ret_bytes, w->chunks * sizeof(*got));
    void *const *to = of_device(w->to, w->chunks * sizeof(*to));
    int *statuses = gpu->at(w->ret_statuses, w->chunks * sizeof(*statuses));
    memset(of_device(w->temp, w->temp_bytes), 0xaa, w->temp_bytes);
    for (size_t i = 0; i < w->chunks; i++)
        statuses[i] = decompress_one(of_device(to[i], room[i]), room[i],
                                     of_device(packed[i], bytes[i]), bytes[i], i + 1, &got[i]);
    free(w);
}

int nvcompBatchedZstdDecompressAsync(const void *const *packed, const size_t *packed_bytes,
                                     const size_t *room_bytes, size_t *ret_bytes, size_t chunks,
                                     void *temp, size_t temp_bytes, void *const *to,
                                     struct nvcomp_options options, int *ret_statuses,
                                     cudaStream_t stream)
{
    need_defaults(&options);
    if (!gpu->current())
        forbid("without a context");
    if (chunks == 0)
        forbid("a call for nothing");
    __atomic_fetch_add(&gpu->nvcomp_calls, 1, __ATOMIC_RELAXED);
    if (gpu->nvcomp_fails)
        return gpu->nvcomp_fails;
    struct work *w = malloc(sizeof(*w));
    if (!w)
        abort();
    *w = (struct work){packed,     packed_bytes, room_bytes, ret_bytes,   chunks,
                       temp_bytes, temp,         to,         ret_statuses};
    __atomic_fetch_add(&gpu->nvcomp_frames, chunks, __ATOMIC_RELAXED);
    if (gpu->launch(stream, decompress_all, w) == 0)
        return NVCOMP_SUCCESS;
    free(w);
    return CUDA_ERROR;
}
